"""How an attempt is suspended: all that it waits for, and what counts when it waits for several things at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tenure.core.lifecycle import Failed, Suspended


class Suspends:
    """The waits of one attempt that have not ended. Added to by the threads and tasks of its handler."""

    def __init__(self) -> None:
        self.waits: list[Suspended] = []
        self.late: list[str] = []  #: time-outs that end the job instead, even if the handler never saw them

    def add(self, outcome: Suspended) -> Suspend:
        self.waits.append(outcome)
        return Suspend(outcome, self)

    @property
    def first(self) -> Suspend | None:
        return Suspend(self.waits[0], self) if self.waits else None

    @property
    def outcome(self) -> Suspended | Failed:
        """The outcome of the attempt, which needs all its waits: so it waits for one signal, and then for the next.

        The signal that times out first comes first, and before the jobs that are joined. A gathered job is waited for
        from when it is stored: a time-out meanwhile is seen only after its end.
        """
        if self.late:
            return Failed("\n".join(self.late), final=True)
        signals = [each for each in self.waits if each.signal is not None]
        signals.sort(key=lambda each: float("inf") if each.timeout is None else each.timeout)
        first = (signals or self.waits)[0]
        if first.timeout is not None:
            return first
        return replace(first, after=tuple(dict.fromkeys(edge for each in self.waits for edge in each.after)))


class Suspend(BaseException):
    """Raised in a handler to give its slot back until what it waits for has happened.

    Not an Exception, so that `except Exception` does not catch it: let it leave the handler.
    """

    def __init__(self, outcome: Suspended, among: Suspends) -> None:
        super().__init__(f"the job is suspended: it {outcome.reason}")
        self._among = among

    @property
    def outcome(self) -> Suspended | Failed:
        """The outcome of the attempt: another task of the handler may wait, too, though its exception was lost."""
        return self._among.outcome


def together(suspends: Sequence[Suspend]) -> Suspend:
    """One of them, for all: they belong to one attempt, and each stands for all of its waits."""
    return suspends[0]
