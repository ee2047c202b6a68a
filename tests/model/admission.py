"""`admit`, and what a statement changes in the rows: the first half of `waiting.py`.

It answers asks in two kinds of transactions. One *looks* at a job that waits: it arms the edges whose parents have yet
to end. The other *tells* of a job that has ended: it closes edges, and asks for those that waited.
"""

from __future__ import annotations

from collections.abc import Iterator

from tenure.core.lifecycle import State

from .links import (
    ADMIT,
    IDLE,
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

WAITS = (Edge.OPEN, Edge.ARMED)


def unasked(job: Job) -> bool:
    """It lives because a gatherer wants it, and for no other reason."""
    return live(job) and not (job.cancel_asked or job.again)


class Rows:
    """What is in the rows, and what a statement changes."""

    def __init__(self, guards: Guards, scene: Scene) -> None:
        self.guards, self.scene = guards, scene

    def before(self, number: int) -> list[tuple[int, Link]]:
        return [(n, link) for n, link in enumerate(self.scene.links) if link.child == number]

    def behind(self, number: int) -> list[tuple[int, Link]]:
        return [(n, link) for n, link in enumerate(self.scene.links) if link.parent == number]

    def linked_before(self, world: World, number: int) -> bool:
        return any(world.edges[n] is not Edge.ABSENT for n, _ in self.before(number))

    def waits(self, world: World, number: int) -> bool:
        return any(world.edges[n] in WAITS for n, _ in self.before(number))

    def live_child(self, world: World, number: int) -> bool:
        """Is there a live job that waits for this one, or goes on with its result?"""
        there = (link for n, link in self.behind(number) if world.edges[n] is not Edge.ABSENT)
        return any(live(world.jobs[link.child]) for link in there)

    def gathers(self, world: World, number: int) -> list[int]:
        """The live jobs that it gathers."""
        mine = [link.parent for n, link in self.before(number) if link.mine and world.edges[n] is not Edge.ABSENT]
        return [parent for parent in mine if live(world.jobs[parent])]

    def lives_on(self, world: World, number: int) -> bool:
        """Does a job that it gathers go on, though only its gatherer wants it?"""
        return any(unasked(world.jobs[each]) for each in self.gathers(world, number))

    def ready(self, world: World, number: int) -> bool:
        """It waits, and nothing that it waits for is left."""
        waits = (link for n, link in self.before(number) if world.edges[n] in WAITS)
        return world.jobs[number].state is State.WAITING and all(
            fate(link, world.jobs[link.parent]) != "hold" for link in waits
        )

    def ask(self, world: World, number: int) -> World:
        answered = any(hand.verb in ADMIT and hand.job == number for hand in world.hands)
        if answered and not self.guards.W1_an_ask_is_a_row_of_its_own:
            return world
        if self.guards.W1_an_ask_is_stored_with_its_cause:
            return world._replace(asks=world.asks | 1 << number)
        return world._replace(unsent=world.unsent | 1 << number)

    def end(self, world: World, verb: str, number: int, to: State, *, linked: bool | None = None) -> World:
        """A job ends, and asks if it is linked, as far as the statement sees."""
        job = world.jobs[number]
        asks = {
            "finish": self.guards.W2_a_finish_asks,
            "rescue": self.guards.W2_a_rescue_asks,
            "cancel": self.guards.W2_a_cancel_asks,
        }
        world = put(world, number, job._replace(state=moved(verb, job.state, to), cancel_asked=False, suspends=False))
        return self.ask(world, number) if asks[verb] and (job.linked if linked is None else linked) else world

    def cancel(self, world: World, number: int) -> World:
        job = world.jobs[number]
        if job.state is State.PROCESSING:
            return put(world, number, job._replace(cancel_asked=True))
        return self.end(world, "cancel", number, State.CANCELLED)

    def gone(self, world: World, number: int, *, asks: bool) -> World:
        """`asks`: for its parents, which may be kept for it alone."""
        orphan = world.orphan or self.lives_on(world, number)
        for n, link in self.before(number):
            if asks and world.edges[n] is not Edge.ABSENT:
                world = self.ask(world, link.parent)
            world = put_edge(world, n, Edge.ABSENT)
        return put(world, number, Job(None))._replace(orphan=orphan)

    def armed(self, world: World, hand: Hand) -> World:
        """The parents that it has locked are linked."""
        for number, job in enumerate(world.jobs):
            if hand.locked(number) and number != hand.job and job.state is not None:
                world = put(world, number, job._replace(linked=True))
        return world

    def released(self, world: World, number: int) -> World:
        """A job that has ended is kept for those that need it, and no longer."""
        job, needed = world.jobs[number], self.live_child(world, number)
        if not ended(job) or job.linked == needed or (needed and not self.guards.W7_telling_links_again):
            return world
        return put(world, number, job._replace(linked=needed))


class Admission(Rows):
    """The two transactions of `admit`."""

    def take(self, world: World, h: int, number: int) -> Iterator[Next]:
        """The ask is locked, and the row of its job, unless another transaction has it."""
        guards, job, name = self.guards, world.jobs[number], self.scene.names[number]
        answered = world._replace(asks=world.asks & ~(1 << number))
        if locked(world, number):
            if not guards.W3_what_is_locked_keeps_its_ask:
                yield Step(f"admit finds {name} locked, and removes its ask", answered)
            return
        if ended(job):
            locks = 1 << number if guards.W3_told_under_the_row_lock else 0
            hand = Hand("tell", number, locks, (str(job.state), "expired" if job.expired else ""))
            yield Step(f"admit takes the ask of {name}, which is {job.state}", put_hand(answered, h, hand))
        elif job.state is State.WAITING:
            seen = tuple(str(each.state or "") for each in world.jobs)
            hand = Hand("look", number, 1 << number, () if guards.W2_states_are_read_after_arming else seen)
            yield Step(f"admit takes the ask of {name}, which waits", put_hand(answered, h, hand))
        else:
            if live(job) and self.linked_before(world, number):
                answered = put(answered, number, job._replace(linked=True))
            yield Step(f"admit takes the ask of {name}, which does not wait", answered)

    def look(self, world: World, h: int, hand: Hand) -> Iterator[Next]:
        number, guards, names = hand.job, self.guards, self.scene.names
        unarmed = [(n, link) for n, link in self.before(number) if world.edges[n] is Edge.OPEN]
        in_order = sorted(unarmed, key=lambda each: each[1].parent)
        for _, link in in_order if guards.W2_parents_are_armed_in_order else unarmed:
            parent = world.jobs[link.parent]
            arms = live(parent) or (ended(parent) and guards.W2_ended_parents_are_armed_too)
            if arms and not hand.locked(link.parent):
                if not locked(world, link.parent):
                    arming = hand._replace(locks=hand.locks | 1 << link.parent)
                    yield Step(f"… it arms {names[link.parent]}, which is {parent.state}", put_hand(world, h, arming))
                return
        fates = [fate(link, self._parent(world, hand, link)) for _, link in unarmed]
        what = "cancel" if "cancel" in fates else "wait" if "hold" in fates or self._armed(world, number) else "admit"
        new = (Edge.CLOSED if each == "close" else Edge.ARMED for each in fates)
        found = tuple(f"{n} {edge}" for (n, _), edge in zip(unarmed, new, strict=True))
        looked = Hand("looked", number, hand.locks, (what, *found))
        yield Step(f"… it looks at the edges of {names[number]}", put_hand(world, h, looked))

    def _armed(self, world: World, number: int) -> bool:
        return any(world.edges[n] is Edge.ARMED for n, _ in self.before(number))

    def looked(self, world: World, h: int, hand: Hand) -> Iterator[Next]:
        """The commit: an edge that was armed before may have been closed since that look."""
        number, (what, *found) = hand.job, hand.seen
        after, name = put_hand(self.armed(world, hand), h, IDLE), self.scene.names[hand.job]
        for n, edge in map(str.split, found):
            after = put_edge(after, int(n), Edge(edge))
        if what == "cancel":
            story = f"… {name} needs a job that was cancelled, or is gone: it is cancelled"
            yield Step(story, self.cancel(after, number))
        elif what == "wait":
            yield Step(f"… an edge of {name} was open: it waits on", after)
        else:
            yield self._admitted(after, number, "…")

    def _parent(self, world: World, hand: Hand, link: Link) -> Job:
        parent = world.jobs[link.parent]
        if not hand.seen:
            return parent
        was = hand.seen[link.parent]
        return parent._replace(state=State(was) if was else None)

    def _admitted(self, world: World, number: int, story: str) -> Next:
        job = world.jobs[number]
        after = put(world, number, job._replace(state=moved("admit", job.state, State.QUEUED)))
        broken = f"{self.scene.names[number]} is admitted while an older worker lives" if world.older else ""
        return Step(f"{story} no edge of {self.scene.names[number]} is open: it is queued", after, broken)

    def tell(self, world: World, h: int, hand: Hand) -> Iterator[Next]:
        """Those that wait for it are asked for, those that it gathers end, and nothing is kept for it."""
        guards, number, names = self.guards, hand.job, self.scene.names
        ends = Job(State(hand.seen[0]), expired=hand.seen[1] == "expired")
        waits = [(n, link) for n, link in self.behind(number) if world.edges[n] in WAITS]
        closing = [(n, link.child) for n, link in waits if fate(link, ends) == "close"]
        lost = [link.child for _, link in waits if fate(link, ends) == "cancel" and live(world.jobs[link.child])]
        gathered = [] if ends.state is State.COMPLETED else self.gathers(world, number)
        kept = [link.parent for _, link in self.before(number)]
        if any(locked(world, each) for each in [*gathered, *kept]):
            return
        if closing and not guards.W2_looked_at_after_the_commit:
            yield self._told_and_looked(world, h, hand, closing)
            return
        skipped = [child for child in lost if locked(world, child)]
        story, rest = f"… it tells that {names[number]} is {ends.state}", closing[self.scene.most_told :]
        after = put_hand(world, h, IDLE)
        for n, child in closing[: self.scene.most_told]:
            after = self.ask(put_edge(after, n, Edge.CLOSED), child)
        for each in [child for child in lost if child not in skipped]:
            story, after = f"{story}: {names[each]} is cancelled", self.cancel(after, each)
        if guards.W7_what_an_ended_job_gathers_is_cancelled:
            for each in gathered:
                story, after = f"{story}: {names[each]} is cancelled", self.cancel(after, each)
        keeps = (rest and guards.W1_an_ask_stays_until_all_are_told) or (
            skipped and guards.W3_what_is_locked_keeps_its_ask
        )
        if keeps:
            after = self.released(after, number)
            yield Step(f"{story}; not all are told, and the ask stays", after._replace(asks=after.asks | 1 << number))
            return
        for each in [*kept, number]:
            after = self.released(after, each)
        yield Step(story, after)

    def _told_and_looked(self, world: World, h: int, hand: Hand, closing: list[tuple[int, int]]) -> Next:
        """Without the rule: it looks in the same transaction, which does not see what others have yet to commit."""
        after, seen = world, list[str]()
        for n, child in closing:
            after = put_edge(after, n, Edge.CLOSED)
            admits = not locked(world, child) and not self.waits(after, child)
            seen.append(f"{n} {'admit' if admits else ''}")
        story = f"… it closes the edges from {self.scene.names[hand.job]}, and looks whether others are open"
        return Step(story, put_hand(world, h, hand._replace(verb="told", seen=tuple(seen))))

    def told(self, world: World, h: int, hand: Hand) -> Iterator[Next]:
        if any(locked(world, self.scene.links[int(each.split()[0])].child) for each in hand.seen):
            return
        after, story, broken = put_hand(world, h, IDLE), "… it commits", ""
        for n, _, admits in (each.partition(" ") for each in hand.seen):
            after, child = put_edge(after, int(n), Edge.CLOSED), self.scene.links[int(n)].child
            if admits and after.jobs[child].state is State.WAITING:
                story, after, broken = self._admitted(after, child, story)
        yield Step(story, after, broken)
