"""What happens in the engine, as values. Logs and metrics are subscribers; nothing here decides anything.

events = Events()
events.subscribe(JobDied, lambda event: page_someone(str(event)))
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, ClassVar, NamedTuple, TypeVar

from tenure.core.durations import spell
from tenure.core.lifecycle import State
from tenure.ports import Rescued, Runner


class Running(NamedTuple):
    """The attempt that this code belongs to: what every log record of a handler is marked with."""

    job_id: str
    task: str
    queue: str
    attempt: int
    worker_id: str


#: Why a job was taken back, by the cause of its rescue.
RESCUE_REASONS: Mapping[str, str] = {
    "crash": "its worker died",
    "host": "its worker's lease ended",
    "stale": "it hung in a living worker, so old code may still run",
    "queue": "the queue delivered it again",
}

#: Set by the executor around each attempt. It is inherited by the tasks and threads that a handler starts.
current: ContextVar[Running | None] = ContextVar("tenure_current_job", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The root of all events. `str(event)` is one sentence for people; `fields()` is for machines."""

    area: ClassVar[str] = "worker"  #: the logger is `tenure.<area>`
    level: ClassVar[int] = logging.INFO

    def fields(self) -> dict[str, Any]:
        """Those of job_id, task, queue, attempt and worker_id that this event knows."""
        return {name: getattr(self, name) for name in Running._fields if hasattr(self, name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(Event):
    worker_id: str
    pid: int
    slots: int
    queues: tuple[str, ...]
    runner: Runner = "worker"

    def __str__(self) -> str:
        served = ", ".join(self.queues) or "all queues"
        return f"worker {self.worker_id} is up with {_count(self.slots, 'slot')} for {served}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDied(Event):
    """A worker's process is gone. `cause` is like "signal 9 (SIGKILL)" or "exit code 1"."""

    area: ClassVar[str] = "supervisor"
    level: ClassVar[int] = logging.ERROR
    worker_id: str
    pid: int
    cause: str
    evidence: Mapping[str, str] = field(default_factory=dict[str, str])

    def __str__(self) -> str:
        known = (self.cause, self.worker_id)
        seen = "".join(f", {name} {value}" for name, value in self.evidence.items() if value not in known)
        return f"worker {self.worker_id} died: {self.cause}{seen}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReplaced(Event):
    area: ClassVar[str] = "supervisor"
    worker_id: str
    pid: int
    replaces: str

    def __str__(self) -> str:
        return f"worker {self.worker_id} takes the place of {self.replaces}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRescued(Event):
    """A job was taken back. `rescued.cause` tells by which path, `outcome` how its attempt was ended."""

    area: ClassVar[str] = "rescue"
    level: ClassVar[int] = logging.WARNING
    rescued: Rescued
    outcome: str = "crashed"

    def fields(self) -> dict[str, Any]:
        job = self.rescued
        running = Running(job.id, job.task, job.queue, job.attempt, job.worker_id)
        return {**running._asdict(), "cause": job.cause, "state": str(job.state)}

    def __str__(self) -> str:
        job = self.rescued
        why = RESCUE_REASONS[job.cause]
        return f"{job.task} {job.id} was taken back from {job.worker_id}: {why}; now {job.state}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRefused(Event):
    """An owner's write changed nothing: it was the owner no longer. `stands` is what the store holds instead."""

    level: ClassVar[int] = logging.WARNING
    job_id: str
    task: str
    queue: str
    attempt: int
    worker_id: str
    stands: str

    def __str__(self) -> str:
        return (
            f"{self.task} {self.job_id}: attempt {self.attempt} lost its lease, its write was refused ({self.stands})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed(Event):
    """The code raised or timed out, and the job will be tried again."""

    level: ClassVar[int] = logging.WARNING
    job_id: str
    task: str
    queue: str
    attempt: int
    worker_id: str
    error: str
    failures: int

    def __str__(self) -> str:
        return f"{self.task} {self.job_id}: failure {self.failures}, to be tried again: {headline(self.error)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDied(Event):
    """A dead letter: failures or crashes are used up."""

    level: ClassVar[int] = logging.ERROR
    job_id: str
    task: str
    queue: str
    attempt: int
    worker_id: str
    error: str

    def __str__(self) -> str:
        return f"{self.task} {self.job_id} is {State.DEAD} after attempt {self.attempt}: {headline(self.error)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StallSeen(Event):
    """A worker's loop has been blocked for `seconds`. `task` and `line` say by what, as far as it is known."""

    level: ClassVar[int] = logging.WARNING
    worker_id: str
    job_ids: tuple[str, ...]
    task: str
    line: str
    seconds: float

    def __str__(self) -> str:
        jobs = f" (jobs {', '.join(self.job_ids)})" if self.job_ids else ""
        blocked = f"{self.worker_id}: its loop is blocked for {spell(self.seconds)}"
        return f"{blocked} by {self.task or 'unknown code'} at {self.line or 'an unknown line'}{jobs}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAway(Event):
    area: ClassVar[str] = "store"
    level: ClassVar[int] = logging.WARNING
    error: str

    def __str__(self) -> str:
        return f"the store is out of reach, trying again: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBack(Event):
    area: ClassVar[str] = "store"
    seconds: float

    def __str__(self) -> str:
        return f"the store is back after {spell(self.seconds)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifierDegraded(Event):
    """Rings are not heard: jobs start later, none is lost."""

    area: ClassVar[str] = "notifier"
    level: ClassVar[int] = logging.WARNING
    problem: str

    def __str__(self) -> str:
        return f"polling instead of listening: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifierBack(Event):
    area: ClassVar[str] = "notifier"
    seconds: float

    def __str__(self) -> str:
        return f"listening again after {spell(self.seconds)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained(Event):
    """A worker has ended its work; `released` jobs were handed back, uncharged."""

    worker_id: str
    released: int

    def __str__(self) -> str:
        rest = f", {_count(self.released, 'job')} handed back" if self.released else ""
        return f"worker {self.worker_id} has drained{rest}"


E = TypeVar("E", bound=Event)


class Events:
    """Who hears of what. Subscribers are called in order, on the thread where it happened: be quick."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._subscribers: tuple[tuple[type[Event], Callable[[Any], object]], ...] = ((Event, log_event),)

    def subscribe(self, kind: type[E], fn: Callable[[E], object]) -> Callable[[], None]:
        """Call `fn` for every event of this kind (`Event`: of any). Returns the function that ends it."""
        entry = (kind, fn)
        with self._lock:
            self._subscribers = (*self._subscribers, entry)

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers = tuple(each for each in self._subscribers if each is not entry)

        return unsubscribe

    def emit(self, event: Event) -> None:
        """Tell everyone. A subscriber that raises is logged; it never breaks the engine."""
        for kind, fn in self._subscribers:
            if isinstance(event, kind):
                try:
                    fn(event)
                except Exception:
                    logging.getLogger("tenure.events").exception("a subscriber raised on: %s", event)


def log_event(event: Event) -> None:
    """The subscriber that is always there: stdlib logging, with the job's fields in `extra`."""
    logging.getLogger(f"tenure.{event.area}").log(event.level, "%s", event, extra=event.fields())


def headline(error: str) -> str:
    """The line of an error's text that says what happened: its first.

    >>> headline("ValueError: no\\n\\n  File 'shop.py', line 3, in send")
    'ValueError: no'
    """
    return error.strip().partition("\n")[0] or "no error recorded"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
