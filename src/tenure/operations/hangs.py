"""Jobs that run and probably never end: far longer than their task usually does, or silent in every slot of a worker.

The store knows no more than when a job began and last reported. So a job is compared with the last runs of its task.
With too few of them its task tells little: it is suspected only after an hour of silence in every slot of a worker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenure.core.lifecycle import State
from tenure.operations.workers import runs_user_jobs, serves
from tenure.ports import Filter, JobView, Store, WorkerView

LEAST_SECONDS = 300.0  #: no job that has run for less is said to hang
FACTOR = 10.0  #: times the p95 of its task
SILENT_SECONDS = 600.0  #: without a report, in a slot that nothing else can use
UNKNOWN_SECONDS = 3600.0  #: the same, for a job whose task has too few runs
UNUSUAL = 2.0  #: times the p95: a silent job that takes as long as its task does is no hang
SAMPLE, FEWEST = 20, 5  #: completed runs of a task that its p95 is taken from
_MOST_RUNNING, _PAGE = 2_000, 500  #: running jobs that are looked at
_MOST_TASKS = 5  #: whose last runs are read, those that run longest
_MOST_SILENT = 10  #: and this many more: tasks whose silent jobs fill a worker
_WITHIN = 5_000  #: rows among which these are searched


@dataclass(frozen=True, slots=True)
class Stuck:
    """Running jobs of a task, the longest first, that took many times the p95 of its last runs (`usual`, seconds)."""

    task: str
    jobs: Sequence[JobView]
    usual: float


@dataclass(frozen=True, slots=True)
class Held:
    """Silent jobs that hold every slot of these workers. `queues`: those that no other live worker serves."""

    workers: Sequence[WorkerView]
    everyone: bool  #: these are all the live workers of their queues
    jobs: Sequence[JobView]  #: the longest silent first
    queues: frozenset[str]

    @property
    def slots(self) -> int:
        return sum(worker.identity.slots for worker in self.workers)


@dataclass(frozen=True, slots=True)
class Hangs:
    stuck: Sequence[Stuck] = ()
    held: Sequence[Held] = ()


def hangs(store: Store, now: datetime, living: Iterable[WorkerView], queues: Iterable[str]) -> Hangs:
    """What hangs now. Reads at most 2,000 running jobs, and the last runs of the five tasks that run longest and of ten
    whose silent jobs fill a worker."""
    jobs = _long_running(store, now)
    if not jobs:
        return Hangs()
    by_task: defaultdict[str, list[JobView]] = defaultdict(list)
    for job in jobs:
        by_task[job.task].append(job)
    usual = {task: _usual(store, task) for task in list(by_task)[:_MOST_TASKS]}
    stuck = [
        Stuck(task, late, p95)
        for task, p95 in usual.items()
        if p95 is not None and (late := [job for job in by_task[task] if _ran(job, now) > FACTOR * p95])
    ]
    rows = [row for row in living if row.identity.runner != "solo"]
    silent = [job for job in jobs if silence(job, now) > SILENT_SECONDS]
    full = _full(_by_worker(silent), rows)
    unread = dict.fromkeys(job.task for job in silent if job.worker_id in full and job.task not in usual)
    usual |= {task: _usual(store, task) for task in list(unread)[:_MOST_SILENT]}
    return Hangs(stuck, _held([job for job in silent if _suspect(job, now, usual)], rows, queues) if full else ())


def _suspect(job: JobView, now: datetime, usual: Mapping[str, float | None]) -> bool:
    """Whether a silent job may hang. Not if the runs of its task were not read: it may well take that long."""
    if job.task not in usual:
        return False
    p95 = usual[job.task]
    return silence(job, now) > UNKNOWN_SECONDS if p95 is None else _ran(job, now) > UNUSUAL * p95


def silence(job: JobView, now: datetime) -> float:
    """Seconds since its last report, or since it started."""
    return (now - (job.last_activity_at or job.started_at or now)).total_seconds()


def _ran(job: JobView, now: datetime) -> float:
    return (now - (job.started_at or now)).total_seconds()


def _long_running(store: Store, now: datetime) -> list[JobView]:
    """The longest first."""
    where = Filter(
        states=frozenset({State.PROCESSING}), guards=False, enqueued_until=now - timedelta(seconds=LEAST_SECONDS)
    )
    found, cursor = list[JobView](), None
    for _ in range(_MOST_RUNNING // _PAGE):
        page = store.search(where, limit=_PAGE, cursor=cursor, within=10_000)
        found += [job for job in page.jobs if _ran(job, now) > LEAST_SECONDS]
        if (cursor := page.cursor) is None:
            break
    return sorted(found, key=lambda job: (job.started_at or now, job.id))


def _usual(store: Store, task: str) -> float | None:
    """The p95 of its last runs; None: there are too few to tell."""
    where = Filter(states=frozenset({State.COMPLETED}), task=task)
    jobs = store.search(where, limit=SAMPLE, within=_WITHIN).jobs
    runs = [(job.ended_at - job.started_at).total_seconds() for job in jobs if job.ended_at and job.started_at]
    return sorted(runs)[int(0.95 * len(runs))] if len(runs) >= FEWEST else None


def _by_worker(jobs: Iterable[JobView]) -> Mapping[str, Sequence[JobView]]:
    found: defaultdict[str, list[JobView]] = defaultdict(list)
    for job in jobs:
        found[job.worker_id or ""].append(job)
    return found


def _full(by_worker: Mapping[str, Sequence[JobView]], living: Iterable[WorkerView]) -> set[str]:
    """The workers with one of these jobs in each slot."""
    return {row.identity.id for row in living if len(by_worker.get(row.identity.id, ())) >= row.identity.slots}


def _held(silent: Sequence[JobView], living: Sequence[WorkerView], queues: Iterable[str]) -> list[Held]:
    by_worker = _by_worker(silent)
    full = _full(by_worker, living)
    blocked = {name: serving for name in queues if (serving := _serving(name, living)) <= full and serving}
    pools: defaultdict[tuple[str, ...], list[WorkerView]] = defaultdict(list)
    for row in living:
        if runs_user_jobs(row):
            pools[tuple(sorted(row.identity.queues))].append(row)
    held = list[Held]()
    for pool in pools.values():
        those = [row for row in pool if row.identity.id in full]
        together = [those] if those and len(those) == len(pool) else [[row] for row in those]
        held += [_of(some, len(some) == len(pool), by_worker, blocked) for some in together]
    return held


def _of(
    workers: Sequence[WorkerView],
    everyone: bool,
    by_worker: Mapping[str, Sequence[JobView]],
    blocked: Mapping[str, frozenset[str]],
) -> Held:
    ids = {row.identity.id for row in workers}
    jobs = [job for row in workers for job in by_worker[row.identity.id]]
    jobs.sort(key=lambda job: (job.last_activity_at or job.enqueued_at, job.id))
    return Held(workers, everyone, jobs, frozenset(name for name, serving in blocked.items() if serving & ids))


def _serving(queue: str, living: Iterable[WorkerView]) -> frozenset[str]:
    return frozenset(row.identity.id for row in living if serves(queue, row))
