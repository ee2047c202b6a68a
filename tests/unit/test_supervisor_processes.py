"""Worker processes as their supervisor sees them: killed from any thread, and watched while the store is silent."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tenure.app import processes
from tenure.core.host import kill_carriers, kill_group
from tenure.core.lifecycle import Released
from tenure.events import Events, StartDelayed
from tenure.supervisor.fence import Fence
from tenure.supervisor.mainloop import MainLoop
from tenure.supervisor.process import Ended, WorkerProcess
from tenure.supervisor.processes import FIRST_SPARE_SECONDS, MAX_BACKOFF_SECONDS, ProcessTable
from tenure.supervisor.settler import rest_of
from tenure.supervisor.spares import Spares
from tenure.supervisor.starts import LONG_SECONDS, Starts
from tenure.supervisor.watch import Watch
from tenure.worker.link import Link
from waiting import until

SLEEPER = (sys.executable, "-c", "import time; time.sleep(1000)")


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    worker = WorkerProcess.start(SLEEPER)
    worker.registered = True
    yield worker
    worker.end()


def fence(*workers: WorkerProcess, now: float = 25.0) -> Fence:
    shared: Any = SimpleNamespace(boot=lambda: now, processes=workers, settings=SimpleNamespace(lease=1.0))
    return Fence(shared)


def fenced(worker: WorkerProcess, now: float) -> bool:
    pause = fence(worker, now=now).step()
    assert pause < 0.2, "the kill is at four fifths of the lease, and others rescue its jobs when it ends"
    return worker.lifeline.fenced


def test_a_worker_is_killed_once_its_lease_is_about_to_end(worker: WorkerProcess) -> None:
    assert not fenced(worker, 1000.0), "it has no lease yet"
    worker.lifeline.kill_at = 24.0
    assert not fenced(worker, 24.0)
    assert fenced(worker, 24.1)
    ended = worker.wait()
    assert ended is not None
    assert (ended.code, worker.kill_reason) == (-9, "its lease could not be renewed in time")


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
print(child.pid, file=open(sys.argv[1], "w"), flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("first", ["it is killed", "it has died"])
def test_what_a_worker_left_outside_its_group_ends_with_its_lease_though_nobody_has_reaped_it(
    tmp_path: Path, first: str
) -> None:
    worker, child = with_child(tmp_path / "pid")
    try:
        if first == "it has died":
            die(worker, signal.SIGSEGV)
        assert fenced(worker, 25.0) == (first == "it is killed"), "of one that has died how it ended is known"
        until(lambda: not alive(child), "its child to end")
        ended = worker.wait()
        assert ended is not None
        expected = (-9, "its lease could not be renewed in time") if first == "it is killed" else (-11, "")
        assert (ended.code, worker.kill_reason) == expected
    finally:
        worker.end()


def test_all_that_late_workers_left_is_looked_for_at_once_and_not_again_once_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[set[str]] = []

    def look(tokens: set[str]) -> set[str]:
        looks.append(set(tokens))
        return kill_carriers(tokens)

    monkeypatch.setattr("tenure.supervisor.fence.kill_carriers", look)
    (one, child), (other, another) = (with_child(tmp_path / name) for name in ("one", "other"))
    late = fence(one, other)
    try:
        late.step()
        assert looks == [{one.token, other.token}]
        until(lambda: not alive(child) and not alive(another), "their children to end")
        until(lambda: not kill_carriers([one.token, other.token]), "all of them to be gone")
        late.step()
        late.step()
        assert len(looks) == 2
    finally:
        one.end()
        other.end()


def with_child(told: Path) -> tuple[WorkerProcess, int]:
    """A worker that is late, and a process that it has started in another session."""
    worker = WorkerProcess.start((sys.executable, "-c", PARENT, str(told)))
    worker.registered, worker.lifeline.kill_at = True, 24.0
    return worker, int(until(lambda: told.exists() and told.read_text(encoding="utf-8").strip(), "its child"))


def die(worker: WorkerProcess, number: int) -> None:
    """The process has ended by itself, and was not reaped."""
    os.kill(worker.process.pid, number)
    os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOWAIT)


def test_a_worker_that_has_died_is_not_settled_as_one_that_was_killed(worker: WorkerProcess) -> None:
    die(worker, signal.SIGSEGV)
    worker.kill("it was declared dead")
    ended = worker.wait()
    assert ended is not None
    assert (ended.code, worker.kill_reason) == (-11, "")


def test_a_stop_signal_may_come_in_the_middle_of_a_kill(worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handler kills all workers, in the thread that is killing one."""
    reasons = ["a stop signal"]

    def interrupted(pid: int) -> None:
        kill_group(pid)
        if reasons:
            worker.kill(reasons.pop())

    monkeypatch.setattr("tenure.supervisor.process.kill_group", interrupted)
    kills = threading.Thread(target=worker.kill, args=("it was told to",), daemon=True)
    kills.start()
    kills.join(30.0)
    assert not kills.is_alive()
    assert worker.kill_reason == "it was told to"


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False


def test_what_killed_a_worker_first_is_what_it_is_settled_by(worker: WorkerProcess) -> None:
    worker.lifeline.kill_at = 24.0
    worker.kill("one of its jobs hung")
    assert not fenced(worker, 25.0)
    assert worker.kill_reason == "one of its jobs hung"


def test_a_pid_is_not_killed_once_its_process_was_reaped(
    worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    worker.kill("it was told to")
    assert worker.wait() is not None
    monkeypatch.setattr("tenure.supervisor.process.kill_group", killed.append)
    worker.kill("it was declared dead")
    worker.lifeline.kill_at = 24.0
    assert not fenced(worker, 25.0), "how it ended is known already"
    assert (killed, worker.kill_reason, worker.wait()) == ([], "it was told to", None)


def test_a_worker_can_be_killed_while_its_supervisor_waits_for_its_end(worker: WorkerProcess) -> None:
    """As where no pidfd tells of the exit: the supervisor waits once the link to the worker has closed."""
    ended: list[Any] = []
    waits = threading.Thread(target=lambda: ended.append(worker.wait()))
    waits.start()
    worker.kill("it was told to")
    waits.join(30.0)
    assert [each.code for each in ended] == [-9]


class Stalls:
    """A watch of one worker whose loop is blocked, next to a store that answers when a test lets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.answers, self.answered, self.task = 2.0, threading.Event(), 0, "pack"
        self.told: list[Any] = []
        self.worker = SimpleNamespace(
            id="w",
            registered=True,
            ready=True,
            drained=False,
            kill_reason="",
            stall="",
            stall_reported=0.0,
            stalled_at=0.0,
            blockers=(),
            stopped_since=None,
            end_by=1000.0,
            process=SimpleNamespace(pid=os.getpid()),
            dump=SimpleNamespace(fileno=lambda: 0),
            hello={"functions": {"pack": ("shop.py", "pack")}},
            lifeline=SimpleNamespace(tick=0.5),
        )
        self.loop = MainLoop()
        shared: Any = SimpleNamespace(
            boot=lambda: self.now,
            outage=SimpleNamespace(ongoing=False),
            processes=[self.worker],
            store=SimpleNamespace(search=self.search),
            loop=self.loop,
            events=SimpleNamespace(emit=self.told.append),
        )
        monkeypatch.setattr("tenure.supervisor.stalls.dump", lambda *_: "")
        monkeypatch.setattr("tenure.supervisor.stalls.name", lambda *_: (self.task, "shop.py:7"))
        self.watch = Watch(shared, lambda: None)

    def search(self, *_: object, **__: object) -> Any:
        assert self.answers.wait(30.0)
        self.answered += 1
        return SimpleNamespace(jobs=[SimpleNamespace(id=f"job {self.answered}")])

    def hear(self, count: int) -> None:
        until(lambda: self.loop.turn(0.1) or len(self.told) >= count, "the words of it")


def test_a_stall_is_noted_at_once_though_the_store_does_not_say_which_jobs_it_holds_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stalls = Stalls(monkeypatch)
    stalls.watch.turn()
    assert stalls.worker.stall == "its loop is blocked by pack at shop.py:7"
    assert (stalls.answered, stalls.told) == (0, [])
    stalls.answers.set()
    stalls.hear(1)
    assert stalls.told[0].job_ids == stalls.worker.blockers == ("job 1",)


def test_the_jobs_of_an_earlier_stall_are_not_blamed_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    stalls = Stalls(monkeypatch)
    stalls.answers.set()
    stalls.watch.turn()
    stalls.hear(1)
    stalls.now, stalls.worker.lifeline.tick, stalls.task = 10.0, 10.0, ""
    stalls.watch.turn()
    assert stalls.worker.stall == ""
    stalls.now = 12.0
    stalls.watch.turn()
    assert stalls.worker.stall.startswith("its loop is blocked by unknown code")
    assert stalls.worker.blockers == ()


def test_a_stall_that_is_over_when_the_store_answers_is_told_and_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    stalls = Stalls(monkeypatch)
    stalls.watch.turn()
    stalls.now = stalls.worker.lifeline.tick = 3.0
    stalls.watch.turn()
    assert stalls.worker.stall == ""
    stalls.answers.set()
    stalls.hear(1)
    assert (stalls.told[0].job_ids, stalls.told[0].seconds, stalls.worker.blockers) == (("job 1",), 1.5, ())


def test_the_jobs_of_a_worker_that_fenced_itself_are_not_charged() -> None:
    fenced = SimpleNamespace(fenced=True)
    worker = SimpleNamespace(drained=False, lifeline=fenced, verdicts={}, kill_reason="", stopped_since=None)

    outcome = rest_of(cast("WorkerProcess", worker), Ended(-9, 0))

    assert outcome == Released("its worker's lease could not be renewed")


class BrokenPipe(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_a_supervisor_goes_on_though_nobody_reads_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `tenure worker 2>&1 | head`."""
    closed = io.StringIO()
    closed.close()
    for stderr in (BrokenPipe(), closed):
        monkeypatch.setattr("sys.stderr", stderr)
        processes._print("it says something")


STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.mark.parametrize("ignored", [True, False], ids=["nohup", "without nohup"])
def test_a_hangup_that_is_ignored_stays_ignored(ignored: bool) -> None:
    before = {number: signal.getsignal(number) for number in STOPS}
    wakeup = signal.set_wakeup_fd(-1)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        MainLoop().on_stop_signal(lambda: None)
        found = [signal.getsignal(number) for number in STOPS]
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
    handled = [each not in (signal.SIG_IGN, signal.SIG_DFL, before[signal.SIGINT]) for each in found]
    assert handled == [True, True, not ignored]


def test_a_worker_with_a_high_file_number_is_removed() -> None:
    """As with some hundred workers, each of which takes five files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2000), limits[1]))
    heard: list[dict[str, Any]] = []
    table = ProcessTable(
        SLEEPER,
        MainLoop(),
        lambda: 0.0,
        on_message=lambda worker, message: heard.append(message),
        on_exit=lambda worker: None,
        stopping=lambda: False,
        echo=print,
    )
    ours, theirs = socket.socketpair()
    try:
        worker = WorkerProcess.start(SLEEPER)
        worker.link.close()
        worker.link = Link(socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 1500)))
        table.spares = cast("Spares", SimpleNamespace(fill=lambda: None, take=lambda: worker))
        table.start("worker")
        Link(theirs).send("drained")
        worker.kill("a test has ended it")
        assert worker.wait() is not None

        table.remove(worker)
        assert (heard, len(table)) == ([{"kind": "drained"}], 0)
        worker.close()
    finally:
        ours.close()
        theirs.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_store_that_is_away_for_days_is_tried_again_every_half_minute() -> None:
    table = ProcessTable(
        SLEEPER,
        MainLoop(),
        lambda: 0.0,
        on_message=lambda worker, message: None,
        on_exit=lambda worker: None,
        stopping=lambda: False,
        echo=print,
    )
    for _ in range(1100):
        table._schedule_start()

    assert table._start_at[:3] == [1.0, 2.0, 4.0]
    assert table._start_at[-1] == MAX_BACKOFF_SECONDS


# ── Spares ──


def test_the_first_spare_is_started_a_moment_after_the_first_worker_is_ready_and_the_next_ones_at_once() -> None:
    now, started = 100.0, list[int]()
    table = ProcessTable(
        SLEEPER,
        MainLoop(),
        lambda: now,
        on_message=lambda worker, message: None,
        on_exit=lambda worker: None,
        stopping=lambda: False,
        echo=print,
    )
    table.spares = cast("Spares", SimpleNamespace(fill=lambda: started.append(round(now)), take=table.spares.take))
    try:
        table.start("worker")
        (first,) = table
        now += FIRST_SPARE_SECONDS
        table.start_due()
        assert not started, "a worker is starting"

        table.started(first)
        now += FIRST_SPARE_SECONDS - 0.5
        table.start_due()
        assert not started, "the jobs that were queued have the processors"
        now += 0.5
        table.start_due()
        assert started == [110]

        table.start("worker")
        table.start_due()
        assert started == [110], "a worker is starting"
        _, second = table
        table.started(second)
        assert started == [110, 110]
    finally:
        for worker in table:
            worker.end()


def test_a_process_that_has_no_handler_for_the_signal_is_not_asked_where_it_is(worker: WorkerProcess) -> None:
    """It would be killed: Python itself may take long to start."""
    told: list[StartDelayed] = []
    events, now = Events(), [0.0]
    events.subscribe(StartDelayed, told.append)
    starts = Starts([worker], events, lambda: now[0])
    for now[0] in (0.0, LONG_SECONDS - 1, LONG_SECONDS, LONG_SECONDS + 1, 2 * LONG_SECONDS, 4 * LONG_SECONDS - 1):
        starts.turn()
    assert [each.seconds for each in told] == [LONG_SECONDS, 2 * LONG_SECONDS]
    assert {each.doing for each in told} == {"it opens the store"}
    assert not worker.reap(), "it runs"
    worker.ready = True
    now[0] *= 10
    starts.turn()
    assert len(told) == 2
