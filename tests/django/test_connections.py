"""Connections that the server has closed, as after a restart or an idle timeout."""

from __future__ import annotations

from pathlib import Path

import pytest
from projects import TASKS, new_project, postgres

RUN = """
import psycopg
from orders.models import Order
from orders.tasks import ahold, apay, cut_myself, hold, jobs, pay
from django.db import connection

def cut(only="true"):
    with psycopg.connect({url!r}, autocommit=True) as server:
        return server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE " + only +
                              " AND datname = current_database() AND pid <> pg_backend_pid()").rowcount

order = Order.objects.create().pk
connection.close()
with jobs.worker(concurrency=1):
    {block}
"""

HOLD = """
from pathlib import Path
from asgiref.sync import sync_to_async
from django.db import connection, transaction

def slow(path: str) -> bool:
    first = not Path(path).exists()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        Path(path).touch()
        cursor.execute("SELECT pg_sleep(%s)", [60 if first else 0])
    return True

@jobs.task(retry=1)
def hold(path: str) -> bool:
    return slow(path)

@jobs.task(retry=1)
async def ahold(path: str) -> bool:
    return await sync_to_async(slow)(path)

@jobs.task(retry=1)
def cut_myself() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
"""

IDLE = """
    for task in (pay, apay, pay, apay):
        handle = task.enqueue(order)
        assert handle.result("60s") == 1
        assert jobs.client().store.get(str(handle.id)).attempt == 1, "it met the connection that was cut"
        cut()
"""

RUNNING = """
    from pathlib import Path
    from time import sleep
    from tenure.errors import JobFailed
    from tenure.worker import lost
    lost.BASE_SECONDS = 0.01
    for task in (hold, ahold):
        mark = Path({mark!r}) / task.name
        handle = task.enqueue(str(mark))
        while not cut("query LIKE '%pg_sleep%'"):
            sleep(0.01)
        assert handle.result("60s") is True
        found = jobs.client().store.get(str(handle.id))
        assert (found.attempt, found.failures, found.crashes) == (2, 0, 0), found
        assert pay.enqueue(order).result("60s") == 1
    handle = cut_myself.enqueue()
    try:
        handle.result("60s")
    except JobFailed as error:
        assert "terminating connection" in error.error, error
    found = jobs.client().store.get(str(handle.id))
    assert (found.state, found.attempt, found.failures) == ("dead", lost.FREE + 1, 1), found
"""


SHARED = """
@jobs.task(retry=1)
async def count(pages: int) -> int:
    found = 0
    async for order in Order.objects.all().aiterator(chunk_size=10):
        found += 1
        if found % 10 == 0 and pages:
            pages -= 1
            await (await apay.aenqueue(order.pk)).aresult("60s")  # begins and ends on the same thread
    return found
"""

COUNT = """
from orders.models import Order
from orders.tasks import count, jobs
from django.db import connection
Order.objects.bulk_create(Order() for _ in range(100))
connection.close()
with jobs.worker(concurrency=4):
    assert count.enqueue(5).result("60s") == 100
"""

IN_A_TEST = """
from django.test import TransactionTestCase
from orders.models import Order
from orders.tasks import apay, jobs, pay

class Real(TransactionTestCase):
    def test_a_worker(self):
        orders = [Order.objects.create().pk for _ in range(6)]
        with jobs.worker(concurrency=3):
            handles = [task.enqueue(order) for order in orders for task in (pay, apay)]
            assert [handle.result("60s") for handle in handles] == [1] * 12

    async def test_a_worker_on_the_loop(self):
        order = (await Order.objects.acreate()).pk
        async with jobs.worker(concurrency=3):
            assert await (await apay.aenqueue(order)).aresult("60s") == 1
            assert await (await pay.aenqueue(order)).aresult("60s") == 1
"""


def test_a_worker_that_ended_in_a_test_leaves_no_connection_to_its_database(database_url: str, tmp_path: Path) -> None:
    project = new_project(tmp_path, postgres(database_url, CONN_MAX_AGE=None))
    project.write({"orders/tests.py": IN_A_TEST})

    said = project.manage("test", "--noinput")

    assert "being accessed by other users" not in said
    assert "Ran 2 tests" in said


@pytest.mark.parametrize("age", [pytest.param(None, marks=pytest.mark.everyday), 0, 600])
@pytest.mark.parametrize("block", [pytest.param("idle", marks=pytest.mark.thorough), "running"])
def test_a_lost_connection_costs_no_job_a_failure(
    age: int | None, block: str, database_url: str, tmp_path: Path
) -> None:
    database = postgres(database_url, CONN_MAX_AGE=age)
    project = new_project(tmp_path, database, tasks=TASKS + HOLD)
    project.manage("migrate", "--run-syncdb", "-v", "0")
    text = IDLE if block == "idle" else RUNNING.format(mark=str(tmp_path))

    project.python(RUN.format(url=database_url, block=text.strip()))


def test_an_async_task_leaves_the_connection_that_another_one_is_using(database_url: str, tmp_path: Path) -> None:
    project = new_project(tmp_path, postgres(database_url, CONN_MAX_AGE=0), tasks=TASKS + SHARED)
    project.manage("migrate", "--run-syncdb", "-v", "0")

    project.python(COUNT)
