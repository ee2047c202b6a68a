"""What operators see and do of workers: how one ended, the stack of a running handler, a drain, a restart."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tenure import Task
from tenure.config import load
from tenure.errors import Refused
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.operations.stacks import JobStack
from tenure.operations.workers import Ending, Ran, ending
from tenure.tasks.handle import JobHandle

from . import shop
from .harness import Site, Supervised, send


def pid_of(site: Site, job: JobHandle[Any]) -> int:
    return site.seen(job, "begin").pid


def ends(site: Site, pid: int) -> Ending | None:
    """How the worker with this pid ended."""
    return next((ending(each) for each in site.store.workers(dead=True) if each.identity.pid == pid), None)


def admin(site: Site, who: str = "ada") -> Admin:
    return Admin(site.store, PollNotifier(), load(environ={}), who=who)


def stack(site: Site, job: JobHandle[Any]) -> JobStack:
    job_id = str(job.id)
    admin(site).jobs.ask_for_stack(job_id)
    found = admin(site).jobs.stack(job_id, within=30.0)
    assert found is not None
    return found


def functions(found: JobStack) -> list[list[str]]:
    """The functions of the shop on each trace, without `gone_ahead`: it is in that one now and then."""
    frames = [[each for each in trace.frames if each.file.endswith("shop.py")] for trace in found.traces]
    return [[each.function for each in mine if each.function != "gone_ahead"] for mine in frames]


# ── how a worker ended ──


@pytest.mark.everyday
@pytest.mark.everywhere
def test_a_killed_worker_is_on_record_with_its_signal_and_the_jobs_it_ran(site: Site) -> None:
    jobs = [shop.wait.enqueue(), shop.wait_in_thread.enqueue()]
    site.supervisor(concurrency=2)
    pids = {pid_of(site, job) for job in jobs}
    (pid,) = pids

    send(pid, signal.SIGKILL)

    end = site.until(lambda: ends(site, pid), "how it ended")
    assert end.how == "its process ended: signal 9 (SIGKILL)"
    assert set(end.ran) == {Ran(str(jobs[0].id), "wait"), Ran(str(jobs[1].id), "wait_in_thread")}
    site.go()
    assert [view.state for view in site.ended(*jobs)] == ["completed"] * 2


def test_a_worker_that_exits_by_itself_is_on_record_with_its_exit_code(site: Site) -> None:
    job = shop.leave.enqueue(3)
    site.supervisor()

    pid = pid_of(site, job)

    end = site.until(lambda: ends(site, pid), "how it ended")
    assert (end.how, [each.task for each in end.ran]) == ("its process ended: exit code 3", ["leave"])


def test_a_worker_that_drained_says_so(site: Site) -> None:
    supervisor: Supervised = site.supervisor()
    job = shop.wait.enqueue()
    pid = pid_of(site, job)

    send(pid, signal.SIGTERM)
    site.go()

    end = site.until(lambda: ends(site, pid), "how it ended")
    assert end == Ending("it drained, and stopped")
    assert supervisor.stop() == 0


# ── the stack of a running job ──


@pytest.mark.everyday
@pytest.mark.everywhere
def test_a_running_job_has_a_stack_in_a_thread_and_on_the_loop(site: Site) -> None:
    site.supervisor(concurrency=2)
    in_thread, on_loop = shop.wait_in_thread.enqueue(), shop.wait.enqueue()
    for job in (in_thread, on_loop):
        site.seen(job, "begin")

    first, second = stack(site, in_thread), stack(site, on_loop)

    assert (first.state, first.says, functions(first)) == ("answered", "", [["wait_in_thread"]])
    assert (second.state, second.says, functions(second)) == ("answered", "", [["wait", "until_told"]])
    assert [entry.action for entry in admin(site).audit().entries] == ["jobs.stack"] * 2
    assert site.store.notes("order:") == {}


def test_an_order_is_taken_by_the_supervisor_of_its_worker_and_by_no_other(site: Site) -> None:
    site.supervisor(concurrency=1)
    first = shop.wait.enqueue()
    site.seen(first, "begin")
    site.supervisor(concurrency=1)
    second = shop.wait.enqueue()
    site.seen(second, "begin")

    found = [stack(site, job) for job in (first, second)]

    assert [each.worker for each in found] == [site.worker(job).identity.id for job in (first, second)]
    assert [functions(each) for each in found] == [[["wait", "until_told"]]] * 2
    admin(site).workers.stop(found[0].worker, "drain", within=30.0)
    site.go()
    site.until(lambda: len(site.store.workers()) == 1, "one worker to be left")
    assert site.store.workers()[0].identity.id == found[1].worker


@pytest.mark.parametrize("task", [shop.block_the_loop, shop.hold_the_gil], ids=lambda task: task.name)
def test_a_worker_that_can_not_answer_is_seen_from_outside(site: Site, task: Task[[], None]) -> None:
    site.supervisor()
    job = task.enqueue()
    site.seen(job, "begin")

    found = stack(site, job)

    assert found.says.startswith("its worker did not answer, as its event loop is blocked or its code holds the GIL")
    assert functions(found)[0] == [task.name]
    assert found.traces[0].name == f"the thread of the event loop, which runs {task.name}"
    site.go()
    assert site.ended(job)[0].state == "completed"


def test_a_process_that_is_stopped_is_said_to_answer_nothing(site: Site) -> None:
    site.supervisor(lease="4m")
    job = shop.wait.enqueue()
    pid = pid_of(site, job)
    send(pid, signal.SIGSTOP)

    found = stack(site, job)

    assert (found.traces, found.says.partition(":")[0]) == ((), "its process answers neither a message nor a signal")
    send(pid, signal.SIGCONT)
    site.go()
    assert site.ended(job)[0].state == "completed"


# ── drain and restart ──


@pytest.mark.everyday
@pytest.mark.everywhere
def test_a_worker_that_is_restarted_by_order_finishes_its_job_and_has_a_successor(site: Site) -> None:
    site.supervisor()
    job = shop.wait.enqueue()
    pid, worker = pid_of(site, job), site.worker(job).identity.id

    says = admin(site).workers.stop(worker, "restart", within=30.0)
    with pytest.raises(Refused, match=r"ada ordered a restart of worker .* ago: it finishes 1 job"):
        admin(site, "bob").workers.stop(worker, "drain")
    stop = admin(site).workers.stops()[worker]
    site.go()
    site.until(lambda: ends(site, pid), "its end")  # until its own loop has the order, it may claim another job
    later = shop.wait.enqueue()

    assert says == f"worker {worker} drains: it finishes 1 job; then its supervisor starts another one"
    assert (stop.verb, stop.who, stop.taken) == ("restart", "ada", True)
    assert [(view.state, view.attempt) for view in site.ended(job, later)] == [("completed", 1)] * 2
    assert site.seen(later, "begin").pid != pid
    with pytest.raises(Refused, match=f"worker {worker} ended .* ago: it drained, and stopped"):
        admin(site).workers.stop(worker, "drain")
    assert [(each.who, each.action) for each in admin(site).audit().entries[::-1]] == [
        ("ada", "workers.restart"),
        ("bob", "workers.drain"),
    ]


def test_a_worker_that_is_drained_by_order_has_no_successor_and_the_last_one_ends_its_supervisor(site: Site) -> None:
    supervisor = site.supervisor(workers=2)
    site.until(lambda: len(site.store.workers()) == 2, "two workers")
    first, second = (each.identity for each in site.store.workers())

    admin(site).workers.stop(first.id, "drain", within=30.0)
    site.until(lambda: ends(site, first.pid), "its end")
    job = shop.wait.enqueue()
    assert pid_of(site, job) == second.pid
    assert [each.identity.id for each in site.store.workers()] == [second.id]
    admin(site).workers.stop(second.id, "drain", grace=0.0, within=30.0)

    assert supervisor.exit_code() == 0
    # once by its attempt, and again if a claim was on its way that met it then
    assert (site.job(job).state, set(site.outcomes(job))) == ("queued", {"released"})
    assert site.store.workers() == []
