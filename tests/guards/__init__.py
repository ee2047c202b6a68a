"""Guards, as texts that can be taken out: `python -m tests.guards` removes one at a time and expects a test to go red.

A suite that stays green without a guard proves nothing about it. Each store has a table, with the same names for the
same promises (`promises.py`), and what runs jobs has one (`runtime.py`). `tests/unit/test_guards_table.py` keeps the
tables true: a guard whose text has changed is an error there, not a silence here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path("src", "tenure")


class Guard(NamedTuple):
    """One place where a promise is kept: `text` stands in `file` (below src/tenure) exactly `times` times."""

    promise: str
    file: str
    text: str
    without: str
    tests: str = ""  #: pytest's arguments, files below tests/; "": those of its promise
    times: int = 1


class Table(NamedTuple):
    """The guards of one store, or of what runs jobs."""

    guards: tuple[Guard, ...]
    absent: Mapping[str, str] = {}  #: promises that no text of it keeps, and why
    tests: str = ""  #: the folder of all its tests, below tests/; tried when those of a guard stay green
    chosen: str = ""  #: pytest's -k: which of them are the store's


def mistakes(guard: Guard, root: Path = ROOT) -> str:
    """Why it can't be taken out: empty, or a sentence."""
    file = root / SOURCE / guard.file
    if not file.is_file():
        return f"{guard.promise}: there is no {SOURCE / guard.file}"
    found = file.read_text().count(guard.text)
    if found != guard.times:
        return f"{guard.promise}: {guard.file} has {guard.text!r} {found} times; the table says {guard.times}"
    return ""
