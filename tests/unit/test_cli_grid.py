"""Tables on terminals of any width: nothing is wider than the screen, and what identifies a row is never cut."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from tenure.cli.grid import grid

HEADS = ("id", "state", "task", "queue", "when", "note")
FIXED = ("id", "state", "when")
ROWS = [
    ["01a204e8-aed7-7000-b383-c24f1834bd6f", "scheduled", "send_monthly_invoice", "default", "in 1h", ""],
    ["01a204e8-aed3-7000-b733-a37db2a907f8", "dead", "pay", "billing", "9s", "the address of 東京 is no address"],
]


def lines(width: int, rows: list[list[str]] = ROWS) -> list[str]:
    return grid(HEADS, rows, width, fixed=FIXED, below="note").plain.splitlines()


@pytest.mark.parametrize("width", range(56, 140))
def test_no_line_is_wider_than_the_terminal_and_no_id_is_cut(width: int) -> None:
    shown = lines(width)

    assert max(map(cell_len, shown)) <= width
    for identity in (ROWS[0][0], ROWS[1][0]):
        assert sum(identity in line for line in shown) == 1


def test_names_that_could_not_be_read_beside_their_row_stand_under_it() -> None:
    assert lines(60) == [
        "ID                                    STATE      WHEN",
        "  └ TASK · QUEUE · NOTE",
        "01a204e8-aed7-7000-b383-c24f1834bd6f  scheduled  in 1h",
        "  └ send_monthly_invoice · default",
        "01a204e8-aed3-7000-b733-a37db2a907f8  dead       9s",
        "  └ pay · billing · the address of 東京 is no address",
    ]


def test_a_name_of_which_enough_can_be_read_is_cut_beside_its_row() -> None:
    assert lines(80)[1].split() == [ROWS[0][0], "scheduled", "send_monthly_i…", "default", "in", "1h"]
    assert lines(80)[3] == "  └ the address of 東京 is no address"


def test_a_table_without_rows_has_all_its_headings() -> None:
    assert lines(60, [])[0].split() == [head.upper() for head in HEADS]
