"""What is wrong right now, as sentences, from one read of the store. Changes nothing and keeps no state."""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial

from tenure.config import Settings
from tenure.core.durations import spell
from tenure.core.fingerprint import pattern
from tenure.core.lifecycle import GUARD, State
from tenure.core.text import clean
from tenure.events import DEPLOY, MISFIT, NO_KEY, NOT_FETCHED, headline
from tenure.maintenance.roster import Lag
from tenure.operations.causes import Problem, Remedy, attributed
from tenure.operations.hangs import Held, Stuck, hangs, silence
from tenure.operations.sinks import QUEUE, TASK, Kind
from tenure.operations.wait_problems import of_lost_waits, of_waits
from tenure.operations.workers import ended_at, knows, runs_user_jobs, serves
from tenure.ports import Filter, JobView, QueueView, Store, WorkerView
from tenure.ports.schedules import BROKEN, Schedule, Standing
from tenure.schedules.cron import Every
from tenure.schedules.plan import lost_run, overdue_by, rule_of, set_back, understood
from tenure.schedules.timetable import lease_ended

FRESH_SECONDS = 3600.0  #: how long a dead letter counts as a problem
LATE_SECONDS = 30.0  #: after which a duty of the maintenance counts as late
MOST_OPEN = 20  #: incidents of one kind; all above the limit share one more
MOST_READ = 50
MOST_LOOKED_AT = 10_000  #: queued jobs searched for unknown tasks; one behind more jobs shows up as its queue's backlog
MOST_NAMED = 5
LONGEST_ERROR = 300


def problems(store: Store, settings: Settings, queues: Sequence[QueueView] | None = None) -> list[Problem]:
    """What is wrong right now, by the store's clock, causes first, each followed by its symptoms.

    Only reads; their number does not grow with that of schedules.

    `queues`: as read a moment ago, if counting them again would cost too much.

    Example: `[each.says for each in problems(store, settings)]`
    """
    facts = _Facts(store, settings, store.queues() if queues is None else queues)
    found = [*_of_schedules(facts), *_of_dead_letters(facts), *_of_queues(facts), *_of_unknown_tasks(facts)]
    found += _of_misfits(facts)
    found += of_lost_waits(store)
    found += of_waits(store, settings, facts.now, facts.queues, facts.longest)
    hung = hangs(store, facts.now, facts.living, [queue.name for queue in facts.queues if queue.paused_at is None])
    blocked = dict[str, str]()
    for held in hung.held:
        found.append(_held(held, facts))
        blocked |= dict.fromkeys(held.queues, found[-1].key)
    found += [_stuck(stuck, facts) for stuck in hung.stuck]
    found += _of_paused_queues(facts, {each.queue for each in found if each.kind in ("queue-age", "late")})
    return attributed(found, blocked)


def of_duties(lags: Iterable[Lag]) -> list[Problem]:
    """The duties of this process's maintenance that are late. Only this process knows that."""
    return [
        Problem(
            "duty-late",
            lag.duty,
            f"the duty {lag.duty} of process {os.getpid()} on {socket.gethostname()} has been due for "
            f"{ago(lag.seconds)}: {_line(lag.error) if lag.error else 'others take all the time'}",
        )
        for lag in lags
        if lag.seconds > LATE_SECONDS
    ]


class _Facts:
    """One reading of the store."""

    def __init__(self, store: Store, settings: Settings, queues: Sequence[QueueView]) -> None:
        self.store, self.settings = store, settings
        self.standings = store.schedules()
        self.queues = [queue for queue in queues if queue.name not in (GUARD, QUEUE)]
        self.paused = {queue.name for queue in self.queues if queue.paused_at is not None}
        everyone = [row for row in store.workers(dead=True) if runs_user_jobs(row)]
        self.now = store.now()
        self.living = [row for row in everyone if ended_at(row, self.now) is None]
        self.dead = [row for row in everyone if ended_at(row, self.now) is not None]
        waits = any(queue.counts.get(State.WAITING, 0) for queue in self.queues)
        self.longest = store.waited_longest(limit=MOST_READ) if waits else []
        #: By queue: how many seconds a job has waited for a place of a limit: it gets one only if the queue is served.
        self.parked = {job.queue: self.age(job.run_at) for job in reversed(self.longest) if job.parked is not None}
        #: No worker, or no tick fired, for this long is normal while one process replaces another.
        self.patience = 2 * settings.lease

    def age(self, when: datetime) -> float:
        return (self.now - when).total_seconds()

    def gone(self, had_it: Callable[[WorkerView], bool]) -> bool:
        """No live worker has it, and none has had it for longer than it takes to replace a worker."""
        if any(map(had_it, self.living)):
            return False
        ends = [end for row in self.dead if had_it(row) and (end := ended_at(row, self.now))]
        return not ends or self.age(max(ends)) > self.patience


def _of_schedules(facts: _Facts) -> Iterator[Problem]:
    schedules = [standing.schedule for standing in facts.standings]
    silent = [each for each in schedules if each.due_at is not None and facts.age(each.due_at) > facts.patience]
    if silent:
        longest = max(facts.age(each.due_at) for each in silent if each.due_at)
        names = named(each.name for each in silent)
        yield Problem(
            "scheduler-silent",
            "all",
            f"no supervisor fires the schedules: {len(silent)} due for up to {ago(longest)} ({names})",
            fix="start one: tenure worker",
        )
    for standing in facts.standings:
        yield from _overdue(standing, facts, silent=bool(silent))
        yield from _too_long(standing, facts)
        yield from _failures(standing.schedule)


def _overdue(standing: Standing, facts: _Facts, *, silent: bool) -> Iterator[Problem]:
    s, late = standing.schedule, overdue_by(standing, facts.now)
    if set_back(s, facts.now):
        why = "the store's clock was set back, and its next tick is in the future"
        fix = f"tenure schedules resume {s.name}"
        yield Problem("overdue", s.name, f"{s.name}: {why}: {s.next_tick}", fix, "resume-schedule")
    if late is None:
        return
    if s.kind == "guard":
        lost = lost_run(standing, facts.now)
        why = ", and no call came" if lost is None else f": {lease_ended(lost)}"
        yield Problem("overdue", s.name, f"{s.name} should have been called {ago(late)} ago{why}")
    elif any(run.live for run in standing.runs):
        job = next((run.job for run in standing.runs if run.live and run.job), None)
        queue, task = (job.queue, job.task) if job else ("", "")
        waits, fix = "no worker has started its job", ""
        if queue in facts.paused:
            waits = f"its job waits in queue {queue}, which is paused"
        elif job and job.parked is not None:
            waits, fix = f"its job waits for a place of {job.parked}", f"tenure jobs explain {job.id}"
        yield Problem(
            "late",
            s.name,
            f"{s.name} was due {ago(late)} ago, and {waits}",
            fix,
            queue=queue,
            task=task,
            jobs=(job.id,) if job else (),
        )
    elif late > facts.patience and not silent:  # else one problem covers all of them, or soon will
        yield Problem("overdue", s.name, f"{s.name} was due {ago(late)} ago, and no supervisor fired it")


def _too_long(standing: Standing, facts: _Facts) -> Iterator[Problem]:
    s = standing.schedule
    if s.kind == "guard" and s.too_long is None:
        yield from _hung_guard(standing, facts)
    for run in standing.runs:
        if s.too_long is None or run.job is None or not run.live or run.job.attempt == 0:
            continue
        # A run includes its retries; only its attempts record when the first one began.
        began = run.tick.decided_at if run.job.attempt > 1 else run.job.started_at
        if began is not None and facts.age(began) > s.too_long:
            ran, may = ago(facts.age(began)), spell(s.too_long)
            yield Problem(
                "too-long",
                s.name,
                f"{s.name} has been running for {ran} (too_long={may}): job {run.job.id}",
                remedy="cancel",
                jobs=(run.job.id,),
            )
            return


def _hung_guard(standing: Standing, facts: _Facts) -> Iterator[Problem]:
    """A guard's run that was given no limit, and still runs at its next two ticks: their calls are skipped."""
    s, lost = standing.schedule, lost_run(standing, facts.now)
    for run in standing.runs:
        if not run.live or run is lost or not understood(s):
            continue
        rule, began = rule_of(s), run.tick.decided_at
        if isinstance(rule, Every):
            second: datetime | None = began + timedelta(seconds=2 * rule.seconds)
        else:
            first = rule.after(max(began, run.tick.tick))
            second = None if first is None else rule.after(first)
        if second is not None and facts.age(second) > s.grace:
            says = f"{s.name} has been running for {ago(facts.age(began))}, past its next two ticks, which are skipped"
            job = run.tick.job_id or ""
            yield Problem(
                "too-long",
                s.name,
                f"{says}, on {run.tick.host}",
                f"tenure jobs cancel {job}",
                "cancel",
                jobs=(job,) if job else (),
            )
            return


def _failures(s: Schedule) -> Iterator[Problem]:
    if s.retired_at is not None:
        return
    enough = s.alert_after if s.pause_after is None else min(s.alert_after, s.pause_after)
    if s.unread:
        yield Problem("failures", s.name, f"{s.name} is not fired, since this release can't read it: {s.unread}")
    elif s.paused_at is not None and s.paused_why.startswith(BROKEN):
        yield Problem("failures", s.name, f"{s.name} is paused: {_line(s.paused_why)}", remedy="resume-schedule")
    elif s.failure_count >= enough:
        paused = f"; it is paused: {s.paused_why}" if s.paused_at is not None else ""
        times = f"{s.failure_count} times in a row" if s.failure_count > 1 else "once"
        remedy: Remedy = "resume-schedule" if paused else "" if s.kind == "guard" else "trigger"
        says = f"{s.name} has failed {times}: {_line(s.last_error)}{paused}"
        yield Problem("failures", s.name, says, remedy=remedy)


def _of_dead_letters(facts: _Facts) -> Iterator[Problem]:
    since = facts.now - timedelta(seconds=FRESH_SECONDS)
    newest = facts.store.latest_ended(State.DEAD, since=since, limit=MOST_READ)  # guards: see their history
    by_task: dict[str, list[tuple[datetime, JobView]]] = defaultdict(list)
    for job in newest:
        if job.ended_at is not None:
            by_task[job.task].append((job.ended_at, job))
    for task, letters in by_task.items():
        _, last = max(letters, key=lambda each: each[0])
        many = f"{len(letters)} dead letters" if len(letters) > 1 else "a dead letter"
        least = "at least " if len(newest) == MOST_READ else ""
        others = len({pattern(job.error or "") for _, job in letters}) - 1
        more = f", and {others} other error{'s' if others > 1 else ''}" if others else ""
        yield Problem(
            "dead-letters",
            task,
            f"{task} left {least}{many} within {spell(FRESH_SECONDS)}, the last is {last.id}: "
            f"{_line(last.error or '')}{more}",
            fix="tenure dead list",
            remedy="replay",
            task=task,
            jobs=(last.id,),
        )


def _of_queues(facts: _Facts) -> Iterator[Problem]:
    for queue in facts.queues:
        oldest = queue.oldest_queued or 0.0
        if oldest > facts.settings.alert_queue_age:
            count = queue.counts.get(State.QUEUED, 0)
            says = f"queue {queue.name}: {count:,} queued, the oldest due for {ago(oldest)}"
            yield Problem("queue-age", queue.name, says, queue=queue.name)
        oldest = max(oldest, facts.parked.get(queue.name, 0.0))
        if oldest > facts.patience and queue.paused_at is None and facts.gone(partial(serves, queue.name)):
            yield Problem(
                "no-worker",
                f"queue {queue.name}",
                f"no live worker serves queue {queue.name}, and its oldest job is due for {ago(oldest)}",
                fix=f"tenure worker -q {queue.name}",
                queue=queue.name,
            )


def _of_paused_queues(facts: _Facts, harmed: Collection[str]) -> Iterator[Problem]:
    """A paused queue is a problem once jobs of it are late."""
    for queue in facts.queues:
        parked = facts.parked.get(queue.name, 0.0)
        if queue.paused_at is not None and (queue.name in harmed or parked > facts.settings.alert_queue_age):
            count, oldest = queue.counts.get(State.QUEUED, 0), ago(max(queue.oldest_queued or 0.0, parked))
            waits = f"{count:,} jobs wait in it, the oldest" if count != 1 else "a job waits in it,"
            if not count:
                waits = "jobs of it wait for a place of a limit, the oldest"
            yield Problem(
                "queue-paused",
                queue.name,
                f"queue {queue.name} has been paused for {ago(facts.age(queue.paused_at))}: {waits} due for {oldest}",
                fix=f"tenure queues resume {queue.name}",
                remedy="resume-queue",
                queue=queue.name,
            )


def _held(held: Held, facts: _Facts) -> Problem:
    first, workers, slots = held.workers[0].identity, len(held.workers), held.slots
    queues = named(first.queues) if first.queues else "all queues"
    of = f"{first.id}" if workers == 1 else f"the {workers} workers of {queues}"
    waiting = sum(queue.counts.get(State.QUEUED, 0) for queue in facts.queues if queue.name in held.queues)
    waits = f"; {waiting:,} queued job{'s' if waiting != 1 else ''} can't start" if waiting else ""
    tasks, since = named({job.task for job in held.jobs}), ago(silence(held.jobs[-1], facts.now))
    many = f"{len(held.jobs)} jobs of {tasks} have" if len(held.jobs) > 1 else f"a job of {tasks} has"
    all_of = f"all {slots} slots" if slots > 1 else "the only slot"
    hold = "holds" if len(held.jobs) == 1 else "hold"
    asked = all(job.cancel_reason is not None for job in held.jobs)
    stops = ". They were asked to stop" if asked else ""
    ids = tuple(job.id for job in held.jobs[:MOST_READ])
    return Problem(
        "slots-held",
        queues if held.everyone else f"worker {first.id}",
        f"{many} reported nothing for {since}, and {hold} {all_of} of {of}: nothing else can start there{waits}{stops}",
        fix="" if asked else f"tenure jobs cancel {' '.join(ids[:MOST_NAMED])}",
        remedy="" if asked else "cancel",
        jobs=ids,
    )


def _stuck(stuck: Stuck, facts: _Facts) -> Problem:
    longest, ids = stuck.jobs[0].started_at, tuple(job.id for job in stuck.jobs[:MOST_READ])
    many = f"{len(stuck.jobs)} jobs of {stuck.task} have" if len(stuck.jobs) > 1 else f"a job of {stuck.task} has"
    ran = ago(facts.age(longest)) if longest else ""
    asked = all(job.cancel_reason is not None for job in stuck.jobs)
    return Problem(
        "stuck-jobs",
        stuck.task,
        f"{many} been running for {ran}; 95% of its last runs took less than {spell(stuck.usual)}: {ids[0]}"
        + (", which was asked to stop" if asked else ""),
        fix="" if asked else f"tenure jobs cancel {' '.join(ids[:MOST_NAMED])}",
        remedy="" if asked else "cancel",
        task=stuck.task,
        jobs=ids,
    )


def _of_unknown_tasks(facts: _Facts) -> Iterator[Problem]:
    """A worker that claims a job of an unknown task snoozes it, so these jobs are mostly scheduled, not queued."""
    if not facts.living:
        return
    known = {task for row in facts.living for task in row.identity.tasks}
    waiting = frozenset({State.QUEUED, State.SCHEDULED})
    newest = facts.store.search(Filter(states=waiting), limit=MOST_READ, within=MOST_LOOKED_AT).jobs
    gone = {task for row in facts.dead for task in row.identity.tasks} | {job.task for job in newest}
    for task in sorted(gone - known - {TASK})[:MOST_OPEN]:
        jobs = facts.store.search(Filter(states=waiting, task=task), limit=MOST_READ, within=MOST_LOOKED_AT).jobs
        due = [job for job in jobs if facts.age(job.enqueued_at if job.attempt else job.run_at) > facts.patience]
        if due and facts.gone(partial(knows, task)):
            yield Problem(
                "no-worker",
                f"task {task}",
                f"no live worker knows the task {task}, and jobs of it are due, {due[-1].id} among them",
                fix=DEPLOY,
                task=task,
            )


#: How the reason why a worker could not run a job begins, the kind of the problem, and what to do.
_UNFIT: Sequence[tuple[str, Kind, str]] = (
    (MISFIT, "arguments-misfit", "deploy the code that takes them, or cancel them: after 24h each is a dead letter"),
    (NO_KEY, "key-missing", "give the key to all workers: Tenure(codec=AesSiv([…]))"),
    (
        NOT_FETCHED,
        "value-missing",
        "give the bucket to all workers, and bring back what it has lost: docs/large-values.md",
    ),
)


def _of_misfits(facts: _Facts) -> Iterator[Problem]:
    """Jobs that wait for a worker whose code takes their arguments, or that has their key.

    A worker that lacked it snoozed them, an uncharged attempt.
    """
    waiting = facts.store.search(Filter(states=frozenset({State.SCHEDULED})), limit=MOST_READ, within=MOST_LOOKED_AT)
    uncharged = [job for job in waiting.jobs if job.attempt > job.failures + job.crashes]
    old = [job for job in uncharged if job.task != TASK and facts.age(job.enqueued_at) > facts.patience]
    lasts = [(job, _last_error(facts, job)) for job in old[:MOST_OPEN]]
    for begins, kind, fix in _UNFIT:
        unfit: dict[str, list[tuple[JobView, str]]] = {}
        for job, error in lasts:
            if error.startswith(begins):
                unfit.setdefault(job.task, []).append((job, error))
        for task, jobs in unfit.items():  # without those of the task that wait for another reason
            job, error = jobs[0]
            yield Problem(
                kind,
                task,
                f"jobs of {task} wait, {job.id} among them: {'their ' * (begins is MISFIT)}{_line(error)}",
                fix=fix,
                remedy="promote",
                task=task,
                jobs=tuple(each.id for each, _ in jobs),
            )


def _last_error(facts: _Facts, job: JobView) -> str:
    last = max(facts.store.attempts(job.id), key=lambda each: each.attempt, default=None)
    return "" if last is None or last.attempt != job.attempt else last.error


def named(names: Iterable[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:MOST_NAMED]) + (f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else "")


def _line(error: str) -> str:
    return clean(headline(error), LONGEST_ERROR)


def ago(length: float) -> str:
    return spell(round(length))
