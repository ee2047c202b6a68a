"""The promise of `docs/lifecycle.md`, searched: no story within the bounds breaks it, and no rule is there in vain."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tenure.lifecycle import State

from .search import search, shortest_story
from .world import Guards

GUARDS = [guard.name for guard in fields(Guards)]


def test_the_protocol_holds() -> None:
    report = search(Guards())

    print(f"{report.worlds:,} worlds")
    assert not report.broken, f"\n{report}"
    assert report.seen == set(State), "the search never met some states: it proves nothing about them"


@pytest.mark.parametrize("guard", GUARDS)
def test_removing_any_guard_gives_a_counterexample(guard: str) -> None:
    report = shortest_story(replace(Guards(), **{guard: False}))

    print(f"without {guard}:\n{report}")
    assert report.broken, f"nothing breaks without {guard}: drop the rule, or widen the search until it matters"
