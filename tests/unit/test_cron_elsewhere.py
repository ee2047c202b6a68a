"""Expressions from other libraries' own tests: those that run here as there, and each that does not, with the reason.

Of croniter 7.0.0, cronsim 2.8, robfig/cron v3 and APScheduler 4 (its crontab expressions). What these libraries refuse
themselves is left out.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tenure.errors import InvalidOption
from tenure.schedules import cron

FIRST, SECOND = datetime(2026, 1, 1, tzinfo=UTC), datetime(2028, 2, 27, 13, 7, 5, tzinfo=UTC)
LINES = [
    line.split("\t")
    for line in (Path(__file__).parent / "cron_elsewhere.txt").read_text().splitlines()
    if not line.startswith("#")
]

#: robfig/cron: from, expression, and what its tests expect next, all UTC.
ROBFIG = """
2012-07-09T14:59:59 | 0 0/15 * * * *             | 2012-07-09T15:00:00
2012-07-09T15:45:00 | 0 20-35/15 * * * *         | 2012-07-09T16:20:00
2012-07-09T23:46:00 | 0 */15 * * * *             | 2012-07-10T00:00:00
2012-07-09T23:45:00 | 0 20-35/15 * * * *         | 2012-07-10T00:20:00
2012-07-09T23:35:51 | 15/35 20-35/15 * * * *     | 2012-07-10T00:20:15
2012-07-09T23:35:51 | 15/35 20-35/15 1/2 * * *   | 2012-07-10T01:20:15
2012-07-09T23:35:51 | 15/35 20-35/15 10-12 * * * | 2012-07-10T10:20:15
2012-07-09T23:35:51 | 15/35 20-35/15 1/2 */2 * * | 2012-07-11T01:20:15
2012-07-09T23:35:51 | 15/35 20-35/15 * 9-20 * *  | 2012-07-10T00:20:15
2012-07-09T23:35:51 | 15/35 20-35/15 * 9-20 Jul * | 2012-07-10T00:20:15
2012-07-09T23:35:00 | 0 0 0 9 Apr-Oct ?          | 2012-08-09T00:00:00
2012-07-09T23:35:00 | 0 0 0 */5 Apr,Aug,Oct Mon  | 2012-08-06T00:00:00
2012-07-09T23:35:00 | 0 0 0 */5 Oct Mon          | 2012-10-01T00:00:00
2012-07-09T23:35:00 | 0 0 0 * Feb Mon            | 2013-02-04T00:00:00
2012-07-09T23:35:00 | 0 0 0 * Feb Mon/2          | 2013-02-01T00:00:00
2012-12-31T23:59:45 | 0 * * * * *                | 2013-01-01T00:00:00
2012-07-09T23:35:00 | 0 0 0 29 Feb ?             | 2016-02-29T00:00:00
2012-07-15T08:29:59 | 0 30 08 ? Jul Sun          | 2012-07-15T08:30:00
2012-07-15T08:29:59 | 0 30 08 15 Jul ?           | 2012-07-15T08:30:00
2012-06-14T23:59:59 | 0 * * 1,15 * Sun           | 2012-06-15T00:00:00
"""

#: Accepted in both places, but run at other times: the first tick here after 2026-01-01, and why.
OTHERWISE = {
    "* * * 12-12 *": ("2026-12-01T00:00", "croniter reads a range from a value to itself as all values"),
    "5-5 * * * *": ("2026-01-01T00:05", "croniter reads a range from a value to itself as all values"),
    "0 0 * * Sun-Sun": ("2026-01-04T00:00", "croniter reads a range from a value to itself as all values"),
    "0 0 * * *,sat#3": ("2026-01-02T00:00", "a list: either; croniter runs on the third Saturday only"),
    "0 0 * 1 0-6,sat#3": ("2026-01-02T00:00", "a list: either; croniter runs on the third Saturday only"),
    "0 0 * * Thu-Tue/2": ("2026-01-03T00:00", "a step goes on over the end; croniter's begins again there"),
    "0 0 1 Apr-Mar/2 *": ("2026-02-01T00:00", "a step goes on over the end; croniter's begins again there"),
    "0 16 */2 * sat": ("2026-01-03T16:00", "one day field begins with a star: both; croniter: either"),
    "0 9 31W * *": (None, "a month without that day has no tick; croniter takes its last weekday"),
    "30 6 1-7 MAY MON#1": ("2026-05-01T06:30", "both days are named: either; croniter mixes the two"),
    "* * * * 7/2": ("2026-01-04T00:00", "from Sunday on there is only Sunday; croniter runs on every second day"),
    "0-14 * 14-28 jul fri": ("2026-07-03T00:00", "both days are named: either; APScheduler: both"),
}

#: What is refused, and what the message says instead.
REFUSED = {
    "0 0 11 * * 0 2060": "for years use start and end",
    "R R * * *": "spread the runs with jitter",
    "0 9 W15 * *": "15W",
    "0 0 1 1-1/3 *": "write 1 for one value",
    "59-59/15 * * * *": "write 59 for one value",
    "1 1 */100 * MON#4": "no day of any month matches",
    "0 0 0 30 Feb ?": "no day of any month matches",
    "0 0 0 31 Apr ?": "no day of any month matches",
}


def ticks(expression: str, since: datetime, count: int) -> list[str]:
    rule, found = cron.rule(expression), []
    at: datetime | None = since
    while len(found) < count and (at := rule.after(at)) is not None:
        found.append(f"{at:%Y-%m-%dT%H:%M:%S}")
    return found


def test_the_expressions_of_croniter_and_cronsim_run_here_as_there() -> None:
    otherwise = []
    for library, expression, *expected in LINES:
        second = ticks(expression, SECOND, 12)
        found = [*ticks(expression, FIRST, 2), *second[:2], *(second[11:12] if len(expected) == 5 else ())]
        if found != expected:
            otherwise.append((library, expression, found, expected))
    assert otherwise == []
    assert len(LINES) > 200


@pytest.mark.parametrize("line", ROBFIG.strip().splitlines())
def test_what_robfig_cron_expects_next_is_next(line: str) -> None:
    since, expression, expected = (text.strip() for text in line.split("|"))
    assert ticks(expression, datetime.fromisoformat(since).replace(tzinfo=UTC), 1) == [expected]


@pytest.mark.parametrize("expression", ["* * * * *", "* * * * 0-3", "* * * * 1-5", "* * * * 6-1", "* * * * 6-7"])
def test_the_crontab_expressions_of_apscheduler_count_from_sunday(expression: str) -> None:
    days = {"*": range(7), "0-3": (6, 0, 1, 2), "1-5": range(5), "6-1": (5, 6, 0), "6-7": (5, 6)}[expression.split()[4]]
    rule, at = cron.rule(expression.replace("* *", "0 0", 1)), FIRST
    for _ in range(14):
        at = rule.after(at) or FIRST
        assert at.weekday() in days


@pytest.mark.parametrize("expression", OTHERWISE)
def test_what_runs_at_other_times_does_so_as_the_page_says(expression: str) -> None:
    first, _ = OTHERWISE[expression]
    if first is None:
        assert all("-02-" not in each and "-04-" not in each for each in ticks(expression, FIRST, 3))
    else:
        assert ticks(expression, FIRST, 1)[0].startswith(first)


@pytest.mark.parametrize("expression", REFUSED)
def test_what_is_refused_says_what_to_write(expression: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        cron.rule(expression)
    assert REFUSED[expression] in str(refused.value)
