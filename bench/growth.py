"""Does a drain slow down with many other jobs, with many ended ones kept, or while an old snapshot is open?"""

from __future__ import annotations

import statistics
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace

from bench.drive import Order
from bench.postgres import Bench, ask, servers
from bench.postgres_peers import PEERS
from bench.report import here, in_rounds, judged

TITLE = "PostgreSQL as it grows"
NAMES = ("tenure", "pgqueuer", "awa")
BOUNDS = {"others": 0.9, "same": 0.9, "ended": 0.9, "snapshot": 0.8}


def run(asked: Namespace) -> str:
    names = [name for name in NAMES if not asked.only or name in asked.only]
    words = {
        "others": f"{asked.others:,} other jobs queued in another queue",
        "same": f"{asked.others:,} other jobs queued behind them in the same queue",
        "ended": f"{asked.ended:,} ended jobs kept",
        "snapshot": f"last tenth of {asked.churn:,} against the first, with an old snapshot open",
    }
    found: dict[str, dict[str, list[float]]] = {}
    with servers(names) as bench:
        for name in names:
            found[name] = {}
            for what, count in (("others", asked.others), ("same", asked.others), ("ended", asked.ended)):
                if what != "ended" or PEERS[name].keeps_ended:
                    found[name][what] = against_empty(bench, name, what, count, asked)
                    sys.stderr.write(f"{name}: {words[what]}: {shown(found[name][what])}\n")
            found[name]["snapshot"] = [churned(bench, name, asked) for _ in range(asked.rounds)]
            sys.stderr.write(f"{name}: {words['snapshot']}: {shown(found[name]['snapshot'])}\n")
    rows = [f"| {words[what]} | {' | '.join(shown(found[name].get(what, ())) for name in names)} |" for what in words]
    verdicts = [
        judged(f"{words[what]} ≥ {bound}", found["tenure"][what], bound)
        for what, bound in BOUNDS.items()
        if "tenure" in found
    ]
    return "\n".join(
        [
            (
                f"Drains of {asked.jobs:,} no-op jobs as ratios to the same drain in an empty database, one worker, "
                f"{asked.slots} slots, PostgreSQL {bench.version} on this machine with its default durability; "
                f"{in_rounds(asked.rounds, '')}, {here()}."
            ),
            "",
            f"| | {' | '.join(names)} |",
            f"| --- |{' ---: |' * len(names)}",
            *rows,
            "",
            "Targets:",
            "",
            *verdicts,
        ]
    )


def shown(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({', '.join(f'{one:.2f}' for one in ratios)})" if ratios else "–"


def against_empty(bench: Bench, name: str, what: str, count: int, asked: Namespace) -> list[float]:
    """The same drain in a full database and in an empty one, in turn; the order alternates from round to round."""
    with (
        bench.contestant(name, asked.jobs, asked.slots) as empty,
        bench.contestant(name, asked.jobs, asked.slots) as full,
    ):
        ask(replace(full, action=what, jobs=count))
        bench.postgres.execute("CHECKPOINT")
        drained(full), drained(empty)  # the first drain of a fresh database is different
        found: list[float] = []
        for number in range(asked.rounds):
            if number % 2:
                of_full, of_empty = drained(full), drained(empty)
            else:
                of_empty, of_full = drained(empty), drained(full)
            found.append(of_full / of_empty)
        return found


def drained(order: Order) -> float:
    return float(ask(replace(order, action="lap"))["drain"])


def churned(bench: Bench, name: str, asked: Namespace) -> float:
    laps = max(asked.churn // asked.jobs, 2)
    with bench.contestant(name, asked.jobs, asked.slots) as order:
        rates = [lap["drain"] for lap in ask(replace(order, action="churn", laps=laps))]
    tenth = max(laps // 10, 1)
    first, last = statistics.harmonic_mean(rates[:tenth]), statistics.harmonic_mean(rates[-tenth:])
    return float(last / first)
