"""Programs that fork: nothing that was stored is lost, and nothing waits for a thread that does not exist.

A child of a fork inherits what the SQLite library remembers of its parent's locks, which the child does not hold.
"""

from __future__ import annotations

import pytest

from .harness import Programs

APP = """
import ctypes, multiprocessing, os, signal, sys, threading
from tenure import Tenure
from tenure.errors import StoreError

def same(number: int) -> int:
    return number

jobs = Tenure()
task = jobs.task(same)
other_app = Tenure()
other = other_app.task(same)
fork = multiprocessing.get_context("fork")
"""


# ── a client that forks ──


@pytest.mark.stores("sqlite", "postgres", "redis")
@pytest.mark.parametrize("uses", ["task", "other"])
@pytest.mark.parametrize("parent", [pytest.param("leaves the block", marks=pytest.mark.everyday), "exits", "goes on"])
def test_a_program_and_its_child_both_store_all_that_they_enqueue(programs: Programs, uses: str, parent: str) -> None:
    programs.run(f"""{APP}
def work() -> None:
    {uses}.enqueue(0)
    begun.set()
    assert go.wait(60)
    for number in range(60):
        {uses}.enqueue(number)

begun, go = fork.Event(), fork.Event()
with jobs:
    for number in range(20):
        task.enqueue(number)
    child = fork.Process(target=work)
    child.start()
    assert begun.wait(60)
    if {parent != "leaves the block"}:
        go.set()
    if {parent == "exits"}:
        sys.exit()
    if {parent == "goes on"}:
        for number in range(20):
            task.enqueue(number)
go.set()
child.join()
sys.exit(child.exitcode)
""")
    assert programs.stored() == 20 + 1 + 60 + (20 if parent == "goes on" else 0)


@pytest.mark.parametrize("child", ["os._exit(0)", "sys.exit()", "with jobs: task.enqueue(0)", "raise KeyError"])
def test_however_a_child_ends_its_parent_keeps_its_file(programs: Programs, child: str) -> None:
    programs.run(f"""{APP}
with jobs:
    for number in range(6):
        task.enqueue(number)
        pid = os.fork()
        if pid == 0:
            {child}
            sys.exit()
        os.waitpid(pid, 0)
        task.enqueue(number)
""")
    assert programs.stored() == 12 + (6 if "enqueue" in child else 0)


@pytest.mark.parametrize("children", ["task", "other"])
def test_threads_enqueue_while_their_process_forks(programs: Programs, children: str) -> None:
    ran = programs.run(f"""{APP}
def work() -> None:
    for number in range(10):
        {children}.enqueue(number)

def enqueue() -> None:
    while not done.is_set():
        task.enqueue(1)
        stored.append(1)

done, stored = threading.Event(), []
threads = [threading.Thread(target=enqueue) for _ in range(4)]
for each in threads:
    each.start()
children = [fork.Process(target=work) for _ in range(15)]
for each in children:
    each.start()
for each in children:
    each.join()
done.set()
for each in threads:
    each.join()
assert [each.exitcode for each in children] == [0] * 15
print(len(stored))
""")
    assert programs.stored() == int(ran.out) + 150


@pytest.mark.stores("sqlite", "postgres", "redis")
def test_an_embedded_worker_goes_on_while_its_process_forks(programs: Programs) -> None:
    programs.run(f"""{APP}
def work() -> None:
    for number in range(5):
        task.enqueue(number)

with jobs.worker(concurrency=4):
    handles = [task.enqueue(number) for number in range(50)]
    for _ in range(10):
        child = fork.Process(target=work)
        child.start()
        handles += [task.enqueue(number) for number in range(5)]
        child.join()
        assert child.exitcode == 0
    for handle in handles:
        handle.result("30s")
""")
    with programs.store() as store:
        counts = store.counts()
    assert counts["completed"] + counts["queued"] == sum(counts.values())
    assert programs.stored() == 50 + 10 * 10


def test_a_preforking_server_with_a_preloaded_app(programs: Programs) -> None:
    ran = programs.run(f"""{APP}
import socket

task.enqueue(0)  # the app was used while it was loaded
listener = socket.create_server(("127.0.0.1", 0))

def serve() -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(100)
            connection.sendall(str(task.enqueue(1).id).encode())

def start() -> int:
    pid = os.fork()
    if pid == 0:
        serve()
    return pid

def get() -> str:
    with socket.create_connection(listener.getsockname(), timeout=30) as connection:
        connection.sendall(b"GET")
        return connection.recv(100).decode()

pids = [start() for _ in range(3)]
ids = [get() for _ in range(10)]
os.kill(pids[0], signal.SIGKILL)
os.waitpid(pids.pop(0), 0)
ids += [get() for _ in range(10)]
pids.append(start())
ids += [get() for _ in range(10)]
for pid in pids:
    os.kill(pid, signal.SIGTERM)
ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
assert ended == [-signal.SIGTERM] * 3, ended
task.enqueue(2)
print(len(set(ids)))
""")
    assert ran.out == "30\n"
    assert programs.stored() == 32


# ── a fork that cannot wait for what is going on ──


def test_a_fork_inside_a_transaction_loses_nothing_and_its_child_is_told(programs: Programs) -> None:
    ran = programs.run(f"""{APP}
with jobs.transaction() as tx:
    task.using(tx=tx).enqueue(1)
    pid = os.fork()
    if pid == 0:
        for use in (lambda: task.enqueue(2), lambda: other.enqueue(2), lambda: task.using(tx=tx).enqueue(2)):
            try:
                use()
            except StoreError as error:
                print(error, flush=True)
        sys.exit(7)  # leaves the parent's block
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    task.using(tx=tx).enqueue(3)
task.enqueue(4)
""")
    assert len(ran.lines) == 3
    assert all("fork" in line for line in ran.lines), ran.out
    assert programs.stored() == 3


@pytest.mark.parametrize("busy", ["transaction", "backup"])
def test_a_fork_waits_for_what_another_thread_does_or_its_child_is_told(programs: Programs, busy: str) -> None:
    ran = programs.run(f"""{APP}
begun, go = threading.Event(), threading.Event()

def transaction() -> None:
    with jobs.transaction() as tx:
        task.using(tx=tx).enqueue(1)
        begun.set()
        assert go.wait(60)

def backup() -> None:
    def progress(done: int, total: int) -> None:
        begun.set()
        assert go.wait(60)
    jobs.client().store.backup("copy.db", progress)
    task.enqueue(1)

for number in range(5):
    task.enqueue(number)
thread = threading.Thread(target={busy})
thread.start()
assert begun.wait(60)
def go_on_later() -> None:
    threading.Timer(float(sys.argv[1]) if len(sys.argv) > 1 else 0.3, go.set).start()

os.register_at_fork(before=go_on_later)  # called before Tenure's own, which waits
pid = os.fork()
if pid == 0:
    try:
        other.enqueue(2)
        print("stored", flush=True)
    except StoreError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
go.set()
thread.join()
task.enqueue(3)
""")
    assert ran.out == "stored\n"
    assert programs.stored() == 8


def test_a_child_that_leaves_its_parents_large_transaction_takes_nothing_of_it(programs: Programs) -> None:
    """Another process reads the file while the parent has it open: the child has not touched the index they share."""
    ran = programs.run(f"""{APP}
import subprocess
def length(text: str) -> int:
    return len(text)

long = jobs.task(length)
file = os.environ["TENURE_URL"].removeprefix("sqlite:///")
with jobs.transaction() as tx:
    before, stored = os.path.getsize(file + "-wal"), 0
    while os.path.getsize(file + "-wal") < before + 2_000_000:  # SQLite has written a part of it before the commit
        long.using(tx=tx).enqueue("x" * 200_000)
        stored += 1
    pid = os.fork()
    if pid == 0:
        sys.exit(7)  # leaves the parent's block
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    task.using(tx=tx).enqueue(1)
task.enqueue(2)
look = "import sqlite3, sys; run = sqlite3.connect(sys.argv[1]).execute; " + (
    "print(*run('PRAGMA integrity_check').fetchone(), *run('SELECT count(*) FROM jobs').fetchone())")
found = subprocess.check_output([sys.executable, "-c", look, file], text=True)
print(found == f"ok {{stored + 2}}\\n", found)
""")
    assert ran.out.startswith("True "), ran.out


def test_a_fork_that_python_did_not_see_is_told(programs: Programs) -> None:
    """Servers written in C fork by themselves, and call only what follows in the child."""
    ran = programs.run(f"""{APP}
with jobs:
    task.enqueue(1)
    pid = ctypes.PyDLL(None).fork()
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        try:
            other.enqueue(2)
        except StoreError as error:
            print(error, flush=True)
        sys.exit()
    os.waitpid(pid, 0)
    task.enqueue(3)
""")
    assert "fork" in ran.out
    assert programs.stored() == 2
