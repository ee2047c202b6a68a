"""What to write instead of names from other job queues."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from tenure.errors import InvalidOption

T = TypeVar("T")

#: The options of `task.using`.
USING = (
    *("queue", "priority", "delay", "run_at", "expires", "unique", "retry", "timeout", "meta", "id", "tx", "after"),
    "limit",
)
#: Options of Celery, RQ, Dramatiq, Huey and arq, and what does the same here.
_OPTIONS = {
    "delay": 'delay="5s"',
    "expires": 'expires="1h"',
    "countdown": 'delay="5s"',
    "delay_seconds": 'delay="5s"',
    "defer_by": 'delay="5s"',
    "eta": "run_at=…",
    "schedule": "run_at=…",
    "scheduled_at": "run_at=…",
    "defer_until": "run_at=…",
    "ttl": 'expires="1h"',
    "max_retries": "retry=Retry(…), which counts failures: one more than retries",
    "retries": "retry=Retry(…), which counts failures: one more than retries",
    "max_tries": "retry=Retry(…)",
    "max_attempts": "retry=Retry(…)",
    "attempts": "retry=Retry(…)",
    "autoretry_for": "retry=Retry(on=…)",
    "retry_on": "retry=Retry(on=…)",
    "retry_backoff": "retry=Retry(base=…)",
    "retry_backoff_max": "retry=Retry(cap=…)",
    "default_retry_delay": "retry=Retry(base=…)",
    "min_backoff": "retry=Retry(base=…)",
    "max_backoff": "retry=Retry(cap=…)",
    "time_limit": "timeout=…",
    "soft_time_limit": "timeout=…",
    "job_timeout": "timeout=…",
    "task_id": "id=…",
    "job_id": "id=…",
    "queue_name": "queue=…",
    "routing_key": "queue=…",
    "headers": "meta=…",
    "rate_limit": 'limit=jobs.limit("mails", rate="100/1m")',
    "bind": "a first parameter job: Job",
    "broker": 'Tenure("redis://…")',
    "broker_url": 'Tenure("redis://…")',
    **dict.fromkeys(("threads", "slots", "max_jobs", "max_workers", "pool_size", "worker_threads"), "concurrency=…"),
}
#: Options that have no counterpart here, and why.
_NEEDLESS = {
    "ignore_result": "results are always kept, for the setting `keep`; what returns None keeps none",
    **dict.fromkeys(
        ("acks_late", "reject_on_worker_lost", "task_acks_late"),
        "it is always so: a job is its worker's until it has ended, and another worker's if that one dies",
    ),
    **dict.fromkeys(
        ("link", "on_success", "depends_on"), "write after=[handle], or a flow: with jobs.flow(…) as flow:"
    ),
    **dict.fromkeys(("link_error", "on_failure"), "catch the error in the handler, or set TENURE_ALERTS"),
    **dict.fromkeys(("backend", "result_backend"), "the store of the jobs keeps their results"),
}
_RULE = 'the expression first, without a name: jobs.schedule("0 6 * * *")'
#: Options of a schedule there, and what does the same here.
_TIMES = {
    **dict.fromkeys(("cron", "crontab", "trigger", "month", "day", "hour", "minute", "day_of_week"), _RULE),
    **dict.fromkeys(("weeks", "days", "hours", "minutes", "seconds", "interval"), 'every="10m"'),
    **dict.fromkeys(("timezone", "zone"), "tz=…"),
    **dict.fromkeys(("args", "kwargs", "options"), "jobs.schedule(…)(task.bind(…))"),
    "coalesce": 'catch_up="latest"',
    "max_instances": 'overlap="skip"',
    "misfire_grace_time": "expires=…",
}
#: Methods of tasks there, and what does the same here.
TASK = {
    "delay": "{0.name}.enqueue(…)",
    "apply_async": "{0.name}.enqueue(…), with options: {0.name}.using(…).enqueue(…)",
    "send": "{0.name}.enqueue(…)",
    "send_with_options": "{0.name}.using(…).enqueue(…)",
    "schedule": '{0.name}.using(delay="5s").enqueue(…)',
    "enqueue_in": '{0.name}.using(delay="5s").enqueue(…)',
    "enqueue_at": "{0.name}.using(run_at=…).enqueue(…)",
    "defer": "{0.name}.enqueue(…)",
    "kiq": "{0.name}.enqueue(…)",
    "kicker": "{0.name}.using(…)",
    "configure": "{0.name}.using(…)",
    "apply": "{0.name}.call(…)",
    "run": "{0.name}.call(…)",
    "s": "{0.name}.bind(…)",
    "si": "{0.name}.bind(…)",
    "signature": "{0.name}.bind(…)",
    "delay_on_commit": "{0.name}.using(tx=…).enqueue(…)",
    **dict.fromkeys(("map", "starmap", "chunks"), "jobs.enqueue_many({0.name}.bind(n) for n in …)"),
}
#: The same for the handle of a job, …
HANDLE = {
    **dict.fromkeys(("get", "get_result", "return_value", "wait", "join"), 'handle.result("10s")'),
    **dict.fromkeys(("state", "ready", "successful", "failed", "is_finished", "is_failed"), "handle.status().state"),
    **dict.fromkeys(("info", "refresh"), "handle.status()"),
    **dict.fromkeys(("revoke", "abort"), "handle.cancel()"),
}
#: … for the running job, …
JOB = {
    "retry": 'raise Fail("why", retry_in="5s"), or raise Snooze("5s"), which is charged to nothing',
    "request": "job.id, job.attempt, job.meta",
    **dict.fromkeys(("update_state", "save_meta", "set_progress", "update_progress"), "job.progress(0.5, message=…)"),
    **dict.fromkeys(("is_aborted", "is_cancelled"), "job.stopping"),
}
#: … and for the app.
APP = {
    "send_task": 'jobs.enqueue("name", {{"argument": 1}})',
    **dict.fromkeys(("shared_task", "actor", "job", "function"), "@jobs.task"),
    **dict.fromkeys(
        ("periodic_task", "add_periodic_task", "cron", "scheduled_job", "add_job"), '@jobs.schedule("0 6 * * *")'
    ),
    "AsyncResult": "jobs.handle(id)",
    "autodiscover_tasks": 'Tenure(imports=["shop.tasks"])',
    "middleware": "@jobs.around",
    **dict.fromkeys(
        ("chain", "group", "chord"),
        "with jobs.flow(…) as flow:, where flow.add(…) adds a step that may take the outputs of others",
    ),
    "signature": 'task.bind(…), or jobs.bind("name", {{"argument": 1}})',
    "control": "handle.cancel(), or in a shell: tenure jobs cancel, tenure queues pause, tenure workers",
    "conf": "Tenure(keep=…), or TENURE_CONCURRENCY=8 in the environment; tenure check --config lists the settings",
    **dict.fromkeys(("run", "start", "worker_main"), "with jobs.worker():, or in a shell: tenure worker MODULE"),
}


class _Foreign:
    """A name of another job queue. It exists only to raise its error; to `hasattr` it does not exist."""

    __slots__ = ("_advice", "_name", "_owner")

    def __init__(self, owner: str, name: str, advice: str) -> None:
        self._owner, self._name, self._advice = owner, name, advice

    def __get__(self, found: object, kind: type) -> object:
        if found is None:
            raise AttributeError(f"{kind.__name__} has no {self._name!r}", name=self._name)
        owner, advice = self._owner.format(found), self._advice.format(found)
        raise AttributeError(f"{owner} has no {self._name!r}; write {advice}", name=self._name)


def foreign_names(owner: str, names: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Answer these names of other job queues. `owner` and the advice are formatted with the object.

    One attribute each, and no `__getattr__`: with one, CPython reads every attribute of the class the slow way.
    """

    def answer(kind: type[T]) -> type[T]:
        for name, advice in names.items():
            setattr(kind, name, _Foreign(owner, name, advice))
        kind.__dir__ = lambda self: [name for name in object.__dir__(self) if name not in names]  # type: ignore[method-assign]
        return kind

    return answer


def misplaced_option(name: str, task: str) -> str:
    """The end of a sentence on an unexpected argument: what to do if it is an option."""
    return f"; options go into {task}.using(…), before .enqueue(…)" if name in USING or name in _OPTIONS else ""


def unknown_options(
    place: str, names: Iterable[str], known: Collection[str], *, beyond: Callable[[str], str] = lambda name: ""
) -> InvalidOption:
    """The error for options that do not exist, all of them at once. `place` is like "add.using".

    `beyond` may say where else there is an option of this name.
    """
    told = (f"there is no option {name!r}; {_advice(name, known, beyond)}" for name in names)
    return InvalidOption(f"{place}: {'. And '.join(told)}")


def option_of_one_job(name: str) -> str:
    """For `@jobs.task`: what to write if it is an option of `task.using`."""
    instead = _OPTIONS.get(name) or (f"{name}=…" if name in USING else "")
    return instead and f"that is an option of one job: task.using({instead}).enqueue(…)"


def time_of_a_schedule(name: str) -> str:
    """For `jobs.schedule`: what to write instead of an option of another library."""
    instead = _TIMES.get(name, "")
    return instead and f"write {instead}"


def _advice(name: str, known: Collection[str], beyond: Callable[[str], str]) -> str:
    instead = _OPTIONS.get(name, "")
    option = instead.partition("=")[0]
    if name in _NEEDLESS:
        return _NEEDLESS[name]
    if instead and (option in known or not option.isidentifier()):
        return f"write {instead}"
    if near := difflib.get_close_matches(name, known, n=1):
        return f"did you mean {near[0]}=?"
    if elsewhere := beyond(name):
        return elsewhere
    return f"the options are {', '.join(known)}"
