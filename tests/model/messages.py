"""Permits, searched: a queue of messages beside the store, either of which may be away, or both.

One job, two workers with a slot each, and the messages that let them claim (`tenure/permits.py`,
`notifiers/nats/permits.py`). A message names a job; the store says which one it buys. So the one message that is left
for our job may name another one, which was claimed under ours. Messages are lost, doubled, late, dealt out again though
their holder lives; the queue forgets all of them; workers, hosts and connections fail. It is searched in two ways:

- *With polls and scans*, messages lost at any rate: the job ends, whatever becomes of its messages, and a redelivery
  never takes it from a living worker, nor charges it for an outage.
- *By messages alone*: no worker polls, no supervisor scans, no message is lost for good. The queue is a second path
  on which the dead are found and their jobs run again: after one mishap, or after two if the job runs under its own
  message.

Left to `protocol.py`: everything between a claim's request and its reply, late outcomes, attempts and fences, cancels;
here a verb is one step, and a worker runs what it was granted. Left to `declarations.py`: the wait after an outage.
A machine that is paused is left out: its worker may acknowledge a message for which its expired lease bought nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tenure.core.lifecycle import ENDED, State

from .search import Step
from .world import BOTH, FORMER, NAMES, Row, Supervisor, allows, decided

MISHAPS = 2
MOST_MESSAGES = 2


@dataclass(frozen=True, slots=True)
class Guards:
    poll_behind_messages: bool = True  #: a worker with a free slot also asks the store by itself
    scan_behind_messages: bool = True  #: supervisors look for the dead, whatever the queue says
    redelivered_checks_owner: bool = True  #: a message that comes again takes a job back only from the dead
    redelivered_waits_after_absence: bool = True  #: … which no host declares dead after an outage of its own
    redelivered_asks_first: bool = True  #: before it buys anything it asks whether its job's owner is dead
    redelivered_looks_beside: bool = True  #: … and for other jobs of dead owners: it may have bought one of those
    living_owner_keeps_message: bool = True  #: it goes back to the queue while a living worker runs its job
    acknowledged_after_the_outcome: bool = True  #: not when it is dealt out, nor when the job is claimed
    comes_again_after_the_lease: bool = True  #: the queue waits longer for a holder that fell silent (`ack_wait`)
    given_back_while_store_is_away: bool = True  #: what can't be used is for others, or for later


# ── The world ───────────────────────────────────────────────────────────────────────────────────────────────────


class Place(StrEnum):
    QUEUE = "queue"
    OUT = "out"  #: dealt out, and no worker will acknowledge it: it comes again
    HAND = "hand"
    LOOKED = "looked"  #: in hand, and the store was asked about its job
    BOUND = "bound"  #: the job runs under it
    DONE = "done"  #: the outcome is stored


class Message(NamedTuple):
    ours: bool = True  #: it names our job
    again: bool = False
    place: Place = Place.QUEUE
    holder: int = -1


class Process(StrEnum):
    UP = "up"
    CRASHED = "crashed"
    FENCED = "fenced"  #: killed because it was not renewed
    GONE = "gone"  #: with its host


class Worker(NamedTuple):
    row: Row = Row.FRESH
    process: Process = Process.UP
    supervisor: Supervisor = Supervisor.STEADY
    runs: bool = False


class Job(NamedTuple):
    state: State = State.QUEUED
    owner: int = -1
    crashes: int = 0


class World(NamedTuple):
    job: Job = Job()
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    messages: tuple[Message, ...] = ()
    unsent: bool = True  #: the process that queued the job is about to announce it
    store_away: bool = False
    queue_away: bool = False
    faults: int = 0
    guilty: int = 0  #: those that may cost the job a crash


Next = Step[World]


class Messages:
    start = World()

    def __init__(self, guards: Guards, mishaps: int, *, alone: bool) -> None:
        self.guards, self.mishaps, self.alone = guards, mishaps, alone
        self.name = "messages alone" if alone else "messages, polls and scans"

    def normal(self, world: World) -> World:
        world = world._replace(messages=tuple(sorted(world.messages)))
        a, b = world.workers
        if a < b:
            return world
        owner = {0: 1, 1: 0}.get(world.job.owner, world.job.owner)
        moved = (m._replace(holder=1 - m.holder if m.holder >= 0 else -1) for m in world.messages)
        mirrored = world._replace(job=world.job._replace(owner=owner), workers=(b, a), messages=tuple(sorted(moved)))
        return mirrored if b < a else min(world, mirrored)

    def at_rest(self, world: World) -> bool:
        return world.job.state in ENDED and not any(worker.runs for worker in world.workers)

    def lost(self, world: World) -> str:
        job = world.job
        stands = f"owned by {NAMES[job.owner]}" if job.state is State.PROCESSING else str(job.state)
        return f"Tenure alone can never again end the job: it is {stands}, with {len(world.messages)} messages"

    def broken(self, world: World) -> str:
        a, b = world.workers
        if world.faults < 2 and all(w.runs and w.process is Process.UP for w in (a, b)):
            return "A and B run the job's code at once"
        if world.job.crashes > world.guilty:
            return f"the job is charged crash {world.job.crashes}, and {world.guilty} faults may cost one"
        return ""

    def sight(self, world: World) -> State:
        return world.job.state

    # ── what Tenure does by itself ──

    def engine(self, world: World) -> Iterator[Next]:
        if not world.queue_away:
            yield from self._deal(world)
        else:
            yield Step("the queue is back", world._replace(queue_away=False))
        if not world.store_away:
            yield from self._store(world)
        else:
            yield from self._without_store(world)
        for w in BOTH:
            worker = world.workers[w]
            if worker.runs and worker.process is not Process.UP:
                yield Step(f"{NAMES[w]}'s code is gone", _put(world, w, worker._replace(runs=False)))
            dying = worker.process is not Process.UP and worker.supervisor is Supervisor.AWAY and not worker.runs
            if dying and worker.row is Row.FRESH:
                yield Step(f"{NAMES[w]}'s lease runs out", _put(world, w, worker._replace(row=Row.EXPIRED)))

    def _deal(self, world: World) -> Iterator[Next]:
        if world.unsent:
            yield Step("a message for the job is sent", _with(world._replace(unsent=False), Message()))
        for number, message in enumerate(world.messages):
            if message.place is Place.OUT:
                silent = message.holder >= 0 and world.workers[message.holder].row is Row.FRESH
                if not (silent and self.guards.comes_again_after_the_lease):
                    yield Step("a message comes again", _moved(world, number, Place.QUEUE, again=True))
            elif message.place is Place.DONE:
                yield Step(f"{NAMES[message.holder]} acknowledges its message", _without(world, number))
            elif message.place is Place.QUEUE and not world.store_away:
                for w in BOTH:
                    if self._free(world, w) and all(each.holder != w for each in world.messages):
                        story = (
                            f"a message {'of the job' if message.ours else 'of another job'} is dealt out to {NAMES[w]}"
                        )
                        yield Step(story, _moved(world, number, Place.HAND, w))

    def _free(self, world: World, w: int) -> bool:
        worker = world.workers[w]
        return worker.process is Process.UP and not worker.runs and world.job.owner != w

    def _store(self, world: World) -> Iterator[Next]:
        for w in BOTH:
            worker, name = world.workers[w], NAMES[w]
            if worker.process is Process.UP:
                yield from self._work(world, w, name)
            yield from self._supervise(world, w, name)
        for number, message in enumerate(world.messages):
            if message.place is Place.HAND and message.again and self.guards.redelivered_asks_first:
                yield from self._look(world, number, message)
            elif message.place in (Place.HAND, Place.LOOKED):
                yield self._buy(world, number, message.holder)

    def _work(self, world: World, w: int, name: str) -> Iterator[Next]:
        worker, job = world.workers[w], world.job
        mine = job.state is State.PROCESSING and job.owner == w
        if worker.runs:
            over = _settled(_put(world, w, worker._replace(runs=False)), w)
            if mine:
                done = over._replace(job=job._replace(state=State.COMPLETED, owner=-1))
                yield Step(f"{name}'s code returns, and its outcome is stored", done)
            else:
                yield Step(f"{name} hears that its lease is lost, and stops", over)
        elif mine:
            runs = _put(world, w, worker._replace(runs=True))
            yield Step(f"{name} hears that it owns the job, and runs it", runs)
        elif self.guards.poll_behind_messages and not self.alone and job.state is State.QUEUED:
            held = next((n for n, each in enumerate(world.messages) if each.holder == w), None)
            yield Step(f"{name} polls, and claims the job", self._claimed(world, w, held))

    def _claimed(self, world: World, w: int, number: int | None) -> World:
        if number is not None:
            bound = self.guards.acknowledged_after_the_outcome
            world = _moved(world, number, Place.BOUND, w) if bound else _without(world, number)
        job = world.job._replace(state=State.PROCESSING, owner=w)
        return _put(world._replace(job=job), w, world.workers[w]._replace(runs=True))

    def _buy(self, world: World, number: int, w: int) -> Next:
        if allows("claim", world.job.state):
            return Step(f"{NAMES[w]} claims the job", self._claimed(world, w, number))
        return Step(f"{NAMES[w]} finds nothing to claim, and acknowledges its message", _without(world, number))

    def _look(self, world: World, number: int, message: Message) -> Iterator[Next]:
        """What comes again asks for its own job first, then for others."""
        guards, w, job = self.guards, message.holder, world.job
        story = f"{NAMES[w]} asks about the message that came again"
        steady = world.workers[w].supervisor is Supervisor.STEADY or not guards.redelivered_waits_after_absence
        if job.state is State.PROCESSING and (message.ours or guards.redelivered_looks_beside):
            owner = job.owner
            if steady and owner != FORMER and world.workers[owner].row is Row.EXPIRED:
                world = _put(world, owner, world.workers[owner]._replace(row=Row.DEAD))
                story += f": {NAMES[owner]} is declared dead"
            if _owner_is_dead(world) or (message.ours and not guards.redelivered_checks_owner):
                broken = (
                    "" if _owner_is_dead(world) else f"the job is taken back, although {NAMES[owner]} lives and owns it"
                )
                taken = _ended(_moved(world, number, Place.LOOKED, w), "crashed", rings=not message.ours)
                yield Step(f"{story}, the job is taken back", taken, broken)
                return
            if message.ours:
                keeps = guards.living_owner_keeps_message
                after = _moved(world, number, Place.OUT) if keeps else _without(world, number)
                yield Step(f"{story}: a living worker owns the job", after)
                return
        yield Step(f"{story}: there is nothing to take back", _moved(world, number, Place.LOOKED, w))

    # ── supervisors ──

    def _supervise(self, world: World, w: int, name: str) -> Iterator[Next]:
        worker, other = world.workers[w], world.workers[1 - w]
        if worker.process is Process.GONE:
            if worker.row is Row.DEAD:
                yield Step(f"{name} is replaced, on a new host", _replaced(world, w))
            elif other.process is Process.GONE:
                yield Step(f"{name}'s host starts again, and a supervisor finds {name} gone", _replaced(world, w))
        elif worker.process is not Process.UP and not worker.runs:
            ending = "crashed" if worker.process is Process.CRASHED else "released"
            settled = _ended(world, ending, rings=True) if world.job.owner == w else world
            yield Step(f"{name}'s supervisor settles, and starts a new {name}", _replaced(settled, w))
        elif worker.supervisor is Supervisor.BACK and not _unsettled(other):
            steady = _put(world, w, worker._replace(supervisor=Supervisor.STEADY))
            yield Step(f"{name}'s supervisor has been back for a lease", steady)
        if self.alone or not self.guards.scan_behind_messages or worker.supervisor is Supervisor.AWAY:
            return
        if other.row is Row.EXPIRED and worker.supervisor is Supervisor.STEADY:
            dead = _put(world, 1 - w, other._replace(row=Row.DEAD))
            yield Step(f"{name}'s supervisor scans: {NAMES[1 - w]} is declared dead", dead)
        if _owner_is_dead(world):
            yield Step(f"{name}'s supervisor takes the job back", _ended(world, "crashed", rings=True))

    def _without_store(self, world: World) -> Iterator[Next]:
        for number, message in enumerate(world.messages):
            if message.place in (Place.HAND, Place.LOOKED):
                keeps = self.guards.given_back_while_store_is_away
                after = _moved(world, number, Place.OUT) if keeps else _without(world, number)
                yield Step(f"{NAMES[message.holder]} can't use its message, and lets go of it", after)
        for w in BOTH:
            worker = world.workers[w]
            if worker.process is Process.UP:
                fenced = _ends(world, w, Process.FENCED)
                yield Step(f"{NAMES[w]} is not renewed, and is killed at its deadline", fenced)
        back = world._replace(store_away=False)
        for w in BOTH:
            if world.workers[w].process is not Process.GONE:
                back = _put(back, w, back.workers[w]._replace(supervisor=Supervisor.BACK))
        yield Step("the store is back", back)

    # ── what can't be relied on ──

    def chances(self, world: World) -> Iterator[Next]:
        own_only = self.alone and self.mishaps > 1
        for number, message in enumerate(world.messages):
            if message.ours and message.place is Place.QUEUE and not message.again and not own_only:
                other = _replace(world, number, message._replace(ours=False))
                yield Step("an earlier job was claimed under this message: its own is left", other)
        if world.faults == self.mishaps or world.job.state in ENDED:
            return
        fault = world._replace(faults=world.faults + 1)
        guilty = fault._replace(guilty=world.guilty + 1)
        for w in BOTH:
            worker, name = world.workers[w], NAMES[w]
            if worker.process is Process.UP:
                yield Step(f"{name} crashes", _ends(guilty, w, Process.CRASHED))
                lost = _ends(guilty, w, Process.GONE)
                away = lost.workers[w]._replace(supervisor=Supervisor.AWAY)
                yield Step(f"{name}'s host is lost", _put(lost, w, away))
                if any(each.holder == w for each in world.messages):
                    yield Step(f"{name} is cut off from the queue for long", _dropped(fault, w))
        yield from self._stores_fail(fault, world)
        yield from self._messages_fail(fault, world)

    def _stores_fail(self, fault: World, world: World) -> Iterator[Next]:
        a, b = (worker._replace(supervisor=Supervisor.AWAY) for worker in world.workers)
        away = fault._replace(store_away=True, workers=(a, b))
        if not world.store_away:
            yield Step("nobody can reach the store", away)
        if not world.queue_away:
            yield Step("nobody can reach the queue", fault._replace(queue_away=True))
        if not (world.store_away or world.queue_away):
            story = "nobody can reach the store or the queue, which deals its messages out again"
            both = away._replace(queue_away=True)
            yield Step(story, _dropped(_dropped(both, 0), 1))
        for number, message in enumerate(world.messages):
            if (
                not world.store_away
                and message.place in (Place.HAND, Place.LOOKED)
                and allows("claim", world.job.state)
            ):
                w = message.holder
                job = world.job._replace(state=State.PROCESSING, owner=w)
                unheard = _moved(fault._replace(job=job), number, Place.OUT)
                yield Step(f"{NAMES[w]} claims the job, the reply is lost, and it lets go of its message", unheard)

    def _messages_fail(self, fault: World, world: World) -> Iterator[Next]:
        for number, message in enumerate(world.messages):
            if len(world.messages) < MOST_MESSAGES:
                yield Step("a message is doubled", _with(fault, message._replace(place=Place.QUEUE, holder=-1)))
            if not self.alone:
                yield Step("a message is lost", _without(fault, number))
        if self.alone:
            return
        if world.unsent:
            yield Step("the process that queued the job dies before announcing it", fault._replace(unsent=False))
        if len(world.messages) > 1:
            yield Step("the queue loses all messages", fault._replace(messages=()))


# ── Small steps ─────────────────────────────────────────────────────────────────────────────────────────────────


def _put(world: World, w: int, worker: Worker) -> World:
    a, b = world.workers
    return world._replace(workers=(worker, b) if w == 0 else (a, worker))


def _with(world: World, message: Message) -> World:
    """A message for which there is no room is dropped: all that a message does is let a worker look."""
    return world._replace(messages=(*world.messages, message)) if len(world.messages) < MOST_MESSAGES else world


def _without(world: World, number: int) -> World:
    return world._replace(messages=world.messages[:number] + world.messages[number + 1 :])


def _replace(world: World, number: int, message: Message) -> World:
    return world._replace(messages=(*world.messages[:number], message, *world.messages[number + 1 :]))


def _moved(world: World, number: int, place: Place, holder: int = -1, *, again: bool = False) -> World:
    message = world.messages[number]
    return _replace(world, number, message._replace(place=place, holder=holder, again=again or message.again))


def _settled(world: World, w: int) -> World:
    """The message that its job ran under can be acknowledged."""
    messages = (m._replace(place=Place.DONE) if m.holder == w and m.place is Place.BOUND else m for m in world.messages)
    return world._replace(messages=tuple(messages))


def _dropped(world: World, w: int) -> World:
    messages = (m._replace(place=Place.OUT, holder=-1) if m.holder == w else m for m in world.messages)
    return world._replace(messages=tuple(messages))


def _ends(world: World, w: int, process: Process) -> World:
    messages = (m._replace(place=Place.OUT) if m.holder == w else m for m in world.messages)
    return _put(world._replace(messages=tuple(messages)), w, world.workers[w]._replace(process=process))


def _replaced(world: World, w: int) -> World:
    job = world.job
    messages = (m._replace(holder=-1) if m.holder == w else m for m in world.messages)
    world = world._replace(job=job._replace(owner=FORMER) if job.owner == w else job, messages=tuple(messages))
    elsewhere = world.workers[w].process is Process.GONE
    return _put(world, w, Worker(supervisor=Supervisor.BACK if elsewhere else world.workers[w].supervisor))


def _ended(world: World, ending: str, *, rings: bool) -> World:
    job = world.job
    state, _, crashes = decided(0, job.crashes, False, ending)
    return world._replace(job=Job(state, -1, crashes), unsent=world.unsent or (rings and state is State.QUEUED))


def _owner_is_dead(world: World) -> bool:
    job = world.job
    return job.state is State.PROCESSING and (job.owner == FORMER or world.workers[job.owner].row is Row.DEAD)


def _unsettled(worker: Worker) -> bool:
    return worker.supervisor is Supervisor.BACK and worker.process is not Process.UP
