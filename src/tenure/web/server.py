"""The HTTP server of `tenure dashboard`: uvicorn, on a socket opened here.

Slow clients can't take its connections from others. One that has no request in progress is idle, whatever it sends: it
is closed ten seconds after its last response, and at once if it is the one idle for longest when too many are open. If
none is idle, the one whose client has not read its response for longest makes room. So a new client always gets a
connection; if all of them are busy, only /healthz is still answered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Any

import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from tenure.config import host_and_port
from tenure.errors import InvalidOption
from tenure.web.security import Receive, Scope, Security, Send, path_of

_MOST_CONNECTIONS = 1_000
_MORE = 50  #: connections while all of those are busy: for /healthz, and to tell others so
_FILES = 4_096  #: open files wanted: while too many connections arrive, they are open for a moment
_GRACE_SECONDS = 2
_SILENT_SECONDS = 10
_UNREAD_SECONDS = 30  #: how long a client may leave its response unread


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


def _protocol(opened: Callable[[Any], None], answered: Callable[[Any], None]) -> type[asyncio.Protocol]:
    """uvicorn's protocol, which reports each new connection and each complete response."""

    class Protocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]  # one of two classes
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            opened(self)

        def on_response_complete(self) -> None:
            answered(self)
            super().on_response_complete()  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]

    return Protocol


def _is_busy(connection: Any) -> bool:
    """Whether a request has arrived whose response is not complete. The body of one that was refused may still come."""
    return connection.cycle is not None and not connection.cycle.response_complete


def _is_unread(connection: Any) -> bool:
    """Whether the client has not yet read all of its response."""
    return bool(connection.transport.get_write_buffer_size())


def _is_stuck(connection: Any) -> bool:
    """Whether it waits for nothing but its client, which would have to read."""
    return connection.flow.write_paused or (_is_unread(connection) and not _is_busy(connection))


def _is_gone(connection: Any) -> bool:
    """Whether it is closed, though uvicorn doesn't know yet. One that is unread stays open until it is read."""
    return connection.transport.is_closing() and not _is_unread(connection)


class Server(uvicorn.Server):
    """Serves until SIGTERM or Ctrl-C, which end it normally; `ready` is called once it serves."""

    def __init__(self, app: Callable[..., Any], ready: Callable[[], None], *, behind_proxy: bool = False) -> None:
        config = uvicorn.Config(
            self._serve_one,
            interface="asgi3",
            http=_protocol(self._opened, self._answered),
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=behind_proxy,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        super().__init__(config)
        self._app, self._ready = app, ready
        self._busy = 0  #: requests in progress
        self._moved: dict[Any, float] = {}  #: when a request on it last made progress, or else when it was opened
        self._sweeping: asyncio.Task[None] | None = None
        log = logging.getLogger("uvicorn.error")
        log.setLevel(logging.ERROR)  # its warnings are about malformed requests
        log.addFilter(lambda _: not self.should_exit)  # a stop that aborts streams is not worth logging

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
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

    async def _serve_one(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._busy >= _MOST_CONNECTIONS and path_of(scope) != "/healthz":
            said = f"{_MOST_CONNECTIONS} requests are in progress: try again"
            await PlainTextResponse(said, 503, {"Retry-After": "1"})(scope, receive, send)
            return
        self._busy += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._busy -= 1

    def _opened(self, connection: Any) -> None:
        """If too many are open, close another one: the one that has been idle, or else unread, for longest."""
        self._moved[connection] = monotonic()
        if len(self.server_state.connections) <= _MOST_CONNECTIONS:
            return
        opened = [each for each in self.server_state.connections if not _is_gone(each)]
        if len(opened) <= _MOST_CONNECTIONS:
            return
        others = [each for each in opened if each is not connection]
        idle = [each for each in others if not _is_busy(each) and not _is_unread(each)]
        if idle:
            min(idle, key=self._since).transport.close()
        elif len(opened) > _MOST_CONNECTIONS + _MORE:
            min(filter(_is_stuck, others), key=self._since, default=connection).transport.abort()

    def _answered(self, connection: Any) -> None:
        # here too, since the sweep misses most short requests
        self._moved[connection] = monotonic()

    def _since(self, connection: Any) -> float:
        return self._moved.get(connection, 0.0)

    async def _sweep(self) -> None:
        """Close connections that have been idle, or whose client has not read, for too long."""
        while True:
            now, opened = monotonic(), set[Any](self.server_state.connections)
            self._moved = {
                each: now if _is_busy(each) and not _is_stuck(each) else self._moved.get(each, now) for each in opened
            }
            for each, moved in self._moved.items():
                if _is_busy(each) or _is_unread(each):
                    if now - moved > _UNREAD_SECONDS:
                        each.transport.abort()  # closing it would wait for the client to read
                elif now - moved > _SILENT_SECONDS:
                    each.transport.close()
            await asyncio.sleep(1.0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if isinstance(self._app, Security):  # and not a host app that mounts it
            self._app.end_streams()
        if self._sweeping is not None:
            self._sweeping.cancel()
        await super().shutdown(sockets)
        if isinstance(self._app, Security):
            self._app.close()
