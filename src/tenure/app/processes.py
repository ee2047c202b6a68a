"""Starts the two kinds of process, supervisor and worker, and finds the app that a command names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import msgspec

from tenure import config
from tenure.app import backends
from tenure.app.app import Tenure
from tenure.config import Settings
from tenure.core.imports import import_named
from tenure.core.text import a
from tenure.errors import InvalidOption


def load_app(target: str | None = None) -> Tenure:
    """Import an app and all its tasks: `module`, `module:attribute`, `module:make()`, or a file's path.

    Without a target: TENURE_APP, else `app` of [tool.tenure] in the nearest pyproject.toml. The current folder comes
    first on the import path. Raises InvalidOption that says what is missing.
    """
    target = app_named(target)
    if target is None:
        raise InvalidOption(
            "no app: name its module (tenure worker shop.jobs), or set TENURE_APP, or set app in [tool.tenure] of "
            "pyproject.toml"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    name, _, attribute = target.partition(":")
    module = _import_file(Path(name)) if name.endswith(".py") else import_named(name, "app")
    app = _attribute(module, attribute) if attribute else _only_app(module)
    if not isinstance(app, Tenure):
        raise InvalidOption(f"app: {target} is {a(type(app).__name__)}, not a Tenure")
    _ = app.tasks
    return app


def app_named(target: str | None = None) -> str | None:
    """The app that `load_app` imports; None: no app is named."""
    return target or config.load().app or _app_of_pyproject() or None


def _app_of_pyproject() -> str | None:
    import tomllib

    for folder in (Path.cwd(), *Path.cwd().parents):
        path = folder / "pyproject.toml"
        if config.is_file(path):
            try:
                tool: Any = tomllib.loads(path.read_text("utf-8")).get("tool")
            except (ValueError, OSError) as error:  # not TOML, not UTF-8, not ours to read
                raise InvalidOption(f"{path} can't be read, so it names no app: {error}") from error
            tenure: Any = cast("dict[str, Any]", tool).get("tenure", {}) if isinstance(tool, dict) else {}
            if not isinstance(tenure, dict):
                raise InvalidOption(f"{path}: tool.tenure: expected a table, [tool.tenure], got {tenure!r}")
            found: Any = cast("dict[str, Any]", tenure).get("app")
            if found is not None and not isinstance(found, str):
                raise InvalidOption(f'{path}: [tool.tenure] app: expected "module:attribute", got {found!r}')
            return found
    return None


def _import_file(path: Path) -> ModuleType:
    spec = util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise InvalidOption(f"app: there is no file {path.absolute()}")
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == spec.origin:
        return known
    sys.path.insert(0, str(path.absolute().parent))
    module = sys.modules[path.stem] = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, attribute: str) -> object:
    name = attribute.removesuffix("()")
    found: Any = module
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise InvalidOption(f"app: {module.__name__} has no attribute {name!r}; {_apps_listed(module)}") from error
    return found() if name != attribute else found


def _only_app(module: ModuleType) -> Tenure:
    apps = _apps_in(module)
    if len({id(app) for app in apps.values()}) == 1:
        return next(iter(apps.values()))
    raise InvalidOption(f"app: {module.__name__}: {_apps_listed(module)}; write {module.__name__}:NAME")


def _apps_in(module: ModuleType) -> dict[str, Tenure]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Tenure)}


def _apps_listed(module: ModuleType) -> str:
    names = ", ".join(_apps_in(module))
    return f"its apps: {names}" if names else "it creates no Tenure app"


# ── The two kinds of process ───────────────────────────────────────────────────────────────────────────────────────

_FLAGS = ("url", "notifier", "queues", "concurrency", "workers", "grace", "metrics_listen")


def supervise(order: Mapping[str, Any], log: Callable[[Settings], None]) -> int:
    """Run as the supervisor of `tenure worker`. It imports no user code: its workers do."""
    from tenure.supervisor.supervisor import Options, Supervisor

    settings = config.load(_flags(order))
    log(settings)
    command = (sys.executable, "-m", "tenure.cli.child", msgspec.json.encode(order).decode())
    options = Options(
        command=command,
        workers=settings.workers,
        until_empty=bool(order.get("until_empty")),
        reload=bool(order.get("reload")),
        counts=settings.metrics_listen is not None,
    )
    supervisor = Supervisor(options, backends.connect, backends.open_notifier, backends.new_alarm, _print)
    if settings.metrics_listen is not None:
        from tenure.operations.metrics import Page, serve

        try:
            server = serve(settings.metrics_listen, Page(supervisor.tally, supervisor.vitals, backends.connect))
        except OSError as error:
            source = settings.sources["metrics_listen"]
            _print(
                f"{source}: cannot bind {settings.metrics_listen}: {error.strerror}; "
                "use another HOST:PORT, or leave it unset"
            )
            return 2
        with closing(server):
            _print(f"tenure: metrics at {server.url}/metrics, health at {server.url}/healthz")
            return supervisor.run()
    if settings.listen is not None:
        _print(
            f"tenure: no metrics are served: TENURE_LISTEN={settings.listen} is the dashboard's address; "
            "workers take --listen or TENURE_METRICS_LISTEN"
        )
    return supervisor.run()


def _print(text: str) -> None:
    with suppress(OSError, ValueError):  # its reader has ended, or it is closed: that ends no supervisor
        print(text, file=sys.stderr, flush=True)


def work(order: Mapping[str, Any], handles: Sequence[int], log: Callable[[Settings], None]) -> int:
    """Run as a worker process of the supervisor that passed these handles."""
    from tenure.worker.child import Handles, Loaded, run_child
    from tenure.worker.worker import queue_caps

    def load() -> Loaded:
        app = load_app(order.get("app"))
        app.configure(_flags(order))
        log(app.settings)
        app.program.check()
        backends.check_timers(app.program, app.settings, queue_caps(app.program, app.settings))
        return Loaded(app.program, app.settings, backends.connecting(app.codec), backends.open_notifier)

    return run_child(Handles(*handles), load)


def _flags(order: Mapping[str, Any]) -> dict[str, object]:
    return {name: order[name] for name in _FLAGS if order.get(name) is not None}
