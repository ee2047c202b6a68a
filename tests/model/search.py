"""Breadth-first search of every world that the steps can reach, and the shortest story that breaks a promise.

Checked in every world: no single fault makes two workers run the job at once (`together`); and from it the job can end
and all its code stop by Tenure's own steps, so no job is ever lost. Checked at every step (`Step.broken`): it is a row
of `MOVES`; only the owner's writes are accepted, one outcome an attempt, and its sender is told so; attempts rise by
one; no lease is run twice; an asked cancel is kept; the dead stay dead; a job pays for no more crashes than faults.
"""

from __future__ import annotations

from dataclasses import dataclass

from tenure.lifecycle import State

from .protocol import Protocol
from .world import (
    BOTH,
    FORMER,
    MISHAPS,
    NAMES,
    START,
    Guards,
    Step,
    World,
    active,
    at_rest,
    owns,
    put,
    stands,
    together,
)


@dataclass(frozen=True, slots=True)
class Report:
    worlds: int
    seen: frozenset[State]
    story: tuple[str, ...] = ()  #: the steps to the first broken promise
    broken: str = ""

    def __str__(self) -> str:
        if not self.broken:
            return f"{self.worlds:,} worlds, and no promise is broken"
        steps = [f"{number:>4}. {step}" for number, step in enumerate(self.story, 1)]
        return "\n".join([*steps, f"   => {self.broken}"])


def search(guards: Guards, mishaps: int = MISHAPS) -> Report:
    """Every world within the bounds, up to the first broken promise."""
    return _Search(Protocol(guards, mishaps)).run()


def shortest_story(guards: Guards) -> Report:
    """The story with the fewest mishaps, and of these one of the shortest."""
    report = search(guards, 0)
    for mishaps in range(1, MISHAPS + 1):
        if not report.broken:
            report = search(guards, mishaps)
    return report


class _Search:
    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self._worlds = [normal(START)]
        self._numbers = {self._worlds[0]: 0}
        self._before = [0]  #: of each world: the one it was first reached from
        self._engine_before: list[list[int]] = [[]]  #: of each world: those that reach it by Tenure's own steps

    def run(self) -> Report:
        for number, world in enumerate(self._worlds):  # the list grows while it is walked
            if together(world):
                return self._report(number)
            for step in self._protocol.engine(world):
                if step.broken:
                    return self._report(number)
                self._engine_before[self._reach(step.world, number)].append(number)
            for step in self._protocol.chances(world):
                if step.broken:
                    return self._report(number)
                self._reach(step.world, number)
        lost = self._first_lost()
        return Report(len(self._worlds), self._seen()) if lost is None else self._report(lost)

    def _reach(self, world: World, before: int) -> int:
        world = normal(world)
        number = self._numbers.setdefault(world, len(self._worlds))
        if number == len(self._worlds):
            self._worlds.append(world)
            self._before.append(before)
            self._engine_before.append([])
        return number

    def _first_lost(self) -> int | None:
        """The first world from which Tenure's own steps never come to rest."""
        can_end = [at_rest(world) for world in self._worlds]
        todo = [number for number, rests in enumerate(can_end) if rests]
        while todo:
            for before in self._engine_before[todo.pop()]:
                if not can_end[before]:
                    can_end[before] = True
                    todo.append(before)
        return None if all(can_end) else can_end.index(False)

    def _seen(self) -> frozenset[State]:
        return frozenset(world.job.state for world in self._worlds)

    def _report(self, end: int) -> Report:
        """Walk the path once more: in `_worlds` the workers may have changed names on the way."""
        path: list[World] = []
        while end:
            path.append(self._worlds[end])
            end = self._before[end]
        world, story = START, list[str]()
        for wanted in reversed(path):
            step = next(step for step in self._steps(world) if normal(step.world) == wanted)
            story.append(step.story)
            world = step.world
        broken = together(world)
        if not broken:
            last = next((step for step in self._steps(world) if step.broken), None)
            story += [last.story] if last else []
            broken = last.broken if last else _lost(world)
        return Report(len(self._worlds), self._seen(), tuple(story), broken)

    def _steps(self, world: World) -> list[Step]:
        return [*self._protocol.engine(world), *self._protocol.chances(world)]


def _lost(world: World) -> str:
    running = "".join(
        f", and {name} runs attempt {worker.holds}"
        for name, worker in zip(NAMES, world.workers, strict=False)
        if active(worker)
    )
    return f"Tenure alone can never again end the job and stop all its code: {stands(world.job)}{running}"


# ── Which worlds are the same ───────────────────────────────────────────────────────────────────────────────────

_MIRROR = (1, 0, FORMER, -1)


def normal(world: World) -> World:
    """One for all worlds that differ only in what nobody can ask for any more, or in which worker is called A."""
    world = _forget(world)
    a, b = world.workers
    if a < b:
        return world
    job, stray = world.job, world.stray
    mirrored = world._replace(
        job=job._replace(
            owner=_MIRROR[job.owner],
            ends=tuple((attempt, _MIRROR[w], ending) for attempt, w, ending in job.ends),
        ),
        workers=(b, a),
        stray=stray._replace(worker=_MIRROR[stray.worker]) if stray else stray,
    )
    return mirrored if b < a else min(world, mirrored)


def _forget(world: World) -> World:
    job, (a, b), stray = world.job, world.workers, world.stray
    askers = (a.holds, b.holds, stray.attempt if stray else 0)
    if job.ends and not all(attempt in askers for attempt, _, _ in job.ends):
        job = job._replace(ends=tuple(end for end in job.ends if end[0] in askers))
    if job.owner != -1 and job.state is not State.PROCESSING and job.attempt not in askers:
        job = job._replace(owner=-1)
    if job is not world.job:
        world = world._replace(job=job)
    for w in BOTH:
        worker = world.workers[w]
        if worker.begun:
            again = {worker.granted, worker.look.seen if worker.look else 0, job.attempt if owns(job, w) else 0}
            begun = sum(1 << attempt for attempt in again if worker.begun >> attempt & 1)
            if begun != worker.begun:
                world = put(world, w, worker._replace(begun=begun))
    return world
