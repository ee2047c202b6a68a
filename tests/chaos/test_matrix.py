"""The matrix tells the truth: every fault and test that it names is there, and every cell is shown by one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from . import faults
from .matrix import COLUMNS, MATRIX, RUNS, Column, Row
from .stage import STORES

TESTS = Path(__file__).parents[1]
KINDS = {kind.full_name: kind for kind in faults.KINDS}
#: what the stages of a column's runs have, as `Stage.has` tells it
HAS: dict[Column, set[str]] = {
    "sqlite": {"file", "transactions", "small-disk"},
    "postgres": {"server", "transactions", "clock"},
    "redis": {"server", "scripts", "memory", "clock", "cluster"},
    "nats": {"nats", "server", "file", "small-disk", "clock", "transactions", "scripts", "memory"},
    "redis doorbell": {"server", "scripts", "memory", "clock"},
}


def played(row: Row, column: Column) -> list[str]:
    return [name for name in row.faults if KINDS[name].needs <= HAS[column]]


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: row.fault)
def test_every_cell_is_shown_by_a_fault_of_the_runs_or_by_a_test(row: Row) -> None:
    for column in COLUMNS:
        shown = [*played(row, column), *row.tests.get("all", ()), *row.tests.get(column, ())]
        assert bool(shown) >= (row.expected[column] is not None), f"nothing shows it on {column}"


@pytest.mark.parametrize("test", sorted({test for row in MATRIX for tests in row.tests.values() for test in tests}))
def test_what_it_names_is_there(test: str) -> None:
    file, _, name = test.partition("::")

    assert not name or re.search(rf"def {name}\w*\(", (TESTS / file).read_text()), f"{file} has no {name}"
    assert (TESTS / file).exists()


def test_every_fault_of_the_runs_is_in_a_row() -> None:
    named = {name for row in MATRIX for name in row.faults}

    assert KINDS.keys() == named
    assert {run for runs in RUNS.values() for run in runs} == set(STORES)
