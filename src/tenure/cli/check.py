"""`tenure check`, `tenure migrate`, `tenure backup`: is the store well, is it up to date, and a copy of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tenure.cli.output import progress_bar, show_json, table
from tenure.cli.shared import Shared, app_of, confirm, store_of, told
from tenure.config import Settings
from tenure.errors import InvalidOption, StoreAway, TenureError

if TYPE_CHECKING:
    from tenure.operations.checkup import Finding

SHARED = Shared()


@runtime_checkable
class _BacksUp(Protocol):
    """A store that can copy itself while work goes on. (A database server has its own tools.)"""

    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> None: ...


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
    from tenure.operations.checkup import Finding

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
    from tenure.backends import connect, open_notifier
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
            *checkup.troubles(store, settings, connect, open_notifier, alert=alert),
        ]
    finally:
        store.close()


def migrate(*, shared: Shared = SHARED) -> int:
    """Bring the store's schema up to date. Safe to run at any time, and by many at once."""
    store = store_of(shared.settings(), may_create=True)
    version = store.migrate()
    return told(shared, {"store": store.url, "version": version}, f"{store.url} has schema version {version}")


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
    copied = {"store": store.url, "file": str(file.resolve()), "bytes": size}
    return told(shared, copied, f"{store.url} is copied to {file.resolve()} ({size / 1024:,.0f} KiB)")
