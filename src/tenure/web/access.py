"""Authentication: by the host app's hook, a token, a session, or as `local` on the machine itself."""

from __future__ import annotations

import hmac
import inspect
import re
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv6Address, ip_address
from typing import Any, cast

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request

from tenure.config import ROLES, Settings, Token, host_and_port, redact, role_of
from tenure.config import Role as Role
from tenure.core.text import a
from tenure.errors import InvalidOption

SESSION_SECONDS = 12 * 3600
_ANONYMOUS = re.compile(r"[A-Za-z0-9_-]{32,64}", re.ASCII)
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::(?P<port>\d{1,5}))?", re.ASCII | re.IGNORECASE)
_PROXIED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")


@dataclass(frozen=True, slots=True)
class User:
    """A user and their rights. `payloads`: they see arguments, results, checkpoints and log lines.

    Example, from a hook: `User("ada@example.com", "operate", payloads=True)`; the name goes into the audit trail.
    """

    name: str
    role: Role
    payloads: bool

    def __post_init__(self) -> None:
        name = cast(object, self.name)
        if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
            raise InvalidOption(f"User: expected a name of 1 to 200 printable characters, got {name!r}")
        if self.role not in ROLES:
            raise InvalidOption(f"User {name}: expected a role, {', '.join(ROLES)}, got {self.role!r}")

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


Auth = Callable[[Request], Any]
LOCAL = User("local", "admin", payloads=True)


class BadHook(TypeError):
    """The host app's hook returned something that is not a user."""


class Access:
    """Authenticates requests. `auth(request)` is the host app's hook, plain or async; a plain one runs in a thread.

    It returns a `User`, a role, True (an admin), or False or None: unknown to the app, so tokens are tried, if any.
    """

    def __init__(self, settings: Settings, auth: Auth | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self.tokens = settings.tokens
        self.auth = auth
        # An unknown host name may be another site's, now pointing here (DNS rebinding). With a hook, the host app
        # decides which names are valid, and what the hook relies on, mostly cookies, isn't sent to another name.
        own = {socket.gethostname().lower(), host_and_port(settings.listen)[0].lower() if settings.listen else ""}
        self.hosts = None if auth is not None and not settings.hosts else own | set(settings.hosts)
        self.clock = clock
        self.guesses = Guesses(clock)
        # Cookies ignore ports: two dashboards on one host, e.g. through tunnels, must not sign each other's users out.
        place = f"{redact(settings.url)} {settings.namespace}"
        self.cookie = f"tenure_{sha256(place.encode()).hexdigest()[:8]}"

    def answers_to(self, host: str) -> bool:
        """Whether the dashboard serves this host name. Any IP address is fine: it can't be rebound to another host."""
        return self.hosts is None or host in self.hosts or host == "localhost" or is_address(host)

    @property
    def only_local(self) -> bool:
        """Whether only `local` has access: there are no tokens, and no hook."""
        return not self.tokens and self.auth is None

    async def who(self, request: Request) -> User | None:
        """The user of this request, or None. Raises BadHook, and whatever the hook raises."""
        if self.auth is not None:
            user = _user_of(await _called(self.auth, request))
            if user is not None:
                return user
        given = bearer(request.headers)
        if given is not None and self.tokens:
            # A wrong token is not authenticated: a client that sends a token does not intend to use its cookie.
            token = self.token(given, address(request.scope))
            return None if token is None else _user(token)
        if self.only_local:
            return LOCAL if _is_local(request.scope, request.headers) else None
        return self._of_session(request.cookies.get(self.cookie, ""))

    def token(self, given: str, guesser: str) -> Token | None:
        """The token with this secret. A wrong one counts against `guesser`, which must not be blocked already."""
        digest = sha256(given.encode()).digest()
        found = None
        for token in self.tokens:  # compare all of them, so that the time reveals nothing
            if hmac.compare_digest(digest, sha256(token.secret.encode()).digest()):
                found = token
        if found is None:
            self.guesses.wrong(guesser, digest)
        return found

    def session(self, token: Token) -> str:
        """A new session of this token, as a cookie value. It ends after 12 hours, or when the token is changed."""
        return _signed(token, f"{token.name}:{int(self.clock()) + SESSION_SECONDS}:{secrets.token_urlsafe(16)}")

    def known_cookie(self, cookies: Mapping[str, str]) -> str | None:
        """The value of the dashboard's cookie, if it is a valid session or an anonymous one."""
        value = cookies.get(self.cookie, "")
        return value if _ANONYMOUS.fullmatch(value) or self._of_session(value) else None

    def _of_session(self, value: str) -> User | None:
        said, _, _ = value.rpartition(":")
        name, _, rest = said.partition(":")
        token = next((each for each in self.tokens if each.name == name), None)
        if token is None or not hmac.compare_digest(_signed(token, said).encode(), value.encode()):
            return None
        expires = int(rest.partition(":")[0])  # it is signed, so the format is valid
        return _user(token) if self.clock() < expires else None


def anonymous() -> str:
    """A cookie value for a browser without a session: it grants nothing, but binds forms to the browser."""
    return secrets.token_urlsafe(32)


def csrf_token(cookie: str, name: str) -> str:
    """The CSRF token in forms. Its key is the cookie value: other sites can't read it, and it differs per browser."""
    return hmac.new(cookie.encode(), f"tenure csrf {name}".encode(), sha256).hexdigest()


def bearer(headers: Headers) -> str | None:
    """The value after `Authorization: Bearer`."""
    scheme, _, given = headers.get("authorization", "").strip().partition(" ")
    return given.strip() if scheme.lower() == "bearer" else None


def host_of(text: str) -> tuple[str, int | None] | None:
    """The name and the port of a Host header, or None if it is invalid.

    >>> host_of("[::1]:3000"), host_of("Jobs.Example.com"), host_of("a/b")
    (('::1', 3000), ('jobs.example.com', None), None)
    """
    match = _HOST.fullmatch(text)
    if match is None:
        return None
    return match["name"].strip("[]").lower().rstrip("."), int(match["port"]) if match["port"] else None


def is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    """Whether a host's name or address can only mean this machine itself."""
    if not is_address(name):
        return name == "localhost"
    found = ip_address(name)
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback


def address(scope: Mapping[str, Any]) -> str:
    """The client's address; for IPv6 its network, since one client controls all of it."""
    host = str((scope.get("client") or ("", 0))[0])
    if is_address(host) and isinstance(found := ip_address(host), IPv6Address) and not found.ipv4_mapped:
        return found.exploded[:19]
    return host


class Guesses:
    """Addresses with too many recent wrong secrets. Repeating one, as a client with an old token does, is free."""

    MOST, SECONDS, _KEPT = 10, 60.0, 1024

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by: OrderedDict[str, tuple[float, set[bytes]]] = OrderedDict()

    def wait(self, guesser: str) -> float:
        """How many more seconds this address is blocked; 0.0: it is not."""
        ends, tried = self._by.get(guesser, (0.0, set[bytes]()))
        return max(0.0, ends - self._clock()) if len(tried) >= self.MOST else 0.0

    def wrong(self, guesser: str, digest: bytes) -> None:
        now = self._clock()
        ends, tried = self._by.pop(guesser, (0.0, set[bytes]()))
        if ends <= now:
            ends, tried = now + self.SECONDS, set[bytes]()
        tried.add(digest)
        self._by[guesser] = ends, tried
        while len(self._by) > self._KEPT:
            self._by.popitem(last=False)


async def _called(auth: Auth, request: Request) -> object:
    if inspect.iscoroutinefunction(auth):
        return await auth(request)
    answer = await run_in_threadpool(auth, request)
    return await answer if inspect.isawaitable(answer) else answer


def _user_of(answer: object) -> User | None:
    if answer is None or answer is False:
        return None
    if isinstance(answer, User):
        return answer
    rights = role_of("admin") if answer is True else role_of(answer) if isinstance(answer, str) else None
    if rights is None:
        raise BadHook(
            f"auth= returned {a(type(answer).__name__)}; expected a tenure.web.access.User, a role "
            f"({', '.join(ROLES)}), True, False or None"
        )
    role, payloads = rights
    return User("user", role, payloads)


def _user(token: Token) -> User:
    return User(token.name, token.role, token.payloads)


def _signed(token: Token, said: str) -> str:
    return f"{said}:{hmac.new(token.secret.encode(), f'tenure session {said}'.encode(), sha256).hexdigest()}"


def _is_local(scope: Mapping[str, Any], headers: Headers) -> bool:
    """Whether the client is on this machine and called it by a local name, and is not a proxy that forwards others."""
    client, host = scope.get("client"), host_of(headers.get("host", ""))
    if not client or not host or not is_loopback(client[0]) or not is_loopback(host[0]):
        return False
    # nginx by default forwards neither the requested name nor the client's address, but it uses HTTP/1.0.
    return scope.get("http_version") != "1.0" and not any(name in headers for name in _PROXIED)
