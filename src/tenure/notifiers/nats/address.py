"""The parsed `nats://` URL, and the names of a namespace on the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tenure.core.durations import seconds
from tenure.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed `nats://` URL. Its repr contains no secret."""

    servers: tuple[str, ...]
    ack_wait: float
    options: Mapping[str, Any] = field(repr=False)  #: user, password, token, user_credentials

    def __str__(self) -> str:
        return ", ".join(self.servers)


class Names:
    """Every subject and name of one namespace on the server. In queue names '=' replaces '.', the token separator."""

    def __init__(self, namespace: str) -> None:
        self.stream = f"tenure_{namespace}"
        self.ring = f"tenure.{namespace}.ring"
        self.queues = f"tenure.{namespace}.queue."

    def subject(self, queue: str) -> str:
        return self.queues + self.token(queue)

    def token(self, queue: str) -> str:
        return queue.replace(".", "=")

    def queue(self, subject: str) -> str | None:
        """The queue of a message's subject; None: not a queue of this namespace."""
        token = subject.removeprefix(self.queues)
        return None if token == subject or "." in token else token.replace("=", ".")


def parse_url(url: str, password: str | None = None) -> Address:
    """Parse nats://[user:password@]host[:port][,host2[:port]]?ack_wait=10m. An InvalidOption contains no secrets.

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
