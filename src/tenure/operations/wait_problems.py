"""What is wrong with jobs that wait: a dead one holds them, older workers, or a pause; or they have waited too long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from tenure.config import Settings
from tenure.core.durations import spell
from tenure.core.lifecycle import State
from tenure.core.text import clean
from tenure.events import headline
from tenure.maintenance.wait_check import lost_waits
from tenure.operations.causes import Problem
from tenure.operations.keys import PAUSED, command, note_of
from tenure.operations.waiting import few, open_edges
from tenure.ports import FOREVER, LINKS_PROTOCOL, JobView, QueueView, Store

_MOST_READ = 50  #: dead letters that hold others, and jobs that have waited longest
_MOST_LOOKED_AT = 10  #: of these letters of one task, whose waiting jobs are counted
_LONGEST_ERROR = 300


def of_lost_waits(store: Store) -> Iterator[Problem]:
    """Jobs that no ask was left for: found within a day by the walks through all waiting jobs, and asked for again."""
    for lost in lost_waits(store):
        jobs = f"a job of {lost.task} has" if lost.many == 1 else f"at least {lost.many} jobs of {lost.task} have"
        yield Problem(
            "wait-lost",
            lost.task,
            f"{jobs} waited for what had happened, {lost.jobs[0]} until {lost.at:%Y-%m-%d %H:%M:%S} UTC; "
            f"{'it was' if lost.many == 1 else 'they were'} asked for again",
            fix=f"tenure jobs explain {lost.jobs[0]}",
            task=lost.task,
            jobs=lost.jobs,
        )


def of_waits(
    store: Store, settings: Settings, now: datetime, queues: Sequence[QueueView], longest: Sequence[JobView]
) -> Iterator[Problem]:
    """Reads fifty dead letters that hold others, and paused limits. `longest`: the jobs that have waited longest."""
    if not longest:
        return
    held = dict[str, str]()
    for problem, jobs in _held(store):
        held |= dict.fromkeys(jobs, problem.key)
        yield problem
    oldest = max((_waited(job, now) for job in longest), default=0.0)
    if oldest > 2 * settings.lease:
        yield from _held_up(store, longest, queues)
    yield from _long(store, settings, now, [job for job in longest if job.parked is None], held)
    paused = list(_paused(store, settings, now, longest))
    yield from paused
    yield from _behind(settings, now, longest, {each.subject: each.key for each in paused})


def _held_up(store: Store, longest: Sequence[JobView], queues: Sequence[QueueView]) -> Iterator[Problem]:
    """Workers of an older release hold up all waiting jobs, or only those with limits."""
    older, subject = store.outdated(LINKS_PROTOCOL), "all"
    waiting = sum(queue.counts.get(State.WAITING, 0) for queue in queues)
    many = f"{waiting:,} waiting jobs" if waiting != 1 else "a waiting job"
    says = f"nothing that waits goes on, {many} in all"
    if not older and any(job.parked is not None for job in longest):
        older, subject, says = store.outdated(), "limits", "no job with a limit gets a place"
    if older:
        lives = f"a worker of an older release lives: {older[0]}"
        yield Problem(
            "admission-held",
            subject,
            f"{says}, since {lives if len(older) == 1 else _several(older)}",
            fix=f"restart on this release: tenure workers restart {older[0]}",
        )


def _several(older: Sequence[str]) -> str:
    return f"{len(older)} workers of an older release live: {few(older)}"


def _held(store: Store) -> Iterator[tuple[Problem, Sequence[str]]]:
    """A problem for each task whose dead letters hold jobs, and the jobs that they hold."""
    letters = store.holding(limit=_MOST_READ)
    by_task: dict[str, list[JobView]] = defaultdict(list)
    for job in letters:
        by_task[job.task].append(job)
    for task, dead in by_task.items():
        last = dead[0]
        jobs = {child for job in dead[:_MOST_LOOKED_AT] for child, _ in open_edges(store, job.id)}
        if not jobs:
            continue
        least = "at least " if len(letters) == _MOST_READ or len(dead) > _MOST_LOOKED_AT else ""
        many = f"{least}{len(jobs):,} jobs wait" if len(jobs) > 1 or least else "a job waits"
        several = f"{least}{len(dead)} dead letters" if len(dead) > 1 else "a dead letter"
        error = clean(headline(last.error or ""), _LONGEST_ERROR)
        problem = Problem(
            "flow-held",
            task,
            f"{many} for {several} of {task}, the last is {last.id}: {error}",
            fix=f"tenure jobs replay {last.id}, or go on without it: tenure flows skip {last.id}",
            remedy="replay",
            task=task,
            jobs=tuple(job.id for job in dead),
        )
        yield problem, tuple(jobs)


def _long(
    store: Store, settings: Settings, now: datetime, longest: Sequence[JobView], held: dict[str, str]
) -> Iterator[Problem]:
    """By task: jobs that have waited too long. One that waits until a set time is no problem before that."""
    by_task: dict[str, list[JobView]] = defaultdict(list)
    for job in longest:
        if job.wait_until is None and _waited(job, now) > settings.alert_wait_age and _since(store, job, now, settings):
            by_task[job.task].append(job)
    for task, jobs in by_task.items():
        causes = {held.get(job.id, "") for job in jobs}
        least = "at least " if len(longest) == _MOST_READ else ""
        many = f"{least}{len(jobs)} jobs of {task} have" if len(jobs) > 1 or least else f"a job of {task} has"
        first = jobs[0]
        signal = "" if first.wait_for is None else f", for the signal {first.wait_for.partition(':')[2]!r}"
        yield Problem(
            "waits-long",
            task,
            f"{many} waited for more than {spell(settings.alert_wait_age)}, {first.id} longest{signal}",
            fix=f"tenure jobs explain {first.id}",
            task=task,
            jobs=tuple(job.id for job in jobs),
            cause=causes.pop() if len(causes) == 1 else "",
        )


# ── Limits ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _paused(store: Store, settings: Settings, now: datetime, longest: Sequence[JobView]) -> Iterator[Problem]:
    """Keys and limits paused until resumed, with jobs that have waited longer than jobs may wait in a queue."""
    rows = [*store.limits(), *store.limits(keys=True)]
    for row in [each for each in rows if (each.paused_until or 0.0) >= FOREVER][:_MOST_READ]:
        keyed = not row.key and "{" in row.name
        found = store.keys(limited_by=row.name, limit=_MOST_READ) if keyed else store.keys([row.name])
        waiting = sum(key.waiting for key in found)
        first = [job for key in found if key.waiting for job in store.parked(key.key, limit=1)]
        first += [job for job in longest if row.name in (job.parked, *_limit_of(job))]
        age = max((_waited(job, now) for job in first), default=0.0)
        if age <= settings.alert_queue_age:
            continue
        many = f"{waiting:,} jobs wait" if waiting != 1 else "a job waits"
        by = note_of(store, PAUSED, row.name, key=row.key)
        said = f" by {by.who} for {spell(round((now - by.at).total_seconds()))}" if by else ""
        why = f" ({row.why})" if row.why else ""
        yield Problem(
            "limit-paused",
            row.name,
            f"{row.name} is paused{said}, until somebody resumes it{why}: {many}, for up to {spell(round(age))}",
            fix=command("resume", row.name),
            remedy="resume-limit",
            jobs=tuple(job.id for job in first[:_MOST_LOOKED_AT]),
        )


def _behind(
    settings: Settings, now: datetime, longest: Sequence[JobView], paused: Mapping[str, str]
) -> Iterator[Problem]:
    """Keys for whose places jobs have waited too long."""
    by_key: dict[str, list[JobView]] = defaultdict(list)
    for job in longest:
        if job.parked is not None and _waited(job, now) > settings.alert_wait_age:
            by_key[job.parked].append(job)
    for key, jobs in by_key.items():
        queues = {job.queue for job in jobs}
        least = "at least " if len(longest) == _MOST_READ else ""
        many = f"{least}{len(jobs)} jobs have" if len(jobs) > 1 or least else "a job has"
        yield Problem(
            "limit-behind",
            key,
            f"{many} waited for a place of {key} for more than {spell(settings.alert_wait_age)}, {jobs[0].id} longest",
            fix=f"tenure jobs explain {jobs[0].id}",
            queue=queues.pop() if len(queues) == 1 else "",
            jobs=tuple(job.id for job in jobs),
            cause=next((paused[name] for name in (key, *_limit_of(jobs[0])) if name in paused), ""),
        )


def _limit_of(job: JobView) -> list[str]:
    """Of the key under which it is parked."""
    return [key.limit for key in job.limits if key.key == job.parked]


def _waited(job: JobView, now: datetime) -> float:
    return (now - job.run_at).total_seconds()


def _since(store: Store, job: JobView, now: datetime, settings: Settings) -> bool:
    """Whether a suspended job has waited too long since it was suspended, not since it was due."""
    if not job.attempt:
        return True
    last = max(store.attempts(job.id), key=lambda each: each.attempt, default=None)
    suspended = last is not None and last.attempt == job.attempt
    return last is None or not suspended or (now - last.ended_at).total_seconds() > settings.alert_wait_age
