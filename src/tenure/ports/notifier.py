"""The doorbell: rings, and the permits that a queue such as JetStream deals out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, Protocol


class Ring(NamedTuple):
    """Why a doorbell rings: jobs are queued, a job is due earlier than any before, or a cancel was asked.

    Who announces names the jobs, and why they come again (`reason`, of a rescue); who listens hears kind and queue.
    """

    kind: Literal["queued", "due", "cancel"]
    queue: str
    jobs: tuple[str, ...] = ()
    reason: str = ""


ANY = Ring("queued", "")  #: something may have changed: look for yourself


class Notifier(Protocol):
    """The doorbell. Losing a ring costs latency, never a job: every listener also asks the store by itself."""

    def announce(self, rings: Iterable[Ring]) -> None:
        """Ring strictly after the commit. Never blocks, never raises: a ring that cannot be sent is lost."""
        ...

    def listen(self) -> Listener:
        """Start to hear. One listener a process is enough; close it when done."""
        ...

    def problem(self) -> str:
        """Empty while rings are heard; else one sentence that says why this process polls instead. It may change."""
        ...

    def close(self) -> None:
        """Let go of what announcing needed, when what is on its way has left (a second at most).

        Listeners are closed by themselves, before it.
        """
        ...


class Listener(Protocol):
    """One open ear. `fileno()` is readable when a ring waits, so an event loop or a selector can wait on it."""

    @property
    def permits(self) -> Permits | None:
        """None for a doorbell; else what a queue deals out."""
        ...

    def fileno(self) -> int | None:
        """None: there is nothing to wait on; call `drain()` every `interval` seconds."""
        ...

    @property
    def interval(self) -> float:
        """Seconds between two looks when there is no fileno, or as a fallback beside it."""
        ...

    def drain(self) -> list[Ring]:
        """All rings heard since the last call. Never blocks."""
        ...

    def close(self) -> None:
        """Hear no more. Permits still held go back to the queue."""
        ...


class Permit(NamedTuple):
    """A message: whoever holds it may claim one job from its queue. It names a job for people and for `redelivered`."""

    queue: str
    job_id: str
    again: bool  #: the queue had delivered it before, and never heard what became of it
    receipt: str  #: the queue's own name for this delivery


class Permits(Protocol):
    """The flow of permits to one listener. It also keeps telling the queue that what is held is still worked on."""

    def want(self, slots: Mapping[str, int]) -> None:
        """How many more may come of each queue from now on; replaces what was wanted. Never of a queue not named."""
        ...

    def take(self) -> list[Permit]:
        """All that have come since the last call; `fileno()` of the listener is readable when some wait."""
        ...

    def settle(self, permits: Iterable[Permit], *, again_in: float | None = None) -> None:
        """Let go of them: done with (acknowledged), or to be dealt out again after `again_in` seconds."""
        ...
