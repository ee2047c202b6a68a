"""Incoming rings, and permits as each listener wants them: requests to the server, answers to its messages."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Literal

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from tenure.notifiers.inbox import Inbox
from tenure.notifiers.nats.address import Names
from tenure.notifiers.nats.connection import FAULTS, RETRY_SECONDS, Connection, Refused, start, subscribe
from tenure.notifiers.nats.publisher import RESCUED, Note
from tenure.notifiers.nats.stream import Stream
from tenure.ports import ANY, Permit, Ring

PULL_SECONDS = 10.0
HEARTBEAT_SECONDS = 2.5
SILENT_SECONDS = 2 * HEARTBEAT_SECONDS + 1  #: after this much silence a pull is dead
_KINDS: tuple[Literal["queued", "due", "cancel"], ...] = ("queued", "due", "cancel")


class _Pull:
    """A request for messages that the server has received, or should have."""

    __slots__ = ("left", "queue", "seen_at")

    def __init__(self, queue: str, left: int) -> None:
        self.queue, self.left, self.seen_at = queue, left, time.monotonic()


class NatsPermits:
    """Wanted and received permits, counted from the start, so that `want` and an arrival can't race each other."""

    def __init__(self, call: Callable[..., None], deliveries: Deliveries, inbox: Inbox) -> None:
        self._call, self._deliveries, self.inbox = call, deliveries, inbox
        self._lock = threading.Lock()
        self._taken: defaultdict[str, int] = defaultdict(int)  # handed to the worker so far
        self._received: defaultdict[str, int] = defaultdict(int)  # accepted from the server so far
        self._most: dict[str, int] = {}  # the limit of `_received`
        self._fresh: list[Permit] = []
        self.held: dict[str, str] = {}  #: receipt → queue; only for the connection's thread, like everything below
        self.pulls: dict[str, _Pull] = {}  #: by their own inbox; one per queue, else nothing tells which is served

    # ── the worker's side ──

    def want(self, slots: Mapping[str, int]) -> None:
        with self._lock:
            most = {queue: self._taken[queue] + number for queue, number in slots.items()}
            if most == self._most:
                return
            self._most = most
        self._call(self._deliveries.top_up, self)

    def take(self) -> list[Permit]:
        with self._lock:
            fresh, self._fresh = self._fresh, []
            for permit in fresh:
                self._taken[permit.queue] += 1
        return fresh

    def settle(self, permits: Iterable[Permit], *, again_in: float | None = None) -> None:
        answer = b"" if again_in is None else _nak(again_in)
        receipts = [permit.receipt for permit in permits]
        if receipts:
            self._call(self._deliveries.settle, self, receipts, answer)

    # ── the connection's side ──

    def wanted(self) -> dict[str, int]:
        """How many permits are still wanted, by queue."""
        with self._lock:
            return {queue: most - self._received[queue] for queue, most in self._most.items()}

    def arrive(self, permit: Permit) -> bool:
        """False: it is no longer wanted."""
        with self._lock:
            if self._received[permit.queue] >= self._most.get(permit.queue, 0):
                return False
            self._received[permit.queue] += 1
            self._fresh.append(permit)
        self.held[permit.receipt] = permit.queue
        self.inbox.put(())
        return True

    def asked(self, queue: str) -> bool:
        return any(pull.queue == queue for pull in self.pulls.values())

    def served(self, queue: str) -> None:
        """A message of this queue arrived."""
        for name, pull in self.pulls.items():
            if pull.queue == queue:
                pull.left -= 1
                pull.seen_at = time.monotonic()
                if pull.left <= 0:
                    del self.pulls[name]
                return


def _nak(again_in: float) -> bytes:
    return b'-NAK {"delay": %d}' % int(again_in * 1e9) if again_in > 0 else b"-NAK"


class Deliveries:
    """The listeners of this process, their requests and messages. For the connection's loop only."""

    def __init__(self, connection: Connection, stream: Stream, names: Names) -> None:
        self._connection, self._stream, self._names = connection, stream, names
        self._listeners: dict[NatsPermits, None] = {}  # in the order in which they were attached
        self._subscriptions: dict[NatsPermits, tuple[Subscription, Subscription]] = {}  # of this connection
        self._answers: dict[str, bytes] = {}  # receipt → answer, not yet sent
        self._number = 0

    # ── listeners ──

    def attach(self, permits: NatsPermits) -> None:
        self._listeners[permits] = None
        if self._connection.client is not None:
            start(self._subscribe(permits))

    async def detach(self, permits: NatsPermits) -> None:
        permits.want({})
        if self._connection.client is not None:
            for subscription in self._subscriptions.pop(permits, ()):
                await subscription.drain()  # type: ignore[no-untyped-call]  # messages in flight are returned
        self._listeners.pop(permits, None)
        self.settle(permits, list(permits.held), _nak(0))
        await self.send_answers()
        if self._connection.client is not None:
            await self._connection.client.flush(1)

    def forget_subscriptions(self) -> None:
        """The connection that had them has ended."""
        self._subscriptions.clear()

    async def subscribe_all(self) -> None:
        """Subscribe all listeners on a new connection."""
        for permits in list(self._listeners):
            await self._subscribe(permits)

    async def _subscribe(self, permits: NatsPermits) -> None:
        client = self._connection.client
        if client is None or permits in self._subscriptions:
            return

        async def on_ring(message: Msg) -> None:
            kind, _, queue = message.data.decode(errors="replace").partition(" ")
            if kind == RESCUED:  # the queue may have delivered its message to the silent host: poll
                permits.inbox.put([ANY])
            for known in _KINDS:  # anything else is foreign, or from a newer version
                if kind == known and queue:
                    permits.inbox.put([Ring(known, queue)])

        async def on_message(message: Msg) -> None:
            self._receive(permits, message)

        self._subscriptions[permits] = (
            await subscribe(client, self._names.ring, on_ring),
            await subscribe(client, f"{self._connection.inbox}.{id(permits)}.*", on_message),
        )
        self.top_up(permits)

    # ── requests ──

    def request_again(self) -> None:
        """On a new connection or a new stream: the server knows none of the requests."""
        for permits in self._listeners:
            permits.pulls.clear()
            self.top_up(permits)

    def top_up(self, permits: NatsPermits) -> None:
        if not self._connection.up.is_set() or permits not in self._subscriptions:
            return
        for queue, number in permits.wanted().items():
            if number <= 0 or permits.asked(queue):
                continue
            self._number += 1
            name = f"{self._connection.inbox}.{id(permits)}.{self._number}"
            permits.pulls[name] = _Pull(queue, number)
            start(self._pull(permits, name, queue, number))

    async def _pull(self, permits: NatsPermits, name: str, queue: str, number: int) -> None:
        try:
            await self._stream.ensure_consumer(queue)
            client = self._connection.client
            if client is not None:
                request = {
                    "batch": number,
                    "expires": int(PULL_SECONDS * 1e9),
                    "idle_heartbeat": int(HEARTBEAT_SECONDS * 1e9),
                }
                subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._names.stream}.{self._names.token(queue)}"
                await client.publish(subject, msgspec.json.encode(request), reply=name)
        except (Refused, *FAULTS):
            self._ask_again_later(permits, name)

    def _ask_again_later(self, permits: NatsPermits, name: str) -> None:
        def again() -> None:
            if permits.pulls.pop(name, None) is not None:
                self.top_up(permits)

        asyncio.get_running_loop().call_later(RETRY_SECONDS, again)

    def replace_lost_pulls(self) -> None:
        """Replace pulls for which the server has been silent for too long."""
        now = time.monotonic()
        for permits in list(self._listeners):
            lost = [name for name, pull in permits.pulls.items() if now - pull.seen_at > SILENT_SECONDS]
            for name in lost:
                self._stream.doubt_consumer(permits.pulls.pop(name).queue)
            if lost:
                self.top_up(permits)

    # ── messages ──

    def _receive(self, permits: NatsPermits, message: Msg) -> None:
        if message.subject.startswith(self._connection.inbox):
            self._note_status(permits, message)
            return
        queue = self._names.queue(message.subject)
        if queue is not None:
            permits.served(queue)
        permit = _read(message, queue)
        if permit is None:
            self._connection.warn("a message that no worker can read is discarded", f"on {message.subject}")
            self._answer(message.reply, b"+TERM")
        elif not permits.arrive(permit):
            self._answer(message.reply, _nak(0))
        if queue is not None and not permits.asked(queue):
            self.top_up(permits)

    def _note_status(self, permits: NatsPermits, message: Msg) -> None:
        """The status of a pull: 100 it is alive, 408 it has expired, 409 and 503 it is lost, or had no consumer."""
        pull = permits.pulls.get(message.subject)
        status = (message.headers or {}).get("Status", "")
        if pull is None or status == "100":
            if pull is not None:
                pull.seen_at = time.monotonic()
            return
        if status in ("408", "404"):
            del permits.pulls[message.subject]
            self.top_up(permits)
        else:
            self._stream.doubt_consumer(pull.queue)
            self._connection.check.set()
            self._ask_again_later(permits, message.subject)

    # ── answers ──

    def settle(self, permits: NatsPermits, receipts: Iterable[str], answer: bytes) -> None:
        for receipt in receipts:
            if permits.held.pop(receipt, None) is not None:
                self._answer(receipt, answer)

    def _answer(self, receipt: str, answer: bytes) -> None:
        if not self._answers:
            start(self.send_answers())
        self._answers[receipt] = answer

    @property
    def settled(self) -> bool:
        """Whether every answer is sent."""
        return not self._answers

    async def send_answers(self) -> None:
        """Without a connection the answers wait: the server accepts a receipt on any connection."""
        while self._answers and (client := self._connection.client) is not None and client.is_connected:
            receipt, answer = next(iter(self._answers.items()))
            try:
                await client.publish(receipt, answer)
            except FAULTS:
                return
            self._answers.pop(receipt, None)

    async def keep_in_progress(self) -> None:
        """Report held messages as in progress, often enough that the server redelivers none of them."""
        while True:
            await asyncio.sleep(min(60.0, self._connection.address.ack_wait / 3))
            await self.report_in_progress()

    async def report_in_progress(self) -> None:
        for permits in list(self._listeners):
            for receipt in list(permits.held):
                if self._connection.client is not None:
                    with suppress(*FAULTS):
                        await self._connection.client.publish(receipt, b"+WPI")


def _read(message: Msg, queue: str | None) -> Permit | None:
    try:
        note = msgspec.json.decode(message.data, type=Note)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if queue is None or note.queue != queue:
        return None
    tokens = message.reply.split(".")  # $JS.ACK.stream.consumer.delivered… or, newer, with domain and account first
    delivered = tokens[4] if len(tokens) == 9 else tokens[6] if len(tokens) > 10 else ""
    if not delivered.isdecimal():
        return None
    return Permit(queue, str(note.job), delivered != "1", message.reply)
