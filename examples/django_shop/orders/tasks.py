from __future__ import annotations

from orders.models import Order
from tenure.django import jobs


@jobs.task(retry=5, timeout="1m")
def pay(order: int) -> None:
    Order.objects.filter(pk=order).update(paid=True)
