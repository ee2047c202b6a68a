"""Columns that fit the terminal: the widest shrink first, and a long note moves to its own line."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.cells import cell_len
from rich.text import Text

Cell = str | Text
_GAP = 2
_LEAST = 6


def grid(
    heads: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    width: int,
    *,
    fixed: Collection[str] = (),
    right: Collection[str] = (),
    below: str | None = None,
) -> Text:
    """Rows under their headings, none wider than `width` if possible.

    Columns in `fixed` are never shortened, those in `right` are right-aligned. The column `below` moves under its row
    if there is no room beside it.
    """
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    shown = [place for place in range(len(heads)) if any(row[place].plain for row in cells) or heads[place] in fixed]
    widths = {place: max(cell_len(heads[place]), *(row[place].cell_len for row in cells), 0) for place in shown}
    under = heads.index(below) if below in heads and _total(widths) > width else None
    if under is not None:
        widths.pop(under, None)
    _shrink(widths, [place for place in widths if heads[place] not in fixed], width)

    lines = [_line([Text(head.upper(), style="bold") for head in heads], widths, heads, right)]
    for row in cells:
        lines.append(_line(row, widths, heads, right))
        if under is not None and row[under].plain:
            lines.append(_cut(Text.assemble(("  └ ", "bright_black"), row[under]), width))
    return Text("\n").join(lines)


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def _shrink(widths: dict[int, int], flexible: list[int], width: int) -> None:
    while _total(widths) > width and flexible:
        widest = max(flexible, key=lambda place: widths[place])
        if widths[widest] <= _LEAST:
            return
        widths[widest] -= 1


def _line(row: Sequence[Text], widths: dict[int, int], heads: Sequence[str], right: Collection[str]) -> Text:
    parts: list[Text] = []
    for place, width in widths.items():
        cell = _cut(row[place], width)
        space = Text(" " * (width - cell.cell_len))
        parts.append(space + cell if heads[place] in right else cell + space)
    line = Text(" " * _GAP).join(parts)
    line.rstrip()
    return line


def _cut(cell: Text, width: int) -> Text:
    cell = cell.copy()
    cell.truncate(width, overflow="ellipsis")
    return cell
