"""Signals, searched: one job that expects a signal, the signal, and the time-out of its wait.

The handler of the job records its first deadline, asks for the time, reads its signals, and is suspended if there is
none. Once it goes on, it records why before it acts. Attempts crash at any point, and the next one starts from the top;
`admit` answers asks in two hands, as in `waiting.py`, and finds by itself what has timed out. The signal is sent
once, early, in time or late, to this job or to all that wait for a key.

The promises: a signal is not lost, nor is the job left to wait although it has arrived or the time is over; one that
was sent in time is read; how a wait ended is not reversed; and no attempt waits a second time.

How the world is made small: the time-out passes once. Records (`once`) are kept with the job. A lease is left to
`protocol.py`: here a crashed attempt runs no more. That an ask is stored with its cause, and goes with its answer, is
in `waiting.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tenure.core.lifecycle import State

from .links import moved
from .search import Step

MISHAPS = 2


@dataclass(frozen=True, slots=True)
class Guards:
    W1_a_signal_asks: bool = True
    W1_a_suspended_job_asks: bool = True
    W1_a_shared_ask_becomes_asks_of_jobs: bool = True  #: not looks: one would be skipped where a row is locked
    W6_what_has_timed_out_is_found: bool = True  #: by an index of its own, not by an ask
    how_it_ended_is_recorded: bool = True  #: before the handler acts on it
    the_first_deadline_is_recorded: bool = True  #: a later attempt waits for what is left of the time
    time_before_signals: bool = True  #: the handler asks whether the time is over, then reads its signals


class Code(StrEnum):
    """Where the handler is."""

    START = "start"
    WAITS = "waits"  #: a deadline is recorded
    ASKED = "asked"  #: it knows whether the time is over, or without one of the rules, whether there is a signal
    LET_GO = "let go"  #: it has found neither, and is about to be suspended
    KNOWS = "knows"
    ACTED = "acted"


class Hand(NamedTuple):
    doing: str = ""  #: looks, or has looked
    found: bool = False


class World(NamedTuple):
    state: State = State.QUEUED
    code: Code = Code.START
    saw: str = ""  #: what the handler has read: that the time is over, or a signal
    knows: str = ""  #: how the wait ended, as the handler has it
    deadline: bool = False
    late: bool = False  #: the deadline has passed
    was_late: bool = False  #: it had, before an attempt set another one
    signal: str = ""  #: sent in time, or late
    recorded: str = ""
    acted: str = ""
    ask: bool = False
    shared_ask: bool = False
    hands: tuple[Hand, Hand] = (Hand(), Hand())
    mishaps: int = 0


Next = Step[World]
SIGHTS = frozenset({("signal", "in time"), ("signal", "late"), ("time-out", "late"), ("time-out", "")})


class Signals:
    start = World()

    def __init__(self, guards: Guards, mishaps: int, *, shared: bool) -> None:
        self.guards, self.mishaps, self.shared = guards, mishaps, shared
        self.name = "signals to a key" if shared else "signals to a job"

    def normal(self, world: World) -> World:
        a, b = world.hands
        return world._replace(hands=(b, a)) if b < a else world

    def at_rest(self, world: World) -> bool:
        return (
            world.state is State.COMPLETED and world.hands == (Hand(), Hand()) and not (world.ask or world.shared_ask)
        )

    def lost(self, world: World) -> str:
        if world.signal:
            return "the job is waiting, its signal has arrived, and no ask is left"
        return "the job is waiting, its time is over, and nobody finds it"

    def sight(self, world: World) -> tuple[str, str]:
        return world.acted, world.signal

    def broken(self, world: World) -> str:
        idle = world.hands == (Hand(), Hand()) and not (world.ask or world.shared_ask)
        if world.state is State.WAITING and world.signal and idle and not (world.late and self._finds()):
            return "the job is waiting, its signal has arrived, and no ask is left"
        if world.acted == "time-out" and world.signal == "in time":
            return "a signal is lost: it was sent in time, and the job goes on without it"
        if world.deadline and world.was_late and not world.late:
            return "the job waits a second time, though its time was over"
        return ""

    def _finds(self) -> bool:
        return self.guards.W6_what_has_timed_out_is_found

    # ── what Tenure does by itself ──

    def engine(self, world: World) -> Iterator[Next]:
        if world.deadline and not world.late:
            yield Step("the time is over", world._replace(late=True))
        if world.state is State.QUEUED and not self._locked(world):
            begun = world._replace(state=moved("claim", world.state, State.PROCESSING), code=Code.START)
            yield Step("an attempt begins", begun)
        if world.state is State.PROCESSING:
            yield from self._handler(world)
        yield from self._admit(world)

    def _handler(self, world: World) -> Iterator[Next]:
        match world.code:
            case Code.START if world.recorded:
                story = f"it has recorded how the wait ended: {world.recorded}"
                yield Step(story, world._replace(code=Code.KNOWS, knows=world.recorded))
            case Code.START if world.deadline and self.guards.the_first_deadline_is_recorded:
                yield Step("it has recorded its deadline", world._replace(code=Code.WAITS))
            case Code.START:
                anew = world._replace(deadline=True, was_late=world.was_late or world.late, late=False)
                yield Step("it sets a deadline", anew._replace(code=Code.WAITS))
            case Code.WAITS:
                yield self._asks(world)
            case Code.ASKED:
                yield self._decides(world)
            case Code.LET_GO:
                waits = world._replace(state=moved("finish", world.state, State.WAITING), saw="", code=Code.START)
                asks = self.guards.W1_a_suspended_job_asks
                yield Step("it is suspended", waits._replace(ask=world.ask or asks))
            case Code.KNOWS:
                acted = world._replace(code=Code.ACTED, acted=world.knows)
                reversed_ = world.acted and world.acted != world.knows
                broken = (
                    f"the job went on by {world.acted}, and now by {world.knows}: it is reversed" if reversed_ else ""
                )
                yield Step(f"it goes on, by {world.knows}", acted, broken)
            case Code.ACTED:
                yield Step("it completes", world._replace(state=moved("finish", world.state, State.COMPLETED)))

    def _asks(self, world: World) -> Next:
        if self.guards.time_before_signals:
            story = f"it asks whether the time is over, and it is{'' if world.late else ' not'}"
            return Step(story, world._replace(code=Code.ASKED, saw="time-out" if world.late else ""))
        story = f"it reads its signals, and there is {'one' if world.signal else 'none'}"
        return Step(story, world._replace(code=Code.ASKED, saw="signal" if world.signal else ""))

    def _decides(self, world: World) -> Next:
        """It reads the other half of what it has to know."""
        signal = bool(world.signal) if self.guards.time_before_signals else world.saw == "signal"
        over = world.saw == "time-out" if self.guards.time_before_signals else world.late
        if not signal and not over:
            return Step("it finds neither a signal nor that the time is over", world._replace(code=Code.LET_GO, saw=""))
        knows = "signal" if signal else "time-out"
        after = world._replace(code=Code.KNOWS, knows=knows, saw="")
        if self.guards.how_it_ended_is_recorded:
            return Step(f"it records that the wait ended, by {knows}", after._replace(recorded=knows))
        return Step(f"its wait has ended, by {knows}", after)

    # ── admit ──

    def _locked(self, world: World) -> bool:
        return any(hand.doing for hand in world.hands)

    def _admit(self, world: World) -> Iterator[Next]:
        for h, hand in enumerate(world.hands):
            if hand.doing == "looks":
                found = bool(world.signal) or world.late
                yield Step("… it reads signals and the time", _put(world, h, Hand("looked", found)))
            elif hand.doing == "looked":
                after, story = _put(world, h, Hand()), "… the job waits on"
                if hand.found:
                    story, after = (
                        "… the job is queued",
                        after._replace(state=moved("admit", world.state, State.QUEUED)),
                    )
                yield Step(story, after)
        free = next((h for h, hand in enumerate(world.hands) if not hand.doing), None)
        if free is None:
            return
        waits, locked = world.state is State.WAITING, self._locked(world)
        if world.shared_ask:
            yield self._shared(world._replace(shared_ask=False), free, waits=waits, locked=locked)
        if locked:
            return
        looks = _put(world, free, Hand("looks"))
        if world.ask:
            after = looks._replace(ask=False) if waits else world._replace(ask=False)
            yield Step(f"admit takes the ask of the job, which {'waits' if waits else 'does not wait'}", after)
        elif waits and world.late and self.guards.W6_what_has_timed_out_is_found:
            yield Step("admit finds that the job has timed out", looks)

    def _shared(self, world: World, free: int, *, waits: bool, locked: bool) -> Next:
        story = "admit takes the ask of the key"
        if not waits:
            return Step(f"{story}, for which no job waits", world)
        if self.guards.W1_a_shared_ask_becomes_asks_of_jobs:
            return Step(f"{story}, and asks for the job", world._replace(ask=True))
        if locked:
            return Step(f"{story}, and skips the job, which is locked", world)
        return Step(f"{story}, and looks at the job", _put(world, free, Hand("looks")))

    # ── what can't be relied on ──

    def chances(self, world: World) -> Iterator[Next]:
        if not world.signal and world.state is not State.COMPLETED:
            sent = world._replace(signal="late" if world.late or world.was_late else "in time")
            if self.guards.W1_a_signal_asks:
                sent = sent._replace(shared_ask=True) if self.shared else sent._replace(ask=True)
            yield Step(f"a signal is sent, {sent.signal}", sent)
        if world.mishaps == self.mishaps:
            return
        mishap = world._replace(mishaps=world.mishaps + 1)
        if world.state is State.PROCESSING:
            again = mishap._replace(state=moved("rescue", world.state, State.QUEUED), code=Code.START, saw="", knows="")
            yield Step("the attempt crashes", again)
        for h, hand in enumerate(world.hands):
            if hand.doing:
                yield Step("a process that admits dies, and its ask stays", _put(mishap, h, Hand())._replace(ask=True))


def _put(world: World, number: int, hand: Hand) -> World:
    a, b = world.hands
    return world._replace(hands=(hand, b) if number == 0 else (a, hand))
