"""The schedules that an app declares with `@jobs.schedule`, validated where they are written."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Protocol, TypedDict, TypeVar, Unpack, cast

from tenure.config import valid_name
from tenure.core.durations import Duration, seconds, spell
from tenure.errors import InvalidArguments, InvalidOption
from tenure.ports import Draft
from tenure.ports.schedules import CATCH_UPS, OVERLAPS, CatchUp, Dst, Overlap, Schedule
from tenure.schedules import cron
from tenure.tasks.hints import time_of_a_schedule, unknown_options
from tenure.tasks.task import NewJob, Task


class _Ready(Protocol):
    """A task that needs no arguments."""

    def bind(self) -> NewJob[Any]: ...


Scheduled = TypeVar("Scheduled", bound=_Ready | NewJob[Any])
_SAMPLE_START = datetime(2026, 1, 1, tzinfo=UTC)
_SAMPLE_SIZE = 500  #: ticks


class Options(TypedDict, total=False):
    """The options of `jobs.schedule` besides its times. None means the default."""

    overlap: Overlap | None  #: while the previous run is running: skip the tick, queue one, replace the run, allow both
    catch_up: CatchUp | None  #: after a time without a supervisor: skip the missed ticks, run the latest, or run all
    catch_up_window: Duration | None  #: how far back to catch up: 7 days
    catch_up_max: int | None  #: at most this many, the newest: 100
    expires: Duration | None  #: a tick is not run later than this after its time
    jitter: Duration | None  #: fire at a random moment within this time after the tick, the same on every host
    start: datetime | None
    end: datetime | None
    pause_after: int | None  #: pause the schedule after this many failures in a row
    alert_after: int | None  #: alert after this many failures in a row: 2
    grace: Duration | None  #: a tick is overdue this long after its time: 5 minutes
    too_long: Duration | None  #: alert on a run that takes longer


def schedule(
    name: str,
    expression: str | None,
    *,
    every: Duration | None = None,
    tz: str = "UTC",
    dst: Dst = "debian",
    except_dates: Iterable[date] = (),
    **options: Unpack[Options],
) -> Schedule:
    """A validated schedule, without its job. Raises InvalidOption that names what is wrong."""
    given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    if unknown := sorted(set(options) - set(Options.__annotations__)):
        known = ("every", "tz", "name", "dst", "except_dates", *Options.__annotations__)
        raise unknown_options(name, unknown, known, beyond=time_of_a_schedule)
    try:
        rule = cron.rule(expression, every=every, tz=tz, dst=dst, except_dates=except_dates)
    except InvalidOption as error:
        raise InvalidOption(f"{name}: {error}") from error
    if isinstance(rule, cron.Every) and (tz, dst) != ("UTC", "debian"):
        raise InvalidOption(f"{name}: an interval has no time zone: leave out tz and dst, or write a cron expression")
    for key, among in (("overlap", OVERLAPS), ("catch_up", CATCH_UPS)):
        if given.get(key, among[0]) not in among:
            raise InvalidOption(f"{name}: {key}: expected one of {', '.join(among)}, got {given[key]!r}")
    for key in ("catch_up_window", "expires", "jitter", "grace", "too_long"):
        if key in given:
            given[key] = seconds(given[key], f"{name}: {key}")
    for key in ("catch_up_max", "pause_after", "alert_after"):
        value = given.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10_000:
            raise InvalidOption(f"{name}: {key}: expected a whole number from 1 to 10,000, got {value!r}")
    for key in ("start", "end"):
        value = given.get(key)
        if value is not None and (not isinstance(value, datetime) or value.utcoffset() is None):
            raise InvalidOption(f"{name}: {key}: expected a datetime with a time zone, got {value!r}")
    if "jitter" in given and given["jitter"] >= (least := _least_pause(rule)):
        raise InvalidOption(
            f"{name}: jitter: expected less than the time between two ticks, {spell(least)}, "
            f"got {spell(given['jitter'])}"
        )
    if "expires" in given and given["expires"] <= given.get("jitter", 0.0):
        raise InvalidOption(
            f"{name}: expires: expected more than its jitter, {spell(given.get('jitter', 0.0))}, "
            f"got {spell(given['expires'])}: some ticks would never run"
        )
    if "start" in given and "end" in given and given["end"] <= given["start"]:
        raise InvalidOption(f"{name}: end: expected a time after start, {given['start']}, got {given['end']}")
    zone = "UTC" if isinstance(rule, cron.Every) else rule.tz
    return Schedule(name=valid_name(name, "name"), rule=str(rule), tz=zone, dst=dst, **given)


def _least_pause(rule: cron.Rule) -> float:
    """The shortest time between two ticks, in seconds, over a fixed sample: the same result on every day."""
    if isinstance(rule, cron.Every):
        return rule.seconds
    ticks = list(islice(rule.between(_SAMPLE_START, _SAMPLE_START + timedelta(days=3660)), _SAMPLE_SIZE))
    return min(((b - a).total_seconds() for a, b in pairwise(ticks)), default=float("inf"))


class Declarations:
    """The schedules of one app, by name."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._declared: dict[str, tuple[Schedule, Task[..., Any] | NewJob[Any], str]] = {}

    def add(self, target: Scheduled, name: str | None, make: Any, place: str) -> Scheduled:
        """`make(name)` returns the schedule; `target` is a task without required arguments, or `task.bind(…)`."""
        given: object = target
        if not isinstance(given, Task | NewJob):
            got = getattr(given, "__name__", repr(given))
            raise InvalidOption(
                f"@jobs.schedule: expected a task, got {got}; write @jobs.schedule above @jobs.task, "
                "or jobs.schedule(…)(task.bind(…))"
            )
        runs = cast("Task[..., Any] | NewJob[Any]", given)
        task = runs if isinstance(runs, Task) else runs.of
        declared: Schedule = make(name or task.name)
        with suppress(NameError):  # a forward reference: `all` checks it later
            missing = task.arguments.required if runs is task else []
            if missing:
                raise InvalidOption(
                    f"schedule {declared.name}: {task.name} takes {', '.join(missing)}; "
                    f"write jobs.schedule(…)({task.name}.bind({missing[0]}=…))"
                )
        other = self._declared.get(declared.name)
        # The same line, imported again, replaces itself; in a loop it declares something else each time.
        if other is not None and (other[2] != place or _definition(*other[:2]) != _definition(declared, runs)):
            raise InvalidOption(
                f"two schedules are named {declared.name!r}: {other[2]} and {place}; give one of them another name="
            )
        self._declared[declared.name] = (declared, runs, place)
        return target

    def all(self) -> Sequence[Schedule]:
        """Every schedule with the job it enqueues, in order of name. Raises InvalidOption."""
        return [self._with_job(*self._declared[name]) for name in sorted(self._declared)]

    def _with_job(self, declared: Schedule, runs: Task[..., Any] | NewJob[Any], place: str) -> Schedule:
        try:
            job = runs.bind() if isinstance(runs, Task) else runs
        except InvalidArguments as error:
            raise InvalidOption(f"schedule {declared.name} ({place}): {error}") from error
        draft, task = job.draft(), job.of
        if any(each is not None for each in (task.wait, task.run_at, task.expires, task.id, task.tx)):
            raise InvalidOption(
                f"schedule {declared.name} ({place}): the tick determines its job's id and due time: leave out "
                "delay, run_at, id and tx; pass expires to jobs.schedule(…)"
            )
        if draft.links is not None:
            raise InvalidOption(
                f"schedule {declared.name} ({place}): the job of a tick waits for no other job: leave out after; to "
                "run jobs one after another, enqueue a flow in the task"
            )
        check_size(draft, task.app.settings.max_payload, f"schedule {declared.name} ({place})")
        return declared.but(job=draft.but(id=""))


def check_size(draft: Draft, most: int, what: str) -> None:
    """Raises InvalidOption if the arguments are larger than `most` bytes: those of a schedule are always in its row."""
    size = len(draft.payload.encode())
    if size > most:
        raise InvalidOption(
            f"{what}: its arguments are {size:,} bytes as JSON, the limit is {most:,} (TENURE_MAX_PAYLOAD); those of a "
            "schedule are not offloaded: store a path or a key instead"
        )


def _definition(declared: Schedule, runs: Task[..., Any] | NewJob[Any]) -> tuple[object, ...]:
    return declared, runs.name if isinstance(runs, Task) else runs.draft().but(id="")


def calling_app(depth: int) -> str:
    """The name of an app: the module that creates it, as `tenure worker` imports it; a second one is `module#2`."""
    frame = sys._getframe(depth + 1)
    name, spec = frame.f_globals.get("__name__", ""), frame.f_globals.get("__spec__")
    if name in ("", "__main__"):
        name = spec.name if spec else Path(frame.f_code.co_filename).stem
    made = frame.f_globals.setdefault("__tenure_apps__", [])  # kept in the module: a new import starts a new count
    if frame.f_lineno not in made:
        made.append(frame.f_lineno)
    number = made.index(frame.f_lineno) + 1
    return name if number == 1 else f"{name}#{number}"


def calling_place(depth: int) -> str:
    frame = sys._getframe(depth + 1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
