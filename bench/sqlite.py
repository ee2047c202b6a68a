"""All peers on SQLite."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import Namespace

from bench.report import here, in_rounds, ratios, table
from bench.sqlite_peers import CONTESTANTS

TITLE = "SQLite"
FIGURES = ("drain", "cpu_us", "bulk", "single", "start_p50_ms", "start_p99_ms")


def run(asked: Namespace) -> str:
    names = [name for name in CONTESTANTS if not asked.only or name in asked.only]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(asked.rounds):
        for name in names:
            figures = one(name, asked.jobs, asked.slots)
            rounds[name].append(figures)
            sys.stderr.write(f"round {number + 1}: {name}: {figures['drain']:,.0f} jobs/s\n")
    return "\n".join(
        [
            (
                f"{asked.jobs:,} no-op jobs, one worker, {asked.slots} slots, SQLite on local disk; "
                f"{in_rounds(asked.rounds)}, {here()}."
            ),
            "",
            table(rounds, {}, FIGURES),
            "",
            "Tenure's drain, as a ratio within each round:",
            "",
            *ratios(rounds, "tenure"),
        ]
    )


def one(name: str, count: int, slots: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        command = [sys.executable, "-m", "bench.sqlite_peers", name, folder, str(count), str(slots)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(f"{name} failed:\n{answer.stderr}")
    return dict(json.loads(answer.stdout.splitlines()[-1]))
