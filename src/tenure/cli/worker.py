"""`tenure worker`: validate the options, then become the supervisor."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

from cyclopts import Parameter

from tenure.cli.output import print_error
from tenure.cli.shared import Shared, app_named, app_of

if TYPE_CHECKING:
    from tenure.app.app import Tenure

SHARED = Shared()


def warn_of_queues(app: Tenure) -> None:
    """Warn if the worker is to serve queues that no task names: usually a misspelt name."""
    if warning := app.program.unnamed(app.settings.queues):
        print_error(f"tenure: {warning}")


def worker(
    app: str | None = None,
    /,
    *,
    queues: Annotated[list[str] | None, Parameter(name=["--queue", "-q"])] = None,
    concurrency: Annotated[int | None, Parameter(name=["--concurrency", "-c"])] = None,
    workers: Annotated[int | None, Parameter(name=["--workers", "-w"])] = None,
    grace: str | None = None,
    notifier: str | None = None,
    until_empty: bool = False,
    reload: bool = False,
    listen: str | None = None,
    shared: Shared = SHARED,
) -> NoReturn:
    """Run jobs until told to stop: the first Ctrl-C or SIGTERM lets running jobs finish, the second does not.

    Parameters
    ----------
    app
        Where the tasks are: module[:attribute]. Default: TENURE_APP, else app in [tool.tenure] of pyproject.toml.
    queues
        Work on this queue, NAME or NAME=SLOTS (at most this many slots); repeatable. Default: all queues of the tasks.
    concurrency
        Slots of a worker: how many jobs it runs at once.
    workers
        Worker processes.
    grace
        How long running jobs may continue after the first signal.
    notifier
        The doorbell: auto (the store's own), poll, or nats://host:port.
    until_empty
        Stop when no job is left to run, or due within a minute.
    reload
        Restart the workers when the code changes: for development.
    listen
        Serve /metrics (for Prometheus) and /healthz at this HOST:PORT. Default: TENURE_METRICS_LISTEN, else nowhere.
    """
    given = {
        "queues": queues or None,
        "concurrency": concurrency,
        "workers": workers,
        "grace": grace,
        "notifier": notifier,
        "metrics_listen": listen,
    }
    flags = {name: value for name, value in given.items() if value is not None}
    spec = app_named(shared, app) or shared.settings(**flags).app
    # Imported here only to validate: the supervisor starts as a fresh, small process without the user's code.
    warn_of_queues(app_of(shared, spec, **flags))
    order = {"app": spec, "url": shared.url, **flags, "until_empty": until_empty, "reload": reload}
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "tenure.cli.supervise", json.dumps(order)])
