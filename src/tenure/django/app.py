"""The app of a Django project. It reads the project's settings on first use, and finds tasks in every `tasks.py`."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from django import setup
from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from tenure.app.app import Tenure
from tenure.config import Settings
from tenure.django import home
from tenure.django.connections import fresh_connections, kept_connections, lent
from tenure.django.home import Home
from tenure.django.registry import ProjectRegistry, queues
from tenure.ports import Notifier, Store
from tenure.tasks.registry import Registry
from tenure.worker.program import Program

if TYPE_CHECKING:
    from tenure.tasks.client import Client
    from tenure.testing import TestQueue


class DjangoApp(Tenure):
    """`tenure.django.jobs`. Its store, unless `TENURE` says otherwise, is the one that `DATABASES` gives."""

    def __init__(self) -> None:
        super().__init__()
        self._registry = self.registry = ProjectRegistry()
        self._home: Home | None = None
        self.resource(kept_connections)
        self.around(fresh_connections)

    def __repr__(self) -> str:
        return f"DjangoApp({len(self._registry)} tasks)"

    @property
    def home(self) -> Home:
        """What the project's settings say. Raises InvalidOption."""
        if self._home is not None and self._home.moved:
            self.forget()
        if self._home is None:
            found = home.read()
            self._code, self._imports, self.codec = dict(found.settings), found.imports, found.codec
            self._home = found  # last: another thread then has the rest, too
            return found
        return self._home

    def forget(self) -> None:
        """Close the store, and read the project's settings again on next use."""
        self._client.close()
        self._home = self._settings = self._policy = None

    @property
    def settings(self) -> Settings:
        """Flag > the project's settings > environment > `.env` > default."""
        _ = self.home
        return super().settings

    @property
    def tasks(self) -> Registry:
        """Its tasks: those of the module `tasks` of each installed app, and of `TENURE["IMPORTS"]`."""
        _ = self.home
        if not apps.models_ready:
            setup()
        autodiscover_modules("tasks")
        return super().tasks

    @property
    def program(self) -> Program:
        """What a worker runs."""
        return replace(super().program, source=self.home.source, queues=queues())

    @contextmanager
    def testing(
        self,
        *,
        resources: Mapping[type, object] = MappingProxyType({}),
        elsewhere: Sequence[str] = (),
        limits: bool = False,
    ) -> Generator[TestQueue]:
        """Keep jobs in memory, and run them when the test says so, on the test's own database connections.

        A job that is enqueued inside `transaction.atomic()` is in the queue once that block has committed. In a
        `TestCase` write `with self.captureOnCommitCallbacks(execute=True):` around the code that has such a block.
        """
        with lent(), super().testing(resources=resources, elsewhere=elsewhere, limits=limits) as queue:
            yield queue

    def _new_client(self, store: Store, notifier: Notifier) -> Client:
        from tenure.django.client import DjangoClient

        return DjangoClient(store, notifier, self.settings, lambda: self.tracing, self.home.alias)


jobs = DjangoApp()
"""The project's app. Example, in a `tasks.py`: `@jobs.task` above `def send_receipt(order: int) -> None: ...`"""
