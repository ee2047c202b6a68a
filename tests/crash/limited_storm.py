"""The storm, with limits: kill -9 of workers and supervisors beside keys of 1, 3 and 50 places.

In tests/: `python -m crash.limited_storm [BACKEND [KILLS [SEED]]]`

By what the handlers themselves wrote down, never more jobs of a key run at a time than it has places; and when all
jobs have ended, nothing holds a place.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

from tenure.tasks.handle import JobHandle

from . import limited
from .backends import BACKENDS
from .harness import HERE, SOURCE, Site, most_at_once, runs_of
from .storm import Report, Storm

#: Of each task: how long its jobs take on average, and how many of them there are for each kill.
SHARES = {
    limited.of_one: (0.1, 3.0),
    limited.of_three: (0.3, 2.5),
    limited.of_three_and_fifty: (0.3, 2.5),
    limited.of_fifty: (2.0, 12.0),
}


class LimitedStorm(Storm):
    """…whose jobs have one or two limits each."""

    app, slots, spares = "crash.limited", 20, 1  # a new worker is there at once: there is something to kill
    env: ClassVar[Mapping[str, str]] = {**Storm.env, "PYTHONPATH": f"{SOURCE}{os.pathsep}{HERE.parent}"}

    def __init__(self, site: Site, kills: int, seed: int) -> None:
        super().__init__(site, 1, kills, seed)
        self.keys: dict[str, tuple[str, ...]] = {}  #: of each job, by its id
        self.at_once: Mapping[str, int] = {}  #: of each key: the most that ran at a time

    def _enqueue(self) -> list[JobHandle[int]]:
        bound = [
            (keys, task.bind(round(mean * self._draw.uniform(0.1, 1.9), 3)))
            for task, keys in limited.KEYS.items()
            for mean, share in (SHARES[task],)
            for _ in range(round(share * self._kills))
        ]
        self._draw.shuffle(bound)
        handles = limited.jobs.enqueue_many([job for _, job in bound])
        self.keys = {str(handle.id): keys for handle, (keys, _) in zip(handles, bound, strict=True)}
        return handles

    def _judge(self, handles: Sequence[JobHandle[int]], seconds: float, codes: Sequence[int]) -> Report:
        report = super()._judge(handles, seconds, codes)
        runs = runs_of(self._site.lines(), self._killed)
        self.at_once = {
            key: most_at_once(run for job, keys in self.keys.items() if key in keys for run in runs.get(job, ()))
            for key in limited.PLACES
        }
        for key, places in limited.PLACES.items():
            if self.at_once[key] > places:
                report.wrong.append(f"{self.at_once[key]} jobs of {key} ran at once, and {places} may")
        for view in self._site.store.keys(limit=1000):
            if view.held or view.waiting:
                report.wrong.append(f"{view.held} places of {view.key} are held, {view.waiting} jobs wait for one")
        return report


def storm(site: Site, kills: int, seed: int) -> tuple[Report, Mapping[str, int]]:
    """Its report, and how many jobs of each key ran at a time, at most."""
    limited.jobs.configure(asdict(site.place))
    with limited.jobs:
        played = LimitedStorm(site, kills, seed)
        return played.run(), played.at_once


def main(backend: str = "sqlite", *numbers: str) -> int:
    kills, seed = (*map(int, numbers), *(200, 0)[len(numbers) :])
    (place,) = (each.place for each in BACKENDS if each.name == backend)
    with tempfile.TemporaryDirectory() as name, place(folder := Path(name)) as where, Site(folder, where) as site:
        report, at_once = storm(site, kills, seed or random.SystemRandom().randrange(1, 1 << 32))
    print(f"{backend}, {report}\n  at once, at most: {at_once}")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
