"""Jobs that wait for jobs, searched: two transactions at a time, as PostgreSQL interleaves them.

Read `links.py` first, then `admission.py`. Two or three jobs, the edges between them, and two hands: each plays one
transaction at a time, statement by statement. A child may be stored by a transaction of its caller, which commits
whenever it likes. `admit` answers asks; owners, rescues and settlements end jobs; an operator replays, deletes,
cancels and skips; old jobs are pruned; a handler gathers jobs, or joins one, and a former owner of it gathers on; a
worker of an older version comes along; processes die with an ask half answered. `SCENES` says what may happen where.

The promises: no job waits whose condition holds when no ask is left; none begins before its parents have ended as its
edges require, and what it needs of them is there until it has ended; what a job gathers ends with it, unless that has
completed; nothing is kept for a job that is over; nothing is admitted beside an older worker; and all comes to rest.

How the world is made small: what a transaction does under the locks that it holds, and reads of nothing else, is one
step with its commit; what it reads without a lock is a step of its own. A statement that finds a row locked waits for
it, or skips it (`admit` and `prune`). An owner is left to `protocol.py`: here a job that runs ends at any time, by any
verb that the table allows; settle is like finish. Two asks for one job are as good as one. A result that was removed
before the transaction that wants it has committed is not needed yet. An older worker that starts while a transaction
admits is like one that starts right after it.

Left out: signals and time-outs, which are in `signals.py`; limits, which are in `places.py` and `rates.py`; when an
admitted job is due, and when it expires, which is in `times.py`. Deadlocks are not broken: one would never come to
rest. Where a store has one writer at a time (memory, SQLite, a script in Redis), a verb is one step, and so its orders
are some of those searched here. Flows that Redis stores in parts (W8) are in `seals.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tenure.core.lifecycle import State

from .admission import WAITS, Admission, unasked
from .links import (
    ADMIT,
    IDLE,
    RUNNABLE,
    SCENES,
    Edge,
    Guards,
    Hand,
    Job,
    Link,
    Next,
    Scene,
    World,
    ended,
    fate,
    live,
    locked,
    moved,
    put,
    put_edge,
    put_hand,
)
from .search import Step

#: Pairs of transactions that have to be met under way at once.
SIGHTS = frozenset(
    {
        ("", ""),
        ("look", "look"),
        ("look", "tell"),
        ("tell", "tell"),
        ("look", "replay"),
        ("replay", "tell"),
        ("replay", "replay"),
        ("delete", "replay"),
        ("prune", "replay"),
        ("delete", "look"),
        ("look", "prune"),
    }
)


def scenes(guards: Guards) -> Iterator[Scene]:
    """All, or the one that shows what happens without the rule that is left out."""
    fields = Guards.__dataclass_fields__
    missing = {fields[rule].metadata["scene"] for rule in fields if not getattr(guards, rule)}
    yield from (scene for scene in SCENES if not missing or scene.name in missing)


class _Operator(Admission):
    """What operators and pruning do to jobs, in two steps: the read, and the commit."""

    def operator(self, world: World) -> Iterator[Next]:
        """Each costs a mishap."""
        free = next((h for h, hand in enumerate(world.hands) if not hand.verb), None)
        for number, job in enumerate(world.jobs):
            if locked(world, number):
                continue
            name, chances = self.scene.names[number], self.scene.chances
            if "cancel" in chances and live(job) and not job.cancel_asked:
                yield Step(f"an operator cancels {name}", self.cancel(world, number))
            if "skip" in chances and job.state in (State.DEAD, State.CANCELLED):
                yield from self._skip(world, number, name)
            if free is None:
                continue
            if "replay" in chances and ended(job):
                yield from self._begin_replay(world, free, number, name)
            if "delete" in chances and job.state not in (None, State.PROCESSING):
                yield from self._begin_delete(world, free, number, name)
            if "prune" in chances and ended(job):
                yield from self._begin_prune(world, free, number, name)

    def _skip(self, world: World, number: int, name: str) -> Iterator[Next]:
        waits = [(n, link.child) for n, link in self.behind(number) if world.edges[n] in WAITS]
        for n, child in waits:
            world = put_edge(world, n, Edge.SKIPPED)
            if self.guards.W1_a_skipped_parent_asks_for_its_children:
                world = self.ask(world, child)
        if waits:
            yield Step(f"an operator skips {name}", world)

    def _lock(self, number: int) -> int:
        return 1 << number if self.guards.W7_looked_for_children_under_the_lock else 0

    def _begin_replay(self, world: World, h: int, number: int, name: str) -> Iterator[Next]:
        guards, job = self.guards, world.jobs[number]
        needed = job.state is State.COMPLETED and self.live_child(world, number)
        if needed and guards.W7_a_needed_result_is_not_replayed:
            return
        if self.gathers(world, number) and guards.W7_no_replay_before_what_it_gathers_has_ended:
            return
        hand = Hand("replay", number, self._lock(number))
        yield Step(f"an operator replays {name}: it has ended, and may be", put_hand(world, h, hand))

    def replay(self, world: World, h: int, hand: Hand) -> Iterator[Next]:
        guards, number, job = self.guards, hand.job, world.jobs[hand.job]
        name, before = self.scene.names[number], self.before(number)
        if not hand.locked(number) and (locked(world, number) or not ended(job)):
            if not ended(job):
                yield Step(f"… {name} has not ended any more", put_hand(world, h, IDLE))
            return
        for n, link in before if guards.W7_a_replay_locks_its_parents else []:
            there = world.edges[n] is not Edge.ABSENT and world.jobs[link.parent].state is not None
            if there and not hand.locked(link.parent):
                if not locked(world, link.parent):
                    locks = hand._replace(locks=hand.locks | 1 << link.parent)
                    yield Step(f"… it locks {self.scene.names[link.parent]}", put_hand(world, h, locks))
                return
        after = put_hand(world, h, IDLE)
        for n, link in before:
            parent, edge = world.jobs[link.parent], world.edges[n]
            needs = link.until == "completed" and not link.mine and edge is not Edge.SKIPPED
            if needs and parent.state in (None, State.CANCELLED):
                yield Step(f"… {self.scene.names[link.parent]} was cancelled, or is gone: it is refused", after)
                return
        after = self._opened(self.armed(after, hand), number)
        waits = self.waits(after, number)
        linked = self.linked_before(after, number) or (job.linked and guards.W7_a_replay_keeps_the_link)
        state = moved("replay", job.state, State.WAITING if waits else State.QUEUED)
        after = put(after, number, Job(state, linked, again=True))
        after = self.ask(after, number) if waits else after
        yield Step(f"… {name} is {state} again", after)

    def _opened(self, world: World, number: int) -> World:
        """Open the edges whose parents have not ended as required. Gathered jobs among these are gathered anew."""
        if not self.guards.W7_a_replay_opens_edges_again:
            return world
        for n, link in self.before(number):
            parent, edge = world.jobs[link.parent], world.edges[n]
            closes = fate(link, parent) == "close"
            if link.mine and not closes:
                world = put_edge(world, n, Edge.ABSENT)._replace(orphan=world.orphan or unasked(parent))
                if self.guards.W7_a_replay_asks_for_what_it_leaves:
                    world = self.ask(world, link.parent)
            elif edge not in (Edge.SKIPPED, Edge.ABSENT):
                world = put_edge(world, n, Edge.CLOSED if closes else Edge.OPEN)
        return world

    def _begin_delete(self, world: World, h: int, number: int, name: str) -> Iterator[Next]:
        guards = self.guards
        if guards.W7_delete_looks_for_children and self.live_child(world, number):
            return
        if guards.W7_delete_looks_for_what_it_gathers and self.gathers(world, number):
            return
        hand = Hand("delete", number, self._lock(number))
        yield Step(f"an operator deletes {name}: no live job waits for it", put_hand(world, h, hand))

    def delete(self, world: World, h: int, hand: Hand) -> Iterator[Next]:
        number, name = hand.job, self.scene.names[hand.job]
        if not hand.locked(number) and locked(world, number):
            return
        after = put_hand(world, h, IDLE)
        if world.jobs[number].state in (None, State.PROCESSING):
            yield Step(f"… {name} is gone, or runs: it is refused", after)
            return
        asks = self.guards.W7_delete_asks_for_its_parents
        yield Step(f"… {name} is deleted", self.gone(after, number, asks=asks))

    def _begin_prune(self, world: World, h: int, number: int, name: str) -> Iterator[Next]:
        guards, job = self.guards, world.jobs[number]
        kept = self.live_child(world, number) or bool(self.gathers(world, number))
        if (job.linked and guards.W7_prune_spares_the_linked) or (kept and guards.W7_prune_looks_for_children):
            return
        seen = ("needed",) if kept else ()
        yield Step(f"prune finds {name} old enough", put_hand(world, h, Hand("prune", number, seen=seen)))

    def prune(self, world: World, h: int, hand: Hand) -> Iterator[Next]:
        """It locks the row, and compares again what is in the row: not what is in others."""
        job, name, after = world.jobs[hand.job], self.scene.names[hand.job], put_hand(world, h, IDLE)
        if locked(world, hand.job) or not ended(job) or (job.linked and self.guards.W7_prune_spares_the_linked):
            yield Step(f"… {name} is spared", after)
        else:
            asks = self.guards.W7_prune_asks_for_its_parents
            broken = (
                f"the result of {name} was pruned, though a job needs it that was stored before" if hand.seen else ""
            )
            yield Step(f"… {name} is pruned", self.gone(after, hand.job, asks=asks), broken)


class _Owners(_Operator):
    """Those that store jobs and run them."""

    def stored(self, world: World) -> Iterator[Next]:
        late = [number for number in range(len(world.jobs)) if world.unstored >> number & 1]
        for numbers in [late] if late and self.scene.flow else [[number] for number in late]:
            after = world
            for number in numbers:
                after = put(after, number, Job(moved("enqueue", None, State.WAITING), linked=True))
                after = after._replace(unstored=after.unstored & ~(1 << number))
                for n, _ in self.before(number):
                    after = put_edge(after, n, Edge.OPEN)
                after = self.ask(after, number) if self.guards.W1_a_stored_child_asks else after
            names = " and ".join(self.scene.names[number] for number in numbers)
            yield Step(f"the caller that stores {names} commits", after)

    def owners(self, world: World) -> Iterator[Next]:
        for number, job in enumerate(world.jobs):
            if job.state not in RUNNABLE or locked(world, number):
                continue
            name = self.scene.names[number]
            if job.state is State.QUEUED:
                yield Step(
                    f"{name} begins",
                    put(world, number, job._replace(state=moved("claim", job.state, State.PROCESSING))),
                )
            elif job.cancel_asked:
                yield Step(f"{name} stops, and is cancelled", self.end(world, "finish", number, State.CANCELLED))
            else:
                yield from self._returns(world, number, name)

    def _returns(self, world: World, number: int, name: str) -> Iterator[Next]:
        job = world.jobs[number]
        for n, link in self.before(number):
            if link.mine and world.edges[n] is Edge.ABSENT:
                yield from self._gather(world, n, link, name)
                return
            parent = self.scene.names[link.parent]
            if job.suspends:
                after = put_edge(world, n, Edge.OPEN) if world.edges[n] is Edge.ABSENT else world
                waits = Job(moved("finish", job.state, State.WAITING), linked=True, again=job.again)
                after = put(after, number, waits)
                asked = self.ask(after, number) if self.guards.W1_a_suspended_job_asks else after
                yield Step(f"{name} is suspended, and waits for {parent}", asked)
                return
            joins = link.joins and world.edges[n] is Edge.ABSENT
            if joins or (link.mine and fate(link, world.jobs[link.parent]) != "close"):
                story = f"{name} finds that {parent} has not ended, and lets go"
                yield Step(story, put(world, number, job._replace(suspends=True)))
                return
        if self.guards.W2_an_end_sees_the_link_under_the_lock:
            yield Step(f"{name} completes", self.end(world, "finish", number, State.COMPLETED))
            return
        for h, hand in enumerate(world.hands):
            if not hand.verb and all(each.verb != "finish" or each.job != number for each in world.hands):
                saw = Hand("finish", number, seen=("linked" if job.linked else "",))
                yield Step(f"{name} completes: it sees whether it is linked", put_hand(world, h, saw))
                return

    def finish(self, world: World, h: int, hand: Hand) -> Iterator[Next]:
        after = put_hand(world, h, IDLE)
        if world.jobs[hand.job].state is not State.PROCESSING:
            yield Step("… it has ended before", after)
        elif not locked(world, hand.job):
            completed = self.end(after, "finish", hand.job, State.COMPLETED, linked=bool(hand.seen[0]))
            yield Step("… and its outcome is stored", completed)

    def _gather(self, world: World, n: int, link: Link, who: str) -> Iterator[Next]:
        """A job is stored with the edge to its gatherer, and with an ask for that, which may have ended meanwhile."""
        story = f"{who} gathers {self.scene.names[link.parent]}"
        if live(world.jobs[link.parent]) or locked(world, link.parent):
            return  # an earlier run gathered it: its name is taken until it has ended
        if self.guards.W7_gathering_locks_the_gatherer:
            if world.jobs[link.child].state is not None and not locked(world, link.child):
                yield Step(story, self._gathered(world, n, link))
            return
        for h, hand in enumerate(world.hands):
            if not hand.verb and all(each.verb != "gather" for each in world.hands):
                finds = Hand("gather", link.child, seen=(str(n),))
                yield Step(f"{story}: {self.scene.names[link.child]} is there", put_hand(world, h, finds))
                return

    def gather(self, world: World, h: int, hand: Hand) -> Iterator[Next]:
        n, after = int(hand.seen[0]), put_hand(world, h, IDLE)
        if not locked(world, self.scene.links[n].parent):
            yield Step("… the gathered job is stored", self._gathered(after, n, self.scene.links[n]))

    def _gathered(self, world: World, n: int, link: Link) -> World:
        if world.edges[n] is not Edge.ABSENT:
            return world  # its id is that of the first time
        after = put(world, link.parent, Job(State.QUEUED, linked=True))
        after = put_edge(after, n, Edge.OPEN)
        gatherer = world.jobs[link.child]
        if self.guards.W7_gathering_locks_the_gatherer:
            after = put(after, link.child, gatherer._replace(linked=True))
        else:
            after = after._replace(orphan=after.orphan or gatherer.state is None)
        return self.ask(after, link.child) if self.guards.W1_a_gathered_child_asks_for_its_gatherer else after

    def fails(self, world: World) -> Iterator[Next]:
        """Each costs a mishap."""
        for number, job in enumerate(world.jobs):
            name, chances = self.scene.names[number], self.scene.chances
            if locked(world, number):
                continue
            if "expire" in chances and job.state is State.QUEUED and not self.before(number):
                claimed = put(world, number, job._replace(state=State.PROCESSING))
                after = self.end(claimed, "finish", number, State.CANCELLED)
                expired = put(after, number, after.jobs[number]._replace(expired=True))
                yield Step(f"{name} begins too late: it has expired", expired)
            if job.state is not State.PROCESSING:
                continue
            if "fail" in chances:
                yield Step(f"{name} fails for the last time", self.end(world, "finish", number, State.DEAD))
            for why in {"rescue", "ghost"} & chances:
                runs = f"the owner of {name} dies" if why == "rescue" else f"the owner of {name} is lost, and runs on"
                after = world._replace(ghost=world.ghost or why == "ghost")
                if not self.before(number) or why == "ghost":
                    yield Step(f"{runs}: a rescue ends it", self.end(after, "rescue", number, State.DEAD))
                again = put(after, number, job._replace(state=moved("rescue", job.state, State.QUEUED), suspends=False))
                yield Step(f"{runs}: a rescue queues it", again)

    def ghosts(self, world: World) -> Iterator[Next]:
        for n, link in enumerate(self.scene.links):
            if world.ghost and link.mine and world.edges[n] is Edge.ABSENT:
                yield from self._gather(world, n, link, f"a former owner of {self.scene.names[link.child]}")


class Waiting(_Owners):
    def __init__(self, guards: Guards, mishaps: int, scene: Scene) -> None:
        super().__init__(guards, scene)
        self.mishaps = mishaps
        self.name = f"waiting, {scene.name}"
        self.start = scene.start

    def normal(self, world: World) -> World:
        return world._replace(hands=tuple(sorted(world.hands)))

    def at_rest(self, world: World) -> bool:
        return (
            self._quiet(world)
            and not world.unstored
            and not world.older
            and all(job.state not in (*RUNNABLE, State.SCHEDULED) for job in world.jobs)
        )

    def _quiet(self, world: World) -> bool:
        return not world.asks and not world.unsent and not any(hand.verb for hand in world.hands)

    def lost(self, world: World) -> str:
        under_way = (f"; a {hand.verb} of {self.scene.names[hand.job]} waits" for hand in world.hands if hand.verb)
        return f"Tenure alone can never again come to rest: {self._stands(world)}{''.join(under_way)}"

    def _stands(self, world: World) -> str:
        jobs = (f"{name} is {job.state or 'gone'}" for name, job in zip(self.scene.names, world.jobs, strict=True))
        return ", ".join(jobs)

    def sight(self, world: World) -> tuple[str, ...]:
        return tuple(sorted(hand.verb for hand in world.hands))

    def broken(self, world: World) -> str:
        if world.orphan:
            return "a gathered child lives on after its gatherer has ended otherwise, or is gone"
        return self._begun(world) or (self._forgotten(world) if self._quiet(world) else "")

    def _begun(self, world: World) -> str:
        for n, link in enumerate(self.scene.links):
            child, parent, edge = self.scene.names[link.child], world.jobs[link.parent], world.edges[n]
            if link.mine or world.jobs[link.child].state not in RUNNABLE:
                continue
            name = self.scene.names[link.parent]
            early = f"{child} begins before {name} has ended as its edge asks: {name} is {parent.state}"
            if edge in WAITS:
                return early
            if edge is Edge.CLOSED and link.until == "completed" and parent.state is not State.COMPLETED:
                pruned = f"{child} goes on, and the result of {name}, which it needs, was pruned or deleted"
                return pruned if parent.state is None else early
        return ""

    def _forgotten(self, world: World) -> str:
        """What was forgotten, now that no transaction is under way and no ask is left."""
        for number, job in enumerate(world.jobs):
            name = self.scene.names[number]
            if self.ready(world, number):
                return f"{name} is waiting, its condition holds, and no ask is left"
            if ended(job) and job.state is not State.COMPLETED and self.lives_on(world, number):
                return f"a gathered child lives on after its gatherer {name} is {job.state}"
            if ended(job) and job.linked and not self.live_child(world, number):
                return f"{name} is kept for ever: it is linked, no live job needs it, and no ask is left"
        return ""

    def engine(self, world: World) -> Iterator[Next]:
        yield from self.stored(world)
        if world.older:
            yield from self._older(world)
        else:
            yield from self.owners(world)
        if world.unsent:
            story = "the process whose commit it was stores an ask"
            yield Step(story, world._replace(asks=world.asks | world.unsent, unsent=0))
        for h, hand in enumerate(world.hands):
            if hand.verb:
                yield from getattr(self, hand.verb)(world, h, hand)
        free = next((h for h, hand in enumerate(world.hands) if not hand.verb), None)
        if free is None or (world.older and self.guards.W5_nothing_is_admitted_beside_an_older_worker):
            return
        for number in range(len(world.jobs)):
            if world.asks >> number & 1:
                yield from self.take(world, free, number)

    def _older(self, world: World) -> Iterator[Next]:
        yield Step("the older worker leaves", world._replace(older=False))
        for number, job in enumerate(world.jobs):
            if job.state in RUNNABLE and not locked(world, number):
                runs = put(world, number, job._replace(state=State.PROCESSING))
                asks = job.linked and self.guards.W5_what_an_older_worker_ends_asks_too
                done = self.end(runs, "finish", number, State.COMPLETED, linked=asks)
                yield Step(f"the older worker runs {self.scene.names[number]}, which completes", done)

    def chances(self, world: World) -> Iterator[Next]:
        if "link" in self.scene.chances and world == self.scene.start:
            linked = put(world, 0, world.jobs[0]._replace(linked=True))
            yield Step(f"a job that waited for {self.scene.names[0]} was deleted just now", self.ask(linked, 0))
        yield from self.ghosts(world)
        if world.mishaps == self.mishaps:
            return
        world = world._replace(mishaps=world.mishaps + 1)
        yield from self.fails(world)
        yield from self.operator(world)
        admits = any(hand.verb in ADMIT for hand in world.hands)
        if "older" in self.scene.chances and not (world.older or admits):
            yield Step("a worker of an older version starts", world._replace(older=True))
        if "crash" not in self.scene.chances:
            return
        if world.unsent:
            yield Step("a process dies before it stores its ask", world._replace(unsent=0))
        for h, hand in enumerate(world.hands):
            if hand.verb in ADMIT:
                crashed = put_hand(world, h, IDLE)
                if self.guards.W1_an_ask_goes_with_its_answer:
                    crashed = crashed._replace(asks=crashed.asks | 1 << hand.job)
                yield Step("a process that admits dies", crashed)
