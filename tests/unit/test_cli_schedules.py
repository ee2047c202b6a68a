"""`tenure schedules …`, run as its users run it: what it prints, what it changes, and how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from conformance.factories import claim, draft, finish, start
from tenure.cli.schedules import moment
from tenure.cli.schedules_screen import MARKS
from tenure.core.clock import system_clock
from tenure.core.lifecycle import Completed, Failed, Lease, Outcome, State
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Draft, Filter, Store
from tenure.ports.schedules import Change, Schedule, Status, Tick
from tenure.schedules.cron import Every
from tenure.schedules.timetable import MOST_BACKFILLED, Record, Timetable
from tenure.stores.sqlite import SqliteStore
from terminals import on_a_terminal, plain

APP = """
from tenure import Secret, Tenure

jobs = Tenure()

@jobs.task(queue="sums")
def add(a: int, b: int = 1, token: Secret[str] | None = None) -> int:
    return a + b

@jobs.schedule("30 2 * * *", tz="Europe/Paris")
@jobs.task
def nightly() -> None: ...
"""

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(folder: Path) -> Iterable[Store]:
    store = SqliteStore(str(folder / "tenure.db"))
    store.open()
    yield store
    store.close()


@pytest.fixture
def timetable(store: Store) -> Timetable:
    return Timetable(store, PollNotifier())


@pytest.fixture
def run(run: Run) -> Run:
    return lambda *argv: run("schedules", *argv)


def rows(out: str) -> list[list[str]]:
    return [line.split("\t") for line in out.splitlines()]


def made(timetable: Timetable, name: str = "report", **options: Any) -> Schedule:
    """An operator's schedule, which runs daily at 06:00 UTC by default."""
    given: dict[str, Any] = {"rule": "0 6 * * *", "job": _draft(), **options}
    return timetable.put(Schedule(name=name, **given)).schedule


def far_hour() -> int:
    """An hour in UTC that does not come while a test runs, whatever the time is."""
    return (datetime.now(UTC).hour + 12) % 24


def _draft(**options: Any) -> Draft:
    return draft(**options).but(id="")


def put(store: Store, schedule: Schedule, *ticks: Tick, **stands: Any) -> None:
    """Set the state of a schedule, and what became of its ticks."""
    newest = store.schedules([schedule.name])[0].schedule
    assert store.change([Change(schedule=newest.but(**stands), ticks=ticks)]) == [True]


def tick(at: datetime, status: Status, **options: Any) -> Tick:
    ran = status in ("success", "failure", "cancelled")
    times = {"started_at": at + timedelta(seconds=3), "ended_at": at + timedelta(seconds=45)} if ran else {}
    given: dict[str, Any] = {"schedule": "report", "decided_at": at, **times, **options}
    return Tick(tick=at, status=status, **given)


def begin(store: Store, *, task: str = "work") -> Lease:
    """A worker claims the queued job."""
    worker = start(store, boot_id=system_clock().boot_id, lease=3600.0, tasks=(task,))
    (claimed,) = claim(store, worker)
    return Lease(claimed.id, claimed.attempt, worker)


def ran(store: Store, timetable: Timetable, outcome: Outcome, name: str = "report") -> str:
    """A run that an operator triggered, and that ended with this outcome."""
    job_id = timetable.trigger(name, force=True)
    finish(store, begin(store), outcome)
    return job_id


# ── How a command ends ──


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["lst"], 2, 'Did you mean "list"?'),
        (["show", "nowhere"], 1, "no schedule 'nowhere' in sqlite:///"),
        (["trigger", "nowhere"], 1, "known: report"),
        (["history", "nowhere"], 1, "no schedule 'nowhere'"),
        (["lint", "nowhere"], 1, "no schedule 'nowhere'"),
        (["history", "report", "-n", "0"], 2, "--limit: expected 1 to 10000, got 0"),
        (["history", "report", "--before", "soon"], 2, "--before: expected a time like 2030-01-31T06:00"),
        (["preview"], 2, "expected one of a schedule's name, --cron or --every"),
        (["preview", "report", "--cron", "@daily"], 2, "expected one of a schedule's name, --cron or --every"),
        (["preview", "report", "--tz", "Europe/Paris"], 2, "report has its own time zone"),
        (["preview", "--cron", "@daily", "--every", "5m"], 2, "expected either a cron expression or every"),
        (["preview", "--every", "5m", "--tz", "Europe/Paris"], 2, "an interval has no time zone"),
        (["preview", "--cron", "61 * * * *"], 2, "bad minute '61'"),
        (["preview", "--cron", "@daily", "--tz", "Europe/Pariss"], 2, "did you mean Europe/Paris"),
        (
            ["preview", "--cron", "@daily", "--after", "0001-01-01"],
            2,
            "--after: expected a year from 1971 to 8999, got",
        ),
        (
            ["preview", "--cron", "@daily", "--after", "9999-12-31T23:59:59-23:00"],
            2,
            "--after: expected a year from 1971 to 8999, got",
        ),
        (["preview", "--every", "5"], 2, 'write "5s"'),
        (["overdue", "--grace", "5"], 2, 'write "5s"'),
        (["trigger", "report", "--timeout", "5s"], 2, "--wait"),
        (["backfill", "report"], 2, "--from"),
        (["backfill", "report", "--from", "2100-01-01"], 2, "expected times of the past"),
        (["backfill", "report", "--from", "2020-01-02", "--to", "2020-01-01"], 2, "--from before --to"),
        (["add", "no good", "--task", "add", "a=1", "--every", "5m"], 2, "name: expected letters"),
        (["add", "x", "--task", "add", "a=1"], 2, "expected either a cron expression or every"),
        (["add", "x", "--task", "ad", "a=1", "--every", "5m"], 2, "no task is named 'ad'"),
        (["add", "x", "--task", "add", "a=one", "--every", "5m"], 2, "add.a: expected int, got str"),
        (["add", "x", "--task", "add", "--every", "5m"], 2, "missing"),
        (["add", "x", "--task", "add", "a=1", "--every", "5m", "--overlap", "maybe"], 2, "--overlap"),
        (["add", "x", "--task", "add", "a=1", "--every", "5m", "--jitter", "10m"], 2, "x: jitter: expected less"),
        (["add", "x", "--task", "add", "a=1", "--every", "5m", "--pause-after", "0"], 2, "x: pause_after: expected"),
        (["add", "x", "--task", "add", "a=1", "--every", "5m", "--start", "morning"], 2, "--start: expected a time"),
        (["add", "x", "--task", "add", "a=1", "--every", "5m", "--app", "nowhere"], 2, "no module 'nowhere'"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_an_exit_code(
    run: Run, timetable: Timetable, argv: list[str], code: int, words: str
) -> None:
    made(timetable)

    ended, out, err = run(*argv)

    assert words in err
    assert ended == code
    assert out == ""
    assert len(err.splitlines()) == 1
    assert len(timetable.all()) == 1


def test_a_preview_of_an_expression_needs_no_store(run: Run, folder: Path) -> None:
    assert run("preview", "--every", "1h30m")[0] == 0
    assert run("list")[0] == 1
    assert not (folder / "tenure.db").exists()


# ── list ──


def test_the_health_page_says_how_each_one_is(run: Run, store: Store, timetable: Timetable) -> None:
    hour = far_hour()
    made(timetable, "late")
    made(timetable, "paused", tz="Europe/Paris")
    made(timetable, "report", rule=f"0 {hour} * * *")
    made(timetable, "retired")
    timetable.pause("paused", "until Monday")
    put(store, timetable.get("late").schedule, next_tick=store.now() - 2 * HOUR)
    put(store, timetable.get("retired").schedule, retired_at=store.now() - HOUR)
    ran(store, timetable, Completed("1"))
    ran(store, timetable, Failed("ValueError: no\n\n  File x", final=True))

    code, out, _ = run("list")

    heads, *found = rows(out)
    said = {row[0]: dict(zip(heads, row, strict=True)) for row in found}
    assert code == 0
    assert list(said) == ["late", "paused", "report"]
    assert said["late"]["next"] == "due"
    assert said["late"]["note"].startswith("OVERDUE by 2h")
    assert said["paused"]["schedule"] == "0 6 * * * Europe/Paris"
    assert "paused" in said["paused"]["note"]
    assert "until Monday" in said["paused"]["note"]
    assert said["report"]["status"] == "failure"
    assert said["report"]["fails"] == "1"
    assert said["report"]["runs"] == "✓✗"
    assert said["report"]["next"].startswith("in ")
    assert f" {hour:02}:00 UTC" in said["report"]["note"]
    assert said["report"]["note"].endswith("ValueError: no")
    assert "retired" in run("list", "--all")[1]
    assert "\x1b" not in out


def test_a_run_that_goes_on_is_locked_until_its_owners_lease_ends(run: Run, store: Store, timetable: Timetable) -> None:
    made(timetable)
    timetable.trigger("report")
    assert "its job is queued" in run("list")[1]
    begin(store)

    (found,) = json.loads(run("list", "--json")[1])

    assert found["last_status"] == "started"
    assert datetime.fromisoformat(found["locked_until"]) > store.now()
    assert "locked until" in run("list")[1]


def test_json_has_the_columns_of_the_view_and_then_some(run: Run, store: Store, timetable: Timetable) -> None:
    made(timetable)
    ran(store, timetable, Failed("no", final=True))

    (found,) = json.loads(run("list", "--json")[1])

    assert list(found)[:8] == list(Record._fields)
    assert found["schedule"] == "0 6 * * *"
    assert found["last_status"] == "failure"
    assert found["failure_count"] == 1
    assert found["runs"] == ["failure"]
    assert found["overdue_by"] is None


def test_an_empty_page_says_what_to_do(run: Run, store: Store) -> None:
    code, _, err = run("list")

    assert code == 0
    assert "@jobs.schedule" in err


@pytest.mark.parametrize("width", [70, 80, 200])
def test_the_page_fits_its_terminal(store: Store, timetable: Timetable, width: int) -> None:
    made(timetable, "a-schedule-with-quite-a-long-name", tz="America/Argentina/ComodRivadavia", rule="*/7 1-5 * * *")
    made(timetable)
    put(store, timetable.get("report").schedule, *(tick(store.now() - DAY * n, "success") for n in range(1, 12)))
    ran(store, timetable, Failed("the disk is full " * 20, final=True))

    code, seen = on_a_terminal(width, "schedules", "list")

    lines = plain(seen)
    assert code == 0
    assert max(map(len, lines)) <= width
    assert any("✓" * 9 + "✗" in line for line in lines)
    assert "\x1b[1;31m✗" in seen


# ── show ──


def test_show_tells_everything_but_secrets(run: Run, timetable: Timetable) -> None:
    job = _draft(task="add", queue="sums", payload='{"a":1,"token":{"$secret":"hunter2"}}')
    made(
        timetable,
        rule="*/7 2 * * *",
        tz="Europe/Paris",
        dst="run_once",
        job=job,
        overlap="queue",
        catch_up="all",
        expires=7200.0,
        jitter=30.0,
        pause_after=3,
        too_long=600.0,
        start=datetime(2026, 1, 1, tzinfo=UTC),
    )
    job_id = timetable.trigger("report")

    code, out, _ = run("show", "report")

    assert code == 0
    for words in (
        "*/7 2 * * * in Europe/Paris",
        "run_once: ",
        "one tick waits",
        "the newest 100, none older than 7d",
        "2h after its time",
        "up to 30s late",
        "3 failures in a row",
        "5m after its time",
        "longer than 10m",
        "sums, priority 0",
        '{"a":1,"token":"***"}',
        "an operator",
        "Thu 2026-01-01 01:00 CET",
        job_id,
        "note: minute */7 is not every 7 minutes",
    ):
        assert words in out
    assert "hunter2" not in out
    as_json = run("show", "report", "--json")[1]
    assert "hunter2" not in as_json
    found = json.loads(as_json)
    assert found["record"]["name"] == found["schedule"]["name"] == "report"
    assert found["schedule"]["job"]["payload"] == {"a": 1, "token": "***"}
    assert [each["job"]["id"] for each in found["runs"]] == [job_id]
    assert found["lint"]


def test_a_schedule_nobody_understands_is_shown_all_the_same(run: Run, store: Store, timetable: Timetable) -> None:
    made(timetable)
    put(store, timetable.get("report").schedule, tz="Mars/Olympus")

    assert "0 6 * * * Mars/Olympus" in run("list")[1]
    assert "can't be understood here: tz: expected" in run("show", "report")[1]
    assert run("lint")[0] == 1
    assert run("preview", "report")[0] == 2


def test_a_guard_is_shown_and_run_where_it_is_called(run: Run, store: Store, timetable: Timetable) -> None:
    made(timetable, kind="guard", job=None)
    put(store, timetable.get("report").schedule, next_tick=store.now() - HOUR)

    assert "a guard, which runs where it is called" in run("show", "report")[1]
    assert rows(run("overdue")[1])[1][3] == "no call came"
    for refused in (run("trigger", "report"), run("backfill", "report", "--from", "2026-01-01", "--yes")):
        assert refused[0] == 1
        assert "report is a guard" in refused[2]
    assert "the guard's next call adds it again" in run("remove", "report")[2]
    assert run("add", "report", "a=1", "--task", "add", "--every", "5m", "--yes")[0] == 2


# ── preview ──


def test_days_when_clocks_change_are_marked(run: Run) -> None:
    argv = ("preview", "--cron", "30 2 * * *", "--tz", "Europe/Paris", "--after", "2026-03-28", "-n", "3")
    code, out, _ = run(*argv)

    heads, *found = rows(out)[:4]
    assert code == 0
    assert heads == ["local", "utc", "in", "note"]
    assert [row[:2] for row in found] == [
        ["Sat 2026-03-28 02:30 CET", "2026-03-28 01:30:00"],
        ["Sun 2026-03-29 03:00 CEST", "2026-03-29 01:00:00"],
        ["Mon 2026-03-30 02:30 CEST", "2026-03-30 00:30:00"],
    ]
    assert [bool(row[3]) for row in found] == [False, True, False]
    assert "02:30 does not exist, it runs at 03:00" in found[1][3]
    assert "note: 2026-03-29: clocks go forward" in out
    assert max(map(len, plain(on_a_terminal(80, "schedules", *argv)[1])[:6])) <= 80
    as_json = json.loads(run(*argv, "--json")[1])
    assert as_json["ticks"][1]["tick"] == "2026-03-29T01:00:00Z"
    assert as_json["ticks"][1]["local"] == "2026-03-29T03:00:00+02:00"
    assert as_json["lint"]


def test_a_time_without_a_zone_is_what_the_clocks_of_the_schedule_show(run: Run) -> None:
    def first(after: str) -> str:
        argv = ("preview", "--cron", "0 * * * *", "--tz", "Asia/Tokyo", "-n", "1", "--json", "--after", after)
        return str(json.loads(run(*argv)[1])["ticks"][0]["tick"])

    assert first("2026-05-01T12:00") == "2026-05-01T04:00:00Z"
    assert first("2026-05-01T12:00Z") == "2026-05-01T13:00:00Z"
    assert first("2026-05-01") == "2026-04-30T16:00:00Z"


def test_a_stored_schedule_is_previewed_within_its_bounds(run: Run, timetable: Timetable) -> None:
    opens = datetime(2090, 1, 1, tzinfo=UTC)
    made(timetable, start=opens, end=opens + 2 * DAY, jitter=60.0)
    timetable.pause("report")

    _, out, _ = run("preview", "report")

    assert [row[1] for row in rows(out)[1:3]] == ["2090-01-01 06:00:00", "2090-01-02 06:00:00"]
    assert len(json.loads(run("preview", "report", "--json")[1])["ticks"]) == 2
    assert "it is paused" in out
    assert "up to 1m late" in out


# ── history ──


def test_the_history_of_all_tells_what_happened_last_night(run: Run, store: Store, timetable: Timetable) -> None:
    now = store.now().replace(microsecond=0)
    first, second = made(timetable, "backup"), made(timetable, "report")
    put(store, first, tick(now - timedelta(hours=3), "failure", schedule="backup", why="no disk\nline 2"))
    put(
        store,
        second,
        tick(now - timedelta(hours=30), "success"),
        tick(now - timedelta(hours=2), "success"),
        tick(
            now - timedelta(hours=40),
            "missed",
            until=now - timedelta(hours=23),
            count=17,
            why="no supervisor",
            decided_at=now - timedelta(hours=22),
        ),
    )

    _, out, _ = run("history", "--since", "12h")
    told = [(row[0], row[6], row[7]) for row in rows(out)]
    assert told == [("schedule", "status", "why"), ("report", "success", ""), ("backup", "failure", "no disk")]

    code, out, _ = run("history", "--json")
    assert (code, [(each["schedule"], each["status"]) for each in json.loads(out)]) == (
        0,
        [
            ("report", "success"),
            ("backup", "failure"),
            ("report", "missed"),
        ],  # the last of these was found missed 22 hours ago
    )
    assert len(rows(run("history", "--since", f"{now - timedelta(hours=31):%Y-%m-%dT%H:%M}", "-n", "2")[1])) == 3
    assert run("history", "--since", "1h")[2].startswith("no schedule has had a tick since ")
    assert run("history", "--before", "2026-01-01")[0] == run("history", "report", "--since", "1h")[0] == 2
    code, _, err = run("history", "--since", "soon")
    assert code == 2
    assert err.startswith("--since: expected 12h, yesterday, today, 6:00 or a time like 2030-01-31T06:00, got 'soon'; ")


def test_the_history_of_all_has_what_was_decided_since_then_of_an_earlier_tick(
    run: Run, store: Store, timetable: Timetable
) -> None:
    now = store.now().replace(microsecond=0)
    late, old = now - timedelta(hours=29), now - timedelta(hours=28)
    put(
        store,
        made(timetable, "backup"),
        tick(late, "missed", schedule="backup", decided_at=now - timedelta(minutes=5)),
        tick(old, "success", schedule="backup", decided_at=old),
    )

    assert [row[6] for row in rows(run("history", "--since", "1h")[1])[1:]] == ["missed"]
    assert run("history", "--since", "2m")[2].startswith("no schedule has had a tick since ")


def test_the_history_of_all_knows_days_and_times_of_a_day() -> None:
    now = datetime(2026, 11, 23, 3, 30, tzinfo=UTC)

    for text, at in [
        ("12h", now - timedelta(hours=12)),
        ("today", datetime(2026, 11, 23, tzinfo=UTC)),
        ("yesterday", datetime(2026, 11, 22, tzinfo=UTC)),
        ("0:00", datetime(2026, 11, 23, tzinfo=UTC)),
        ("03:30", now),
        ("22:15", datetime(2026, 11, 22, 22, 15, tzinfo=UTC)),
        ("2026-11-20", datetime(2026, 11, 20, tzinfo=UTC)),
    ]:
        assert moment(text, "--since", now) == at, text


def test_an_error_of_two_thousand_characters_is_a_short_line_also_in_a_pipe(
    run: Run, store: Store, timetable: Timetable
) -> None:
    made(timetable, job=_draft(max_failures=1))
    ran(store, timetable, Failed("x" * 2000, final=True))

    for command in (["list"], ["history", "report"]):
        code, out, _ = run(*command)
        assert code == 0
        assert "x" * 100 in out
        assert max(map(len, out.splitlines())) < 500
    assert "x" * 2000 in run("show", "report")[1]


def test_the_history_of_all_goes_on_where_it_ended(run: Run, store: Store, timetable: Timetable) -> None:
    now, schedule = store.now(), made(timetable)
    put(store, schedule, *(tick(now - n * HOUR, "missed", decided_at=now - HOUR) for n in range(1, 6)))

    _, first, err = run("history", "--since", "12h", "-n", "3")
    _, rest, none = run("history", "--since", "12h", "-n", "3", "--cursor", err.split("'")[1])

    assert (len(rows(first)), len(rows(rest)), none) == (4, 3, "")
    assert not {row[1] for row in rows(first)[1:]} & {row[1] for row in rows(rest)[1:]}
    assert "cursor: expected one" in run("history", "--cursor", "x")[2]
    assert re.match(r"no schedule has had a tick since \S+ until \S+$", run("history", "--until", "2h")[2])
    code, _, said = run("history", "--since", "1h", "--until", "2h")
    assert (code, said) == (2, "--until: expected a time after --since, got '1h' and '2h'\n")
    helped = " ".join(run("history", "--help")[1].replace("│", " ").split())
    assert "decided until then: 4h, or a time as above" in helped


def test_history_tells_what_became_of_each_tick_newest_first(run: Run, store: Store, timetable: Timetable) -> None:
    schedule, noon = made(timetable), datetime(2026, 5, 20, 12, tzinfo=UTC)
    put(
        store,
        schedule,
        tick(noon, "success", job_id="job-1"),
        tick(noon + HOUR, "failure", why="ValueError: no\n\n  File x", job_id="job-2", cause="backfill"),
        tick(noon + 2 * HOUR, "skipped", why="overlap: the previous run has not ended"),
        tick(noon + 3 * HOUR, "missed", why="no supervisor fired it", until=noon + 1200 * HOUR, count=1198),
        tick(noon + 1300 * HOUR, "cancelled", why="its job was deleted", job_id="job-3"),
    )
    waiting = timetable.trigger("report")

    code, out, _ = run("history", "report")

    strip, legend, _, heads, *found = rows(out)
    assert code == 0
    assert strip == ["✓✗-_/>"]
    assert all(f"{mark} {status}" in legend[0] for status, mark in MARKS.items())
    assert heads == ["tick", "by", "started", "late", "took", "status", "why", "job"]
    assert found[0][1] == "trigger"
    assert found[0][5:] == ["open", "queued", waiting]
    assert found[1][5:] == ["cancelled", "its job was deleted", "job-3"]
    missed = "1,198 ticks up to Thu 2026-07-09 12:00 UTC: no supervisor fired it"
    assert found[2] == ["Wed 2026-05-20 15:00 UTC", "tick", "", "", "", "missed", missed, ""]
    assert found[3][5:] == ["skipped", "overlap: the previous run has not ended", ""]
    assert found[4][1:] == ["backfill", "13:00:03", "", "42s", "failure", "ValueError: no", "job-2"]
    assert found[5] == ["Wed 2026-05-20 12:00 UTC", "tick", "12:00:03", "3s", "42s", "success", "", "job-1"]
    as_json = json.loads(run("history", "report", "--json")[1])
    assert [each["status"] for each in as_json] == ["open", "cancelled", "missed", "skipped", "failure", "success"]
    assert (as_json[5]["late_by"], as_json[5]["duration_ms"], as_json[2]["count"]) == (3.0, 42000, 1198)


def test_history_goes_on_before_a_time(run: Run, store: Store, timetable: Timetable) -> None:
    noon = datetime(2026, 5, 20, 12, tzinfo=UTC)
    put(store, made(timetable), *(tick(noon + n * HOUR, "success") for n in range(60)))

    _, out, more = run("history", "report", "-n", "50")
    _, rest, none = run("history", "report", "-n", "50", "--before", more.split()[-1])

    assert rows(out)[0] == rows(rest)[0] == ["✓" * 50]
    assert len(rows(out)[4:]) == 50
    assert [row[0] for row in rows(rest)[4:]][-1] == "Wed 2026-05-20 12:00 UTC"
    assert len(rows(rest)[4:]) == 10
    assert none == ""
    assert "no ticks before that" in run("history", "report", "--before", "2020-01-01")[2]


def test_the_strip_reads_without_colours_and_fits_a_terminal(store: Store, timetable: Timetable) -> None:
    noon, schedule = datetime(2026, 5, 20, 12, tzinfo=UTC), made(timetable)
    ended = (status for status in MARKS if status != "open")
    put(store, schedule, *(tick(noon + n * HOUR, status, why="x " * 200) for n, status in enumerate(ended)))
    timetable.trigger("report")

    _, seen = on_a_terminal(80, "schedules", "history", "report")

    lines = plain(seen)
    assert lines[0] == "".join(MARKS.values())
    assert len(set(MARKS.values())) == len(MARKS)
    assert max(map(len, lines)) <= 80
    assert "\x1b[32m✓" in seen


# ── overdue, lint ──


def test_overdue_ends_with_1_and_names_them(run: Run, store: Store, timetable: Timetable) -> None:
    schedule = made(timetable)
    assert run("overdue") == (0, "nothing is overdue\n", "")

    put(store, schedule, next_tick=store.now() - 2 * HOUR)
    code, out, _ = run("overdue")

    assert code == 1
    name, _, late, why = rows(out)[1]
    assert (name, late, why) == ("report", "2h", "no supervisor fired it")
    (found,) = json.loads(run("overdue", "--json")[1])
    assert found["name"] == "report"
    assert found["overdue_by"] == pytest.approx(7200, abs=60)
    assert run("overdue", "--grace", "3h")[0] == 0
    assert run("overdue", "--grace", "1h59m")[0] == 1


def test_lint_ends_with_1_when_a_rule_surprises(run: Run, timetable: Timetable) -> None:
    made(timetable)
    assert run("lint") == (0, "no surprises in 1 schedule\n", "")

    made(timetable, "sevens", rule="*/7 * * * *")

    code, out, _ = run("lint")
    assert code == 1
    assert out.startswith("sevens: minute */7 is not every 7 minutes")
    assert run("lint", "report")[0] == 0
    assert set(json.loads(run("lint", "--json")[1])) == {"report", "sevens"}


# ── trigger, backfill ──


def test_trigger_prints_the_job_and_refuses_to_overlap(run: Run, store: Store, timetable: Timetable) -> None:
    made(timetable)

    code, out, _ = run("trigger", "report")
    assert code == 0
    job = store.get(out.strip())
    assert job is not None
    assert job.state is State.QUEUED

    refused, _, err = run("trigger", "report")
    assert refused == 1
    assert job.id in err
    assert json.loads(run("trigger", "report", "--force", "--json")[1])["job"] != job.id


@pytest.mark.parametrize(
    ("outcome", "code", "out", "err"),
    [
        (Completed('{"$secret":"hunter2"}'), 0, '"***"\n', ""),
        (Completed('{"password":"hunter2","n":2}'), 0, '{"password":"***","n":2}\n', ""),
        (Failed("ValueError: no", final=True), 1, "", "ValueError: no"),
    ],
)
def test_waiting_prints_the_result_or_why_there_is_none(
    run: Run, store: Store, timetable: Timetable, outcome: Outcome, code: int, out: str, err: str
) -> None:
    made(timetable)
    with subprocess.Popen(
        [sys.executable, "-c", "from tenure.cli.main import run; run()", "schedules", "trigger", "report", "--wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        text=True,
    ) as waiting:
        while not store.counts()[State.QUEUED]:
            assert waiting.poll() is None
        finish(store, begin(store), outcome)
        told, complained = waiting.communicate()

    assert (waiting.returncode, told) == (code, out)
    assert err in complained


def test_waiting_too_long_says_so(run: Run, timetable: Timetable) -> None:
    made(timetable)

    code, out, err = run("trigger", "report", "--wait", "--timeout", "10ms")

    assert (code, out) == (1, "")
    assert "10ms" in err


@pytest.mark.parametrize(
    ("until", "told"),
    [("2026-01-07", "1 job stored; 6 ticks follow it"), ("2026-01-02", "1 job stored; 1 tick follows it")],
)
def test_backfill_says_how_many_ticks_follow_a_job_that_has_their_unique_key(
    until: str, told: str, run: Run, store: Store, timetable: Timetable
) -> None:
    made(timetable, job=draft(id="", unique="one"))

    assert run("backfill", "report", "--from", "2026-01-01", "--to", f"{until}T23:59", "--yes") == (0, f"{told}\n", "")
    assert store.counts()[State.QUEUED] == 1


def test_backfill_counts_and_asks_before_it_stores(run: Run, store: Store, timetable: Timetable) -> None:
    made(timetable, tz="Europe/Paris")
    span = ("--from", "2026-01-01", "--to", "2026-01-07T23:59")

    code, _, err = run("backfill", "report", *span)
    assert code == 2
    assert "run 7 ticks, the first Thu 2026-01-01 06:00 CET, the last Wed 2026-01-07 06:00 CET?" in err
    assert store.counts()[State.QUEUED] == 0

    assert run("backfill", "report", *span, "--yes") == (0, "7 jobs stored\n", "")
    assert store.counts()[State.QUEUED] == 7
    assert "every tick in that time already has a run" in run("backfill", "report", *span, "--yes")[1]
    assert "every tick in that time already has a run" in run("backfill", "report", *span, "--again", "--yes")[1], (
        "these have not ended"
    )
    store.cancel([job.id for job in store.search(Filter()).jobs], "not needed")
    assert len(json.loads(run("backfill", "report", *span, "--again", "--yes", "--json")[1])["ticks"]) == 7


def test_backfill_refuses_what_nobody_can_have_meant(run: Run, store: Store, timetable: Timetable) -> None:
    made(timetable, rule="* * * * *")

    code, _, err = run("backfill", "report", "--from", "2026-01-01", "--yes")

    assert code == 1
    assert f"more than {MOST_BACKFILLED:,} ticks" in err
    assert store.counts()[State.QUEUED] == 0


# ── pause, resume, remove ──


def test_schedules_are_paused_and_resumed(run: Run, timetable: Timetable) -> None:
    hour = far_hour()
    made(timetable, rule=f"0 {hour} * * *")

    assert run("pause", "report", "--why", "until Monday") == (0, "schedule report is paused\n", "")
    assert run("pause", "report")[1] == "schedule report was already paused: until Monday\n"
    assert timetable.get("report").schedule.paused_why == "until Monday"
    code, out, _ = run("resume", "report")
    assert code == 0
    assert re.fullmatch(rf"schedule report is active, next .* {hour:02}:00 UTC, in \d+h\n", out)
    assert "was not paused" in run("resume", "report")[1]
    assert json.loads(run("pause", "report", "--json")[1]) == {
        "schedule": "report",
        "state": "paused",
        "changed": True,
    }


def test_remove_asks_and_deletes_it_with_its_history(run: Run, store: Store, timetable: Timetable) -> None:
    made(timetable)
    job_id = ran(store, timetable, Completed("1"))

    assert run("remove", "report")[0] == 2
    assert len(timetable.all()) == 1

    assert run("remove", "report", "--yes") == (0, "schedule report is removed\n", "")
    assert timetable.all() == []
    assert store.ticks("report") == []
    assert store.get(job_id) is not None


def test_a_renamed_schedule_keeps_its_history_and_its_ticks(run: Run, store: Store, timetable: Timetable) -> None:
    before = made(timetable)
    job_id = ran(store, timetable, Completed("1"))

    assert run("rename", "report", "digest") == (0, "schedule report is now digest\n", "")

    (after,) = [each.schedule for each in timetable.all()]
    assert (after.name, after.rule, after.next_tick) == ("digest", before.rule, before.next_tick)
    assert [each.job_id for each in timetable.history("digest")] == [job_id]
    assert {each.schedule for each in timetable.history("digest")} == {"digest"}
    assert "report until" in run("show", "digest")[1]
    assert [row[0] for row in rows(run("history", "--since", "1h")[1])[1:]] == ["digest"]
    assert "no schedule 'report'" in run("show", "report")[2]
    made(timetable)
    assert not timetable.history("report"), "another schedule that takes the name does not show them"
    assert [row[0] for row in rows(run("history", "--since", "1h")[1])[1:]] == ["digest"]
    timetable.rename("digest", "letter")
    assert [each.job_id for each in timetable.history("letter")] == [job_id], "also if renamed twice"


def test_a_rename_is_refused_in_words(run: Run, store: Store, timetable: Timetable) -> None:
    made(timetable)
    made(timetable, "taken")
    run("declare")

    assert "'taken' exists already" in run("rename", "report", "taken")[2]
    assert "no schedule 'nobody'" in run("rename", "nobody", "new")[2]
    assert "name: expected letters" in run("rename", "report", "a name")[2]
    said = run("rename", "nightly", "new")[2]
    assert "declared by app shop" in said
    assert "declare it as new" in said
    timetable.trigger("report")
    assert "a run of it is in progress" in run("rename", "report", "new")[2]
    assert [each.schedule.name for each in timetable.all()] == ["nightly", "report", "taken"]


def test_what_an_app_declares_is_removed_only_once_it_is_retired(run: Run, store: Store, timetable: Timetable) -> None:
    assert run("declare") == (0, "made: nightly\n", "")

    code, _, err = run("remove", "nightly", "--yes")
    assert code == 2
    assert "declared by app shop" in err

    timetable.declare("shop", "next", [])
    assert run("remove", "nightly", "--yes")[0] == 0


# ── add, declare ──


def test_an_operator_makes_a_schedule(run: Run, timetable: Timetable) -> None:
    argv = ("--task", "add", "--cron", "0 6 * * mon", "--tz", "Europe/Paris", "--queue", "slow", "--priority", "7")
    more = ("--overlap", "queue", "--catch-up", "all", "--catch-up-window", "2d", "--catch-up-max", "5", "--expires")
    code, out, _ = run(
        *("add", "mondays", "a=2", 'token:={"$secret":"hunter2"}', *argv, *more, "2h", "--jitter", "1m"),
        *("--start", "2026-01-01", "--end", "2090-01-01T00:00Z", "--pause-after", "3", "--grace", "10m"),
        *("--too-long", "1h", "--alert-after", "4"),
    )

    s = timetable.get("mondays").schedule
    assert code == 0
    assert out.startswith("schedule mondays is added: next Mon ")
    assert "hunter2" not in out
    assert (s.rule, s.tz, s.dst, s.source, s.kind) == ("0 6 * * MON", "Europe/Paris", "debian", "", "task")
    assert (s.overlap, s.catch_up, s.catch_up_window, s.catch_up_max) == ("queue", "all", 172_800.0, 5)
    assert (s.expires, s.jitter, s.grace, s.too_long) == (7200.0, 60.0, 600.0, 3600.0)
    assert (s.pause_after, s.alert_after) == (3, 4)
    assert (s.start, s.end) == (datetime(2025, 12, 31, 23, tzinfo=UTC), datetime(2090, 1, 1, tzinfo=UTC))
    assert s.job is not None
    assert (s.job.task, s.job.queue, s.job.priority, s.job.id) == ("add", "slow", 7, "")
    assert json.loads(s.job.payload) == {"a": 2, "b": 1, "token": {"$secret": "hunter2"}}


def test_what_is_made_by_hand_runs(run: Run, store: Store, timetable: Timetable) -> None:
    run("add", "often", "a=2", "--task", "add", "--every", "10m")
    put(store, timetable.get("often").schedule, next_tick=Every(600).upto(store.now()), due_at=store.now())

    timetable.fire_due()

    assert store.counts()[State.QUEUED] == 1


def test_a_rule_that_surprises_is_taken_and_told(run: Run, timetable: Timetable) -> None:
    code, _, err = run("add", "sevens", "a=1", "--task", "add", "--cron", "*/7 * * * *")

    assert code == 0
    assert err.startswith("note: minute */7 is not every 7 minutes")
    assert timetable.get("sevens")


def test_changing_one_asks_and_what_an_app_declares_is_left_alone(run: Run, timetable: Timetable) -> None:
    run("declare")
    run("add", "often", "a=2", "--task", "add", "--every", "10m")

    code, _, err = run("add", "often", "a=2", "--task", "add", "--every", "20m")
    assert code == 2
    assert "there is a schedule often (every 10m, task add). Change it?" in err
    assert json.loads(run("add", "often", "a=2", "--task", "add", "--every", "20m", "--yes", "--json")[1]) | {
        "next_expected_at": None
    } == {
        **Record("often", "every 20m", None, None, None, None, None, 0)._asdict(),
        "created": False,
        "lint": [],
    }
    code, _, err = run("add", "nightly", "a=2", "--task", "add", "--every", "10m", "--yes")
    assert code == 2
    assert "nightly is declared by app shop" in err


def test_declare_says_what_has_changed(run: Run, timetable: Timetable, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("declare", "shop") == (0, "made: nightly\n", "")
    assert run("declare")[1] == "all schedules are as declared\n"
    assert "app shop, release " in run("show", "nightly")[1]

    timetable.declare("shop", "newer", [])
    code, out, _ = run("declare")
    assert code == 1
    assert "a newer release is in place, newer" in out
    assert timetable.get("nightly").schedule.retired_at is not None
    assert json.loads(run("declare", "--force", "--json")[1]) == {
        "made": [],
        "changed": ["nightly"],
        "retired": [],
        "older": "",
        "kept": [],
    }

    timetable.declare("mail", "1", [timetable.get("nightly").schedule])
    timetable.declare("mail", "2", [timetable.get("nightly").schedule])
    kept = "not changed, as a newer release of another app has them: nightly; --force takes them\n"
    assert run("declare")[:2] == (1, kept)
