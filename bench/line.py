"""A line with a round trip to a server on this machine: each answer is delayed by it. Runs in a thread.

    with Line("127.0.0.1", 5432, 0.005) as line:
        connect(port=line.port)

Answers under way do not delay those behind them, as on a real line; `tests/proxy.py` breaks lines instead.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Self

CHUNK = 65536


class Line:
    """Delays only the answers: a loop's timers have milliseconds, and half a round trip may be less than one."""

    def __init__(self, host: str, port: int, round_trip: float) -> None:
        self._target, self._delay = (host, port), round_trip
        self.port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="line", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        self._ready.set()
        await self._ended.wait()
        listener.close()

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        answers, server = await asyncio.open_connection(*self._target)
        with suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._forward(reader, server, 0.0), self._forward(answers, client, self._delay))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, chunk = await under_way.get()
                if delay:
                    await asyncio.sleep(due - self._loop.time())
                if not chunk:
                    writer.close()
                    return
                writer.write(chunk)
                await writer.drain()

        delivery = asyncio.create_task(deliver())
        chunk = b"-"
        while chunk:
            chunk = await reader.read(CHUNK)
            under_way.put_nowait((self._loop.time() + delay, chunk))
        await delivery
