"""Schedules as values: their declaration, their current state, and the record of each tick.

A store keeps and compares them; `schedules/plan.py` decides what they mean, in pure functions. Every write of a
schedule is one `Change`: its new row, the ticks that end with it, and the jobs that start with it, all or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, get_args

import msgspec

from tenure.core.lifecycle import LIVE
from tenure.ports.jobs import Draft
from tenure.ports.reads import JobView

Dst = Literal["debian", "run_once"]  #: what a clock change does to a tick at a fixed time
Overlap = Literal["skip", "queue", "replace", "allow"]
CatchUp = Literal["skip", "latest", "all"]
Cause = Literal["tick", "trigger", "backfill"]
Ended = Literal["success", "failure", "cancelled"]
Status = Literal["open", Ended, "skipped", "missed"]
RunStatus = Literal["started", Ended]

OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)
CATCH_UPS: tuple[CatchUp, ...] = get_args(CatchUp)

GRACE = 300.0  #: seconds after which a tick that was not fired, or whose job was not started, is overdue
CATCH_UP_WINDOW = 7 * 86_400.0
CATCH_UP_MAX = 100
ALERT_AFTER = 2
BROKEN = "can't be fired"  #: the start of the reason when Tenure itself paused a schedule
_NEWER_RULE = re.compile(r"\dW|(?<![A-Z])L-\d|\||except")  #: what releases before 0.2 can't read; they can read JUL-9
REPLACED = "a newer tick of its schedule replaces it"  #: the cancel reason of such a job


class Former(NamedTuple):
    """A name that a schedule had until it was renamed."""

    name: str
    until: datetime


# Not a dataclass: changing one of forty fields takes a dataclass 18 µs, this 0.4, and every tick changes about four.
class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule: its declaration and its current state. Durations are seconds, times the store's."""

    name: str
    rule: str  #: a cron expression, or `every 1h30m`
    tz: str = "UTC"
    dst: Dst = "debian"
    kind: Literal["task", "guard"] = "task"
    source: str = ""  #: the module of the app that declares it; empty: made by an operator or a guard
    release: str = ""  #: the app's release that declared this
    released_at: datetime | None = None  #: when this release was first seen: the newer release wins
    job: Draft | None = None  #: what each tick enqueues; None: a guard runs it itself
    overlap: Overlap = "skip"
    catch_up: CatchUp = "latest"
    catch_up_window: float = CATCH_UP_WINDOW
    catch_up_max: int = CATCH_UP_MAX
    expires: float | None = None
    jitter: float = 0.0
    start: datetime | None = None
    end: datetime | None = None
    pause_after: int | None = None  #: this many failures in a row pause it
    alert_after: int = ALERT_AFTER
    grace: float = GRACE
    too_long: float | None = None
    command: str = ""  #: of a guard: the command of its last run, as a shell reads it
    formerly: tuple[Former, ...] = ()  #: its former names, oldest first: each keeps the ticks decided until its `until`

    rev: int = 0  #: rises with every write; 0: not stored yet
    since: datetime | None = None  #: earlier ticks are ignored
    reset_at: datetime | None = None  #: when `resume` began anew, as the store's clock had been set back
    next_tick: datetime | None = None  #: the next instant it is expected to fire
    last_tick: datetime | None = None  #: the last one that became a run
    due_at: datetime | None = None  #: when a supervisor next examines it; None: only when a run of it ends
    pending_tick: datetime | None = None  #: due, and waiting for the previous run to end
    catching_up_to: datetime | None = None  #: the last of the missed ticks that are being run one by one
    paused_at: datetime | None = None
    paused_why: str = ""
    retired_at: datetime | None = None  #: no longer declared: kept, not fired
    last_run_at: datetime | None = None
    last_duration_ms: int | None = None
    last_status: RunStatus | None = None
    last_error: str = ""
    failure_count: int = 0  #: in a row
    unread: str = ""  #: why this release can't read it, and so leaves it alone; only a declaration replaces it

    def but(self, **changes: Any) -> Schedule:
        """A copy with these changes. Example: `schedule.but(paused_at=now)`"""
        return msgspec.structs.replace(self, **changes)

    @property
    def idle(self) -> bool:
        """Paused or retired: its ticks are not fired."""
        return self.paused_at is not None or self.retired_at is not None

    @property
    def named_at(self) -> datetime | None:
        """When it was made, or got its name. A tick of this name that was decided earlier may be another one's."""
        moments = [each for each in (self.since, *(former.until for former in self.formerly[-1:])) if each is not None]
        return max(moments, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The record of one due instant, or of a series of missed ones (`tick` to `until`, `count` of them)."""

    schedule: str
    tick: datetime
    cause: Cause = "tick"
    status: Status = "open"
    why: str = ""  #: the reason of a skipped or missed tick, the error of a failed one
    until: datetime | None = None
    count: int = 1
    job_id: str | None = None
    decided_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    host: str = ""
    output: str = ""  #: the last output of a guarded command
    tries: int = 1  #: how often a guarded command was run for it

    @property
    def reopened(self) -> Tick:
        """The tick as it was before its job ended, for a job that is replayed."""
        return replace(self, status="open", why="", started_at=None, ended_at=None)


class Run(NamedTuple):
    """An open tick, the current state of its job (None: deleted), and the end of its owner's lease."""

    tick: Tick
    job: JobView | None
    locked_until: datetime | None

    @property
    def live(self) -> bool:
        return self.job is not None and self.job.state in LIVE


@dataclass(frozen=True, slots=True)
class Standing:
    """A schedule and its open runs, oldest first, read in one snapshot."""

    schedule: Schedule
    runs: tuple[Run, ...] = ()


class Due(NamedTuple):
    """`standings`: schedules that are due, or have a run that ended. `next_due`: seconds until the next one is due."""

    now: datetime
    standings: list[Standing]
    next_due: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One guarded write: it lands if the stored row still has `schedule.rev` (0: if there is none), or not at all.

    It is stored with the next rev. `ticks` replace those with the same schedule, instant and cause. A tick that names
    a draft follows the existing job if its id is stored or its unique key held already. `owner`, for a guard: the one
    draft starts as processing, attempt 1, under the lease of this worker, which must be alive. `delete` removes the
    schedule and all its ticks, also those of a name that no schedule has any more; but those decided up to `keep_until`
    stay, as another schedule had the name then.

    `former`: rename. The row of that name, if it has `schedule.rev`, becomes `schedule`; it lands only if no schedule
    has the new name. Its ticks, of which none may be open, stay under the former name: see `Schedule.formerly`.
    """

    schedule: Schedule
    ticks: tuple[Tick, ...] = ()
    drafts: tuple[Draft, ...] = ()
    cancel: tuple[str, ...] = ()  #: jobs to cancel (REPLACED)
    owner: str | None = None
    delete: bool = False
    keep_until: datetime | None = None
    former: str = ""

    @property
    def replaces(self) -> str:
        """The name of the row that it is compared with."""
        return self.former or self.schedule.name

    @property
    def stored(self) -> Schedule:
        """The row to write. A rule that an older release can't read is marked, by a value that its decoder refuses:
        that release then leaves the schedule alone, instead of pausing it as broken."""
        s = self.schedule
        return s.but(rev=s.rev + 1, unread=True if _NEWER_RULE.search(s.rule) else s.unread)


class Swapped(NamedTuple):
    """Whether the note now has the wanted text, and its current text."""

    landed: bool
    value: str | None


@dataclass(frozen=True, slots=True)
class _Known:
    """The fields that any release can read."""

    name: str
    rev: int
    rule: str = ""
    source: str = ""


_decode_schedule = msgspec.json.Decoder(Schedule).decode
_decode_known = msgspec.json.Decoder(_Known).decode


def decode_schedule(text: str) -> Schedule:
    """A stored schedule; `unread` is set if a newer release wrote something this one does not know."""
    try:
        return _decode_schedule(text)
    except msgspec.ValidationError as error:
        if (marked := _decode_marked(text)) is not None:
            return marked
        known = _decode_known(text)
        return Schedule(name=known.name, rev=known.rev, rule=known.rule, source=known.source, unread=str(error))


def _decode_marked(text: str) -> Schedule | None:
    """A schedule that `Change.stored` has marked for older releases."""
    fields = msgspec.json.decode(text)
    try:
        return msgspec.convert(fields | {"unread": ""}, Schedule) if fields.get("unread") is True else None
    except msgspec.ValidationError:
        return None


decode_tick = msgspec.json.Decoder(Tick).decode


class ScheduleStore(Protocol):
    """Schedules, their ticks, and notes: small texts that are compared and set."""

    def due(self, *, limit: int = 500) -> Due:
        """Schedules with `due_at` ≤ now, earliest first, and those with an open run whose job has ended or was deleted.

        Each with all its open runs; at most about `limit`: call again after changing them. Changes nothing.
        """
        ...

    def change(self, changes: Sequence[Change]) -> list[bool]:
        """Write schedules with their ticks and jobs: each change is one atomic step, guarded by `rev`.

        False: another process wrote first (or the owner of a guard's job is not alive): read again. Of two changes
        made from the same read, at most one lands.
        """
        ...

    def schedules(self, names: Iterable[str] | None = None) -> list[Standing]:
        """The named schedules (None: all), ordered by name, each with its open runs."""
        ...

    def ticks(self, name: str, *, limit: int = 50, before: datetime | None = None) -> list[Tick]:
        """Its ticks, newest first; with `before`, only those before that instant."""
        ...

    def decided(self, since: datetime, until: datetime, *, skip: int = 0, limit: int = 50) -> list[Tick]:
        """Ticks of all schedules that are not open and were decided from `since` to `until`, the last decided first.

        Both ends are included; `skip` leaves out the first ones. To continue, pass the time of the last one as `until`,
        and skip those of that time that are known. Its cost grows with `skip` and `limit`, not with the history.
        """
        ...

    def forget(self, *, keep: float, limit: int = 1000) -> int:
        """Delete ticks decided more than `keep` seconds ago, unless open, and expired notes. Returns how many."""
        ...

    # ── notes: the first result of a key, an incident that is open ──

    def swap(
        self, key: str, old: str | None, new: str | None, *, ttl: float | None = None, drafts: Sequence[Draft] = ()
    ) -> Swapped:
        """Compare and set one small text, and enqueue `drafts` in the same step: only if the write lands.

        Lands if the note is `old` (None: missing or expired); `new` None removes it. It expires after `ttl` seconds.
        If the note is already `new`, the write has landed before: nothing is enqueued again.
        """
        ...

    def notes(self, prefix: str) -> dict[str, str]:
        """Every note that has not expired and whose key starts with `prefix`."""
        ...
