"""`python -m chaos --store STORE --seconds SECONDS [--seed SEED]`: one or more runs, and a line for each.

    python -m chaos --store postgres --seconds 300 --seed 7
    python -m chaos --store redis --seconds 1800 --each 300      six runs, each with a seed of its own
    python -m chaos --store sqlite --replay FOLDER/faults.json --seed 7
    python -m chaos --store sqlite --only "kill worker" --only "pause host"
    python -m chaos --store postgres --seconds 60 --load trickle
    python -m chaos --store redis --seconds 60 --load avalanche --scale 0.1
    python -m chaos --store sqlite --seconds 60 --load all       a minute of each
    python -m chaos --store sqlite --seconds 300 --upgrade       a rolling upgrade, and back (upgrade.py)
    python -m chaos --store redis --seconds 60 --values sealed   with a codec

A run without --load shows that nothing is lost or run twice; it says nothing about load. With a load, a lane of its
own, whose worker always has a free slot and which no fault hits, shows how late other work is: starts, ticks, rescues,
enqueues. Each has a bound (bounds.py), which applies while the store answers, on top of the machine's own delays.

Each run leaves its faults, its history and its verdict in a folder of its own under --keep (.chaos); `--write FILE`
adds them all up in that document. Exit code 1: a promise was broken, or nothing was tried.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

from . import evidence, faults, profiles
from .run import RATE, Result, play
from .stage import STORES

EACH_SECONDS = 300.0
ALL = "all"


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    loads = [each.name for each in profiles.PROFILES] if given.load == ALL else [given.load]
    wrong = sum(_runs(given, load) for load in loads)
    if given.write:
        evidence.write(Path(given.write), Path(given.keep))
    return 1 if wrong else 0


def _runs(given: argparse.Namespace, load: str) -> int:
    """Play the runs of one load. Returns how many of them were red."""
    draw = random.Random(given.seed)
    left, wrong, seed = given.seconds, 0, given.seed
    while left > 0:
        seconds = min(left, given.each)
        try:
            result = _one(given, seed, seconds, load)
        except profiles.Unfit as unfit:
            if given.load != ALL:
                raise
            sys.stdout.write(f"{unfit}\n")
            return 0
        sys.stdout.write(f"{evidence.summary(result)}\n")
        sys.stdout.flush()
        wrong += not result.passed
        left -= seconds
        seed = draw.randrange(1, 1 << 32)
    return wrong


def _one(given: argparse.Namespace, seed: int, seconds: float, load: str) -> Result:
    """Play one run in a folder of its own; what is worth keeping of it is copied to --keep."""
    plan = faults.read(Path(given.replay)) if given.replay else None
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        result = play(
            given.store,
            folder,
            seconds=seconds,
            seed=seed,
            only=given.only,
            plan=plan,
            rate=given.rate,
            load=load,
            scale=given.scale,
            upgraded=given.upgrade,
            values=given.values,
        )
        beside = f"-{load.replace(' ', '-')}" * bool(load) + "-upgrade" * given.upgrade
        beside += f"-{given.values}" * bool(given.values)
        kept = Path(given.keep, f"{given.store}{beside}-{seed}")
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        for each in (*folder.glob("*.json*"), *folder.glob("*.log")):
            if each.suffix != ".log" or not result.passed:
                shutil.copy(each, kept)
        evidence.keep(result, kept / "result.json")
    return result


def _folded(text: str) -> str:
    return textwrap.fill(text, 100, subsequent_indent=" " * 16)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m chaos",
        description=__doc__,
        epilog="\n".join(["loads:", *(f"  {each.name:14}{_folded(each.about)}" for each in profiles.PROFILES)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", required=True, help=", ".join(STORES))
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults, in all (60)")
    parser.add_argument("--each", type=float, default=EACH_SECONDS, help="seconds of one run, at most (300)")
    parser.add_argument("--seed", type=int, default=0, help="repeats the faults and clients of that seed; 0: a new one")
    parser.add_argument("--rate", type=float, default=RATE, help="new jobs a second (12)")
    parser.add_argument(
        "--load", default="", metavar="NAME", help="a load beside the faults, one of those below (none)"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="how large the load is, of what is said below (1)")
    parser.add_argument("--upgrade", action="store_true", help="from the release before this code, to it, and back")
    parser.add_argument(
        "--values",
        default="",
        choices=("", "sealed", "offloaded"),
        help="encrypted, or nearly all in a bucket",
    )
    parser.add_argument("--only", action="append", default=[], metavar="FAULT", help="this kind of fault; repeatable")
    parser.add_argument("--replay", metavar="FILE", help="the faults of an earlier run")
    parser.add_argument("--keep", default=".chaos", metavar="FOLDER", help="where runs are kept (.chaos)")
    parser.add_argument("--write", metavar="FILE", help="write what all kept runs show")
    given = parser.parse_args(arguments)
    if given.upgrade and given.load:
        parser.error("--upgrade has a load of its own: give no --load with it")
    if given.upgrade and given.values:
        parser.error("--upgrade begins with the release before, which keeps all values as they are: give no --values")
    given.seed = given.seed or random.SystemRandom().randrange(1, 1 << 32)
    return given


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
