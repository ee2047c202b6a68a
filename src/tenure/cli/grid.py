"""Columns that fit the terminal: the widest shrink first, and what does not fit in its row moves under it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.cells import cell_len
from rich.text import Text

Cell = str | Text
_GAP = 2
_LEAST = 6
_READABLE = 12  #: a text that would be cut to less moves under its row


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
    if it does not fit there; all others that are not fixed move too if they would be cut too short to read.
    """
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    shown = [place for place in range(len(heads)) if any(row[place].plain for row in cells) or heads[place] in fixed]
    shown = shown if cells else list(range(len(heads)))
    widths = {place: max(cell_len(heads[place]), *(row[place].cell_len for row in cells), 0) for place in shown}
    flexible = [place for place in shown if heads[place] not in fixed]
    titles = [Text(head.upper(), style="bold") for head in heads]
    under: list[int] = []
    if below in heads and _total(widths) > width:
        under = [heads.index(below)] if widths.pop(heads.index(below), None) else []
        beside = [place for place in flexible if place in widths]
        fitted = _shrunk(widths, beside, width)
        if any(fitted[place] < min(widths[place], _READABLE) for place in beside):
            under, widths = flexible, {place: widths[place] for place in widths if place not in flexible}
    widths = _shrunk(widths, [place for place in flexible if place in widths], width)

    lines = [_line(titles, widths, heads, right)]
    if len(under) > 1:
        lines.append(_under(titles, under, width))
    for row in cells:
        lines.append(_line(row, widths, heads, right))
        if any(row[place].plain for place in under):
            lines.append(_under(row, under, width))
    return Text("\n").join(lines)


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def _shrunk(widths: dict[int, int], flexible: list[int], width: int) -> dict[int, int]:
    found = dict(widths)
    while _total(found) > width and flexible:
        widest = max(flexible, key=lambda place: found[place])
        if found[widest] <= _LEAST:
            break
        found[widest] -= 1
    return found


def _line(row: Sequence[Text], widths: dict[int, int], heads: Sequence[str], right: Collection[str]) -> Text:
    parts: list[Text] = []
    for place, width in widths.items():
        cell = _cut(row[place], width)
        space = Text(" " * (width - cell.cell_len))
        parts.append(space + cell if heads[place] in right else cell + space)
    line = Text(" " * _GAP).join(parts)
    line.rstrip()
    return line


def _under(row: Sequence[Text], places: Sequence[int], width: int) -> Text:
    texts = Text(" · ").join(row[place] for place in places if row[place].plain)
    return _cut(Text.assemble(("  └ ", "bright_black"), texts), width)


def _cut(cell: Text, width: int) -> Text:
    cell = cell.copy()
    cell.truncate(width, overflow="ellipsis")
    return cell
