"""`tenure check`, `tenure migrate`, `tenure backup`: is the store well, is it up to date, and a copy of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from tenure.cli.output import progress_bar, say, show_json, table
from tenure.cli.shared import Shared, app_of, confirm, store_of
from tenure.config import Settings, redact
from tenure.core.durations import spell
from tenure.core.lifecycle import State
from tenure.errors import InvalidOption, StoreAway, TenureError
from tenure.ports import Filter, QueueView, Store

SHARED = Shared()
_MOST_COUNTED = 1000
_LONG_QUEUED = 3600.0
_EAR_SECONDS = 2.0
_LONG_READ = 1.0


class Finding(NamedTuple):
    ok: bool
    what: str
    says: str


@runtime_checkable
class _BacksUp(Protocol):
    """A store that can copy itself while work goes on. (A database server has its own tools.)"""

    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> None: ...


@runtime_checkable
class _ChecksItself(Protocol):
    """A store that can look for damage in its file."""

    def damage(self) -> list[str]: ...


def check(
    app: str | None = None,
    /,
    *,
    config: bool = False,
    metrics: bool = False,
    alert: bool = False,
    shared: Shared = SHARED,
) -> int:
    """Is everything well? Ends with 1 if not.

    Parameters
    ----------
    app
        Also look whether this app's tasks load, and at its store: module[:attribute].
    config
        Show each setting, its value, and where it came from.
    metrics
        Print the metrics of the store instead, for Prometheus's textfile collector; with --json as JSON.
    alert
        Tell those in TENURE_ALERTS what is wrong, once, and what no longer is: a crontab line on another machine
        notices that no supervisor runs at all.
    """
    jobs = None if app is None else app_of(shared, app)
    settings = shared.settings() if jobs is None else jobs.settings
    if config:
        return _config(settings, shared)
    if metrics:
        return _metrics(settings, shared)
    findings = _store_findings(settings, alert=alert)
    if jobs is not None:
        findings.append(Finding(True, "app", f"{app} has the tasks {', '.join(sorted(jobs.tasks.names))}"))
    if shared.json:
        show_json(findings)
    else:
        rows = [["ok" if found.ok else "WRONG", found.what, found.says] for found in findings]
        table(("", "what", "says"), rows, fixed=("", "what", "says"))
    return 0 if all(found.ok for found in findings) else 1


def _config(settings: Settings, shared: Shared) -> int:
    shown = settings.shown()
    if shared.json:
        show_json({row.name: {"value": value, "source": source} for row, value, source in shown})
    else:
        table(("setting", "value", "source"), [[row.name, value, source] for row, value, source in shown])
    return 0


def _metrics(settings: Settings, shared: Shared) -> int:
    from tenure.operations.admin import metrics_samples, metrics_text

    store = store_of(settings)
    store.open()
    try:
        if shared.json:
            show_json(metrics_samples(store))
        else:
            sys.stdout.write(metrics_text(store))
    finally:
        store.close()
    return 0


def _store_findings(settings: Settings, *, alert: bool) -> list[Finding]:
    store = store_of(settings)
    try:
        store.open()
    except StoreAway:
        raise
    except TenureError as error:
        return [Finding(False, "store", str(error))]
    try:
        findings = [
            Finding(True, "store", store.url),
            _latency(store),
            _notifier(settings, store),
            *_damage(store),
            *_work(store),
            *_problems(store, settings, alert=alert),
        ]
    finally:
        store.close()
    return findings


def _latency(store: Store) -> Finding:
    """The best of a few: the first one may have to connect, or to read from a cold disk."""
    took: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        store.paused()
        took.append(time.perf_counter() - began)
    return Finding(min(took) < _LONG_READ, "latency", f"the store answers a small read in {min(took) * 1000:.2f} ms")


def _notifier(settings: Settings, store: Store) -> Finding:
    """Told, and no fault: without rings jobs start later, and none is lost."""
    from tenure.backends import open_notifier

    notifier = open_notifier(settings, store)
    try:
        listener = notifier.listen()
        deadline = time.monotonic() + _EAR_SECONDS
        while listener.drain() and not notifier.problem() and time.monotonic() < deadline:
            time.sleep(0.02)  # as long as it rings by itself it has not heard, and so not proved, anything
        problem = notifier.problem()
        listener.close()
    finally:
        notifier.close()
    named = redact(settings.notifier)
    return Finding(True, "notifier", f"polling: {redact(problem)}" if problem else f"{named}: no problem")


def _damage(store: Store) -> list[Finding]:
    if not isinstance(store, _ChecksItself):
        return []
    found = store.damage()
    return [Finding(not found, "integrity", found[0] if found else "no damage found")]


def _dead_letters(store: Store) -> Finding:
    """Those of guards are told by their schedules, where a run that succeeds makes up for them."""
    found = store.search(Filter(states=frozenset({State.DEAD}), guards=False), limit=_MOST_COUNTED)
    count = f"{len(found.jobs):,}{' or more' if found.cursor else ''}"
    return Finding(not found.jobs, "dead letters", f"{count}: tenure dead list" if found.jobs else "none")


def _work(store: Store) -> list[Finding]:
    from tenure.operations.alerts import works_for_all

    alive, queues, counts = list(filter(works_for_all, store.workers())), store.queues(), store.counts()
    waiting = counts.get(State.QUEUED, 0)
    oldest = max((queue.oldest_queued or 0.0 for queue in queues if queue.paused_at is None), default=0.0)
    slots = sum(row.identity.slots for row in alive)
    stalled = [f"{row.identity.id}: {row.note}" for row in alive if row.note]
    paused = [queue.name for queue in queues if queue.paused_at is not None]
    findings = [
        Finding(bool(alive) or not waiting, "workers", f"{len(alive)} alive with {slots} slots"),
        Finding(
            oldest < _LONG_QUEUED,
            "queued",
            f"{waiting:,} jobs, the oldest due for {spell(oldest)}" if waiting else "no job waits",
        ),
        _dead_letters(store) if counts.get(State.DEAD) else Finding(True, "dead letters", "none"),
        *(Finding(False, "stall", sentence) for sentence in stalled),
    ]
    findings += [
        Finding(True, "queue", f"{queue.name}: {_queue(queue)}") for queue in queues if queue.oldest_queued is not None
    ]
    if paused:
        findings.append(Finding(True, "paused", ", ".join(paused)))
    return findings


def _problems(store: Store, settings: Settings, *, alert: bool) -> list[Finding]:
    from tenure.backends import open_notifier
    from tenure.operations.alerts import problems, tell_now

    found = problems(store, settings)
    findings = [Finding(False, each.kind, each.says) for each in found]
    if alert:
        left = tell_now(store, settings, found, _opened, open_notifier)
        says = f"{left} messages are not delivered yet: the next `tenure check --alert`, or a supervisor, tries again"
        findings.append(Finding(not left, "alerts", says if left else "nobody waits for a message"))
    return findings


def _opened(settings: Settings) -> Store:
    store = store_of(settings)
    store.open()
    return store


def _queue(queue: QueueView) -> str:
    running, waiting = queue.counts.get(State.PROCESSING, 0), queue.counts.get(State.QUEUED, 0)
    oldest = f"the oldest due for {spell(queue.oldest_queued or 0.0)}"
    return f"{waiting:,} queued, {oldest}, {running:,} running{', paused' if queue.paused_at else ''}"


def migrate(*, shared: Shared = SHARED) -> int:
    """Bring the store's schema up to date. Safe to run at any time, and by many at once."""
    store = store_of(shared.settings(), may_create=True)
    version = store.migrate()
    if shared.json:
        show_json({"store": store.url, "version": version})
    else:
        say(f"{store.url} has schema version {version}")
    return 0


def backup(file: Path, /, *, shared: Shared = SHARED) -> int:
    """Copy an SQLite store into a new file while work goes on.

    Parameters
    ----------
    file
        Where the copy goes.
    """
    store = store_of(shared.settings())
    if not isinstance(store, _BacksUp):
        raise InvalidOption(f"{store.url} can't copy itself: use the tools of its server (docs/operations.md, Backups)")
    if file.resolve() == Path(store.url.removeprefix("sqlite:///")).resolve():
        raise InvalidOption(f"{file} is the store itself: name another file")
    if not file.resolve().parent.is_dir():
        raise InvalidOption(f"{file.resolve().parent} is not a folder: create it first")
    if file.exists():
        confirm(shared, f"{file} exists. Overwrite it?")
    # A copy that breaks off must not leave half a file under the good name.
    part = file.with_name(f"{file.name}.part")
    store.open()
    try:
        with progress_bar("pages") as step:
            store.backup(str(part), step)
        part.replace(file)
    finally:
        store.close()
        part.unlink(missing_ok=True)
    size = file.stat().st_size
    if shared.json:
        show_json({"store": store.url, "file": str(file.resolve()), "bytes": size})
    else:
        say(f"{store.url} is copied to {file.resolve()} ({size / 1024:,.0f} KiB)")
    return 0
