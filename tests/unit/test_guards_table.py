"""The tables of guards (tests/guards) are true: `python -m tests.guards` could remove each one today."""

from __future__ import annotations

from pathlib import Path

import pytest

from guards import ROOT, Guard, mistakes
from guards.__main__ import TABLES, that_see
from guards.promises import PROMISES

STORES = [store for store in TABLES if store != "runtime"]
ROWS = [(store, guard) for store, table in TABLES.items() for guard in table.guards]


def test_every_guard_stands_in_its_file_exactly_as_often_as_its_table_says() -> None:
    assert [said for _, guard in ROWS if (said := mistakes(guard))] == []


@pytest.mark.parametrize("store", STORES)
def test_a_store_keeps_every_promise_or_says_why_no_text_of_it_does(store: str) -> None:
    table = TABLES[store]
    kept = {guard.promise for guard in table.guards}
    assert kept | table.absent.keys() == PROMISES.keys()
    assert kept.isdisjoint(table.absent)


def test_every_guard_names_tests_that_are_there() -> None:
    named = {each.partition("::")[0] for _, guard in ROWS for each in that_see(guard).split() if ".py" in each}
    assert [name for name in named if not Path(ROOT, "tests", name).is_file()] == []
    assert all(that_see(guard) for _, guard in ROWS)


def test_a_guard_whose_text_has_changed_is_named() -> None:
    gone = Guard("a renewal revives nobody", "core/lifecycle.py", "no such text", "")
    assert mistakes(gone) == "a renewal revives nobody: core/lifecycle.py has 'no such text' 0 times; the table says 1"
    assert "there is no" in mistakes(gone._replace(file="no_such_file.py"))
