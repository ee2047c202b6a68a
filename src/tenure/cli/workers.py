"""`tenure workers …`: which ones are alive, how others ended; drain and restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tenure.cli.output import ago, plain, print_error, show_json, table
from tenure.cli.shared import Shared, admin_of, confirm, print_result
from tenure.core.durations import seconds
from tenure.operations.workers import Stop, StopVerb, ending

if TYPE_CHECKING:
    from datetime import datetime

    from tenure.ports import WorkerView

workers = App(name="workers", help="Workers: which ones are alive; drain and restart.", help_epilogue="")
SHARED = Shared()
TAKEN_SECONDS = 5.0  #: how long a command waits until the supervisor begins
Id = Annotated[str, Parameter(help="The worker.")]
Grace = Annotated[
    str | None,
    Parameter(help="Running jobs that have not ended by then are handed back, uncharged. Default: the worker's own."),
]


@workers.default
@workers.command(name="list")
def workers_list(*, dead: Annotated[bool, Parameter(name="--dead")] = False, shared: Shared = SHARED) -> int:
    """List live workers.

    Parameters
    ----------
    dead
        Also list those that died within the last day.
    """
    with admin_of(shared) as admin:
        found, now, stops = admin.workers.all(dead=dead), admin.now(), admin.workers.stops()
    if shared.json:
        facts = [{"ended": ending(row), "stop": stops.get(row.identity.id)} for row in found]
        show_json([{**plain(row), **plain(fact)} for row, fact in zip(found, facts, strict=True)])
        return 0
    rows = [worker_row(row, now, stops.get(row.identity.id)) for row in found]
    table(WORKER_HEADS, rows, fixed=WORKER_NUMBERS, right=WORKER_NUMBERS, below="note")
    if not found and not dead:
        print_error("no worker is alive: start one with tenure worker")
    return 0


WORKER_HEADS = ("worker", "busy", "up", "seen", "queues", "note")
WORKER_NUMBERS = ("busy", "up", "seen")


def worker_row(row: WorkerView, now: datetime, stop: Stop | None = None) -> list[str]:
    """A worker's line in lists and in `top`."""
    note = row.note or (f"{row.identity.runner}" if row.identity.runner != "worker" else "")
    if (end := ending(row)) is not None:
        note = f"dead for {ago(row.died_at, now)}: {end}"
    elif row.expires_at < now:
        note = "its lease has ended"
    elif stop is not None:
        note = "; ".join(filter(None, (str(stop), row.note)))
    return [
        row.identity.id,
        f"{row.processing} of {row.identity.slots}",
        ago(row.started_at, now),
        ago(row.renewed_at, now),
        ",".join(row.identity.queues) or "all",
        note,
    ]


@workers.command
def drain(worker_id: Id, /, *, grace: Grace = None, shared: Shared = SHARED) -> int:
    """Let a worker finish its running jobs, claim nothing more, and stop. Nothing takes its place."""
    return _stop("drain", worker_id, grace, shared)


@workers.command
def restart(worker_id: Id, /, *, grace: Grace = None, shared: Shared = SHARED) -> int:
    """Drain a worker; then its supervisor starts another one in its place."""
    return _stop("restart", worker_id, grace, shared)


def _stop(verb: StopVerb, worker_id: str, grace: str | None, shared: Shared) -> int:
    limit = None if grace is None else seconds(grace, "--grace")
    with admin_of(shared) as admin:
        row = admin.workers.get(worker_id)
        jobs = f"{row.processing} running job{'' if row.processing == 1 else 's'}"
        confirm(shared, f"{verb} worker {worker_id} on {row.identity.host}, with {jobs}?")
        says = admin.workers.stop(worker_id, verb, grace=limit, within=TAKEN_SECONDS)
    return print_result(shared, {"worker": worker_id, "verb": verb, "says": says}, says)
