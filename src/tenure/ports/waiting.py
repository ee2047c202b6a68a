"""Jobs that wait: for jobs before them, or for a signal. `admit` lets them go on once that has happened.

Whatever may end a wait stores an *ask* in its own transaction: a linked job ended, a job that waits was stored, a job
was suspended, a signal arrived. Only `admit` removes asks. So a process that dies in between loses nothing, and nothing
depends on a walk through the jobs that wait; the one there is (`lost_waits`) only checks that no ask is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

from tenure.core.lifecycle import State
from tenure.ports.jobs import Answer
from tenure.ports.reads import JobView
from tenure.ports.workers import PROTOCOL

NEWEST_FLOWS = 200  #: among which `waits` counts the open ones
MOST_EDGES = 10_000  #: jobs that one job waits for


class Admitted(NamedTuple):
    """What `admit` did: the ids it queued, by queue; `scheduled`: some are due later. `more`: asks are left.

    `next_due`: seconds until the next time-out of a wait; None: there is none.
    """

    jobs: Mapping[str, Sequence[str]]
    scheduled: bool = False
    cancelled: int = 0
    more: bool = False
    next_due: float | None = None


class Input(NamedTuple):
    """An edge of a job, and its parent as the store has it. `state` None: the parent is gone, which ends the wait.

    `place` counts the edges of a job from 0, in the order in which they were given. `mine`: it gathers this parent.
    """

    place: int
    parent: str
    until: Literal["completed", "ended"]
    open: bool
    skipped: bool
    mine: bool
    task: str | None
    state: State | None
    result: str | None
    error: str | None


class SignalView(NamedTuple):
    """A signal that was sent. `key`: `own:NAME` of the job, or `shared:KEY`."""

    key: str
    value: str
    sent_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowView:
    """A flow as people see it."""

    id: str
    name: str
    created_at: datetime
    counts: Mapping[State, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


class Member(NamedTuple):
    """A job of a flow, without the values that only its own page shows."""

    id: str
    task: str
    queue: str
    state: State


class EdgeView(NamedTuple):
    """An edge of a job. The parent may be gone."""

    child: str
    parent: str
    until: Literal["completed", "ended"]
    open: bool
    skipped: bool
    mine: bool  #: the child gathers this parent


class Waits(NamedTuple):
    """What is left to do for jobs that wait."""

    asks: int  #: that `admit` has not answered, counted up to a maximum
    flows: int  #: with a job that has not ended, among the newest 200


class WaitReads(Protocol):
    """The reads of waiting, for people and their tools. None of them changes anything, or walks the jobs that wait."""

    def outdated(self, protocol: int = PROTOCOL) -> list[str]:
        """The ids of live workers that know less than this protocol."""
        ...

    def signals(self, job_id: str | None, keys: Iterable[str] | None = None, *, start: str = "") -> list[SignalView]:
        """The signals of this job, or with None the shared ones, by key: of `keys`, or 1,000 after `start`."""
        ...

    def inputs(self, job_id: str, *, start: int = 0, limit: int = 200) -> list[Input]:
        """The edges of this job from place `start` on, with what became of their parents."""
        ...

    def dependents(self, job_id: str, *, start: str = "", limit: int = 200) -> list[tuple[str, Input]]:
        """The edges that lead from this job, each with the id of the job that waits, or waited; those after `start`."""
        ...

    def flows(
        self, ids: Iterable[str] | None = None, *, limit: int = 50, before: tuple[datetime, str] | None = None
    ) -> list[FlowView]:
        """Flows with their counts, newest first: those of `ids`, or those created before this time and id."""
        ...

    def members(self, flow: str, *, start: str = "", limit: int = 1000) -> list[Member]:
        """The jobs of this flow in order of their ids, those after `start`."""
        ...

    def edges(self, ids: Sequence[str], *, limit: int = 2000) -> list[EdgeView]:
        """The edges of these jobs, in the order of `ids` and then of their places; the first `limit` of them."""
        ...

    def holding(self, *, limit: int = 50) -> list[JobView]:
        """Dead jobs for which live ones wait, those that died last first. Its cost grows with `limit` alone."""
        ...

    def waited_longest(self, *, limit: int = 50) -> list[JobView]:
        """Waiting jobs by `run_at`, the earliest first. Its cost grows with `limit` alone."""
        ...

    def lost_waits(self, ids: Iterable[str]) -> dict[str, list[str]]:
        """Those of these jobs that wait for something that has happened, with no ask left: there should be none.

        Each with the jobs before it whose end was not noticed. It reads the store once, so that it finds no job that is
        being admitted. It looks at 200 open edges of each job; while more than a thousand asks are left, at nothing.
        """
        ...

    def waits(self, *, most: int = 10_000) -> Waits:
        """How many asks are left, at most `most`, and how many of the newest 200 flows are open."""
        ...


class WaitStore(WaitReads, Protocol):
    """The verbs of waiting. Each is one atomic step, or a bounded number of them that may be cut anywhere."""

    def admit(self, *, limit: int = 200) -> Admitted:
        """waiting → queued, or scheduled when due later, or cancelled; works through at most `limit` asks and jobs.

        A job is admitted when none of its edges is open and the signal it waits for has arrived or timed out. An edge
        closes when its parent has completed, or for `ended` when it has ended in any way or is gone. A parent that is
        dead, or that expired, keeps its `completed` edges open until it is replayed and completes. A parent that was
        cancelled, or that is gone, cancels the jobs that need it completed; a job that ends otherwise than completed
        cancels the live jobs that it gathers. At its admission a job is due at once, or when it was to be due, and
        `expires` counts from then.

        A job with limits is then parked, due or not, until each of its keys has room: there are fewer places held than
        the key has, it has a token more than there are jobs that hold a place and have not begun, and it is not paused.
        Of those parked under a key, the highest priority goes first, then the one that was due first, then the
        smaller id; only those whose queue is not paused, and is served by a live worker. An admitted job is due at
        once: a long backlog of one key is not always first in its queue. One that has never begun and has expired
        meanwhile is cancelled.

        Nothing is admitted while a live worker is registered that knows nothing of jobs that wait, and no job with
        limits while one is registered that knows nothing of limits. Call again while there is `more`.
        """
        ...

    def signal(self, job_id: str | None, key: str, value: str, *, replace: bool = False) -> Answer | None:
        """Store a signal: to one job (`own:NAME`), or with None to every job that waits for `shared:KEY`.

        It arrives once: NotLanded if there is one already, unless `replace`, or if the job has ended. `Landed` names
        the job's state; for a shared signal, waiting. None: there is no such job.
        """
        ...

    def ask(self, ids: Iterable[str]) -> None:
        """Store an ask for each of these jobs: `admit` looks at those that wait, and at those that wait for these."""
        ...

    def skip(self, ids: Iterable[str]) -> dict[str, Answer | None]:
        """The jobs that wait for these go on without them. NotLanded unless dead or cancelled; None: no such job."""
        ...
