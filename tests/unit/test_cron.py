from __future__ import annotations

import gc
import sys
import zoneinfo
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import InvalidOption
from tenure.ports.schedules import Change, Schedule
from tenure.schedules import cron
from tenure.schedules.advice import lint, outlook
from tenure.schedules.cron import Cron, Every, Rule, epoch_seconds, read, rule
from tenure.schedules.zones import changes_after, tzdata_version

NEW_YORK = "America/New_York"
GAP = datetime(2026, 3, 8, 5, tzinfo=UTC)  # midnight in New York, where clocks go 02:00→03:00
OVERLAP = datetime(2026, 11, 1, 4, tzinfo=UTC)  # midnight there, clocks go 02:00→01:00


def of_day(expression: str, tz: str, start: datetime, dst: Literal["debian", "run_once"] = "debian") -> list[str]:
    """The ticks of 24 hours as the wall clock shows them."""
    entry = Cron(expression, tz, dst)
    return [
        f"{entry.local(tick):%H:%M%z}"
        for tick in entry.between(start - timedelta(seconds=1), start + timedelta(hours=23, minutes=59))
    ]


def following(expression: str, start: datetime, count: int, tz: str = "UTC") -> list[str]:
    entry = Cron(expression, tz)
    return [f"{found.local:%Y-%m-%d}" for found in outlook(entry, start, count)]


def utc(year: int, month: int = 1, day: int = 1, hour: int = 0, minute: int = 0, second: float = 0) -> datetime:
    return datetime(year, month, day, hour, minute, tzinfo=UTC) + timedelta(seconds=second)


# ── daylight saving, as Debian's cron has it ──


def test_a_fixed_time_inside_the_gap_runs_once_right_after_it() -> None:
    assert of_day("30 2 * * *", NEW_YORK, GAP) == ["03:00-0400"]


def test_two_fixed_hours_of_which_one_is_in_the_gap_both_run() -> None:
    assert of_day("15 2,3 * * *", NEW_YORK, GAP) == ["03:00-0400", "03:15-0400"]


def test_a_starred_minute_inside_the_gap_runs_not_at_all_that_day() -> None:
    assert of_day("*/20 2 * * *", NEW_YORK, GAP) == []


@pytest.mark.parametrize(("expression", "label"), [("30 1 * * *", "01:30-0400"), ("0 1 * * *", "01:00-0400")])
def test_a_fixed_time_that_comes_twice_runs_the_first_time(expression: str, label: str) -> None:
    assert of_day(expression, NEW_YORK, OVERLAP) == [label]


def test_an_hourly_minute_that_comes_twice_runs_both_times() -> None:
    assert of_day("30 * * * *", NEW_YORK, OVERLAP)[:4] == ["00:30-0400", "01:30-0400", "01:30-0500", "02:30-0500"]


def test_a_starred_minute_of_an_hour_that_comes_twice_runs_in_both() -> None:
    assert of_day("*/30 1 * * *", NEW_YORK, OVERLAP) == ["01:00-0400", "01:30-0400", "01:00-0500", "01:30-0500"]


def test_a_range_of_fixed_hours_over_the_overlap_runs_each_hour_once() -> None:
    assert of_day("0 0-3 * * *", NEW_YORK, OVERLAP) == ["00:00-0400", "01:00-0400", "02:00-0500", "03:00-0500"]


def test_a_midnight_that_does_not_exist_runs_at_one() -> None:
    assert of_day("0 0 * * *", "Asia/Beirut", utc(2026, 3, 28, 20)) == ["01:00+0300"]


def test_a_gap_of_half_an_hour_moves_a_tick_by_what_is_missing() -> None:
    assert of_day("15 2 * * *", "Australia/Lord_Howe", utc(2026, 10, 3, 13, 30)) == ["02:30+1100"]


def test_an_overlap_of_half_an_hour_runs_a_fixed_time_once() -> None:
    assert of_day("45 1 * * *", "Australia/Lord_Howe", utc(2026, 4, 4, 13)) == ["01:45+1100"]


def test_a_date_that_a_country_skipped_runs_at_the_next_midnight() -> None:
    tick = Cron("0 12 30 12 *", "Pacific/Apia").after(utc(2011))

    assert tick == datetime(2011, 12, 31, tzinfo=timezone(timedelta(hours=14)))


def test_day_of_month_and_day_of_week_are_an_or() -> None:
    assert following("0 0 13 * 5", utc(2026, 1, 1), 4) == ["2026-01-02", "2026-01-09", "2026-01-13", "2026-01-16"]


def test_a_day_of_month_that_starts_with_a_star_is_an_and() -> None:
    assert following("0 0 */20 * 1", utc(2026, 1, 1), 3) == ["2026-06-01", "2026-09-21", "2026-12-21"]


@pytest.mark.parametrize(("day", "first"), [("1", "2026-01-05"), ("7", "2026-01-04"), ("0", "2026-01-04")])
def test_the_week_starts_on_sunday_which_is_0_and_7(day: str, first: str) -> None:
    assert following(f"0 0 * * {day}", utc(2026), 1) == [first]


def test_a_range_of_weekdays_may_end_in_7() -> None:
    assert following("0 0 * * 5-7", utc(2026, 1, 1), 3) == ["2026-01-02", "2026-01-03", "2026-01-04"]


def test_the_fifth_monday_comes_only_where_there_is_one() -> None:
    assert following("0 0 * * MON#5", utc(2027), 2) == ["2027-03-29", "2027-05-31"]


@pytest.mark.parametrize(
    ("expression", "written"),
    [
        ("0 0 * * FRI-MON", "0 0 * * FRI-SAT,SUN-MON"),
        ("0 0 * * sat-sun", "0 0 * * SAT,SUN"),
        ("0 0 * * 5-0", "0 0 * * 5-6,0"),
        ("0 0 * * 7-2", "0 0 * * 0-2"),
        ("0 22-2 * * *", "0 22-23,0-2 * * *"),
        ("0 22-4/2 * * *", "0 22,0,2,4 * * *"),
        ("50-10 * * * *", "50-59,0-10 * * * *"),
        ("0 0 28-3 * *", "0 0 28-31,1-3 * *"),
        ("0 0 1 NOV-FEB *", "0 0 1 NOV-DEC,JAN-FEB *"),
        ("0 0 ? * MON", "0 0 * * MON"),
        ("0 0 15 * ?", "0 0 15 * *"),
        ("0 0 25-L * *", "0 0 25-31 * *"),
        ("0 0 * * MONL", "0 0 * * 1L"),
        ("0 0 * * L5", "0 0 * * 5L"),
        ("0 0 * * MON-WED#1", "0 0 * * 1#1,2#1,3#1"),
        ("0 0 L-3,15W * *", "0 0 L-3,15W * *"),
    ],
)
def test_other_notations_become_the_common_one(expression: str, written: str) -> None:
    assert str(Cron(expression)) == written
    assert Cron(written) == Cron(expression)


def test_a_range_may_go_beyond_the_end_of_its_cycle() -> None:
    assert following("0 0 * * SAT-MON", utc(2026, 1, 1), 4) == ["2026-01-03", "2026-01-04", "2026-01-05", "2026-01-10"]
    assert [tick.hour for tick in Cron("0 22-2/2 * * *").between(utc(2026), utc(2026, 1, 2))] == [2, 22, 0]


def test_the_workday_nearest_to_a_day_stays_in_its_month() -> None:
    assert following("0 0 15W * *", utc(2026, 2), 3) == ["2026-02-16", "2026-03-16", "2026-04-15"]  # Sun, Sun, Wed
    assert following("0 0 1W 8 *", utc(2026), 1) == ["2026-08-03"]  # the 1st is a Saturday, the 31st another month's
    assert following("0 0 31W 5 *", utc(2026), 1) == ["2026-05-29"]  # a Sunday, and the 1st is another month's
    assert following("0 0 31W * *", utc(2026), 3) == [
        "2026-01-30",
        "2026-03-31",
        "2026-05-29",
    ]  # only in months that have a 31st


def test_a_day_may_be_counted_from_the_end_of_the_month() -> None:
    assert following("0 0 L-3 * *", utc(2026, 2), 3) == ["2026-02-25", "2026-03-28", "2026-04-27"]
    assert following("0 0 L-30 * *", utc(2026, 2), 2) == ["2026-03-01", "2026-05-01"]


def test_the_last_day_the_last_working_day_and_the_last_friday_of_a_month() -> None:
    assert following("0 0 L * *", utc(2026, 2), 2) == ["2026-02-28", "2026-03-31"]
    assert following("0 0 LW * *", utc(2026, 2), 2) == ["2026-02-27", "2026-03-31"]
    assert following("0 0 * * 5L", utc(2026, 2), 2) == ["2026-02-27", "2026-03-27"]
    assert following("0 0 * * FRIL", utc(2026, 2), 2) == ["2026-02-27", "2026-03-27"]


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4,6 *", "0 0 31 2 */2", "0 0 */14 * SUN#2"])
def test_a_date_that_never_comes_is_refused(expression: str) -> None:
    with pytest.raises(InvalidOption, match=r"expected a date that exists, got .*; no day of any month matches"):
        Cron(expression)


def test_a_step_beyond_the_hour_is_hourly() -> None:
    assert Cron("*/90 * * * *").count(utc(2026), utc(2026, 1, 2), 100) == 24


def test_leap_days_skip_2100() -> None:
    assert following("0 0 29 2 *", utc(2096, 1, 1), 2) == ["2096-02-29", "2104-02-29"]
    assert Cron("0 0 29 2 *").upto(utc(2104, 2, 28)) == utc(2096, 2, 29)


def test_feb_29_or_monday_is_every_monday_of_february_too() -> None:
    dates = ["2028-02-07", "2028-02-14", "2028-02-21", "2028-02-28", "2028-02-29", "2029-02-05"]

    assert following("0 0 29 2 1", utc(2028), 6) == dates
    assert following("0 0 29 2 MON#5", utc(2026, 11, 21), 1) == ["2028-02-29"]


# ── run_once: what Debian's rule leaves out ──


def test_run_once_gives_a_day_swallowed_by_the_gap_its_run() -> None:
    assert of_day("*/20 2 * * *", NEW_YORK, GAP, "run_once") == ["03:00-0400"]


@pytest.mark.parametrize(
    "expression", ["*/20 1,2 * * *", "*/20 2,3 * * *", "30 2 * * *", "*/30 * * * *", "0 */2 * * *"]
)
def test_run_once_changes_nothing_on_a_day_that_has_a_run_anyway(expression: str) -> None:
    assert of_day(expression, NEW_YORK, GAP, "run_once") == of_day(expression, NEW_YORK, GAP)


def test_run_once_gives_a_date_that_a_country_skipped_its_run() -> None:
    tick = Cron("*/20 5 30 12 *", "Pacific/Apia", "run_once").after(utc(2011, 6))

    assert tick == utc(2011, 12, 30, 10)


# ── beyond the table ──


def test_a_schedule_made_inside_the_overlap_never_ticks_before_it_was_made() -> None:
    second_pass = utc(2026, 11, 1, 6, 10)  # 01:10 for the second time

    assert Cron("30 1 * * *", NEW_YORK).after(second_pass) == utc(2026, 11, 2, 6, 30)
    assert Cron("*/30 1 * * *", NEW_YORK).after(second_pass) == utc(2026, 11, 1, 6, 30)


def test_a_zone_that_gave_up_daylight_saving_keeps_its_last_offset() -> None:
    entry = Cron("0 2 * * *", "Europe/Istanbul")  # on summer time for good since 2016

    assert entry.after(utc(2016, 3, 26, 12)) == utc(2016, 3, 27, 0)
    assert entry.after(utc(2016, 10, 29, 12)) == utc(2016, 10, 29, 23)
    assert [line for line in lint(entry, utc(2026)) if "clocks" in line] == []


def test_a_year_ends_and_the_next_tick_is_in_the_new_one() -> None:
    assert Cron("* * * * *").after(utc(2026, 12, 31, 23, 59)) == utc(2027)
    assert Cron("0 0 1 1 *").upto(utc(2026, 12, 31, 23, 59)) == utc(2026)


def test_six_fields_start_with_seconds() -> None:
    assert Cron("*/20 5 * * * *").after(utc(2026, 1, 1, 0, 5, 20)) == utc(2026, 1, 1, 0, 5, 40)
    assert Cron("*/20 5 * * * *").upto(utc(2026, 1, 1, 1, 5)) == utc(2026, 1, 1, 1, 5)
    assert Cron("15 5 * * * *").upto(utc(2026, 1, 1, 1, 5)) == utc(2026, 1, 1, 0, 5, 15)


def test_seconds_do_not_change_what_the_clocks_do_to_a_daily_run() -> None:
    assert of_day("0 30 2 * * *", NEW_YORK, GAP) == ["03:00-0400"]
    assert of_day("0 30 1 * * *", NEW_YORK, OVERLAP) == ["01:30-0400"]


@pytest.mark.parametrize(
    ("macro", "fields"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@Midnight", "0 0 * * *"),
        ("@WEEKLY", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ],
)
def test_macros_mean_their_fields_in_any_case(macro: str, fields: str) -> None:
    start = utc(2026, 5, 6, 7, 8, 9)

    assert Cron(macro).after(start) == Cron(fields).after(start)
    assert str(Cron(macro)) == macro.lower()


def test_names_and_white_space_are_written_one_way() -> None:
    assert Cron("  0   6\t* jan  mon-FRI ") == Cron("0 6 * JAN MON-FRI")


@pytest.mark.parametrize(("rule", "newer"), [
    ("0 6 * JUL-9 *", False), ("0 6 * APR-JUL *", False), ("0 6 L-3 * *", True), ("0 6 1,L-3 * *", True),
    ("0 6 15W * *", True), ("0 6 LW * *", False), ("0 6 * * * | 0 9 * * *", True),
])  # fmt: skip
def test_only_a_rule_that_older_releases_cannot_read_is_marked_for_them(rule: str, newer: bool) -> None:
    stored = Change(schedule=Schedule(name="s", rule=str(read(rule)))).stored

    assert (stored.unread is True) is newer  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        (
            "0 6 5-5/2 * *",
            "bad day-of-month '5-5/2', got \"0 6 5-5/2 \\* \\*\"; write 5 for one value, or 5-31/2 for steps",
        ),
        ("5-5/20 * * * *", "write 5 for one value, or 5-59/20"),
        ("0 6 * * MON-MON/2", "write mon for one value, or mon-7/2"),
        ("0 6 * * MON-1/2", "write mon for one value, or mon-7/2"),
        ("0 6 31-L/2 * *", "write 31 for one value"),
        ("0 6 1,5-5/1 * *", "write 5 for one value, or 5-31/1"),
        ("0 6 5-5/0 * *", "bad day-of-month '5-5/0' in"),
    ],
)
def test_a_step_of_one_value_meant_two_things_and_is_refused(expression: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        Cron(expression)


def test_what_a_refused_step_suggests_can_be_read() -> None:
    assert Cron("0 6 5 * *").times.expression.days == frozenset([5])
    assert Cron("0 6 * * mon-7/2").times.expression.weekdays == frozenset([1, 3, 5, 7])


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("@reboot", "a schedule never reboots, use @hourly or an interval"),
        ("@fortnightly", "expected one of @hourly @daily"),
        ("@every 5m", 'for an interval use every="5m"'),
        ("", "expected 5 fields .* which has 0"),
        ("0 6 * *", "expected 5 fields .* which has 4"),
        ("0 0 0 1 1 * 2026", "has 7; for years use start and end"),
        ("0 6 * * * /usr/bin/report", "bad day-of-week '/usr/bin/report'"),
        ("61 * * * *", r"bad minute '61' in '61 \* \* \* \*'; expected 0-59"),
        ("60 0 0 * * *", "bad second '60'"),
        ("0 24 * * *", "bad hour '24'.* expected 0-23"),
        ("0 0 0 * *", "bad day-of-month '0'"),
        ("0 0 32 * *", "bad day-of-month '32'"),
        ("0 0 * 13 *", "bad month '13'.* expected 1-12 or JAN-DEC"),
        ("0 0 * * 8", "bad day-of-week '8'"),
        ("*/0 * * * *", r"bad minute '\*/0'"),
        (", * * * *", "bad minute ','"),
        ("? 0 * * *", r"\? stands for a whole day-of-month or day-of-week; else write \*"),
        ("0 0 1,? * *", r"else write \*"),
        ("H 0 * * *", "instead of H, choose a number, or spread the runs with jitter"),
        ("R(0-9) 0 * * *", "instead of R, choose a number"),
        ("0 0 32W * *", "bad day-of-month '32w'.* expected 1-31, L, L-3, LW or 15W"),
        ("0 0 L-31 * *", "bad day-of-month 'l-31'"),
        ("0 0 15W/2 * *", "bad day-of-month '15w/2'"),
        ("0 0 * * L", "bad day-of-week 'l'"),
        ("0 0 * * L8", "bad day-of-week 'l8'"),
        ("CRON_TZ=Asia/Tokyo 0 5 * * *", "leave out CRON_TZ=, and pass the time zone as tz"),
        ("0 0 * * MON#6", "bad day-of-week 'mon#6'"),
        ("٠ ٦ * * *", "plain ASCII"),
        ("0 6 * * *\n* * * * *", "one line"),
        ("0 6 * * *\0", "one line"),
        ("0 6 * * *\x1b[2J", "one line"),
        ("0\u00a06 * * *", "one line"),
        ("1," * 600 + "1 * * * *", "at most 1000 characters, got 1209"),
        ("9" * 900 + " * * * *", "bad minute"),
        ("0 6 * * *; drop table jobs", "which has 8"),
    ],
)
def test_what_is_no_expression_is_refused_with_a_sentence(expression: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        Cron(expression)


@given(st.text(max_size=40) | st.text("0123456789*/,-#LW?@| ", max_size=20))
def test_any_text_is_an_expression_or_a_sentence(text: str) -> None:
    try:
        entry = rule(text)
    except InvalidOption:
        return
    assert read(str(entry)) == entry


@pytest.mark.parametrize(
    ("typo", "says"),
    [
        ("Europe/Pariss", "did you mean Europe/Paris"),
        ("europe/paris", "did you mean Europe/Paris"),
        ("America/NewYork", "did you mean America/New_York"),
        ("../../etc/passwd", "got '../../etc/passwd'"),
        ("", "write a name like Europe/Paris"),
        ("/etc/localtime", "expected a name of the IANA"),
        ("Europe/Paris\0", "did you mean Europe/Paris"),
    ],
)
def test_an_unknown_zone_is_refused_with_close_names(typo: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        Cron("0 6 * * *", typo)


def test_an_unknown_daylight_saving_rule_is_refused() -> None:
    with pytest.raises(InvalidOption, match='dst: expected "debian" or "run_once", got \'quartz\''):
        Cron("0 6 * * *", "UTC", "quartz")  # type: ignore[arg-type]


def test_zones_come_from_the_package_and_never_from_the_host(tmp_path: Path) -> None:
    (tmp_path / "Africa").mkdir()
    tokyo = files("tzdata").joinpath("zoneinfo", "Asia", "Tokyo").read_bytes()
    (tmp_path / "Africa" / "Accra").write_bytes(tokyo)
    zoneinfo.reset_tzpath([str(tmp_path)])
    try:
        assert zoneinfo.ZoneInfo.no_cache("Africa/Accra").utcoffset(utc(2026)) == timedelta(hours=9)

        assert Cron("0 6 * * *", "Africa/Accra").after(utc(2026)) == utc(2026, 1, 1, 6)
    finally:
        zoneinfo.reset_tzpath()


def test_the_version_of_the_zone_data_can_be_told() -> None:
    year, letter = tzdata_version()[:4], tzdata_version()[4:]

    assert int(year) >= 2025
    assert letter.isalpha()


# ── both rules ──

RULES: list[Rule] = [
    Cron("30 2 * * *", NEW_YORK),
    Cron("*/20 2 * * *", NEW_YORK, "run_once"),
    Cron("0 0 * * *", "Asia/Beirut"),
    Cron("*/7 1-3 * * *", "Australia/Lord_Howe"),
    Cron("30 0 1,15,L * 5", "America/Havana"),
    Cron("*/15 30 2 * * *", "Europe/Paris"),
    Cron("59 23 31 12 *", "Pacific/Apia"),
    Cron("0 1 15W,L-2 * *", "America/Santiago"),
    rule("30 2 * * MON-FRI | */20 2 * * SAT | 0 0 29 2 *", tz=NEW_YORK, except_dates=[date(2026, 3, 8)]),
    rule("*/7 * * * * | 5 0 1 1 *", tz="Asia/Beirut", except_dates=[date(2026, 3, 28), date(2026, 3, 29)]),
    Every(5400),
    Every(0.7, 0.3),
    Every(7 * 86_400, 3600),
]
INSTANTS = st.datetimes(datetime(1980, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC))


@pytest.mark.parametrize("entry", RULES, ids=str)
@given(instant=INSTANTS)
def test_going_back_finds_the_ticks_of_going_forth(entry: Rule, instant: datetime) -> None:
    tick = entry.after(instant)

    assert tick is not None
    assert tick > instant
    assert entry.upto(tick) == tick
    earlier = entry.upto(instant)
    assert earlier is not None
    assert earlier <= instant
    assert entry.upto(tick - timedelta(microseconds=1)) == earlier
    assert entry.after(earlier) == tick
    assert list(entry.between(earlier, tick)) == [tick]


@pytest.mark.parametrize("entry", RULES, ids=str)
def test_every_rule_is_read_back_from_what_it_wrote(entry: Rule) -> None:
    tz = "UTC" if isinstance(entry, Every) else entry.tz
    dst = entry.dst if isinstance(entry, Cron) else "debian"

    assert read(str(entry), tz, dst) == entry


@pytest.mark.parametrize("entry", [Cron("0 6 * * *"), Every(86_400, 21_600)], ids=str)
@pytest.mark.parametrize("off", [-0.3, 0.3, 0.0, -11 * 3600, 11 * 3600])
def test_the_nearest_tick_forgives_a_caller_that_is_early_or_late(entry: Rule, off: float) -> None:
    assert entry.nearest(utc(2026, 5, 5, 6, 0, off)) == utc(2026, 5, 5, 6)


@pytest.mark.parametrize("entry", [Cron("0 */2 * * *"), Every(7200)], ids=str)
def test_between_two_ticks_as_near_the_earlier_is_taken(entry: Rule) -> None:
    assert entry.nearest(utc(2026, 5, 5, 7)) == utc(2026, 5, 5, 6)
    assert entry.nearest(utc(2026, 5, 5, 7, 0, 0.001)) == utc(2026, 5, 5, 8)


@pytest.mark.parametrize("ask", ["after", "upto", "nearest"])
@pytest.mark.parametrize("entry", [Cron("0 6 * * *"), Every(60)], ids=str)
def test_a_time_without_a_zone_is_refused(entry: Rule, ask: str) -> None:
    with pytest.raises(InvalidOption, match="expected a time with its zone"):
        getattr(entry, ask)(datetime(2026, 1, 1))


@pytest.mark.parametrize("entry", [Cron("0 6 * * *", "Asia/Tokyo"), Every(60)], ids=str)
def test_answers_are_in_utc_whatever_the_zone_of_the_question(entry: Rule) -> None:
    question = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-7)))

    for answer in (
        entry.after(question),
        entry.upto(question),
        entry.nearest(question),
        *entry.between(question, question),
    ):
        assert answer is not None
        assert answer.tzinfo is UTC


@pytest.mark.parametrize("entry", [Cron("0 6 1 1 *", NEW_YORK), Every(7 * 86_400)], ids=str)
def test_at_the_ends_of_the_calendar_there_is_no_tick(entry: Rule) -> None:
    assert entry.after(datetime.max.replace(tzinfo=UTC)) is None
    assert entry.upto(datetime.min.replace(tzinfo=UTC)) is None
    assert list(entry.between(utc(9999, 12, 30), datetime.max.replace(tzinfo=UTC))) == []


def lines_run(work: Callable[[], object]) -> int:
    """How much Python an action costs, on any machine."""
    lines = 0

    def trace(*_: object) -> Callable[..., Any]:
        nonlocal lines
        lines += 1
        return trace

    gc.disable()  # what a collection would run is not counted
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
        gc.enable()
    return lines


def test_ten_years_of_seconds_are_counted_without_a_walk() -> None:
    every = Every(1)

    assert every.count(utc(2016), utc(2026), 10**9) == 315_619_200
    assert lines_run(lambda: every.count(utc(2016), utc(2026), 10**9)) < 100
    assert lines_run(lambda: every.upto(utc(2026))) < 100


def test_counting_the_seconds_of_a_cron_expression_stops_at_the_most() -> None:
    entry = Cron("* * * * * *", NEW_YORK)

    assert entry.count(utc(2016), utc(2026), 50) == 50
    assert entry.upto(utc(2026)) == utc(2026)  # from here on both years of the zone are cached: they cost thousands
    assert lines_run(lambda: entry.count(utc(2016), utc(2026), 50)) < 5000
    assert lines_run(lambda: entry.upto(utc(2026))) < 200


@pytest.mark.parametrize("entry", [Cron("* * * * *"), Every(60)], ids=str)
def test_ticks_are_counted_after_and_up_to(entry: Rule) -> None:
    assert entry.count(utc(2026), utc(2026, 1, 1, 1), 100) == 60
    assert entry.count(utc(2026), utc(2026, 1, 1, 1), 7) == 7
    assert entry.count(utc(2026), utc(2025), 100) == 0
    assert next(entry.between(utc(2026), utc(9999))) == utc(2026, 1, 1, 0, 1)


# ── several expressions, and dates without a tick ──


def test_several_expressions_are_one_rule_and_a_time_of_two_is_one_tick() -> None:
    both = rule("0 6 * * MON-FRI | 0 10 * * SAT|0 6,7 5 1 *", tz="Europe/Paris")

    assert [f"{both.local(tick):%a %d %H}" for tick in both.between(utc(2026, 1, 2), utc(2026, 1, 6))] == [
        "Fri 02 06", "Sat 03 10", "Mon 05 06", "Mon 05 07",
    ]  # fmt: skip
    assert str(both) == "0 6 * * MON-FRI | 0 10 * * SAT | 0 6,7 5 1 *"
    assert [each.note for each in outlook(rule("0 6 * * * | 30 2 * * *", tz=NEW_YORK), GAP, 1)] == [
        "clocks go forward 02:00→03:00 today; 02:30 does not exist, it runs at 03:00"
    ]


def test_no_tick_falls_on_an_excluded_date_of_the_zone() -> None:
    closed = rule("30 */6 * * *", tz="Asia/Tokyo", except_dates=[date(2026, 1, 3), date(2026, 1, 2)])

    ticks = [f"{closed.local(tick):%d %H}" for tick in closed.between(utc(2026, 1, 1), utc(2026, 1, 4))]
    assert ticks == ["01 12", "01 18", "04 00", "04 06"]
    assert str(closed) == "30 */6 * * * except 2026-01-02,2026-01-03"
    assert rule("30 */6 * * * EXCEPT 2026-01-03 2026-01-02", tz="Asia/Tokyo") == closed
    assert rule("30 */6 * * * except 2026-01-02", tz="Asia/Tokyo", except_dates=[date(2026, 1, 3)]) == closed


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Beirut", "Pacific/Apia", "America/Havana", "America/Nuuk"])
def test_an_excluded_date_is_left_out_whole_and_alone_whatever_the_clocks_do(zone: str) -> None:
    """Compared tick by tick with the rule without exclusions, around each change of the clocks."""
    plain = Cron("*/20 * * * *", zone)
    for change in changes_after(zone, epoch_seconds(utc(2011)), epoch_seconds(utc(2026, 12, 1))):
        at = datetime.fromtimestamp(change.at, UTC)
        days = {plain.local(at + timedelta(hours=hours)).date() for hours in (-1, 1)}
        closed = rule("*/20 * * * *", tz=zone, except_dates=days)
        expected = [
            tick
            for tick in plain.between(at - timedelta(days=3), at + timedelta(days=3))
            if plain.local(tick).date() not in days
        ]
        assert list(closed.between(at - timedelta(days=3), at + timedelta(days=3))) == expected
        back = [closed.upto(tick) for tick in expected]
        assert back == expected
        assert closed.upto(at) == max((tick for tick in expected if tick <= at), default=None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 6 * * * |", "expected 5 fields .* which has 0"),
        ("0 6 * * * | @every 5m", 'for an interval use every="5m"'),
        ("0 6 * * * except", "expected dates like 2026-12-25 after except, got ''"),
        ("0 6 * * * except 25.12.2026", "expected dates like 2026-12-25 after except, got '25.12.2026'"),
        ("* * * * *" + " | * * * * *" * 50, "at most 50 expressions .* got 51"),
        ("0 6 * * * except " + ",".join(f"{1000 + n}-01-01" for n in range(1001)), "at most .* 1,000 dates"),
    ],
)
def test_a_rule_of_several_parts_that_is_none_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        rule(text)


def test_only_dates_are_excluded_and_only_from_expressions() -> None:
    with pytest.raises(InvalidOption, match=r"except_dates: expected dates like date\(2026, 12, 25\), got datetime"):
        rule("0 6 * * *", except_dates=[datetime(2026, 12, 25)])
    with pytest.raises(InvalidOption, match="an interval has no dates"):
        rule(every="1h", except_dates=[date(2026, 12, 25)])


# ── intervals ──


@given(start=INSTANTS)
def test_an_interval_is_anchored_to_the_epoch_whoever_starts_it(start: datetime) -> None:
    tick = Every(90, 30).after(start)

    assert tick is not None
    assert ((tick - utc(1970)) - timedelta(seconds=30)) % timedelta(seconds=90) == timedelta(0)
    assert timedelta(0) < tick - start <= timedelta(seconds=90)


def test_an_interval_is_exact_to_the_millisecond_after_fifty_years() -> None:
    assert Every(0.7).upto(utc(2020)) == utc(2019, 12, 31, 23, 59, 59) + timedelta(milliseconds=700)


@pytest.mark.parametrize(
    ("spec", "written"),
    [
        ("every 90s", "every 1m30s"),
        ("every 5400s", "every 1h30m"),
        ("EVERY 1d1h1m1s1ms", "every 1d1h1m1s1ms"),
        ("every 2w", "every 14d"),
        (" every  500ms ", "every 500ms"),
        ("every 1h offset 5m", "every 1h offset 5m"),
        ("0 6 * * mon", "0 6 * * MON"),
    ],
)
def test_a_rule_has_one_written_form_and_it_is_exact(spec: str, written: str) -> None:
    assert str(read(spec)) == written


@pytest.mark.parametrize(
    ("seconds", "offset", "says"),
    [
        (0, 0, "expected between 100ms and 50 years, got 0 seconds"),
        (-5, 0, "expected between 100ms"),
        (0.05, 0, "expected between 100ms"),
        (1e12, 0, "expected between 100ms"),
        (1.0005, 0, "expected whole milliseconds"),
        (float("nan"), 0, "expected whole milliseconds"),
        (float("inf"), 0, "expected whole milliseconds"),
        (60, 60, "offset: expected less than the interval"),
        (60, -1, "offset: expected less than the interval"),
    ],
)
def test_an_interval_that_cannot_be_is_refused(seconds: float, offset: float, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        Every(seconds, offset)


def test_a_rule_is_exactly_one_of_expression_and_interval() -> None:
    assert rule("0 6 * * *", tz="Europe/Paris") == Cron("0 6 * * *", "Europe/Paris")
    assert rule(every="1h30m") == rule(every=timedelta(hours=1, minutes=30)) == Every(5400)
    for both in ({}, {"cron": "0 6 * * *", "every": "1h"}):
        with pytest.raises(InvalidOption, match="expected either a cron expression or every="):
            rule(**both)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match='use every="5m"'):
        rule("every 5m")
    assert rule("@every 1h30m") == read("@EVERY 90m") == Every(5400)
    with pytest.raises(InvalidOption, match="@every: expected a duration"):
        rule("@every now")
    with pytest.raises(InvalidOption, match="every: expected a duration"):
        read("every day")


# ── what people are told ──

FORWARD = f"clocks go forward 02:00→03:00 in {NEW_YORK}"
EITHER = "cron runs when one of them matches, not only when both do"
BOTH = "one of them starts with *, so both have to match"
BACK = f"clocks go back 02:00→01:00 in {NEW_YORK}"


def test_a_preview_marks_the_days_on_which_clocks_change() -> None:
    def notes(expression: str, start: datetime, tz: str = NEW_YORK) -> list[str]:
        return [found.note for found in outlook(Cron(expression, tz), start, 3)]

    before = timedelta(days=1)
    gap, back = "clocks go forward 02:00→03:00 today", "clocks go back 02:00→01:00 today"
    assert notes("30 2 * * *", GAP - before) == ["", f"{gap}; 02:30 does not exist, it runs at 03:00", ""]
    assert notes("30 1 * * *", OVERLAP - before) == ["", f"{back}; 01:30 occurs twice, it runs the first time", ""]
    twice = f"{back}; 01:30 occurs twice, it runs both times"
    assert notes("30 * * * *", OVERLAP) == [back, twice, twice]
    assert notes("0 6 * * *", OVERLAP - before) == ["", back, ""]
    assert notes("30 2 * * *", GAP, "UTC") == ["", "", ""]
    assert [found.note for found in outlook(Every(3600), GAP, 2)] == ["", ""]


def test_a_preview_names_the_dates_when_clocks_cross_midnight() -> None:
    found = outlook(Cron("0 12 30 12 *", "Pacific/Apia"), utc(2011), 1)[0]

    assert found.note == (
        "clocks go forward 2011-12-30 00:00→2011-12-31 00:00 today; 12:00 does not exist, it runs at 00:00"
    )
    assert found.local.isoformat() == "2011-12-31T00:00:00+14:00"
    assert found.tick == utc(2011, 12, 30, 10)


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("*/7 * * * *", "minute */7 is not every 7 minutes: after :56 comes :00, 4 minutes later"),
        ("*/90 * * * *", "minute */90 steps beyond the hour: it means once a hour, at :00"),
        ("5/7 * * * *", "minute 5/7 is not every 7 minutes: after :54 comes :05, 11 minutes later"),
        ("*/25 0 * * * *", "second */25 is not every 25 seconds: after :50 comes :00, 10 seconds later"),
        ("0 */5 * * *", "hour */5 is not every 5 hours: after 20:00 comes 00:00, 4 hours later"),
        ("0 6 */2 * *", "day-of-month */2 is not every 2 days: it starts again with each month, at day 1"),
        ("0 6 1 */5 *", "month */5 is not every 5 months: after Nov comes Jan, 2 months later"),
        ("0 6 * * */2", "day-of-week */2 is not every 2 days: after Saturday comes Sunday, 1 day later"),
        (
            "0 6 13 * 5",
            f"day-of-month 13 and day-of-week 5: {EITHER}; next on Fri 2026-01-02, Fri 2026-01-09, Tue 2026-01-13",
        ),
        (
            "0 6 */20 * 1",
            f"day-of-month */20 and day-of-week 1: {BOTH}; next on Mon 2026-06-01, Mon 2026-09-21, Mon 2026-12-21",
        ),
        ("0 6 29 2 *", "Feb 29 exists in leap years only; next on Tue 2028-02-29, Sun 2032-02-29, Fri 2036-02-29"),
        (
            "0 6 31 * *",
            "day 31 does not exist in Feb, Apr, Jun, Sep, Nov, so nothing runs there; L is a month's last",
        ),
        ("0 6 29 * *", "day 29 exists in Feb in leap years only; L is a month's last"),
        (
            "0 6 * * MON#5",
            "a month without a fifth Monday has no such run; next on Mon 2026-03-30, Mon 2026-06-29, Mon 2026-08-31",
        ),
        ("* 0 6 * * *", "second * runs 60 times in every minute that matches"),
        (
            "30 2 * * *",
            f"2026-03-08: {FORWARD}; 02:30 does not exist, it runs at 03:00",
        ),
        (
            "15,45 2 * * *",
            f"2026-03-08: {FORWARD}; 02:15, 02:45 do not exist, they run once, at 03:00",
        ),
        (
            "*/20 2 * * *",
            f"2026-03-08: {FORWARD}; 02:00, 02:20, 02:40 do not exist, they are skipped",
        ),
        (
            "30 1 * * *",
            f"2026-11-01: {BACK}; 01:30 occurs twice, it runs the first time",
        ),
        (
            "*/10 1 * * *",
            f"2026-11-01: {BACK}; 01:00, 01:10, 01:20, … occur twice, they run both times",
        ),
    ],
)
def test_what_surprises_is_said_with_an_example(expression: str, sentence: str) -> None:
    assert sentence in lint(Cron(expression, NEW_YORK), utc(2026))


@pytest.mark.parametrize(
    "expression",
    [
        "* * * * *",
        "*/15 * * * *",
        "0 6 * * *",
        "0 9-17 * * MON-FRI",
        "@monthly",
        "0 */6 L * *",
        "0 6 31 1 *",
        "@weekly",
    ],
)
def test_what_does_not_surprise_is_left_in_peace(expression: str) -> None:
    assert lint(Cron(expression, "UTC")) == []


def test_intervals_that_move_through_the_day_or_the_week_say_so() -> None:
    start = utc(2026)
    moving, weekly = lint(Every(25_200), start), lint(Every(604_800), start)

    assert lint(Every(3600), start) == lint(Every(86_400), start) == lint(Every(90), start) == []
    assert len(moving) == len(weekly) == 1
    assert moving[0].startswith(
        "every 7h does not divide a day evenly, so its times of day shift; next at Thu 2026-01-01 07:00,"
    )
    assert weekly[0].startswith("every 7d is counted from Thursday 1970-01-01 UTC; next at Thu 2026-01-08 00:00,")


def test_expressions_are_read_once() -> None:
    Cron("1 2 3 4 *")
    read_before = cron._times.cache_info().misses

    for _ in range(10):
        Cron("1 2 3 4 *", "Europe/Paris").after(utc(2026))

    assert cron._times.cache_info().misses == read_before
