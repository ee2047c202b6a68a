"""Engine events as values. Logs and metrics subscribe to them; no event influences the engine.

events = Events()
events.subscribe(JobDied, lambda event: page_someone(str(event)))
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, ClassVar, NamedTuple, TypeVar

from tenure.core.durations import spell
from tenure.core.logs import logger
from tenure.ports import Rescued, Runner


class Running(NamedTuple):
    """The attempt that the current code belongs to. Every log record of a handler carries these fields."""

    job_id: str
    task: str
    queue: str
    attempt: int
    worker_id: str


JOBS = "tenure.jobs"  #: the logger of what goes well: INFO for each enqueued and each completed job
_jobs = logger(JOBS)
LogLine = tuple[str, tuple[object, ...], Mapping[str, object]]  #: a template, its values, the fields of the record
UNKNOWN_TASK = "this worker knows no task"  #: how the reason of a job's snooze begins if its task is unknown
DEPLOY = "deploy the code that has it, or give the renamed task aliases=[…]"
NO_KEY = "this worker has no key"  #: how the reason of a job's snooze begins if its values are encrypted
NOT_FETCHED = "this worker can't fetch"  #: how the reason of a job's snooze begins if a value is kept elsewhere
MISFIT = "arguments fit no worker's code"  #: how the reason of such a snooze begins
LOST = "could not reach a database"  #: how the reason of a snooze begins if a handler failed because of that
#: The explanation of each rescue cause.
RESCUE_REASONS: Mapping[str, str] = {
    "crash": "its worker died",
    "host": "its worker's lease ended",
    "stale": "it hung",
    "queue": "the queue redelivered it",
}

#: Set by the executor around each attempt. The tasks and threads that a handler starts inherit it.
current: ContextVar[Running | None] = ContextVar("tenure_current_job", default=None)


def log_jobs(lines: Iterable[LogLine]) -> None:
    """Log what went well. The lines are made only if they are logged.

    A filter or handler of the program's own may raise: what is stored is stored, and the engine goes on.
    """
    if _jobs.isEnabledFor(logging.INFO):
        for template, values, fields in lines:
            with suppress(Exception):
                _jobs.info(template, *values, extra=fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The base of all events. `str(event)` is one sentence for people; `fields()` is for machines.

    `words()` is that sentence as a template, the same for every event of its kind, and what is filled in: log
    collectors group by the template. Each kind has either `words` or `__str__`.
    """

    area: ClassVar[str] = "worker"  #: the logger is `tenure.<area>`
    level: ClassVar[int] = logging.INFO

    def __str__(self) -> str:
        template, *values = self.words()
        return str(template) % tuple(values)

    def words(self) -> tuple[object, ...]:
        """The template of the sentence, and its values."""
        return "%s", str(self)

    def fields(self) -> dict[str, Any]:
        """Those of job_id, task, queue, attempt and worker_id that this event has."""
        return {name: getattr(self, name) for name in Running._fields if hasattr(self, name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(Event):
    worker_id: str
    pid: int
    slots: int
    queues: tuple[str, ...]
    runner: Runner = "worker"

    def words(self) -> tuple[object, ...]:
        served = ", ".join(self.queues) or "all queues"
        return "worker %s started with %s for %s", self.worker_id, _count(self.slots, "slot"), served


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDelayed(Event):
    """A worker runs no jobs yet, `seconds` after its start. `doing` says what it does and, if known, at which line."""

    area: ClassVar[str] = "supervisor"
    level: ClassVar[int] = logging.WARNING
    worker_id: str
    pid: int
    seconds: float
    doing: str

    def words(self) -> tuple[object, ...]:
        return "worker %s has not started after %s: %s", self.worker_id, spell(self.seconds), self.doing


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDied(Event):
    """A worker's process ended unexpectedly. `cause` is like "signal 9 (SIGKILL)" or "exit code 1"."""

    area: ClassVar[str] = "supervisor"
    level: ClassVar[int] = logging.ERROR
    worker_id: str
    pid: int
    cause: str
    evidence: Mapping[str, str] = field(default_factory=dict[str, str])

    def words(self) -> tuple[object, ...]:
        known = (self.cause, self.worker_id)
        seen = "".join(f", {name} {value}" for name, value in self.evidence.items() if value not in known)
        return "worker %s died: %s%s", self.worker_id, self.cause, seen


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReplaced(Event):
    area: ClassVar[str] = "supervisor"
    worker_id: str
    pid: int
    replaces: str

    def words(self) -> tuple[object, ...]:
        return "worker %s replaces %s", self.worker_id, self.replaces


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRescued(Event):
    """A job was rescued. `rescued.cause` says why, `outcome` how its attempt was ended."""

    area: ClassVar[str] = "rescue"
    level: ClassVar[int] = logging.WARNING
    rescued: Rescued
    outcome: str = "crashed"
    may_run: bool = False  #: its code was not seen to stop: it hangs in a living worker

    def fields(self) -> dict[str, Any]:
        job = self.rescued
        running = Running(job.id, job.task, job.queue, job.attempt, job.worker_id)
        return {**running._asdict(), "cause": job.cause, "state": str(job.state)}

    def words(self) -> tuple[object, ...]:
        job = self.rescued
        why = RESCUE_REASONS[job.cause] + (", and its old code may still run" if self.may_run else "")
        return "%s %s was rescued from %s: %s; now %s", job.task, job.id, job.worker_id, why, job.state


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRefused(Event):
    """A write was refused because the attempt no longer owned its job. `stands` is the store's current record."""

    level: ClassVar[int] = logging.WARNING
    job_id: str
    task: str
    queue: str
    attempt: int
    worker_id: str
    stands: str

    def words(self) -> tuple[object, ...]:
        template = "%s %s: attempt %d lost its lease; its write was refused (%s)"
        return template, self.task, self.job_id, self.attempt, self.stands


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed(Event):
    """The code raised or timed out, and the job will be retried."""

    level: ClassVar[int] = logging.WARNING
    job_id: str
    task: str
    queue: str
    attempt: int
    worker_id: str
    error: str
    failures: int
    max_failures: int | None = None  #: this and the next are unknown if the reply to the write was lost
    retry_in: float | None = None  #: seconds
    exception: BaseException | None = field(default=None, compare=False, repr=False)  #: what the code raised, if known

    def words(self) -> tuple[object, ...]:
        number = f"{self.failures}" if self.max_failures is None else f"{self.failures} of {self.max_failures}"
        when = "" if self.retry_in is None else f" in {spell(self.retry_in)}"
        template = "%s %s: failure %s, will be retried%s: %s"
        return template, self.task, self.job_id, number, when, headline(self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDied(Event):
    """A job became a dead letter: its failure or crash budget is used up."""

    level: ClassVar[int] = logging.ERROR
    job_id: str
    task: str
    queue: str
    attempt: int
    worker_id: str
    error: str
    exception: BaseException | None = field(default=None, compare=False, repr=False)  #: what the code raised, if known

    def words(self) -> tuple[object, ...]:
        return "%s %s is dead after attempt %d: %s", self.task, self.job_id, self.attempt, headline(self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class StallSeen(Event):
    """A worker's event loop has been blocked for `seconds`. `task` and `line` name the code, as far as is known."""

    level: ClassVar[int] = logging.WARNING
    worker_id: str
    job_ids: tuple[str, ...]
    task: str
    line: str
    seconds: float

    def words(self) -> tuple[object, ...]:
        jobs = f" (jobs {', '.join(self.job_ids)})" if self.job_ids else ""
        code, line = self.task or "unknown code", self.line or "an unknown line"
        return "%s: its loop is blocked for %s by %s at %s%s", self.worker_id, spell(self.seconds), code, line, jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAway(Event):
    area: ClassVar[str] = "store"
    level: ClassVar[int] = logging.WARNING
    error: str

    def words(self) -> tuple[object, ...]:
        return "the store is unavailable, retrying: %s", self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBack(Event):
    area: ClassVar[str] = "store"
    seconds: float

    def words(self) -> tuple[object, ...]:
        return "the store is available again after %s", spell(self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifierDegraded(Event):
    """The notifier receives no rings: jobs start later, but none is lost."""

    area: ClassVar[str] = "notifier"
    level: ClassVar[int] = logging.WARNING
    problem: str

    def words(self) -> tuple[object, ...]:
        return "polling instead of listening: %s", self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifierBack(Event):
    area: ClassVar[str] = "notifier"
    seconds: float

    def words(self) -> tuple[object, ...]:
        return "listening again after %s", spell(self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained(Event):
    """A worker has drained; `released` jobs were handed back, uncharged."""

    worker_id: str
    released: int

    def words(self) -> tuple[object, ...]:
        rest = f", {_count(self.released, 'job')} handed back" if self.released else ""
        return "worker %s has drained%s", self.worker_id, rest


E = TypeVar("E", bound=Event)


class Events:
    """The subscribers. They are called in order, on the emitting thread, so they must return quickly."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._subscribers: tuple[tuple[type[Event], Callable[[Any], object]], ...] = ((Event, log_event),)

    def subscribe(self, kind: type[E], fn: Callable[[E], object]) -> Callable[[], None]:
        """Call `fn` for every event of this kind (`Event`: of any). Returns a function that unsubscribes."""
        entry = (kind, fn)
        with self._lock:
            self._subscribers = (*self._subscribers, entry)

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers = tuple(each for each in self._subscribers if each is not entry)

        return unsubscribe

    def emit(self, event: Event) -> None:
        """Call every matching subscriber. If one raises, the error is logged; it never reaches the engine."""
        for kind, fn in self._subscribers:
            if isinstance(event, kind):
                try:
                    fn(event)
                except Exception:
                    with suppress(Exception):  # the subscriber that raised may be the program's own logging
                        logger("tenure.events").exception("a subscriber raised on: %s", event)


def log_event(event: Event) -> None:
    """The default subscriber: stdlib logging, with the job's fields in `extra`, and the traceback of what it raised."""
    raised = event.exception if isinstance(event, AttemptFailed | JobDied) else None
    template, *values = event.words()
    logger(f"tenure.{event.area}").log(event.level, template, *values, exc_info=raised, extra=event.fields())


def headline(error: str) -> str:
    """The first line of an error's text: it says what happened.

    >>> headline("ValueError: no\\n\\n  File 'shop.py', line 3, in send")
    'ValueError: no'
    """
    return error.strip().partition("\n")[0] or "no error recorded"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
