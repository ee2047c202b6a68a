"""Jobs and Django's transactions: in an atomic block, in `TestCase`, in `TransactionTestCase`."""

from __future__ import annotations

from pathlib import Path

import pytest
from projects import TASKS, Project, new_project, postgres

BLOCKS = """
from django.db import transaction
from orders.models import Order
from orders.tasks import jobs, pay

def found(handle):
    return jobs.client().store.get(str(handle.id)) is not None

try:
    with transaction.atomic():
        lost = pay.enqueue(1)
        raise ValueError
except ValueError:
    pass
with transaction.atomic():
    try:
        with transaction.atomic():
            undone = pay.enqueue(1)
            raise ValueError
    except ValueError:
        pass
    kept, many = pay.enqueue(2), jobs.enqueue_many([pay.bind(3)])[0]
    early = [found(kept), found(many)]
plain = pay.enqueue(4)
print([found(lost), found(undone), *early, found(kept), found(many), found(plain)])
"""

GATHERS = """

from django.db import transaction
from tenure import Job

@jobs.task
def part(n: int) -> int:
    return n

@jobs.task
def total(job: Job) -> int:
    with transaction.atomic():
        parts = job.gather("parts", lambda: [part.bind(n) for n in range(4)])
        Order.objects.create(paid=True)
    return sum(parts)
"""

FLOWS = """
from django.db import transaction
from orders.tasks import jobs, pay

for _ in range(2):
    with transaction.atomic():
        with jobs.flow("nightly", unique="k") as flow:
            flow.add(pay.bind(1))
        mail = pay.enqueue(2)
    print(jobs.client().store.get(str(mail.id)) is not None)
"""

IN_CASES = """
import asyncio
import threading
import warnings
from asgiref.sync import SyncToAsync
from django.db import DEFAULT_DB_ALIAS, connection, connections, transaction
from django.test import TestCase, TransactionTestCase
from orders.models import Order
from orders.tasks import apay, jobs, pay


class Rollback(TestCase):
    def test_handlers_see_the_rows_of_the_test(self):
        orders = [Order.objects.create(), Order.objects.create()]
        with jobs.testing() as queue:
            with self.captureOnCommitCallbacks(execute=True):
                pay.enqueue(orders[0].pk)
                apay.enqueue(orders[1].pk)
            assert queue.drain() == 2
        assert Order.objects.filter(paid=True).count() == 2

    def test_an_async_handler_keeps_no_connection_of_the_test(self):
        # Its thread may come to the end of the attempt when the test is over.
        thread, over = SyncToAsync.single_thread_executor, threading.Event()

        @jobs.task
        async def last() -> None:
            thread.submit(over.wait)

        with jobs.testing() as queue:
            with self.captureOnCommitCallbacks(execute=True):
                last.enqueue()
            assert queue.drain() == 1
        over.set()
        assert connections[DEFAULT_DB_ALIAS] not in thread.submit(connections.all).result()

    def test_nothing_is_left_of_another_test(self):
        assert not Order.objects.exists()

    def test_jobs_are_in_the_queue_when_their_block_has_committed(self):
        for options in ({}, {"tx": connection}):
            with jobs.testing() as queue:
                with self.captureOnCommitCallbacks(execute=True):
                    with transaction.atomic():
                        pay.using(**options).enqueue(1)
                        assert not queue.enqueued(pay)
                    try:
                        with transaction.atomic():
                            pay.using(**options).enqueue(2)
                            raise ValueError
                    except ValueError:
                        pass
                queue.assert_enqueued(pay, 1)
                assert len(queue.enqueued(pay)) == 1


    def test_what_a_handler_enqueues_is_run_by_the_same_drain(self):
        @jobs.task
        def follows() -> None: ...

        @jobs.task
        def leads() -> None:
            follows.enqueue()

        with jobs.testing() as queue:
            leads.enqueue()
            queue.assert_enqueued(leads)
            assert queue.drain() == 2

    def test_jobs_of_a_block_that_never_commits_are_named(self):
        for options in ({}, {"tx": connection}):
            with self.assertWarnsRegex(RuntimeWarning, "neither committed nor rolled back.*: pay "), jobs.testing():
                with transaction.atomic():
                    pay.using(**options).enqueue(1)
            with warnings.catch_warnings(), jobs.testing():
                warnings.simplefilter("error")
                try:
                    with transaction.atomic():
                        pay.using(**options).enqueue(2)
                        raise ValueError
                except ValueError:
                    pass
                with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
                    pay.using(**options).enqueue(3)


class Committed(TransactionTestCase):
    def test_a_job_outside_a_block_is_there_at_once(self):
        with jobs.testing() as queue:
            order = Order.objects.create()
            pay.enqueue(order.pk)
            assert queue.drain() == 1
            assert Order.objects.get().paid

    async def test_an_async_test(self):
        order = await Order.objects.acreate()
        with jobs.testing() as queue:
            await pay.aenqueue(order.pk)
            await apay.aenqueue(order.pk)
            assert await queue.adrain() == 2
        assert (await Order.objects.aget()).paid
"""

REAL = """

class TheRealStore(TestCase):
    def count(self):
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM tenure.jobs")
            return cursor.fetchone()[0]

    def test_a_job_belongs_to_the_test(self):
        pay.enqueue(1)
        assert self.count() == 1

    def test_and_is_rolled_back_with_it(self):
        pay.enqueue(1)
        assert self.count() == 1


class WithAWorker(TransactionTestCase):
    def test_a_worker_runs_it(self):
        order = Order.objects.create()
        with jobs.worker():
            assert pay.enqueue(order.pk).result("60s") == 1
"""


@pytest.mark.everyday
def test_a_job_of_a_block_is_stored_with_its_commit_or_not_at_all(project: Project) -> None:
    assert project.python(BLOCKS) == "[False, False, False, False, True, True, True]\n"


def test_a_handler_gathers_inside_a_block(project: Project) -> None:
    """The suspension undoes the block, but not the jobs that it waits for."""
    project.write({"orders/tasks.py": TASKS + GATHERS})
    run = "from orders.tasks import Order, jobs, total\nwith jobs.worker():\n    said = total.enqueue().result('60s')\n"
    assert project.python(f"{run}print(said, Order.objects.count())") == "6 1\n"


def test_a_flow_that_was_made_before_keeps_no_other_job_of_its_block_away(project: Project) -> None:
    assert project.python(FLOWS) == "True\nTrue\n"


@pytest.mark.parametrize("parallel", ["1", "2"])
def test_djangos_test_cases(parallel: str, project: Project) -> None:
    postgres = "postgresql" in (project.folder / "project/settings.py").read_text()
    project.write({"orders/tests.py": IN_CASES + (REAL if postgres else "")})

    said = project.manage("test", "--parallel", parallel)

    assert "OK" in said
    assert "being accessed by other users" not in said


def test_a_test_run_never_reaches_the_jobs_of_the_real_database(database_url: str, tmp_path: Path) -> None:
    project = new_project(tmp_path, postgres(database_url))
    project.manage("migrate", "--run-syncdb", "-v", "0")
    project.write({"orders/tests.py": IN_CASES.partition("class")[0] + REAL})

    project.manage("test")

    count = "from tenure.django import jobs; print(sum(jobs.client().store.counts().values()))"
    assert project.python(count) == "0\n"
