"""Short jobs, three workers, and random kill -9 all the while.

In tests/: `python -m crash.storm [BACKEND [JOBS [KILLS [SEED]]]]`

Two supervisors share one store; workers and supervisors are killed at random and a killed supervisor is started
again. Afterwards the ledger and the store must tell the same story: nothing lost, nothing run twice at once.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from tenure.ports import Filter, JobView
from tenure.tasks.handle import JobHandle

from . import shop
from .backends import BACKENDS
from .harness import Run, Site, Supervised, alive, boot, overlaps, runs_of, send, spread

SIZES = (2, 1)  # workers of each supervisor
SLOTS = 5


@dataclass(frozen=True)
class Report:
    """What a storm did, and what is wrong with how it ended."""

    seed: int
    jobs: int
    kills: Counter[str]
    seconds: float
    attempts: Counter[int]  #: how many jobs needed each number of attempts
    recoveries: Sequence[float]  #: from a kill to the next start of a job that it ended
    charged: int
    wrong: list[str]

    def __str__(self) -> str:
        spent = ", ".join(f"{count} × {number}" for number, count in sorted(self.attempts.items()))
        return (
            f"seed {self.seed}: {self.jobs} jobs in {self.seconds:.0f} s, killed {self.kills['worker']} workers and "
            f"{self.kills['supervisor']} supervisors\n"
            f"  attempts a job: {spent}; {self.charged} crashes charged\n"
            f"  from a kill to the next start: {spread(self.recoveries)}\n"
            f"  wrong: {len(self.wrong)}" + "".join(f"\n    {each}" for each in self.wrong[:20])
        )


class Storm:
    app, slots, spares = "shop", SLOTS, 0
    env: ClassVar[Mapping[str, str]] = {"TENURE_LOG_LEVEL": "warning"}

    def __init__(self, site: Site, jobs: int, kills: int, seed: int) -> None:
        self._site, self._kills, self._seed = site, kills, seed
        self._draw = random.Random(seed)
        # Long enough, all together, for every kill to find work.
        mean = kills * 0.5 * sum(SIZES) * self.slots / jobs
        self._seconds = [self._draw.uniform(0.1, 1.9) * mean for _ in range(jobs)]
        #: pids, and when they were first killed: in a long storm pids recur, and an attempt's last line says more
        self._killed: dict[int, float] = {}
        self._count: Counter[str] = Counter()

    def run(self) -> Report:
        site, began = self._site, boot()
        handles = self._enqueue()
        supervisors = [self._start(size) for size in SIZES]
        for _ in range(self._kills):
            time.sleep(self._draw.uniform(0.2, 0.8))
            if not self._left():
                break
            self._kill_one(supervisors)
        site.ended(*handles, seconds=120 + len(handles) / 10)
        seconds = boot() - began
        return self._judge(handles, seconds, self._stopped(supervisors))

    def _enqueue(self) -> list[JobHandle[int]]:
        return shop.jobs.enqueue_many([shop.effect.bind(round(seconds, 3)) for seconds in self._seconds])

    def _start(self, workers: int) -> Supervised:
        return self._site.supervisor(
            app=self.app, workers=workers, concurrency=self.slots, spares=self.spares, env=self.env
        )

    def _stopped(self, supervisors: Sequence[Supervised]) -> list[int]:
        """Their exit codes. One that was started last may not have come so far that a SIGTERM ends it in order."""
        self._site.until(lambda: all(each.workers() for each in supervisors), "every supervisor to have begun", 120)
        return [supervisor.stop() for supervisor in supervisors]

    def _left(self) -> int:
        return sum(sum(view.counts.values()) for view in self._site.store.queues())

    def _kill_one(self, supervisors: list[Supervised]) -> None:
        place, victim = self._site.until(lambda: self._at_work(supervisors), "a worker that runs something", 120)
        chosen, workers = supervisors[place], supervisors[place].workers()
        if self._draw.random() < 0.15:
            now = boot()
            self._killed = dict.fromkeys(workers, now) | self._killed
            self._count["supervisor"] += 1
            chosen.kill()
            self._site.until(lambda: not any(map(alive, workers)), "workers to die with their supervisor", 120)
            supervisors[place] = self._start(SIZES[place])
        else:
            self._killed.setdefault(victim, boot())
            self._count["worker"] += 1
            send(victim, signal.SIGKILL)

    def _at_work(self, supervisors: Sequence[Supervised]) -> tuple[int, int] | None:
        """A worker that runs jobs now: the place of its supervisor, and its pid."""
        busy = {each.identity.pid for each in self._site.store.workers() if each.processing}
        found = [(place, pid) for place, each in enumerate(supervisors) for pid in each.workers() if pid in busy]
        return self._draw.choice(found) if found else None

    def _judge(self, handles: Sequence[JobHandle[int]], seconds: float, codes: Sequence[int]) -> Report:
        site = self._site
        runs = runs_of(site.lines(), self._killed)
        views = [site.job(handle) for handle in handles]
        wrong = [f"a supervisor ended with {code}" for code in codes if code]
        wrong += overlaps(runs)
        for view in views:
            wrong += verdict(view, runs.get(view.id, []), site)
        if len(everything := _count_all(site)) != len(handles):
            wrong.append(f"{len(handles)} jobs were enqueued, the store has {len(everything)}")
        recoveries = [
            after.begin - self._killed[before.pid]
            for mine in runs.values()
            for before, after in pairwise(mine)
            if before.pid in self._killed
        ]
        return Report(
            self._seed,
            len(handles),
            self._count,
            seconds,
            Counter(view.attempt for view in views),
            recoveries,
            sum(view.crashes_total for view in views),
            wrong,
        )


def verdict(view: JobView, runs: Sequence[Run], site: Site) -> list[str]:
    """What the ledger holds against a job that the store says has completed."""
    wrong: list[str] = []
    if view.state != "completed":
        wrong.append(f"is {view.state}: {view.error}")
    if len(runs) > view.attempt:
        wrong.append(f"{len(runs)} effects in {view.attempt} attempts")
    if not runs or runs[-1].attempt != view.attempt or view.result != str(view.attempt):
        wrong.append(f"attempt {view.attempt} is accepted with {view.result}, the ledger's last is {runs[-1:]}")
    if any(run.end is None for run in runs):
        wrong.append("an attempt neither ended nor was killed")
    ended = sorted(each.attempt for each in site.store.attempts(view.id))
    if ended != list(range(1, view.attempt)):
        wrong.append(f"{view.attempt} attempts, other outcomes than completed for {ended}")
    return [f"{view.id} {each}" for each in wrong]


def _count_all(site: Site) -> list[str]:
    found: list[str] = []
    page = site.store.search(Filter(), limit=1000)
    while True:
        found += [view.id for view in page.jobs]
        if page.cursor is None:
            return found
        page = site.store.search(Filter(), limit=1000, cursor=page.cursor)


def storm(site: Site, jobs: int, kills: int, seed: int) -> Report:
    return Storm(site, jobs, kills, seed).run()


def main(backend: str = "sqlite", *numbers: str) -> int:
    jobs, kills, seed = (*map(int, numbers), *(5000, 200, 0)[len(numbers) :])
    (place,) = (each.place for each in BACKENDS if each.name == backend)
    with tempfile.TemporaryDirectory() as name, place(folder := Path(name)) as where, Site(folder, where) as site:
        report = storm(site, jobs, kills, seed or random.SystemRandom().randrange(1, 1 << 32))
    print(report)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
