"""The stack of a running job, on demand: its worker is asked through the store, and answers there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from time import monotonic, sleep
from typing import Literal, TypeVar

from tenure.core.durations import spell
from tenure.core.lifecycle import GUARD, State
from tenure.errors import Refused
from tenure.maintenance import orders
from tenure.maintenance.orders import Order, Trace
from tenure.operations.access import Access
from tenure.operations.explain import stamp
from tenure.operations.workers import ending
from tenure.ports import JobView

T = TypeVar("T")
PATIENCE_SECONDS = 5.0  #: a worker that has not answered within this is reported as not answering
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class JobStack:
    """The last stack of a job. `asked`: its worker has still to answer; `silent`: it should have answered by now."""

    job: str
    worker: str
    state: Literal["asked", "answered", "silent"]
    who: str  #: asked for it
    asked_at: datetime
    at: datetime | None  #: when the worker was seen there
    says: str  #: for people: what the traces are, or why there are none
    traces: tuple[Trace, ...] = ()


def stack_lines(stack: JobStack) -> Iterator[str]:
    """For people, as Python prints a traceback."""
    seen = "" if stack.at is None else f", seen at {stamp(stack.at)}"
    yield f"job {stack.job} on worker {stack.worker}{seen}"
    if stack.says:
        yield stack.says
    for trace in stack.traces:
        yield f"{trace.name}:"
        yield from (f"  {line}" for line in trace_lines(trace))


def trace_lines(trace: Trace) -> Iterator[str]:
    """A line a frame, the innermost last."""
    outer = len(trace.frames) // 4 if trace.left_out else -1
    for place, frame in enumerate(trace.frames):
        if place == outer:
            yield f"… {trace.left_out:,} frames are left out …"
        yield f'File "{frame.file}", line {frame.line}, in {frame.function}'


def ask(access: Access, job: JobView) -> None:
    """Raises Refused."""
    if job.state is not State.PROCESSING or job.worker_id is None:
        raise Refused(f"job {job.id} is {job.state}: only a running job has a stack")
    if job.queue == GUARD:
        raise Refused(f"job {job.id} is the command or function of a guard, whose process takes no orders")
    store = access.store
    with access.recorded("jobs.stack", job.id, worker=job.worker_id):
        orders.give(store, Order("stack", job.worker_id, access.who, store.now(), job.id, job.task))


def last(access: Access, job: JobView) -> JobStack | None:
    """The answer to the last request, or that request while there is none; None: nobody asked lately."""
    store = access.store
    waiting = [each for each in orders.open_orders(store, job.worker_id or "") if each.job == job.id]
    if waiting and job.worker_id:
        return _unanswered(access, waiting[0])
    stack = orders.last_stack(store, job.id)
    if stack is None:
        return None
    return JobStack(job.id, stack.worker, "answered", stack.who, stack.asked_at, stack.at, stack.says, stack.traces)


def _unanswered(access: Access, order: Order) -> JobStack:
    waited = (access.store.now() - order.at).total_seconds()
    if waited < PATIENCE_SECONDS:
        return JobStack(order.job, order.worker, "asked", order.who, order.at, None, "its worker has been asked")
    row = next((each for each in access.store.workers(dead=True) if each.identity.id == order.worker), None)
    end = ending(row) if row is not None else None
    if end is not None:
        why = f"that worker has ended: {end.how}"
    elif row is not None and row.identity.runner == "embedded":
        why = "code in its program holds the GIL, or it can't reach the store, or its release knows no orders"
    else:
        why = "its supervisor hangs, or can't reach the store, or its release knows no orders"
    says = f"worker {order.worker} has not answered for {spell(int(waited))}; {why}"
    return JobStack(order.job, order.worker, "silent", order.who, order.at, None, says)


def awaited(look: Callable[[], T], ready: Callable[[T], bool], seconds: float) -> T:
    """The first answer that is ready, or the last one after `seconds`."""
    until = monotonic() + seconds
    while not ready(found := look()) and monotonic() < until:
        sleep(_LOOK_SECONDS)
    return found
