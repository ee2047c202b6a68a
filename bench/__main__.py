"""`make bench`: everybody in turn, several rounds, medians, one table. Ratios count: machines differ by the hour."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from bench.peers import CONTESTANTS

COLUMNS = {
    "drain": ("drain /s", "{:,.0f}"),
    "cpu_us": ("worker CPU µs/job", "{:.0f}"),
    "bulk": ("bulk enqueue /s", "{:,.0f}"),
    "single": ("single enqueue /s", "{:,.0f}"),
    "start_p50_ms": ("start p50 ms", "{:.2f}"),
    "start_p99_ms": ("start p99 ms", "{:.2f}"),
}


def one(name: str, count: int, slots: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        command = [sys.executable, "-m", "bench.peers", name, folder, str(count), str(slots)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(f"{name} failed:\n{answer.stderr}")
    return dict(json.loads(answer.stdout.splitlines()[-1]))


def table(medians: dict[str, dict[str, float]]) -> str:
    rows = ["| | " + " | ".join(title for title, _ in COLUMNS.values()) + " |", "| --- |" + " ---: |" * len(COLUMNS)]
    for name, figures in medians.items():
        cells = [form.format(figures[key]) if key in figures else "–" for key, (_, form) in COLUMNS.items()]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def ratios(rounds: dict[str, list[dict[str, float]]]) -> list[str]:
    """Tenure's drain against each peer's, round by round, so that the machine's drift cancels out."""
    found: list[str] = []
    for name, runs in rounds.items():
        if name != "tenure":
            pairs = [ours["drain"] / theirs["drain"] for ours, theirs in zip(rounds["tenure"], runs, strict=True)]
            each = ", ".join(f"{pair:.1f}" for pair in pairs)
            found.append(f"- {statistics.median(pairs):.1f} times {name} ({each})")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--slots", type=int, default=500, help="slots of a worker and limit of a batch, for all")
    parser.add_argument("--write", type=Path, help="write the table to this file too")
    asked = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    for number in range(asked.rounds):
        for name in CONTESTANTS:
            figures = one(name, asked.jobs, asked.slots)
            rounds[name].append(figures)
            sys.stderr.write(f"round {number + 1}: {name}: {figures['drain']:,.0f} jobs/s\n")
    medians = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in rounds.items()
    }
    text = "\n".join(
        [
            (
                f"{asked.jobs:,} no-op jobs, one worker, {asked.slots} slots, SQLite on local disk; "
                f"medians of {asked.rounds} interleaved rounds, {datetime.now(UTC):%Y-%m-%d}, "
                f"{os.cpu_count()} cores, Python {platform.python_version()}."
            ),
            "",
            table(medians),
            "",
            "Tenure's drain, as a ratio within each round:",
            "",
            *ratios(rounds),
        ]
    )
    sys.stdout.write(text + "\n")
    if asked.write:
        asked.write.write_text(f"# Measured\n\n`make bench` wrote this.\n\n{text}\n")


if __name__ == "__main__":
    main()
