"""Tenure's backend of `TASKS` beyond Django's own tests: transactions, workers, options, and bad input."""

from __future__ import annotations

import unittest
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import django
from django.conf import settings
from django.db import connection, transaction
from django.tasks import TaskResultStatus, task_backends
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings
from django.utils import timezone
from shop import views
from shop.tasks import native, tasks

from tenure import outputs
from tenure.core.retry import Retry
from tenure.django import jobs
from tenure.errors import InvalidOption, Locked
from tenure.stores.sealed import beneath


class Rotated:
    """A codec that needs no library: each byte is moved up by one, behind the name of the key and that of its place."""

    def __init__(self, *keys: str) -> None:
        self.key, self._keys = keys[0], keys

    def encode(self, data: bytes, about: str) -> bytes:
        return self.key.encode() + about.encode() + bytes((each + 1) % 256 for each in data)

    def decode(self, data: bytes, about: str, key: str) -> bytes:
        if key not in self._keys:
            raise LookupError(key)
        head = key.encode() + about.encode()
        if not data.startswith(head):
            raise ValueError(about)
        return bytes((each - 1) % 256 for each in data.removeprefix(head))


@contextmanager
def encrypted(*keys: str) -> Iterator[None]:
    """The project with a codec of these keys, or with none, as a process that has just started."""
    codec = Rotated(*keys) if keys else None
    with override_settings(TENURE={**settings.TENURE, "CODEC": codec}):
        yield


def counted(**signals: Any) -> tuple[list[str], list[Any]]:
    """The names of the signals sent, in order. Receivers are kept alive by the list."""
    seen: list[str] = []
    keep: list[Any] = []
    for name, signal in signals.items():

        def receive(sender: Any, task_result: Any, name: str = name, **_: Any) -> None:
            seen.append(f"{name} {task_result.status} {task_result.attempts}")

        signal.connect(receive)
        keep.append((signal, receive))
    return seen, keep


class Transactions(TransactionTestCase):
    def test_a_task_of_a_block_is_stored_with_its_commit_or_not_at_all(self) -> None:
        with transaction.atomic():
            kept = tasks.add.enqueue(1, 2)
            self.assertEqual(kept.status, TaskResultStatus.READY)
            with self.assertRaisesMessage(TaskResultDoesNotExist, "its transaction has not committed"):
                kept.refresh()
        kept.refresh()
        with self.assertRaises(ValueError), transaction.atomic():
            lost = tasks.add.enqueue(1, 2)
            raise ValueError
        with self.assertRaises(TaskResultDoesNotExist):
            lost.refresh()

    def test_a_unique_task_may_be_enqueued_twice_in_a_block(self) -> None:
        once = tasks.add.using(unique="add:{a}")
        with transaction.atomic():
            first, second = once.enqueue(1), once.enqueue(1)
            self.assertEqual(second.status, TaskResultStatus.READY)
        first.refresh()
        if connection.vendor == "postgresql":  # elsewhere a job of a block is enqueued after it
            self.assertEqual(first.id, second.id)
        third = once.enqueue(1)
        self.assertEqual((third.id, third.args), (first.id, [1]))


class LeftTheSettings(TransactionTestCase):
    def test_jobs_of_a_queue_and_a_backend_that_are_gone_can_be_read_and_run(self) -> None:
        backend = "tenure.django.TenureBackend"
        there = {"default": {"BACKEND": backend, "QUEUES": []}, "old": {"BACKEND": backend, "QUEUES": []}}
        with jobs.testing() as queue:
            with override_settings(TASKS=there):
                left = [
                    tasks.add.using(queue_name="gone").enqueue(1),
                    tasks.add.using(backend="old", queue_name="gone").enqueue(2),
                ]
            queue.drain()
            found = [tasks.add.get_result(each.id) for each in left]
        self.assertEqual([each.return_value for each in found], [1, 2])
        self.assertEqual(
            [(each.task.queue_name, each.backend) for each in found], [("gone", "default"), ("gone", "old")]
        )


class Connections(TransactionTestCase):
    def test_a_lost_connection_ends_no_task(self) -> None:
        seen, keep = counted(started=task_started, finished=task_finished)
        with jobs.testing() as queue:
            result = tasks.loses.enqueue()
            queue.drain(failures="retry")
            result.refresh()
            self.assertEqual((result.status, result.errors), (TaskResultStatus.READY, []))
        self.assertEqual(seen, ["started RUNNING 1"])
        for signal, receive in keep:
            signal.disconnect(receive)


class Flows(TransactionTestCase):
    def test_tasks_are_steps_whose_arguments_others_return(self) -> None:
        with jobs.testing() as queue:
            with jobs.flow("sums") as flow:
                first = flow.add(tasks.add.bind(1, b=2))
                second = flow.add(tasks.aadd.bind(first.output, 10))
                both = flow.add(tasks.keep.bind(outputs([first, second]), also=second.output))
                native_one = flow.add(native.bind(second.output))
                last = flow.add(tasks.add.using(priority=3).bind(7), after=[native_one])
            queue.drain()
            values = [each.handle.result() for each in (first, second, both, native_one, last)]
            self.assertEqual(values, [3, 13, [[3, 13], 13], 13, 7])
            result = tasks.keep.get_result(str(both.handle.id))
            self.assertEqual((result.status, result.return_value), (TaskResultStatus.SUCCESSFUL, [[3, 13], 13]))
            self.assertEqual(tasks.add.get_result(str(last.handle.id)).task.priority, 3)

    def test_what_can_be_no_step_is_refused(self) -> None:
        with self.assertRaisesMessage(TypeError, "missing a required argument"), jobs.flow("no") as flow:
            flow.add(tasks.keep.bind(also=flow.add(tasks.add.bind(1)).output))
        with self.assertRaisesMessage(TypeError, "'numbers' has none"), jobs.flow("no") as flow:
            flow.add(tasks.total.bind(1, flow.add(tasks.add.bind(1)).output))
        with self.assertRaisesMessage(TypeError, "needs a flow"):
            with jobs.testing(), jobs.flow("yes") as flow:
                step = flow.add(tasks.add.bind(1))
            tasks.add.bind(step.output).enqueue()


class Workers(TransactionTestCase):
    def test_a_worker_runs_tasks_of_every_kind(self) -> None:
        seen, keep = counted(enqueued=task_enqueued, started=task_started, finished=task_finished)
        with jobs.worker(concurrency=2):
            for task in (tasks.add, tasks.aadd, views.add_in_views):
                result = task.enqueue(1, b=2)
                self.assertEqual(jobs.handle(result.id).result("60s"), 3)
                result.refresh()
                self.assertEqual((result.status, result.return_value), (TaskResultStatus.SUCCESSFUL, 3))
                self.assertEqual((result.attempts, len(result.worker_ids)), (1, 1))
                # In any order: a quick worker may have begun before the caller has sent its signal
                self.assertEqual(sorted(seen), ["enqueued READY 0", "finished SUCCESSFUL 1", "started RUNNING 1"])
                seen.clear()
        for signal, receive in keep:
            signal.disconnect(receive)

    def test_a_queue_that_no_task_is_declared_in_is_served(self) -> None:
        with jobs.worker():
            result = tasks.add.using(queue_name="mail", priority=7).enqueue(1, 2)
            self.assertEqual(jobs.handle(result.id).result("60s"), 3)
        result.refresh()
        again = tasks.add.get_result(result.id)
        self.assertEqual((again.task.queue_name, again.task.priority), ("mail", 7))
        self.assertEqual(again, result)

    def test_attempts_errors_and_signals_of_a_task_that_fails_twice(self) -> None:
        seen, keep = counted(started=task_started, finished=task_finished)
        with jobs.testing() as queue:
            result = tasks.fails.enqueue(2)
            for _ in range(3):
                queue.drain(failures="retry")
                queue.advance("1h")
            result.refresh()
            self.assertEqual(result.return_value, [1, 2, 3])  # context.attempt, as each attempt saw it
            self.assertEqual(result.attempts, 3)
            self.assertEqual([each.exception_class for each in result.errors], [tasks.Declined, tasks.Declined])
            self.assertIn("in fails", result.errors[0].traceback)
        self.assertEqual(seen, ["started RUNNING 1", "started RUNNING 2", "started RUNNING 3", "finished SUCCESSFUL 3"])
        for signal, receive in keep:
            signal.disconnect(receive)

    def test_a_receiver_that_raises_fails_neither_caller_nor_job(self) -> None:
        def broken(**_: Any) -> None:
            raise RuntimeError("a broken receiver")

        for signal in (task_enqueued, task_started, task_finished):
            signal.connect(broken)
        try:
            with self.assertLogs("django.dispatch"), jobs.testing() as queue:
                result = tasks.add.enqueue(1, 2)
                queue.drain()
                result.refresh()
                self.assertEqual(result.return_value, 3)
        finally:
            for signal in (task_enqueued, task_started, task_finished):
                signal.disconnect(broken)

    def test_states_of_a_job(self) -> None:
        with jobs.testing() as queue:
            later = tasks.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1, 2)
            self.assertEqual(tasks.add.get_result(later.id), later)
            self.assertEqual(queue.drain(), 0)
            jobs.handle(later.id).cancel("no longer wanted")
            later.refresh()
            self.assertEqual(later.status, TaskResultStatus.FAILED)


class Encrypted(TransactionTestCase):
    def test_a_key_made_of_arguments_is_stored_as_its_digest(self) -> None:
        with encrypted("new"):
            once = tasks.add.using(unique="order:{a}")
            first, again = once.enqueue(4711), once.enqueue(4711)
            other = once.enqueue(4712)
            unique = beneath(jobs.client().store).get(first.id).unique
        self.assertEqual((again.id, other.id == first.id), (first.id, False))
        self.assertNotIn("4711", unique)

    def test_without_the_key_a_result_is_locked_and_no_notice_for_people(self) -> None:
        with encrypted("old"):
            result = tasks.add.enqueue("needle", "s")
        with encrypted("new", "old"), jobs.worker():
            self.assertEqual(jobs.handle(result.id).result("60s"), "needles")
        for keys in (("old",), (), ("other",)):
            with self.subTest(keys), encrypted(*keys), self.assertRaises(Locked):
                tasks.add.get_result(result.id)
        with encrypted("new", "old"):
            self.assertEqual(tasks.add.get_result(result.id).return_value, "needles")

    def test_a_result_that_reads_like_the_notice_is_a_result(self) -> None:
        with encrypted("new"), jobs.worker():
            result = tasks.add.enqueue("encrypted: ", "it needs the key")
            jobs.handle(result.id).result("60s")
            self.assertEqual(tasks.add.get_result(result.id).return_value, "encrypted: it needs the key")


class Options(SimpleTestCase):
    def test_a_unique_task_is_stored_once(self) -> None:
        with jobs.testing():
            once = tasks.add.using(unique="add:{a}:{b}")
            self.assertEqual(once.enqueue(1, b=2).id, once.enqueue(a=1, b=2).id)
            self.assertNotEqual(once.enqueue(1, 3).id, once.enqueue(1, 2).id)

    def test_options_reach_the_job(self) -> None:
        with jobs.testing() as queue:
            result = tasks.add.using(retry=3, timeout="90s").enqueue(1, 2)
            job = queue.client.store.get(result.id)
            self.assertEqual((job.max_failures, job.timeout), (3, 90.0))

    @unittest.skipIf(django.VERSION < (6, 1), "the decorator takes options from Django 6.1 on")
    def test_options_of_the_decorator(self) -> None:
        from shop import options

        declared = jobs.registry["shop.options.charge"]
        self.assertEqual((declared.own_retry, declared.timeout), (Retry(2, on=OSError), 60.0))
        with jobs.testing():
            self.assertEqual(options.charge.enqueue(7).id, options.charge.enqueue(7).id)

    def test_a_task_that_has_moved(self) -> None:
        new_name = tasks.moved.using(aliases=["shop.gone.moved"])
        with jobs.testing() as queue:
            draft = native.bind(1).draft().but(payload='{"args": [1], "kwargs": {}}')
            old, lost = (
                draft.but(task="shop.gone.moved"),
                draft.but(id=str(uuid.uuid4()), task="shop.gone.lost"),
            )
            queue.client.store.enqueue([old, lost])
            with self.assertLogs("tenure.django"):
                with self.assertRaisesMessage(TaskResultDoesNotExist, "@task(aliases=['shop.gone.lost'])"):
                    task_backends["default"].get_result(lost.id)
            queue.client.store.delete([lost.id])
            queue.drain()
            self.assertEqual(new_name.get_result(old.id).return_value, 1)


class BadInput(SimpleTestCase):
    def test_each_is_a_sentence(self) -> None:
        naive = timezone.now().replace(tzinfo=None)
        cases = [
            (InvalidTask, "run_after must be an aware datetime", lambda: tasks.add.using(run_after=naive)),
            (TypeError, "Unsupported type", lambda: tasks.add.enqueue(object())),
            (InvalidTask, "Queue 'nope' is not valid for backend", lambda: tasks.add.using(queue_name="nope")),
            (TypeError, "max_crashes is an option of @task", lambda: tasks.add.using(max_crashes=1)),
            (TypeError, "unexpected keyword argument 'retries'", lambda: tasks.add.using(retries=3)),
            (InvalidTask, "timeout: 5 has no unit", lambda: tasks.add.using(timeout=5).enqueue(1, 2)),
            (InvalidTask, "only max_failures", lambda: tasks.add.using(retry=Retry(3, on=OSError)).enqueue(1, 2)),
            (
                InvalidTask,
                "'order:{nr}' is no template over its arguments (a, b)",
                lambda: tasks.add.using(unique="order:{nr}"),
            ),
            *(
                (InvalidTask, "is no template over its arguments", partial(tasks.add.using, unique=f"order:{wrong}"))
                for wrong in ("{0}", "{}", "{a:{nr}}", "{a!z}", "{a.}", "{a")
            ),
            (
                InvalidTask,
                "'order:{a[id]}' does not fit these arguments: TypeError",
                lambda: tasks.add.using(unique="order:{a[id]}").enqueue(1),
            ),
            (InvalidOption, "write enqueued('shop.tasks.tasks.add')", lambda: queue.enqueued(tasks.add)),
            (InvalidTask, "is reserved for guards", lambda: tasks.add.using(queue_name="guard", backend="any")),
        ]
        with jobs.testing() as queue:
            for kind, said, call in cases:
                with self.subTest(said), self.assertRaisesMessage(kind, said):
                    call()

    def test_a_strangers_id(self) -> None:
        with jobs.testing():
            other = native.enqueue(1)
            for id_, said in (
                ("123", "'123' is not the id of a job, which is a UUID"),
                (str(uuid.uuid4()), "it was never enqueued here"),
                (str(other.id), "is of native, which is no task of Django's"),
            ):
                with self.subTest(said), self.assertRaisesMessage(TaskResultDoesNotExist, said):
                    task_backends["default"].get_result(id_)

    def test_wrong_settings(self) -> None:
        backend = "tenure.django.TenureBackend"
        with override_settings(TASKS={"default": {"BACKEND": backend, "OPTIONS": {"url": "x"}}}):
            with self.assertRaisesMessage(ValueError, "the backend has no options, got ['url']"):
                tasks.add.enqueue(1, 2)
        with override_settings(TASKS={"default": {"BACKEND": backend}}, INSTALLED_APPS=["django.contrib.contenttypes"]):
            self.assertIn("tenure.E003", [each.id for each in task_backends["default"].check()])


class JoinedInATestCase(TestCase):
    """On PostgreSQL a job belongs to the transaction of the test."""

    def test_it_is_written_by_djangos_connection(self) -> None:
        if connection.vendor != "postgresql":
            self.skipTest("jobs join transactions on PostgreSQL")
        result = tasks.add.enqueue(1, 2)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM tenure.jobs WHERE id = %s", [result.id])
            self.assertEqual(cursor.fetchone(), (1,))
