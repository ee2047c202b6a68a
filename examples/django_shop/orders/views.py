from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from orders.models import Order
from orders.tasks import pay


def shop(request: HttpRequest) -> HttpResponse:
    """The orders, and a button that adds one."""
    if request.method == "POST":
        with transaction.atomic():
            order = Order.objects.create()
            pay.enqueue(order.pk)  # with the order, or not at all
        return redirect("/")
    return render(request, "shop.html", {"orders": Order.objects.order_by("-pk")[:20]})
