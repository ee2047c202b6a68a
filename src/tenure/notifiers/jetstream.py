"""The connection to NATS of one process: rings and messages go out, permits come in.

One thread with an event loop has it. A connection that ends is not mended but made anew, so that whatever must hold
(the stream, the consumers, the outstanding requests) has one way to come about: the way of the first time.
"""

# pyright: reportUnknownMemberType=false
# (nats-py leaves the type of its callbacks' options open)
from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar, cast
from uuid import UUID

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError, StaleConnectionError, UnexpectedEOF

from tenure.notifiers.inbox import Inbox
from tenure.ports import ANY, Permit, Ring

RETRY_SECONDS = 1.0
LOOK_SECONDS = 5.0  #: between two looks whether JetStream answers and the stream is there
CALL_SECONDS = 5.0
PULL_SECONDS = 10.0
HEARTBEAT_SECONDS = 2.5
SILENT_SECONDS = 2 * HEARTBEAT_SECONDS + 1  #: after which a pull is known to be dead
MOST_WAITING, MOST_WAITING_WHILE_DOWN = 200_000, 5_000  #: jobs to be announced; beyond that, polls find them
MOST_UNCONFIRMED = 2_000
MOST_TRIES = 3
CLOSE_SECONDS = 1.0
WARN_SECONDS = 10.0

T = TypeVar("T")
_log = logging.getLogger("tenure.notifier")
_FAULTS = (NatsError, OSError, TimeoutError)
_KINDS: tuple[Literal["queued", "due", "cancel"], ...] = ("queued", "due", "cancel")
_RESCUED = "rescued"


class _Client(Client):
    """nats-py goes on in plain text where a server does not ask for TLS. Who wrote `tls://` meant it."""

    def _connect_command(self) -> bytes:
        server = self._current_server
        if server is not None and server.uri.scheme == "tls" and not self._server_info.get("tls_required"):
            raise NatsError("the server does not ask for TLS, so nothing was said to it; write nats:// to do without")
        return super()._connect_command()


# ── What it is called on the server ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Address:
    """What a `nats://` URL says. Its repr has no secret."""

    servers: tuple[str, ...]
    ack_wait: float
    options: Mapping[str, Any] = field(repr=False)  #: user, password, token, user_credentials

    def __str__(self) -> str:
        return ", ".join(self.servers)


class Names:
    """Every subject and name of one namespace on the server. A queue's dots would be several tokens: '=' for '.'."""

    def __init__(self, namespace: str) -> None:
        self.stream = f"tenure_{namespace}"
        self.ring = f"tenure.{namespace}.ring"
        self.queues = f"tenure.{namespace}.queue."

    def subject(self, queue: str) -> str:
        return self.queues + self.token(queue)

    def token(self, queue: str) -> str:
        return queue.replace(".", "=")

    def queue(self, subject: str) -> str | None:
        """The queue of a message's subject; None: it is none of ours."""
        token = subject.removeprefix(self.queues)
        return None if token == subject or "." in token else token.replace("=", ".")


class Note(msgspec.Struct, omit_defaults=True):
    """The body of a message: for people, metrics, and the rescue of a redelivered job."""

    job: UUID
    queue: str
    cleared: bool = False
    reason: str = ""


# ── Permits ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Pull:
    """A request for messages that the server has, or should have."""

    __slots__ = ("heard", "left", "queue")

    def __init__(self, queue: str, left: int) -> None:
        self.queue, self.left, self.heard = queue, left, time.monotonic()


class NatsPermits:
    """What was wanted and what has come, counted from the start: `want` and an arrival can't miss each other."""

    def __init__(self, line: Line, inbox: Inbox) -> None:
        self._line, self._inbox = line, inbox
        self._lock = threading.Lock()
        self._taken: defaultdict[str, int] = defaultdict(int)  # handed to the worker so far
        self._came: defaultdict[str, int] = defaultdict(int)  # accepted from the server so far
        self._most: dict[str, int] = {}  # how far `_came` may go
        self._fresh: list[Permit] = []
        self.held: dict[str, str] = {}  #: receipt → queue; the line's thread only, as all below
        self.pulls: dict[str, _Pull] = {}  #: by their own inbox; one a queue: of several, who knows which is served?

    # ── the worker's side ──

    def want(self, slots: Mapping[str, int]) -> None:
        with self._lock:
            most = {queue: self._taken[queue] + number for queue, number in slots.items()}
            if most == self._most:
                return
            self._most = most
        self._line.call(self._line.top_up, self)

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
            self._line.call(self._line.settle, self, receipts, answer)

    # ── the line's side ──

    def wanted(self) -> dict[str, int]:
        """How many are still to come, by queue."""
        with self._lock:
            return {queue: most - self._came[queue] for queue, most in self._most.items()}

    def arrive(self, permit: Permit) -> bool:
        """False: it is wanted no more."""
        with self._lock:
            if self._came[permit.queue] >= self._most.get(permit.queue, 0):
                return False
            self._came[permit.queue] += 1
            self._fresh.append(permit)
        self.held[permit.receipt] = permit.queue
        self._inbox.put(())
        return True

    def asked(self, queue: str) -> bool:
        return any(pull.queue == queue for pull in self.pulls.values())

    def served(self, queue: str) -> None:
        """A message came."""
        for name, pull in self.pulls.items():
            if pull.queue == queue:
                pull.left -= 1
                pull.heard = time.monotonic()
                if pull.left <= 0:
                    del self.pulls[name]
                return


def _nak(again_in: float) -> bytes:
    return b'-NAK {"delay": %d}' % int(again_in * 1e9) if again_in > 0 else b"-NAK"


# ── The connection ─────────────────────────────────────────────────────────────────────────────────────────────────


class _Refused(Exception):
    """JetStream does not do what we need; the text is a sentence for people."""


class _Sent(NamedTuple):
    subject: str
    body: bytes
    tries: int
    at: float


class _Loop(asyncio.SelectorEventLoop):
    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        # Not in a thread: at the interpreter's end there are no new ones, and what was announced must still leave.
        return socket.getaddrinfo(host, port, **options)


class Line:
    """One thread, one event loop, one connection at a time. `call`, `post` and `wait` are for other threads."""

    def __init__(self, address: Address, names: Names) -> None:
        self._address, self._names = address, names
        self._problem = f"NATS at {address} has not answered yet"
        self._known = threading.Event()  # how the first attempt to connect went
        self._queue_problems: dict[str, str] = {}
        self._lock = threading.Lock()
        self._outbox: deque[Ring] = deque()
        self._waiting = 0
        self._warned_at: dict[str, float] = {}
        self._client: Client | None = None
        self._prefix = ""
        self._ears: dict[NatsPermits, Inbox] = {}
        self._subscriptions: dict[NatsPermits, tuple[Subscription, Subscription]] = {}
        self._consumers: set[str] = set()  # known to be there, on this connection
        self._unconfirmed: dict[str, _Sent] = {}
        self._settled: dict[str, bytes] = {}  # receipt → answer, not yet sent
        self._number = 0
        self._loop = _Loop()
        self._posted, self._up, self._look, self._unpaused = (asyncio.Event() for _ in range(4))
        self._main: asyncio.Task[None] = self._loop.create_task(self._serve())
        self._thread = threading.Thread(target=self._run, name="tenure-nats", daemon=True)
        self._thread.start()

    # ── for other threads ──

    def call(self, function: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, *args)

    def wait(self, work: Coroutine[Any, Any, object], timeout: float) -> None:
        """Have it done, for so long at most."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            return
        with suppress(*_FAULTS, asyncio.CancelledError):
            future.result(timeout)

    def post(self, rings: Iterable[Ring]) -> None:
        with self._lock:
            most = MOST_WAITING if self._up.is_set() else MOST_WAITING_WHILE_DOWN
            for ring in rings:
                size = len(ring.jobs) + 1
                if self._waiting and self._waiting + size > most:
                    self._warn("rings are dropped, polls will find the jobs", self._problem or "too many at once")
                    break
                self._waiting += size
                self._outbox.append(ring)
        self.call(self._posted.set)

    def problem(self) -> str:
        if not self._known.is_set():
            self._known.wait(CLOSE_SECONDS)
        return self._problem or next(iter(list(self._queue_problems.values())), "")

    def close(self) -> None:
        if not self._known.is_set() or not self._problem:
            self.wait(self._all_left(), CLOSE_SECONDS)
        self.call(self._main.cancel)
        self._thread.join(CLOSE_SECONDS)

    # ── the thread ──

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._problem = f"the NATS thread has failed: {error!r}"
            _log.critical("the NATS thread has failed; polling instead", exc_info=True)
        finally:
            self._known.set()
            for task in (left := asyncio.all_tasks(self._loop)):
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_SECONDS))
            self._loop.close()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as duties:
            duties.create_task(self._connect_again_and_again())
            duties.create_task(self._publish_what_is_posted())
            duties.create_task(self._keep_what_is_held())
            duties.create_task(self._bury_the_dead())

    async def _all_left(self) -> None:
        while self._outbox or self._unconfirmed or self._settled:
            await asyncio.sleep(0.005)
        if self._client is not None:
            await self._client.flush(1)

    # ── connecting ──

    async def _connect_again_and_again(self) -> None:
        while True:
            client = _Client()
            try:
                connecting = client.connect(
                    list(self._address.servers),
                    name=f"tenure-{os.getpid()}",
                    allow_reconnect=False,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=1,
                    ping_interval=5,
                    error_cb=self._heard_error,
                    closed_cb=self._heard_close,
                    **self._address.options,
                )
                await _heeding(connecting)
                await self._stay(client)
            except _FAULTS as error:
                self._down(_told(error))
            finally:
                self._client = None
                self._up.clear()
                await _close(client)
            await asyncio.sleep(RETRY_SECONDS)

    async def _stay(self, client: Client) -> None:
        self._prefix = client.new_inbox()
        self._consumers.clear()
        self._subscriptions.clear()
        await client.subscribe(f"{self._prefix}.sent.*", cb=self._confirm)
        self._client = client
        for permits, inbox in list(self._ears.items()):
            await self._subscribe(permits, inbox)
        while client.is_connected:
            self._look.clear()
            try:
                await self._ensure_stream()
            except _Refused as error:
                self._up.clear()
                self._set_problem(str(error))
                pause = RETRY_SECONDS
            else:
                pause = LOOK_SECONDS
                if not self._up.is_set():
                    await self._came_up()
            await _first(self._look, pause)
        self._down("the connection is lost")

    async def _came_up(self) -> None:
        self._set_problem("")
        self._up.set()
        for permits in self._ears:
            permits.pulls.clear()
            self.top_up(permits)
        for token in list(self._unconfirmed):
            await self._resend(token)
        await self._send_settled()
        await self._tell_in_progress()

    async def _heard_error(self, error: Exception) -> None:
        if self._client is None:
            self._down(_told(error))
        elif not isinstance(error, OSError | UnexpectedEOF | StaleConnectionError):  # the end is told by `_stay`
            self._warn("NATS says", _told(error))

    async def _heard_close(self) -> None:
        self._look.set()

    def _down(self, why: str) -> None:
        self._set_problem(f"NATS at {self._address} can't be reached: {why}")

    def _set_problem(self, sentence: str) -> None:
        if sentence != self._problem:
            _log.debug("%s", sentence or f"NATS at {self._address} is there")
        self._problem = sentence
        self._known.set()

    def _warn(self, what: str, why: str) -> None:
        now = time.monotonic()
        if now - self._warned_at.get(what, -WARN_SECONDS) >= WARN_SECONDS:
            self._warned_at[what] = now
            _log.warning("%s: %s", what, why)

    # ── the stream and its consumers ──

    async def _api(self, verb: str, body: object = None) -> dict[str, Any]:
        client = self._client
        if client is None:
            raise _Refused(f"NATS at {self._address}: the connection is lost")
        payload = b"" if body is None else msgspec.json.encode(body)
        try:
            message = await _heeding(client.request(f"$JS.API.{verb}", payload, timeout=CALL_SECONDS))
        except NoRespondersError:
            raise _Refused(f"NATS at {self._address} has no JetStream: start nats-server with -js") from None
        except _FAULTS as error:
            raise _Refused(f"JetStream at {self._address} does not answer: {_told(error)}") from error
        return cast("dict[str, Any]", msgspec.json.decode(message.data))

    async def _ensure(
        self, kind: Literal["STREAM", "CONSUMER"], path: str, need: dict[str, Any], stream: str | None = None
    ) -> None:
        """Make it if it is missing; change what differs, and leave alone what an operator has set beside that."""

        def body(config: dict[str, Any]) -> dict[str, Any]:
            return config if stream is None else {"stream_name": stream, "config": config}

        answer = await self._api(f"{kind}.INFO.{path}")
        error = answer.get("error")
        if error is None:
            there = cast("dict[str, Any]", answer["config"])
            if all(there.get(key) == value for key, value in need.items()):
                return
            verb = "UPDATE" if kind == "STREAM" else "CREATE"
            error = (await self._api(f"{kind}.{verb}.{path}", body({**there, **need}))).get("error")
        elif error.get("code") == 404:
            error = (await self._api(f"{kind}.CREATE.{path}", body(need))).get("error")
        if error is not None:
            raise _Refused(
                f"JetStream refuses {kind.lower()} {path}: {error.get('description', error)}; "
                "give it what is missing, or remove what is in its way"
            )

    async def _ensure_stream(self) -> None:
        name = self._names.stream
        need = {"name": name, "subjects": [f"{self._names.queues}*"], "retention": "workqueue", "storage": "file"}
        await self._ensure("STREAM", name, need)

    async def _ensure_consumer(self, queue: str) -> None:
        stream, token = self._names.stream, self._names.token(queue)
        need = {
            "durable_name": token,
            "ack_policy": "explicit",
            "ack_wait": int(self._address.ack_wait * 1e9),
            "max_deliver": -1,
            "max_ack_pending": -1,
            "filter_subject": self._names.subject(queue),
        }
        await self._ensure("CONSUMER", f"{stream}.{token}", need, stream)

    # ── announcing ──

    async def _publish_what_is_posted(self) -> None:
        while True:
            await self._posted.wait()
            await self._up.wait()
            self._posted.clear()
            while self._outbox and self._up.is_set():
                ring = self._outbox.popleft()
                try:
                    if ring.kind == "queued":
                        await self._publish_jobs(ring)
                    if self._client is not None:
                        word = _RESCUED if ring.reason else ring.kind
                        await self._client.publish(self._names.ring, f"{word} {ring.queue}".encode())
                except _FAULTS as error:
                    self._warn("a ring is lost", _told(error))
                with self._lock:
                    self._waiting -= len(ring.jobs) + 1
            if self._outbox:
                self._posted.set()

    async def _publish_jobs(self, ring: Ring) -> None:
        subject = self._names.subject(ring.queue)
        for job in ring.jobs:
            while len(self._unconfirmed) >= MOST_UNCONFIRMED:
                self._unpaused.clear()
                await self._unpaused.wait()
            body = msgspec.json.encode(Note(UUID(job), ring.queue, bool(ring.reason), ring.reason))
            await self._send(_Sent(subject, body, 1, time.monotonic()))

    async def _send(self, sent: _Sent) -> None:
        self._number += 1
        token = str(self._number)
        self._unconfirmed[token] = sent
        if self._client is not None:
            with suppress(*_FAULTS):  # unconfirmed, and so sent again
                await self._client.publish(sent.subject, sent.body, reply=f"{self._prefix}.sent.{token}")

    async def _confirm(self, message: Msg) -> None:
        token = message.subject.rpartition(".")[2]
        if message.headers is not None or b'"error"' in message.data:  # nobody took it: is the stream still there?
            self._look.set()
            self._warn("JetStream did not take a message", message.data.decode(errors="replace") or "no stream")
            if token in self._unconfirmed:
                self._unconfirmed[token] = self._unconfirmed[token]._replace(at=0.0)  # to be sent again soon
            return
        self._unconfirmed.pop(token, None)
        self._unpaused.set()

    async def _resend(self, token: str) -> None:
        sent = self._unconfirmed.pop(token, None)
        self._unpaused.set()
        if sent is not None and sent.tries < MOST_TRIES:
            await self._send(sent._replace(tries=sent.tries + 1, at=time.monotonic()))

    # ── listening ──

    def attach(self, inbox: Inbox, permits: NatsPermits) -> None:
        self._ears[permits] = inbox
        if self._client is not None:
            task = self._loop.create_task(self._subscribe(permits, inbox))
            task.add_done_callback(_retrieve)

    async def _subscribe(self, permits: NatsPermits, inbox: Inbox) -> None:
        client = self._client
        if client is None or permits in self._subscriptions:
            return

        async def hear(message: Msg) -> None:
            kind, _, queue = message.data.decode(errors="replace").partition(" ")
            if kind == _RESCUED:  # its message may have gone to the very host that fell silent: look
                inbox.put([ANY])
            for known in _KINDS:  # anything else is not ours, or from a newer version
                if kind == known and queue:
                    inbox.put([Ring(known, queue)])

        async def receive(message: Msg) -> None:
            await self._receive(permits, message)

        self._subscriptions[permits] = (
            await client.subscribe(self._names.ring, cb=hear),
            await client.subscribe(f"{self._prefix}.{id(permits)}.*", cb=receive),
        )
        self.top_up(permits)

    async def detach(self, inbox: Inbox, permits: NatsPermits) -> None:
        permits.want({})
        if self._client is not None:
            for subscription in self._subscriptions.pop(permits, ()):
                await subscription.drain()  # type: ignore[no-untyped-call]  # what is on its way here is given back
        self._ears.pop(permits, None)
        self.settle(permits, list(permits.held), _nak(0))
        await self._send_settled()
        if self._client is not None:
            await self._client.flush(1)

    # ── permits ──

    def top_up(self, permits: NatsPermits) -> None:
        if not self._up.is_set() or permits not in self._subscriptions:
            return
        for queue, number in permits.wanted().items():
            if number <= 0 or permits.asked(queue):
                continue
            self._number += 1
            name = f"{self._prefix}.{id(permits)}.{self._number}"
            permits.pulls[name] = _Pull(queue, number)
            task = self._loop.create_task(self._pull(permits, name, queue, number))
            task.add_done_callback(_retrieve)

    async def _pull(self, permits: NatsPermits, name: str, queue: str, number: int) -> None:
        token = self._names.token(queue)
        try:
            if queue not in self._consumers:
                await self._ensure_stream()
                await self._ensure_consumer(queue)
                self._consumers.add(queue)
            self._queue_problems.pop(queue, None)
            if self._client is not None:
                await self._client.publish(
                    f"$JS.API.CONSUMER.MSG.NEXT.{self._names.stream}.{token}",
                    msgspec.json.encode(
                        {
                            "batch": number,
                            "expires": int(PULL_SECONDS * 1e9),
                            "idle_heartbeat": int(HEARTBEAT_SECONDS * 1e9),
                        }
                    ),
                    reply=name,
                )
        except _Refused as error:
            self._queue_problems[queue] = str(error)
            self._ask_again_later(permits, name)
        except _FAULTS:
            self._ask_again_later(permits, name)

    def _ask_again_later(self, permits: NatsPermits, name: str) -> None:
        def again() -> None:
            if permits.pulls.pop(name, None) is not None:
                self.top_up(permits)

        self._loop.call_later(RETRY_SECONDS, again)

    async def _receive(self, permits: NatsPermits, message: Msg) -> None:
        if message.subject.startswith(self._prefix):
            self._hear_of_pull(permits, message)
            return
        queue = self._names.queue(message.subject)
        if queue is not None:
            permits.served(queue)
        permit = self._read(message, queue)
        if permit is None:
            self._warn("a message that no worker can read is thrown away", f"on {message.subject}")
            self._answer(message.reply, b"+TERM")
        elif not permits.arrive(permit):
            self._answer(message.reply, _nak(0))
        if queue is not None and not permits.asked(queue):
            self.top_up(permits)

    def _read(self, message: Msg, queue: str | None) -> Permit | None:
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

    def _hear_of_pull(self, permits: NatsPermits, message: Msg) -> None:
        """A word about a pull: 100 it lives, 408 its time is over, 409 and 503 it is lost, or had no consumer."""
        pull = permits.pulls.get(message.subject)
        status = (message.headers or {}).get("Status", "")
        if pull is None or status == "100":
            if pull is not None:
                pull.heard = time.monotonic()
            return
        if status in ("408", "404"):
            del permits.pulls[message.subject]
            self.top_up(permits)
        else:
            self._consumers.discard(pull.queue)
            self._look.set()
            self._ask_again_later(permits, message.subject)

    def settle(self, permits: NatsPermits, receipts: Iterable[str], answer: bytes) -> None:
        for receipt in receipts:
            if permits.held.pop(receipt, None) is not None:
                self._answer(receipt, answer)

    def _answer(self, receipt: str, answer: bytes) -> None:
        if not self._settled:
            self._loop.create_task(self._send_settled()).add_done_callback(_retrieve)
        self._settled[receipt] = answer

    async def _send_settled(self) -> None:
        """While the connection is away they wait: the server knows a receipt on any connection."""
        while self._settled and self._client is not None and self._client.is_connected:
            receipt, answer = next(iter(self._settled.items()))
            try:
                await self._client.publish(receipt, answer)
            except _FAULTS:
                return
            self._settled.pop(receipt, None)

    # ── time ──

    async def _keep_what_is_held(self) -> None:
        while True:
            await asyncio.sleep(min(60.0, self._address.ack_wait / 3))
            await self._tell_in_progress()

    async def _tell_in_progress(self) -> None:
        for permits in list(self._ears):
            for receipt in list(permits.held):
                if self._client is not None:
                    with suppress(*_FAULTS):
                        await self._client.publish(receipt, b"+WPI")

    async def _bury_the_dead(self) -> None:
        """Pulls that are not heard of, and messages that nobody has confirmed."""
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            now = time.monotonic()
            for permits in list(self._ears):
                dead = [name for name, pull in permits.pulls.items() if now - pull.heard > SILENT_SECONDS]
                for name in dead:
                    self._consumers.discard(permits.pulls.pop(name).queue)
                if dead:
                    self.top_up(permits)
            if self._up.is_set():
                for token, sent in list(self._unconfirmed.items()):
                    if now - sent.at > CALL_SECONDS:
                        await self._resend(token)


async def _first(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def _heeding(call: Coroutine[Any, Any, T]) -> T:
    """What nats-py answers. Up to Python 3.11 its `wait_for` loses a cancel that comes together with the answer."""
    try:
        return await call
    finally:
        _heed_cancel()


def _heed_cancel() -> None:
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _close(client: Client) -> None:
    with suppress(*_FAULTS, asyncio.CancelledError):  # of a task of its own, or of ours
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.close()
    _heed_cancel()


def _told(error: Exception) -> str:
    return str(error).removeprefix("nats: ") or type(error).__name__


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.debug("%s: %r", task.get_name(), error)
