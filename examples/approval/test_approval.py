from __future__ import annotations

import pytest

from approval import Decision, Mail, jobs, order
from tenure.errors import InvalidArguments


class FakeMail(Mail):
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, whom: str, job: str) -> None:
        self.asked.append(whom)


def test_a_small_order_asks_nobody() -> None:
    mail = FakeMail()
    with jobs.testing(resources={Mail: mail}) as queue:
        handle = order.enqueue(1, cents=995)
        queue.drain()

        assert handle.result() == "order 1 is sent"
        assert mail.asked == []


@pytest.mark.parametrize(("yes", "said"), [(True, "sent"), (False, "declined")])
def test_the_buyer_decides(yes: bool, said: str) -> None:
    mail = FakeMail()
    with jobs.testing(resources={Mail: mail}) as queue:
        handle = order.enqueue(1, cents=200_000)
        queue.drain()
        queue.assert_waiting(handle, signal="decision")

        assert handle.signal("decision", Decision("ada", yes=yes))
        queue.drain()

        assert handle.result() == f"order 1 is {said}, as ada has decided"
        assert mail.asked == ["buyer"]


def test_without_an_answer_the_boss_is_asked_and_then_it_is_declined() -> None:
    mail = FakeMail()
    with jobs.testing(resources={Mail: mail}) as queue:
        handle = order.enqueue(1, cents=200_000)
        queue.drain()
        queue.advance("2d")
        queue.drain()
        queue.assert_waiting(handle, signal="decision")
        assert mail.asked == ["buyer", "boss"]

        queue.advance("5d")
        queue.drain()
        assert handle.result() == "order 1 is declined: nobody has decided"
        assert not handle.signal("decision", Decision("ada", yes=True))  # too late: it reverses nothing


def test_a_decision_that_comes_before_it_is_asked_for_is_not_lost() -> None:
    with jobs.testing(resources={Mail: FakeMail()}) as queue:
        handle = order.enqueue(1, cents=200_000)
        handle.signal("decision", Decision("ada", yes=True))
        queue.drain()

        assert handle.result().endswith("as ada has decided")


def test_what_is_no_decision_is_refused_where_it_is_sent() -> None:
    with jobs.testing():
        with pytest.raises(InvalidArguments):
            order.enqueue(1, cents=200_000).signal("decision", "yes")


def test_wherever_it_dies_nobody_is_asked_for_nothing_and_time_begins_once() -> None:
    mail = FakeMail()
    with jobs.testing(resources={Mail: mail}) as queue:

        def check() -> None:
            assert set(mail.asked) == {"buyer", "boss"}
            mail.asked.clear()

        numbers = iter(range(100))
        points = queue.kill_everywhere(lambda: order.bind(next(numbers), cents=200_000), check)

    assert {"once ask the buyer", "expect decision", "once ask the boss", "expect escalated"} <= set(points)
