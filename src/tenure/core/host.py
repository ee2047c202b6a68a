"""This machine and its processes: identities, proof of death, and process groups."""

from __future__ import annotations

import errno
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from tenure.core.clock import HOST_ENV

TOKEN_ENV = "_TENURE_WORKER"  #: in the environment of a worker, and so of every process it starts
_PR_SET_PDEATHSIG = 1


def new_token() -> str:
    return secrets.token_hex(4)


def host_name() -> str:
    return os.environ.get(HOST_ENV) or socket.gethostname()


def worker_id(pid: int, token: str) -> str:
    """`hostname-pid-random`: readable in a log or a query, distinct for every process start."""
    return f"{host_name()}-{pid}-{token}"


def token_of(worker_id: str) -> str:
    return worker_id.rpartition("-")[2]


def pid_namespace() -> str:
    try:
        return os.environ.get(HOST_ENV) or str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def started(pid: int) -> str:
    """When this process started, according to the kernel; '' if that is not known.

    A pid alone proves nothing, since pids are reused.
    """
    try:
        return _stat(pid)[19]
    except OSError:
        return "" if Path("/proc/self/stat").exists() else _started_elsewhere(pid)


def has_ended(pid: int, start: str | None = None) -> bool:
    """Is it proved that this process, which started then, has ended? What can't be read proves nothing.

    /proc can't be read with too many open files, and shows no processes of other users where it is mounted with
    `hidepid` (proc(5)), as systemd's `ProtectProc=` does.
    """
    try:
        fields = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        found = "" if Path("/proc/self/stat").exists() else _started_elsewhere(pid)
        return start not in (None, found) if found else not _exists(pid)
    except OSError:
        return False
    return fields[0] in "ZX" or start not in (None, fields[19])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name in parentheses, which may contain any character."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode("ascii", "replace").split()


def _started_elsewhere(pid: int) -> str:
    try:
        found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return found.stdout.strip()


def is_stopped(pid: int) -> bool:
    """Is it stopped (SIGSTOP), so that it runs no code but keeps its resources?"""
    try:
        return _stat(pid)[0] in "Tt"
    except OSError:
        return False


def catches(pid: int, number: int) -> bool:
    """Has it a handler for this signal? False where /proc is missing."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def memory(pid: int) -> int | None:
    """The resident memory of this process in bytes; None if it is gone, or the kernel does not provide it."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") or None  # a zombie has none


def memories(pids: Mapping[str, int]) -> dict[str, int]:
    """The resident memory of each worker, by its id, where it is known."""
    return {worker: found for worker, pid in pids.items() if (found := memory(pid)) is not None}


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its supervisor dies. Outside Linux, the closed link reveals that instead.

    The signal is sent when the *thread* that started this process ends, and not at all if the parent died before this
    call: so the supervisor starts workers from its main thread, and the parent's pid is checked here (prctl(2),
    PR_SET_PDEATHSIG).
    """
    if sys.platform == "linux":
        import ctypes  # imported late, as in core/forks.py

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def kill_group(pid: int) -> None:
    """Send SIGKILL to a worker's whole process group."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def end_leftovers(token: str, patience: float = 5.0) -> bool:
    """Kill all processes that a dead worker left behind, even outside its process group. True when all are gone.

    Only processes with its token in their environment are killed: a pid alone may be reused by now.
    """
    deadline = time.monotonic() + patience
    while True:
        left = kill_carriers([token])
        if not left or time.monotonic() > deadline:
            return not left
        time.sleep(0.002)


def kill_carriers(tokens: Iterable[str]) -> set[str]:
    """Kill all processes that have one of these tokens in their environment. Returns the tokens that were found.

    If /proc can't be read now, all are returned: there may be such processes.
    """
    markers = {f"{TOKEN_ENV}={token}".encode(): token for token in tokens}
    found: set[str] = set()
    try:
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:  # noqa: PTH208
            mark = next((each for each in _environment(pid) if each in markers), None)
            if mark is not None and pid != os.getpid() and not has_ended(pid):
                found.add(markers[mark])
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
    except FileNotFoundError:
        return set()  # this system has no /proc
    except OSError:
        return set(markers.values())
    return found


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # nothing can be read now
            raise
        return []  # it has ended, or is another user's; the others are looked at all the same


def cause_of(code: int) -> str:
    """How a process ended, in words."""
    if code < 0:
        return f"signal {-code} ({signal.Signals(-code).name})" if -code in set(signal.Signals) else f"signal {-code}"
    return f"exit code {code}"
