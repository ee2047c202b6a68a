"""`python -m tests.model`: the search with every rule, then the story that each missing rule lets happen."""

from __future__ import annotations

from dataclasses import fields, replace
from time import perf_counter

from .search import search, shortest_story
from .world import Guards


def main() -> int:
    started = perf_counter()
    whole = search(Guards())
    print(f"with every rule ({perf_counter() - started:.1f} s): {whole}")
    needless = 0
    for guard in fields(Guards):
        report = shortest_story(replace(Guards(), **{guard.name: False}))
        needless += not report.broken
        print(f"\nwithout {guard.name}:\n{report}")
    return 1 if whole.broken or needless else 0


if __name__ == "__main__":
    raise SystemExit(main())
