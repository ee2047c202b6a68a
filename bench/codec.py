"""What does encryption at rest cost a job?

    python -m bench.codec sqlite postgres redis --jobs 10000 --rounds 5

The same jobs, with and without a codec, in turn: stored by one call (`enqueue_many`), then run by one worker in this
process. The figures are medians of this process's processor time, in microseconds a job: other load on the machine, and
the disk, are not in them. The last table is the time to encrypt and to decrypt one value, by its size.
"""

from __future__ import annotations

import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from servers import shared_postgres, shared_valkey
from tenure import Tenure
from tenure.app.backends import open_store
from tenure.codecs import AesSiv, Codec
from tenure.core.lifecycle import State
from tenure.stores.sealed.values import Seal

STORES = ("sqlite", "postgres", "redis")
SLOTS = 200
JOB = "01980000-0000-7000-8000-000000000000"


def a_round(kind: str, number: int, codec: Codec | None) -> tuple[float, float]:
    """Microseconds a job: to store it, and to run it."""
    with tempfile.TemporaryDirectory() as folder:
        if kind == "sqlite":
            url = f"sqlite:///{folder}/tenure.db"
        else:
            url = shared_postgres().create_database() if kind == "postgres" else shared_valkey().url
        jobs = Tenure(url, namespace=f"codec_{time.time_ns()}", codec=codec)
        open_store(jobs.settings).migrate()

        @jobs.task
        async def charge(order: int, customer: str) -> dict[str, int]:
            return {"order": order}

        with jobs:
            new = [charge.bind(n, "a customer with a name of forty characters") for n in range(number)]
            began = time.process_time()
            jobs.enqueue_many(new)
            stored = time.process_time() - began
            store = jobs.client().store
            with jobs.worker(concurrency=SLOTS):
                began = time.process_time()
                while store.counts()[State.COMPLETED] < number:
                    time.sleep(0.1)
                ran = time.process_time() - began
    return stored / number * 1e6, ran / number * 1e6


def one_value(size: int) -> tuple[float, float]:
    """Microseconds to encrypt a value of `size` bytes, and to decrypt it."""
    seal, text = Seal(AesSiv([AesSiv.new_key()])), '"' + "x" * (size - 2) + '"'
    sealed = seal.close(text, "result", JOB)
    times = max(20, 2_000_000 // (size + 1_000))
    return took(lambda: seal.close(text, "result", JOB), times), took(lambda: seal.open(sealed, "result", JOB), times)


def took(call: Callable[[], object], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - began) / times * 1e6


def main() -> None:
    parser = ArgumentParser(prog="python -m bench.codec", description=__doc__)
    parser.add_argument("stores", nargs="+", choices=STORES)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    codec = AesSiv([AesSiv.new_key()])
    print("| store | | without, µs a job | with, µs a job | more |\n| --- | --- | --- | --- | --- |")
    for kind in asked.stores:
        rounds = [(a_round(kind, asked.jobs, None), a_round(kind, asked.jobs, codec)) for _ in range(asked.rounds)]
        for place, what in enumerate(("to store", "to run")):
            plain, encrypted = (median(each[which][place] for each in rounds) for which in (0, 1))
            print(f"| {kind} | {what} | {plain:.1f} | {encrypted:.1f} | {encrypted - plain:+.1f} |", flush=True)
    print("\n| bytes of a value | to encrypt, µs | to decrypt, µs |\n| --- | --- | --- |")
    for size in (50, 1_000, 10_000, 250_000):
        encrypt, decrypt = one_value(size)
        print(f"| {size:,} | {encrypt:.1f} | {decrypt:.1f} |")


if __name__ == "__main__":
    main()
