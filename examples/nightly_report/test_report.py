from __future__ import annotations

import pytest

from report import Sales, Tills, combine, jobs, nightly_report, sales, send
from tenure.testing import TestQueue


class Closed(Tills):
    """One shop does not answer."""

    def __init__(self, shop: int) -> None:
        self.closed: int | None = shop

    def sold(self, day: str, shop: int) -> int:
        if shop == self.closed:
            raise ConnectionError(f"shop {shop} does not answer")
        return super().sold(day, shop)


def play(queue: TestQueue) -> None:
    """Run what can run; failures are retried when they are due, until a job is dead."""
    for _ in range(20):
        queue.drain(failures="retry")
        queue.advance("1m")


def test_five_hundred_parts_are_one_report() -> None:
    with jobs.testing(resources={Tills: Tills()}) as queue:
        run = nightly_report.enqueue()
        queue.drain()

        assert run.result().endswith("124750.00 in all, most in shop 499")
        assert run.status().attempt == 2  # it gave its slot back, and ran again from the top
        assert len(queue.enqueued(sales)) == 500
        assert len(queue.enqueued(send)) == 1


def test_a_shop_that_does_not_answer_holds_the_report_until_its_part_is_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("report.SHOPS", range(20))
    tills = Closed(7)
    with jobs.testing(resources={Tills: tills}) as queue:
        run = nightly_report.enqueue()
        with pytest.raises(ConnectionError):
            play(queue)
        play(queue)
        queue.assert_waiting(run)

        tills.closed = None
        flow = jobs.flow_handle(str(run.status().message).split()[-1])  # or: tenure flows replay ID
        assert flow.replay() == 1
        play(queue)
        assert run.status().state == "completed"


@pytest.mark.parametrize("point", ["start", "flow report", "start #2", "end"])
def test_wherever_it_dies_it_is_made_once(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("report.SHOPS", range(20))
    with jobs.testing(resources={Tills: Tills()}) as queue:
        queue.kill_after(nightly_report.bind(), point)
        queue.drain()

        assert len(queue.enqueued(sales)) == 20
        assert len(queue.enqueued(send)) == 1


def test_the_combining_step_is_a_function_like_any_other() -> None:
    assert combine.call("2026-11-23", [Sales(1, 250), Sales(2, 150)]) == "2026-11-23: 4.00 in all, most in shop 1"
