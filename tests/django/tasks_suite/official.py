"""Django's own tests of `django.tasks`, with Tenure's backend in the place of Django's two. Run by `make test-django`.

`tasks` is the folder `tests/tasks` of Django's source distribution. A test set to None can't apply; a comment says why.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any

from asgiref.sync import sync_to_async
from django.test import override_settings
from tasks import test_dummy_backend, test_immediate_backend, test_tasks

from tenure.django import TenureBackend, jobs

_stack = ExitStack()
_queue: Any = None


def start_afresh() -> None:
    global _queue
    _stack.close()
    _queue = _stack.enter_context(jobs.testing())


class Listed(TenureBackend):
    """Stores jobs and runs none, as Django's DummyBackend does."""

    def __init__(self, alias: str, params: Any) -> None:
        super().__init__(alias, params)
        self._ids: list[str] = []

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        self._ids.append(result.id)
        return result

    @property
    def results(self) -> list[Any]:
        return [self.get_result(each) for each in self._ids]

    def clear(self) -> None:
        self._ids.clear()
        start_afresh()


class Drained(TenureBackend):
    """Runs each job before `enqueue` returns, as Django's ImmediateBackend does."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        with suppress(Exception):  # raised by the handler: it is in the result
            _queue.drain()
        return self.get_result(result.id)

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = await sync_to_async(super().enqueue)(task, args, kwargs)
        with suppress(Exception):
            await _queue.adrain()
        return await self.aget_result(result.id)


test_dummy_backend.DummyBackend = Listed
test_immediate_backend.ImmediateBackend = Drained
test_tasks.DummyBackend, test_tasks.ImmediateBackend = Listed, Drained

LISTED, DRAINED = f"{__name__}.Listed", f"{__name__}.Drained"


class Fresh:
    def setUp(self) -> None:
        start_afresh()
        super().setUp()  # type: ignore[misc]

    def tearDown(self) -> None:
        super().tearDown()  # type: ignore[misc]
        _stack.close()


@override_settings(TASKS={"default": {"BACKEND": LISTED, "QUEUES": []}})
class DummyTests(Fresh, test_dummy_backend.DummyBackendTestCase):
    # These write into the dummy's list of results; here a result is read from the store.
    test_refresh_result = None
    test_refresh_result_async = None


@override_settings(TASKS={"default": {"BACKEND": DRAINED, "QUEUES": []}})
class ImmediateTests(Fresh, test_immediate_backend.ImmediateBackendTestCase):
    # These show what ImmediateBackend lacks, and Tenure has: results and run_after.
    test_cannot_get_result = None
    test_cannot_refresh_result = None
    test_cannot_pass_run_after = None
    # Caller and task are in different processes, and no handler may end its worker.
    test_throws_keyboard_interrupt = None


@override_settings(
    TASKS={
        "default": {"BACKEND": LISTED, "QUEUES": ["default", "queue_1"]},
        "immediate": {"BACKEND": DRAINED, "QUEUES": []},
        "missing": {"BACKEND": "does.not.exist"},
    },
    USE_TZ=True,
)
class TaskTests(Fresh, test_tasks.TaskTestCase):
    pass


# Left out: the two `…TransactionTestCase`, which want a task to run, or be listed, although its transaction has not
# committed; and test_custom_backend.py, which tests backends of its own.
