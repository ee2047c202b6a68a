"""Places of keys, searched: jobs of one or two queues that need places, and two processes that give them.

`admit` gives places in a transaction of its own: it takes an ask, counts what is held, and gives what is free to the
jobs that are parked there, one at a time here. Meanwhile jobs are stored, begin and end, are taken back from a worker
that died, cancelled by an operator who holds the row for a while, and replayed; a queue is paused, or its workers are
busy for good; a limit is lowered and raised; processes die. `withdraw` takes back what is not used.

The promises: no more of a key are queued or processing than its limit allows; no job waits for a key that has room when
no ask is left; a queue that does not use its places holds up no other one; and all comes to rest.

How the world is made small: a verb other than `admit` is one step with its commit, as it counts nothing. Which job a
key serves is decided by the code itself (`serve` of `stores/places.py`). A place that has not begun for long is one of
a queue whose workers are busy. Left out: the rate, which is in `rates.py`; pauses of a key, which end as a token comes;
W5, which is in `waiting.py`. Where a store has one writer at a time, `admit` is one step, and so its orders are some of
those searched here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tenure.core.lifecycle import ENDED, State
from tenure.core.limits import Bounds, Key
from tenure.stores.places import Candidate, Count, serve
from tenure.stores.places import State as KeyState

from .links import moved
from .search import Step

MISHAPS = 2
KEYS = "KL"


def _in(scene: str) -> bool:
    """A rule, with the name of the scene that shows what happens without it."""
    return field(default=True, metadata={"scene": scene})


@dataclass(frozen=True, slots=True)
class Guards:
    W1_a_job_that_is_parked_asks: bool = _in("two queues")
    W1_an_ask_is_stored_with_its_cause: bool = _in("two queues")  #: in one transaction, not after the commit
    W1_an_ask_is_taken_before_the_count: bool = _in("two queues")  #: one that comes later is not taken with it
    W1_an_ask_goes_with_its_answer: bool = _in("two queues")  #: in one transaction: a process that dies undoes both
    W3_a_job_that_is_locked_keeps_its_ask: bool = _in("two queues")
    W4_only_admit_queues_a_limited_job: bool = _in("two queues")  #: a rescue and a replay park it
    L1_one_at_a_time_gives_places: bool = _in("two queues")  #: under one lock
    L1_counted_under_the_lock: bool = _in("two queues")  #: in a statement that follows
    L1_a_place_goes_with_its_job: bool = _in("two queues")  #: by the same write: it is counted from the rows
    L1_a_place_that_is_freed_asks: bool = _in("two queues")
    L1_a_key_with_room_is_asked_again: bool = _in("two places")  #: each transaction gives a bounded number
    L1_a_limit_that_is_changed_asks: bool = _in("two places")
    L1_a_place_of_each_key_or_none: bool = _in("two keys")
    L1_parked_under_the_key_that_refused: bool = _in("two keys")  #: or it holds up those behind it
    L3_no_place_for_a_queue_that_nobody_serves: bool = _in("two queues")
    L3_a_queue_that_is_passed_over_is_remembered: bool = _in("two queues")
    L3_a_place_of_a_queue_that_nobody_serves_goes_back: bool = _in("two queues")
    L3_a_place_that_is_not_begun_goes_to_another_queue: bool = _in("two queues")
    L3_a_slow_queue_comes_last: bool = _in("two queues")  #: or it would be given the same place again


# ── The world ───────────────────────────────────────────────────────────────────────────────────────────────────


class Queue(StrEnum):
    SERVED = "served"
    BUSY = "busy"  #: it has workers, and they claim nothing
    IDLE = "idle"  #: it is paused, or has no worker


class Job(NamedTuple):
    state: State | None = None  #: None: not stored yet
    place: bool = False  #: rows say that it holds its places
    parked: int = -1  #: the number of a key


class Hand(NamedTuple):
    """A transaction of `admit` that is under way. `counted`: it has the lock; before that it may have `seen` counts."""

    stage: str = ""
    key: int = -1
    held: tuple[int, ...] = ()  #: of each key, as it was counted
    bounds: tuple[int, ...] = ()
    served: tuple[bool, ...] = ()  #: of each queue
    most: tuple[int, ...] = ()  #: the highest bounds since it has the lock


class World(NamedTuple):
    jobs: tuple[Job, ...]
    queues: tuple[Queue, ...]
    bounds: tuple[int, ...]  #: of each key: its places
    asks: int = 0  #: a bit for each key
    idle: int = 0  #: a bit for each key and queue that was passed over under it
    slow: int = -1  #: the queue that comes last
    hands: tuple[Hand, Hand] = (Hand(), Hand())
    locked: int = -1  #: the job whose row an operator has locked
    unsent: int = 0  #: without one of the rules: asks that a process has yet to store
    unfreed: int = 0  #: likewise: jobs whose places a process has yet to free
    mishaps: int = 0


class Scene(NamedTuple):
    name: str
    jobs: tuple[tuple[int, tuple[int, ...]], ...]  #: of each its queue and its keys
    bounds: tuple[int, ...]
    chances: frozenset[str]


Next = Step[World]
SCENES = (
    Scene("two queues", ((0, (0,)), (1, (0,))), (1,), frozenset({"rescue", "cancel", "replay", "queues"})),
    Scene("two places", ((0, (0,)), (0, (0,)), (0, (0,))), (2,), frozenset({"bounds", "cancel"})),
    Scene("two keys", ((0, (1,)), (1, (0, 1)), (1, (0,))), (1, 1), frozenset({"rescue", "queues"})),
)
SIGHTS = frozenset({"", "gives", "gives, a row is locked", "gives, a queue was passed over", "gives, a queue is slow"})
HELD = (State.QUEUED, State.PROCESSING)
IDLE = Hand()


def scenes(guards: Guards) -> Iterator[Scene]:
    """All, or the one that shows what happens without the rule that is left out."""
    fields = Guards.__dataclass_fields__
    missing = {fields[rule].metadata["scene"] for rule in fields if not getattr(guards, rule)}
    yield from (scene for scene in SCENES if not missing or scene.name in missing)


class _Rows:
    """What a statement changes."""

    def __init__(self, guards: Guards, scene: Scene) -> None:
        self.guards, self.scene = guards, scene

    def queue(self, world: World, number: int) -> Queue:
        return world.queues[self.scene.jobs[number][0]]

    def keys(self, number: int) -> tuple[int, ...]:
        return self.scene.jobs[number][1]

    def held(self, world: World) -> tuple[int, ...]:
        """The places of each key, as rows say."""
        return tuple(
            sum(job.place and key in self.keys(number) for number, job in enumerate(world.jobs))
            for key in range(len(world.bounds))
        )

    def run(self, world: World, key: int) -> int:
        """How many jobs of a key are queued or processing, whatever the rows say of places."""
        return sum(job.state in HELD and key in self.keys(number) for number, job in enumerate(world.jobs))

    def ask(self, world: World, *keys: int) -> World:
        bits = sum(1 << key for key in set(keys))
        if self.guards.W1_an_ask_is_stored_with_its_cause:
            return world._replace(asks=world.asks | bits)
        return world._replace(unsent=world.unsent | bits)

    def leaves(self, world: World, number: int, state: State) -> World:
        """A job is not queued or processing any more: its places are free."""
        job = world.jobs[number]
        after = _put(world, number, job._replace(state=state, parked=-1))
        if not job.place:
            return after
        if not self.guards.L1_a_place_goes_with_its_job:
            return after._replace(unfreed=after.unfreed | 1 << number)
        return self.freed(after, number)

    def freed(self, world: World, number: int) -> World:
        world = _put(world, number, world.jobs[number]._replace(place=False))
        return self.ask(world, *self.keys(number)) if self.guards.L1_a_place_that_is_freed_asks else world

    def park(self, world: World, number: int, verb: str) -> World:
        """It waits, under its first key, wherever another job would be queued."""
        state = world.jobs[number].state
        if not self.guards.W4_only_admit_queues_a_limited_job and verb in ("rescue", "replay"):
            return self.leaves(world, number, moved(verb, state, State.QUEUED))
        world = self.leaves(world, number, moved(verb, state, State.WAITING))
        key = self.keys(number)[0]
        world = _put(world, number, world.jobs[number]._replace(parked=key))
        return self.ask(world, key) if self.guards.W1_a_job_that_is_parked_asks else world


class _Giving(_Rows):
    """The transaction of `admit` that gives places, and `withdraw`."""

    def giving(self, world: World) -> Iterator[Next]:
        for h, hand in enumerate(world.hands):
            if hand.stage == "counted":
                yield self._give(world, h, hand)
            elif hand.stage == "seen" and self._may_lock(world):
                locks = hand._replace(stage="counted", most=world.bounds)
                yield Step("… it has the lock", self._taken(_put_hand(world, h, locks), hand.key))
        free = next((h for h, hand in enumerate(world.hands) if not hand.stage), None)
        if free is None:
            return
        for key in range(len(world.bounds)):
            if not world.asks >> key & 1:
                continue
            served = tuple(queue is not Queue.IDLE for queue in world.queues)
            seen = Hand("seen", key, self.held(world), world.bounds, served)
            if not self.guards.L1_counted_under_the_lock:
                story = f"admit takes the ask of {KEYS[key]}, and counts its places without the lock"
                yield Step(story, _put_hand(world, free, seen))
            elif self._may_lock(world):
                counted = seen._replace(stage="counted", most=world.bounds)
                story = f"admit takes the ask of {KEYS[key]}, and counts {seen.held[key]} of {world.bounds[key]} places"
                yield Step(story, self._taken(_put_hand(world, free, counted), key))

    def _may_lock(self, world: World) -> bool:
        """No other transaction is giving or taking back places."""
        busy = any(hand.stage == "counted" for hand in world.hands)
        return not (busy and self.guards.L1_one_at_a_time_gives_places)

    def _taken(self, world: World, key: int) -> World:
        if not self.guards.W1_an_ask_is_taken_before_the_count:
            return world
        return world._replace(asks=world.asks & ~(1 << key))

    def _give(self, world: World, h: int, hand: Hand) -> Next:
        guards, key = self.guards, hand.key
        after = _put_hand(world, h, IDLE)
        if not guards.W1_an_ask_is_taken_before_the_count:
            after = after._replace(asks=after.asks & ~(1 << key))
        states = {
            name: KeyState(Key(name, name), Bounds(bound), None, None, Count(held, 0))
            for name, bound, held in zip(KEYS, hand.bounds, hand.held, strict=False)
        }
        mine = states[KEYS[key]]
        here = [number for number, job in enumerate(world.jobs) if job.state is State.WAITING and job.parked == key]
        for number in here:
            if not hand.served[self.scene.jobs[number][0]] and guards.L3_a_queue_that_is_passed_over_is_remembered:
                after = after._replace(idle=after.idle | self._passed_over(number, key))
        if guards.L3_no_place_for_a_queue_that_nobody_serves:
            here = [number for number in here if hand.served[self.scene.jobs[number][0]]]
        skipped = [number for number in here if number == world.locked]
        want = min(mine.room() or 0, 1)
        found = sorted(set(here) - set(skipped), key=lambda number: self._rank(world, number))[:want]
        done = serve(mine.key, [self._candidate(number, key) for number in found], lambda each: states[each.key])
        story = f"… no place of {KEYS[key]} is given"
        for each in done.admitted:
            number = int(each.id)
            state = moved("admit", world.jobs[number].state, State.QUEUED)
            after, story = _put(after, number, Job(state, place=True)), f"… {_name(number)} is queued"
        for job_id, other in done.moved:
            story = f"… {other.key} refuses {_name(int(job_id))}, which is parked there"
            if guards.L1_parked_under_the_key_that_refused:
                after = _put(after, int(job_id), Job(State.WAITING, parked=KEYS.index(other.key)))
        more = done.any and len(found) == want and mine.room() != 0 and guards.L1_a_key_with_room_is_asked_again
        left = skipped and mine.room() != 0 and guards.W3_a_job_that_is_locked_keeps_its_ask
        return Step(story, self.ask(after, key) if more or left else after)

    def _rank(self, world: World, number: int) -> tuple[bool, int]:
        last = self.scene.jobs[number][0] == world.slow and self.guards.L3_a_slow_queue_comes_last
        return last, number

    def _candidate(self, number: int, key: int) -> Candidate:
        keys = self.keys(number) if self.guards.L1_a_place_of_each_key_or_none else (key,)
        limits = tuple(Key(KEYS[each], KEYS[each]) for each in keys)
        return Candidate((0, number), str(number), "", limits, expired=False, solo=False)

    def _passed_over(self, number: int, key: int) -> int:
        return 1 << 2 * self.scene.jobs[number][0] + key

    def withdraw(self, world: World) -> Iterator[Next]:
        if not self._may_lock(world):
            return
        for number, key in ((number, key) for number in range(len(world.jobs)) for key in range(len(world.bounds))):
            passed = self._passed_over(number, key)
            if world.idle & passed and self.queue(world, number) is not Queue.IDLE:
                story = f"withdraw finds a queue served again that was passed over, and asks for {KEYS[key]}"
                yield Step(story, self.ask(world._replace(idle=world.idle & ~passed), key))
        for number, job in enumerate(world.jobs):
            if job.state is not State.QUEUED or number == world.locked:
                continue
            queue, back = self.queue(world, number), f"withdraw takes back the place of {_name(number)}"
            if queue is Queue.IDLE and self.guards.L3_a_place_of_a_queue_that_nobody_serves_goes_back:
                yield Step(f"{back}, whose queue nobody serves", self.park(world, number, "withdraw"))
            late = queue is Queue.BUSY and self._awaited(world, number)
            if late and self.guards.L3_a_place_that_is_not_begun_goes_to_another_queue:
                slow = world._replace(slow=self.scene.jobs[number][0])
                yield Step(f"{back}, which has not begun for long", self.park(slow, number, "withdraw"))

    def _awaited(self, world: World, number: int) -> bool:
        """Is a job of another queue, which is served, parked under one of its keys?"""
        return any(
            job.state is State.WAITING
            and job.parked in self.keys(number)
            and self.scene.jobs[other][0] != self.scene.jobs[number][0]
            and self.queue(world, other) is not Queue.IDLE
            for other, job in enumerate(world.jobs)
        )


class Places(_Giving):
    def __init__(self, guards: Guards, mishaps: int, scene: Scene) -> None:
        super().__init__(guards, scene)
        self.name, self.mishaps = f"places: {scene.name}", mishaps
        queues = 1 + max(queue for queue, _ in scene.jobs)
        self.start = World((Job(),) * len(scene.jobs), (Queue.SERVED,) * queues, scene.bounds)

    def normal(self, world: World) -> World:
        a, b = world.hands
        return world._replace(hands=(b, a)) if b < a else world

    def sight(self, world: World) -> str:
        if world.hands == (IDLE, IDLE):
            return ""
        others = {
            "a row is locked": world.locked + 1,
            "a queue was passed over": world.idle,
            "a queue is slow": world.slow + 1,
        }
        return ", ".join(["gives", *(name for name, there in others.items() if there)][:2])

    def _still(self, world: World) -> bool:
        busy = world.asks or world.unsent or world.unfreed or world.locked >= 0
        return not busy and world.hands == (IDLE, IDLE)

    def at_rest(self, world: World) -> bool:
        """What may run has run: a queue that takes nothing may keep its jobs."""
        return self._still(world) and all(
            job.state in ENDED or (self.queue(world, number) is not Queue.SERVED and job.state is not State.PROCESSING)
            for number, job in enumerate(world.jobs)
        )

    def lost(self, world: World) -> str:
        waits = [number for number, job in enumerate(world.jobs) if job.state not in ENDED]
        served = [_name(number) for number in waits if self.queue(world, number) is Queue.SERVED]
        return f"{' and '.join(served)} can never run: another job keeps the place, and does not use it"

    def broken(self, world: World) -> str:
        if not self._still(world):
            return ""
        held = self.held(world)
        for number, job in enumerate(world.jobs):
            if job.state is not State.WAITING or self.queue(world, number) is Queue.IDLE:
                continue
            room = all(held[key] < world.bounds[key] for key in self.keys(number))
            if room and not world.idle & self._passed_over(number, job.parked):
                return f"{_name(number)} is waiting for a key that has room, and no ask is left"
        return ""

    # ── what Tenure does by itself ──

    def engine(self, world: World) -> Iterator[Next]:
        for step in self._engine(world):
            yield step._replace(broken=self._over(world, step.world))

    def _over(self, before: World, after: World) -> str:
        for key in range(len(after.bounds)):
            number = self.run(after, key)
            most = max([after.bounds[key], *(hand.most[key] for hand in before.hands if hand.most)])
            if number > max(most, self.run(before, key)):
                return f"{number} jobs of {KEYS[key]} are queued or processing, and it allows {most}"
        return ""

    def _engine(self, world: World) -> Iterator[Next]:
        for number, job in enumerate(world.jobs):
            name = _name(number)
            if job.state is None:
                stored = _put(world, number, Job(moved("enqueue", None, State.WAITING), parked=self.keys(number)[0]))
                asked = self.guards.W1_a_job_that_is_parked_asks
                yield Step(f"{name} is stored", self.ask(stored, self.keys(number)[0]) if asked else stored)
            elif job.state is State.QUEUED and self.queue(world, number) is Queue.SERVED and number != world.locked:
                begun = job._replace(state=moved("claim", job.state, State.PROCESSING))
                yield Step(f"{name} begins", _put(world, number, begun))
            elif job.state is State.PROCESSING:
                yield Step(f"{name} completes", self.leaves(world, number, moved("finish", job.state, State.COMPLETED)))
            if world.unfreed >> number & 1:
                freed = self.freed(world._replace(unfreed=world.unfreed & ~(1 << number)), number)
                yield Step(f"the process that ended {name} frees its place", freed)
        if world.locked >= 0:
            job, name, after = world.jobs[world.locked], _name(world.locked), world._replace(locked=-1)
            cancelled = moved("cancel", job.state, State.CANCELLED)
            yield Step(f"… {name} is cancelled", self.leaves(after, world.locked, cancelled))
            yield Step(f"… {name} is left as it was", after)
        if world.unsent:
            yield Step("a process stores its asks", world._replace(asks=world.asks | world.unsent, unsent=0))
        if world.slow >= 0:
            yield Step("a queue is not slow any more", world._replace(slow=-1))
        yield from self.giving(world)
        yield from self.withdraw(world)

    # ── what can't be relied on ──

    def chances(self, world: World) -> Iterator[Next]:
        for number, queue in enumerate(world.queues):
            if queue is not Queue.SERVED:
                served = (*world.queues[:number], Queue.SERVED, *world.queues[number + 1 :])
                yield Step(f"queue {number + 1} is served again", world._replace(queues=served))
        if world.mishaps < self.mishaps:
            for step in self._mishaps(world._replace(mishaps=world.mishaps + 1)):
                yield step._replace(broken=self._over(world, step.world))

    def _mishaps(self, world: World) -> Iterator[Next]:
        chances = self.scene.chances
        for h, hand in enumerate(world.hands):
            if hand.stage:
                back = 1 << hand.key if hand.stage == "counted" and self.guards.W1_an_ask_goes_with_its_answer else 0
                after = _put_hand(world, h, IDLE)
                yield Step("a process that admits dies", after._replace(asks=after.asks | back))
        if world.unsent:
            yield Step("a process dies before it has stored its asks", world._replace(unsent=0))
        if world.unfreed:
            yield Step("a process dies before it has freed a place", world._replace(unfreed=0))
        for number, job in enumerate(world.jobs):
            name = _name(number)
            if "rescue" in chances and job.state is State.PROCESSING:
                yield Step(f"the worker of {name} dies: it is rescued", self.park(world, number, "rescue"))
            if "cancel" in chances and world.locked < 0 and job.state in (State.WAITING, State.QUEUED):
                yield Step(f"an operator locks {name}, to cancel it", world._replace(locked=number))
            if "replay" in chances and job.state in ENDED:
                yield Step(f"an operator replays {name}", self.park(world, number, "replay"))
        if "queues" in chances and world.queues[0] is Queue.SERVED:
            others = world.queues[1:]
            yield Step("queue 1 is paused", world._replace(queues=(Queue.IDLE, *others)))
            yield Step("the workers of queue 1 are busy", world._replace(queues=(Queue.BUSY, *others)))
        if "bounds" in chances:
            changed = world._replace(bounds=(3 - world.bounds[0],))
            changed = self.ask(changed, 0) if self.guards.L1_a_limit_that_is_changed_asks else changed
            yield Step(f"an operator sets the places of K to {changed.bounds[0]}", changed)


# ── Small steps ─────────────────────────────────────────────────────────────────────────────────────────────────


def _name(number: int) -> str:
    return "ABC"[number]


def _put(world: World, number: int, job: Job) -> World:
    return world._replace(jobs=(*world.jobs[:number], job, *world.jobs[number + 1 :]))


def _put_hand(world: World, number: int, hand: Hand) -> World:
    a, b = world.hands
    return world._replace(hands=(hand, b) if number == 0 else (a, hand))
