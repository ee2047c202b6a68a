"""`tenure signals …`: the signals of a job; send one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as replaced
from typing import Annotated

from cyclopts import App, Parameter

from tenure.cli.jobs import JobId
from tenure.cli.output import pairs, plain, print_error, show_json, table
from tenure.cli.shared import Shared, admin_of, app_of, print_result
from tenure.errors import InvalidOption
from tenure.operations.explain import stamp
from tenure.operations.signals import check_of

signals = App(name="signals", help="Signals: what a job was sent; send one.", help_epilogue="")
SHARED = Shared()
_HEADS = ("signal", "sent", "value")


@signals.command(name="list")
def list_(job_id: JobId, /, *, shared: Shared = SHARED) -> int:
    """List the signals of a job, and the one for which it waits."""
    with admin_of(shared) as admin:
        found = admin.signals.of(admin.jobs.named(job_id))
    if shared.json:
        show_json({**plain(found), "sent": [{**plain(each), "value": _value(each.value)} for each in found.sent]})
        return 0
    if found.waits_for is not None:
        until = "without a time-out" if found.until is None else f"until {stamp(found.until)}"
        pairs([("waits for", f"{found.waits_for}{', shared' if found.shared else ''}, {until}")])
    names = [f"{each.name} (shared)" if each.shared else each.name for each in found.sent]
    rows = [[name, stamp(each.sent_at), each.value] for name, each in zip(names, found.sent, strict=True)]
    table(_HEADS, rows, fixed=("sent",), below="value")
    if not found.sent:
        print_error("none was sent")
    return 0


def _value(text: str) -> object:
    import json

    return json.loads(text)


@signals.command
def send(
    *words: Annotated[str, Parameter(help="JOB NAME JSON; with --shared KEY only JSON.")],
    shared_key: Annotated[str | None, Parameter(name=["--shared"])] = None,
    replace: bool = False,
    shared: Shared = SHARED,
) -> int:
    """Send a signal to a job, for example: tenure signals send ID approved '{"by": "ada"}'.

    Parameters
    ----------
    shared_key
        Send it to all jobs that wait for this key, now or later.
    replace
        Also if it was sent before; a job that has read the former value keeps that.
    """
    wanted = ("JSON",) if shared_key is not None else ("JOB", "NAME", "JSON")
    if len(words) != len(wanted):
        raise InvalidOption(f"send: expected {' '.join(wanted)}, got {' '.join(words) or 'nothing'}")
    from tenure.app.processes import app_named

    shared = replaced(shared, app=app_named(shared.app))  # also from the settings: its codec has to seal the value
    if shared_key is not None:
        with admin_of(shared) as admin:
            says = admin.signals.send_shared(shared_key, words[0], replace=replace)
        return print_result(shared, {"shared": shared_key, "says": says}, says)
    job, name, value = words
    with admin_of(shared) as admin:
        job_id = admin.jobs.named(job)
        check = _check(shared, admin.jobs.get(job_id).task, name)
        says = admin.signals.send(job_id, name, value, replace=replace, check=check)
    return print_result(shared, {"job": job_id, "signal": name, "says": says}, says)


def _check(shared: Shared, task: str, name: str) -> Callable[[str], object] | None:
    """A check by what the task declares; None: no app is named, or it does not have the task."""
    return None if shared.app is None else check_of(app_of(shared, None).tasks.find(task), name)
