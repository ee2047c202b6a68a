from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.durations import seconds, spell
from tenure.errors import InvalidOption


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("500ms", 0.5),
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("7d", 604_800),
        ("2w", 1_209_600),
        ("1.5h", 5400),
        (" 5s ", 5),
        ("0s", 0),
        (timedelta(minutes=2), 120),
    ],
)
def test_a_duration_is_read_as_people_write_it(written: object, meant: float) -> None:
    assert seconds(written) == meant


@pytest.mark.parametrize("bare", [5, 2.5, "5", "2.5"])
def test_a_bare_number_is_refused_with_what_to_write(bare: object) -> None:
    with pytest.raises(InvalidOption, match=f'delay: {bare!r} has no unit; write "{bare}s"'):
        seconds(bare, "delay")


@pytest.mark.parametrize("odd", ["", "s", "5 s", "5x", "1 day", "-5s", "1h 30m", None, "٥s", True, float("nan")])
def test_anything_else_is_refused_with_the_grammar(odd: object) -> None:
    with pytest.raises(InvalidOption, match="delay: expected a duration like 500ms 90s 5m 1h30m 7d 2w, got"):
        seconds(odd, "delay")


@pytest.mark.parametrize("beyond", [timedelta(seconds=-1), "5300w"])
def test_a_duration_has_bounds(beyond: object) -> None:
    with pytest.raises(InvalidOption, match="expected between 0s and 100 years"):
        seconds(beyond)


@pytest.mark.parametrize(
    ("length", "told"),
    [(0, "0ms"), (0.25, "250ms"), (5, "5s"), (42.35, "42.4s"), (5400, "1h30m"), (90_061, "1d1h"), (-5, "-5s")],
)
def test_a_length_is_told_in_at_most_two_units(length: float, told: str) -> None:
    assert spell(length) == told


@given(st.integers(1, 59), st.integers(0, 23), st.integers(1, 365))
def test_what_is_spelled_can_be_read_back(minutes: int, hours: int, days: int) -> None:
    assert seconds(spell(hours * 3600 + minutes * 60)) == hours * 3600 + minutes * 60
    assert seconds(spell(days * 86_400)) == days * 86_400
