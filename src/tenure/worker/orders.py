"""Carries out the orders of operators to an embedded worker: stacks of its jobs, asked for outside its event loop."""

from __future__ import annotations

from collections.abc import Mapping

from tenure.maintenance import orders
from tenure.maintenance.orders import Stack
from tenure.maintenance.roster import Turn
from tenure.ports import Store
from tenure.worker import stacks
from tenure.worker.executor import Attempt


def carry_out(store: Store, worker_id: str, running: Mapping[str, Attempt]) -> Turn:
    """Answer the orders to this worker. Drains and restarts are refused before they are given."""
    for order in orders.open_orders(store, worker_id):
        if order.verb == "stack":
            says, found = stacks.answer(running.get(order.job))
            orders.answer(store, Stack(order.job, worker_id, order.who, order.at, store.now(), says, found))
        orders.done(store, order)
    return Turn()
