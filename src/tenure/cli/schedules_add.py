"""`tenure schedules add` and `declare`, and how rules and times are written in a shell."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tenure.cli.enqueue import read_arguments
from tenure.cli.output import plain, print_error, print_line, show_json
from tenure.cli.schedules_screen import away, declared_words
from tenure.cli.shared import Shared, app_of, confirm, operator
from tenure.core.durations import YEARS
from tenure.errors import InvalidOption
from tenure.operations.schedule_health import ScheduleHealth, clock
from tenure.ports.schedules import CatchUp, Dst, Overlap, Schedule
from tenure.schedules import cron
from tenure.schedules.cron import Rule
from tenure.schedules.declarations import check_size, schedule

if TYPE_CHECKING:
    from tenure.operations.admin import Admin
    from tenure.ports import Draft

SHARED = Shared()


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class When:
    cron: str | None = None
    """A cron expression: "0 6 * * *", @daily; with six fields the first is seconds."""
    every: str | None = None
    """An interval instead: 10m, 1h30m, 7d. It has no time zone."""
    tz: str | None = None
    """The expression's time zone: Europe/Paris. Default: UTC."""
    dst: Dst | None = None
    """run_once adds a run on a day whose ticks are all skipped by a clock change. Default: debian."""

    def __bool__(self) -> bool:
        return (self.cron or self.every) is not None

    def checked(self) -> tuple[str, Dst]:
        """The zone and the rule for clock changes, which an interval can't have."""
        if self.every is not None and (self.tz or self.dst):
            raise InvalidOption("--every: an interval has no time zone; leave out --tz and --dst, or write --cron")
        return self.tz or "UTC", self.dst or "debian"

    def rule(self) -> Rule:
        tz, dst = self.checked()
        return cron.rule(self.cron, every=self.every, tz=tz, dst=dst)


def instant(text: str, label: str, rule: Rule) -> datetime:
    """A time as written in a shell; without a zone it is in the rule's zone."""
    try:
        at = datetime.fromisoformat(text)
        zone: tzinfo | None = rule.local(datetime.now(UTC)).tzinfo
        at = at.replace(tzinfo=zone) if at.tzinfo is None else at
    except ValueError:
        at = None
    if at is not None and at.year not in YEARS:
        raise InvalidOption(f"{label}: expected a year from {YEARS[0]} to {YEARS[-1]}, got {text!r}")
    if at is None:
        raise InvalidOption(
            f"{label}: expected a time like 2030-01-31T06:00, in the schedule's zone, "
            f"or one with its zone like 2030-01-31T06:00:00Z, got {text!r}"
        )
    return at.astimezone(UTC)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Policy:
    overlap: Overlap | None = None
    """During the previous run: skip the tick, queue one, replace the run, or allow both. Default: skip."""
    catch_up: CatchUp | None = None
    """For missed ticks: skip them, run the latest, or run all. Default: latest."""
    catch_up_window: str | None = None
    """How far back to catch up. Default: 7d."""
    catch_up_max: int | None = None
    """How many ticks to catch up at most, the newest. Default: 100."""
    expires: str | None = None
    """A tick that has not started this long after its time is not run."""
    jitter: str | None = None
    """Delay each tick by a different random time up to this."""
    pause_after: int | None = None
    """Pause it after this many failures in a row."""
    alert_after: int | None = None
    """Alert after this many failures in a row. Default: 2."""
    grace: str | None = None
    """It counts as overdue this long after its time. Default: 5m."""
    too_long: str | None = None
    """Alert on a run that takes longer than this."""


WHEN, POLICY = When(), Policy()


def add(
    name: str,
    /,
    *arguments: str,
    task: Annotated[str, Parameter(name=["--task", "-t"])],
    when: When = WHEN,
    queue: Annotated[str | None, Parameter(name=["--queue", "-q"])] = None,
    priority: int | None = None,
    policy: Policy = POLICY,
    start: str | None = None,
    end: str | None = None,
    shared: Shared = SHARED,
) -> int:
    """Add a schedule by hand: no app declares it, so no deploy changes it.

    Without --app the task is looked up in TENURE_APP, else in app in [tool.tenure] of pyproject.toml.

    Parameters
    ----------
    name
        Its name.
    arguments
        The task's arguments, as for tenure enqueue: name=text or name:=JSON.
    task
        The task that each tick enqueues.
    queue
        A queue other than the task's own.
    priority
        From -100 to 100; higher runs first.
    start
        No tick before this time: ISO 8601; without a zone, in the schedule's.
    end
        No tick after this time: ISO 8601; without a zone, in the schedule's.
    """
    rule = when.rule()
    tz, dst = when.checked()
    new = schedule(
        name,
        when.cron,
        every=when.every,
        tz=tz,
        dst=dst,
        start=None if start is None else instant(start, "--start", rule),
        end=None if end is None else instant(end, "--end", rule),
        **asdict(policy),
    )
    with app_of(shared, None) as jobs:
        known = jobs.tasks[task]
        job = known.using(queue=queue, priority=priority).bind(**read_arguments(known, arguments))
        draft = job.draft()
        check_size(draft, jobs.settings.max_payload, f"schedule {name}")
        client = jobs.client()
        from tenure.operations.admin import Admin

        return _put(Admin(client.store, client.notifier, jobs.settings, who=operator()), new, draft, shared)


def _put(admin: Admin, new: Schedule, draft: Draft, shared: Shared) -> int:
    new = new.but(job=draft.but(id="", expires=None))
    stands = next((each.schedule for each in admin.schedules.all() if each.schedule.name == new.name), None)
    if stands is not None:
        _refuse_others(stands)
        confirm(
            shared,
            f"there is a schedule {new.name} ({stands.rule}, task {stands.job and stands.job.task}). Change it?",
        )
    put = ScheduleHealth.of(admin.schedules.put(new), admin.now())
    if shared.json:
        show_json({**plain(put.record), "created": stands is None, "lint": put.lint})
        return 0
    tick = put.schedule.next_tick
    told = f"next {clock(put.rule, tick)}, {away(tick, put.at)}" if tick else "but it has no next tick"
    print_line(f"schedule {new.name} is {'added' if stands is None else 'changed'}: {told}")
    for sentence in put.lint:
        print_error(f"note: {sentence}")
    return 0


def _refuse_others(stands: Schedule) -> None:
    if stands.kind == "guard":
        raise InvalidOption(f"{stands.name} is a guard, which runs where it is called; use another name")
    if stands.source and stands.retired_at is None:
        raise InvalidOption(
            f"{stands.name} is declared by app {stands.source}, which would undo this at its next start: "
            "change it in the code, or use another name"
        )


def declare(app: str | None = None, /, *, force: bool = False, shared: Shared = SHARED) -> int:
    """Put an app's schedules and limits into the store, as its workers do when they start.

    Exits with 1 if a newer release of it, or of another app that has a schedule of the same name, stands.

    Parameters
    ----------
    app
        Where they are: module[:attribute]. Default: TENURE_APP, else app in [tool.tenure] of pyproject.toml.
    force
        Even if a newer release has declared them: for a rollback.
    """
    with app_of(shared, app) as jobs:
        done = jobs.declare(force=force)
    if shared.json:
        show_json(done)
    else:
        for line in declared_words(done):
            print_line(line)
    return 1 if done.older or done.kept else 0
