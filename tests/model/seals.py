"""Flows that are stored in parts, searched: a script in Redis stores a bounded number of jobs, and a seal comes last.

One flow of two parts, with one job each that waits for nothing else; its writer, a request of it that is carried out
late, and a sweep, also in bounded scripts, that removes what nobody sealed. The promises: a job of the flow begins
only if all of them are stored, and a flow that is not sealed goes away.

How the world is made small: a script is one step. That an ask which is left is answered, by whom and in which order,
is in `waiting.py`. An hour without a seal passes at any time: a writer may be slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tenure.core.lifecycle import State

from .links import moved
from .search import Step

MISHAPS = 1  #: the writer dies
PARTS = 2


@dataclass(frozen=True, slots=True)
class Guards:
    W8_members_wait_for_the_seal: bool = True
    W8_the_seal_is_written_last: bool = True
    W8_a_seal_asks_for_its_members: bool = True
    W8_an_unsealed_flow_is_swept: bool = True  #: after an hour
    W8_a_sweep_voids_the_flow_first: bool = True  #: parts and a seal that come later are refused
    W8_a_sweep_spares_the_sealed: bool = True  #: as the flow stands when it is voided


class World(NamedTuple):
    members: tuple[State | None, ...] = (None,) * PARTS
    written: int = 0  #: parts that the writer has sent
    sealed: bool = False
    sent: bool = False  #: the writer has sent its seal
    void: bool = False
    sweeps: bool = False  #: a sweep has read that there is no seal
    asks: int = 0  #: a bit for each member
    late: str = ""  #: a request whose writer is gone: a part's number, or the seal
    gone: bool = False  #: the writer
    old: bool = False  #: an hour has passed
    mishaps: int = 0


Next = Step[World]
SIGHTS = frozenset({"", "sealed", "void"})


class Seals:
    name = "seals"
    start = World()

    def __init__(self, guards: Guards, mishaps: int) -> None:
        self.guards, self.mishaps = guards, mishaps

    def normal(self, world: World) -> World:
        return world

    def at_rest(self, world: World) -> bool:
        over = all(state in (None, State.COMPLETED) for state in world.members)
        return over and self._sent(world) and not (world.asks or world.late or world.sweeps)

    def lost(self, world: World) -> str:
        return f"Tenure alone can never again end all jobs of the flow, or remove them: {self._stands(world)}"

    def _stands(self, world: World) -> str:
        return " and ".join(str(state or "gone") for state in world.members)

    def sight(self, world: World) -> str:
        return "sealed" if world.sealed else "void" if world.void else ""

    def broken(self, world: World) -> str:
        begun = any(state in (State.QUEUED, State.COMPLETED) for state in world.members)
        if begun and not all(world.members):
            return f"a job of the flow may begin, and not all are stored: {self._stands(world)}"
        return ""

    def _sent(self, world: World) -> bool:
        return world.gone or (world.written == PARTS and world.sent)

    # ── what Tenure does by itself ──

    def engine(self, world: World) -> Iterator[Next]:
        request = self._request(world)
        if request:
            sent = world._replace(sent=True) if request == "seal" else world._replace(written=world.written + 1)
            yield self._landed(sent, request, "the writer stores")
        if world.late:
            yield self._landed(world._replace(late=""), world.late, "late, a writer that is gone stores")
        if not world.old and any(world.members):
            yield Step("an hour has passed", world._replace(old=True))
        yield from self._sweep(world)
        yield from self._admit(world)

    def _request(self, world: World) -> str:
        """What the writer sends next."""
        if self._sent(world):
            return ""
        last = PARTS if self.guards.W8_the_seal_is_written_last else 1
        return "seal" if world.written >= last and not world.sent else str(world.written)

    def _landed(self, world: World, request: str, story: str) -> Next:
        story = f"{story} {'the seal' if request == 'seal' else f'part {int(request) + 1}'}"
        if world.void:
            return Step(f"{story}: it is refused, the flow is void", world)
        if request == "seal":
            asks = sum(1 << number for number, state in enumerate(world.members) if state)
            asks = asks if self.guards.W8_a_seal_asks_for_its_members else 0
            return Step(story, world._replace(sealed=True, asks=world.asks | asks))
        number = int(request)
        after = _put(world, number, moved("enqueue", None, State.WAITING))
        return Step(story, after._replace(asks=after.asks | 1 << number))

    def _sweep(self, world: World) -> Iterator[Next]:
        guards = self.guards
        if world.old and not (world.sealed or world.void or world.sweeps) and guards.W8_an_unsealed_flow_is_swept:
            yield Step("a sweep finds a flow without a seal", world._replace(sweeps=True))
        if not world.sweeps:
            return
        if world.sealed and guards.W8_a_sweep_spares_the_sealed and not world.void:
            yield Step("… which is sealed by now: it is spared", world._replace(sweeps=False))
        elif guards.W8_a_sweep_voids_the_flow_first and not world.void:
            yield Step("… it voids the flow", world._replace(void=True))
        else:
            waits = [number for number, state in enumerate(world.members) if state is State.WAITING]
            for number in waits[:1]:
                yield Step(f"… it removes the job of part {number + 1}", _put(world, number, None))
            if not waits:
                yield Step("… it has removed all jobs of the flow", world._replace(sweeps=False))

    def _admit(self, world: World) -> Iterator[Next]:
        for number, state in enumerate(world.members):
            story = f"the job of part {number + 1}"
            if state is State.QUEUED:
                yield Step(f"{story} begins, and completes", _put(world, number, State.COMPLETED))
            if world.asks >> number & 1:
                after = world._replace(asks=world.asks & ~(1 << number))
                if state is State.WAITING and (world.sealed or not self.guards.W8_members_wait_for_the_seal):
                    after = _put(after, number, moved("admit", state, State.QUEUED))
                    yield Step(f"admit looks at {story}: it is queued", after)
                else:
                    yield Step(f"admit looks at {story}: there is no seal, or it does not wait", after)

    # ── what can't be relied on ──

    def chances(self, world: World) -> Iterator[Next]:
        if world.mishaps == self.mishaps or self._sent(world):
            return
        dies = world._replace(mishaps=world.mishaps + 1, gone=True)
        yield Step("the writer dies", dies)
        yield Step("the writer dies, its next request still under way", dies._replace(late=self._request(world)))


def _put(world: World, number: int, state: State | None) -> World:
    return world._replace(members=(*world.members[:number], state, *world.members[number + 1 :]))
