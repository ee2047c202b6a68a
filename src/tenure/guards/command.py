"""A guarded command: its output is passed on unchanged, its exit is recorded, and it does not outlive its lock.

The command is forked before anything else happens here (no thread, no connection yet), and waits for a start signal on
a pipe. A *watcher* is forked, too, in a session of its own. Neither depends on this process running:

- The watcher is sent every renewal's deadlines. When renewals stop (the store is unavailable, or this process is
  stopped), it sends SIGTERM at two thirds of the lease and SIGKILL at four fifths. If this process dies, it kills the
  command at once.
- The command leads a process group of its own. Processes that have left the group are found by the token in their
  environment, and get the SIGKILL, too. Background processes that the command leaves when it exits by itself keep
  running, as under a shell: the lock is free by then, and this process passes on their output until they close it, as
  cron does.

Standard input is inherited. So is an output that is a terminal: the command writes to the terminal itself, and its tail
is not kept. The command is in the foreground there, so Ctrl-C goes to the command, and Ctrl-Z suspends both (for longer
than the lease: the lock is lost, and the command killed). Any other output goes through a pipe, a single one if both
outputs have the same destination, so that their order is kept.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import tempfile
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from tenure.core.clock import system_clock
from tenure.core.host import TOKEN_ENV, die_with_parent, end_leftovers, kill_group
from tenure.guards.run import nothing
from tenure.maintenance.holder import Renewal

NOT_EXECUTABLE = 126
TAIL = 4096  #: how many of the last bytes are kept of each output
_CHUNK = 1 << 16
_DRAIN_SECONDS = 1.0
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_DEADLINES = struct.Struct("dd8s")  #: when to ask the command to stop, when to kill it, and its token
_NEVER = float("inf")
_boot = system_clock().boot


# ── Before it starts ────────────────────────────────────────────────────────────────────────────────────────────


def _buffer() -> int:
    """A file without a name; in memory, where no folder for temporary files can be written to."""
    try:
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())
    except OSError:
        return os.memfd_create("tenure-output")


class _Output:
    """One output of the command, or both: the command writes to `theirs`, and from there it is copied to ours."""

    def __init__(self, fds: Sequence[int], *, quiet: bool) -> None:
        self.fds, self._ours, self._quiet = fds, fds[0], quiet
        self._tail = b""
        self._pump: threading.Thread | None = None
        if quiet:  # a file: it is not passed on now, and background processes can still write to it
            self._read = self.theirs = _buffer()
        else:
            self._read, self.theirs = os.pipe()

    @property
    def reads(self) -> int:
        """Where it is read here."""
        return self._read

    def start(self) -> None:
        """The command has started: close its end here, and pass on its output."""
        if not self._quiet:
            os.close(self.theirs)
            self._pump = threading.Thread(target=self._pass_on, name="tenure-output", daemon=True)
            self._pump.start()

    def _pass_on(self) -> None:
        # If our reader is gone, close the pipe: the command gets SIGPIPE, as it would without a guard.
        with suppress(OSError):
            while chunk := os.read(self._read, _CHUNK):
                self._tail = (self._tail + chunk)[-TAIL:]
                _write(self._ours, chunk)
        os.close(self._read)

    def tail(self) -> bytes:
        """The last bytes, once the command has ended. (Background processes may still hold the pipe open.)"""
        if self._pump is not None:
            self._pump.join(_DRAIN_SECONDS)
            return self._tail
        return os.pread(self._read, TAIL, max(0, os.fstat(self._read).st_size - TAIL)) if self._quiet else b""

    def show(self) -> None:
        """Print the output that was held back."""
        offset = 0
        with suppress(OSError):  # nothing reads it
            while self._quiet and (chunk := os.pread(self._read, _CHUNK, offset)):
                offset += len(chunk)
                _write(self._ours, chunk)

    def pass_all_on(self) -> None:
        """Pass on output until every process has closed it."""
        if self._pump is not None:
            self._pump.join()


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # another process made our output non-blocking
            select.select([], [fd], [])


def _outputs(*, quiet: bool) -> list[_Output]:
    piped = [fd for fd in (1, 2) if quiet or not os.isatty(fd)]
    if piped == [1, 2] and os.path.sameopenfile(1, 2):
        return [_Output((1, 2), quiet=quiet)]
    return [_Output((fd,), quiet=quiet) for fd in piped]


class Command:
    """A forked command that waits until `start`. `with Command(["report.py"], quiet=False) as command: …`

    Create it in the main thread, before any other thread: the fork dies with the thread that created it. `others`:
    the commands created before.
    """

    def __init__(self, argv: Sequence[str], *, quiet: bool, others: Sequence[Command] = ()) -> None:
        while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
            """Fill closed standard descriptors, so that none of the pipes below takes their place."""
        os.close(spare)
        self.outputs = _outputs(quiet=quiet)
        self._wake_in, self._wake_out = os.pipe()
        for end in (self._wake_in, self._wake_out):
            os.set_blocking(end, False)
        self._terminal = _our_terminal()
        go, self._go = os.pipe()
        self._refusal, refusal = os.pipe()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if a parent left it ignored, waitpid would fail
        parent, environment = os.getpid(), _environment()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._go)
            for fd in (fd for other in others for fd in other.ends):
                os.close(fd)
            _become(argv, environment, parent, self.outputs, go, refusal)
        with suppress(OSError):  # the fork has done it itself, and may have ended
            os.setpgid(self.pid, self.pid)
        os.close(go)
        os.close(refusal)
        deadlines, self._deadlines_out = os.pipe()
        self._lock = threading.Lock()
        self._deadlines, self._token = (_NEVER, _NEVER), b""
        self._watcher = os.fork()
        if self._watcher == 0:
            _watch(self.pid, deadlines)
        os.close(deadlines)
        os.set_blocking(self._deadlines_out, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discard a command that was never started, and end the watcher."""
        if self._go >= 0:
            os.close(self._go)
            os.waitpid(self.pid, 0)
        self._end_watcher()

    @property
    def ends(self) -> list[int]:
        """The ends of pipes held here before the start: the other side waits until every process has closed them.

        A reader would never see the end of the output, and a command never get SIGPIPE once its reader is gone.
        """
        reads = (output.reads for output in self.outputs if output.reads != output.theirs)
        return [self._go, self._refusal, self._deadlines_out, *(output.theirs for output in self.outputs), *reads]

    @property
    def at_terminal(self) -> bool:
        """Is it in the foreground of a terminal while it runs?"""
        return self._terminal is not None

    # ── its watcher ──

    def renewed(self, renewal: Renewal) -> None:
        """Extend the deadlines. From any thread."""
        self._deadlines = renewal.ask_at, renewal.kill_at
        self._update_watcher()

    def _update_watcher(self) -> None:
        with self._lock, suppress(OSError):  # it is gone, or stopped with a full pipe: `_run` checks deadlines, too
            if self._watcher:
                os.write(self._deadlines_out, _DEADLINES.pack(*self._deadlines, self._token))

    def _end_watcher(self) -> None:
        with self._lock:
            watcher, self._watcher = self._watcher, 0
        if watcher:
            os.kill(watcher, signal.SIGKILL)  # before the pipe is closed, which it takes for the guard's death
            os.waitpid(watcher, 0)
            os.close(self._deadlines_out)

    # ── running ──

    def start(self, token: str) -> OSError | None:
        """Let the command start. Returns the error if it can't be executed."""
        if self._terminal is not None:
            with suppress(OSError):
                os.tcsetpgrp(self._terminal, self.pid)
        self._token = token.encode()
        self._update_watcher()
        with suppress(BrokenPipeError):  # the watcher has ended it: its lock was lost before it started
            os.write(self._go, self._token)
        os.close(self._go)
        self._go = -1
        for output in self.outputs:
            output.start()
        refusal = os.read(self._refusal, 16)
        return OSError(int(refusal), os.strerror(int(refusal))) if refusal else None

    def wake(self) -> None:
        """Interrupt `rest`. From any thread."""
        with suppress(BlockingIOError):
            os.write(self._wake_out, b"\0")

    @contextmanager
    def signals(self) -> Generator[list[int]]:
        """The signals sent to this process, in order; ignored ones stay ignored (nohup)."""
        got: list[int] = []
        mine = [number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, lambda n, _: got.append(n)) for number in mine}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, nothing)  # only to be woken
        before[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        wakeup = signal.set_wakeup_fd(self._wake_out, warn_on_full_buffer=False)
        try:
            yield got
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    def rest(self, until: float) -> None:
        """Sleep until then (boot clock), or until something happens."""
        select.select([self._wake_in], [], [], min(max(0.0, until - _boot()), 3600.0))
        with suppress(BlockingIOError):
            while os.read(self._wake_in, _CHUNK):
                pass

    def ended(self) -> int | None:
        """The command's exit code, or minus its signal; None while it runs. If it is suspended, so is this process."""
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return None
        if os.WIFSTOPPED(status):
            self._suspend(os.WSTOPSIG(status))
            return None
        self._take_terminal_back()
        return os.waitstatus_to_exitcode(status)

    def done(self) -> None:
        """The command has ended by itself: end the watcher, but leave background processes running."""
        self._end_watcher()

    def _suspend(self, number: int) -> None:
        if self._terminal is None or number != signal.SIGTSTP:
            return
        self._take_terminal_back()
        os.kill(os.getpid(), signal.SIGSTOP)  # the shell takes over here, and resumes us later
        with suppress(OSError):
            os.tcsetpgrp(self._terminal, self.pid)
        self.send(signal.SIGCONT)

    def _take_terminal_back(self) -> None:
        if self._terminal is not None:
            with suppress(OSError):
                os.tcsetpgrp(self._terminal, os.getpgrp())

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    @property
    def has_left(self) -> bool:
        """Does a process of its group run on? After the command itself has ended."""
        with suppress(ChildProcessError):  # as PID 1, or a subreaper, this process has to reap them
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # of another user
            return True
        return True

    def kill(self) -> None:
        kill_group(self.pid)


def _our_terminal() -> int | None:
    """The terminal, if this process is in its foreground: the command takes its place there."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None
    if os.tcgetpgrp(terminal) == os.getpgrp():
        return terminal
    os.close(terminal)
    return None


def _environment() -> dict[str, str]:
    """The environment that this process was given. Python adds LC_CTYPE to it where no locale is set, as under cron."""
    mine = dict(os.environ)
    with suppress(OSError):  # there is no /proc on macOS
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
        if not any(each.startswith(b"LC_CTYPE=") for each in given):
            mine.pop("LC_CTYPE", None)
    return mine


def _become(
    argv: Sequence[str], environment: Mapping[str, str], parent: int, outputs: Sequence[_Output], go: int, refusal: int
) -> NoReturn:
    """In the fork: wait for the start signal, then execute the command."""
    try:
        os.setpgid(0, 0)
        die_with_parent(parent)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
            signal.signal(number, signal.SIG_DFL)
        token = os.read(go, 64).decode()
        if not token:
            os._exit(0)
        for output in outputs:
            for fd in output.fds:
                os.dup2(output.theirs, fd)
        os.execvpe(argv[0], [*argv], {**environment, TOKEN_ENV: token})
    except OSError as error:
        os.write(refusal, str(error.errno).encode())
    finally:
        os._exit(NOT_EXECUTABLE)


def _watch(group: int, deadlines: int) -> NoReturn:
    """In the fork: kill the group when its guard can't, or is gone."""
    try:
        os.setsid()
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_IGN)
        os.dup2(deadlines, 0)
        os.closerange(1, 4096)
        _watch_over(group)
    finally:
        os._exit(0)


def _watch_over(group: int) -> None:
    ask_at, kill_at, token, asks = _NEVER, _NEVER, b"", True
    while True:
        wake_at = min(ask_at if asks else _NEVER, kill_at, _boot() + 3600.0)
        if select.select([0], [], [], max(0.0, wake_at - _boot()))[0]:
            received = os.read(0, _CHUNK)
            if not received:
                kill_group(group)
                end_leftovers(token.decode())
                return
            ask_at, kill_at, token = _DEADLINES.unpack(received[-_DEADLINES.size :])
        elif _boot() >= kill_at:
            kill_group(group)
            end_leftovers(token.decode())
            kill_at = _NEVER
        elif asks and _boot() >= ask_at:
            asks = False
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)
