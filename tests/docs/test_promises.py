"""A number in a page is the number of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.core.lifecycle import TOTAL_CRASHES
from tenure.ports import MOST_KEYS, SUSPECT_SECONDS, UNBEGUN_SECONDS
from tenure.stores.postgres.serving import IDLE_MS
from tenure.stores.sqlite.file import BUSY_SECONDS
from tenure.tasks.limits import MOST_CHARACTERS
from tenure.web import live, memo, site

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "sentence", "constant", "value"),
    [
        ("dashboard", "only after 60 times its own duration", memo.SHARE, 60),
        ("dashboard", "the counts of jobs only after 200 times", site._RARELY, 200),
        ("dashboard", "a count that takes 80 ms is kept for 16 s", 0.08 * site._RARELY, 16),
        ("dashboard", "only after 25 times as long as rendering took", live._SHARE, 25),
        ("lifecycle", "More than twenty crashes in all use up the budget", TOTAL_CRASHES, 20),
        ("delivery", "more than twenty in all use up the budget", TOTAL_CRASHES, 20),
        ("limits", "after 30 s without a begin", UNBEGUN_SECONDS, 30),
        ("limits", "gives the place back after 5 s", SUSPECT_SECONDS, 5),
        ("limits", "ends one that is *stopped* there after 5 s", IDLE_MS, 5_000),
        ("limits", "more than 8 limits", MOST_KEYS, 8),
        ("limits", "a key of more than 200 characters", MOST_CHARACTERS, 200),
        ("stores", "a writer that waits for more than 7 s", BUSY_SECONDS, 7),
    ],
)
def test_a_number_in_a_page_is_that_of_the_code(page: str, sentence: str, constant: float, value: float) -> None:
    assert sentence in " ".join((DOCS / f"{page}.md").read_text("utf-8").split())
    assert constant == value
