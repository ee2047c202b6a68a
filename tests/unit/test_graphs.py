"""The picture of a flow: boxes in columns that never overlap, arrows from edge to edge, and bounds."""

from __future__ import annotations

import re
from itertools import combinations

from tenure.core.lifecycle import State
from tenure.operations.flow_graph import Arrow, Graph, Step
from tenure.web.graphs import HEIGHT, MOST_ARROWS, WIDTH, Picture, fitted, in_words, parts, picture

DONE = {State.COMPLETED: 1}


def graph(levels: str, *arrows: tuple[int, int]) -> Graph:
    """A step for each digit, which is its level."""
    steps = [
        Step(number, f"task-{number}", int(level), DONE, (f"job-{number}",), 1) for number, level in enumerate(levels)
    ]
    return Graph(steps, [Arrow(*ends, 1, 0, 0, ended=False, mine=False) for ends in arrows])


def order(found: Picture) -> list[list[int]]:
    """The steps of each column, from the top."""
    columns: dict[float, list[tuple[float, int]]] = {}
    for box in found.boxes:
        columns.setdefault(box.x, []).append((box.y, box.step.number))
    return [[number for _, number in sorted(columns[x])] for x in sorted(columns)]


def assert_sound(found: Picture) -> None:
    for box in found.boxes:
        assert 0 <= box.x <= found.width - WIDTH
        assert 0 <= box.y <= found.height - HEIGHT
    for one, other in combinations(found.boxes, 2):
        assert abs(one.x - other.x) >= WIDTH or abs(one.y - other.y) >= HEIGHT, (one.name, other.name)
    for curve in found.curves:
        assert re.fullmatch(r"[MCQHL0-9 .-]+", curve.path)


def test_a_chain_is_one_line_from_left_to_right() -> None:
    found = picture(graph("0123", (0, 1), (1, 2), (2, 3)))
    assert order(found) == [[0], [1], [2], [3]]
    assert len({box.y for box in found.boxes}) == 1
    assert_sound(found)


def test_steps_of_a_column_stand_in_the_order_that_crosses_no_arrows() -> None:
    found = picture(graph("000111", (0, 5), (1, 4), (2, 3)))
    first, last = order(found)
    pairs = {0: 5, 1: 4, 2: 3}
    assert [pairs[each] for each in first] == last
    assert_sound(found)


def test_a_long_arrow_goes_around_the_boxes_between() -> None:
    found = picture(graph("012", (0, 1), (1, 2), (0, 2)))
    long = found.curves[2].path
    middle = next(box for box in found.boxes if box.step.number == 1)
    lane = re.search(r"(\d+) (\d+) H(\d+)", long)
    assert lane, "it has a lane of its own in the column between"
    y = int(lane[2])
    assert not middle.y <= y <= middle.y + HEIGHT
    assert_sound(found)


def test_levels_without_a_step_leave_no_gap() -> None:
    assert picture(graph("05", (0, 1))).width == picture(graph("01", (0, 1))).width


def test_an_arrow_back_is_drawn_below_where_jobs_are_folded_by_task() -> None:
    found = picture(graph("01", (1, 0)))
    assert "Q" in found.curves[0].path
    assert_sound(found)


def test_a_graph_of_two_hundred_steps_and_thousands_of_arrows_is_bounded() -> None:
    arrows = [(source, target) for source in range(100) for target in range(100, 200)]
    found = picture(graph("0" * 100 + "1" * 100, *arrows))
    assert (len(found.curves), found.left_out) == (MOST_ARROWS, len(arrows) - MOST_ARROWS)
    assert_sound(found)
    far = Graph([Step(n, f"t{n}", n, DONE, ("a",), 1) for n in range(200)], graph("0", *[(0, 199)] * 500).arrows)
    assert len(picture(far).curves) == 500, "so many lanes would fill every column: these go straight"
    assert picture(far).height < 200


def test_nothing_is_an_empty_picture() -> None:
    assert picture(Graph((), ())).boxes == []


def test_what_an_arrow_and_a_box_say() -> None:
    folded = Step(0, "render", 0, {State.DEAD: 2, State.COMPLETED: 1_200}, ("a",), 1_300)
    child = Step(1, "combine", 1, {State.WAITING: 1}, ("b",), 1, outside=True)
    gone = Step(2, "(gone)", 0, {}, (), 1)
    arrows = [
        Arrow(0, 1, 1_300, 100, 7, ended=False, mine=False),
        Arrow(2, 1, 1, 0, 1, ended=False, mine=False),
        Arrow(2, 1, 1, 0, 0, ended=True, mine=False),
    ]
    found = picture(Graph([folded, child, gone], arrows))
    says = {box.step.number: (box.kind, box.detail, box.says) for box in found.boxes}
    assert says == {
        0: ("dead", "1,200 of 1,300 · 2 dead", "render: 1,300 jobs, 1,200 completed, 2 dead"),
        1: ("waiting", "waiting", "combine: 1 job, 1 waiting, outside of it"),
        2: ("", "gone", "(gone): 1 job, none left"),
    }
    assert [(each.kind, each.says) for each in found.curves] == [
        ("held", "render before combine: 1,300 edges, 100 open, 7 skipped; must complete"),
        ("skipped", "(gone) before combine: 1 edge, all ended, 1 skipped; must complete"),
        ("done", "(gone) before combine: 1 edge, all ended; any end will do"),
    ]


def test_a_bar_shows_each_state_however_few_and_no_more_than_its_width() -> None:
    counts = {State.COMPLETED: 9_998, State.DEAD: 1, State.WAITING: 1}
    found = parts(counts, 100)
    assert [state for state, _, _ in found] == [State.COMPLETED, State.WAITING, State.DEAD]
    assert all(long >= 2 for _, _, long in found), found
    assert found[-1][1] + found[-1][2] == 100
    assert parts({}, 100) == []
    assert in_words(counts) == "9,998 completed, 1 waiting, 1 dead"


def test_a_long_name_is_cut_and_wide_letters_count_twice() -> None:
    assert fitted("short") == "short"
    assert fitted("x" * 30, 10) == "x" * 9 + "…"
    assert fitted("図" * 10, 10) == "図" * 4 + "…"
