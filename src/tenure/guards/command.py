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

import errno
import os
import select
import signal
import struct
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, NoReturn, Self

from tenure.core.clock import system_clock
from tenure.core.durations import spell
from tenure.core.lifecycle import Cancelled, Completed, Failed, Outcome
from tenure.core.text import clean
from tenure.errors import GuardSkipped, StoreAway
from tenure.guards.ping import Ping
from tenure.guards.run import GuardedRun, Open, nothing
from tenure.guards.stop import Stopping
from tenure.liveness.holder import Renewal
from tenure.liveness.host import TOKEN_ENV, cause_of, die_with_parent, end_leftovers, kill_group, new_token, token_of
from tenure.ports.schedules import Schedule

TIMED_OUT, AWAY, NOT_EXECUTABLE, NOT_FOUND, BY_SIGNAL = 124, 75, 126, 127, 128
TAIL = 4096  #: how many of the last bytes are kept of each output
_CHUNK = 1 << 16
_DRAIN_SECONDS = 1.0
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_DEADLINES = struct.Struct("dd8s")  #: when to ask the command to stop, when to kill it, and its token
_NEVER = float("inf")
_boot = system_clock().boot


# ── Before it starts ────────────────────────────────────────────────────────────────────────────────────────────


class _Output:
    """One output of the command, or both: the command writes to `theirs`, and from there it is copied to ours."""

    def __init__(self, fds: Sequence[int], *, quiet: bool) -> None:
        self.fds, self._ours, self._quiet = fds, fds[0], quiet
        self._tail = b""
        self._pump: threading.Thread | None = None
        if quiet:  # a file: it is not passed on now, and background processes can still write to it
            with tempfile.TemporaryFile() as file:
                self._read = os.dup(file.fileno())
            self.theirs = self._read
        else:
            self._read, self.theirs = os.pipe()

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
        with suppress(OSError):  # nobody reads it
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

    Create it in the main thread, before any other thread: the fork dies with the thread that created it.
    """

    def __init__(self, argv: Sequence[str], *, quiet: bool) -> None:
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
        before = {number: signal.signal(number, lambda n, _: got.append(n)) for number in (*mine, signal.SIGCHLD)}
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


# ── Its run ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The options of a guarded command. Durations are seconds."""

    timeout: float | None
    grace: float  #: from SIGTERM to SIGKILL
    force: bool
    quiet: bool
    skip_exit: int
    unguarded: bool  #: run it even if the store is out of reach
    ping: str = ""  #: the URL of a dead-man's switch


class _End(NamedTuple):
    code: int  #: negative for a signal
    stop: Stopping | None = None
    passed_on: int = 0  #: the first signal that was sent to the guard and passed on
    refused: OSError | None = None
    unrecorded: bool = False  #: it ended by itself, and the store did not take that

    @property
    def exit_code(self) -> int:
        if self.refused is not None:
            missing = self.refused.errno in (errno.ENOENT, errno.ENOTDIR)
            return NOT_FOUND if missing else NOT_EXECUTABLE
        if self.unrecorded and self.code:
            return BY_SIGNAL - self.code if self.code < 0 else self.code
        if self.stop in ("timeout", "lease_lost"):
            return TIMED_OUT if self.stop == "timeout" else AWAY
        return BY_SIGNAL - self.code if self.code < 0 else self.code


def run_command(
    argv: Sequence[str], schedule: Schedule, open_store: Open, wishes: Wishes, echo: Callable[[str], None]
) -> int:
    """Run a command as a tick of this schedule; return its exit code.

    Or 128+n: signal n ended it; 124: it timed out; 126: it can't be executed; 127: not found; 75: the lock was lost.
    Raises StoreAway if it did not run because the store was out of reach, InvalidOption, and other StoreErrors.
    """

    def say(text: str) -> None:
        with suppress(OSError, ValueError):  # the reader of our output may be gone: the command and its record go on
            echo(f"{schedule.name}: {text}")

    ping = Ping(wishes.ping, nothing if wishes.quiet else say) if wishes.ping else None
    with Command(argv, quiet=wishes.quiet) as command:
        try:
            run = _begun(command, schedule, open_store, wishes, say)
        except GuardSkipped as skipped:
            if not wishes.quiet:
                say(str(skipped))
            return wishes.skip_exit
        if ping is not None:
            ping.tell("start")
        with command.signals() as got:
            end = _run(command, run, got, wishes)
            text = _text([output.tail() for output in command.outputs])
            if run is not None and not run.end(_outcome(end, run, wishes, text), text):
                end = end._replace(stop=end.stop or "lease_lost", unrecorded=end.stop is None)
        if ping is not None:
            ping.tell("fail" if end.exit_code else "success", f"exit code {end.exit_code}")
        if wishes.quiet and end.exit_code:
            for output in command.outputs:
                output.show()
        if end.refused is not None:
            say(f"{argv[0]}: {'command not found' if end.exit_code == NOT_FOUND else end.refused.strerror}")
        if end.stop is not None and not end.unrecorded:
            say(_stopped(end.stop, run, wishes))
        elif end.unrecorded and run is not None:
            say(f"ended by itself ({cause_of(end.code)}), but that could not be recorded: {run.stop.why}")
        if ping is not None:
            ping.close()
        for output in command.outputs if end.stop is None or end.unrecorded else ():
            output.pass_all_on()
    return end.exit_code


def _text(tails: Sequence[bytes]) -> str:
    joined = b"".join(tail if tail.endswith(b"\n") else tail + b"\n" for tail in tails if tail)
    return clean(joined.decode(errors="replace"), len(joined))


def _begun(
    command: Command, schedule: Schedule, open_store: Open, wishes: Wishes, echo: Callable[[str], None]
) -> GuardedRun | None:
    run = GuardedRun(schedule, open_store, force=wishes.force, on_renewed=command.renewed, on_asked=command.wake)
    try:
        run.begin()
    except StoreAway as away:
        why = str(away).removeprefix(f"{schedule.name}: ")
        if not wishes.unguarded:
            raise StoreAway(
                f"{schedule.name}: not run: {why}. --if-unreachable run would run it without its lock"
            ) from away
        echo(f"running unguarded: {why}")
        return None
    for said in filter(None, (run.begun.late, run.begun.changed)):
        if not wishes.quiet:
            echo(said)
    return run


def _run(command: Command, run: GuardedRun | None, got: list[int], wishes: Wishes) -> _End:
    refused = command.start(new_token() if run is None else token_of(run.holder.id))
    stop: Stopping | None = None
    passed_on, kill_at = 0, _NEVER
    timeout_at = _NEVER if wishes.timeout is None else _boot() + wishes.timeout
    while (code := command.ended()) is None:
        while got:
            passed_on = passed_on or got[0]
            command.send(got.pop(0))
        asked = None if run is None else run.stopping
        if asked == "lease_lost" and run is not None:  # the watcher has sent SIGTERM
            stop, kill_at = asked, min(kill_at, _boot() if run.stop.dead else run.holder.landed.kill_at)
        elif stop is None and (asked or _boot() >= timeout_at):
            stop, kill_at = asked or "timeout", _boot() + wishes.grace
            command.send(signal.SIGTERM)
        if _boot() >= kill_at:
            command.kill()
            kill_at = _boot() + 1.0
        fenced_at = _NEVER if run is None or asked == "lease_lost" else run.holder.landed.ask_at
        command.rest(min(kill_at, fenced_at, _NEVER if stop else timeout_at))
    if stop is None and code < 0 and run is not None and run.stopping == "lease_lost":
        stop = "lease_lost"  # the watcher ended it while this process was stopped
    if stop is not None:
        command.kill()  # what is left of its group
    command.done()
    return _End(code, stop, passed_on, refused)


def _outcome(end: _End, run: GuardedRun, wishes: Wishes, text: str) -> Outcome:
    if end.refused is not None:
        return Failed(f"exit code {end.exit_code}: {end.refused.strerror}", final=True)
    if end.stop == "cancel":
        return Cancelled(run.stop.why)
    if end.stop is not None:
        return Failed(_stopped(end.stop, run, wishes), final=True)
    if end.passed_on and end.code:
        sent = signal.Signals(end.passed_on).name
        return Failed(f"ended by signal: {sent} was sent to its guard; {cause_of(end.code)}", final=True)
    if end.code == 0:
        return Completed('{"exit_code":0}')
    last_line = text.rstrip().rpartition("\n")[2].strip()
    return Failed(f"{cause_of(end.code)}{last_line and ': '}{last_line}", final=True)


def _stopped(stop: Stopping, run: GuardedRun | None, wishes: Wishes) -> str:
    if stop == "timeout":
        return f"timed out after {spell(wishes.timeout or 0.0)}"
    why = "" if run is None else run.stop.why
    return f"cancelled: {why}" if stop == "cancel" else f"stopped because the lock was lost: {why}"
