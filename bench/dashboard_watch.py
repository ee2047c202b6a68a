"""Browsers that watch the overview: `python -m bench.dashboard_watch PORT CLIENTS PATTERN…`, a process of its own.

A pattern has one group, a number that rises. The process prints `open` when every stream has sent an event. When its
input ends it writes JSON: for each client and each pattern a list of [number, when], as each number was first seen, in
nanoseconds of the clock that all processes share.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time

PATIENCE_SECONDS = 60.0
_LIMIT = 1 << 24


Seen = list[tuple[int, int]]


async def watch(port: int, patterns: list[re.Pattern[bytes]], opened: asyncio.Event) -> list[Seen]:
    """What one client sees, until it is cancelled."""
    seen: list[Seen] = [[] for _ in patterns]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_LIMIT)
    try:
        writer.write(f"GET /live?at=%2F HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise SystemExit(f"/live: {head.decode(errors='replace')}{(await reader.read(500)).decode()}")
        while size := int(await reader.readuntil(b"\r\n"), 16):  # an event is one chunk
            event = await reader.readexactly(size + 2)
            at = time.monotonic_ns()
            if event.startswith(b"data:"):
                opened.set()
            for pattern, numbers in zip(patterns, seen, strict=True):
                found = max(map(int, pattern.findall(event)), default=-1)
                if found > (numbers[-1][0] if numbers else -1):
                    numbers.append((found, at))
        raise SystemExit("/live: a stream has ended")
    except asyncio.CancelledError:
        return seen
    finally:
        writer.close()


async def main(port: int, clients: int, patterns: list[str]) -> None:
    wanted = [re.compile(each.encode()) for each in patterns]
    opened = [asyncio.Event() for _ in range(clients)]
    watching: list[asyncio.Task[list[Seen]]] = []
    for each in opened:
        watching.append(asyncio.create_task(watch(port, wanted, each)))
        await asyncio.sleep(0.005)
    async with asyncio.timeout(PATIENCE_SECONDS):
        for each in opened:
            await each.wait()
    sys.stdout.write("open\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    for task in watching:
        task.cancel()
    sys.stdout.write(json.dumps(await asyncio.gather(*watching)) + "\n")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
