"""The security middleware: one ASGI middleware around pages, API and streams.

In this order: 1. abnormal headers are refused, 2. unknown host names, 3. requests from other sites; 4. the user is
authenticated; 5. a change must come from a page of the dashboard, or carry a header that no browser adds by itself;
6. the size of the body is limited. Every response gets the headers that keep a browser from running or framing foreign
content.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from html import escape
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from tenure.config import Role
from tenure.core.logs import logger
from tenure.web.access import (
    SESSION_SECONDS,
    Access,
    BadHook,
    User,
    address,
    anonymous,
    bearer,
    csrf_token,
    host_of,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BODY = 1 << 20
_SMALL_BODY = 16 << 10  #: before authentication
_BODY_SECONDS = 30.0
_MOST_HEADERS, _MOST_HEADER_BYTES = 100, 32 << 10
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_ONCE = ("host", "origin", "sec-fetch-site", "authorization", "content-type", "content-length", "x-csrf-token")
_API = ("/api", "/live", "/metrics", "/healthz", "/csp-report")
_PLAIN = frozenset({"/api/enqueue", "/api/flush"})  #: of the original queue, whose clients know no token
_STREAM = "text/event-stream"
_EVENTS = re.compile(r"/api/v1/(?:jobs/[^/]+/)?events")  #: streams, which have a limit of their own
_REPORT_EVERY = 60.0
_SEATS = 24  #: concurrent API calls: they share 40 threads with static files, and with the host app
_BUSY = "The store is slow to answer, and the limit of calls waiting for it is reached."
_log = logger("tenure.web")


class Problem(Exception):
    """An error response: RFC 9457 for programs, a page for people. `detail` says what was expected."""

    def __init__(self, status: int, title: str, detail: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{title}: {detail}" if detail else title)
        self.status, self.title, self.detail, self.headers = int(status), title, detail, dict(headers or {})

    def body(self) -> dict[str, Any]:
        kind = f"/problems/{self.title.lower().replace(' ', '-')}"
        return {"type": kind, "title": self.title, "status": self.status, "detail": self.detail}


def needs(role: Role) -> Callable[[Request], Awaitable[User]]:
    """A dependency of FastAPI: the user, if they may. Example: `user: Annotated[User, Depends(needs("operate"))]`"""

    async def allowed(request: Request) -> User:
        user: User = request.state.user
        if not user.may(role):
            raise Problem(
                HTTPStatus.FORBIDDEN, "Not allowed", f"{user.name} has the role {user.role}, this needs {role}"
            )
        return user

    return allowed


class _Gone(Exception):
    """The client disconnected before the request was complete."""


def _root_of(scope: Scope) -> str:
    root: str = scope.get("root_path", "")
    return root.rstrip("/")


def path_of(scope: Scope) -> str:
    """The path below the root path."""
    root, whole = _root_of(scope), str(scope["path"])
    inside = whole == root or whole.startswith(f"{root}/")  # some hosts strip the root, some don't
    return (whole[len(root) :] if inside else whole) or "/"


class Visit:
    """The parts of a request that matter here. `fresh` is a cookie to set with the response."""

    def __init__(self, scope: Scope, cookie_name: str) -> None:
        self.scope = scope
        self.request = Request(scope)
        self.headers: Headers = self.request.headers
        self.method: str = scope["method"]
        self.scheme: str = scope.get("scheme", "http")
        self.root = _root_of(scope)
        self.path = path_of(scope)
        self.safe = self.method in _SAFE
        self.api = any(self.path == each or self.path.startswith(f"{each}/") for each in _API)
        self.static = self.path.startswith("/static/")
        self.seated = self.path.startswith("/api/") and not _EVENTS.fullmatch(self.path)
        self.cookie_name = cookie_name
        self.fresh: str | None = None

    def url(self, path: str, **query: str) -> str:
        """A path of the dashboard, encoded for a header."""
        return quote(self.root + path, safe="/:@!$&'()*+,=~-._") + (f"?{urlencode(query)}" if query else "")

    def set_cookie(self, value: str, seconds: int | None) -> None:
        # Lax, since links to jobs arrive by mail and chat: with Strict, following one would require another login.
        # Lax permits only following links, which changes nothing; changes pass three further checks.
        life = "" if seconds is None else f"; Max-Age={seconds}"
        secure = "; Secure" if self.scheme == "https" else ""
        path = quote(self.root, safe="/:@!$&'()*+,=~-._") or "/"
        self.fresh = f"{self.cookie_name}={value}; Path={path}{life}; HttpOnly; SameSite=Lax{secure}"


class Security:
    """Wraps the whole app. Handlers find `request.state.user`, `.csrf` (for forms) and `.session`: they can log out."""

    def __init__(self, app: ASGIApp, access: Access, close: Callable[[], None] = lambda: None) -> None:
        self._app = app
        self._access = access
        self.close = close  #: releases the threads of the wrapped app
        self.reports = 0  #: violation reports of the content security policy
        self._reported_at = float("-inf")
        self._seated = 0
        self._streams = set[asyncio.Task[Any]]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = Visit(scope, self._access.cookie)

        task = asyncio.current_task()

        async def send_hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = _hardened(visit, message)
                if task is not None and Headers(raw=message["headers"]).get("content-type", "").startswith(_STREAM):
                    self._streams.add(task)
            elif visit.method == "HEAD" and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        try:
            answer = await self._admit(visit, receive)
        except _Gone:
            return
        except Problem as problem:
            answer = _answer(visit, problem)
        try:
            if isinstance(answer, Response):
                await answer(scope, receive, send_hardened)
            elif visit.seated and self._seated >= _SEATS:
                busy = Problem(HTTPStatus.SERVICE_UNAVAILABLE, "Busy", _BUSY, {"Retry-After": "5"})
                await _answer(visit, busy)(scope, receive, send_hardened)
            else:
                self._seated += visit.seated
                try:
                    await self._app(*answer, send_hardened)
                finally:
                    self._seated -= visit.seated
        finally:
            self._streams.discard(cast("asyncio.Task[Any]", task))

    def end_streams(self) -> None:
        """End the streams: they never end by themselves, and would delay a server that stops."""
        for task in self._streams:
            task.cancel()

    async def _admit(self, visit: Visit, receive: Receive) -> Response | tuple[Scope, Receive]:
        _check_headers(visit)
        self._check_host(visit)
        if visit.path == "/csp-report" and visit.method == "POST":
            return self._report(await _read(visit, receive, _SMALL_BODY))
        if visit.safe and (visit.static or visit.path == "/healthz"):
            return _with_state(visit.scope, user=None, csrf="", session=False), receive
        _check_site(visit)
        self._check_guesses(visit)
        user = await self._who(visit)
        if visit.path == "/login" and self._access.tokens:
            return await self._login(visit, receive, user)
        if user is None:
            return self._stranger(visit)
        cookie = self._cookie(visit)
        csrf = csrf_token(cookie, user.name)
        body = await _read(visit, receive, MOST_BODY)
        if not visit.safe:
            _check_forgery(visit, csrf, body)
        if visit.path == "/logout" and visit.method == "POST":
            visit.set_cookie("", 0)
            return RedirectResponse(visit.url("/"), HTTPStatus.SEE_OTHER)
        session = ":" in cookie and bearer(visit.headers) is None
        return _with_state(visit.scope, user=user, csrf=csrf, session=session), _again(body, receive)

    # ── authentication ──

    async def _who(self, visit: Visit) -> User | None:
        try:
            return await self._access.who(visit.request)
        except HTTPException as error:  # how a host app's dependencies refuse a request, or redirect to a login
            title = HTTPStatus(error.status_code).phrase
            raise Problem(error.status_code, title, str(error.detail or ""), error.headers) from error
        except BadHook as error:
            _log.error("%s", error)
            raise Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "The dashboard is set up wrongly", str(error)) from error
        except Exception as error:
            _log.exception("the auth= hook of the dashboard failed")
            detail = "The app's authentication hook failed; see its log."
            raise Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "Signing in failed", detail) from error

    def _stranger(self, visit: Visit) -> Response:
        if self._access.only_local:
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "Only from its own machine",
                "Without tokens this dashboard only serves clients on its own machine that call it by localhost, "
                "without a proxy. To give others access, start it with TENURE_TOKENS=NAME:ROLE:SECRET (ROLE is read, "
                "operate or admin); in an app of your own, mount jobs.dashboard(auth=…).",
            )
        if visit.api:
            detail = "expected Authorization: Bearer SECRET with the secret of one of TENURE_TOKENS, or a session"
            raise Problem(
                HTTPStatus.UNAUTHORIZED, "Not signed in", detail, {"WWW-Authenticate": 'Bearer realm="tenure"'}
            )
        if not self._access.tokens:
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "Not signed in",
                "The app that contains this dashboard denies you access: sign in there, as a user with access.",
            )
        query: str = visit.scope.get("query_string", b"").decode("latin-1")
        here = visit.url(visit.path) + (f"?{query}" if query else "")
        to_login = visit.url("/login", next=here) if visit.safe and len(here) < 2000 else visit.url("/login")
        return RedirectResponse(to_login, HTTPStatus.SEE_OTHER)

    def _cookie(self, visit: Visit) -> str:
        """The cookie's value; a browser without one gets one with its first page."""
        cookie = self._access.known_cookie(visit.request.cookies)
        if cookie is None:
            cookie = anonymous()
            if visit.method == "GET" and not visit.api and bearer(visit.headers) is None:
                visit.set_cookie(cookie, None)
        return cookie

    async def _login(self, visit: Visit, receive: Receive, user: User | None) -> Response:
        csrf = csrf_token(self._cookie(visit), user.name if user else "")
        if visit.safe:
            onward = _onward(visit, visit.request.query_params.get("next", ""))
            if user is not None:
                return RedirectResponse(onward, HTTPStatus.SEE_OTHER)
            return _login_page(visit, csrf, onward)
        body = await _read(visit, receive, _SMALL_BODY)
        _check_forgery(visit, csrf, body)
        form = _form(visit, body)
        onward = _onward(visit, form.get("next", ""))
        token = self._access.token(form.get("token", "").strip(), address(visit.scope))
        if token is None:
            return _login_page(visit, csrf, onward, wrong=True)
        visit.set_cookie(self._access.session(token), SESSION_SECONDS)
        return RedirectResponse(onward, HTTPStatus.SEE_OTHER)

    def _check_guesses(self, visit: Visit) -> None:
        if not self._access.tokens:
            return
        if bearer(visit.headers) is None and not (visit.path == "/login" and not visit.safe):
            return
        wait = self._access.guesses.wait(address(visit.scope))
        if wait > 0:
            detail = f"Too many wrong tokens came from your address. Try again in {wait:.0f} seconds."
            raise Problem(HTTPStatus.TOO_MANY_REQUESTS, "Wait a minute", detail, {"Retry-After": f"{wait + 1:.0f}"})

    # ── refused for every user ──

    def _check_host(self, visit: Visit) -> None:
        host = host_of(visit.headers.get("host", ""))
        if host is None:
            raise Problem(
                HTTPStatus.BAD_REQUEST, "Bad Host", "Host: expected a name or an address, and optionally a port"
            )
        if not self._access.answers_to(host[0]):
            raise Problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                "Not called by this name",
                f"This dashboard does not serve {host[0]}. If that is one of its names, start it with "
                f"TENURE_HOSTS={host[0]}",
            )

    def _report(self, body: bytes) -> Response:
        self.reports += 1
        now = self._access.clock()
        if now - self._reported_at >= _REPORT_EVERY:
            self._reported_at = now
            _log.warning(
                "a browser blocked a violation of the content security policy (report %d): %s",
                self.reports,
                _said(body),
            )
        return Response(status_code=HTTPStatus.NO_CONTENT)


# ── Checks ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_headers(visit: Visit) -> None:
    raw: list[tuple[bytes, bytes]] = visit.scope["headers"]
    if len(raw) > _MOST_HEADERS or sum(len(name) + len(value) for name, value in raw) > _MOST_HEADER_BYTES:
        detail = f"expected at most {_MOST_HEADERS} headers of {_MOST_HEADER_BYTES >> 10} KiB together"
        raise Problem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "Too many headers", detail)
    for name in _ONCE:
        if len(visit.headers.getlist(name)) > 1:
            raise Problem(HTTPStatus.BAD_REQUEST, "A header twice", f"{name}: expected once, got several")


def _check_site(visit: Visit) -> None:
    """Other sites may link here, and do nothing else."""
    site = visit.headers.get("sec-fetch-site")
    followed = visit.method == "GET" and not visit.api and visit.headers.get("sec-fetch-mode") == "navigate"
    if site not in (None, "same-origin", "none") and not followed:
        raise Problem(HTTPStatus.FORBIDDEN, "From another site", "Only pages of the dashboard itself may request this.")
    origin = visit.headers.get("origin")
    if visit.safe or origin is None or _same_origin(visit, origin):
        return
    raise Problem(
        HTTPStatus.FORBIDDEN,
        "From another site",
        "Origin: expected the scheme and host of this request. Behind a proxy, forward Host, and "
        "X-Forwarded-Proto with tenure dashboard --behind-proxy.",
    )


def _same_origin(visit: Visit, origin: str) -> bool:
    scheme, separator, rest = origin.partition("://")
    theirs, ours = host_of(rest), host_of(visit.headers["host"])
    if not separator or theirs is None or ours is None or scheme.lower() != visit.scheme:
        return False
    usual = 443 if visit.scheme == "https" else 80
    return (theirs[0], theirs[1] or usual) == (ours[0], ours[1] or usual)


def _check_forgery(visit: Visit, csrf: str, body: bytes) -> None:
    """A change must carry what other sites can't make a browser send: a bearer token, a form's token, or plain JSON."""
    if bearer(visit.headers) is not None:
        return
    given = visit.headers.get("x-csrf-token") or _form(visit, body).get("csrf", "")
    if hmac.compare_digest(given.encode(), csrf.encode()):
        return
    if not given and visit.path in _PLAIN and _bare(visit, body):
        return
    if given or any(name in visit.headers for name in ("cookie", "origin", "sec-fetch-site")):
        detail = (
            "This form is too old, or from another session. Go back, reload the page, and submit it again. "
            "(Programs: Authorization: Bearer SECRET, or X-CSRF-Token with the cookie.)"
        )
        raise Problem(HTTPStatus.FORBIDDEN, "Not sent from a page of ours", detail)
    if _media_type(visit) != "application/json":
        detail = "expected Content-Type: application/json, or Authorization: Bearer SECRET, or X-CSRF-Token"
        raise Problem(HTTPStatus.FORBIDDEN, "Not sent from a page of ours", detail)


def _bare(visit: Visit, body: bytes) -> bool:
    """Whether this plain request comes from the dashboard's own origin, or from a program that sends nothing more.

    A browser adds Origin or Sec-Fetch-Site to what another site makes it send, and neither can be forged there;
    `_check_site` has refused foreign ones.
    """
    if visit.headers.get("sec-fetch-site") == "same-origin" or "origin" in visit.headers:
        return True
    return not body and not any(name in visit.headers for name in ("cookie", "content-type", "sec-fetch-site"))


def _media_type(visit: Visit) -> str:
    return visit.headers.get("content-type", "").partition(";")[0].strip().lower()


def _form(visit: Visit, body: bytes) -> dict[str, str]:
    """The first value of each field."""
    if _media_type(visit) != "application/x-www-form-urlencoded":
        return {}
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=20_000)
    except ValueError as error:
        raise Problem(HTTPStatus.BAD_REQUEST, "Bad form", "expected at most 20000 fields, in UTF-8") from error
    return dict(reversed(fields))


def _onward(visit: Visit, given: str) -> str:
    """Where to go after logging in: the given path if it is one of the dashboard, else the first page."""
    path = given.partition("?")[0]
    ours = path == visit.root or path.startswith(f"{visit.root}/")
    tricky = path.startswith("//") or "\\" in given or ".." in path or "%2e" in path.lower()
    plain = given.isascii() and given.isprintable() and " " not in given
    return given if given and ours and plain and not tricky else visit.url("/")


# ── Bodies ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def _read(visit: Visit, receive: Receive, most: int) -> bytes:
    """The whole body; most requests have none."""
    length = visit.headers.get("content-length", "0")
    if length == "0" and "transfer-encoding" not in visit.headers:
        return b""
    too_long = Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "Too long",
        f"expected a body of at most {most >> 10} KiB; send less at once",
    )
    if not length.isdecimal() or int(length[:20]) > most:
        raise too_long
    read = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Gone
                read += message.get("body", b"")
                if len(read) > most:
                    raise too_long
                if not message.get("more_body", False):
                    return bytes(read)
    except TimeoutError as error:
        detail = f"expected the whole body within {_BODY_SECONDS:.0f} seconds"
        raise Problem(HTTPStatus.REQUEST_TIMEOUT, "Too slow", detail) from error


def _again(body: bytes, receive: Receive) -> Receive:
    """A receive that first replays the body already read, then continues."""
    if not body:
        return receive
    pending = [body]

    async def replay() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await receive()

    return replay


def _said(body: bytes) -> str:
    """The content of a report, as one line that is safe to log."""
    try:
        found = json.loads(body)["csp-report"]
        names = ("document-uri", "effective-directive", "blocked-uri", "source-file", "line-number")
        return json.dumps({name: str(found.get(name, ""))[:200] for name in names})
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "it can't be parsed"


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _with_state(scope: Scope, **found: object) -> Scope:
    """A copy, since the state of a mounted dashboard is the host app's. A HEAD is a GET whose body is not sent."""
    endless = path_of(scope).endswith(("/events", "/live"))
    method = "GET" if scope["method"] == "HEAD" and not endless else scope["method"]
    return {**scope, "method": method, "state": {**scope.get("state", {}), **found}}


def _hardened(visit: Visit, message: Message) -> Message:
    raw: Iterable[tuple[bytes, bytes]] = message.get("headers", ())
    headers = MutableHeaders(raw=list(raw))
    report = visit.url("/csp-report")
    headers["content-security-policy"] = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        f"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; report-uri {report}"
    )
    headers["x-content-type-options"] = "nosniff"
    headers["referrer-policy"] = (
        "same-origin"  # with no-referrer, browsers send the dashboard's own forms with Origin: null
    )
    headers["cross-origin-opener-policy"] = "same-origin"
    headers["cross-origin-resource-policy"] = "same-origin"
    if not visit.static or message["status"] >= 400:
        headers["cache-control"] = "no-store"
    if visit.fresh is not None:
        headers.append("set-cookie", visit.fresh)
    return {**message, "headers": headers.raw}


def _answer(visit: Visit, problem: Problem) -> Response:
    if visit.api:
        body = json.dumps(problem.body())
        return Response(body, problem.status, problem.headers, media_type="application/problem+json")
    said = f"<p>{escape(problem.detail)}</p>" if problem.detail else ""
    home = f'<p><a href="{escape(visit.url("/"))}">Go to the overview</a></p>'
    return HTMLResponse(_page(visit, problem.title, said + home), problem.status, problem.headers)


def _login_page(visit: Visit, csrf: str, onward: str, *, wrong: bool = False) -> Response:
    said = '<p role="alert">That is not a token of this dashboard.</p>' if wrong else ""
    form = (
        f'{said}<form method="post" action="{escape(visit.url("/login"))}">'
        f'<input type="hidden" name="csrf" value="{csrf}">'
        f'<input type="hidden" name="next" value="{escape(onward)}">'
        '<p><label for="token">Token</label> <input id="token" name="token" type="password" required autofocus '
        'autocomplete="current-password"></p><p><button>Log in</button></p></form>'
        "<p>The token is the SECRET of one of TENURE_TOKENS, which are set where this dashboard is started.</p>"
    )
    return HTMLResponse(_page(visit, "Log in", form), HTTPStatus.FORBIDDEN if wrong else HTTPStatus.OK)


def _page(visit: Visit, title: str, inner: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)} · Tenure</title>"
        f'<link rel="stylesheet" href="{escape(visit.url("/static/tenure.css"))}"></head>'
        f'<body class="alone"><main><h1>{escape(title)}</h1>{inner}</main></body></html>'
    )
