"""`tenure check`, `tenure migrate`, `tenure backup`: check, upgrade and copy the store."""

from __future__ import annotations

import os
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tenure.cli.output import progress_bar, show_json, table
from tenure.cli.shared import Shared, app_named, app_of, confirm, print_result, store_of
from tenure.config import Settings
from tenure.errors import InvalidOption, StoreAway, TenureError

if TYPE_CHECKING:
    from tenure.operations.checkup import Finding

SHARED = Shared()
_SYMPTOMS = 5  #: shown below their cause; --json has all


@runtime_checkable
class _BacksUp(Protocol):
    """A store that can copy itself while jobs run. (A database server has its own tools.)"""

    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> int: ...


def check(
    app: str | None = None,
    /,
    *,
    config: bool = False,
    metrics: bool = False,
    alert: bool = False,
    shared: Shared = SHARED,
) -> int:
    """Check the store, its workers and its jobs. Exits with 1 if something is wrong.

    Parameters
    ----------
    app
        Also check that this app's tasks can be imported, and use its store: module[:attribute].
    config
        Show each setting, its value, and where it came from.
    metrics
        Print the metrics of the store instead, for Prometheus's textfile collector; with --json as JSON.
    alert
        Notify the sinks in TENURE_ALERTS of new and resolved problems, each once. From a crontab on another machine
        this also detects that no supervisor is running at all.
    """
    wanted = [option for option, on in (("--config", config), ("--metrics", metrics), ("--alert", alert)) if on]
    if wanted[1:]:
        raise InvalidOption(f"{' and '.join(wanted)}: expected one of them at a time; call the command for each")
    app = app_named(shared, app)
    jobs = None if app is None else app_of(shared, app)
    settings = shared.settings() if jobs is None else jobs.settings
    if config:
        return _config(settings, shared)
    if metrics:
        return _metrics(settings, shared)
    from tenure.operations.checkup import Finding

    findings = _store_findings(settings, alert=alert)
    if jobs is not None:
        findings.append(Finding(True, "app", f"{app} has the tasks {', '.join(sorted(jobs.tasks.names))}"))
    if shared.json:
        show_json(findings)
    else:
        table(("", "what", "says"), list(_rows(findings)), fixed=("", "what", "says"))
    return 0 if all(found.ok for found in findings) else 1


def _rows(findings: Iterable[Finding]) -> Iterator[list[str]]:
    """A row for each finding, symptoms below their cause; if a cause has many, only the first ones."""
    for cause, some in groupby(findings, key=lambda found: found.cause):
        listed = list(some)
        arrow = "↳ " if cause else ""
        for found in listed[: _SYMPTOMS if cause else None]:
            yield ["ok" if found.ok else "WRONG", f"{arrow}{found.what}", found.says]
        if cause and (more := listed[_SYMPTOMS:]):
            counts = Counter(found.what for found in more)
            yield ["WRONG", "↳ …", f"{len(more)} more: " + ", ".join(f"{n} {what}" for what, n in counts.items())]


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
    from tenure.app.backends import connect, open_notifier, shown
    from tenure.operations import checkup

    store = store_of(settings)
    try:
        store.open()
    except StoreAway:
        raise
    except TenureError as error:
        return [checkup.Finding(False, "store", str(error))]
    try:
        return [
            *checkup.examine(store, settings, open_notifier),
            *checkup.troubles(shown(store), settings, connect, open_notifier, alert=alert),
        ]
    finally:
        store.close()


def migrate(*, shared: Shared = SHARED) -> int:
    """Bring the store's schema up to date. Safe to run at any time, also concurrently."""
    store = store_of(shared.settings(), may_create=True)
    version = store.migrate()
    return print_result(shared, {"store": store.url, "version": version}, f"{store.url} has schema version {version}")


def backup(file: Path, /, *, shared: Shared = SHARED) -> int:
    """Copy an SQLite store into a new file while jobs run.

    Parameters
    ----------
    file
        The file to write.
    """
    store = store_of(shared.settings())
    if not isinstance(store, _BacksUp):
        raise InvalidOption(f"{store.url} can't copy itself: use the tools of its server (docs/operations.md, Backups)")
    file = _target(file, Path(os.path.realpath(store.url.removeprefix("sqlite:///"))))
    if file.exists():
        confirm(shared, f"{file} exists. Overwrite it?")
    store.open()
    try:
        with progress_bar("pages") as step:
            size = store.backup(str(file), step)
    finally:
        store.close()
    copied = {"store": store.url, "file": str(file), "bytes": size}
    return print_result(shared, copied, f"{store.url} copied to {file} ({size / 1024:,.0f} KiB)")


def _target(file: Path, store: Path) -> Path:
    """The file that a copy to this path is written to: of a link, the one that it names. Raises InvalidOption."""
    target = Path(os.path.realpath(file))
    if target in {Path(f"{store}{suffix}") for suffix in ("", "-wal", "-shm", "-journal")}:
        raise InvalidOption(f"{file} is the store itself: name another file")
    try:
        if not target.parent.is_dir():
            raise InvalidOption(f"{target.parent} is not a folder: create it first")
        kind = target.stat().st_mode
    except FileNotFoundError:
        return target
    except OSError as error:
        raise InvalidOption(f"{file} can't be reached: {error.strerror}. Name another file") from error
    if stat.S_ISDIR(kind):
        raise InvalidOption(f"{file} is a folder: name a file in it")
    if not stat.S_ISREG(kind):
        raise InvalidOption(f"{file} is a device, a pipe or a socket: expected the name of a file")
    return target
