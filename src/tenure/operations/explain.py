"""Why a job is not running, or how it ended, answered from the store alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tenure.core.durations import spell
from tenure.core.lifecycle import GUARD, LIVE, State
from tenure.events import DEPLOY, LOST, MISFIT, NO_KEY, NOT_FETCHED, UNKNOWN_TASK, headline
from tenure.operations.places import refused
from tenure.operations.waiting import NAMED, Holding, few, held_by, wait_of
from tenure.operations.workers import Stop, ended_at, has_free_slot, knows, runs_user_jobs, serves, stops
from tenure.ports import AttemptView, Filter, JobView, QueueView, Store, WorkerView

_BUTTONS = re.compile(
    r": tenure (?:(?:jobs|queues|flows) \S+ [^\s;]+|limits \S+ (?:'[^']*'|[^\s;]+)(?: --\S+ \S+)?|signals send [^;]+)"
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdict in one sentence, the reasons for it, and what to do about it (empty: nothing to do)."""

    job: JobView
    verdict: str
    reasons: tuple[str, ...]
    what_to_do: str

    @property
    def in_words(self) -> str:
        """What to do, for a page: without the commands for which it has buttons."""
        return _BUTTONS.sub("", self.what_to_do)


@dataclass(frozen=True, slots=True)
class _Facts:
    job: JobView
    now: datetime
    attempts: Sequence[AttemptView]
    owner: WorkerView | None
    workers: Sequence[WorkerView]  #: alive ones that run jobs like this one
    dead: Sequence[WorkerView]  #: workers that died within the last day
    stops: Mapping[str, Stop]  #: by id, workers that drain by an operator's order
    queue: QueueView | None
    store_url: str

    def ago(self, when: datetime) -> str:
        return spell(max((self.now - when).total_seconds(), 0.0))

    def until(self, when: datetime) -> str:
        return spell(max((when - self.now).total_seconds(), 0.0))


def explain(store: Store, job: JobView) -> Explanation:
    """Check once everything that could keep this job from running."""
    now, everyone = store.now(), store.workers(dead=True)
    rows = [row for row in everyone if runs_user_jobs(row) or job.queue in row.identity.queues]
    facts = _Facts(
        job=job,
        now=now,
        attempts=store.attempts(job.id),
        owner=next((row for row in everyone if row.identity.id == job.worker_id), None),
        workers=[row for row in rows if ended_at(row, now) is None],
        dead=[row for row in rows if ended_at(row, now) is not None],
        stops=stops(store) if job.state in (State.SCHEDULED, State.QUEUED) else {},
        queue=next((each for each in store.queues() if each.name == job.queue), None) if job.state in LIVE else None,
        store_url=store.url,
    )
    match job.state:
        case State.WAITING:
            return _waiting(store, facts)
        case State.SCHEDULED:
            return _scheduled(facts)
        case State.QUEUED:
            return _queued(store, facts)
        case State.PROCESSING:
            return _processing(facts)
        case State.COMPLETED:
            ended = f"it completed {_when(facts, job.ended_at)}"
            return Explanation(job, ended, tuple(_history(facts)), "")
        case State.CANCELLED:
            why = job.cancel_reason or job.error or "no reason was given"
            ended = f"it was cancelled {_when(facts, job.ended_at)}: {headline(why)}"
            held = held_by(store, job)
            advice = _again(job) + (f"; {held.without_it}" if held else "")
            return Explanation(job, ended, (*_held(held), *_history(facts), *_rival(store, job)), advice)
        case State.DEAD:
            ended = f"it has been a dead letter since {_when(facts, job.ended_at)}"
            held = held_by(store, job)
            advice = f"remove the cause, then {_again(job)}" + (f"; {held.without_it}" if held else "")
            reasons = (*_held(held), *_budgets(job), *_history(facts), *_rival(store, job))
            return Explanation(job, ended, reasons, advice)


def _again(job: JobView) -> str:
    if job.queue == GUARD:
        return "run its command again there: tenure guard … --force"
    return f"run it again: tenure jobs replay {job.id}"


def _scheduled(facts: _Facts) -> Explanation:
    job = facts.job
    last = facts.attempts[-1] if facts.attempts and facts.attempts[-1].attempt == job.attempt else None
    match last.outcome if last else None:
        case None if not job.attempt:
            waits = "it was enqueued for later"
        case None | "cancelled":  # it had ended: only a replay brings it back; an attempt that completed leaves no row
            waits = "it was replayed, to run when its turn comes"
        case "failed" | "crashed" if not (job.failures or job.crashes):  # a replay has reset its budgets
            waits = "it was replayed, to run when its turn comes"
        case "failed":
            waits = f"it is waiting for its next retry after failure {job.failures} of {job.max_failures}"
        case "crashed":
            waits = (
                f"it is waiting for its next retry after losing its worker ({job.crashes} of {job.max_crashes} crashes)"
            )
        case _:
            waits = "it snoozed itself"
    due, advice = "due", f"run it now: tenure jobs promote {job.id}"
    if last is not None and last.error.startswith(MISFIT):
        waits = f"its {MISFIT}: {headline(last.error).partition(': ')[2]}"
        advice = "deploy the code that takes them, or cancel the job; after 24h it is a dead letter"
    elif last is not None and last.error.startswith(LOST):
        waits = f"it {LOST}, which costs it nothing"
    elif last is not None and last.error.startswith(NO_KEY):
        waits = f"the last worker that claimed it could not decrypt it: {headline(last.error).partition(': ')[2]}"
        advice = f"start a worker with that key; to try it now: tenure jobs promote {job.id}"
    elif last is not None and last.error.startswith(NOT_FETCHED):
        waits = f"the last worker that claimed it could not fetch {headline(last.error).removeprefix(NOT_FETCHED)[1:]}"
        advice = f"docs/large-values.md says what to check; to try it now: tenure jobs promote {job.id}"
    elif last is not None and last.error.startswith(UNKNOWN_TASK):
        known, due = any(knows(job.task, row) for row in facts.workers), "it is tried again"
        ignorant = "the last worker that claimed it does not know" if known else "no live worker knows"
        waits = f"{ignorant} its task {job.task}"
        advice = f"a live worker knows it; to try it now: tenure jobs promote {job.id}" if known else DEPLOY
    reasons = [f"the last attempt ended with: {headline(last.error)}"] if last else []
    blockers = list(_blockers(facts))
    if job.run_at > facts.now:
        verdict = f"{waits}: {due} in {facts.until(job.run_at)}, at {stamp(job.run_at)}"
    else:
        verdict = f"{waits}, has been due for {facts.ago(job.run_at)}, and is queued at the next scan"
        advice = ""
    reasons += [*_places(job), *(f"when it is due: {blocker}" for blocker, _ in blockers)]
    return Explanation(job, verdict, tuple(reasons), advice or next((fix for _, fix in blockers), ""))


def _waiting(store: Store, facts: _Facts) -> Explanation:
    job = facts.job
    if job.parked is not None:
        return _parked(store, facts)
    wait = wait_of(store, job, facts.attempts[-1] if facts.attempts else None)
    reasons = [*wait.reasons]
    if wait.signal is not None:
        times_out = "it has no time-out" if job.wait_until is None else f"it times out {_due(facts, job.wait_until)}"
        reasons.append(f"nobody has sent the signal {wait.signal} since {_when(facts, wait.since)}; {times_out}")
    advice = wait.what_to_do
    if wait.outdated:
        verdict = (
            f"{wait.verdict}; and nothing that waits goes on while a worker of an older release lives: "
            f"{few(wait.outdated)}"
        )
        advice = advice or f"restart it on this release: tenure workers restart {wait.outdated[0]}"
        return Explanation(job, verdict, (*reasons, *_history(facts)), advice)
    if wait.over and not facts.workers:
        reasons.append(_nobody(facts))
        advice = "start a worker there: tenure worker"
    return Explanation(job, wait.verdict, (*reasons, *_history(facts)), advice)


def _parked(store: Store, facts: _Facts) -> Explanation:
    job, found = facts.job, refused(store, facts.job, facts.now)
    causes = [*((f"{says}: it gets no place", fix) for says, fix in _unserved(facts)), *found.causes]
    if older := store.outdated():
        lives = f"no place is given while a worker of an older release lives: {few(older)}"
        causes.insert(0, (lives, f"restart it on this release: tenure workers restart {older[0]}"))
    reasons = [*(says for says, _ in causes[1:]), *found.reasons]
    if job.wait_until is not None:
        reasons.append(f"if it has not begun, it expires {_due(facts, job.wait_until)}")
    verdict = f"it waits for a place of {found.key}: "
    verdict += causes[0][0] if causes else "there is room, and it is queued at the next scan, or after those before it"
    advice = next((fix for _, fix in causes if fix), "")
    return Explanation(job, verdict, (*reasons, *_history(facts)), advice)


def _places(job: JobView) -> Iterator[str]:
    """Of a limited job that is not parked."""
    if job.limits:
        names = few(key.key for key in job.limits)
        yield (
            f"it has a place of {names}"
            if job.state is State.QUEUED
            else f"when it is due: it needs a place of {names}"
        )


def _held(held: Holding | None) -> Iterator[str]:
    if held is not None:
        yield held.says


def _queued(store: Store, facts: _Facts) -> Explanation:
    job, blockers = facts.job, list(_blockers(facts))
    waiting = f"due for {facts.ago(job.run_at)}"
    others = (facts.queue.counts.get(State.QUEUED, 1) if facts.queue else 1) - 1
    ahead = [f"at most {others} other jobs of queue {job.queue} are ahead of it"] if others > 0 else []
    if blockers:
        verdict, advice = blockers[0]
        reasons = [reason for reason, _ in blockers[1:]]
        return Explanation(job, verdict, (waiting, *reasons, *ahead, *_places(job), *_history(facts)), advice)
    verdict = "it is about to start: a worker that knows it has a free slot"
    if _may_have_no_share(store, facts):
        verdict += f", unless the share of slots that queue {job.queue} has there (-q {job.queue}=N) is used up"
    return Explanation(job, verdict, (waiting, *ahead, *_places(job), *_history(facts)), "")


def _may_have_no_share(store: Store, facts: _Facts) -> bool:
    """Does each worker with a free slot for this job run others of its queue already?

    The store does not know the share of slots that a worker gives to a queue. The five least busy ones stand for all.
    """
    job = facts.job
    rows = [row for row in facts.workers if serves(job.queue, row) and knows(job.task, row) and has_free_slot(row)]
    free = [row for row in rows if row.identity.runner != "solo" and row.identity.id not in facts.stops]
    running = Filter(states=frozenset({State.PROCESSING}), queue=job.queue)
    return (
        bool(free)
        and not job.solo
        and all(
            row.processing and store.search(replace(running, worker_id=row.identity.id), limit=1).jobs
            for row in sorted(free, key=lambda row: row.processing)[:NAMED]
        )
    )


def _processing(facts: _Facts) -> Explanation:
    job, owner = facts.job, facts.owner
    since = f", since {_when(facts, job.started_at)}" if job.started_at else ""
    verdict = f"it is running: attempt {job.attempt} on {job.worker_id}{since}"
    advice = ""
    reasons: list[str] = []
    if owner is None or ended_at(owner, facts.now) is not None:
        verdict = f"its worker {job.worker_id} is gone; the next scan of any live worker rescues the job"
        advice = "" if facts.workers else "start a worker: tenure worker"
    if job.cancel_reason is not None:
        verdict = f"a cancel was requested, and its code is still stopping on {job.worker_id}"
        reasons.append(f"reason for the cancel: {job.cancel_reason or 'none given'}")
    if job.last_activity_at is not None:
        limit = f" (it counts as hung after {spell(job.stale_after)})" if job.stale_after is not None else ""
        reasons.append(f"its last activity was {facts.ago(job.last_activity_at)} ago{limit}")
    if done := progress_text(job):
        reasons.append(f"progress: {done}")
    if job.timeout is not None and job.started_at is not None:
        reasons.append(f"it may run for {spell(job.timeout)}")
    if owner is not None and owner.note and owner.died_at is None:
        reasons.append(f"its worker: {owner.note}")
    return Explanation(job, verdict, (*reasons, *_history(facts)), advice)


def _blockers(facts: _Facts) -> Iterator[tuple[str, str]]:
    """What keeps the job from being claimed, most fundamental first, and how to fix it."""
    job, workers = facts.job, facts.workers
    if job.expires_at is not None and job.expires_at < facts.now:
        yield f"it expired at {stamp(job.expires_at)}: a worker cancels it instead of running it", ""
    yield from _unserved(facts)
    serving = [row for row in workers if serves(job.queue, row)]
    if not serving:
        return
    knowing = [row for row in serving if knows(job.task, row)]
    if not knowing:
        names = ", ".join(sorted({task for row in serving for task in row.identity.tasks})) or "none at all"
        yield (
            f"no live worker knows the task {job.task}; they know {names}",
            DEPLOY,
        )
        return
    claiming = [row for row in knowing if row.identity.id not in facts.stops]
    if job.solo:
        why = "its task is isolated" if job.isolated else f"its process died {_times(job.crashes)}"
        alone = [row for row in claiming if row.identity.runner == "solo"]
        if not any(map(has_free_slot, alone)):
            state = "they are all busy" if alone else "none is up yet: supervisors start one when such jobs wait"
            how = "alone" if job.together == 1 else f"in a group of at most {job.together} such jobs"
            slots = "a one-slot worker" if job.together == 1 else "a worker for them"
            yield f"it must run {how}, since {why}, on {slots}; {state}", ""
        return
    if not claiming:
        yield _draining(facts, knowing)
        return
    ordinary = [row for row in claiming if row.identity.runner != "solo"]
    if ordinary and not any(map(has_free_slot, ordinary)):
        busy = "; ".join(f"{row.identity.id} {row.processing} of {row.identity.slots}" for row in ordinary)
        yield f"all slots are busy: {busy}", "wait, or add slots: tenure worker -c N, or more workers"


def _draining(facts: _Facts, rows: Sequence[WorkerView]) -> tuple[str, str]:
    """All workers that could take the job claim nothing more, by an operator's order."""
    told = [(row.identity.id, facts.stops[row.identity.id]) for row in rows]
    names = few(f"{worker} ({stop})" for worker, stop in told)
    drain = "the only worker that could take it drains" if len(told) == 1 else "all workers that could take it drain"
    follows = any(stop.verb == "restart" for _, stop in told)
    return f"{drain}: {names}", (
        "wait for the worker that its supervisor starts next" if follows else "start another: tenure worker"
    )


def _unserved(facts: _Facts) -> Iterator[tuple[str, str]]:
    """The queue is paused, or has no worker."""
    job, workers = facts.job, facts.workers
    if facts.queue is not None and facts.queue.paused_at is not None:
        since = _when(facts, facts.queue.paused_at)
        yield f"its queue {job.queue} is paused since {since}", f"resume it: tenure queues resume {job.queue}"
    if not workers:
        yield _nobody(facts), "start a worker there: tenure worker"
    elif not any(serves(job.queue, row) for row in workers):
        names = ", ".join(sorted({queue for row in workers for queue in row.identity.queues}))
        yield f"no live worker serves queue {job.queue}; they serve {names}", f"serve it: tenure worker -q {job.queue}"


def _nobody(facts: _Facts) -> str:
    if not facts.dead:
        return f"no worker has opened {facts.store_url} within the last day; does yours run in another folder?"
    last = max(facts.dead, key=lambda row: row.renewed_at)
    return f"no worker is alive; the last one, {last.identity.id}, was seen {facts.ago(last.renewed_at)} ago"


def _budgets(job: JobView) -> Iterator[str]:
    yield f"failures: {job.failures} of {job.max_failures}; crashes: {job.crashes}, at most {job.max_crashes} allowed"
    if job.error:
        yield f"the last error: {headline(job.error)}"


def _history(facts: _Facts) -> Iterator[str]:
    for attempt in facts.attempts[-3:]:
        seen = "".join(f", {name} {value}" for name, value in attempt.evidence.items())
        ran = spell(max((attempt.ended_at - attempt.started_at).total_seconds(), 0.0))
        yield f"attempt {attempt.attempt} {attempt.outcome} after {ran}: {headline(attempt.error)}{seen}"


def _rival(store: Store, job: JobView) -> Iterator[str]:
    """The live job that holds this ended job's unique key, so that its replay is refused."""
    if job.unique is not None:
        for other in store.search(Filter(states=LIVE, task=job.task, unique=job.unique), limit=1).jobs:
            yield f"its key {job.unique!r} is held by {other.id} ({other.state}): a replay is refused until that ends"


def _when(facts: _Facts, when: datetime | None) -> str:
    return "at an unknown time" if when is None else f"{stamp(when)} ({facts.ago(when)} ago)"


def _due(facts: _Facts, when: datetime) -> str:
    return f"in {facts.until(when)}, at {stamp(when)}" if when > facts.now else "at the next scan"


def stamp(when: datetime) -> str:
    """A time for people: to the second, with its zone, UTC."""
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"


def progress_text(job: JobView) -> str:
    """The latest progress of the attempt: stage, share and message, as far as they are set."""
    share = f"{job.progress:.0%}" if job.progress is not None else None
    return " · ".join(part for part in (job.stage, share, job.message) if part)


def waits_for(job: JobView) -> str:
    """What a waiting job waits for, in a few words, without a look at the store."""
    if job.parked is not None:
        return f"for a place of {job.parked}"
    if job.wait_for is None:
        return "for other jobs"
    until = "" if job.wait_until is None else f", until {stamp(job.wait_until)}"
    return f"for the signal {job.wait_for.partition(':')[2]}{until}"


def doing(job: JobView) -> str:
    """`progress_text` without the share, for places that draw it as a bar."""
    return " · ".join(part for part in (job.stage, job.message) if part)


def _times(count: int) -> str:
    return {0: "before", 1: "once", 2: "twice"}.get(count, f"{count} times")
