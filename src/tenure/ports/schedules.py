"""Schedules as values: what was declared, where it stands, and what became of each tick.

A store keeps them and compares; what they mean is decided in `schedules/plan.py`, by pure functions. Every write of
a schedule is one `Change`: the row as it shall stand, the ticks that end with it, and the jobs that begin with it, all
or nothing.
"""

from __future__ import annotations

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

GRACE = 300.0  #: seconds after which a tick that nobody fired, or whose job nobody started, is overdue
CATCH_UP_WINDOW = 7 * 86_400.0
CATCH_UP_MAX = 100
ALERT_AFTER = 2
BROKEN = "can't be fired"  #: how the reason of a pause begins that nobody asked for
REPLACED = "a newer tick of its schedule replaces it"  #: why such a job is asked to stop


# No dataclass: to change one field of forty takes such a one 18 µs, this one 0.4, and every tick changes some four.
class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule: what was declared, and where it stands. Durations are seconds, times the store's."""

    name: str
    rule: str  #: a cron expression, or `every 1h30m`
    tz: str = "UTC"
    dst: Dst = "debian"
    kind: Literal["task", "guard"] = "task"
    source: str = ""  #: the module of the app that declares it; empty: an operator made it, or a guard
    release: str = ""  #: the app's, when it declared this
    released_at: datetime | None = None  #: when this release was first seen: the newer one decides
    job: Draft | None = None  #: what each tick enqueues; None: a guard runs it itself
    overlap: Overlap = "skip"
    catch_up: CatchUp = "latest"
    catch_up_window: float = CATCH_UP_WINDOW
    catch_up_max: int = CATCH_UP_MAX
    expires: float | None = None
    jitter: float = 0.0
    start: datetime | None = None
    end: datetime | None = None
    pause_after: int | None = None  #: so many failures in a row pause it
    alert_after: int = ALERT_AFTER
    grace: float = GRACE
    too_long: float | None = None

    rev: int = 0  #: rises with every write; 0: not stored yet
    since: datetime | None = None  #: ticks before this are not its business
    next_tick: datetime | None = None  #: when it is expected next
    last_tick: datetime | None = None  #: the last one that became a run
    due_at: datetime | None = None  #: when a supervisor looks at it next; None: only when a run of it ends
    pending_tick: datetime | None = None  #: due, and waiting for the run before it to end
    catching_up_to: datetime | None = None  #: the last of the missed ticks that are made up for one by one
    paused_at: datetime | None = None
    paused_why: str = ""
    retired_at: datetime | None = None  #: no longer declared: kept, not fired
    last_run_at: datetime | None = None
    last_duration_ms: int | None = None
    last_status: RunStatus | None = None
    last_error: str = ""
    failure_count: int = 0  #: in a row
    unread: str = ""  #: why this release can't read it: then it leaves it alone, and only a declaration replaces it

    def but(self, **changes: Any) -> Schedule:
        """The same with these changes. Example: `schedule.but(paused_at=now)`"""
        return msgspec.structs.replace(self, **changes)

    @property
    def idle(self) -> bool:
        """Paused or retired: its ticks are not fired."""
        return self.paused_at is not None or self.retired_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What became of one due instant, or of a run of missed ones (`tick` to `until`, `count` of them)."""

    schedule: str
    tick: datetime
    cause: Cause = "tick"
    status: Status = "open"
    why: str = ""  #: of a skipped or missed one the reason, of a failed one its error
    until: datetime | None = None
    count: int = 1
    job_id: str | None = None
    decided_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    host: str = ""
    output: str = ""  #: the tail of what a guarded command printed

    @property
    def reopened(self) -> Tick:
        """As it was while its job had not ended: the job is replayed."""
        return replace(self, status="open", why="", started_at=None, ended_at=None)


class Run(NamedTuple):
    """An open tick, with its job as it is now (None: deleted), and until when its owner's lease holds."""

    tick: Tick
    job: JobView | None
    locked_until: datetime | None

    @property
    def live(self) -> bool:
        return self.job is not None and self.job.state in LIVE


@dataclass(frozen=True, slots=True)
class Standing:
    """A schedule and its open runs, oldest first, read at one moment."""

    schedule: Schedule
    runs: tuple[Run, ...] = ()


class Due(NamedTuple):
    """`standings`: their time has come, or a run of theirs has ended. `next_due`: seconds until the next one."""

    now: datetime
    standings: list[Standing]
    next_due: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One guarded write: it lands if the stored row still has `schedule.rev` (0: if there is none), or not at all.

    It is stored with the next rev. `ticks` replace those with the same schedule, instant and cause. A tick that names
    a draft follows the job that stands, if an id or a unique key is held already. `owner`: the one draft starts as
    processing, attempt 1, under the lease of this worker, which must live: a guard. `delete` removes it, ticks and all.
    """

    schedule: Schedule
    ticks: tuple[Tick, ...] = ()
    drafts: tuple[Draft, ...] = ()
    cancel: tuple[str, ...] = ()  #: jobs that are asked to stop (REPLACED)
    owner: str | None = None
    delete: bool = False

    @property
    def stored(self) -> Schedule:
        """The row as it is to be written."""
        return self.schedule.but(rev=self.schedule.rev + 1)


class Swapped(NamedTuple):
    """Whether a note says now what it should, and what it says."""

    landed: bool
    value: str | None


@dataclass(frozen=True, slots=True)
class _Known:
    """What any release can read."""

    name: str
    rev: int
    rule: str = ""
    source: str = ""


_decode_schedule = msgspec.json.Decoder(Schedule).decode
_decode_known = msgspec.json.Decoder(_Known).decode


def decode_schedule(text: str) -> Schedule:
    """A stored schedule; `unread` if a newer release has written what this one does not know."""
    try:
        return _decode_schedule(text)
    except msgspec.ValidationError as error:
        known = _decode_known(text)
        return Schedule(name=known.name, rev=known.rev, rule=known.rule, source=known.source, unread=str(error))


decode_tick = msgspec.json.Decoder(Tick).decode


class ScheduleStore(Protocol):
    """Schedules, their ticks, and notes: small texts that are compared and set."""

    def due(self, *, limit: int = 500) -> Due:
        """Schedules with `due_at` ≤ now, earliest first, and those with an open run whose job has ended or is gone.

        Each with all its open runs; at most about `limit`, so call again after they were changed. Changes nothing.
        """
        ...

    def change(self, changes: Sequence[Change]) -> list[bool]:
        """Write schedules, with the ticks and jobs that belong to it: each change is one step, and guarded by `rev`.

        False: somebody else wrote first (or the owner of a guard's job does not live): read again. Of two changes
        that were made from the same reading at most one lands.
        """
        ...

    def schedules(self, names: Iterable[str] | None = None) -> list[Standing]:
        """These (None: all), in order of their names, each with its open runs."""
        ...

    def ticks(self, name: str, *, limit: int = 50, before: datetime | None = None) -> list[Tick]:
        """What became of its ticks, newest first; with `before`, of those before that instant."""
        ...

    def forget(self, *, keep: float, limit: int = 1000) -> int:
        """Ticks decided more than `keep` seconds ago, unless open → gone; and notes whose time is over. How many."""
        ...

    # ── notes: the first result of a key, an incident that is open ──

    def swap(
        self, key: str, old: str | None, new: str | None, *, ttl: float | None = None, drafts: Sequence[Draft] = ()
    ) -> Swapped:
        """Compare and set one small text, together with `drafts`: they are enqueued if it lands, and only then.

        Lands when the note says `old` (None: there is none, or its time is over); `new` None removes it. `ttl` seconds
        from now it is over. Where it says `new` already it has landed before: nothing is enqueued again.
        """
        ...

    def notes(self, prefix: str) -> dict[str, str]:
        """Every note whose key begins so and whose time is not over."""
        ...
