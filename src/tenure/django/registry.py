"""The tasks of a Django project, which also finds those of `django.tasks` that are declared outside of a `tasks.py`."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.apps import apps

from tenure.core.logs import logger
from tenure.tasks.registry import Registry
from tenure.tasks.task import Task

_log = logger("tenure.django")
HAS_TASKS = find_spec("django.tasks") is not None  #: Django 6.0 and newer


class ProjectRegistry(Registry):
    """A job of `shop.views.send`, which no `tasks.py` imports, makes a worker import `shop.views`."""

    def __init__(self) -> None:
        super().__init__()
        self._sought: set[str] = set()

    def known(self, name: str) -> Task[..., Any] | None:
        """The task of this name or alias, if its module has been imported."""
        return super().find(name)

    def find(self, name: str) -> Task[..., Any] | None:
        """The task of this name or alias."""
        found = super().find(name)
        if found is None and HAS_TASKS and name not in self._sought:
            self._sought.add(name)
            self._seek(name)
            found = super().find(name)
        return found

    def _seek(self, path: str) -> None:
        module, _, attribute = path.rpartition(".")
        # Only modules of installed apps: a name in the store must not make a worker import anything else.
        if not apps.ready or apps.get_containing_app_config(module) is None:
            return
        try:
            found = getattr(import_module(module), attribute, None)
        except Exception:
            _log.warning("the module of task %s can't be imported", path, exc_info=True)
            return
        from django.tasks import Task as DjangoTask

        from tenure.django.backend import registered

        if isinstance(found, DjangoTask):
            registered(found)


def queues() -> frozenset[str]:
    """The queues of every backend of `TASKS` that is Tenure's."""
    if not HAS_TASKS:
        return frozenset()
    from django.tasks import task_backends
    from django.tasks.exceptions import InvalidTaskBackend

    from tenure.django.backend import TenureBackend

    found: set[str] = set()
    for alias in task_backends:
        with suppress(InvalidTaskBackend):  # another backend, which can't be imported: `manage.py check` reports it
            backend = task_backends[alias]
            found.update(backend.queues if isinstance(backend, TenureBackend) else ())
    return frozenset(found)
