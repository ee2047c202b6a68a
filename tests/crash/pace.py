"""Jobs at a pace: so many in any period, whatever happens to the workers.

In tests/: `python -m crash.pace [BACKEND [PERIOD [SEED]]]`, a period being seconds.

There is always more to do than the rate allows. After a period all workers stop, for one and a half; then they are
back, and one of them is killed now and then; each tenth job fails once. When attempts began is taken from the store, by
its own clock, and from what the handlers wrote down themselves.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tenure.core.limits import Rate
from tenure.tasks.handle import JobHandle

from . import limited
from .backends import BACKENDS
from .harness import HERE, SOURCE, Line, Site, Supervised, boot, send

AWAY = 1.5  #: periods
KILLS = 4
PARTS = (1, 6, 10)  #: of a period
JOBS = 3 * limited.MOST


@dataclass(frozen=True)
class Paces:
    """How many began in any part of a period, at most, and how many may."""

    period: float
    begins: int
    kills: int
    retries: int
    may: Sequence[int]
    claimed: Sequence[int]
    begun: Sequence[int]  #: as the handlers saw it, some time after the claim
    states: frozenset[str]

    def __str__(self) -> str:
        parts = zip(PARTS, self.may, self.claimed, self.begun, strict=True)
        return f"{self.begins} begins, {self.retries} of them retries, {self.kills} workers killed; " + ", ".join(
            f"in {self.period / part:g} s {claimed} claimed and {begun} begun, of {may} at most"
            for part, may, claimed, begun in parts
        )


def most_within(times: Sequence[float], seconds: float) -> int:
    """The most of these (sorted) times in any span of this length, its end excluded."""
    return max((bisect_left(times, at + seconds) - place for place, at in enumerate(times)), default=0)


class Pace:
    def __init__(self, site: Site, period: float, seed: int) -> None:
        self._site, self._period, self._draw = site, period, random.Random(seed)
        self._env = {"PYTHONPATH": f"{SOURCE}{os.pathsep}{HERE.parent}", "TENURE_TEST_PERIOD": f"{period:g}"}
        self._kills = 0

    def run(self) -> Paces:
        site, jobs = self._site, [limited.paced.bind(n % 10 == 0) for n in range(JOBS)]
        handles = limited.jobs.enqueue_many(jobs)
        supervisor = self._start()
        began = site.until(lambda: site.lines(event="begin"), "the first begin")[0].at
        site.until(lambda: boot() > began + self._period, "a period", 2 * self._period + 30)
        supervisor.stop()
        away = boot()
        site.until(lambda: boot() > away + AWAY * self._period, "the workers' absence", 2 * self._period + 30)
        supervisor = self._start()
        for _ in range(KILLS):
            self._kill_one(supervisor)
        site.ended(*handles, seconds=60 + 10 * self._period)
        assert supervisor.stop() == 0
        return self._judge(handles)

    def _start(self) -> Supervised:
        return self._site.supervisor(app="crash.limited", workers=2, concurrency=20, env=self._env)

    def _kill_one(self, supervisor: Supervised) -> None:
        """Kill a worker that has just begun another job."""
        before = len(self._site.lines(event="begin"))
        more = before + self._draw.randint(5, 20)
        line = self._site.until(lambda: self._begun(more), "more begins", 60 + self._period)[-1]
        if line.pid in supervisor.workers():
            send(line.pid, signal.SIGKILL)
            self._kills += 1

    def _begun(self, more: int) -> Sequence[Line]:
        """The begins after so many; all of them, if no job is left that could begin."""
        lines = self._site.lines(event="begin")
        left = any(sum(view.counts.values()) for view in self._site.store.queues())
        return lines[more:] if left else lines

    def _judge(self, handles: Sequence[JobHandle[int]]) -> Paces:
        rate = Rate(limited.MOST, self._period, limited.BURST)
        views = [self._site.job(handle) for handle in handles]
        others = [each.started_at for handle in handles for each in self._site.attempts(handle)]
        claimed = sorted(at.timestamp() for at in (*others, *(each.started_at for each in views)) if at is not None)
        begun = sorted(line.at for line in self._site.lines(event="begin"))
        spans = [self._period / part for part in PARTS]
        return Paces(
            self._period,
            len(claimed),
            self._kills,
            len(others),
            [most_of(rate, span) for span in spans],
            [most_within(claimed, span) for span in spans],
            [most_within(begun, span) for span in spans],
            frozenset(view.state for view in views),
        )


def most_of(rate: Rate, seconds: float) -> int:
    """How many may begin in a span of this length: a full bucket, and what it gains meanwhile, at most."""
    return min(rate.most, int(rate.burst + rate.refill * seconds))


def pace(site: Site, period: float, seed: int) -> Paces:
    limited.jobs.configure(asdict(site.place))
    with limited.jobs:
        return Pace(site, period, seed).run()


def main(backend: str = "sqlite", period: str = "60", seed: str = "0") -> int:
    (place,) = (each.place for each in BACKENDS if each.name == backend)
    with tempfile.TemporaryDirectory() as name, place(folder := Path(name)) as where, Site(folder, where) as site:
        paces = pace(site, float(period), int(seed) or random.SystemRandom().randrange(1, 1 << 32))
    print(f"{backend}: {paces}")
    return 1 if any(claimed > may for claimed, may in zip(paces.claimed, paces.may, strict=True)) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
