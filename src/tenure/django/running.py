"""What a worker does with a job of a Django task: context, signals, the call, and the result as Django's JSON."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from traceback import format_exception
from typing import TYPE_CHECKING, Any, cast

from django.tasks import Task as DjangoTask
from django.tasks import TaskContext, TaskResult, TaskResultStatus
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TaskError
from django.tasks.exceptions import InvalidTaskBackend
from django.tasks.signals import task_finished, task_started
from django.utils.json import normalize_json
from msgspec import UNSET

from tenure.core.retry import Fail, Snooze
from tenure.core.signatures import signature_of
from tenure.django.app import jobs
from tenure.django.results import local, result_of, started
from tenure.errors import JobStopped, TenureError
from tenure.events import current
from tenure.tasks.job import Job
from tenure.tasks.loops import aside
from tenure.worker.lost import judged

if TYPE_CHECKING:
    from tenure.worker.executor import Attempt


LATER = "later_"  #: the prefix of the name under which an argument that another step of a flow returns is stored
STORED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def signature(task: DjangoTask) -> inspect.Signature:
    """What callers of the task pass."""
    found = signature_of(task.func)
    names = list(found.parameters.values())
    return found.replace(parameters=names[1:]) if task.takes_context else found


def handler(task: DjangoTask) -> Callable[..., Any]:
    """The handler of this Django task's jobs."""
    run = _on_loop(task) if inspect.iscoroutinefunction(task.func) else _in_thread(task)
    kinds = {"job": Job[Any], "args": list[Any], "kwargs": dict[str, Any]}
    later = {f"{LATER}{each.name}": Any for each in signature(task).parameters.values() if each.kind in STORED}
    plain, named = STORED
    shape = [inspect.Parameter(name, plain, annotation=each) for name, each in kinds.items()]
    shape += [inspect.Parameter(name, named, annotation=each, default=UNSET) for name, each in later.items()]
    run.__annotations__ = {**kinds, **later, "return": Any}
    # `__wrapped__`: where it is
    run.__dict__.update(__signature__=inspect.Signature(shape), __wrapped__=task.func, django_task=task)
    return run


def _with_later(kwargs: dict[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    return kwargs | {name.removeprefix(LATER): value for name, value in later.items() if value is not UNSET}


def _in_thread(task: DjangoTask) -> Callable[..., Any]:
    def run(job: Job[Any], args: list[Any], kwargs: dict[str, Any], **later: Any) -> Any:
        kwargs = _with_later(kwargs, later)
        attempt = _Attempt(task, job, {"args": args, "kwargs": kwargs})
        task_started.send_robust(attempt.sender, task_result=attempt.result)
        try:
            value = normalize_json(task.func(*attempt.context, *args, **kwargs))
        except BaseException as error:
            if attempt.failed(error):
                task_finished.send_robust(attempt.sender, task_result=attempt.result)
            raise
        attempt.succeeded(value)
        task_finished.send_robust(attempt.sender, task_result=attempt.result)
        return value

    return run


def _on_loop(task: DjangoTask) -> Callable[..., Awaitable[Any]]:
    async def run(job: Job[Any], args: list[Any], kwargs: dict[str, Any], **later: Any) -> Any:
        kwargs = _with_later(kwargs, later)
        attempt = await _begun(task, job, {"args": args, "kwargs": kwargs})
        await task_started.asend_robust(attempt.sender, task_result=attempt.result)
        try:
            value = normalize_json(await task.func(*attempt.context, *args, **kwargs))
        except asyncio.CancelledError:
            raise  # the job is being stopped: whether it runs again is not decided here
        except BaseException as error:
            if await aside(partial(attempt.failed, error)):
                await task_finished.asend_robust(attempt.sender, task_result=attempt.result)
            raise
        attempt.succeeded(value)
        await task_finished.asend_robust(attempt.sender, task_result=attempt.result)
        return value

    return run


async def _begun(task: DjangoTask, job: Job[Any], payload: dict[str, Any]) -> _Attempt:
    if job.attempt == 1:  # it reads nothing
        return _Attempt(task, job, payload)
    return await aside(partial(_Attempt, task, job, payload))


def _backend(task: DjangoTask) -> BaseTaskBackend | None:
    """None: it has left the settings since the job was enqueued."""
    with suppress(InvalidTaskBackend):
        return task.get_backend()
    return None


class _Attempt:
    """The `TaskResult` of a running attempt, as its context and the receivers of signals see it."""

    def __init__(self, task: DjangoTask, job: Job[Any], payload: dict[str, Any]) -> None:
        self._job = job
        self.result = started(job, task, payload) if job.attempt == 1 else self._stored(task)
        running = current.get()
        if running is not None and len(self.result.worker_ids) < job.attempt:
            self.result.worker_ids.append(running.worker_id)
        self.sender = type(_backend(self.result.task) or _backend(task))
        self.context = (TaskContext(task_result=self.result),) if task.takes_context else ()

    def _stored(self, task: DjangoTask) -> TaskResult:
        """With the workers and the errors of the attempts before this one."""
        store, job_id = jobs.client().store, str(self._job.id)
        found = store.get(job_id)
        if found is None:
            raise TenureError(f"job {job_id} was deleted while it was being started")
        return result_of(store, found, task)

    def succeeded(self, value: object) -> None:
        self._end(TaskResultStatus.SUCCESSFUL)
        object.__setattr__(self.result, "_return_value", value)

    def failed(self, error: BaseException) -> bool:
        """Add the error to the result. Has the job ended with it?"""
        kind = type(error)
        text = "".join(format_exception(error))
        path = f"{kind.__module__}.{kind.__qualname__}"
        self.result.errors.append(TaskError(exception_class_path=path, traceback=text))
        ended = self._is_last(error)
        if ended:
            self._end(TaskResultStatus.FAILED)
        return ended

    def _is_last(self, error: BaseException) -> bool:
        match error:
            case Snooze():
                return False
            case JobStopped():
                return self._job.stopping == "cancel"
            case Fail(final=True):
                return True
            case Exception() if judged(cast("Attempt", self._job._attempt), error) is not error:
                return False
            case Exception() if not isinstance(error, Fail) and not jobs.registry[self._job.task].retry.retries(error):
                return True
            case _:
                pass
        with suppress(TenureError):  # the store is away: it will decide
            found = jobs.client().store.get(str(self._job.id))
            return found is not None and self._job.failures + 1 >= found.max_failures
        return False

    def _end(self, status: TaskResultStatus) -> None:
        object.__setattr__(self.result, "status", status)
        object.__setattr__(self.result, "finished_at", local(datetime.now(UTC)))
