"""The link between a supervisor and a worker, and what was rescued on its way through it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tenure.core.lifecycle import State
from tenure.events import Events, JobRescued
from tenure.ports import Rescued
from tenure.supervisor.traces import MOST_KEPT, PORTION, TraceRelay
from tenure.worker.link import Link


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    ours, theirs = map(Link, socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


class Relay:
    """A relay that has much to send to one worker."""

    def __init__(self, link: Link) -> None:
        self._events = Events()
        self._relay = TraceRelay(self._events)
        self._relay.wanted = True
        self.worker: Any = SimpleNamespace(ready=True, draining=False, stall="", stopped_since=None, link=link)

    def hear_of(self, count: int) -> None:
        for number in range(count):
            rescued = Rescued(
                id=str(number),
                task="task",
                queue="default",
                attempt=1,
                worker_id="other",
                cause="host",
                state=State.QUEUED,
                message="m" * 1000,
            )
            self._events.emit(JobRescued(rescued=rescued))

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self._relay.turn([self.worker])


def received(link: Link, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += link.receive()
    return found


def test_a_worker_that_reads_nothing_does_not_hold_up_its_supervisor(ends: tuple[Link, Link]) -> None:
    ours, theirs = ends
    relay = Relay(ours)
    relay.hear_of(MOST_KEPT)
    turns = threading.Thread(target=relay.turn, args=(500,), daemon=True)
    turns.start()
    turns.join(20.0)
    assert not turns.is_alive()

    sent = len(received(theirs, 1))
    threading.Thread(target=ours.send, args=("drain",), daemon=True).start()
    messages = received(theirs, 1)
    while messages[-1]["kind"] != "drain":
        messages += received(theirs, 1)
    assert {message["kind"] for message in messages[:-1]} <= {"rescued"}, "each message is whole"
    assert sent + len(messages) - 1 < MOST_KEPT / PORTION, "not all of them had room"


def test_what_had_no_room_is_sent_once_there_is_some(ends: tuple[Link, Link]) -> None:
    ours, theirs = ends
    relay = Relay(ours)
    relay.hear_of(MOST_KEPT)
    relay.turn(500)
    jobs: list[str] = []
    while len(jobs) < MOST_KEPT:
        jobs += [job["id"] for message in received(theirs, 1) for job in message["jobs"]]
        relay.turn()
    assert jobs == [str(number) for number in range(MOST_KEPT)]


def test_a_worker_that_is_stopped_is_sent_nothing(ends: tuple[Link, Link]) -> None:
    ours, theirs = ends
    relay = Relay(ours)
    relay.hear_of(PORTION)
    relay.worker.stopped_since = 1.0
    relay.turn()
    ours.send("drain")
    assert [message["kind"] for message in received(theirs, 1)] == ["drain"]
    relay.worker.stopped_since = None
    relay.turn()
    assert [message["kind"] for message in received(theirs, 1)] == ["rescued"]
