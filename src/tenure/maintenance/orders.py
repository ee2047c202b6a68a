"""What an operator orders of a running worker: the stack of a job, a drain, a restart. Orders travel through the store.

An order is a note, so it reaches a worker on any host. The supervisor of that worker, or the embedded worker itself,
looks for orders once a second, in one read for all of its workers, and removes those that it has carried out. An order
that is not taken within a minute is void. Nothing else is read or written while nobody orders anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, NamedTuple

import msgspec

from tenure.core.text import clean
from tenure.ports import Store

LOOK_SECONDS = 1.0
OPEN_SECONDS = 60.0  #: until an order that has not been taken is void
STACK_SECONDS = 3_600.0  #: how long a stack is kept
STOP_SECONDS = 86_400.0  #: how long the store keeps who stopped a worker: as long as the worker's row
MOST_BYTES = 16_384  #: of a stack, as it is stored
NOT_RUNNING = "its worker did not run it any more, or had not begun it, when it was asked"
Verb = Literal["stack", "drain", "restart"]
_ORDER, _STACK, _STOP = "order:", "stack:", "stop:"
#: Frames of a trace, and traces: the largest of these that fits.
_SIZES = ((200, 20), (100, 20), (50, 20), (25, 20), (12, 12), (6, 8), (4, 4), (2, 2), (1, 1))


@dataclass(frozen=True, slots=True)
class Order:
    """`who` wants this of a worker. A stack is that of a job; a drain and a restart may have a grace, in seconds."""

    verb: Verb
    worker: str
    who: str
    at: datetime
    job: str = ""
    task: str = ""
    grace: float | None = None

    @property
    def key(self) -> str:
        return f"{_ORDER}{self.worker}:{self.job or 'stop'}"


class Frame(NamedTuple):
    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Trace:
    """Where a thread or an asyncio task is: its frames, the innermost last. `left_out` are missing in the middle."""

    name: str
    frames: tuple[Frame, ...]
    left_out: int = 0

    def cut(self, most: int) -> Trace:
        """At most this many frames: the innermost, and some of the outermost."""
        missing = len(self.frames) - most
        if missing <= 0:
            return self
        first = most // 4
        return replace(self, frames=self.frames[:first] + self.frames[first + missing :], left_out=missing)


@dataclass(frozen=True, slots=True)
class Stack:
    """The stack of a running job, as its worker or its supervisor saw it. It contains no values of variables."""

    job: str
    worker: str
    who: str
    asked_at: datetime
    at: datetime
    says: str  #: what these traces are, or why there are none
    traces: tuple[Trace, ...] = ()


Answer = tuple[
    str, tuple[Trace, ...]
]  #: of a worker, or for it: what the traces are, or why there are none; the traces


# ── The orders in a store ───────────────────────────────────────────────────────────────────────────────────────────


def give(store: Store, order: Order) -> Order:
    """Leave the order in the store. Returns the one that is there: another operator's, if that came first."""
    stands = store.swap(order.key, None, _encode(order), ttl=OPEN_SECONDS)
    return order if stands.landed or stands.value is None else _order(stands.value) or order


def open_orders(store: Store, worker: str = "") -> list[Order]:
    """The orders that have not been carried out; without `worker`, those of all workers."""
    texts = store.notes(f"{_ORDER}{worker}:" if worker else _ORDER).values()
    return [order for text in texts if (order := _order(text)) is not None]


def done(store: Store, order: Order) -> None:
    """Remove this order: it has been carried out."""
    text = store.notes(order.key).get(order.key)  # as it was written: another release may encode it differently
    if text is not None and _order(text) == order:
        store.swap(order.key, text, None)


def answer(store: Store, stack: Stack) -> None:
    """Keep this stack as the job's last one, in 16 KiB: frames in the middle of long traces are left out."""
    key = _STACK + stack.job
    store.swap(key, store.notes(key).get(key), _fitted(stack), ttl=STACK_SECONDS)


def last_stack(store: Store, job_id: str) -> Stack | None:
    key = _STACK + job_id
    text = store.notes(key).get(key)
    return None if text is None else _read_stack(text)


def record_stop(store: Store, order: Order) -> None:
    """Record who had this worker stopped. An earlier record is kept."""
    store.swap(_STOP + order.worker, None, _encode(order), ttl=STOP_SECONDS)


def stops(store: Store) -> dict[str, Order]:
    """Who had which worker stopped within the last day, by the worker's id."""
    found = [order for text in store.notes(_STOP).values() if (order := _order(text)) is not None]
    return {order.worker: order for order in found}


# ── Encoding ────────────────────────────────────────────────────────────────────────────────────────────────────────


def traces_of(rows: Iterable[tuple[str, Sequence[Frame]]]) -> tuple[Trace, ...]:
    """Traces of these names and frames, with texts that every store can keep."""
    return tuple(Trace(clean(name, 200), tuple(map(_clean, frames))) for name, frames in rows)


def _clean(frame: Frame) -> Frame:
    return Frame(clean(frame.file, 300), frame.line, clean(frame.function, 150))


def _fitted(stack: Stack) -> str:
    text = ""
    for frames, traces in _SIZES:
        text = _encode(replace(stack, traces=tuple(each.cut(frames) for each in stack.traces[:traces])))
        if len(text.encode()) <= MOST_BYTES:
            break
    return text


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _order(text: str) -> Order | None:
    """None: it is of a newer release, which this one can't carry out."""
    try:
        return _read_order(text)
    except msgspec.DecodeError:
        return None


_read_order = msgspec.json.Decoder(Order).decode
_read_stack = msgspec.json.Decoder(Stack).decode
