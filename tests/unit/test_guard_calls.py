"""The calls of a guard that disagree: another rule, another command, a clock that was set back; and who is told."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from conformance.factories import World, draft, finish, identity
from tenure.config import KEY_NAMES, load
from tenure.core.lifecycle import EXPIRED, Cancelled, Completed, Failed, Lease, Outcome
from tenure.errors import GuardSkipped, InvalidOption
from tenure.guards.begin import Begun, try_to_begin
from tenure.guards.guard import Guard
from tenure.guards.ping import Ping
from tenure.guards.run import declared
from tenure.guards.words import starred
from tenure.notifiers.poll import PollNotifier
from tenure.operations.access import Access
from tenure.operations.problems import problems
from tenure.operations.schedules import Schedules
from tenure.ports import Draft, Store
from tenure.ports.schedules import Change, Schedule, Tick
from tenure.schedules.timetable import Timetable
from tenure.stores.memory import MemoryStore

HOUR, DAY = 3600.0, 86_400.0
SIX, PARIS = "0 6 * * *", "Europe/Paris"


class Crontabs:
    """The crontabs of some hosts, one store, and a clock that a test moves. Runs end at once, unless told otherwise."""

    def __init__(self) -> None:
        self.world = World(MemoryStore)
        self.store: Store = self.world.store()
        self.table = Timetable(self.store, PollNotifier())
        self.until(hour=0)

    def until(self, hour: float) -> None:
        """Let time pass until it is this hour in UTC again."""
        now = self.store.now()
        begin = datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(hours=hour)
        self.world.advance(((begin - now) % timedelta(days=1)).total_seconds())

    def renewed(self, seconds: float) -> None:
        """Time passes, and all leases are renewed."""
        for _ in range(int(seconds / 20)):
            self.world.advance(20)
            self.store.renew([row.identity.id for row in self.store.workers()])

    def call(
        self, command: str = "./report", *, outcome: Outcome | None = None, ends: bool = True, force: bool = False,
        host: str = "a", **rule: Any
    ) -> Begun:  # fmt: skip
        worker = identity(runner="guard", queues=(), tasks=(), host=host)
        self.store.register(worker)
        wanted = declared("report", **(rule or {"cron": SIX})).but(command=command)
        job_id = draft().id
        begun = try_to_begin(self.store, wanted, worker, job_id, force=force)
        assert begun is not None
        if ends:
            assert finish(self.store, Lease(job_id, 1, worker.id), outcome or Completed()) is not None
            self.table.settle(self.table.all())
        return begun

    @property
    def stands(self) -> Schedule:
        return self.table.get("report").schedule

    def history(self) -> list[Tick]:
        return self.store.ticks("report")[::-1]

    def wrong(self) -> list[tuple[str, str]]:
        """What `tenure check` and the alerts say about it."""
        return [(each.kind, each.told) for each in problems(self.store, load({}, environ={}, folder=Path("/")))]


@pytest.fixture
def crontabs() -> Crontabs:
    return Crontabs()


# ── another rule ──


def test_two_hosts_of_which_one_has_no_zone_run_it_once_a_day_and_the_other_is_told(crontabs: Crontabs) -> None:
    ran = 0
    for _ in range(5):
        crontabs.until(hour=5)
        crontabs.call(cron=SIX, tz=PARIS)
        ran += 1
        crontabs.until(hour=6)
        for force in (False, True):
            with pytest.raises(
                InvalidOption, match=r"'0 6 \* \* \*' \(UTC\), and the calls before it .* \(Europe/Paris"
            ):
                crontabs.call(cron=SIX, force=force, host="b")

    assert [(tick.status, tick.count) for tick in crontabs.history()] == [("success", 1)] * ran


def test_a_changed_rule_holds_once_no_call_of_the_old_one_came(crontabs: Crontabs) -> None:
    crontabs.until(hour=6)
    crontabs.call()
    crontabs.until(hour=5)
    with pytest.raises(InvalidOption, match="tenure guard declare report"):
        crontabs.call(cron="0 5 * * *")

    crontabs.until(hour=5)
    crontabs.world.advance(DAY)
    crontabs.call(cron="0 5 * * *")

    assert crontabs.stands.rule == "0 5 * * *"


def test_a_declared_rule_holds_at_once(crontabs: Crontabs) -> None:
    crontabs.until(hour=6)
    crontabs.call()

    crontabs.table.expect(declared("report", cron="30 6 * * *"))
    crontabs.until(hour=6.5)
    crontabs.call(cron="30 6 * * *")

    assert [tick.status for tick in crontabs.history()] == ["success", "success"]


def test_a_guard_whose_interval_was_changed_by_a_call_that_did_not_run_is_overdue_when_no_call_comes(
    crontabs: Crontabs,
) -> None:
    crontabs.call(every="1h")
    crontabs.world.advance(HOUR / 4)
    with pytest.raises(GuardSkipped, match="has already run"):
        crontabs.call(every="2h")

    crontabs.world.advance(DAY)

    assert [kind for kind, _ in crontabs.wrong()] == ["overdue"]


def test_another_interval_holds_at_once_and_is_told(crontabs: Crontabs) -> None:
    crontabs.call(every="1h")
    crontabs.world.advance(HOUR)

    assert crontabs.call(every="2h").changed == "its rule was every 1h, and is now every 2h"


# ── another command ──


@pytest.mark.parametrize("ends", [True, False], ids=["has run", "runs"])
def test_two_commands_of_one_name_are_refused_and_the_second_is_told_of_the_first(
    crontabs: Crontabs, ends: bool
) -> None:
    crontabs.until(hour=6)
    crontabs.call("./backup --all", ends=ends)

    with pytest.raises(InvalidOption, match=r"That was another command: ./backup --all; give each command a guard"):
        crontabs.call("./report")

    assert crontabs.stands.command == "./backup --all"


def test_a_command_that_names_its_day_and_one_that_was_changed_are_no_other_commands(crontabs: Crontabs) -> None:
    crontabs.until(hour=6)
    crontabs.call("./backup 2027-01-15")
    with pytest.raises(GuardSkipped, match="has already run"):
        crontabs.call("./backup 2027-01-16")

    crontabs.until(hour=5.99)
    crontabs.call("./better-backup")

    assert crontabs.stands.command == "./better-backup"
    job = crontabs.store.get(crontabs.history()[-1].job_id or "")
    assert job is not None
    assert job.payload == '{"command":"./better-backup"}'


def test_a_changed_command_of_a_paused_guard_is_skipped_as_any(crontabs: Crontabs) -> None:
    crontabs.until(hour=6)
    crontabs.call("./backup")
    crontabs.table.pause("report", "until Monday")
    crontabs.until(hour=6)

    with pytest.raises(GuardSkipped, match="paused: until Monday"):
        crontabs.call("./better-backup")


# ── clocks ──


@pytest.mark.parametrize("rule", [{"cron": SIX}, {"every": "1d"}], ids=["cron", "every"])
def test_a_clock_that_steps_back_and_forth_runs_no_tick_twice_and_stops_nothing(
    crontabs: Crontabs, rule: dict[str, str]
) -> None:
    crontabs.until(hour=6)
    for _ in range(3):
        crontabs.call(**rule)
        crontabs.world.advance(DAY)
    crontabs.world.advance(-DAY)  # just after the third call

    for step in (-DAY, DAY, -2 * DAY, DAY, DAY, -DAY, DAY):
        crontabs.world.step_wall_clock(step)
        with pytest.raises(GuardSkipped, match="has already run"):
            crontabs.call(**rule)
    crontabs.world.step_wall_clock(-10 * DAY)
    crontabs.call(**rule)  # a time at which it has never run
    crontabs.world.step_wall_clock(10 * DAY)
    with pytest.raises(GuardSkipped, match="has already run"):
        crontabs.call(**rule)
    crontabs.world.advance(DAY)
    crontabs.call(**rule)

    assert len([tick for tick in crontabs.history() if tick.job_id]) == 5


# ── who is told ──


def test_the_first_failure_of_a_guard_is_told_or_the_one_that_was_asked_for(crontabs: Crontabs) -> None:
    crontabs.until(hour=6)
    crontabs.call(outcome=Failed("exit code 3: no disk", final=True))
    assert crontabs.wrong() == [("failures", "report has failed once: exit code 3: no disk")]

    crontabs.world.advance(DAY)
    crontabs.call(outcome=Failed("exit code 3", final=True), cron=SIX, alert_after=3)
    assert crontabs.wrong() == []


def test_a_guard_that_hangs_is_told_though_every_call_is_skipped(crontabs: Crontabs) -> None:
    crontabs.until(hour=6)
    job_id = crontabs.call(ends=False).tick.job_id
    for _ in range(2):
        assert crontabs.wrong() == []
        crontabs.renewed(DAY)
        with pytest.raises(GuardSkipped, match="still locked"):
            crontabs.call(ends=False)
    crontabs.renewed(320)

    ((kind, says),) = crontabs.wrong()
    assert kind == "too-long"
    assert says.startswith("report has been running for 2d, past its next two ticks, which are skipped, on ")
    assert says.endswith(f"tenure jobs cancel {job_id}")


def test_a_guard_whose_machine_was_lost_is_overdue_though_nothing_has_ended_its_run(crontabs: Crontabs) -> None:
    crontabs.until(hour=6)
    host = crontabs.call(ends=False).tick.host
    crontabs.world.advance(DAY + 300)
    assert (crontabs.wrong(), crontabs.table.overdue()) == ([], [])

    crontabs.world.advance(1)

    lost = f"the lease of its run on {host} has ended, and nothing has called it since"
    assert crontabs.wrong() == [("overdue", f"report should have been called 5m1s ago: {lost}")]
    assert [(each.overdue_by, each.why) for each in crontabs.table.overdue()] == [(301, lost)]
    crontabs.world.advance(2 * DAY)
    assert [kind for kind, _ in crontabs.wrong()] == ["overdue"], "it does not run, so it is not too long"


@pytest.mark.parametrize(("asked", "wrong"), [({"too_long": "1h"}, "too-long"), ({"too_long": "3h"}, "")])
def test_a_guard_may_run_as_long_as_was_asked_for(crontabs: Crontabs, asked: dict[str, str], wrong: str) -> None:
    crontabs.until(hour=6)
    crontabs.call(ends=False, cron=SIX, **asked)
    crontabs.world.advance(2 * HOUR)

    assert "".join(kind for kind, _ in crontabs.wrong()) == wrong


@pytest.mark.parametrize("rule", [{"cron": SIX}, {"every": "1d"}], ids=["cron", "every"])
def test_a_guard_that_was_declared_and_never_called_is_overdue(crontabs: Crontabs, rule: dict[str, str]) -> None:
    crontabs.table.expect(declared("report", **rule, overdue_after="1h"))  # type: ignore[arg-type]
    crontabs.until(hour=6.9)
    crontabs.world.advance(DAY if "every" in rule else 0)
    assert ("overdue" in dict(crontabs.wrong())) is ("every" in rule)

    crontabs.world.advance(HOUR)
    assert dict(crontabs.wrong())["overdue"].endswith("and no call came")
    crontabs.call(**rule)
    assert crontabs.wrong() == []


# ── a rule that can't be read any more ──


@pytest.mark.parametrize("job", [None, draft(id="")], ids=["guard", "task"])
def test_a_stored_rule_that_is_refused_now_is_told_and_a_declaration_replaces_it(
    crontabs: Crontabs, job: Draft | None
) -> None:
    rule, kind = "0 6 5-5/2 * *", "guard" if job is None else "task"
    now = crontabs.store.now()
    due = None if job is None else now
    stands = Schedule(name="report", rule=rule, kind=kind, job=job, since=now, next_tick=now, due_at=due)  # type: ignore[arg-type]
    assert crontabs.store.change([Change(schedule=stands)]) == [True]

    crontabs.world.advance(HOUR)
    crontabs.table.fire_due()

    health = Schedules(Access.of(crontabs.store, PollNotifier(), None, "me")).health("report")
    assert health.rule is None
    if job is None:
        with pytest.raises(InvalidOption, match="write 5 for one value, or 5-31/2"):
            crontabs.call(cron=rule)
        crontabs.table.expect(declared("report", cron="0 6 5-31/2 * *"))
    else:
        assert "write 5 for one value, or 5-31/2" in dict(crontabs.wrong())["failures"]
        crontabs.table.put(Schedule(name="report", rule="0 6 5-31/2 * *", job=job))
    assert (crontabs.stands.rule, crontabs.stands.paused_at) == ("0 6 5-31/2 * *", None)


# ── secrets ──


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("mysqldump --password=hunter2 --token abc shop", "mysqldump --password=*** --token *** shop"),
        ("env 'PGPASSWORD=a b' pg_dump 'x y'", "env PGPASSWORD=*** pg_dump 'x y'"),
        (
            "sh -c 'PGPASSWORD=\"a b\" pg_dump x; ./y --token z; ./w'",
            "sh -c 'PGPASSWORD=*** pg_dump x; ./y --token ***; ./w'",
        ),
        ("curl -H 'Authorization: Bearer x' https://u:pw@h/", "curl -H 'Authorization: ***' https://u:***@h/"),
        ('curl -d \'{"a": 1, "token": "x y"}\' h', 'curl -d \'{"a": 1, "token": "***"}\' h'),
        ("x --api-key -k9 --token --verbose", "x --api-key *** --token --verbose"),
        ("helm --set=db.password=x -Dsecret=y", "helm --set=db.password=*** -Dsecret=***"),
        ("rsync -a /srv/a host:/b '$(date +%F)'", "rsync -a /srv/a host:/b '$(date +%F)'"),
    ],
)
def test_a_command_is_shown_without_its_secrets(command: str, shown: str) -> None:
    assert starred(shlex.split(command), KEY_NAMES) == shown


def test_names_are_those_of_the_setting() -> None:
    words = ["x", "--pin=1", "--token=2"]
    assert (starred(words, ["pin"]), starred(words, [])) == ("x --pin=*** --token=2", "x --pin=1 --token=2")


def test_a_new_password_is_no_other_command(crontabs: Crontabs) -> None:
    crontabs.until(hour=6)
    crontabs.call(starred(["dump", "--password=one"], KEY_NAMES))

    with pytest.raises(GuardSkipped):
        crontabs.call(starred(["dump", "--password=two"], KEY_NAMES))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://[bad", "expected a URL like"),
        ("https://hc.example:hunter2/x", "expected a URL like"),
        ("https://hc.example:99999/x", "expected a URL like"),
        ("https://hc.example/hunter2 x", "expected a URL like"),
        ("ftp://hc.example/hunter2", "expected a URL like"),
        ("https://", "expected a URL like"),
        ("https://user:hunter2@hc.example/x", "without a user and password"),
        ("https://hunter2@hc.example/x", "without a user and password"),
        ("https://user:hunter2@hc.example:pw/x", "expected a URL like"),
    ],
)
def test_a_ping_that_would_not_arrive_is_refused_and_its_secrets_are_not_shown(url: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says) as refused:
        Ping(url, print)
    assert "hunter2" not in str(refused.value)


def test_a_schedule_of_jobs_does_not_become_a_guard(crontabs: Crontabs) -> None:
    crontabs.table.put(Schedule(name="report", rule="every 1h", job=draft(id="")))

    with pytest.raises(InvalidOption, match="report is a schedule that enqueues jobs"):
        crontabs.table.expect(declared("report", every="1d"))


@pytest.mark.parametrize("make", [declared, lambda name, **told: Guard(name, **told, open=lambda: None).schedule])  # type: ignore[misc, return-value, arg-type]
def test_the_limits_of_a_guard_are_checked_and_kept(make: Callable[..., Schedule]) -> None:
    told = make("report", every="1d", alert_after=4, overdue_after="10m", too_long="2h")

    assert (told.alert_after, told.grace, told.too_long) == (4, 600.0, 7200.0)
    assert make("report", every="1d").alert_after == 1
    for bad in ({"alert_after": 0}, {"overdue_after": "5"}, {"too_long": "-1s"}):
        with pytest.raises(InvalidOption):
            make("report", every="1d", **bad)


# ── ticks that expired ──


def test_a_tick_whose_job_expired_in_the_queue_is_skipped_as_too_late(crontabs: Crontabs) -> None:
    crontabs.table.put(Schedule(name="mail", rule="every 1h", job=draft(id=""), expires=600.0))
    crontabs.world.advance(HOUR)
    crontabs.table.fire_due()
    worker = identity()
    crontabs.store.register(worker)
    (claimed,) = crontabs.store.claim(worker.id, {"default": 1}, 1)

    finish(crontabs.store, Lease(claimed.id, 1, worker.id), Cancelled(EXPIRED))
    crontabs.table.fire_due()

    (tick,) = crontabs.store.ticks("mail")
    assert (tick.status, tick.why, tick.started_at) == ("skipped", f"too late: {EXPIRED}", None)
    assert crontabs.table.get("mail").schedule.last_status is None
