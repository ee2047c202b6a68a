"""A worker's process as its supervisor sees it: the files and memory they share, and its state."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from math import inf
from typing import IO, Any, NamedTuple

from tenure.core.durations import spell
from tenure.core.host import TOKEN_ENV, has_ended, kill_group, new_token, worker_id
from tenure.core.lifecycle import Crashed, Outcome
from tenure.maintenance.lifeline import Lifeline
from tenure.ports import Runner
from tenure.worker.link import Link

HUNG_GRACE_SECONDS = 10.0  #: how long a worker has to stop a hung job by itself
RECENT_SECONDS = 5.0  #: how long after a stall its worker may take to store what its jobs reported meanwhile
_REAP_SECONDS = 0.01  #: between two checks whether it has ended, where there is no pidfd


class Ended(NamedTuple):
    """How a process ended."""

    code: int  #: negative for a signal
    peak: int  #: KiB of memory


def _pidfd(pid: int) -> int:
    """-1: this kernel has none, or its sandbox forbids it. The end is then known by its link, and by `reap`."""
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
    except OSError:
        return -1


@dataclass(slots=True)
class WorkerProcess:
    """A worker process, from its start to the settling of its leases."""

    process: subprocess.Popen[bytes]
    pidfd: int
    link: Link
    lifeline: Lifeline
    dump: IO[bytes]
    token: str
    id: str
    runner: Runner = "worker"
    replaces: str = ""
    slots: int = 0
    registered: bool = False
    opening: str = ""  #: the resource that it opens, before it is ready
    ready: bool = False
    draining: bool = False
    drained: bool = False
    retired: bool = False  #: an operator had it drained: no other worker takes its place
    end_by: float = inf  #: its deadline, by the clock of `Watch`
    stopped_since: float | None = None
    hello: Mapping[str, Any] = field(default_factory=dict[str, Any])
    kill_reason: str = ""  #: why this supervisor killed it; '' if it did not
    verdicts: dict[str, Outcome] = field(default_factory=dict[str, Outcome])
    stall: str = ""
    stall_reported: float = 0.0
    stalled_at: float = -inf  #: when its loop was last seen blocked, by the boot clock
    blockers: tuple[str, ...] = ()  #: the jobs of the task that the last stall named
    blocked_at: str = ""  #: and its file and line
    _ended: Ended | None = None  #: until `wait` returns it
    # A stop signal may come in the middle of a kill, and its handler kills, too: the same thread then takes it again.
    _reaping: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def start(cls, command: Sequence[str]) -> WorkerProcess:
        """Start a process that waits for `load`, as the leader of its own process group. Raises OSError if that fails.

        From the main thread only: the process dies with the thread that started it (prctl(2), PR_SET_PDEATHSIG).
        """
        token = new_token()
        ours, theirs = socket.socketpair()
        with theirs, ExitStack() as made:
            made.callback(ours.close)
            lifeline, dump = made.enter_context(closing(Lifeline.create())), tempfile.TemporaryFile()  # noqa: SIM115
            made.callback(dump.close)
            handles = (theirs.fileno(), lifeline.fd, dump.fileno(), os.getpid())
            process = subprocess.Popen(
                [*command, *map(str, handles)],
                pass_fds=handles[:3],
                env={**os.environ, TOKEN_ENV: token},
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
            made.pop_all()
        return cls(process, _pidfd(process.pid), Link(ours), lifeline, dump, token, worker_id(process.pid, token))

    def load(self, runner: Runner, replaces: str) -> None:
        """Tell it to import the app, and to report."""
        self.runner, self.replaces = runner, replaces
        self.link.send("load")

    def drain(self, grace: float, end_by: float) -> None:
        """Tell it to finish its running jobs within the grace, and then exit."""
        self.draining = True
        self.end_by = min(self.end_by, end_by)
        self.link.send("drain", grace=grace)

    def blame(self, job_id: str, silent: float, now: float) -> dict[str, Outcome]:
        """The verdicts because of this job, which has been silent for `silent` seconds; empty: wait.

        Code that blocks the loop silences the other jobs, too: then its job is charged, and the others are not. If it
        is not known whose code it is, the jobs in question run alone next.
        """
        reason = f"hung: silent for {spell(silent)}"
        if now - self.stalled_at > RECENT_SECONDS:
            return {job_id: Crashed(reason, at_fault=True)}
        blocked = now - self.lifeline.tick if self.stall else 0.0
        if job_id not in self.blockers and blocked < HUNG_GRACE_SECONDS:
            return {}
        if not self.blockers:
            return {job_id: Crashed(f"{reason}, while unknown code blocked its worker's event loop", process_died=True)}
        known = len(self.blockers) == 1
        reason = f"hung: it blocked its worker's event loop at {self.blocked_at}"
        verdict = Crashed(reason, process_died=not known, at_fault=known)
        return dict.fromkeys(self.blockers, verdict)

    def kill(self, reason: str) -> None:
        """Kill its process group, unless it was reaped: then its pid may be another process's. From any thread.

        The first reason is kept; none if it has ended by itself, since then it is settled by how it ended.
        """
        with self._reaping:
            if self.process.returncode is None:
                if not has_ended(self.process.pid):
                    self.kill_reason = self.kill_reason or reason
                kill_group(self.process.pid)

    def fence(self) -> None:
        """Kill it as its lease is about to end: none of its jobs is charged. From any thread."""
        with self._reaping:
            if not self.kill_reason:
                self.kill("its lease could not be renewed in time")
                if self.kill_reason:
                    self.lifeline.fence()

    def reap(self) -> bool:
        """Reap the process if it has ended; `wait` says how. Returns whether it has."""
        with self._reaping:  # held only for a moment: it may have to be killed
            if self.process.returncode is None:
                pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
                if pid:
                    code = self.process.returncode = os.waitstatus_to_exitcode(status)
                    self._ended = Ended(code, usage.ru_maxrss)
        return self.process.returncode is not None

    def wait(self) -> Ended | None:
        """Wait for the end of the process and return how it ended; None if that was returned before."""
        while not self.reap():
            time.sleep(_REAP_SECONDS)
        ended, self._ended = self._ended, None
        return ended

    def end(self) -> None:
        """Kill it and forget it: it has run no user code."""
        self.process.kill()  # nothing, if it has ended
        self.process.wait()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.close()

    def close(self) -> None:
        """Close the files and the memory that were shared with it."""
        self.lifeline.close()
        self.dump.close()
        self.link.close()
