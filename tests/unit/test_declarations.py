"""`@jobs.schedule`: what may be declared, how it reaches the store, and that it fires there."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tenure import Job, Retry, Task, Tenure, config
from tenure.errors import InvalidOption
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Store
from tenure.ports.schedules import Change, Schedule
from tenure.schedules.timetable import Declared, Timetable, encode_schedules
from tenure.stores.memory import MemoryStore
from tenure.tasks.client import Client
from waiting import until

PATIENT = 60.0
NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def jobs() -> Tenure:
    return Tenure("memory:")


@pytest.fixture
def nightly(jobs: Tenure) -> Task[[], None]:
    @jobs.task
    def nightly() -> None: ...

    return nightly


@pytest.fixture
def sync(jobs: Tenure) -> Task[[str], None]:
    @jobs.task
    def sync(region: str) -> None: ...

    return sync


def only(jobs: Tenure) -> Schedule:
    (schedule,) = jobs.schedules
    return schedule


# ── what is declared ──


def test_a_task_that_needs_nothing_is_scheduled_under_its_name(jobs: Tenure) -> None:
    @jobs.schedule("0 6 * * *", tz="Europe/Paris", expires="2h", jitter="5m", overlap="queue", pause_after=3)
    @jobs.task
    def daily_report(job: Job, copies: int = 2) -> None: ...

    assert isinstance(daily_report, Task)
    found = only(jobs)
    assert (found.name, found.rule, found.tz, found.source) == ("daily_report", "0 6 * * *", "Europe/Paris", "")
    assert (found.expires, found.jitter, found.overlap, found.pause_after) == (7200.0, 300.0, "queue", 3)
    assert found.job is not None
    assert (found.job.task, json.loads(found.job.payload)) == ("daily_report", {"copies": 2})


def test_a_bound_job_is_scheduled_with_its_arguments(jobs: Tenure, sync: Task[[str], None]) -> None:
    for region in ("eu", "us"):
        jobs.schedule(every="10m", name=f"sync-{region}")(sync.bind(region))

    assert [(each.name, each.rule, each.job and each.job.payload) for each in jobs.schedules] == [
        ("sync-eu", "every 10m", '{"region":"eu"}'),
        ("sync-us", "every 10m", '{"region":"us"}'),
    ]


def test_options_that_are_none_are_left_at_their_defaults(jobs: Tenure, nightly: Task[[], None]) -> None:
    names = ("overlap", "catch_up", "catch_up_window", "catch_up_max", "expires", "jitter", "start", "end", "grace")
    unset: dict[str, Any] = dict.fromkeys(names)
    jobs.schedule("@daily", name="plain")(nightly)
    jobs.schedule("@daily", name="unset", **unset)(nightly)

    plain, found = jobs.schedules
    assert (found.overlap, found.catch_up, found.expires) == (plain.overlap, plain.catch_up, plain.expires)
    assert (found.grace, found.catch_up_window, found.catch_up_max) == (300.0, 7 * 86_400.0, 100)


def test_the_options_of_the_task_travel_into_the_job(jobs: Tenure) -> None:
    @jobs.task(
        queue="slow",
        priority=7,
        retry=Retry(4, base="2s", cap="9s"),
        timeout="5m",
        stale_after="1m",
        unique="sync:{region}",
        max_crashes=1,
        isolation="process",
    )
    def sync(job: Job, region: str = "eu") -> None: ...

    jobs.schedule("@hourly")(sync.using(meta={"tenant": "a"}, priority=8))

    draft = only(jobs).job
    assert draft is not None
    assert (draft.queue, draft.priority, draft.timeout, draft.stale_after) == ("slow", 8, 300.0, 60.0)
    assert (draft.max_failures, draft.retry_base, draft.retry_cap, draft.max_crashes) == (4, 2.0, 9.0, 1)
    assert (draft.unique, draft.isolated, json.loads(draft.meta)) == ("sync:eu", True, {"tenant": "a"})


def test_a_type_that_is_defined_further_down_is_looked_up_when_it_is_asked_for(jobs: Tenure) -> None:
    code = """
from __future__ import annotations
{schedule}
@jobs.task
def later(size: Size{default}) -> None: ...
Size = int
"""
    schedule = '@jobs.schedule("@daily")'
    exec(compile(code.format(schedule=schedule, default=" = 3"), "fine.py", "exec"), {"jobs": jobs})
    assert only(jobs).job is not None

    wrong = Tenure("memory:")
    exec(compile(code.format(schedule=schedule, default=""), "wrong.py", "exec"), {"jobs": wrong})
    with pytest.raises(InvalidOption, match=r"^schedule later \(wrong\.py:3\): .*size"):
        _ = wrong.schedules


def test_the_same_line_imported_again_takes_its_own_place(jobs: Tenure) -> None:
    line = '@jobs.schedule("0 6 * * *")\n@jobs.task\ndef nightly() -> None: ...\n'
    for _ in range(2):
        exec(compile(line, "tasks.py", "exec"), {"jobs": jobs})

    assert only(jobs).name == "nightly"


def test_a_declaration_says_the_same_in_every_process(tmp_path: Path) -> None:
    """Without TENURE_RELEASE, the content of the declarations serves as the release."""
    (tmp_path / "shop.py").write_text(SHOP)
    told = f"{ENCODED}; print(encode_schedules(load_app('shop').schedules).decode())"

    found = {
        subprocess.run(
            [sys.executable, "-c", told],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }

    (text,) = found
    assert '"shop"' not in text
    assert [each["name"] for each in json.loads(text)] == ["nightly", "sync-eu"]


SHOP = """
from tenure import Tenure
jobs = Tenure("sqlite:///shop.db", notifier="poll")

@jobs.schedule("0 6 * * *", tz="Europe/Paris")
@jobs.task
def nightly() -> None: ...

@jobs.task
def sync(region: str, what: dict[str, int]) -> None: ...

jobs.schedule(every="10m", name="sync-eu")(sync.using(meta={"b": "1", "a": "2"}).bind("eu", {"z": 1, "a": 2}))
"""
ENCODED = "from tenure.app.processes import load_app; from tenure.schedules.timetable import encode_schedules"


# ── what is refused ──


def test_below_the_task_decorator_it_is_refused(jobs: Tenure) -> None:
    with pytest.raises(InvalidOption, match=r"expected a task, got nightly; write @jobs\.schedule above @jobs\.task"):

        @jobs.task
        @jobs.schedule("@daily")
        def nightly() -> None: ...


def test_a_task_that_needs_arguments_is_told_to_bind_them(jobs: Tenure, sync: Task[[str], None]) -> None:
    told = r"schedule sync-eu: sync takes region; write jobs\.schedule\(…\)\(sync\.bind\(region=…\)\)"
    with pytest.raises(InvalidOption, match=told):
        jobs.schedule("@daily", name="sync-eu")(sync)


def test_two_of_one_name_are_refused_with_both_places(jobs: Tenure, nightly: Task[[], None]) -> None:
    jobs.schedule("@daily")(nightly)

    told = r"two schedules are named 'nightly': .*declarations\.py:\d+ and .*declarations\.py:\d+; give one of them"
    with pytest.raises(InvalidOption, match=told):
        jobs.schedule("@hourly")(nightly)


def test_a_loop_that_gives_one_name_to_several_is_refused(jobs: Tenure, sync: Task[[str], None]) -> None:
    with pytest.raises(InvalidOption, match="two schedules are named 'sync'"):
        for region in ("eu", "us"):
            jobs.schedule("@daily")(sync.bind(region))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cron": "0 25 * * *"}, "25"),
    ({"cron": "@daily", "every": "1h"}, "expected either a cron expression or every="),
    ({}, "expected either a cron expression or every="),
    ({"cron": "@daily", "tz": "Europe/Pris"}, "Europe/Pris"),
    ({"cron": "@daily", "dst": "vixie"}, 'dst: expected "debian" or "run_once", got \'vixie\''),
    ({"every": "1d", "tz": "Europe/Paris"}, "an interval has no time zone: leave out tz and dst, or write a cron"),
    ({"every": 60}, 'every: 60 has no unit; write "60s"'),
    ({"every": "10ms"}, "every: expected between 100ms and 50 years"),
    ({"cron": "@daily", "overlap": "wait"}, "overlap: expected one of skip, queue, replace, allow, got 'wait'"),
    ({"cron": "@daily", "catch_up": True}, "catch_up: expected one of skip, latest, all, got True"),
    *(
        ({"cron": "@daily", name: 3600}, f'{name}: 3600 has no unit; write "3600s"')
        for name in ("catch_up_window", "expires", "jitter", "grace", "too_long")
    ),
    *(
        ({"cron": "@daily", name: wrong}, f"{name}: expected a whole number from 1 to 10,000, got {wrong!r}")
        for name, wrong in (("catch_up_max", 0), ("pause_after", True), ("alert_after", 2.5), ("pause_after", 10_001))
    ),
    *(
        ({"cron": "@daily", name: wrong}, f"{name}: expected a datetime with a time zone, got ")
        for name, wrong in (("start", datetime(2030, 1, 1)), ("end", "2030-01-01"))
    ),
    ({"cron": "@daily", "start": NEW_YEAR, "end": NEW_YEAR}, "end: expected a time after start, 2030-01-01"),
    ({"every": "10m", "jitter": "10m"}, "jitter: expected less than the time between two ticks, 10m, got 10m"),
    ({"cron": "0 9,10 * * *", "jitter": "2h"}, "jitter: expected less than the time between two ticks, 1h, got 2h"),
    ({"cron": "@daily", "expires": "0s"}, "expires: expected more than its jitter, 0ms, got 0ms"),
    ({"cron": "@daily", "jitter": "1h", "expires": "30m"}, "expires: expected more than its jitter, 1h, got 30m"),
    ({"cron": "@daily", "cathc_up": "all"}, "there is no option 'cathc_up'; did you mean catch_up=?"),
    (
        {"cron": "@daily", "zz": NEW_YEAR},
        "there is no option 'zz'; the options are every, tz, name, dst, except_dates, overlap, catch_up",
    ),
]


@pytest.mark.parametrize(("options", "why"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_option_is_told_before_the_decorator_is_applied(
    jobs: Tenure, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        jobs.schedule(options.pop("cron", None), **options)

    assert why in str(caught.value)


def test_a_wrong_option_is_told_with_the_name_of_its_schedule_if_it_has_one(jobs: Tenure) -> None:
    with pytest.raises(InvalidOption, match=r"^daily: overlap: "):
        jobs.schedule("@daily", name="daily", overlap="wait")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"^jobs\.schedule: tz: "):
        jobs.schedule("@daily", tz="Europe/Pris")


@pytest.mark.parametrize("name", ["every day", "7up", "x" * 101, 7])
def test_a_name_that_can_not_be_is_refused(jobs: Tenure, nightly: Task[[], None], name: Any) -> None:
    with pytest.raises(InvalidOption, match="name: expected letters, digits and"):
        jobs.schedule("@daily", name=name)(nightly)


@pytest.mark.parametrize(
    "options",
    [{"delay": "5s"}, {"run_at": NEW_YEAR}, {"tx": object()}, {"expires": "1h"}, {"id": uuid4()}],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("bound", [False, True], ids=["task", "bound"])
def test_a_tick_says_when_its_job_is_due_and_which_it_is(
    jobs: Tenure, nightly: Task[[], None], options: dict[str, Any], bound: bool
) -> None:
    given = nightly.using(**options)
    jobs.schedule("@daily", name="daily")(given.bind() if bound else given)

    told = r"schedule daily \(.*declarations\.py:\d+\): the tick determines its job's id and due time: leave out"
    with pytest.raises(InvalidOption, match=told):
        _ = jobs.schedules


def test_the_job_of_a_tick_waits_for_no_other(jobs: Tenure, nightly: Task[[], None]) -> None:
    with jobs.testing():
        first = nightly.enqueue()
        jobs.schedule("@daily", name="daily")(nightly.using(after=[first]))
        with pytest.raises(InvalidOption, match=r"schedule daily \(.*\): the job of a tick waits for no other job"):
            _ = jobs.schedules


# ── into the store ──


class Site:
    """A store, and apps of one module that declare into it."""

    def __init__(self, folder: Path) -> None:
        self.store: Store = MemoryStore()
        self._folder = folder

    def app(self, *, release: str = "", module: str = "shop", **schedules: str) -> Tenure:
        space: dict[str, Any] = {"__name__": module, "Tenure": Tenure}
        exec('jobs = Tenure("memory:")', space)
        jobs: Tenure = space["jobs"]

        @jobs.task
        def work() -> None: ...

        for name, every in schedules.items():
            jobs.schedule(every=every, name=name)(work)
        environ = {"TENURE_RELEASE": release} if release else {}
        settings = config.load(environ=environ, folder=self._folder)
        jobs._settings = settings
        jobs._client.current = Client(self.store, PollNotifier(), settings)
        return jobs

    def rules(self) -> dict[str, str]:
        """The rules of the schedules that are fired, by name."""
        return {each.schedule.name: each.schedule.rule for each in self.store.schedules() if not each.schedule.idle}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_declared_twice_it_is_made_once_and_then_left_alone(site: Site) -> None:
    assert site.app(a="10m", b="1h").declare() == Declared(made=("a", "b"))
    revs = [each.schedule.rev for each in site.store.schedules()]

    assert site.app(a="10m", b="1h").declare() == Declared()
    assert [each.schedule.rev for each in site.store.schedules()] == revs
    assert {each.schedule.source for each in site.store.schedules()} == {"shop"}


def test_an_app_keeps_its_name_when_its_module_is_imported_anew_and_longer() -> None:
    def sources(text: str) -> list[str]:
        space: dict[str, Any] = {"__name__": "shop", "Tenure": Tenure}
        exec(text, space)
        return [made.program.source for made in space.values() if isinstance(made, Tenure)]

    assert sources('jobs = Tenure("memory:")') == ["shop"]
    assert sources('\n\njobs = Tenure("memory:")\nmore = Tenure("memory:")') == ["shop", "shop#2"]


def test_another_expression_moves_the_schedule(site: Site) -> None:
    site.app(a="10m").declare()
    assert site.app(a="2h").declare() == Declared(changed=("a",))

    (standing,) = site.store.schedules()
    assert standing.schedule.rule == "every 2h"
    assert standing.schedule.next_tick is not None
    assert standing.schedule.next_tick.timestamp() % 7200 == 0


def test_what_is_no_longer_declared_is_retired_and_comes_back_when_it_is(site: Site) -> None:
    site.app(a="10m", b="1h").declare()
    assert site.app(b="1h").declare() == Declared(retired=("a",))
    assert site.rules() == {"b": "every 1h"}
    assert {each.schedule.name for each in site.store.schedules()} == {"a", "b"}

    site.app(release="3", a="20m").declare()
    assert site.rules() == {"a": "every 20m"}


def test_an_app_without_schedules_retires_its_own_and_nobody_elses(site: Site) -> None:
    site.app(a="10m").declare()
    site.app(module="other", b="10m").declare()
    by_hand = site.app(c="10m").schedules[0]
    Timetable(site.store, PollNotifier()).put(by_hand)

    assert site.app().declare() == Declared(retired=("a",))
    assert set(site.rules()) == {"b", "c"}


def test_code_that_belongs_to_no_module_leaves_what_operators_made_alone(site: Site) -> None:
    Timetable(site.store, PollNotifier()).put(site.app(c="10m").schedules[0])

    site.app(module="").declare()
    assert set(site.rules()) == {"c"}


def test_an_older_release_changes_nothing_unless_it_is_told_to(site: Site) -> None:
    site.app(release="1", a="10m").declare()
    site.app(release="2", a="20m").declare()

    assert site.app(release="1", a="10m").declare() == Declared(older="2")
    assert site.rules() == {"a": "every 20m"}
    assert site.app(release="1", a="10m").declare(force=True) == Declared(changed=("a",))
    assert site.rules() == {"a": "every 10m"}
    assert site.app(release="2", a="20m").declare() == Declared(older="1")


def test_without_a_release_its_content_stands_for_it(site: Site) -> None:
    site.app(a="10m").declare()
    newer = encode_schedules(site.app(a="20m").schedules)
    site.app(a="20m").declare()

    assert site.app(a="10m").declare().older
    assert site.rules() == {"a": "every 20m"}
    assert encode_schedules(site.app(a="20m").schedules) == newer


def test_a_schedule_that_two_apps_declare_is_the_last_ones_and_a_warning_says_so(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.app(a="10m").declare()
    site.app(module="other", a="20m").declare()

    assert site.rules() == {"a": "every 20m"}
    assert "schedule a of app shop is now declared by app other" in caplog.text


@pytest.mark.parametrize("declared", [{"a": "10m"}, {}], ids=["changed", "retired"])
def test_a_stored_row_that_is_not_understood_is_replaced_by_what_is_declared(
    site: Site, declared: dict[str, str]
) -> None:
    site.app(a="10m").declare()
    (standing,) = site.store.schedules()
    assert site.store.change([Change(schedule=standing.schedule.but(rule="0 6 * * * * * sharp"))]) == [True]

    site.app(**declared, release="2").declare()
    assert site.rules() == ({"a": "every 10m"} if declared else {})


def test_in_a_test_nothing_is_declared_and_the_jobs_are_those_of_the_test(
    jobs: Tenure, nightly: Task[[], None]
) -> None:
    jobs.schedule(every="100ms")(nightly)
    with jobs.testing() as queue:
        queue.advance("1h")
        assert queue.drain() == 0
        assert queue.client.store.schedules() == []
        nightly.enqueue()
        assert queue.drain() == 1


# ── firing ──


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENURE_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path


class Runs:
    """What the handler of a scheduled task saw."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []
        self.twice = threading.Event()

    def add(self, meta: dict[str, str]) -> None:
        self.seen.append(meta)
        if len(self.seen) > 1:
            self.twice.set()


def scheduled(every: str | None, runs: Runs) -> Tenure:
    jobs = Tenure("sqlite:///tenure.db", notifier="poll")

    @jobs.task(queue="slow")
    def beat(job: Job, what: str) -> None:
        runs.add({**job.meta, "what": what})

    if every:
        jobs.schedule(every=every, name="heart", overlap="allow")(beat.using(meta={"tenant": "a"}).bind("beat"))
    return jobs


def lasting_no_time(number: int) -> int:
    return number


def test_a_worker_logs_what_has_completed_where_somebody_listens(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tenure.jobs")
    jobs = Tenure("sqlite:///tenure.db", notifier="poll")
    nothing = jobs.task(lasting_no_time, queue="slow")
    with jobs, jobs.worker():
        handle = nothing.enqueue(1)
        handle.result(f"{PATIENT}s")
    said = [record for record in caplog.records if record.name == "tenure.jobs"]
    assert [record.getMessage() for record in said] == [
        f"lasting_no_time {handle.id} is enqueued on slow",
        f"lasting_no_time {handle.id} has completed, attempt 1",
    ]
    assert (said[1].__dict__["job_id"], said[1].__dict__["attempt"]) == (str(handle.id), 1)


def test_a_filter_of_the_programs_own_that_raises_stops_no_worker(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise RuntimeError(f"no {record.getMessage()}")

    caplog.set_level(logging.INFO, "tenure.jobs")
    jobs = Tenure("sqlite:///tenure.db", notifier="poll")
    nothing = jobs.task(lasting_no_time)
    log = logging.getLogger("tenure.jobs")
    log.addFilter(refuse)
    try:
        with jobs, jobs.worker():
            assert [nothing.enqueue(number).result(f"{PATIENT}s") for number in range(3)] == [0, 1, 2]
    finally:
        log.removeFilter(refuse)


def test_an_embedded_worker_declares_and_fires_and_the_handler_sees_its_tick(here: Path) -> None:
    runs = Runs()
    with scheduled("200ms", runs) as jobs, jobs.worker():
        assert runs.twice.wait(PATIENT)

    # Each runs in a thread of its own: the later tick may be seen first.
    first, second = sorted(runs.seen[:2], key=lambda each: each["tick"])
    assert (first["schedule"], first["tenant"], first["what"]) == ("heart", "a", "beat")
    ticks = [datetime.fromisoformat(each["tick"]) for each in (first, second)]
    assert [round(tick.timestamp() * 1000) % 200 for tick in ticks] == [0, 0]
    assert ticks[0] < ticks[1]


def test_the_next_start_moves_it_and_one_without_it_retires_it(here: Path) -> None:
    runs = Runs()
    with scheduled("10h", runs) as jobs, jobs.worker():
        until(lambda: rules(jobs) == {"heart": "every 10h"}, "the declaration")
    with scheduled("200ms", runs) as jobs, jobs.worker():
        assert runs.twice.wait(PATIENT)
        assert rules(jobs) == {"heart": "every 200ms"}
    with scheduled(None, runs) as jobs, jobs.worker():
        until(lambda: rules(jobs) == {}, "the schedule to be retired")
        assert [each.schedule.name for each in jobs.client().store.schedules()] == ["heart"]


def rules(jobs: Tenure) -> dict[str, str]:
    standings = jobs.client().store.schedules()
    return {each.schedule.name: each.schedule.rule for each in standings if each.schedule.retired_at is None}


def test_the_worker_of_an_older_release_leaves_the_schedule_and_says_so(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for release, every in (("1", "10h"), ("2", "20h")):
        monkeypatch.setenv("TENURE_RELEASE", release)
        with scheduled(every, Runs()) as jobs:
            jobs.declare()
    monkeypatch.setenv("TENURE_RELEASE", "1")
    with scheduled("10h", Runs()) as jobs, jobs.worker():
        until(lambda: "stay as release 2 declares them" in caplog.text, "the worker of the older release to say so")
        assert rules(jobs) == {"heart": "every 20h"}
    assert "tenure schedules declare --force" in caplog.text


def test_an_embedded_worker_with_a_bad_declaration_does_not_start_and_leaves_nothing_open(here: Path) -> None:
    jobs = scheduled(None, Runs())
    jobs.schedule("@daily", name="bad")(jobs.tasks["beat"].using(delay="5s").bind("beat"))

    with pytest.raises(InvalidOption, match="schedule bad"), jobs.worker():
        raise AssertionError("it has started")
    assert [each for each in Path("/proc/self/fd").iterdir() if each.exists() and here in each.resolve().parents] == []


BAD = {
    "two": ('jobs.schedule("@hourly")(nightly)\n', "two schedules are named 'nightly'"),
    "late": (
        'jobs.schedule("@daily", name="bad")(nightly.using(delay="5s"))\n',
        "schedule bad (",
    ),
    "zone": ('jobs.schedule("@daily", name="bad", tz="Europe/Pris")(nightly)\n', "Europe/Pris"),
}


@pytest.mark.parametrize("which", BAD)
def test_a_worker_process_refuses_a_bad_declaration_at_its_start(here: Path, which: str) -> None:
    line, why = BAD[which]
    (here / "shop.py").write_text(SHOP + line)

    ended = subprocess.run(
        [sys.executable, "-m", "tenure.cli.supervise", json.dumps({"app": "shop"})],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 2, ended.stderr
    assert why in ended.stderr
    assert "Traceback" not in ended.stderr
