"""A TCP proxy that breaks connections on demand, in a thread of this process.

    with Proxy("127.0.0.1", server.port) as proxy:
        proxy.cut_reply_to(b"INSERT INTO jobs")   # it is committed, and the client never gets the reply

It reads PostgreSQL's protocol as far as that needs; TLS it can delay and break, but not read.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Self

from servers import hold_port

Answered = Callable[[bytes], bool]
_SSL_REQUEST, _GSS_REQUEST, _CANCEL_REQUEST = 80877103, 80877104, 80877102
_PIECE = 512  # bytes a throttled connection forwards at once
_HELD = 64 << 10  # bytes that are accepted ahead of those: the rest waits at its sender until the slow line takes it
_NO_LINGER = struct.pack("ii", 1, 0)  # closing sends a reset


class Proxy:
    """Forwards to one address until told otherwise. Each method returns when it is in force; `heal` undoes them all."""

    def __init__(self, target_host: str, target_port: int) -> None:
        self._held = hold_port()  # also while it refuses: no other process may listen there
        self.port: int = self._held.getsockname()[1]
        self.cuts = 0
        self._target = (target_host, target_port)
        self._latency = self._jitter = 0.0
        self._rate = 0.0
        self._usual_latency = self._usual_rate = 0.0
        self._busy_until = [0.0, 0.0]  # to the server, to the clients
        self._fault: _Fault | None = None
        self._links: set[_Link] = set()
        self._listener: asyncio.Server | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        self.heal()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._thread.join()
        self._held.close()

    def usual(self, *, latency: float = 0.0, rate: float = 0.0) -> None:
        """What this line is like when nothing is wrong with it; `heal` returns to this.

        `latency`: seconds in each direction. `rate`: bytes a second in each direction, which all its connections
        share; 0: no limit.
        """
        self._usual_latency, self._usual_rate = latency, rate
        self._do(self._heal())

    def refuse(self) -> None:
        """Reset every connection and refuse new ones."""
        self._do(self._refuse())

    def blackhole(self) -> None:
        """Keep the connections and accept new ones, but forward nothing, not even an end, until healed."""
        self._do(self._blackhole())

    def cut(self) -> None:
        """Reset every connection; new ones work."""
        self._do(self._cut())

    def half_close(self) -> None:
        """End each connection towards the client only: the client sees the end, the server sees nothing."""
        self._do(self._half_close())

    def latency(self, seconds: float, jitter: float = 0.0) -> None:
        """Delay what is forwarded, in each direction, by up to `jitter` seconds more or less."""
        self._latency, self._jitter = seconds, jitter

    def throttle(self, rate: float) -> None:
        """Forward `rate` bytes a second on each connection, in each direction."""
        self._rate = rate

    def heal(self) -> None:
        """Forward everything again, including what a blackhole has held back."""
        self._do(self._heal())

    def cut_reply_to(self, pattern: bytes, times: int = 1, *, answered: Answered | None = None) -> None:
        """Forward the request that contains `pattern`, and reset its connection once the server has answered it.

        For PostgreSQL `pattern` is looked for in statements (prepared ones too) and their parameters; in an explicit
        transaction the lost reply is the one that reports its end. For any other protocol `answered` says
        whether the bytes that came since the request are the answer.
        """
        self._fault = _Fault(pattern, times, answered)

    def _do(self, action: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(action, self._loop).result()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._flowing, self._closing = asyncio.Event(), asyncio.Event()
        self._started.set()
        await self._closing.wait()

    async def _close(self) -> None:
        self._flowing.set()
        await self._refuse()
        await asyncio.gather(*(link.gone.wait() for link in self._links))
        self._closing.set()

    async def _heal(self) -> None:
        self._latency, self._jitter, self._rate = self._usual_latency, 0.0, 0.0
        self._fault = None
        self._flowing.set()
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _refuse(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            for each in listener.sockets:
                self._loop.remove_reader(each.fileno())
            for _ in range(10):  # accepted clients get a link first: closing the server would leave them open, unserved
                await asyncio.sleep(0)
            listener.close()
        await self._cut()

    async def _blackhole(self) -> None:
        self._flowing.clear()

    async def _cut(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _half_close(self) -> None:
        for link in list(self._links):
            client = link.writers[0]
            if not client.is_closing() and client.can_write_eof():
                client.write_eof()
                link.half_closed = True

    def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        client.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _HELD)
        link = _Link(client)
        self._links.add(link)
        link.served = asyncio.create_task(self._serve(link, reader, client))

    async def _serve(self, link: _Link, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            await self._flowing.wait()
            answers, server = await asyncio.open_connection(*self._target)
            link.writers.append(server)
            await asyncio.gather(
                self._forward(link, 0, reader, server, lambda chunk: link.request(chunk, self._fault)),
                self._forward(link, 1, answers, client, lambda chunk: self._reply(link, chunk)),
            )
        except OSError:
            link.reset()
        finally:
            await link.close()
            self._links.discard(link)
            link.gone.set()

    async def _forward(
        self,
        link: _Link,
        direction: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        through: Callable[[bytes], bytes],
    ) -> None:
        while chunk := await reader.read(65536):
            await asyncio.sleep(max(0.0, self._latency + self._jitter * random.uniform(-1, 1)))
            await self._flowing.wait()
            passed = through(chunk)
            while passed and not writer.is_closing():
                rate = self._rate
                now, passed = (passed[:_PIECE], passed[_PIECE:]) if rate else (passed, b"")
                if rate:
                    await asyncio.sleep(len(now) / rate)
                elif self._usual_rate:
                    await self._turn(direction, len(now))
                if direction == 1 and link.half_closed:  # while this part waited for its turn
                    break
                writer.write(now)
                await writer.drain()
        await self._flowing.wait()
        if not writer.is_closing():
            writer.write_eof()

    async def _turn(self, direction: int, size: int) -> None:
        """Wait until a line of the usual rate has sent this, after everything that it was given before."""
        now = self._loop.time()
        self._busy_until[direction] = max(now, self._busy_until[direction]) + size / self._usual_rate
        await asyncio.sleep(self._busy_until[direction] - now)

    def _reply(self, link: _Link, chunk: bytes) -> bytes:
        passed = b"" if link.half_closed else link.reply(chunk)
        if link.answered:
            self.cuts += 1
            link.reset()
        return passed


class _Fault:
    def __init__(self, pattern: bytes, times: int, answered: Answered | None) -> None:
        self.pattern = pattern
        self.times = times
        self.answered = answered

    def strikes(self, request: bytes) -> bool:
        if self.times == 0 or self.pattern not in request:
            return False
        self.times -= 1
        return True


class _Link:
    """One client's connection: which request was struck, and which part of its answer is held back."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.writers = [client]
        self.served: asyncio.Task[None] | None = None
        self.gone = asyncio.Event()
        self.answered = False
        self.half_closed = False
        self._talk = _Talk()
        self._sent = b""
        self._struck: _Fault | None = None
        self._held = b""
        self._awaited = 0

    def request(self, chunk: bytes, fault: _Fault | None) -> bytes:
        postgres = fault is None or fault.answered is None
        for text in self._talk.requests(chunk):
            if postgres and self._struck is None and fault is not None and fault.strikes(text):
                self._struck, self._awaited = fault, self._talk.asked
        if not postgres and self._struck is None and fault is not None:
            self._sent = self._sent[-len(fault.pattern) :] + chunk  # the pattern may come in two pieces
            if fault.strikes(self._sent):
                self._struck = fault
        return chunk

    def reply(self, chunk: bytes) -> bytes:
        if self._struck is not None and self._struck.answered is not None:
            self._held += chunk
            self.answered = self._struck.answered(self._held)
            return b""
        passed = b""
        for message in self._talk.replies(chunk):
            if self._struck is None or self._talk.ready < self._awaited:
                passed += message
                continue
            self._held += message
            if message[:1] == b"Z" and message[5:6] == b"I":
                self.answered = True
                break
            if message[:1] in b"ZG":  # the transaction continues, or the server waits for COPY data
                passed, self._held = passed + self._held, b""
        return passed

    def reset(self) -> None:
        for writer in self.writers:
            if not writer.is_closing():
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                writer.transport.abort()

    async def close(self) -> None:
        for writer in self.writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


class _Talk:
    """PostgreSQL's messages in both directions, counted: how many answers were asked for, and how many have ended."""

    def __init__(self) -> None:
        self.asked = 0
        self.ready = 0
        self._readable = False  # until a client opens as PostgreSQL's do; no longer once TLS has begun
        self._one_byte_answers = 0
        self._statements: dict[bytes, bytes] = {}
        self._requests = b""
        self._replies = b""

    def requests(self, chunk: bytes) -> Iterator[bytes]:
        """The statements, with their parameters, that this chunk completes."""
        if chunk[:1] == b"\0" and not self.asked:
            self._readable = True
        if not self._readable:
            return
        self._requests += chunk
        while size := _size(self._requests, 0 if self._requests[:1] == b"\0" else 1):
            message, self._requests = self._requests[:size], self._requests[size:]
            kind = message[:1]
            if kind == b"\0":
                self._opening(int.from_bytes(message[4:8]))
            elif kind == b"P":
                name, _, text = message[5:].partition(b"\0")
                self._statements[name] = text
            elif kind == b"B":
                name = message[5:].split(b"\0", 2)[1]
                yield self._statements.get(name, b"") + message
            elif kind in b"Qd":
                yield message
            if kind in b"QSF":
                self.asked += 1

    def _opening(self, code: int) -> None:
        if code in (_SSL_REQUEST, _GSS_REQUEST):
            self._one_byte_answers += 1
        elif code != _CANCEL_REQUEST:
            self.asked += 1

    def replies(self, chunk: bytes) -> Iterator[bytes]:
        """The messages that this chunk completes; of other protocols, everything as it comes."""
        if not self._readable:
            yield chunk
            return
        self._replies += chunk
        while size := 1 if self._one_byte_answers and self._replies else _size(self._replies, 1):
            message, self._replies = self._replies[:size], self._replies[size:]
            if self._one_byte_answers:
                self._one_byte_answers -= 1
                self._readable = message == b"N"
            yield message
            if message[:1] == b"Z":
                self.ready += 1


def _size(buffer: bytes, start: int) -> int:
    """The size of the first message of a buffer, whose length is stored at `start`; 0 while it is incomplete."""
    size = start + int.from_bytes(buffer[start : start + 4])
    return size if len(buffer) >= max(size, start + 4) else 0
