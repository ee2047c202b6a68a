"""Carries out the orders of operators to this supervisor's workers: stacks of running jobs, drains and restarts.

A worker answers for itself. If its event loop is blocked it can't, and faulthandler writes the stacks of its threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from tenure.maintenance import orders
from tenure.maintenance.orders import LOOK_SECONDS, Answer, Order, Stack
from tenure.maintenance.roster import Row, Turn
from tenure.supervisor import stalls
from tenure.supervisor.process import WorkerProcess
from tenure.supervisor.shared import Shared

PATIENCE_SECONDS = 1.0  #: a worker that has not answered for this long is asked by a signal
SOON_SECONDS = 0.2  #: until the next look while an answer is awaited


class Orders:
    """Looks for orders in the thread of the roster; workers are told in the main thread, which gets their answers."""

    def __init__(self, shared: Shared, drain: Callable[[WorkerProcess, float | None], None]) -> None:
        self._shared, self._store, self._drain = shared, shared.store, drain
        self._asked: dict[str, float] = {}  # when a worker was asked, by the key of the order
        self._answers: dict[str, Answer] = {}  # by the same key; filled by the main thread
        self.row = Row("orders", self._look, LOOK_SECONDS)

    def _look(self, _: int) -> Turn:
        mine = {worker.id: worker for worker in self._shared.processes if worker.registered}
        found = [order for order in orders.open_orders(self._store) if order.worker in mine]
        self._asked = {order.key: at for order in found if (at := self._asked.get(order.key)) is not None}
        for key in list(self._answers.keys() - self._asked.keys()):
            self._answers.pop(key, None)
        late: dict[str, list[Order]] = {}
        for order in found:
            worker = mine[order.worker]
            if order.verb != "stack":
                orders.record_stop(self._store, order)
                self._shared.loop.call(partial(self._stop, worker, order))
                orders.done(self._store, order)
            elif self._is_late(worker, order):
                late.setdefault(worker.id, []).append(order)
        for worker_id, unanswered in late.items():
            self._shared.loop.call(partial(self._dump, mine[worker_id], unanswered))
        return Turn(next_due=SOON_SECONDS if self._asked else None)

    def _is_late(self, worker: WorkerProcess, order: Order) -> bool:
        """Ask the worker, or store its answer. True: it has not answered in time."""
        answer, asked = self._answers.get(order.key), self._asked.get(order.key)
        if answer is not None:
            says, traces = answer
            at = self._store.now()
            orders.answer(self._store, Stack(order.job, worker.id, order.who, order.at, at, says, traces))
            orders.done(self._store, order)
            del self._asked[order.key]
        elif asked is None:
            self._asked[order.key] = self._shared.boot()
            self._shared.loop.call(partial(worker.link.send, "stack", job=order.job, key=order.key))
        else:
            return self._shared.boot() - asked > PATIENCE_SECONDS
        return False

    # ── in the main thread ──

    def _stop(self, worker: WorkerProcess, order: Order) -> None:
        worker.retired = worker.retired or order.verb == "drain"
        self._drain(worker, order.grace)

    def answered(self, message: Mapping[str, Any]) -> None:
        """A worker has sent the traces of a job."""
        self._answers[message["key"]] = msgspec.convert((message["says"], message["traces"]), Answer)
        self._shared.maintenance.hurry("orders")

    def _dump(self, worker: WorkerProcess, late: Sequence[Order]) -> None:
        """Answer these orders by one dump, which blocks this thread for up to half a second."""
        late = [order for order in late if order.key in self._asked and order.key not in self._answers]
        if not late or worker not in self._shared.processes:
            return
        text = stalls.dump(worker.process.pid, worker.dump.fileno())
        functions = {(file, name): task for task, (file, name) in worker.hello["functions"].items()}
        for order in late:
            traces = stalls.traces(text, functions, order.task)
            says = (
                "its worker did not answer, as its event loop is blocked or its code holds the GIL: these are the "
                "threads of the process"
                if traces
                else "its process answers neither a message nor a signal: it is stopped, or blocked in the kernel"
            )
            self._answers[order.key] = says, traces
        self._shared.maintenance.hurry("orders")
