"""The engine alarms on its own silence: what is wrong, and that somebody hears of it, once.

1. `problems` reads the store and says what is wrong right now. It changes nothing.
2. `Watch.look` keeps one incident a problem as a note in the store. The note is compared and set together with the
   jobs that tell of it, so of all who look one opens it, and what was noticed is told even if that one dies.
3. `Alarm` is who looks: a thread of every process that does the maintenance. If somebody else than the log is to be
   told it has a worker of its own for that: those of the user may be the very thing that is stuck.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from random import random
from typing import TYPE_CHECKING

import msgspec

from tenure.config import Settings
from tenure.core.durations import spell
from tenure.core.ids import new_id
from tenure.core.lifecycle import GUARD, LIVE, State
from tenure.core.retry import Fail, Retry, Snooze
from tenure.core.text import clean
from tenure.errors import StoreError, TenureError
from tenure.events import headline
from tenure.operations.sinks import LOG, Incident, Kind, Message, Sink, Undelivered, open_sinks
from tenure.ports import Draft, Filter, JobView, Notifier, QueueView, Ring, Store, WorkerView
from tenure.ports.schedules import BROKEN, Schedule, Standing
from tenure.schedules.plan import overdue_by, set_back
from tenure.tasks.handle import ClientPort
from tenure.tasks.job import Job
from tenure.tasks.registry import Registry, task_decorator
from tenure.tasks.task import Task
from tenure.worker.program import Program

if TYPE_CHECKING:
    from tenure.worker.embedded import Embedded

QUEUE = "tenure.alerts"
TASK = "tenure.alert"
PREFIX = "incident:"
FRESH_SECONDS = 3600.0  #: so long a dead letter is alerted on
MOST_OPEN = 20  #: incidents of one kind; those above are one more together
MOST_READ = 50
MOST_LOOKED_AT = 10_000  #: jobs, for one that nobody knows: behind more of them it waits, and its queue's age is told
MOST_NAMED = 5
LONGEST_ERROR = 300
SLOTS = 8
LAST_SECONDS = 15.0  #: in which a delivery that goes on, or a store that is away, holds up the end of its process
#: 13 tries within about an hour: quickly at first, for a receiver that restarts.
PATIENCE = Retry(13, base="1s", cap="15m")
KEPT_SECONDS = 86_400.0  #: a message for a sink that no process has
SHARE = 100.0  #: a look is followed by a pause this many times as long, however much there is to look at

_log = logging.getLogger("tenure.alerts")
_decode = msgspec.json.Decoder(Incident).decode


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong right now."""

    kind: Kind
    subject: str  #: the schedule, task or queue that it is about
    says: str

    @property
    def key(self) -> str:
        """What makes it the same problem at the next look."""
        return f"{self.kind}:{self.subject}"


# ── What is wrong ───────────────────────────────────────────────────────────────────────────────────────────────


def problems(store: Store, settings: Settings, queues: Sequence[QueueView] | None = None) -> list[Problem]:
    """What is wrong right now, by the store's clock. Reads only, and no more of them for more schedules.

    `queues`: as they were read a moment ago, where counting them again would cost too much.

    Example: `[each.says for each in problems(store, settings)]`
    """
    facts = _Facts(store, settings, store.queues() if queues is None else queues)
    found = [*_of_schedules(facts), *_of_dead_letters(facts), *_of_queues(facts), *_of_unknown_tasks(facts)]
    return sorted(found, key=lambda each: (each.kind, each.subject))


class _Facts:
    """One reading of the store."""

    def __init__(self, store: Store, settings: Settings, queues: Sequence[QueueView]) -> None:
        self.store, self.settings = store, settings
        self.standings = store.schedules()
        self.queues = [queue for queue in queues if queue.name not in (GUARD, QUEUE)]
        everyone = [row for row in store.workers(dead=True) if works_for_all(row)]
        self.now = store.now()
        self.living = [row for row in everyone if self._ended_at(row) is None]
        self.dead = [row for row in everyone if self._ended_at(row) is not None]
        #: Without workers, and without firing: so long is normal, while one process takes another's place.
        self.patience = 2 * settings.lease

    def age(self, when: datetime) -> float:
        return (self.now - when).total_seconds()

    def _ended_at(self, row: WorkerView) -> datetime | None:
        if row.died_at is not None:
            return row.died_at
        return row.expires_at if row.expires_at < self.now else None

    def gone(self, had_it: Callable[[WorkerView], bool]) -> bool:
        """No worker lives that has it, and none has had it for longer than it takes to replace one."""
        if any(map(had_it, self.living)):
            return False
        ends = [end for row in self.dead if had_it(row) and (end := self._ended_at(row))]
        return not ends or self.age(max(ends)) > self.patience


def works_for_all(row: WorkerView) -> bool:
    """Neither a guard, which runs its own job only, nor one that delivers alerts."""
    return row.identity.runner != "guard" and row.identity.queues != (QUEUE,)


def _of_schedules(facts: _Facts) -> Iterator[Problem]:
    schedules = [standing.schedule for standing in facts.standings]
    silent = [each for each in schedules if each.due_at is not None and facts.age(each.due_at) > facts.patience]
    if silent:
        longest = max(facts.age(each.due_at) for each in silent if each.due_at)
        names = _named(each.name for each in silent)
        yield Problem(
            "scheduler-silent",
            "all",
            f"nobody fires the schedules: {len(silent)} due for up to {_ago(longest)} ({names}); "
            "does a supervisor run? tenure worker",
        )
    for standing in facts.standings:
        yield from _overdue(standing, facts, silent=bool(silent))
        yield from _too_long(standing, facts)
        yield from _failures(standing.schedule)


def _overdue(standing: Standing, facts: _Facts, *, silent: bool) -> Iterator[Problem]:
    s, late = standing.schedule, overdue_by(standing, facts.now)
    if set_back(s, facts.now):
        why = "the store's clock was set back, and its next tick lies ahead"
        yield Problem("overdue", s.name, f"{s.name}: {why}: {s.next_tick}; tenure schedules resume {s.name}")
    if late is None:
        return
    if s.kind == "guard":
        yield Problem("overdue", s.name, f"{s.name} should have been called {_ago(late)} ago, and no call came")
    elif any(run.live for run in standing.runs):
        yield Problem("late", s.name, f"{s.name} was due {_ago(late)} ago, and no worker has started its job")
    elif late > facts.patience and not silent:  # else one problem says so of all of them, or soon will
        yield Problem("overdue", s.name, f"{s.name} was due {_ago(late)} ago, and nobody fired it")


def _too_long(standing: Standing, facts: _Facts) -> Iterator[Problem]:
    s = standing.schedule
    for run in standing.runs:
        if s.too_long is None or run.job is None or not run.live or run.job.attempt == 0:
            continue
        # It goes on through its retries; when the first attempt began only its attempts know.
        began = run.tick.decided_at if run.job.attempt > 1 else run.job.started_at
        if began is not None and facts.age(began) > s.too_long:
            ran, may = _ago(facts.age(began)), spell(s.too_long)
            yield Problem("too-long", s.name, f"{s.name} runs for {ran} already (too_long={may}): job {run.job.id}")
            return


def _failures(s: Schedule) -> Iterator[Problem]:
    if s.retired_at is not None:
        return
    enough = s.alert_after if s.pause_after is None else min(s.alert_after, s.pause_after)
    if s.unread:
        yield Problem("failures", s.name, f"{s.name} is not fired by this release, which can't read it: {s.unread}")
    elif s.paused_at is not None and s.paused_why.startswith(BROKEN):
        yield Problem("failures", s.name, f"{s.name} is paused: {_line(s.paused_why)}")
    elif s.failure_count >= enough:
        paused = f"; it is paused: {s.paused_why}" if s.paused_at is not None else ""
        times = f"{s.failure_count} times in a row" if s.failure_count > 1 else "once"
        yield Problem("failures", s.name, f"{s.name} has failed {times}: {_line(s.last_error)}{paused}")


def _of_dead_letters(facts: _Facts) -> Iterator[Problem]:
    since = facts.now - timedelta(seconds=FRESH_SECONDS)
    fresh = Filter(states=frozenset({State.DEAD}), guards=False, ended_since=since)  # a guard's is in its history
    newest = facts.store.search(fresh, limit=MOST_READ).jobs
    by_task: dict[str, list[tuple[datetime, JobView]]] = defaultdict(list)
    for job in newest:
        if job.ended_at is not None:
            by_task[job.task].append((job.ended_at, job))
    for task, letters in by_task.items():
        _, last = max(letters, key=lambda each: each[0])
        many = f"{len(letters)} dead letters" if len(letters) > 1 else "a dead letter"
        least = "at least " if len(newest) == MOST_READ else ""
        yield Problem(
            "dead-letters",
            task,
            f"{task} left {least}{many} within {spell(FRESH_SECONDS)}, the last is {last.id}: "
            f"{_line(last.error or '')}; tenure dead list",
        )


def _of_queues(facts: _Facts) -> Iterator[Problem]:
    for queue in facts.queues:
        oldest = queue.oldest_queued or 0.0
        if oldest > facts.settings.alert_queue_age:
            paused = f"; it is paused: tenure queues resume {queue.name}" if queue.paused_at else ""
            count = queue.counts.get(State.QUEUED, 0)
            yield Problem(
                "queue-age",
                queue.name,
                f"queue {queue.name}: {count} queued, the oldest due for {_ago(oldest)}{paused}",
            )
        if oldest > facts.patience and queue.paused_at is None and facts.gone(partial(_serves, queue)):
            yield Problem(
                "no-worker",
                f"queue {queue.name}",
                f"no live worker serves queue {queue.name}, and its oldest job is due for {_ago(oldest)}; "
                f"tenure worker -q {queue.name}",
            )


def _serves(queue: QueueView, row: WorkerView) -> bool:
    return not row.identity.queues or queue.name in row.identity.queues


def _knows(task: str, row: WorkerView) -> bool:
    return task in row.identity.tasks


def _of_unknown_tasks(facts: _Facts) -> Iterator[Problem]:
    """A worker that claims what it does not know puts it off: such jobs are scheduled more than they are queued."""
    if not facts.living:
        return
    known = {task for row in facts.living for task in row.identity.tasks}
    waiting = frozenset({State.QUEUED, State.SCHEDULED})
    newest = facts.store.search(Filter(states=waiting), limit=MOST_READ).jobs
    gone = {task for row in facts.dead for task in row.identity.tasks} | {job.task for job in newest}
    for task in sorted(gone - known - {TASK})[:MOST_OPEN]:
        jobs = facts.store.search(Filter(states=waiting, task=task), limit=MOST_READ, within=MOST_LOOKED_AT).jobs
        due = [job for job in jobs if facts.age(job.enqueued_at if job.attempt else job.run_at) > facts.patience]
        if due and facts.gone(partial(_knows, task)):
            yield Problem(
                "no-worker",
                f"task {task}",
                f"no live worker knows the task {task}, and jobs of it wait, {due[-1].id} among them; "
                "deploy the code that has it, or give the renamed task aliases=[…]",
            )


def _named(names: Iterable[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:MOST_NAMED]) + (f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else "")


def _line(error: str) -> str:
    return clean(headline(error), LONGEST_ERROR)


def _ago(length: float) -> str:
    return spell(round(length))


# ── Incidents ───────────────────────────────────────────────────────────────────────────────────────────────────


class Watch:
    """Looks, and opens and closes incidents. Everybody may look at the same time.

    A problem opens its incident when it is first seen, and closes it when it was gone for two of the intervals in
    which supervisors look: one that comes and goes is told once.
    """

    def __init__(self, store: Store, notifier: Notifier, settings: Settings, sinks: Mapping[str, Sink]) -> None:
        self._store, self._notifier, self._settings, self._sinks = store, notifier, settings, sinks
        self._task = delivery(settings, sinks)

    def look(self) -> list[str]:
        """Look once; the ids of the jobs that tell of what is new."""
        return self.tell(problems(self._store, self._settings))

    def tell(self, seen: Iterable[Problem]) -> list[str]:
        """These, and no others, are there now; the ids of the jobs that tell of what is new."""
        stands = self._store.notes(PREFIX)
        found = {each.key: each for each in seen}
        now = self._store.now()
        sent: list[str] = []
        for problem in _bounded(found.values(), stands):
            if PREFIX + problem.key not in stands:
                sent += self._begin(problem, now)
            found[problem.key] = problem
        for note, text in stands.items():
            sent += self._go_on(note, text, _decode(text), now, there=note.removeprefix(PREFIX) in found)
        self._notifier.announce([Ring("queued", QUEUE, tuple(sent))] if sent else [])
        return sent

    def _begin(self, problem: Problem, now: datetime) -> list[str]:
        incident = Incident(
            id=new_id(),
            key=problem.key,
            kind=problem.kind,
            subject=problem.subject,
            says=problem.says,
            store=self._store.url,
            opened_at=now,
        )
        title = f"tenure: {problem.kind}: {problem.subject}"
        message = Message(type="incident.opened", timestamp=now, title=title, text=_text(incident), data=incident)
        return self._write(PREFIX + problem.key, None, _encode(incident), message, problem.says)

    def _go_on(self, note: str, text: str, incident: Incident, now: datetime, *, there: bool) -> list[str]:
        if there:
            if incident.gone_at is not None:
                self._store.swap(note, text, _encode(replace(incident, gone_at=None)))
            return []
        if incident.gone_at is None:
            self._store.swap(note, text, _encode(replace(incident, gone_at=now)))
            return []
        if now - incident.gone_at < timedelta(seconds=2 * self._settings.alert_every):
            return []
        after = f"over after {_ago((incident.gone_at - incident.opened_at).total_seconds())}"
        title = f"tenure: {after}: {incident.kind}: {incident.subject}"
        message = Message(type="incident.closed", timestamp=now, title=title, text=_text(incident), data=incident)
        return self._write(note, text, None, message, f"{after}: {incident.says}")

    def _write(self, note: str, old: str | None, new: str | None, message: Message, line: str) -> list[str]:
        drafts = [self._draft(name, message) for name in self._sinks]
        if not self._store.swap(note, old, new, drafts=drafts).landed:
            return []  # another one was faster
        if LOG in self._settings.alerts:
            _log.warning("%s: %s", message.data.kind, line, extra={"incident": message.data.key, "type": message.type})
        return [draft.id for draft in drafts]

    def _draft(self, sink: str, message: Message) -> Draft:
        return self._task.bind(sink=sink, to=self._sinks[sink].label, message=message).draft()


def _bounded(found: Iterable[Problem], stands: Mapping[str, str]) -> list[Problem]:
    """All that have an incident, and as many more of each kind as may; the rest of a kind as one problem."""
    by_kind: dict[Kind, list[Problem]] = defaultdict(list)
    for problem in found:
        by_kind[problem.kind].append(problem)
    kept: list[Problem] = []
    for kind, all_of_it in by_kind.items():
        all_of_it.sort(key=lambda each: (PREFIX + each.key not in stands, each.subject))
        open_already = sum(PREFIX + each.key in stands for each in all_of_it)
        room = max(MOST_OPEN, open_already)
        kept += all_of_it[:room]
        if rest := [each.subject for each in all_of_it[room:]]:
            kept.append(Problem(kind, "*", f"{kind}: {len(rest)} more than the {room} told of: {_named(rest)}"))
    return kept


def _encode(incident: Incident) -> str:
    return msgspec.json.encode(incident).decode()


def _text(incident: Incident) -> str:
    since = f"since {incident.opened_at:%Y-%m-%d %H:%M:%S} UTC"
    until = f", until {incident.gone_at:%Y-%m-%d %H:%M:%S} UTC" if incident.gone_at else ""
    return f"{incident.says}\n\n{since}{until}, in {incident.store}"


def open_incidents(store: Store) -> list[Incident]:
    """Those that are not over."""
    return [_decode(text) for text in store.notes(PREFIX).values()]


# ── Delivery ────────────────────────────────────────────────────────────────────────────────────────────────────


class _DeliveryApp:
    """What the task of the deliveries needs of an app."""

    retry = PATIENCE
    resources: Mapping[type, object] = {}

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def client(self) -> ClientPort:
        raise TenureError(f"{TASK} is enqueued with the incident it tells of, and in no other way")

    async def aclient(self) -> ClientPort:
        return self.client()


def delivery(settings: Settings, sinks: Mapping[str, Sink]) -> Task[..., None]:
    """The task that tells one sink of one incident. A job names its sink by digest: it must not hold its URL."""

    def deliver(job: Job, sink: str, to: str, message: Message) -> None:
        if sink not in sinks:
            waited = time.time() - job.enqueued_at.timestamp()
            if waited > KEPT_SECONDS:
                raise Fail(f"no process has had {to} among its alerts for {_ago(waited)}", final=True)
            raise Snooze(timedelta(seconds=min(max(5.0, waited / 4), 600.0)), f"{to} is not among the alerts here")
        try:
            sinks[sink].send(str(job.id), message)
        except Undelivered as error:
            raise Fail(str(error)) from None

    return task_decorator(_DeliveryApp(settings), Registry())(name=TASK, queue=QUEUE)(deliver)


def courier(
    settings: Settings,
    sinks: Mapping[str, Sink],
    open_store: Callable[[Settings], Store],
    open_notifier: Callable[[Settings, Store], Notifier],
) -> Embedded:
    """A worker in this process that delivers, and does nothing else."""
    from tenure.worker.embedded import Embedded

    tasks = Registry()
    tasks.add(delivery(settings, sinks))
    return Embedded(Program(tasks), open_store, open_notifier, settings, [QUEUE], SLOTS, new_alarm=None)


class Alarm:
    """A thread that looks every `alert_every`, and the courier. It is used by one thread.

    Who was away declares nothing wrong: it begins one interval after its start, and again one after the store was out
    of reach, so that others have had the time to do what they do.
    """

    def __init__(
        self,
        store: Store,
        notifier: Notifier,
        settings: Settings,
        open_store: Callable[[Settings], Store],
        open_notifier: Callable[[Settings, Store], Notifier],
    ) -> None:
        self._store, self._every = store, settings.alert_every
        sinks = open_sinks(settings)
        self._watch = Watch(store, notifier, settings, sinks)
        self._new_courier = partial(courier, settings, sinks, open_store, open_notifier) if sinks else None
        self._courier: Embedded | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tenure-alerts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Look no more; what is being delivered is delivered."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(LAST_SECONDS)

    def _run(self) -> None:
        rested, pause = False, 0.0
        while not self._closing.wait(pause):
            took = 0.0
            try:
                self._keep_courier()
                began = time.thread_time()
                if rested:
                    self._watch.look()
                else:
                    self._store.now()
                took, rested = time.thread_time() - began, True
            except StoreError:  # its own duties tell of that
                rested = False
            except Exception:
                _log.exception("looking for what is wrong has failed")
            pause = max(self._every * (0.8 + 0.4 * random()), SHARE * took)
        self._end_courier()

    def _keep_courier(self) -> None:
        if self._courier is not None and self._courier.failed:
            self._end_courier()
        if self._courier is None and self._new_courier is not None:
            new = self._new_courier()
            new.__enter__()
            self._courier = new

    def _end_courier(self) -> None:
        ending, self._courier = self._courier, None
        if ending is not None:
            try:
                ending.__exit__(None, None, None)
            except TenureError:
                _log.exception("the worker that delivers alerts has failed")


def tell_now(
    store: Store,
    settings: Settings,
    found: Iterable[Problem],
    open_store: Callable[[Settings], Store],
    open_notifier: Callable[[Settings, Store], Notifier],
    *,
    timeout: float = 30.0,
) -> int:
    """Deliver what there is to tell of these, without any supervisor. How many messages are still on their way.

    What is left is delivered by the next who does this, or by a supervisor with the same sinks.
    """
    sinks = open_sinks(settings)
    notifier = open_notifier(settings, store)
    try:
        waiting = set(Watch(store, notifier, settings, sinks).tell(found))
    finally:
        notifier.close()
    waiting |= _undelivered(store, sinks)
    if not waiting:
        return 0
    deadline = time.monotonic() + timeout
    with courier(settings, sinks, open_store, open_notifier):
        while waiting and time.monotonic() < deadline:
            time.sleep(0.05)
            store.promote()  # what failed, and is due again
            waiting &= _undelivered(store, sinks)
    return len(waiting)


def _undelivered(store: Store, sinks: Mapping[str, Sink]) -> set[str]:
    jobs = store.search(Filter(states=LIVE, queue=QUEUE), limit=1000).jobs
    return {job.id for job in jobs if msgspec.json.decode(job.payload)["sink"] in sinks}
