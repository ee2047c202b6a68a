"""The findings of `tenure check`: whether the store answers, its backlog, its workers, and current problems."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple, Protocol, runtime_checkable

from tenure.config import Settings, redact
from tenure.core.durations import spell
from tenure.core.lifecycle import State
from tenure.operations.alerts import deliver_now
from tenure.operations.problems import problems
from tenure.operations.workers import Workforce, runs_user_jobs, stalls
from tenure.ports import ANY, Notifier, QueueView, Store

_MOST_COUNTED = 1000
_LONG_QUEUED = 3600.0
_EAR_SECONDS = 7.0  #: a pooler that drops rings, or an address that swallows packets, is found after 5
_LONG_READ = 1.0


class Finding(NamedTuple):
    ok: bool
    what: str
    says: str
    cause: str = ""  #: of a problem: the key of the one that causes it


@runtime_checkable
class _ChecksItself(Protocol):
    """A store that can check its file for damage."""

    def damage(self) -> list[str]: ...


def examine(store: Store, settings: Settings, open_notifier: Callable[[Settings, Store], Notifier]) -> list[Finding]:
    """All findings about an open store, except the problems of its jobs."""
    return [
        Finding(True, "store", store.url),
        _latency(store),
        _notifier(settings, open_notifier(settings, store)),
        *_damage(store),
        *_work(store),
    ]


def troubles(
    store: Store,
    settings: Settings,
    open_store: Callable[[Settings], Store],
    open_notifier: Callable[[Settings, Store], Notifier],
    *,
    alert: bool,
) -> list[Finding]:
    """What is wrong right now, causes first; with `alert` the sinks are notified first."""
    found = problems(store, settings)
    findings = [Finding(False, each.kind, each.told, each.cause) for each in found]
    if alert:
        left = deliver_now(store, settings, found, open_store, open_notifier)
        says = f"{left} messages are not delivered yet: the next `tenure check --alert`, or a supervisor, retries"
        findings.append(Finding(not left, "alerts", says if left else "all messages are delivered"))
    return findings


def _latency(store: Store) -> Finding:
    """The best of a few reads: the first may have to connect, or to read from a cold disk."""
    took: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        store.paused()
        took.append(time.perf_counter() - began)
    best = min(took) * 1000
    says = f"{best:.2f} ms" if best >= 0.01 else "less than 0.01 ms"
    return Finding(best < _LONG_READ * 1000, "latency", f"the store answers a small read in {says}")


def _notifier(settings: Settings, notifier: Notifier) -> Finding:
    """Reported, but not as a fault: without notifications jobs start later, and none is lost."""
    with closing(notifier), closing(notifier.listen()) as listener:
        polls = listener.fileno() is None  # then there is nothing to prove
        deadline = time.monotonic() + _EAR_SECONDS
        while not polls and ANY in listener.drain() and not notifier.problem():  # it only reports its own polls
            if time.monotonic() > deadline:
                return Finding(True, "notifier", f"polling: no ring has arrived within {spell(_EAR_SECONDS)}")
            time.sleep(0.02)
        problem = notifier.problem()
    named = redact(settings.notifier)
    return Finding(True, "notifier", f"polling: {redact(problem)}" if problem else f"{named}: no problem")


def _damage(store: Store) -> list[Finding]:
    if not isinstance(store, _ChecksItself):
        return []
    found = store.damage()
    return [Finding(not found, "integrity", found[0] if found else "no damage found")]


def _work(store: Store) -> list[Finding]:
    rows, queues, counts = list(filter(runs_user_jobs, store.workers())), store.queues(), store.counts()
    workers, waiting = Workforce.of(rows, store.now()), counts.get(State.QUEUED, 0)
    oldest = max((queue.oldest_queued or 0.0 for queue in queues if queue.paused_at is None), default=0.0)
    paused = [queue.name for queue in queues if queue.paused_at is not None]
    findings = [
        Finding(
            bool(workers.alive) or not waiting,
            "workers",
            f"{workers.alive} alive with {workers.slots} slots"
            if workers.alive or not waiting
            else "none is alive, and jobs wait: start one with tenure worker",
        ),
        Finding(
            oldest < _LONG_QUEUED,
            "queued",
            f"{waiting:,} jobs, the oldest due for {spell(oldest)}" if waiting else "no job is waiting",
        ),
        _dead_letters(store) if counts.get(State.DEAD) else Finding(True, "dead letters", "none"),
        *(Finding(False, "stall", sentence) for sentence in stalls(rows)),
    ]
    findings += [
        Finding(True, "queue", f"{queue.name}: {_queue(queue)}") for queue in queues if queue.oldest_queued is not None
    ]
    if paused:
        findings.append(Finding(True, "paused", ", ".join(paused)))
    return findings


def _dead_letters(store: Store) -> Finding:
    """Without those of guards: their schedules report them, and a later successful run clears them."""
    found = store.latest_ended(State.DEAD, limit=_MOST_COUNTED)
    count = f"{len(found):,}{' or more' if len(found) == _MOST_COUNTED else ''}"
    return Finding(not found, "dead letters", f"{count}: tenure dead list" if found else "none")


def _queue(queue: QueueView) -> str:
    running, waiting = queue.counts.get(State.PROCESSING, 0), queue.counts.get(State.QUEUED, 0)
    oldest = f"the oldest due for {spell(queue.oldest_queued or 0.0)}"
    return f"{waiting:,} queued, {oldest}, {running:,} running{', paused' if queue.paused_at else ''}"
