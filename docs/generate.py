"""Rewrites the generated blocks of the pages: `python docs/generate.py`, or with `--check` only says what is stale.

A block is between `<!-- generated: NAME -->` and `<!-- end -->`; only those named in BLOCKS are touched.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from difflib import unified_diff
from pathlib import Path

from tenure.core.lifecycle import MOVES, Move, State


def chart() -> str:
    """The moves that keep a job, as a mermaid state chart. Moves between the same two states share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for move in MOVES:
        for source in _in_order(move.sources) or ["[*]"]:
            for target in _in_order(move.targets):
                arrows.setdefault((source, target), []).append(_label(move))
    lines = [f"    {source} --> {target}: {', '.join(labels)}" for (source, target), labels in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def moves() -> str:
    """All moves, as a table."""
    rows = ["| verb | outcome | from | to | what it needs |", "| --- | --- | --- | --- | --- |"]
    for move in MOVES:
        outcome = move.outcome.__name__ if move.outcome else ""
        sources = ", ".join(_in_order(move.sources)) or "(new)"
        targets = ", ".join(_in_order(move.targets)) or "(gone)"
        rows.append(f"| {move.verb} | {outcome} | {sources} | {targets} | {move.needs} |")
    return "\n".join(rows)


BLOCKS: dict[str, Callable[[], str]] = {"life-cycle-chart": chart, "life-cycle-moves": moves}


def refreshed(page: str) -> str:
    """The page with its generated blocks as they should be now."""
    for name, make in BLOCKS.items():
        inside = re.compile(rf"(?<=<!-- generated: {name} -->\n).*?(?=<!-- end -->)", re.DOTALL)
        page = inside.sub(f"{make()}\n".replace("\\", r"\\"), page)
    return page


def run(folder: Path, *, check: bool) -> int:
    """Rewrite the stale pages of a folder, or with `check` print how they differ and return 1."""
    stale = 0
    for path in sorted(folder.rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        wanted = refreshed(page)
        if page == wanted:
            continue
        stale = 1
        if not check:
            path.write_text(wanted, encoding="utf-8")
            continue
        sys.stdout.writelines(_diff(path.name, page, wanted))
    if check and stale:
        print("generated blocks are stale: run `python docs/generate.py`")
    return stale if check else 0


def _in_order(states: Iterable[State]) -> list[str]:
    return [str(state) for state in State if state in frozenset(states)]


def _label(move: Move) -> str:
    return move.outcome.__name__ if move.outcome and move.verb == "finish" else move.verb


def _diff(name: str, page: str, wanted: str) -> Iterable[str]:
    return unified_diff(page.splitlines(keepends=True), wanted.splitlines(keepends=True), name, f"{name} (expected)")


if __name__ == "__main__":
    raise SystemExit(run(Path(__file__).parent, check="--check" in sys.argv[1:]))
