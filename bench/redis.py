"""All peers on one Valkey server without an append-only file, emptied before each; Tenure also on one with it."""

from __future__ import annotations

import sys
from argparse import Namespace
from contextlib import ExitStack

from tests.servers import Valkey

from bench.drive import Order
from bench.postgres import FIGURES, ask
from bench.redis_peers import DURABLE, PEERS, RIVALS
from bench.report import Target, here, in_rounds, ratios, table

TITLE = "Redis"
TARGETS = (
    Target("drain ≥ 6 × the fastest peer (goal: 10)", ("drain",), "tenure", RIVALS, 6),
    Target("worker CPU a job ≤ 60 µs", ("cpu_us",), "tenure", (), 60, True),
    Target("server CPU a job ≤ 12 µs", ("server_us",), "tenure", (), 12, True),
    Target("bulk enqueue ≥ 3 × the fastest peer", ("bulk",), "tenure", RIVALS, 3),
    Target("start, median ≤ 0.6 ms", ("start_p50_ms",), "tenure", (), 0.6, True),
    Target("start, p99 ≤ 3 ms", ("start_p99_ms",), "tenure", (), 3, True),
    Target("with the append-only file, drain ≥ 0.8 × without", ("drain",), DURABLE, "tenure", 0.8),
)


def run(asked: Namespace) -> str:
    names = [name for name in PEERS if not asked.only or name in asked.only]
    counts = {name: round(asked.jobs * PEERS[name].share) for name in names}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    absent: dict[str, str] = {}
    with ExitStack() as stack:
        plain = stack.enter_context(Valkey({"appendonly": "no"}))
        durable = stack.enter_context(Valkey({"appendonly": "yes"}))
        version = plain.execute("INFO", "server")["valkey_version"]
        for number in range(asked.rounds):
            for name in list(rounds):
                server = durable if name == DURABLE else plain
                server.execute("FLUSHALL", "SYNC")
                try:
                    order = Order("measure", name, server.url, (server.pid,), asked.slots, counts[name], store="redis")
                    figures = ask(order)
                except SystemExit as failed:
                    if name not in RIVALS:
                        raise
                    sys.stderr.write(f"{failed}\n")
                    absent[name] = f"failed: {str(failed).strip().splitlines()[-1]}"
                    del rounds[name]
                    continue
                rounds[name].append(figures)
                sys.stderr.write(f"round {number + 1}: {name}: {figures['drain']:,.0f} jobs/s\n")
    fewer = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count < asked.jobs)
    return "\n".join(
        [
            (
                f"{asked.jobs:,} no-op jobs{f' ({fewer})' if fewer else ''}, one worker, {asked.slots} slots, Valkey "
                f"{version} on this machine without an append-only file, or with one that is synced every second; "
                f"{in_rounds(asked.rounds)}, {here()}."
            ),
            "",
            table(rounds, absent, FIGURES),
            "",
            "Tenure's drain, as a ratio within each round:",
            "",
            *ratios(rounds, "tenure"),
            "",
            "Targets, those with × as ratios within each round:",
            "",
            *(target.verdict(rounds) for target in TARGETS),
        ]
    )
