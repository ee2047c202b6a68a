"""Handlers that start processes: no signal reaches the worker, every child can be ended, and nothing hangs."""

from __future__ import annotations

import pytest

from tenure.ports import Filter

from .harness import Programs

APP = """
import multiprocessing, os, signal, subprocess, sys, time
from concurrent.futures import ProcessPoolExecutor
from tenure import Tenure

jobs = Tenure()
fork = multiprocessing.get_context("fork")

def double(number: int) -> int:
    return 2 * number

def code_of(child) -> int | None:
    # When another thread starts a process, multiprocessing polls all children, and one that it reaps has no exit code
    # for a moment.
    child.join(20)
    until = time.monotonic() + 20
    while child.exitcode is None and time.monotonic() < until:
        time.sleep(0.01)
    return child.exitcode

def wait(started=None) -> None:
    if started is not None:
        started.set()
    # Not one long sleep: Python runs no handler of a signal that comes between its last look and the sleep itself.
    while True:
        time.sleep(0.05)

@jobs.task(timeout="3m")
def pool_in_with() -> list[int]:
    with fork.Pool(2) as pool:
        return pool.map(double, range(4))

@jobs.task(timeout="3m")
def pool_left_early() -> bool:
    with fork.Pool(2) as pool:
        for found in pool.imap_unordered(double, range(1000)):
            return found >= 0
    return False

@jobs.task(timeout="3m")
def terminated_at_once() -> list[int]:
    codes = []
    for _ in range(10):
        child = fork.Process(target=wait)
        child.start()
        child.terminate()
        codes.append(code_of(child))
    return codes

@jobs.task(timeout="3m")
def interrupted() -> int:
    started = fork.Event()
    child = fork.Process(target=wait, args=[started])
    child.start()
    started.wait(20)
    os.kill(child.pid, signal.SIGINT)
    return code_of(child)

@jobs.task(timeout="3m")
def executor(method: str) -> list[int]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        return list(pool.map(double, range(4)))

@jobs.task(timeout="3m")
def program(number: int) -> int:
    naps = "import time\\nprint(flush=True)\\nwhile True: time.sleep(0.05)"
    with subprocess.Popen([sys.executable, "-c", naps], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.stdout.readline()
        process.send_signal(number)
        return process.wait(20)

@jobs.task(timeout="3m")
def sleep() -> int:
    with subprocess.Popen(["sleep", "60"]) as process:
        process.send_signal(signal.SIGINT)
        return process.wait(20)

@jobs.task(timeout="3m")
async def on_the_loop() -> list[int]:
    child = fork.Process(target=wait)
    child.start()
    child.terminate()
    code = code_of(child)
    with fork.Pool(2) as pool:
        return [code, *pool.map(double, range(2))]

@jobs.task(timeout="3m")
async def leaves_by_exit() -> int:
    pid = os.fork()
    if pid == 0:
        sys.exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

@jobs.task
def child_of_a_child() -> int:
    return 1

def enqueue() -> None:
    child_of_a_child.enqueue()

@jobs.task(timeout="3m")
def enqueues_in_a_child() -> int:
    child = fork.Process(target=enqueue)
    child.start()
    return code_of(child)
"""
RESULTS = {
    "pool_in_with.enqueue()": "[0,2,4,6]",
    "pool_left_early.enqueue()": "true",
    "terminated_at_once.enqueue()": str([-15] * 10).replace(" ", ""),
    "interrupted.enqueue()": "1",
    "enqueues_in_a_child.enqueue()": "0",
    "executor.enqueue('fork')": "[0,2,4,6]",
    "executor.enqueue('spawn')": "[0,2,4,6]",
    "executor.enqueue('forkserver')": "[0,2,4,6]",
    "program.enqueue(int(signal.SIGTERM))": "-15",
    "program.enqueue(int(signal.SIGINT))": "-2",
    "sleep.enqueue()": "-2",
    "on_the_loop.enqueue()": "[-15,0,2]",
    "leaves_by_exit.enqueue()": "3",
}


@pytest.mark.stores("sqlite", "postgres", "redis")
def test_a_handler_starts_processes_and_ends_them(programs: Programs) -> None:
    programs.write(APP, "app.py")
    programs.run("from app import *\n" + "\n".join(RESULTS))

    worked = programs.work(APP, "-c", "2", limit=240)

    with programs.store() as store:
        jobs = {job.id: job for job in store.search(Filter(), limit=100).jobs}
        attempts = {job.id: store.attempts(job.id) for job in jobs.values() if job.attempt > 1}
    found = {job.task + (job.payload or ""): (job.state, job.attempt, job.result, job.error) for job in jobs.values()}
    ran = [job for job in sorted(jobs.values(), key=lambda job: job.id) if job.task != "child_of_a_child"]
    assert [job.result for job in ran] == list(RESULTS.values()), (found, worked.err)
    again = "".join(f"{jobs[job].task} {jobs[job].payload}: {each}\n" for job in attempts for each in attempts[job])
    assert {(job.state, job.attempt) for job in jobs.values()} == {("completed", 1)}, again + worked.err
    assert len(jobs) == len(RESULTS) + 1  # child_of_a_child, which a child enqueued
