"""`tenure enqueue` and `tenure tasks`: store a job from a shell, and list the tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from cyclopts import Parameter

from tenure.cli.output import print_error, show_json, table
from tenure.cli.shared import Shared, app_of, awaited, print_result, store_of, wait_limit
from tenure.core.durations import spell
from tenure.errors import InvalidArguments, InvalidOption
from tenure.tasks.arguments import Stars
from tenure.tasks.named import Using, elsewhere, with_options

if TYPE_CHECKING:
    from tenure.app.app import Tenure
    from tenure.tasks.task import Task

SHARED = Shared()
_ARGUMENT = re.compile(r"([^\W\d]\w*)(:?=)(.*)", re.DOTALL)


def enqueue(
    task: str,
    /,
    *arguments: str,
    delay: str | None = None,
    at: str | None = None,
    queue: Annotated[str | None, Parameter(name=["--queue", "-q"])] = None,
    priority: int | None = None,
    unique: str | None = None,
    unchecked: bool = False,
    wait: bool = False,
    timeout: str | None = None,
    shared: Shared = SHARED,
) -> int:
    """Store a job and print its id. Without --app: TENURE_APP, else app in [tool.tenure] of pyproject.toml.

    Parameters
    ----------
    task
        The name of the task.
    arguments
        name=text or name:=JSON, for example: url=https://example.org depth:=3
    delay
        Run it after this delay: 90s, 5m, 1h30m.
    at
        Run it at this time: 2030-01-31T06:00:00Z. A time zone is required.
    queue
        A queue other than the task's own.
    priority
        From -100 to 100; higher runs first.
    unique
        Unique key: at most one live job of this task has it. If there is one, its id is printed.
    unchecked
        Store it even if no worker has registered this task. Without the app, the name and the queue are otherwise
        checked against what workers have registered, and every name=text is text: write depth:=3 for a number.
    wait
        Wait for the result and print it. The job's id goes to standard error at once.
    timeout
        How long to wait at most.
    """
    limit = wait_limit(wait, timeout)
    options: Using = {
        "delay": delay,
        "run_at": None if at is None else _instant(at),
        "queue": queue,
        "priority": priority,
        "unique": unique,
    }
    with _app(shared, may_create=unchecked) as jobs:
        known = jobs.tasks.find(task)
        if known is None and len(jobs.tasks) and not unchecked:
            known = jobs.tasks[task]
        if known is None:
            words = read_arguments(elsewhere(jobs, task), arguments)
            handle = jobs.enqueue(task, words, unchecked=unchecked, **options)
        else:
            handle = with_options(known, options).enqueue(**read_arguments(known, arguments))
            if queue is not None:
                _warn_of_queue(jobs, queue)
        stored = {"id": str(handle.id), "created": handle.created}
        if not wait:
            return print_result(shared, stored, str(handle.id))
        found = awaited(shared, stored, str(handle.id), limit, lambda wait: jobs.client().result(str(handle.id), wait))
        result = Stars(jobs.settings.redact).hide(found)
    return print_result(shared, {**stored, "state": "completed", "result": json.loads(result)}, result)


def _warn_of_queue(jobs: Tenure, queue: str) -> None:
    from tenure.operations.admin import Admin
    from tenure.operations.workers import serves

    named = {task.queue for task in jobs.tasks}
    if queue in named:
        return
    client = jobs.client()
    workers = Admin(client.store, client.notifier, jobs.settings).workers.all()
    if not any(serves(queue, row) for row in workers):
        print_error(
            f"no task names the queue {queue}, and no live worker serves it: the job waits until one does. "
            f"The tasks name {', '.join(sorted(named))}"
        )


def _app(shared: Shared, *, may_create: bool) -> Tenure:
    """The app with its tasks; if none is named anywhere, one without tasks, for those that workers have registered."""
    from tenure.app.app import Tenure
    from tenure.app.processes import app_named

    if app_named(shared.app) is not None:
        return app_of(shared, None)
    store_of(shared.settings(), may_create=may_create)
    app = Tenure()
    app.configure({"url": shared.url})
    return app


def _instant(text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.utcoffset() is None:
        raise InvalidOption(f"--at: expected a time with its zone like 2030-01-31T06:00:00Z, got {text!r}")
    return instant


# ── Arguments ───────────────────────────────────────────────────────────────────────────────────────────────────


def read_arguments(task: Task[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """`n=5` is parsed by the task's annotation, `n:=5` as JSON. The task itself validates the rest."""
    task.resolve()
    found: dict[str, Any] = {}
    hints = get_type_hints(task.fn)
    for word in words:
        match = _ARGUMENT.fullmatch(word)
        if match is None:
            raise InvalidArguments(f"{task.name}: expected name=text or name:=JSON, got {word!r}")
        name, sign, text = match.groups()
        if name in found:
            raise InvalidArguments(f"{task.name}: argument {name!r} is given twice")
        found[name] = _json(task, name, text) if sign == ":=" else _lenient(text, hints.get(name, str))
    return found


def _json(task: Task[..., Any], name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidArguments(f"{task.name}.{name}: expected JSON after :=, got {text!r} ({error})") from error


def _lenient(text: str, kind: Any) -> Any:
    import msgspec

    try:
        return msgspec.convert(text, kind, strict=False)
    except (msgspec.ValidationError, TypeError):
        return text  # the task's validation reports what it expected


# ── Listing ─────────────────────────────────────────────────────────────────────────────────────────────────────


def tasks(app: str | None = None, /, *, shared: Shared = SHARED) -> int:
    """List the tasks of an app.

    Parameters
    ----------
    app
        Where the tasks are: module[:attribute]. Default: TENURE_APP, else app in [tool.tenure] of pyproject.toml.
    """
    found = sorted(app_of(shared, app).tasks, key=lambda task: task.name)
    if shared.json:
        show_json([_described(task) for task in found])
        return 0
    rows = [
        [task.name, task.queue, str(task.arguments), _retry(task), _length(task.timeout), task.place] for task in found
    ]
    table(("task", "queue", "takes", "retry", "timeout", "where"), rows, fixed=("task", "queue", "timeout"))
    return 0


def _described(task: Task[..., Any]) -> dict[str, object]:
    return {
        "name": task.name,
        "aliases": list(task.aliases),
        "queue": task.queue,
        "priority": task.priority,
        "takes": str(task.arguments),
        "max_failures": task.retry.max_failures,
        "max_crashes": task.max_crashes,
        "timeout": task.timeout,
        "stale_after": task.stale_after,
        "isolation": task.isolation,
        "unique": task.unique,
        "where": task.place,
    }


def _retry(task: Task[..., Any]) -> str:
    retry = task.retry
    return "no" if retry.max_failures == 1 else f"{retry.max_failures}, {spell(retry.base)} to {spell(retry.cap)}"


def _length(limit: float | None) -> str:
    return "" if limit is None else spell(limit)
