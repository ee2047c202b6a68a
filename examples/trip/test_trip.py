from __future__ import annotations

from typing import Any

import pytest

from tenure import Fail, JobHandle
from tenure.testing import TestQueue
from trip import Agency, SoldOut, book, cancel, jobs, trip


class FakeAgency(Agency):
    """Knows what is booked. `lost`: it books, and its answer never arrives."""

    def __init__(self, *, full: str = "", lost: str = "") -> None:
        self.full, self.lost = full, lost
        self.booked: dict[str, str] = {}
        self.made = 0

    def book(self, what: str, key: str) -> str:
        if what == self.full:
            raise SoldOut(what)
        self.made += key not in self.booked
        self.booked[key] = what
        if what == self.lost:
            raise ConnectionError("no answer")
        return what

    def cancel(self, key: str) -> None:
        self.booked.pop(key, None)


def play(queue: TestQueue, handle: JobHandle[Any]) -> None:
    """Run the job until it has ended; failures are retried when they are due."""
    while handle.status().state not in {"completed", "dead"}:
        try:
            queue.drain(failures="retry")
        except (SoldOut, ConnectionError, Fail):
            continue
        queue.advance("1m")


def test_a_trip_is_booked_as_a_whole() -> None:
    agency = FakeAgency()
    with jobs.testing(resources={Agency: agency}) as queue:
        handle = trip.enqueue(["flight", "hotel", "car"])
        queue.drain()

        assert handle.result() == ["flight", "hotel", "car"]
        assert sorted(agency.booked.values()) == ["car", "flight", "hotel"]
        assert queue.enqueued(cancel) == []


@pytest.mark.parametrize("agency", [FakeAgency(full="car"), FakeAgency(lost="car")], ids=["sold out", "answer lost"])
def test_if_one_part_fails_for_good_nothing_stays_booked(agency: FakeAgency) -> None:
    with jobs.testing(resources={Agency: agency}) as queue:
        handle = trip.enqueue(["flight", "hotel", "car"])
        play(queue, handle)

        assert str(handle.status().error).startswith("not booked: ")
        assert agency.booked == {}
        assert len(queue.enqueued(cancel)) == 3


def test_wherever_it_dies_each_part_is_booked_once() -> None:
    agency = FakeAgency()
    with jobs.testing(resources={Agency: agency}) as queue:

        def check() -> None:
            assert agency.made == 3
            assert len(queue.enqueued(book)) % 3 == 0
            agency.booked.clear()
            agency.made = 0

        points = queue.kill_everywhere(lambda: trip.bind(["flight", "hotel", "car"]), check)

    assert {"start", "listed book", "gather book", "start #2", "end"} <= set(points)
