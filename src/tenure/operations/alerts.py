"""Alerting: opens an incident for each problem, and notifies every sink of it once.

1. `problems.py` reads the store and returns what is wrong right now. It changes nothing.
2. `Watch.look` keeps one incident per problem as a note in the store. The note is compared and set in one transaction
   with the jobs that deliver its messages: of all processes that check, exactly one opens the incident, and its
   messages are delivered even if that process dies. The note names the sinks that were notified, because processes
   may have different ones: a process that finds one of its own missing notifies it.
3. `Alarm` is the thread that checks, in every process that does maintenance. If there are sinks other than the log,
   it runs its own worker to deliver to them, because the user's workers may be exactly what is stuck.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from math import inf
from random import random
from typing import TYPE_CHECKING, cast

import msgspec

from tenure.config import Settings
from tenure.core.ids import new_id
from tenure.core.lifecycle import LIVE
from tenure.core.logs import logger
from tenure.core.retry import Fail, Retry, Snooze
from tenure.errors import StoreError, TenureError
from tenure.maintenance.duty import join_until
from tenure.maintenance.roster import Lag
from tenure.operations.causes import Case, Problem, cases
from tenure.operations.problems import MOST_LOOKED_AT, MOST_OPEN, ago, named, of_duties, problems
from tenure.operations.sinks import LOG, OLDER, QUEUE, TASK, Incident, Kind, Message, Sink, Undelivered, open_sinks
from tenure.ports import Draft, Filter, JobView, Notifier, Ring, Store
from tenure.tasks.handle import ClientPort
from tenure.tasks.job import Job
from tenure.tasks.registry import Registry, task_decorator
from tenure.tasks.task import Task
from tenure.worker.program import Program

if TYPE_CHECKING:
    from tenure.worker.embedded import Embedded

NOTES, PREFIX = "incident", "incident:"
NEWER = "incident2:"  #: for kinds that the previous release can't decode: its every check would fail
SLOTS = 8
LAST_SECONDS = 15.0  #: longest delay of process exit by a running delivery or an unavailable store
#: About a day, as long as a message is kept for a sink that no process has configured; the first attempts come in
#: quick succession, for a receiver that restarts.
PATIENCE = Retry(200, base="1s", cap="15m")
KEPT_SECONDS = 86_400.0
SHARE = 100.0  #: each check is followed by a pause this many times as long, which bounds its load on the store

_log = logger("tenure.alerts")
_decode = msgspec.json.Decoder(Incident).decode
Told = Mapping[str, str]  #: the sinks that were notified, by their short names, and their labels; the log is one


class _Receipt(msgspec.Struct):
    """What a note has beside its incident."""

    told: dict[str, str] | None = None  #: None: a release wrote it that notified every sink it knew, and kept no names


_decode_receipt = msgspec.json.Decoder(_Receipt).decode


# ── Incidents ───────────────────────────────────────────────────────────────────────────────────────────────────


class Watch:
    """Checks for problems, and opens and closes incidents. Any number of processes may check at the same time.

    An incident opens when its problem is first seen, and closes when the problem has been absent for two check
    intervals of the supervisors: an intermittent problem is reported once.
    """

    def __init__(self, store: Store, notifier: Notifier, settings: Settings, sinks: Mapping[str, Sink]) -> None:
        self._store, self._notifier, self._settings = store, notifier, settings
        self._own: Told = {name: sink.label for name, sink in sinks.items()}
        if LOG in settings.alerts:
            self._own = {**self._own, LOG: LOG}
        self._task = delivery(settings, sinks, store)

    def look(self) -> list[str]:
        """Check once. Returns the ids of the jobs that deliver what is new."""
        return self.update(problems(self._store, self._settings))

    def update(self, seen: Iterable[Problem]) -> list[str]:
        """Update the incidents: exactly these problems exist now. The ids of the jobs that deliver what is new.

        A symptom of another problem is reported with its cause. If the symptom came first, its own incident stays open.
        """
        stands = self._store.notes(NOTES)
        found = {each.key: each for each in seen}
        roots = [_with_symptoms(case) for case in cases(found.values())]
        roots += [each for each in found.values() if each.cause in found and _note(each) in stands]
        now = self._store.now()
        sent: list[str] = []
        for problem in _bounded(roots, stands):
            if _note(problem) not in stands:
                sent += self._begin(problem, now)
            found[problem.key] = problem
        for note, text in stands.items():
            sent += self._continue(note, text, now, there=note.partition(":")[2] in found)
        self._notifier.announce([Ring("queued", QUEUE, tuple(sent))] if sent else [])
        return sent

    def _begin(self, problem: Problem, now: datetime) -> list[str]:
        incident = Incident(
            id=new_id(),
            key=problem.key,
            kind=problem.kind,
            subject=problem.subject,
            says=problem.told,
            store=self._store.url,
            opened_at=now,
        )
        return self._open(_note(problem), None, incident, {}, now)

    def _continue(self, note: str, text: str, now: datetime, *, there: bool) -> list[str]:
        incident, told = _decode(text), _decode_receipt(text).told
        if there:
            if incident.gone_at is not None or (told is not None and self._own.keys() - told.keys()):
                return self._open(note, text, replace(incident, gone_at=None), told, now)
            return []
        if incident.gone_at is None:
            self._store.swap(note, text, _encode(replace(incident, gone_at=now), told))
            return []
        if now - incident.gone_at < timedelta(seconds=2 * self._settings.alert_every):
            return []
        after = f"over after {ago(max(0.0, (incident.gone_at - incident.opened_at).total_seconds()))}"
        title = f"tenure: {after}: {incident.kind}: {incident.subject}"
        message = Message(type="incident.closed", timestamp=now, title=title, text=_text(incident), data=incident)
        to = self._own if told is None else told
        return self._write(note, text, None, message, to, f"{after}: {incident.says}")

    def _open(self, note: str, old: str | None, incident: Incident, told: Told | None, now: datetime) -> list[str]:
        """Write the note of a problem that exists, and notify those of this process's sinks that were not."""
        title = f"tenure: {incident.kind}: {incident.subject}"
        message = Message(type="incident.opened", timestamp=now, title=title, text=_text(incident), data=incident)
        known = self._own if told is None else told
        to = {name: label for name, label in self._own.items() if name not in known}
        new = _encode(incident, None if told is None else {**told, **to})
        return self._write(note, old, new, message, to, incident.says)

    def _write(self, note: str, old: str | None, new: str | None, message: Message, to: Told, line: str) -> list[str]:
        drafts = [self._draft(name, label, message) for name, label in to.items() if name != LOG]
        if not self._store.swap(note, old, new, drafts=drafts).landed:
            return []  # another process was faster
        if LOG in to and LOG in self._own:
            _log.warning("%s: %s", message.data.kind, line, extra={"incident": message.data.key, "type": message.type})
        return [draft.id for draft in drafts]

    def _draft(self, sink: str, label: str, message: Message) -> Draft:
        """An older release may deliver it, so it has a kind known there; `deliver` reads the true kind from the key."""
        data = replace(message.data, kind=OLDER.get(message.data.kind, message.data.kind))
        message = replace(message, data=data)
        draft = self._task.bind(sink=sink, to=label, message=message).draft()
        return draft if message.type == "incident.closed" else draft.but(id=_beginning(message.data.id, sink))


def _bounded(found: Iterable[Problem], stands: Mapping[str, str]) -> list[Problem]:
    """All problems with an open incident, and more of each kind up to the limit; the rest as one problem per kind."""
    by_kind: dict[Kind, list[Problem]] = defaultdict(list)
    for problem in found:
        by_kind[problem.kind].append(problem)
    kept: list[Problem] = []
    for kind, all_of_it in by_kind.items():
        all_of_it.sort(key=lambda each: (_note(each) not in stands, each.subject))
        open_already = sum(_note(each) in stands for each in all_of_it)
        room = max(MOST_OPEN, open_already)
        kept += all_of_it[:room]
        if rest := [each.subject for each in all_of_it[room:]]:
            kept.append(Problem(kind, "*", f"{kind}: {len(rest)} more than the {room} reported: {named(rest)}"))
    return kept


def _with_symptoms(case: Case) -> Problem:
    if not case.symptoms:
        return case.problem
    of_kind: dict[Kind, list[str]] = defaultdict(list)
    for each in case.symptoms:
        of_kind[each.kind].append(each.subject)
    causes = "; ".join(f"{kind}: {named(subjects)}" for kind, subjects in of_kind.items())
    return replace(case.problem, says=f"{case.problem.says}; it causes {causes}")


def _note(problem: Problem) -> str:
    return (NEWER if problem.kind in OLDER else PREFIX) + problem.key


def _encode(incident: Incident, told: Told | None) -> str:
    """A release that keeps no names reads it, too, and leaves them out when it writes."""
    kept = {} if told is None else {"told": told}
    return msgspec.json.encode({**msgspec.to_builtins(incident), **kept}).decode()


def _text(incident: Incident) -> str:
    since = f"since {incident.opened_at:%Y-%m-%d %H:%M:%S} UTC"
    until = f", until {incident.gone_at:%Y-%m-%d %H:%M:%S} UTC" if incident.gone_at else ""
    return f"{incident.says}\n\n{since}{until}, in {incident.store}"


def open_incidents(store: Store) -> list[Incident]:
    """Incidents that are still open."""
    return [_decode(text) for text in store.notes(NOTES).values()]


# ── Delivery ────────────────────────────────────────────────────────────────────────────────────────────────────


class _DeliveryApp:
    """The part of an app that the delivery task needs."""

    retry = PATIENCE
    codec = None
    resources: Mapping[type, object] = {}

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tasks = Registry()

    def client(self) -> ClientPort:
        raise TenureError(f"{TASK} is enqueued only together with its incident")

    async def aclient(self) -> ClientPort:
        return self.client()


def delivery(settings: Settings, sinks: Mapping[str, Sink], store: Store) -> Task[..., None]:
    """The task that sends one message to one sink. A job names its sink by digest, since it must not hold its URL.

    A sink gets the end of an incident after its beginning, or after the beginning was given up.
    """

    def deliver(job: Job, sink: str, to: str, message: Message) -> None:
        waited = time.time() - job.enqueued_at.timestamp()
        pause = timedelta(seconds=min(max(5.0, waited / 4), 600.0))
        if sink not in sinks:
            if waited > KEPT_SECONDS and message.type == "incident.closed":
                return  # the sink was taken away meanwhile
            if waited > KEPT_SECONDS:
                raise Fail(f"no process has had {to} configured in its alerts for {ago(waited)}", final=True)
            raise Snooze(pause, f"{to} is not configured in this process's alerts")
        if message.type == "incident.closed" and _is_on_its_way(store, _beginning(message.data.id, sink)):
            raise Snooze(pause, f"{to} has not got the beginning of this incident yet")
        try:
            data = replace(message.data, kind=message.data.key.partition(":")[0])
            sinks[sink].send(str(job.id), replace(message, data=data))
        except Undelivered as error:
            raise Fail(str(error)) from None

    return task_decorator(_DeliveryApp(settings), Registry())(name=TASK, queue=QUEUE)(deliver)


def delivery_worker(
    store: Store,
    settings: Settings,
    sinks: Mapping[str, Sink],
    open_store: Callable[[Settings], Store],
    open_notifier: Callable[[Settings, Store], Notifier],
) -> Embedded:
    """A worker in this process that only delivers alerts."""
    from tenure.worker.embedded import Embedded

    tasks = Registry()
    tasks.add(delivery(settings, sinks, store))
    return Embedded(Program(tasks), open_store, open_notifier, settings, {QUEUE: None}, SLOTS, new_alarm=None)


class Alarm:
    """A thread that checks every `alert_every`, and the delivery worker. It is used by one thread.

    A process that was disconnected does not report at once: the first check comes one interval after the start, and
    one interval after the store recovers, so that other processes have had time to catch up.
    """

    def __init__(
        self,
        store: Store,
        notifier: Notifier,
        settings: Settings,
        open_store: Callable[[Settings], Store],
        open_notifier: Callable[[Settings, Store], Notifier],
        lags: Callable[[], Iterable[Lag]],
    ) -> None:
        self._store, self._every, self._settings, self._lags = store, settings.alert_every, settings, lags
        sinks = open_sinks(settings)
        self._watch = Watch(store, notifier, settings, sinks)
        self._new_worker = (
            partial(delivery_worker, store, settings, sinks, open_store, open_notifier) if sinks else None
        )
        self._worker: Embedded | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tenure-alerts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, until: float = inf) -> None:
        """Stop checking; deliveries in progress are completed, if that takes no longer than until then."""
        self._closing.set()
        if self._thread.ident is not None:
            join_until(self._thread, min(until, time.monotonic() + LAST_SECONDS))

    def _run(self) -> None:
        rested, pause, answered, told = False, 0.0, False, ""
        while not self._closing.wait(pause):
            took = 0.0
            try:
                self._keep_worker()
                began = time.thread_time()
                if rested:
                    self._watch.update([*problems(self._store, self._settings), *of_duties(self._lags())])
                    told = ""
                else:
                    self._store.now()
                took, answered, rested = time.thread_time() - began, not rested, True
            except StoreError as error:  # the supervisor reports a store that is away
                if answered and str(error) != told:  # but not one that answers, and refuses this check
                    _log.error("problems can't be looked for, so none is alerted: %s", error)
                    told = str(error)
                rested = answered = False
            except Exception:
                _log.exception("the check for problems failed")
            pause = max(self._every * (0.8 + 0.4 * random()), SHARE * took)
        self._end_worker()

    def _keep_worker(self) -> None:
        if self._worker is not None and self._worker.failed:
            self._end_worker()
        if self._worker is None and self._new_worker is not None:
            new = self._new_worker()
            new.__enter__()
            self._worker = new

    def _end_worker(self) -> None:
        ending, self._worker = self._worker, None
        if ending is not None:
            try:
                ending.__exit__(None, None, None)
            except TenureError:
                _log.exception("the worker that delivers alerts failed")


def deliver_now(
    store: Store,
    settings: Settings,
    found: Iterable[Problem],
    open_store: Callable[[Settings], Store],
    open_notifier: Callable[[Settings, Store], Notifier],
    *,
    timeout: float = 30.0,
) -> int:
    """Report these problems and deliver pending messages, without a supervisor. Returns how many are still undelivered.

    The next call, or a supervisor with the same sinks, delivers what is left.
    """
    sinks = open_sinks(settings)
    notifier = open_notifier(settings, store)
    try:
        waiting = set(Watch(store, notifier, settings, sinks).update(found))
    finally:
        notifier.close()
    waiting |= _undelivered(store, sinks)
    if not waiting:
        return 0
    deadline = time.monotonic() + timeout
    with delivery_worker(store, settings, sinks, open_store, open_notifier):
        while waiting and time.monotonic() < deadline:
            time.sleep(0.05)
            store.promote()  # failed deliveries that are due again
            waiting &= _undelivered(store, sinks)
    return len(waiting)


def _undelivered(store: Store, sinks: Mapping[str, Sink]) -> set[str]:
    jobs = store.search(Filter(states=LIVE, queue=QUEUE), limit=1000, within=MOST_LOOKED_AT).jobs
    return {job.id for job in jobs if _sink_of(job) in sinks}


def _sink_of(job: JobView) -> str:
    """Empty if its payload can't be read here: a release that rotated keys encrypted it."""
    given: object = msgspec.json.decode(job.payload)
    return str(cast("dict[str, object]", given).get("sink", "")) if isinstance(given, dict) else ""


def _beginning(incident: str, sink: str) -> str:
    """The id of the job that tells this sink of the beginning: derived, so that the end's job finds it."""
    own = sha256(f"{incident}\n{sink}".encode()).hexdigest()
    return f"{incident[:14]}8{incident[15:18]}-8{own[:3]}-{own[3:15]}"  # in the order of the incidents


def _is_on_its_way(store: Store, job_id: str) -> bool:
    job = store.get(job_id)
    return job is not None and job.state in LIVE
