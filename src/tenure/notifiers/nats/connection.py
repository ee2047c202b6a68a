"""The connection to NATS that a process has at the moment, as its users share it, and how it stands."""

# pyright: reportUnknownMemberType=false
# (nats-py leaves the type of its callbacks' options open)
from __future__ import annotations

import asyncio
import logging
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

from tenure.notifiers.nats.address import Address

RETRY_SECONDS = 1.0
CALL_SECONDS = 5.0
CLOSE_SECONDS = 1.0
WARN_SECONDS = 10.0
FAULTS = (NatsError, OSError, TimeoutError)

T = TypeVar("T")
_log = logging.getLogger("tenure.notifier")


class Refused(Exception):
    """JetStream does not do what we need; the text is a sentence for people."""


class TlsClient(Client):
    """nats-py goes on in plain text where a server does not ask for TLS. A caller that wrote `tls://` meant it."""

    def _connect_command(self) -> bytes:
        server = self._current_server
        if server is not None and server.uri.scheme == "tls" and not self._server_info.get("tls_required"):
            raise NatsError("the server does not ask for TLS, so nothing was said to it; write nats:// to do without")
        return super()._connect_command()


class Connection:
    """One client at a time, on the thread's event loop. Other threads may read `up`, `problem` and `known`, and warn.

    A connection that ends is not mended but made anew, so that whatever must hold (the stream, the consumers, the
    outstanding requests) has one way to come about: the way of the first time.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.client: Client | None = None  #: of the connection that is used; None: there is none
        self.inbox = ""  #: the subject below which this connection gets its answers
        self.up = asyncio.Event()  #: the stream is there too
        self.look = asyncio.Event()  #: set it, and the connection and the stream are looked at now
        self.known = threading.Event()  #: how the first attempt to connect went
        self.problem = f"NATS at {address} has not answered yet"
        self._warned_at: dict[str, float] = {}

    async def keep(self, use: Callable[[Client], Awaitable[None]]) -> None:
        """Connect, `use` the client until its connection ends, and connect anew."""
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
                await _heeding_cancel(connecting)
                self.inbox = client.new_inbox()
                await use(client)
                self._down("the connection is lost")
            except FAULTS as error:
                self._down(told(error))
            finally:
                self.client = None
                self.up.clear()
                await _close(client)
            await asyncio.sleep(RETRY_SECONDS)

    async def request(self, subject: str, payload: bytes) -> bytes:
        """What JetStream answers. Raises Refused."""
        if self.client is None:
            raise Refused(f"NATS at {self.address}: the connection is lost")
        try:
            message = await _heeding_cancel(self.client.request(subject, payload, timeout=CALL_SECONDS))
        except NoRespondersError:
            raise Refused(f"NATS at {self.address} has no JetStream: start nats-server with -js") from None
        except FAULTS as error:
            raise Refused(f"JetStream at {self.address} does not answer: {told(error)}") from error
        return message.data

    def set_problem(self, sentence: str) -> None:
        if sentence != self.problem:
            _log.debug("%s", sentence or f"NATS at {self.address} is there")
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
            self._down(told(error))
        elif not isinstance(error, OSError | UnexpectedEOF | StaleConnectionError):  # `keep` reports the end
            self.warn("NATS says", told(error))

    async def _on_close(self) -> None:
        self.look.set()


async def subscribe(client: Client, subject: str, callback: Callable[[Msg], Awaitable[None]]) -> Subscription:
    return await client.subscribe(subject, cb=callback)


def told(error: Exception) -> str:
    return str(error).removeprefix("nats: ") or type(error).__name__


def start(work: Coroutine[Any, Any, None]) -> None:
    """Have it done on the running loop, beside the caller."""
    asyncio.get_running_loop().create_task(work).add_done_callback(_retrieve)


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.debug("%s: %r", task.get_name(), error)


async def _heeding_cancel(call: Coroutine[Any, Any, T]) -> T:
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
    with suppress(*FAULTS, asyncio.CancelledError):  # of a task of its own, or of ours
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.close()
    _heed_cancel()
