"""One run of a guarded command: it and its retries under one lease, its exit code, and what is recorded."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from tenure.core.clock import system_clock
from tenure.core.durations import spell
from tenure.core.host import cause_of, new_token, token_of
from tenure.core.lifecycle import Cancelled, Completed, Failed, Outcome
from tenure.core.text import clean
from tenure.errors import GuardSkipped, StoreAway
from tenure.guards.command import NOT_EXECUTABLE, Command
from tenure.guards.ping import Ping
from tenure.guards.run import GuardedRun, Open, nothing
from tenure.guards.stop import Stopping
from tenure.maintenance.holder import Renewal
from tenure.ports import Progress
from tenure.ports.schedules import Schedule
from tenure.worker.job_log import LogLine, encode

TIMED_OUT, AWAY, NOT_FOUND, BY_SIGNAL = 124, 75, 127, 128
#: How a command ends that was stopped at its terminal, and the exit code that a shell makes of that.
_STOPPED_BY_HAND = {code for n in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM) for code in (-n, BY_SIGNAL + n)}
_NEVER = float("inf")
GROUP_SECONDS = 0.05  #: between two looks whether the group of a command that was asked to stop has ended
_boot = system_clock().boot


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The options of a guarded command. Durations are seconds."""

    timeout: float | None
    grace: float  #: from SIGTERM to SIGKILL
    force: bool
    quiet: bool
    skip_exit: int
    unguarded: bool  #: run it even if the store is unavailable
    ping: str = ""  #: the URL of a dead-man's switch
    retries: int = 0  #: how often a command that fails is run again
    pause: float = 0.0  #: before each of these


class _End(NamedTuple):
    code: int  #: negative for a signal
    stop: Stopping | None = None
    passed_on: int = 0  #: the first signal that was sent to the guard and passed on
    refused: OSError | None = None
    unrecorded: bool = False  #: it ended by itself, and the store did not record that
    tries: int = 1

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
    Raises StoreAway if it did not run because the store was unavailable, InvalidOption, and other StoreErrors.
    """

    def say(text: str) -> None:
        with suppress(OSError, ValueError):  # the reader of our output may be gone: the command and its record go on
            echo(f"{schedule.name}: {text}")

    ping = Ping(wishes.ping, nothing if wishes.quiet else say) if wishes.ping else None
    with ExitStack() as stack:
        tries = _Tries(wishes, say)
        for _ in range(wishes.retries + 1):  # all of them before there is a thread
            tries.add(stack.enter_context(Command(argv, quiet=wishes.quiet, others=tries.commands)))
        try:
            run = _begun(tries, schedule, open_store, wishes, say)
        except GuardSkipped as skipped:
            if not wishes.quiet:
                say(str(skipped))
            return wishes.skip_exit
        if ping is not None:
            ping.tell("start")
        with tries.first.signals() as got:
            end = tries.run(run, got)
            text = _text([output.tail() for output in tries.current.outputs])
            if run is not None and not run.end(_outcome(end, run, wishes, text), text, end.tries):
                end = end._replace(stop=end.stop or "lease_lost", unrecorded=end.stop is None)
        if ping is not None:
            ping.tell("fail" if end.exit_code else "success", f"exit code {end.exit_code}")
        outputs = [output for command in tries.commands[: end.tries] for output in command.outputs]
        if wishes.quiet and end.exit_code:
            for output in outputs:
                output.show()
        if end.refused is not None:
            say(f"{argv[0]}: {'command not found' if end.exit_code == NOT_FOUND else end.refused.strerror}")
        if end.stop is not None and not end.unrecorded:
            say(_stopped(end.stop, run, wishes))
        elif end.unrecorded and run is not None:
            say(f"ended by itself ({cause_of(end.code)}), but that could not be recorded: {run.stop.why}")
        if ping is not None:
            ping.close()
        for output in outputs if end.stop is None or end.unrecorded else ():
            output.pass_all_on()
    return end.exit_code


def _text(tails: Sequence[bytes]) -> str:
    joined = b"".join(tail if tail.endswith(b"\n") else tail + b"\n" for tail in tails if tail)
    return clean(joined.decode(errors="replace"), len(joined))


class _Tries:
    """A command and its retries: one run, under one lease, until one succeeds.

    All are forked first, before there is any thread; each later one waits until the one before has failed.
    """

    def __init__(self, wishes: Wishes, say: Callable[[str], None]) -> None:
        self.commands: list[Command] = []
        self._wishes, self._say = wishes, say
        self._at = 0
        self._log: list[LogLine] = []

    @property
    def first(self) -> Command:
        return self.commands[0]

    @property
    def current(self) -> Command:
        return self.commands[self._at]

    def add(self, command: Command) -> None:
        self.commands.append(command)

    def renewed(self, renewal: Renewal) -> None:
        self.current.renewed(renewal)

    def wake(self) -> None:
        self.first.wake()

    def run(self, run: GuardedRun | None, got: list[int]) -> _End:
        timeout_at = _NEVER if self._wishes.timeout is None else _boot() + self._wishes.timeout
        last_at = timeout_at if run is None else min(timeout_at, run.next_at)  # a retry begins before that
        while True:
            if run is not None:
                self.current.renewed(run.holder.landed)
            end = _run(self.current, self.first, run, got, self._wishes, timeout_at)._replace(tries=self._at + 1)
            by_hand = self.current.at_terminal and end.code in _STOPPED_BY_HAND  # Ctrl-C goes to the command alone
            over = by_hand or end.refused or end.stop or end.passed_on or not end.code
            if over or len(self.commands) == end.tries or not self._may_retry(end, run, last_at):
                return end
            self.current.kill()  # what it left behind would run alongside the next try
            self._at += 1
            if (stopped := self._rest(end, run, got)) is not None:
                return stopped

    def _may_retry(self, end: _End, run: GuardedRun | None, last_at: float) -> bool:
        of, pause = len(self.commands), self._wishes.pause
        failed = f"try {end.tries} of {of}: {cause_of(end.code)}"
        may = _boot() + pause < last_at
        self._tell(
            run,
            f"{failed}; {f'again in {spell(pause)}' if may else 'not again: the next tick, or its timeout, is near'}",
        )
        return may

    def _tell(self, run: GuardedRun | None, text: str) -> None:
        if not self._wishes.quiet:
            self._say(text)
        self._log.append(LogLine(datetime.now(UTC), "warning", text))
        if run is not None:
            run.report(Progress(lease=run.lease, message=text, log=encode(self._log)))

    def _rest(self, end: _End, run: GuardedRun | None, got: list[int]) -> _End | None:
        """The pause before a retry. Returns how the run ends, if it is asked to stop before the retry starts."""
        until = _boot() + self._wishes.pause
        while True:
            over = _boot() >= until  # read first: what comes during the pause is then seen, however long it was
            asked = None if run is None else run.stopping
            if asked or got:
                self._at -= 1
                return end._replace(stop=asked, passed_on=got[0] if got else 0)
            if over:
                return None
            self.first.rest(until if run is None else min(until, run.holder.landed.ask_at))


def _begun(
    command: _Tries, schedule: Schedule, open_store: Open, wishes: Wishes, echo: Callable[[str], None]
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


def _run(
    command: Command, bell: Command, run: GuardedRun | None, got: list[int], wishes: Wishes, timeout_at: float
) -> _End:
    """Run it to its end. `bell` is woken by signals and the heartbeat."""
    if run is not None and (asked := run.stopping):  # as after a suspension of the host: it must not begin any more
        return _End(-signal.SIGTERM, asked)
    refused = command.start(new_token() if run is None else token_of(run.holder.id))
    stop: Stopping | None = None
    passed_on, kill_at = 0, _NEVER
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
        bell.rest(min(kill_at, fenced_at, _NEVER if stop else timeout_at))
    if stop is None and code < 0 and run is not None and run.stopping == "lease_lost":
        stop, kill_at = "lease_lost", run.holder.landed.kill_at  # by the watcher, while this process was stopped
    if stop is not None or passed_on:  # the others of its group have had the signal, too, and may still clean up
        last = kill_at if stop is not None else _boot() + wishes.grace
        while command.has_left and _boot() < last:
            while got:
                command.send(got.pop(0))
            bell.rest(min(last, _boot() + GROUP_SECONDS))
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
    tries = f" (the last of {end.tries} tries)" if end.tries > 1 else ""
    return Failed(f"{cause_of(end.code)}{tries}{last_line and ': '}{last_line}", final=True)


def _stopped(stop: Stopping, run: GuardedRun | None, wishes: Wishes) -> str:
    if stop == "timeout":
        return f"timed out after {spell(wishes.timeout or 0.0)}"
    why = "" if run is None else run.stop.why
    return f"cancelled: {why}" if stop == "cancel" else f"stopped because the lock was lost: {why}"
