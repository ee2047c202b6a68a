"""The times of a job that waits (W6), searched: when it is due, when it expires, and its turn under a limit.

One job waits for another one, is to start no earlier than a given time, has a limit with one place, and expires. The
clock advances tick by tick, and anything may happen between two ticks: the job before it ends, the place is taken and
freed by others, the limit is paused for good, the place goes back because the job has not begun, the attempt crashes.

The promises: the job begins neither before its time nor after it has expired; it expires no earlier than a given time
after it could have started, however long the job before it took; once it has begun, it expires no more; what has
expired takes no place, and is ended even if no place is ever free; and the job keeps its turn: how long it has been due
decides its order among the jobs of its key, and its admission its order in the queue.

How the world is made small: a verb is one step, as asks and locks are searched in `waiting.py` and `places.py`. The
job before it ends by the tick `LATEST`. Time-outs of signals are in `signals.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tenure.core.lifecycle import EXPIRED, State

from .links import moved
from .search import Step

MISHAPS = 3
WANTED, EXPIRES, LATEST = 1, 1, 2  #: when it may start; for how long after that; when the job before it has ended
LAST = LATEST + EXPIRES + 2  #: the clock stops there: nothing is left that it could change


@dataclass(frozen=True, slots=True)
class Guards:
    W6_a_delay_is_kept_after_the_wait: bool = True  #: it is due when both the wait and the delay are over
    W6_expires_counts_from_the_admission: bool = True  #: after jobs and signals, it counts anew
    W6_expires_runs_on_during_a_limit: bool = True  #: a place moves it no further
    W6_what_has_expired_is_not_begun: bool = True
    W6_what_has_expired_is_given_no_place: bool = True
    W6_what_has_expired_is_found: bool = True  #: by an index of its own, not by an ask
    W6_what_has_begun_expires_no_more: bool = True
    W6_a_job_keeps_its_turn: bool = True  #: `due_at` is not the time of its last admission
    W6_a_place_sets_the_order_in_the_queue: bool = True  #: `run_at` is: a long backlog of one key is not always first


class World(NamedTuple):
    now: int = 0
    state: State = State.WAITING
    before: bool = True  #: the job before it has not ended
    run_at: int = WANTED
    due_at: int = WANTED
    expires_at: int = WANTED + EXPIRES
    could: int = -1  #: when it could have started, but for the limit
    given: int = -1  #: when it was last given its place
    begun: bool = False
    expired: bool = False
    taken: bool = False  #: another job has the place
    paused: bool = False  #: the limit, for good
    mishaps: int = 0


Next = Step[World]
SIGHTS = frozenset({State.WAITING, State.SCHEDULED, State.QUEUED, State.PROCESSING, State.COMPLETED, EXPIRED})


class Times:
    name = "times"
    start = World()

    def __init__(self, guards: Guards, mishaps: int) -> None:
        self.guards, self.mishaps = guards, mishaps

    def normal(self, world: World) -> World:
        return world

    def at_rest(self, world: World) -> bool:
        waits_on = world.paused and world.begun and world.state is State.WAITING
        return world.state in (State.COMPLETED, State.CANCELLED) or waits_on

    def lost(self, world: World) -> str:
        return f"the job has expired, and is {world.state} for good: nobody finds it"

    def sight(self, world: World) -> str:
        return EXPIRED if world.expired else world.state

    def broken(self, world: World) -> str:
        if world.could < 0:
            return ""
        if world.due_at != world.could:
            return f"the job has been due since {world.could}, and has the turn of one that is due since {world.due_at}"
        if world.given >= 0 and world.state is State.QUEUED and world.run_at != world.given:
            return f"the job was admitted at {world.given}, and is in the queue as of {world.run_at}: it overtakes"
        return ""

    # ── what Tenure and time do by themselves ──

    def engine(self, world: World) -> Iterator[Next]:
        if world.now < LAST and not (world.before and world.now == LATEST):
            yield Step(f"it is {world.now + 1}", world._replace(now=world.now + 1))
        if world.before:
            yield Step("the job before it has ended, and it is admitted", self._admitted(world))
        if world.taken:
            yield Step("the job that has the place ends", world._replace(taken=False))
        match world.state:
            case State.SCHEDULED if world.run_at <= world.now:
                yield Step("it is promoted, and waits for its limit", self._parked(world, "promote"))
            case State.WAITING if not world.before:
                yield from self._limited(world)
            case State.QUEUED:
                yield self._claimed(world)
            case State.PROCESSING:
                yield Step("it completes", world._replace(state=moved("finish", world.state, State.COMPLETED)))
            case _:
                pass

    def _over(self, world: World) -> bool:
        spared = world.begun and self.guards.W6_what_has_begun_expires_no_more
        return world.expires_at < world.now and not spared

    def _admitted(self, world: World) -> World:
        """No edge of it is open any more."""
        guards = self.guards
        due = max(world.now, world.run_at) if guards.W6_a_delay_is_kept_after_the_wait else world.now
        moves = due - world.run_at if guards.W6_expires_counts_from_the_admission else 0
        after = world._replace(before=False, run_at=due, due_at=due, expires_at=world.expires_at + moves)
        after = after._replace(could=max(world.now, WANTED))
        if due > world.now:
            return after._replace(state=moved("admit", world.state, State.SCHEDULED))
        return after  # it waits on, for its limit

    def _parked(self, world: World, verb: str) -> World:
        """It waits under its key, with the turn that it has."""
        return world._replace(state=moved(verb, world.state, State.WAITING), given=-1)

    def _limited(self, world: World) -> Iterator[Next]:
        over = self._over(world)
        if over and self.guards.W6_what_has_expired_is_found:
            yield self._ends(world, "admit finds that it has expired")
        if world.taken or world.paused:
            return
        if over and self.guards.W6_what_has_expired_is_given_no_place:
            yield self._ends(world, "admit would give it the place, and sees that it has expired")
            return
        after = world._replace(state=moved("admit", world.state, State.QUEUED), given=world.now)
        if self.guards.W6_a_place_sets_the_order_in_the_queue:
            after = after._replace(run_at=world.now)
        if not self.guards.W6_expires_runs_on_during_a_limit:
            after = after._replace(expires_at=world.expires_at + max(0, world.now - world.run_at))
        if not self.guards.W6_a_job_keeps_its_turn:
            after = after._replace(due_at=world.now)
        broken = "a job that has expired takes a place" if over else ""
        yield Step("it is given the place", after, broken)

    def _claimed(self, world: World) -> Next:
        if self._over(world) and self.guards.W6_what_has_expired_is_not_begun:
            claimed = world._replace(state=moved("claim", world.state, State.PROCESSING))
            return self._ends(claimed, "a worker claims it, sees that it has expired, and runs no handler", "finish")
        broken = ""
        if not world.begun and world.now < WANTED:
            broken = f"it begins at {world.now}, and was to start no earlier than {WANTED}"
        if not world.begun and world.now > world.could + EXPIRES:
            broken = f"it begins at {world.now}, and was due at {world.could}: it had expired"
        begun = world._replace(state=moved("claim", world.state, State.PROCESSING), begun=True)
        return Step("an attempt begins", begun, broken)

    def _ends(self, world: World, story: str, verb: str = "admit") -> Next:
        broken = ""
        if world.begun:
            broken = "a job expires that has begun before"
        elif world.now <= world.could + EXPIRES:
            broken = f"it expires at {world.now}, and could have started at {world.could} for the first time"
        ended = world._replace(state=moved(verb, world.state, State.CANCELLED), expired=True)
        return Step(f"{story}: it is cancelled", ended, broken)

    # ── what can't be relied on ──

    def chances(self, world: World) -> Iterator[Next]:
        if world.mishaps == self.mishaps:
            return
        mishap = world._replace(mishaps=world.mishaps + 1)
        held = world.state in (State.QUEUED, State.PROCESSING)
        if not (world.taken or held):
            yield Step("another job takes the place", mishap._replace(taken=True))
        if not world.paused:
            yield Step("the limit is paused for good", mishap._replace(paused=True))
        if world.state is State.QUEUED:
            yield Step("it has not begun for long, and its place goes back", self._parked(mishap, "withdraw"))
        if world.state is State.PROCESSING:
            yield Step("the attempt crashes, and the job is parked", self._parked(mishap, "rescue"))
