"""The current connection of a process to NATS, shared by its users, and its status."""

# pyright: reportUnknownMemberType=false
# (nats-py leaves the types of its callbacks' options open)
from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError, StaleConnectionError, UnexpectedEOF

from tenure.core.logs import logger
from tenure.notifiers.nats.address import Address

RETRY_SECONDS = 1.0
CALL_SECONDS = 5.0
CLOSE_SECONDS = 1.0
WARN_SECONDS = 10.0
FAULTS = (NatsError, OSError, TimeoutError)

T = TypeVar("T")
_log = logger("tenure.notifier")


class Refused(Exception):
    """JetStream refuses a request or can't serve it; the text is a sentence for people."""


class TlsClient(Client):
    """nats-py continues in plain text if a server does not request TLS. With `tls://` in the URL that is an error."""

    def _connect_command(self) -> bytes:
        server = self._current_server
        if server is not None and server.uri.scheme == "tls" and not self._server_info.get("tls_required"):
            raise NatsError("the server does not request TLS, so nothing was sent to it; write nats:// to do without")
        return super()._connect_command()


class Connection:
    """One client at a time, on the thread's event loop. Other threads may read `up`, `problem` and `known`, and warn.

    A connection that ends is not repaired but replaced, so that everything it needs (the stream, the consumers, the
    outstanding requests) is set up in one way only, that of the first connection.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.client: Client | None = None  #: the connected client; None: not connected
        self.inbox = ""  #: the prefix of the subjects on which this connection receives answers
        self.up = asyncio.Event()  #: set while connected and the stream exists
        self.check = asyncio.Event()  #: set it to have the connection and the stream checked at once
        self.known = threading.Event()  #: set once the first attempt to connect has succeeded or failed
        self.problem = f"NATS at {address} has not answered yet"
        self._warned_at: dict[str, float] = {}

    async def keep(self, use: Callable[[Client], Awaitable[None]]) -> None:
        """Connect, `use` the client until its connection ends, and connect again."""
        while True:
            client = TlsClient()
            try:
                connecting = client.connect(
                    list(self.address.servers),
                    name=f"tenure-{os.getpid()}",
                    allow_reconnect=False,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=1,
                    ping_interval=5,
                    error_cb=self._on_error,
                    closed_cb=self._on_close,
                    **self.address.options,
                )
                await _with_cancel(connecting)
                self.inbox = client.new_inbox()
                await use(client)
                self._down("the connection is lost")
            except FAULTS as error:
                self._down(describe(error))
            finally:
                self.client = None
                self.up.clear()
                await _close(client)
            await asyncio.sleep(RETRY_SECONDS)

    async def request(self, subject: str, payload: bytes) -> bytes:
        """The answer of JetStream. Raises Refused."""
        if self.client is None:
            raise Refused(f"NATS at {self.address}: the connection is lost")
        try:
            message = await _with_cancel(self.client.request(subject, payload, timeout=CALL_SECONDS))
        except NoRespondersError:
            raise Refused(f"NATS at {self.address} has no JetStream: start nats-server with -js") from None
        except FAULTS as error:
            raise Refused(f"JetStream at {self.address} does not answer: {describe(error)}") from error
        return message.data

    def set_problem(self, sentence: str) -> None:
        if sentence != self.problem:
            _log.debug("%s", sentence or f"NATS at {self.address} is available")
        self.problem = sentence
        self.known.set()

    def warn(self, what: str, why: str) -> None:
        now = time.monotonic()
        if now - self._warned_at.get(what, -WARN_SECONDS) >= WARN_SECONDS:
            self._warned_at[what] = now
            _log.warning("%s: %s", what, why)

    def _down(self, why: str) -> None:
        self.set_problem(f"NATS at {self.address} can't be reached: {why}")

    async def _on_error(self, error: Exception) -> None:
        if self.client is None:
            self._down(describe(error))
        elif not isinstance(error, OSError | UnexpectedEOF | StaleConnectionError):  # `keep` reports the end
            self.warn("NATS reports", describe(error))

    async def _on_close(self) -> None:
        self.check.set()


async def subscribe(client: Client, subject: str, callback: Callable[[Msg], Awaitable[None]]) -> Subscription:
    return await client.subscribe(subject, cb=callback)


def describe(error: Exception) -> str:
    return str(error).removeprefix("nats: ") or type(error).__name__


def start(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` as a task of its own on the running loop."""
    asyncio.get_running_loop().create_task(work).add_done_callback(_retrieve)


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.debug("%s: %r", task.get_name(), error)


async def _with_cancel(call: Coroutine[Any, Any, T]) -> T:
    """The result of a nats-py call. Up to Python 3.11 its `wait_for` loses a cancel that coincides with the answer."""
    try:
        return await call
    finally:
        _raise_cancel()


def _raise_cancel() -> None:
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _close(client: Client) -> None:
    with suppress(*FAULTS, asyncio.CancelledError):  # the cancel of a task of its own, or of ours
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.close()
    _raise_cancel()
