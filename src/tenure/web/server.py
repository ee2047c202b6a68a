"""The HTTP server of `tenure dashboard`: uvicorn, on a socket opened here."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

import uvicorn

from tenure.config import host_and_port
from tenure.errors import InvalidOption
from tenure.web.security import Security

_MOST_CONNECTIONS = 1_000
_GRACE_SECONDS = 2
_SILENT_SECONDS = 10


def listen_at(place: str) -> socket.socket:
    """A socket at HOST:PORT. Raises InvalidOption if it is in use."""
    host, port = host_and_port(place)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise InvalidOption(
            f"listen: {place} can't be used: {_reason(error)}; use another with --listen HOST:PORT (port 0: any free "
            "one)"
        ) from error


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)


def url_of(listening: socket.socket) -> str:
    """The URL for a browser."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Serves until SIGTERM or Ctrl-C, which end it normally; `ready` is called once it serves."""

    def __init__(self, app: Callable[..., Any], ready: Callable[[], None], *, behind_proxy: bool = False) -> None:
        config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=behind_proxy,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        super().__init__(config)
        self._app, self._ready = app, ready
        self._sweeping: asyncio.Task[None] | None = None
        log = logging.getLogger("uvicorn.error")
        log.setLevel(logging.ERROR)  # its warnings are about malformed requests
        log.addFilter(lambda _: not self.should_exit)  # a stop that aborts streams is not worth logging

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        former = {number: signal.signal(number, self._asked_to_stop) for number in (signal.SIGTERM, signal.SIGINT)}
        super().run(sockets)  # which re-raises the captured signals at the end: to no effect
        for number, handler in former.items():
            signal.signal(number, handler)

    def _asked_to_stop(self, number: int, frame: FrameType | None) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._sweeping = asyncio.create_task(self._sweep())
        self._ready()

    async def _sweep(self) -> None:
        """Close connections without a request for a while: they would exhaust the limit."""
        silent: dict[object, int] = {}
        while True:
            waiting = [each for each in self.server_state.connections if getattr(each, "cycle", None) is None]
            silent = {each: silent.get(each, 0) + 1 for each in waiting}
            for each, looks in silent.items():
                if looks > _SILENT_SECONDS:
                    cast("Any", each).transport.close()
            await asyncio.sleep(1.0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if isinstance(self._app, Security):  # and not a host app that mounts it
            self._app.end_streams()
        if self._sweeping is not None:
            self._sweeping.cancel()
        await super().shutdown(sockets)
        if isinstance(self._app, Security):
            self._app.close()
