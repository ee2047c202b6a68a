"""A guarded command is not started if its run was asked to stop before that."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tenure.guards import command as forked
from tenure.guards.command_run import Wishes, _Tries
from tenure.guards.stop import Stopping

WISHES = Wishes(timeout=None, grace=0.0, force=False, quiet=True, skip_exit=0, unguarded=False, retries=1)


class Command:
    """A command that fails as soon as it is started."""

    def __init__(self) -> None:
        self.started, self.at_terminal, self.code = False, False, 3
        self.kill: Callable[[], None] = lambda: None

    def start(self, token: str) -> None:
        self.started = True

    def ended(self) -> int:
        return self.code

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Run:
    """A run that is asked to stop when the test says so."""

    def __init__(self, stopping: Stopping | None = None) -> None:
        self.stopping = stopping
        self.next_at, self.lease = float("inf"), None
        self.holder = SimpleNamespace(id="host-1-a", landed=SimpleNamespace(ask_at=float("inf")))
        self.stop = SimpleNamespace(dead=False)

    def report(self, new: object) -> None: ...


def tries() -> tuple[_Tries, list[Command]]:
    found, commands = _Tries(WISHES, lambda _: None), [Command(), Command()]
    for command in commands:
        found.add(cast("Any", command))
    return found, commands


@pytest.mark.parametrize("reason", ["lease_lost", "cancel"])
def test_no_retry_is_started_once_the_run_is_asked_to_stop_even_without_a_pause(reason: Stopping) -> None:
    run = Run()

    def kill() -> None:
        run.stopping = reason  # after the end of the first try

    some, commands = tries()
    commands[0].kill = kill

    end = some.run(cast("Any", run), [])

    assert [command.started for command in commands] == [True, False]
    assert (end.stop, end.code, end.tries) == (reason, 3, 1)


def test_no_retry_is_started_after_a_signal_to_the_guard_even_without_a_pause() -> None:
    got: list[int] = []
    some, commands = tries()
    commands[0].kill = lambda: got.append(15)

    end = some.run(None, got)

    assert [command.started for command in commands] == [True, False]
    assert (end.passed_on, end.tries) == (15, 1)


@pytest.mark.parametrize("at_terminal", [True, False])
@pytest.mark.parametrize("code", [-signal.SIGINT, -signal.SIGQUIT, -signal.SIGTERM, 130, 131, 143])
def test_no_retry_follows_a_command_that_was_stopped_by_hand_at_its_terminal(code: int, at_terminal: bool) -> None:
    some, commands = tries()
    commands[0].code, commands[0].at_terminal = code, at_terminal

    end = some.run(None, [])

    assert commands[1].started is not at_terminal
    assert end.tries == (1 if at_terminal else 2)


@pytest.mark.parametrize("reason", ["lease_lost", "cancel"])
def test_a_command_whose_run_was_asked_to_stop_before_it_began_is_not_started(reason: Stopping) -> None:
    some, commands = tries()

    end = some.run(cast("Any", Run(reason)), [])

    assert not any(command.started for command in commands)
    assert end.stop == reason
    assert end.exit_code == (75 if reason == "lease_lost" else 143)


def test_a_command_that_its_watcher_ended_before_it_started_has_ended_by_that_signal() -> None:
    with forked.Command(["true"], quiet=True) as waits:
        os.kill(waits.pid, signal.SIGTERM)
        os.waitid(os.P_PID, waits.pid, os.WEXITED | os.WNOWAIT)

        assert waits.start("token") is None
        assert waits.ended() == -signal.SIGTERM
