from __future__ import annotations

from itertools import count

import pytest

from payments import Gateway, jobs, pay, pay_safely, receipt


class FakeGateway(Gateway):
    def __init__(self) -> None:
        self.charged: list[int] = []
        self._seen: set[str] = set()

    def charge(self, order: int, cents: int, key: str = "") -> str:
        if not key or key not in self._seen:
            self.charged.append(order)
        self._seen.add(key)
        return f"charge of {order}"


def test_a_payment_is_charged_twice() -> None:
    gateway = FakeGateway()
    with jobs.testing(resources={Gateway: gateway}) as queue:
        queue.run_twice(pay.bind(7, cents=995))

    assert gateway.charged == [7, 7]  # found, before a customer finds it


def test_wherever_it_dies_it_is_charged_once_and_has_one_receipt() -> None:
    gateway, orders = FakeGateway(), count(1)

    with jobs.testing(resources={Gateway: gateway}) as queue:

        def check() -> None:
            assert gateway.charged == list(range(1, gateway.charged[-1] + 1))
            assert len(queue.enqueued(receipt)) == len(gateway.charged)

        points = queue.kill_everywhere(lambda: pay_safely.bind(next(orders), cents=995), check)

    assert {"acted charge", "once charge", "finish", "end"} <= set(points)


@pytest.mark.parametrize("point", ["start", "once charge", "end"])
def test_an_attempt_that_lost_its_lease_sends_no_second_receipt(point: str) -> None:
    gateway = FakeGateway()
    with jobs.testing(resources={Gateway: gateway}) as queue:
        handle = queue.steal_lease(pay_safely.bind(7, cents=995), point)
        queue.drain()

        assert handle.result("0s") == "charge of 7"
        assert len(queue.enqueued(receipt)) == 1
