"""Tables, ratios and targets of the rounds, and the page that has them."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

Figures = Mapping[str, float]
Rounds = Mapping[str, Sequence[Figures]]

COLUMNS = {
    "drain": ("drain /s", "{:,.0f}"),
    "cpu_us": ("worker CPU µs/job", "{:.0f}"),
    "server_us": ("server CPU µs/job", "{:.0f}"),
    "bulk": ("bulk enqueue /s", "{:,.0f}"),
    "single": ("single enqueue /s", "{:,.0f}"),
    "together": ("100 concurrent enqueues /s", "{:,.0f}"),
    "start_p50_ms": ("start p50 ms", "{:.2f}"),
    "start_p99_ms": ("start p99 ms", "{:.2f}"),
}
ORDER = (
    "SQLite",
    "PostgreSQL",
    "PostgreSQL as it grows",
    "PostgreSQL through faults",
    "Redis",
    "Redis as it grows",
    "Schedules",
    "Limits on SQLite",
    "Limits on PostgreSQL",
    "Limits on Redis",
    "Dashboard on SQLite",
    "Dashboard on PostgreSQL",
    "Dashboard on Redis",
)


def here() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, Python {platform.python_version()}"


def in_rounds(rounds: int, how: str = "interleaved ") -> str:
    return "one round" if rounds == 1 else f"medians of {rounds} {how}rounds"


def table(rounds: Rounds, absent: Mapping[str, str], columns: Sequence[str]) -> str:
    """A table of medians. An absent peer has a row that says why."""
    rows = ["| | " + " | ".join(COLUMNS[key][0] for key in columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for name, runs in rounds.items():
        cells = [
            COLUMNS[key][1].format(statistics.median(run[key] for run in runs)) if key in runs[0] else "–"
            for key in columns
        ]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    rows += [f"| {name} | {why} |{' |' * (len(columns) - 1)}" for name, why in absent.items()]
    return "\n".join(rows)


def ratios(rounds: Rounds, ours: str) -> list[str]:
    """Tenure's drain against each peer's, round by round, so that the machine's drift cancels out."""
    found: list[str] = []
    for name, runs in rounds.items():
        if ours in rounds and not name.startswith("tenure"):
            each = [mine["drain"] / theirs["drain"] for mine, theirs in zip(rounds[ours], runs, strict=True)]
            found.append(f"- {statistics.median(each):.1f} times {name} ({', '.join(f'{one:.1f}' for one in each)})")
    return found


@dataclass(frozen=True, slots=True)
class Target:
    """`figures` of `ours`, summed, against those of `theirs`: at least `bound` times as much, or at most.

    Of several `theirs`, the one with the best median counts; without any, the bound is for the figures themselves.
    """

    words: str
    figures: tuple[str, ...]
    ours: str
    theirs: str | tuple[str, ...]
    bound: float
    at_most: bool = False
    their_figures: tuple[str, ...] = ()

    def verdict(self, rounds: Rounds) -> str:
        theirs = (self.theirs,) if isinstance(self.theirs, str) else self.theirs
        figures = self.their_figures or self.figures
        found = {name: self._sums(rounds[name], figures) for name in theirs if name in rounds}
        if self.ours not in rounds or (theirs and not found):
            return f"- {self.words}: not measured here"
        words, each = self.words, self._sums(rounds[self.ours], self.figures)
        if found:
            best = (min if self.at_most else max)(found, key=lambda name: statistics.median(found[name]))
            words += f", here {best}" if len(theirs) > 1 else ""
            each = [mine / one for mine, one in zip(each, found[best], strict=True)]
        return judged(words, each, self.bound, at_most=self.at_most)

    @staticmethod
    def _sums(runs: Sequence[Figures], figures: Sequence[str]) -> list[float]:
        return [sum(run[key] for key in figures) for run in runs]


def judged(words: str, ratios: Sequence[float], bound: float, *, at_most: bool = False) -> str:
    """One target: the median of its rounds, each of them, and whether it is met."""
    median = statistics.median(ratios)
    met = median <= bound if at_most else median >= bound
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"- {words}: {median:.2f} ({each}), {'met' if met else '**short**'}"


def store_section(path: Path, title: str, text: str) -> None:
    """Replace one section of the file, keep the others."""
    kept = path.read_text(encoding="utf-8").split("\n## ")[1:] if path.exists() else []
    sections = {section.partition("\n")[0]: section.partition("\n")[2].strip() for section in kept}
    sections[title] = text.strip()
    names = dict.fromkeys((*ORDER, *sections))  # sections measured by hand come last
    parts = [f"## {name}\n\n{sections[name]}\n" for name in names if name in sections]
    path.write_text("# Measured\n\n`make bench` wrote this.\n\n" + "\n".join(parts), encoding="utf-8")
