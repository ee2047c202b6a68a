"""The backend of `TASKS`: Django's tasks are stored, run, retried and rescued as jobs of `tenure.django.jobs`.

Each Django task is a task of that app, named by its module path, with the payload `{"args": […], "kwargs": {…}}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from django.apps import apps
from django.core import checks
from django.tasks import Task as DjangoTask
from django.tasks import TaskResult, TaskResultStatus
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils import timezone

from tenure.config import valid_name, valid_queue
from tenure.core.durations import Duration
from tenure.core.ids import canonical
from tenure.core.retry import Retry
from tenure.django.app import jobs
from tenure.django.results import ALIAS, PRIORITY, RUN_AFTER, enqueued_at, local, result_of
from tenure.django.running import LATER, STORED, handler, signature
from tenure.errors import InvalidOption
from tenure.tasks.placeholders import Placeholder
from tenure.tasks.task import NewJob, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TenureTask(DjangoTask):
    """A Django task with options of Tenure's: from Django 6.1 on `@task(retry=3, timeout="1m", unique="order:{n}")`.

    In Django 6.0, whose decorator takes no options, and for one job: `send.using(retry=3)`.
    """

    retry: Retry | int | None = None
    timeout: Duration | None = None
    unique: str | None = None  #: a template over the arguments
    max_crashes: int = 3
    isolation: Literal["process"] | None = None
    aliases: Sequence[str] = ()  #: module paths that this task had before

    def __post_init__(self) -> None:
        DjangoTask.__post_init__(self)
        if isinstance(self.get_backend(), TenureBackend):
            registered(self)

    def using(self, **options: Any) -> TenureTask:
        """A copy with these options, Django's and Tenure's."""
        given = {name: value for name, value in options.items() if value is not None}
        if fixed := [name for name in ("max_crashes", "isolation") if name in given]:
            raise TypeError(f"{self.name}.using(): {fixed[0]} is an option of @task, from Django 6.1 on")
        try:
            return replace(self, **given)
        except TypeError as error:
            raise TypeError(f"{self.name}.using(): {str(error).partition('() ')[2] or error}") from None

    def bind(self, *args: Any, **kwargs: Any) -> NewJob[Any]:
        """A job that is not stored yet, for `jobs.flow`. Example: `flow.add(mail.bind(report.output, to="ada"))`

        Raises InvalidTask if its backend is another one, TypeError for arguments that do not fit or are not JSON.
        """
        backend = self.get_backend()
        if not isinstance(backend, TenureBackend):
            raise InvalidTask(f"{self.name}.bind(): its backend {self.backend!r} is not Tenure's")
        backend.validate_task(self)
        return backend.new_job(self, args, kwargs)


def registered(task: DjangoTask) -> Task[..., Any]:
    """This Django task as a task of the app; declared when it, or a former name of it, is first seen."""
    name = task.module_path
    found = jobs.registry.known(name)
    if found is not None and set(getattr(task, "aliases", ())) <= set(found.aliases):
        return found
    try:
        valid_name(name, "task")
        options = {
            each: getattr(task, each)
            for each in ("retry", "timeout", "max_crashes", "isolation", "aliases")
            if isinstance(task, TenureTask)
        }
        return jobs.task(name=name, queue=task.queue_name, priority=int(task.priority), **options)(handler(task))
    except InvalidOption as error:
        raise InvalidTask(str(error)) from error


class TenureBackend(BaseTaskBackend):
    """Example: `TASKS = {"default": {"BACKEND": "tenure.django.TenureBackend", "QUEUES": ["default", "mail"]}}`

    An empty `QUEUES` allows every queue; name those that no task is declared in with `manage.py tenure worker --queue`.
    """

    task_class = TenureTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        if self.options:
            raise InvalidOption(
                f"TASKS[{alias!r}]['OPTIONS']: the backend has no options, got {sorted(self.options)}; "
                "settings are given in TENURE = {…}"
            )

    def validate_task(self, task: DjangoTask) -> None:
        """Raise InvalidTask for a task that this backend can't run."""
        super().validate_task(task)
        try:
            valid_queue(task.queue_name)
            _check_unique(task)
        except InvalidOption as error:
            raise InvalidTask(str(error)) from error

    def enqueue(self, task: DjangoTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Store a job, with the open transaction if there is one. Raises InvalidTask, TypeError if not JSON."""
        self.validate_task(task)
        result = TaskResult(
            task=task,
            id="",
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        handle = self.new_job(task, result.args, result.kwargs).enqueue()
        if not handle.created:  # a live job holds its unique key
            # The store does not show a job of the open transaction, and the job may have been deleted meanwhile.
            with suppress(TaskResultDoesNotExist):
                return self.get_result(str(handle.id))
        object.__setattr__(result, "id", str(handle.id))
        object.__setattr__(result, "enqueued_at", local(enqueued_at(result.id)))
        if not handle.created:
            return result
        # Not `send`: the job is stored, so a receiver that raises must not look like a failed enqueue.
        task_enqueued.send_robust(type(self), task_result=result)
        return result

    def new_job(self, task: DjangoTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NewJob[Any]:
        """A job of this task; some of its arguments may be what other steps of a flow will return."""
        declared = registered(task)
        options: dict[str, Any] = {"queue": task.queue_name, "priority": int(task.priority)}
        meta: dict[str, str] = {} if self.alias == "default" else {ALIAS: self.alias}
        if task.priority != declared.priority:
            meta[PRIORITY] = str(int(task.priority))
        if task.run_after is not None:
            aware = timezone.is_aware(task.run_after)
            options["run_at"] = task.run_after if aware else timezone.make_aware(task.run_after)
            meta[RUN_AFTER] = task.run_after.isoformat()
        if isinstance(task, TenureTask):
            options["timeout"] = task.timeout
            if task.retry is not None and Retry.of(task.retry) != declared.own_retry:
                options["retry"] = task.retry
        try:
            if isinstance(task, TenureTask) and (key := _key(task, args, kwargs)) is not None:
                options["unique"] = declared.stored_key(key)
            copy = declared.using(**options, meta=meta or None)
        except InvalidOption as error:
            raise InvalidTask(str(error)) from error
        if not any(isinstance(each, Placeholder) for each in (*args, *kwargs.values())):
            return copy.bind([*args], {**kwargs})
        named = _named(task, args, kwargs)
        holes = {f"{LATER}{name}": each for name, each in named.items() if isinstance(each, Placeholder)}
        plain = copy.bind([], {name: each for name, each in named.items() if not isinstance(each, Placeholder)})
        return NewJob(copy, plain._payload, plain._key, holes)

    def get_result(self, result_id: str) -> TaskResult:
        """The result of a job of a Django task, whichever process enqueued it.

        Raises TaskResultDoesNotExist, and Locked if it is encrypted with a key that this process does not have.
        """
        try:
            job_id = canonical(result_id)
        except InvalidOption:
            raise TaskResultDoesNotExist(f"{result_id!r} is not the id of a job, which is a UUID") from None
        store = jobs.client().store
        job = store.get(job_id)
        if job is None:
            raise TaskResultDoesNotExist(
                f"there is no job {job_id}: it was never enqueued here, its transaction has not committed, or it was "
                "deleted (completed jobs are kept for TENURE['KEEP'])"
            )
        found = jobs.registry.find(job.task)
        task = getattr(found.fn, "django_task", None) if found is not None else None
        if task is None:
            why = "can't be imported; if it has moved, give the new one" if found is None else "is no task of Django's"
            more = f" @task(aliases=[{job.task!r}])" if found is None else ""
            raise TaskResultDoesNotExist(f"job {job_id} is of {job.task}, which {why}{more}")
        return result_of(store, job, task)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """The system checks of this backend."""
        if apps.is_installed("tenure.django"):
            return []
        return [
            checks.Error(
                f"TASKS[{self.alias!r}] needs the app of Tenure: add 'tenure.django' to INSTALLED_APPS",
                id="tenure.E003",
            )
        ]


def _named(task: DjangoTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name; some are placeholders."""
    found = signature(task)
    if strange := [each.name for each in found.parameters.values() if each.kind not in STORED]:
        raise TypeError(
            f"{task.name}: what another step returns is given by name, and {strange[0]!r} has none; "
            "write a task whose parameters are plain"
        )
    return dict(found.bind(*args, **kwargs).arguments)


def _key(task: TenureTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    if task.unique is None:
        return None
    bound = signature(task).bind(*args, **kwargs)
    bound.apply_defaults()
    try:
        return task.unique.format(**bound.arguments)
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise InvalidTask(
            f"{task.module_path}: unique: {task.unique!r} does not fit these arguments: {type(error).__name__}: {error}"
        ) from error


class _Any:
    """An argument with every attribute and item, in every format."""

    def __getattr__(self, name: str) -> _Any:
        return self

    def __getitem__(self, key: object) -> _Any:
        return self

    def __format__(self, spec: str) -> str:
        return ""


def _check_unique(task: DjangoTask) -> None:
    template = getattr(task, "unique", None)
    if template is None:
        return
    names = signature(task).parameters
    try:
        template.format(**dict.fromkeys(names, _Any()))
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidOption(
            f"{task.module_path}: unique: {template!r} is no template over its arguments ({', '.join(names)}): {error}"
        ) from None
