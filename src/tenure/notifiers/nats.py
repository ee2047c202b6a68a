"""Doorbells and permits over NATS: `notifier="nats://…"`, beside any store.

    tenure.<namespace>.queue.<token>   JetStream, WorkQueue: one message a job. Whoever pulls it may claim one job.
    tenure.<namespace>.ring            core NATS: a few bytes a ring, heard by everyone at once

The queue delivers, the store owns: a lost message costs a poll, a doubled one a look.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from weakref import WeakSet

from tenure.core.durations import seconds
from tenure.errors import InvalidOption
from tenure.notifiers.inbox import Inbox
from tenure.notifiers.jetstream import CLOSE_SECONDS, RETRY_SECONDS, Address, Line, Names, NatsPermits
from tenure.ports import Ring

_everyone: WeakSet[NatsNotifier] = WeakSet()
_inherited: list[object] = []  #: the parent's connections: closing one here would pull at its sockets


class NatsNotifier:
    """Rings and permits of one namespace. It connects on first use, and makes no thread before."""

    def __init__(self, url: str, namespace: str = "tenure", password: str | None = None) -> None:
        self.address = parse_url(url, password)
        self._namespace = namespace
        self._lock = threading.Lock()
        self._line: Line | None = None
        _everyone.add(self)

    def announce(self, rings: Iterable[Ring]) -> None:
        told = list(rings)
        if told:
            with suppress(RuntimeError):  # the interpreter is ending and starts no thread any more
                self._opened().post(told)

    def listen(self) -> NatsListener:
        return NatsListener(self._opened())

    def problem(self) -> str:
        return self._opened().problem()

    def close(self) -> None:
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            atexit.unregister(self.close)
            line.close()

    def _opened(self) -> Line:
        with self._lock:
            if self._line is None:
                self._line = Line(self.address, Names(self._namespace))
                atexit.register(self.close)
            return self._line

    def _forget(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it
        if self._line is not None:
            _inherited.append(self._line)
            self._line = None


def _forget_all() -> None:
    for notifier in list(_everyone):
        notifier._forget()


os.register_at_fork(after_in_child=_forget_all)


class NatsListener:
    """Hears every ring, and deals out the permits that were asked for."""

    interval = RETRY_SECONDS

    def __init__(self, line: Line) -> None:
        self._line = line
        self._inbox = Inbox()
        self.permits = NatsPermits(line, self._inbox)
        line.call(line.attach, self._inbox, self.permits)

    def fileno(self) -> int:
        return self._inbox.fileno()

    def drain(self) -> list[Ring]:
        return self._inbox.drain()

    def close(self) -> None:
        self._line.wait(self._line.detach(self._inbox, self.permits), CLOSE_SECONDS)
        self._inbox.close()


# ── URLs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def parse_url(url: str, password: str | None = None) -> Address:
    """Read nats://[user:password@]host[:port][,host2[:port]]?ack_wait=10m, or raise InvalidOption without its secrets.

    Also `tls://`, and in the query `token=…` or `creds=/path/to/user.creds`.
    """
    scheme, found, rest = url.partition("://")
    authority, _, query = rest.partition("?")
    login, at, hosts = authority.rpartition("@")
    user, colon, inside = login.partition(":")
    if not found or scheme not in ("nats", "tls") or not hosts.strip("/"):
        raise InvalidOption("notifier: expected nats://[user:password@]host[:port][,host2]?ack_wait=10m")
    if at and not colon and password is None:
        raise InvalidOption("notifier: a user without a password; for a token write nats://host?token=…")
    asked = dict(parse_qsl(query, keep_blank_values=True))
    ack_wait = seconds(asked.pop("ack_wait", "10m"), "notifier: ack_wait")
    if not 1 <= ack_wait <= 86_400:
        raise InvalidOption("notifier: ack_wait: expected 1s to 1d; it is how long a silent worker keeps a message")
    options: dict[str, Any] = {}
    if user:
        options |= {"user": unquote(user), "password": password or unquote(inside)}
    if "token" in asked:
        options["token"] = asked.pop("token")
    if "creds" in asked:
        options["user_credentials"] = _credentials(asked.pop("creds"))
    if asked:
        raise InvalidOption(f"notifier: {', '.join(asked)}: unknown; a nats URL takes ack_wait, token and creds")
    servers = tuple(_server(scheme, host) for host in hosts.rstrip("/").split(","))
    return Address(servers, ack_wait, options)


def _credentials(path: str) -> str:
    if not Path(path).is_file():
        raise InvalidOption(f"notifier: creds: there is no file {path}")
    if find_spec("nkeys") is None:
        raise InvalidOption('notifier: creds need the nkeys package: pip install "nats-py[nkeys]"')
    return path


def _server(scheme: str, host: str) -> str:
    try:
        parts = urlsplit(f"//{host}")
        name, port, path = parts.hostname, parts.port or 4222, parts.path
    except ValueError:
        name, port, path = None, 0, ""
    if not name or path:
        raise InvalidOption(f"notifier: expected host or host:port, got {host!r}")
    return f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}"
