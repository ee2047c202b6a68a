"""What a listener has received: `drain` reads a line itself, and no line keeps the descriptor readable for good."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tenure.notifiers.inbox import Inbox
from tenure.ports import Ring

QUEUED, DUE = Ring("queued", "mail"), Ring("due", "mail")


class Line:
    """A pipe; each byte in it is a ring."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe()
        os.set_blocking(self.out, False)
        self.failures = list[None]()

    def send(self) -> None:
        os.write(self.into, b"x")

    def read(self) -> list[Ring]:
        with suppress(BlockingIOError):
            if not (received := os.read(self.out, 10)):
                raise ConnectionError("the line is closed")
            return [QUEUED] * len(received)
        return []

    def failed(self) -> None:
        self.failures.append(None)


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    inbox = Inbox()
    yield inbox
    inbox.close()


@pytest.fixture
def line() -> Line:
    return Line()


def readable(inbox: Inbox) -> bool:
    return bool(select.select([inbox.fileno()], [], [], 0)[0])


needs_epoll = pytest.mark.skipif(not hasattr(select, "epoll"), reason="on this system the listener's thread reads")


def test_what_is_put_is_drained_once(inbox: Inbox) -> None:
    assert not readable(inbox)
    inbox.put([QUEUED, DUE, QUEUED])
    assert readable(inbox)
    assert inbox.drain() == [QUEUED, DUE]
    assert not readable(inbox)


@needs_epoll
def test_a_line_is_read_by_drain(inbox: Inbox, line: Line) -> None:
    with inbox.read_by_drain(line.out, line.read, line.failed) as reader:
        assert reader.by_drain
        assert not readable(inbox)
        line.send()
        assert readable(inbox)
        assert inbox.drain() == [QUEUED]
        assert not readable(inbox)
        inbox.put([DUE])
        line.send()
        assert set(inbox.drain()) == {QUEUED, DUE}
    line.send()
    assert not readable(inbox)
    assert inbox.drain() == []
    assert not line.failures


def test_without_epoll_the_thread_reads_it(monkeypatch: pytest.MonkeyPatch, line: Line) -> None:
    monkeypatch.delattr(select, "epoll", raising=False)
    inbox = Inbox()
    with inbox.read_by_drain(line.out, line.read, line.failed) as reader:
        assert not reader.by_drain
        line.send()
        assert inbox.drain() == []
        reader.read()
        assert readable(inbox)
        assert inbox.drain() == [QUEUED]
    inbox.close()


@needs_epoll
@pytest.mark.parametrize("lacking", ["epoll", "dup"])
def test_what_can_not_be_opened_just_now_leaves_no_file(
    lacking: str, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    before = len(list(Path("/dev/fd").iterdir()))
    monkeypatch.setattr(select if lacking == "epoll" else os, lacking, too_many)
    with ExitStack() as left:
        if lacking == "epoll":
            with pytest.raises(OSError, match="Too many open files"):
                Inbox()
        else:
            inbox = Inbox()
            left.callback(inbox.close)
            reader = left.enter_context(inbox.read_by_drain(line.out, line.read, line.failed))
            line.send()
            assert not reader.by_drain
            reader.read()
            assert inbox.drain() == [QUEUED]
    assert len(list(Path("/dev/fd").iterdir())) == before


@needs_epoll
def test_what_fails_in_drain_is_told_to_the_thread_and_nobody_else(inbox: Inbox, line: Line) -> None:
    with inbox.read_by_drain(line.out, line.read, line.failed) as reader:
        os.close(line.into)
        assert readable(inbox)
        assert inbox.drain() == []
        assert len(line.failures) == 1
        assert not readable(inbox), "the loop would spin"
        assert inbox.drain() == []
        assert len(line.failures) == 1
        with pytest.raises(ConnectionError, match="the line is closed"):
            reader.read()


@needs_epoll
def test_a_line_whose_driver_closed_it_while_a_fork_has_a_copy_is_let_go(inbox: Inbox, line: Line) -> None:
    copy = os.dup(line.out)  # as a forked child has it: the file stays open
    with inbox.read_by_drain(line.out, line.read, line.failed):
        os.close(line.out)
        os.close(line.into)
        assert readable(inbox)
    assert not readable(inbox), "nobody could take it out any more"
    os.close(copy)


@needs_epoll
def test_a_forked_child_reads_nothing_of_its_parents_line(inbox: Inbox, line: Line) -> None:
    with inbox.read_by_drain(line.out, line.read, line.failed):
        line.send()
        child = os.fork()
        if not child:
            found = inbox.drain()
            inbox.close()
            os._exit(len(found))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert readable(inbox)
        assert inbox.drain() == [QUEUED]


@needs_epoll
def test_an_inbox_that_is_closed_first_leaves_nothing_open(line: Line) -> None:
    inbox = Inbox()
    before = len(list(Path("/dev/fd").iterdir()))
    fileno = inbox.fileno()
    with inbox.read_by_drain(line.out, line.read, line.failed):
        inbox.close()
        assert inbox.drain() == []
        assert inbox.fileno() == fileno, "whoever stops twice asks twice"
    with inbox.read_by_drain(line.out, line.read, line.failed) as reader:  # a server that answers as late as that
        assert not reader.by_drain
    assert len(list(Path("/dev/fd").iterdir())) == before - 3  # its pipe, and the epoll
