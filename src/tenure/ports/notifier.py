"""The doorbell: rings, and the permits that a queue such as JetStream hands out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, Protocol


class Ring(NamedTuple):
    """Why a doorbell rings: jobs are queued, a job is due earlier than any before, or a cancel was requested.

    The sender names the jobs and, after a rescue, why they are queued again (`reason`); a listener gets kind and queue.
    """

    kind: Literal["queued", "due", "cancel"]
    queue: str
    jobs: tuple[str, ...] = ()
    reason: str = ""


ANY = Ring("queued", "")  #: something may have changed: ask the store


class Notifier(Protocol):
    """The doorbell. Losing a ring costs latency, never a job: every listener also polls the store."""

    def announce(self, rings: Iterable[Ring]) -> None:
        """Ring strictly after the commit. Never blocks, never raises: a ring that cannot be sent is lost."""
        ...

    def listen(self) -> Listener:
        """Start listening. One listener per process is enough; close it when done."""
        ...

    def problem(self) -> str:
        """Empty while rings arrive; else one sentence that says why this process polls instead. It may change."""
        ...

    def close(self) -> None:
        """Send what is still queued (for a second at most), then release what announcing needed.

        Close the listeners first: they have a `close` of their own.
        """
        ...


class Listener(Protocol):
    """One subscription. `fileno()` is readable when a ring waits, so an event loop or a selector can wait on it."""

    @property
    def permits(self) -> Permits | None:
        """The permits that a queue hands out; None for a mere doorbell."""
        ...

    def fileno(self) -> int | None:
        """None: there is nothing to wait on; call `drain()` every `interval` seconds."""
        ...

    @property
    def interval(self) -> float:
        """Seconds between two polls when there is no fileno, or as a fallback in addition to it."""
        ...

    def drain(self) -> list[Ring]:
        """All rings received since the last call. Never blocks."""
        ...

    def close(self) -> None:
        """Stop listening. Permits still held are returned to the queue."""
        ...


class Permit(NamedTuple):
    """A message: its holder may claim one job from its queue. It names a job for people and for `redelivered`."""

    queue: str
    job_id: str
    again: bool  #: the queue had delivered it before, and it was never acknowledged
    receipt: str  #: the queue's own name for this delivery


class Permits(Protocol):
    """The flow of permits to one listener. It also keeps reporting the held ones to the queue as in progress."""

    def want(self, slots: Mapping[str, int]) -> None:
        """How many more permits to accept per queue; replaces the previous request. None from a queue not named."""
        ...

    def take(self) -> list[Permit]:
        """All permits received since the last call; `fileno()` of the listener is readable when some wait."""
        ...

    def settle(self, permits: Iterable[Permit], *, again_in: float | None = None) -> None:
        """Return permits to the queue: acknowledged, or to be delivered again after `again_in` seconds."""
        ...
