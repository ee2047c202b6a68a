"""The thread of a process that talks to NATS: it sends rings and messages, and receives permits."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from nats.aio.client import Client

from tenure.core.logs import logger
from tenure.notifiers.inbox import Inbox
from tenure.notifiers.nats.address import Address, Names
from tenure.notifiers.nats.connection import CLOSE_SECONDS, FAULTS, RETRY_SECONDS, Connection, Refused
from tenure.notifiers.nats.permits import Deliveries, NatsPermits
from tenure.notifiers.nats.publisher import Publisher
from tenure.notifiers.nats.stream import Stream
from tenure.ports import Ring

CHECK_SECONDS = 5.0  #: between two checks that JetStream answers and the stream exists
_log = logger("tenure.notifier")


class _Loop(asyncio.SelectorEventLoop):
    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        # Not in a thread: at interpreter shutdown no thread can be started, and announced rings must still be sent.
        return socket.getaddrinfo(host, port, **options)


class NatsThread:
    """One thread, one event loop, one connection at a time. Its public methods are for other threads."""

    def __init__(self, address: Address, names: Names) -> None:
        self._connection = Connection(address)
        self._stream = Stream(self._connection, names)
        self._publisher = Publisher(self._connection, names)
        self._deliveries = Deliveries(self._connection, self._stream, names)
        self._loop = _Loop()
        self._main: asyncio.Task[None]
        self._thread = threading.Thread(target=self._run, name="tenure-nats", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no thread can be started
            self._loop.close()
            raise

    # ── for other threads ──

    def post(self, rings: Iterable[Ring]) -> None:
        self._publisher.post(rings)
        self._call(self._publisher.posted.set)

    def attach(self, inbox: Inbox) -> NatsPermits:
        """From now on `inbox` gets every ring; the permits are for the worker that owns it."""
        permits = NatsPermits(self._call, self._deliveries, inbox)
        self._call(self._deliveries.attach, permits)
        return permits

    def detach(self, permits: NatsPermits) -> None:
        """Return the permits that are held."""
        self._wait(self._deliveries.detach(permits))

    def problem(self) -> str:
        if not self._connection.known.is_set():
            self._connection.known.wait(CLOSE_SECONDS)
        return self._connection.problem or next(iter(list(self._stream.problems.values())), "")

    def close(self) -> None:
        if not self._connection.known.is_set() or not self._connection.problem:
            self._wait(self._all_sent())
        self._call(lambda: self._main.cancel())
        self._thread.join(CLOSE_SECONDS)

    def _call(self, function: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, *args)

    def _wait(self, work: Coroutine[Any, Any, object]) -> None:
        """Run `work` on the loop, waiting CLOSE_SECONDS at most."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            return
        with suppress(*FAULTS, asyncio.CancelledError):
            future.result(CLOSE_SECONDS)

    # ── the thread ──

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._main = self._loop.create_task(self._serve())
        try:
            self._loop.run_until_complete(self._main)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._connection.problem = f"the NATS thread has failed: {error!r}"
            _log.critical("the NATS thread has failed; polling instead", exc_info=True)
        finally:
            self._connection.known.set()
            for task in (left := asyncio.all_tasks(self._loop)):
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_SECONDS))
            self._loop.close()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as duties:
            duties.create_task(self._connection.keep(self._use))
            duties.create_task(self._publisher.run())
            duties.create_task(self._deliveries.keep_in_progress())
            duties.create_task(self._repeat_lost())

    async def _all_sent(self) -> None:
        while not self._publisher.idle or not self._deliveries.settled:
            await asyncio.sleep(0.005)
        if self._connection.client is not None:
            await self._connection.client.flush(1)

    async def _repeat_lost(self) -> None:
        """Repeat requests that the server has lost, and messages that it has not confirmed."""
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            self._deliveries.replace_lost_pulls()
            if self._connection.up.is_set():
                await self._publisher.resend_overdue()

    # ── a connection ──

    async def _use(self, client: Client) -> None:
        """Use one connection, from the first subscription to its end."""
        connection = self._connection
        self._stream.doubt_all()
        self._deliveries.forget_subscriptions()
        await self._publisher.subscribe(client)
        connection.client = client
        await self._deliveries.subscribe_all()
        while client.is_connected:
            connection.check.clear()
            try:
                await self._stream.ensure()
            except Refused as error:
                connection.up.clear()
                connection.set_problem(str(error))
                pause = RETRY_SECONDS
            else:
                pause = CHECK_SECONDS
                if not connection.up.is_set():
                    await self._came_up()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await connection.check.wait()

    async def _came_up(self) -> None:
        self._connection.set_problem("")
        self._connection.up.set()
        self._deliveries.request_again()
        await self._publisher.resend_all()
        await self._deliveries.send_answers()
        await self._deliveries.report_in_progress()
