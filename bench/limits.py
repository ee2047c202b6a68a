"""What limits cost, and how fair they are: jobs with keys against plain ones, in interleaved rounds, on one store."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.limits_app import BEGAN
from bench.report import here, in_rounds, judged
from bench.schedules import opened, place
from tenure.core.ids import new_id
from tenure.core.limits import Key
from tenure.ports import Draft, Store

SHOPS = 100
SLOTS = 500
BATCH = 1_000
SHORT = 1_000  #: jobs of 5 ms of one measurement
KEYS, BACKLOG, FAIR_SLOTS = 1_000, 20_000, 20
OF_EACH = 20  #: jobs of every other key
PEER_JOBS = 150
PATIENCE = 300.0

Begin = tuple[int, float]


def run(asked: Namespace) -> str:
    store: str = asked.store
    figures: dict[str, list[float]] = {}
    for number in range(asked.rounds):
        for name, measure in MEASURES.items():
            found = measure(store, asked.jobs)
            figures.setdefault(name, []).append(found)
            sys.stderr.write(f"round {number + 1}: {name}: {found:,.0f}\n")
        for where in ("everywhere", "here") if store != "redis" else ():
            figures.setdefault(where, []).append(dbos(store, where))
            sys.stderr.write(f"round {number + 1}: DBOS, {where}: {figures[where][-1]:,.0f}\n")
    least, most = fair(store)
    rows = [f"| {name} | {statistics.median(figures[name]):,.0f} |" for name in MEASURES]
    peer: list[str] = []
    if "here" in figures:
        rows += [
            f"| DBOS, {PEER_JOBS} jobs of 5 ms, three at a time {where} | {statistics.median(figures[where]):,.0f} |"
            for where in ("everywhere", "here")
        ]
        peer = [
            f"- DBOS's three everywhere, against its three in one process: {ratios(figures, 'everywhere', 'here')}",
            f"- one key of three places, against DBOS's three everywhere: {ratios(figures, THREE, 'everywhere')}",
        ]
    return "\n".join(
        [
            f"One worker, {store}; {in_rounds(asked.rounds)}, {here()}. Jobs begun a second:",
            "",
            "| | jobs/s |",
            "| --- | ---: |",
            *rows,
            "",
            "As ratios within each round:",
            "",
            judged(f"{SHOPS} keys of ten places ≥ 0.5 × plain", each(figures, SHOPPING, PLAIN), 0.5),
            judged("one key of three places ≥ 0.5 × three slots", each(figures, THREE, SLOTS_OF_THREE), 0.5),
            judged("with a paused queue of its key ≥ 0.9 × without", each(figures, BESIDE, THREE), 0.9),
            *peer,
            "",
            (
                f"{KEYS:,} keys of two places with jobs of 20 ms, {FAIR_SLOTS} slots; one key has a backlog of "
                f"{BACKLOG:,} jobs, all others have {OF_EACH} each. While all of them had jobs, the least served key "
                f"began {least:,.0f} jobs a minute, the most served {most:,.0f}."
            ),
        ]
    )


def each(figures: dict[str, list[float]], one: str, other: str) -> list[float]:
    return [mine / theirs for mine, theirs in zip(figures[one], figures[other], strict=True)]


def ratios(figures: dict[str, list[float]], one: str, other: str) -> str:
    found = each(figures, one, other)
    return f"{statistics.median(found):.2f} ({', '.join(f'{each:.2f}' for each in found)})"


# ── A worker, and what it has begun ──


@contextmanager
def work(url: str, slots: int) -> Generator[Callable[[], list[Begin]]]:
    """A supervisor with one worker. Yields a function that reads the begins so far: number and seconds."""
    with TemporaryDirectory(prefix="bench-") as folder:
        began = Path(folder, "began")
        order = {"app": "bench.limits_app", "concurrency": slots, "workers": 1, "grace": "1s"}
        environment = os.environ | {"TENURE_URL": url, "LIMITS_BEGAN": str(began), "TENURE_RUNTIME_DIR": folder}
        command = [sys.executable, "-m", "tenure.cli.supervise", json.dumps(order)]
        with Path(folder, "log").open("wb") as log:
            worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

        def begins() -> list[Begin]:
            assert worker.poll() is None, Path(folder, "log").read_text(encoding="utf-8")[-4000:]
            told = began.read_bytes() if began.exists() else b""
            whole = told[: len(told) // BEGAN.size * BEGAN.size]
            return [(number, at / 1e9) for number, at in BEGAN.iter_unpack(whole)]

        try:
            yield begins
        finally:
            worker.terminate()
            worker.wait(30)


def until(begins: Callable[[], list[Begin]], number: int) -> list[Begin]:
    """Wait for this many begins, and return them."""
    deadline = time.monotonic() + PATIENCE
    while len(found := begins()) < number:
        if time.monotonic() > deadline:
            raise SystemExit(f"after {PATIENCE:g} s {len(found)} of {number} jobs have begun")
        time.sleep(0.05)
    return found[:number]


def rate(found: Sequence[Begin]) -> float:
    return (len(found) - 1) / (found[-1][1] - found[0][1])


def stored(store: Store, task: str, numbers: Iterable[int], *, key: Key | None = None, **more: Any) -> None:
    """Store jobs of this task; the key is one for all of them, or a template over their numbers."""
    drafts = [
        Draft(
            id=new_id(),
            task=task,
            payload=f'{{"n":{n}}}',
            limits=() if key is None else (Key(key.key.format(n=n), key.limit),),
            **more,
        )
        for n in numbers
    ]
    for start in range(0, len(drafts), BATCH):
        store.enqueue(drafts[start : start + BATCH])


# ── What is measured ──


def drain(task: str, number: int, slots: int, **more: Any) -> Callable[[str, int], float]:
    """Jobs begun a second, of `number` (0: as asked) that are stored before the worker starts."""

    def measure(kind: str, asked: int) -> float:
        with place(kind) as (url, _):
            store = opened(url)
            stored(store, task, (n % SHOPS for n in range(number or asked)), **more)
            with work(url, slots) as begins:
                found = until(begins, number or asked)
            store.close()
        return rate(found)

    return measure


def beside_paused(kind: str, _: int) -> float:
    """The rate of one key of three places while a paused queue has as many jobs of that key, which come first."""
    with place(kind) as (url, _):
        store = opened(url)
        stored(store, "three_at_a_time", range(SHORT), key=THREE_PLACES)
        stored(store, "of_another_queue", range(SHORT), key=THREE_PLACES, queue="other", priority=1)
        store.pause("other", paused=True)
        with work(url, 10) as begins:
            found = until(begins, SHORT)
        store.close()
    return rate(found)


def fair(kind: str) -> tuple[float, float]:
    """Jobs a minute of the least and of the most served key, while all keys had jobs."""
    with place(kind) as (url, _):
        store = opened(url)
        key = Key("fair:{n}", "fair:{n}")
        stored(store, "fair", (0 for _ in range(BACKLOG)), key=key)
        stored(store, "fair", (n for _ in range(OF_EACH) for n in range(1, KEYS)), key=key)
        with work(url, FAIR_SLOTS) as begins:
            found = until(begins, OF_EACH * (KEYS - 1) // 2)
        store.close()
    counts = Counter(number for number, _ in found)
    minutes = (found[-1][1] - found[0][1]) / 60
    served = [counts[number] / minutes for number in range(KEYS)]
    return min(served), max(served)


def dbos(kind: str, where: str) -> float:
    with place(kind) as (url, _):
        command = [
            sys.executable,
            "-m",
            "bench.limits_dbos",
            url.replace("tenure.db", "dbos.db"),
            str(PEER_JOBS),
            where,
        ]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(f"DBOS failed:\n{answer.stderr[-4000:]}")
    return float(json.loads(answer.stdout.splitlines()[-1]))


PLAIN = f"plain jobs, {SLOTS} slots"
SHOPPING = f"jobs of {SHOPS} keys of ten places, {SLOTS} slots"
SLOTS_OF_THREE = f"{SHORT:,} jobs of 5 ms, three slots"
THREE = f"{SHORT:,} jobs of 5 ms, one key of three places"
BESIDE = "the same with as many jobs of a paused queue, due first"
THREE_PLACES = Key("three", "three")
MEASURES = {
    PLAIN: drain("plain", 0, SLOTS),
    SHOPPING: drain("of_a_shop", 0, SLOTS, key=Key("shop:{n}", "shop:{n}")),
    SLOTS_OF_THREE: drain("five_ms", SHORT, 3),
    THREE: drain("three_at_a_time", SHORT, 10, key=THREE_PLACES),
    BESIDE: beside_paused,
}
