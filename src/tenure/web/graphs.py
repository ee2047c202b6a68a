"""The graph of a flow's steps as a picture, for the macro `graph`: layers from left to right, arrows between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from unicodedata import east_asian_width

from tenure.core.lifecycle import State
from tenure.operations.flow_graph import Arrow, Graph, Step
from tenure.web.words import some

WIDTH, HEIGHT = 176, 60  #: of a box
MOST_ARROWS = 600  #: drawn; with more of them nobody could follow one
_APART, _BETWEEN = 52, 16  #: columns, boxes of a column
_LANE = 10  #: the height of an arrow that passes a column
_MOST_LANES = 2_000  #: with more of them, long arrows go straight
_MARGIN = 6
_SWEEPS = 6  #: over the columns, to uncross the arrows
_PAD = 12
_BAR = WIDTH - 2 * _PAD
_LETTERS = 20  #: of a name in a box
_LEAST = 2.0  #: of a bar: a single dead job of ten thousand is seen
_TIP = 6
_UNDER = 8  #: how far an arrow begins under its box
_ORDER = (State.COMPLETED, State.PROCESSING, State.QUEUED, State.SCHEDULED, State.WAITING, State.CANCELLED, State.DEAD)

Part = tuple[State, float, float]  #: of a bar: from where, and how wide


@dataclass(frozen=True, slots=True)
class Box:
    """A step. `kind`: its state if it is one job, `dead` if one of its jobs is, else empty."""

    step: Step
    x: float
    y: float
    name: str
    kind: str
    detail: str
    says: str
    bar: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Curve:
    """An arrow. `kind`: held, open, done or skipped."""

    kind: str
    path: str
    says: str
    many: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """`box`: width and height of each; `left_out`: arrows that are not drawn."""

    width: int
    height: int
    box: tuple[int, int]
    boxes: Sequence[Box]
    curves: Sequence[Curve]
    left_out: int = 0


def parts(counts: Mapping[State, int], width: float, total: int = 0) -> list[Part]:
    """A bar of these counts, each at least visible."""
    whole, there = max(total, sum(counts.values()), 1), [state for state in _ORDER if counts.get(state, 0)]
    found: list[Part] = []
    at = 0.0
    for state in there:
        long = _LEAST + (width - _LEAST * len(there)) * counts[state] / whole
        found.append((state, round(at, 1), round(long, 1)))
        at += long
    return found


def in_words(counts: Mapping[State, int]) -> str:
    """`310 completed, 2 dead`."""
    return ", ".join(f"{counts[state]:,} {state}" for state in _ORDER if counts.get(state, 0)) or "none left"


def picture(graph: Graph) -> Picture:
    """Boxes in columns by their level, in an order that crosses few arrows."""
    arrows = graph.arrows[:MOST_ARROWS]
    columns, ways = _columns(graph.steps, arrows)
    _uncross(columns, ways)
    tall = [sum(_tall(each) for each in column) + _BETWEEN * (len(column) - 1) for column in columns]
    height = max(tall, default=0)
    at: dict[int, tuple[float, float]] = {}
    for number, column in enumerate(columns):
        y = _MARGIN + (height - tall[number]) / 2
        for each in column:
            at[each] = (_MARGIN + number * (WIDTH + _APART), y)
            y += _tall(each) + _BETWEEN
    steps = {step.number: step for step in graph.steps}
    return Picture(
        2 * _MARGIN + len(columns) * (WIDTH + _APART) - _APART if columns else 0,
        round(2 * _MARGIN + height),
        (WIDTH, HEIGHT),
        [_box(steps[each], *at[each]) for column in columns for each in column if each >= 0],
        [_curve(steps, arrow, [at[each] for each in way]) for arrow, way in zip(arrows, ways, strict=True)],
        len(graph.arrows) - len(arrows),
    )


def _columns(steps: Sequence[Step], arrows: Sequence[Arrow]) -> tuple[list[list[int]], list[list[int]]]:
    """Steps by column, and the way of each arrow: it has a lane, a negative number, in each column that it passes."""
    levels = sorted({step.level for step in steps})
    place = {level: number for number, level in enumerate(levels)}
    column_of = {step.number: place[step.level] for step in steps}
    columns: list[list[int]] = [[] for _ in levels]
    for step in steps:
        columns[column_of[step.number]].append(step.number)
    passed = sum(max(column_of[arrow.target] - column_of[arrow.source] - 1, 0) for arrow in arrows)
    ways: list[list[int]] = []
    lane = 0
    for arrow in arrows:
        way = [arrow.source]
        for between in range(column_of[arrow.source] + 1, column_of[arrow.target]) if passed <= _MOST_LANES else ():
            lane -= 1
            columns[between].append(lane)
            way.append(lane)
        ways.append([*way, arrow.target])
    return columns, ways


def _uncross(columns: Sequence[list[int]], ways: Sequence[Sequence[int]]) -> None:
    """Sort each column by the middle of the neighbours in the column before, then in the one behind, several times."""
    before: dict[int, list[int]] = defaultdict(list)
    behind: dict[int, list[int]] = defaultdict(list)
    for way in ways:
        for one, other in pairwise(way):
            before[other].append(one)
            behind[one].append(other)
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        near = before if forward else behind
        place = {each: (at + 0.5) / len(column) for column in columns for at, each in enumerate(column)}
        for column in columns if forward else reversed(columns):
            middle = {
                each: sum(place[other] for other in near[each]) / len(near[each]) if near[each] else place[each]
                for each in column
            }
            column.sort(key=lambda each: middle[each])
            place |= {each: (at + 0.5) / len(column) for at, each in enumerate(column)}


def _tall(each: int) -> float:
    return HEIGHT if each >= 0 else _LANE


def _box(step: Step, x: float, y: float) -> Box:
    counts, dead = step.counts, step.counts.get(State.DEAD, 0)
    alone = step.total == 1
    kind = "dead" if dead else next(iter(counts), "") if alone else ""
    completed = counts.get(State.COMPLETED, 0)
    if not counts:
        detail = "gone"
    elif alone:
        detail = str(kind)
    else:
        detail = f"{completed:,} of {step.total:,}" + (f" · {dead:,} dead" if dead else "")
    says = f"{step.task}: {some(step.total, 'job')}, {in_words(counts)}" + (", outside of it" if step.outside else "")
    return Box(step, x, y, fitted(step.task), str(kind), detail, says, parts(counts, _BAR, step.total))


def fitted(name: str, letters: int = _LETTERS) -> str:
    """The name as far as a box has room for it; wide letters count twice.

    >>> fitted("join_customers_with_addresses", 12)
    'join_custom…'
    """
    used = 0
    for at, letter in enumerate(name):
        used += 2 if east_asian_width(letter) in "WF" else 1
        if used > letters:
            return f"{name[: max(at - 1, 0)]}…"
    return name


def _curve(steps: Mapping[int, Step], arrow: Arrow, way: Sequence[tuple[float, float]]) -> Curve:
    source, target = steps[arrow.source], steps[arrow.target]
    held = arrow.open and not arrow.ended and source.counts.get(State.DEAD, 0)
    kind = "held" if held else "open" if arrow.open else "skipped" if arrow.skipped == arrow.edges else "done"
    left = f"{arrow.open:,} open" if arrow.open else "all ended"
    how = "any end will do" if arrow.ended else "must complete"
    skipped = f", {arrow.skipped:,} skipped" if arrow.skipped else ""
    says = f"{source.task} before {target.task}: {some(arrow.edges, 'edge')}, {left}{skipped}; {how}"
    return Curve(kind, " ".join(_path(way)), says, arrow.edges > 1)


def _path(way: Sequence[tuple[float, float]]) -> Iterator[str]:
    last = len(way) - 1
    (x, y), end = way[0], way[-1]
    if end[0] <= x:  # a step that waits for a later one: only where jobs are folded by their task
        half, below = WIDTH / 2, max(y, end[1]) + HEIGHT + _BETWEEN
        yield f"M{x + half:.0f} {y + HEIGHT:.0f} Q{(x + end[0]) / 2 + half:.0f} {below:.0f}"
        yield f"{end[0] + half:.0f} {end[1] + HEIGHT:.0f}"
        return
    right, middle = x + WIDTH - _UNDER, y + HEIGHT / 2
    yield f"M{right:.0f} {middle:.0f}"
    for at, (next_x, next_y) in enumerate(way[1:], start=1):
        to_y = next_y + (HEIGHT if at == last else _LANE) / 2
        bend = (right + next_x) / 2
        yield f"C{bend:.0f} {middle:.0f} {bend:.0f} {to_y:.0f} {next_x:.0f} {to_y:.0f}"
        if at < last:
            yield f"H{next_x + WIDTH:.0f}"
        right, middle = next_x + WIDTH, to_y
    tip_x, tip_y = end[0], end[1] + HEIGHT / 2
    yield f"M{tip_x - _TIP:.0f} {tip_y - 4:.0f} L{tip_x:.0f} {tip_y:.0f} L{tip_x - _TIP:.0f} {tip_y + 4:.0f}"
