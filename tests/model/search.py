"""Breadth-first search of every world that a machine's steps can reach, and the shortest story that breaks a promise.

A `Machine` says what can happen next, and what must never be. Checked in every world: no promise is broken in it
(`broken`), and from it the machine can come to rest by Tenure's own steps, so nothing is ever lost. Checked at every
step: the promise that it breaks itself, if it breaks one (`Step.broken`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

W = TypeVar("W")


class Step(NamedTuple, Generic[W]):
    story: str
    world: W
    broken: str = ""  #: the promise that this step breaks


class Machine(Protocol[W]):
    """Worlds are values that can be compared and hashed."""

    @property
    def name(self) -> str: ...

    @property
    def start(self) -> W: ...

    def engine(self, world: W) -> Iterable[Step[W]]:
        """What Tenure does by itself."""
        ...

    def chances(self, world: W) -> Iterable[Step[W]]:
        """What may happen, but can't be relied on."""
        ...

    def normal(self, world: W) -> W:
        """One for all worlds that differ in nothing that matters."""
        ...

    def at_rest(self, world: W) -> bool:
        """The end that every story must be able to reach."""
        ...

    def lost(self, world: W) -> str:
        """What to report of a world from which that end can't be reached."""
        ...

    def broken(self, world: W) -> str:
        """The promise that does not hold in this world; empty: all do."""
        ...

    def sight(self, world: W) -> Hashable:
        """What a search must have met to prove anything: see `Model.sights`."""
        ...


@dataclass(frozen=True, slots=True)
class Report:
    name: str
    worlds: int
    seen: frozenset[Hashable]
    story: tuple[str, ...] = ()  #: the steps to the first broken promise
    broken: str = ""

    def __str__(self) -> str:
        if not self.broken:
            return f"{self.name}: {self.worlds:,} worlds, and no promise is broken"
        steps = [f"{number:>4}. {step}" for number, step in enumerate(self.story, 1)]
        return "\n".join([*steps, f"   => {self.broken}"])


@dataclass(frozen=True, slots=True)
class Model:
    """A protocol, its rules, and the machines that play it. `guards` is a dataclass of rules that can be left out."""

    name: str
    guards: Any
    machines: Callable[[Any, int], Iterator[Machine[Any]]]  #: with these guards, and so many mishaps in a story
    mishaps: int
    sights: frozenset[Hashable]  #: what the searches, taken together, have to meet

    @property
    def rules(self) -> list[str]:
        return [guard.name for guard in fields(self.guards)]

    def whole(self) -> list[Report]:
        """Every world within the bounds, of each machine up to the first broken promise."""
        return [search(machine) for machine in self.machines(self.guards, self.mishaps)]

    def without(self, rule: str) -> Report:
        """The story with the fewest mishaps, and of these one of the shortest; else the last search."""
        guards = replace(self.guards, **{rule: False})
        report = Report(self.name, 0, frozenset())
        for mishaps in range(self.mishaps + 1):
            for machine in self.machines(guards, mishaps):
                report = search(machine)
                if report.broken:
                    return report
        return report


def search(machine: Machine[W]) -> Report:
    return _Search(machine).run()


class _Search(Generic[W]):
    def __init__(self, machine: Machine[W]) -> None:
        self._machine = machine
        self._worlds = [machine.normal(machine.start)]
        self._numbers = {self._worlds[0]: 0}
        self._before = [0]  #: of each world: the one it was first reached from
        self._engine_before: list[list[int]] = [[]]  #: of each world: those that reach it by Tenure's own steps

    def run(self) -> Report:
        machine = self._machine
        for number, world in enumerate(self._worlds):  # the list grows while it is walked
            if machine.broken(world):
                return self._report(number)
            for step in machine.engine(world):
                if step.broken:
                    return self._report(number)
                self._engine_before[self._reach(step.world, number)].append(number)
            for step in machine.chances(world):
                if step.broken:
                    return self._report(number)
                self._reach(step.world, number)
        lost = self._first_lost()
        return Report(machine.name, len(self._worlds), self._seen()) if lost is None else self._report(lost)

    def _reach(self, world: W, before: int) -> int:
        world = self._machine.normal(world)
        number = self._numbers.setdefault(world, len(self._worlds))
        if number == len(self._worlds):
            self._worlds.append(world)
            self._before.append(before)
            self._engine_before.append([])
        return number

    def _first_lost(self) -> int | None:
        """The first world from which Tenure's own steps never come to rest."""
        can_end = [self._machine.at_rest(world) for world in self._worlds]
        todo = [number for number, rests in enumerate(can_end) if rests]
        while todo:
            for before in self._engine_before[todo.pop()]:
                if not can_end[before]:
                    can_end[before] = True
                    todo.append(before)
        if all(can_end):
            return None
        if can_end[0]:
            return can_end.index(False)
        goes_on = {
            before for number, befores in enumerate(self._engine_before) for before in befores if before != number
        }
        return next((number for number, ends in enumerate(can_end) if not ends and number not in goes_on), 0)

    def _seen(self) -> frozenset[Hashable]:
        return frozenset(map(self._machine.sight, self._worlds))

    def _report(self, end: int) -> Report:
        """Walk the path once more: `normal` may have changed names on the way."""
        machine, path = self._machine, list[W]()
        while end:
            path.append(self._worlds[end])
            end = self._before[end]
        world, story = machine.start, list[str]()
        for wanted in reversed(path):
            step = next(step for step in self._steps(world) if machine.normal(step.world) == wanted)
            story.append(step.story)
            world = step.world
        broken = machine.broken(world)
        if not broken:
            last = next((step for step in self._steps(world) if step.broken), None)
            story += [last.story] if last else []
            broken = last.broken if last else machine.lost(world)
        return Report(machine.name, len(self._worlds), self._seen(), tuple(story), broken)

    def _steps(self, world: W) -> list[Step[W]]:
        return [*self._machine.engine(world), *self._machine.chances(world)]
