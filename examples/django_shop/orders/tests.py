from __future__ import annotations

from django.test import TestCase

from orders.models import Order
from tenure.django import jobs


class Ordering(TestCase):
    def test_an_order_is_paid(self) -> None:
        with jobs.testing() as queue:
            with self.captureOnCommitCallbacks(execute=True):
                self.client.post("/")
            queue.drain()
        self.assertTrue(Order.objects.get().paid)
