"""What an app's tracer is told about jobs: enqueues, attempts, rescues, and counts. `tenure.otel` implements it.

Nothing that a tracer does may change what becomes of a job, so none of these raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from tenure.codecs import Codec
from tenure.core.lifecycle import Outcome, State
from tenure.ports import AttemptView, Claimed, Draft, Enqueued, JobView, Rescued


class EnqueueTrace(Protocol):
    """One call that stores jobs."""

    @property
    def drafts(self) -> Sequence[Draft]:
        """The jobs to store: with the context of the trace in their meta."""
        ...

    def stored(self, answers: Iterable[Enqueued]) -> None:
        """What the store answered."""
        ...


class AttemptTrace(Protocol):
    """One attempt, from its start until the store has its outcome."""

    def enter(self) -> None:
        """Make it the parent of what the current context does: called where the code of the handler runs."""
        ...

    def asked_to_stop(self, reason: str) -> None:
        """A cancel, a timeout, a drain or a lost lease. From any thread."""
        ...

    def stopped(self) -> None:
        """Its code has ended: its run time counts until now, however long the store takes."""
        ...

    def end(self, outcome: Outcome | None, raised: BaseException | None, state: State | None, stands: str) -> None:
        """`state`: that of the job after the outcome; None: it is unknown. `stands`: why the store refused it.

        `outcome` None: the lease was lost.
        """
        ...


class Tracing(Protocol):
    """The tracer of an app."""

    def enqueue(self, drafts: Sequence[Draft]) -> AbstractContextManager[EnqueueTrace]:
        """Trace the block, which stores these jobs."""
        ...

    def attempt(self, claimed: Claimed, worker_id: str) -> AttemptTrace:
        """An attempt starts."""
        ...

    def rescued(self, rescued: Rescued, job: JobView, attempt: AttemptView) -> None:
        """An attempt that another process had begun, and whose end only the store knows."""
        ...

    def counts(self, read: Callable[[], Mapping[tuple[str, ...], int]]) -> None:
        """A worker of this process starts; `read` returns all that it has counted, whenever it is called."""
        ...

    def flush(self) -> None:
        """Hand over what was traced. May block for long if nothing takes it."""
        ...


class Traced:
    """The part of an app that has a tracer."""

    tracing: Tracing | None = None  #: set by `tenure.otel.instrument`
    codec: Codec | None = None  #: what encrypts its values
