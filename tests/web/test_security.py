"""Who gets in, who may change something, and what is refused: over real sockets, against a real server."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount

from tenure.config import load
from tenure.web.access import SESSION_SECONDS, Access, User
from tenure.web.security import MOST_BODY, Problem, Security, needs
from tenure.web.server import Server, listen_at, url_of

ADA, BOB, EVE = "ada-secret-0123456789", "bob-secret-0123456789", "eve-secret-0123456789"
TOKENS = f"ada:admin:{ADA},bob:read:{BOB},eve:operate-payloads:{EVE}"
PAGE = {"Accept": "text/html"}


# ── A dashboard of few pages, behind the real thing ─────────────────────────────────────────────────────────────


def small_app() -> FastAPI:
    web = FastAPI(openapi_url=None)

    @web.exception_handler(Problem)
    async def problem(_: Request, error: Problem) -> Response:  # pyright: ignore[reportUnusedFunction]
        return JSONResponse(error.body(), error.status)

    async def who(request: Request) -> Response:
        user: User | None = request.state.user
        seen = {"user": user and [user.name, user.role, user.payloads], "csrf": request.state.csrf}
        return JSONResponse({**seen, "session": request.state.session, "body": (await request.body()).decode()})

    async def operate(user: Annotated[User, Depends(needs("operate"))]) -> str:
        return user.name

    async def stream(_: Request) -> Response:
        async def events() -> AsyncIterator[str]:
            yield "data: first\n\n"
            await asyncio.Event().wait()

        return StreamingResponse(events(), media_type="text/event-stream")

    async def style(_: Request) -> Response:
        return PlainTextResponse("body {}", headers={"Cache-Control": "max-age=60", "Content-Security-Policy": "none"})

    for path in ("/", "/jobs", "/api/jobs", "/metrics", "/healthz"):
        web.add_route(path, who, methods=["GET", "HEAD", "POST", "DELETE"])
    web.add_api_route("/api/operate", operate, methods=["POST"])
    web.add_route("/live", stream)
    web.add_route("/static/tenure.css", style)
    return web


@dataclass
class Place:
    url: str
    security: Security
    server: Server
    clients: ExitStack = field(default_factory=ExitStack)

    def client(self, **headers: str) -> httpx.Client:
        made = httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=60)
        return self.clients.enter_context(made)

    def bearer(self, secret: str, **headers: str) -> httpx.Client:
        return self.client(Authorization=f"Bearer {secret}", **headers)

    def raw(self, sent: bytes) -> tuple[int, str]:
        """What a client that keeps to no rules gets: the status, and all of the answer."""
        at = urlsplit(self.url)
        answer = b""
        with socket.create_connection((at.hostname or "", at.port or 0), timeout=60) as sock:
            # A client refused before it has sent all may be cut off: while it goes on, or once it has read the answer.
            with suppress(ConnectionError):
                sock.sendall(sent.replace(b"HOST", at.netloc.encode()))
                sock.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                while piece := sock.recv(65_536):
                    answer += piece
        said = answer.decode("latin-1")
        return int(said.split(" ", 2)[1]), said


@contextmanager
def running(app: Any, security: Security) -> Iterator[Place]:
    ready = threading.Event()
    listening = listen_at("127.0.0.1:0")
    server = Server(app, ready.set)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    place = Place(url_of(listening), security, server)
    try:
        assert ready.wait(60)
        yield place
    finally:
        place.clients.close()
        server.should_exit = True
        thread.join(60)
        listening.close()
        assert not thread.is_alive()


Serve = Callable[..., Place]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A dashboard with these tokens, this hook, these names, at this root."""
    with ExitStack() as open_places:

        def start(
            tokens: str | None = None,
            *,
            auth: Any = None,
            hosts: str | None = None,
            root: str = "",
            clock: Callable[[], float] = time.time,
        ) -> Place:
            settings = load({"tokens": tokens, "hosts": hosts}, environ={})
            security = Security(small_app(), Access(settings, auth, clock=clock))
            app = Starlette(routes=[Mount(root, app=security)]) if root else security
            return open_places.enter_context(running(app, security))

        yield start


def csrf_of(page: httpx.Response) -> str:
    found = re.search(r'name="csrf" value="(\w+)"', page.text)
    return found[1] if found else page.json()["csrf"]


def log_in(client: httpx.Client, secret: str, onward: str = "", root: str = "") -> httpx.Response:
    csrf = csrf_of(client.get(f"{root}/login", headers=PAGE))
    return client.post(f"{root}/login", data={"csrf": csrf, "token": secret, "next": onward})


# ── Who gets in ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_on_its_own_machine_without_tokens_whoever_comes_is_local_and_an_admin(serve: Serve) -> None:
    place = serve()

    assert place.client().get("/").json()["user"] == ["local", "admin", True]
    assert place.client(Host=f"localhost:{urlsplit(place.url).port}").get("/").status_code == 200


def test_who_comes_through_a_proxy_is_not_local(serve: Serve) -> None:
    client = serve().client()

    for header in ("X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded", "X-Real-IP", "Via"):
        answer = client.get("/", headers={header: "127.0.0.1"})
        assert answer.status_code == 403, header
        assert "TENURE_TOKENS" in answer.text
        assert "auth=" in answer.text


def test_a_proxy_that_says_nothing_of_itself_but_speaks_http_1_0_is_not_local(serve: Serve) -> None:
    status, _ = serve().raw(b"GET / HTTP/1.0\r\nHost: HOST\r\n\r\n")

    assert status == 403


def test_who_asks_for_this_machine_by_an_outer_address_is_not_local(serve: Serve) -> None:
    answer = serve().client(Host="192.0.2.7:3000").get("/api/jobs")

    assert answer.status_code == 403
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["title"] == "Only from its own machine"


@pytest.mark.parametrize("tokens", [None, TOKENS])
def test_a_name_that_is_not_ours_is_refused_whatever_is_asked_for(serve: Serve, tokens: str | None) -> None:
    client = serve(tokens).client(Host="rebound.example")

    for path in ("/", "/api/jobs", "/live", "/static/tenure.css", "/healthz", "/csp-report", "/login"):
        for method in ("GET", "POST"):
            answer = client.request(method, path)
            assert answer.status_code == 421, (path, method)
            assert "TENURE_HOSTS=rebound.example" in answer.text


def test_a_name_in_tenure_hosts_is_ours(serve: Serve) -> None:
    place = serve(TOKENS, hosts="jobs.example.com")

    assert place.bearer(ADA, Host="Jobs.Example.com:8443").get("/").status_code == 200
    assert place.bearer(ADA, Host="other.example.com").get("/").status_code == 421


def test_the_names_of_a_mounted_dashboard_are_the_host_apps_affair_unless_they_are_set(serve: Serve) -> None:
    def hook(_: Request) -> str:
        return "read"

    assert serve(auth=hook).client(Host="shop.example.com").get("/").status_code == 200
    assert serve(auth=hook, hosts="a.example").client(Host="shop.example.com").get("/").status_code == 421


def test_the_token_says_who_it_is_and_what_they_may_do(serve: Serve) -> None:
    place = serve(TOKENS)

    found = [place.bearer(secret).get("/api/jobs").json()["user"] for secret in (ADA, BOB, EVE)]

    assert found == [["ada", "admin", True], ["bob", "read", False], ["eve", "operate", False]]


@pytest.mark.parametrize("path", ["/api/jobs", "/live", "/metrics"])
def test_without_the_right_token_a_program_is_told_401_and_how(serve: Serve, path: str) -> None:
    client = serve(TOKENS).client()

    for given in ("", "Bearer", f"Bearer {ADA}x", f"Bearer {ADA[:-1]}", f"Basic {ADA}", "Bearer é"):
        answer = client.get(path, headers={"Authorization": given.encode()})
        assert answer.status_code == 401, given
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.headers["content-type"] == "application/problem+json"
        assert set(answer.json()) == {"type", "title", "status", "detail"}
        assert "Bearer SECRET" in answer.json()["detail"]


def test_without_a_token_a_browser_is_sent_to_log_in_and_back(serve: Serve) -> None:
    answer = serve(TOKENS).client().get("/jobs?state=dead&q=a b", headers=PAGE)

    assert answer.status_code == 303
    to = urlsplit(answer.headers["location"])
    assert to.path == "/login"
    assert parse_qs(to.query)["next"] == ["/jobs?state=dead&q=a%20b"]


def test_styles_and_health_need_nobody(serve: Serve) -> None:
    client = serve(TOKENS).client()

    assert client.get("/static/tenure.css").status_code == 200
    assert client.get("/healthz").status_code == 200
    assert client.post("/healthz").status_code == 401


def test_a_role_too_low_is_told_which_one_it_takes(serve: Serve) -> None:
    place = serve(TOKENS)

    assert place.bearer(EVE).post("/api/operate").json() == "eve"
    refused = place.bearer(BOB).post("/api/operate")

    assert refused.status_code == 403
    assert refused.json()["detail"] == "bob has the role read, this needs operate"


# ── Logging in ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_who_logs_in_has_a_session_until_they_log_out(serve: Serve) -> None:
    client = serve(TOKENS).client(**PAGE)

    answer = log_in(client, ADA, "/jobs?state=dead")
    page = client.get("/").json()

    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=dead")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Lax", "Path=/", f"Max-Age={SESSION_SECONDS}"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert ADA not in cookie
    assert (page["user"], page["session"]) == (["ada", "admin", True], True)
    assert client.get("/login").headers["location"] == "/"
    assert client.post("/logout", data={"csrf": page["csrf"]}).status_code == 303
    assert client.get("/").status_code == 303


def test_a_wrong_token_is_told_so_and_what_it_was_is_nowhere(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = serve(TOKENS).client(**PAGE)

    answer = log_in(client, "wrong-but-still-secret")

    assert answer.status_code == 403
    assert "not a token of this dashboard" in answer.text
    assert "wrong-but-still-secret" not in answer.text + caplog.text
    assert "set-cookie" not in answer.headers


def test_logging_in_gives_a_cookie_nobody_knew_before(serve: Serve) -> None:
    place = serve(TOKENS)
    victim, planted = place.client(**PAGE), "A" * 43
    victim.cookies.set(place.security._access.cookie, planted, domain="127.0.0.1")

    log_in(victim, ADA)

    name = place.security._access.cookie
    assert place.client(Cookie=f"{name}={planted}").get("/").status_code == 303
    assert victim.cookies.get(name, domain="127.0.0.1", path="/").startswith("ada:")


def test_a_session_ends_after_twelve_hours_and_cannot_be_made_longer(serve: Serve) -> None:
    now = [time.time()]
    place = serve(TOKENS, clock=lambda: now[0])
    client = place.client(**PAGE)
    log_in(client, ADA)
    value = client.cookies[place.security._access.cookie]

    now[0] += SESSION_SECONDS - 1
    assert client.get("/").status_code == 200
    now[0] += 1
    assert client.get("/").status_code == 303

    name, expires, rest = value.split(":", 2)
    for forged in (f"{name}:{int(expires) + 9999}:{rest}", value.replace("ada", "bob"), f"{value}0", "ada:x:y:z"):
        assert place.client(Cookie=f"{place.security._access.cookie}={forged}").get("/").status_code == 303


def test_a_session_outlives_a_restart_and_ends_when_its_token_changes(serve: Serve) -> None:
    first, second = serve(TOKENS), serve(TOKENS)
    changed, dropped = serve(TOKENS.replace(ADA, f"{ADA}-new")), serve(f"bob:read:{BOB}")
    lowered = serve(TOKENS.replace("ada:admin", "ada:read"))
    client = first.client(**PAGE)
    log_in(client, ADA)
    cookie = f"{first.security._access.cookie}={client.cookies[first.security._access.cookie]}"

    assert second.client(Cookie=cookie).get("/").json()["user"] == ["ada", "admin", True]
    assert lowered.client(Cookie=cookie).get("/").json()["user"] == ["ada", "read", False]
    assert [each.client(Cookie=cookie).get("/").status_code for each in (changed, dropped)] == [303, 303]


def test_after_logging_in_it_goes_on_only_to_a_path_of_ours(serve: Serve) -> None:
    place = serve(TOKENS)

    for onward in (
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "\\\\evil.example",
        "javascript:alert(1)",
        "/jobs\r\nSet-Cookie: a=b",
        "/jobs\nX: y",
        "/%2e%2e/host",
        "/../host",
        " //evil.example",
        "/jobs\x00",
        "evil.example",
        "/\tevil.example",
        "/jöbs",
        "",
    ):
        answer = log_in(place.client(**PAGE), ADA, onward)
        assert answer.status_code == 303
        assert answer.headers["location"] == "/", onward
        assert "x" not in answer.headers


def test_the_page_to_log_in_says_nothing_of_next_but_a_path_of_ours(serve: Serve) -> None:
    client = serve(TOKENS).client(**PAGE)

    assert 'value="/"' in client.get("/login", params={"next": "https://evil.example"}).text
    inserted = client.get("/login", params={"next": '/"><script>alert(1)</script>'}).text
    assert "<script" not in inserted
    assert client.get("/login?next=%0d%0aX:+y").headers.get("x") is None


def test_many_wrong_tokens_are_not_listened_to_for_a_minute_also_when_one_is_right(serve: Serve) -> None:
    now = [time.time()]
    place = serve(TOKENS, clock=lambda: now[0])

    tried = [place.bearer(f"guess-number-{number:09}").get("/api/jobs").status_code for number in range(11)]
    refused = place.bearer(ADA).get("/api/jobs")
    form = log_in(place.client(**PAGE), ADA)

    assert tried == [401] * 10 + [429]
    assert (refused.status_code, form.status_code) == (429, 429)
    assert 0 < int(refused.headers["retry-after"]) <= 61
    now[0] += 61
    assert place.bearer(ADA).get("/api/jobs").status_code == 200


def test_a_program_that_goes_on_with_an_old_token_shuts_nobody_out(serve: Serve) -> None:
    place = serve(TOKENS)
    old = place.bearer("an-old-secret-of-ours")

    assert {old.get("/metrics").status_code for _ in range(30)} == {401}
    assert place.bearer(ADA).get("/metrics").status_code == 200


def test_who_guesses_from_many_addresses_fills_no_memory() -> None:
    guesses = Access(load({"tokens": TOKENS}, environ={})).guesses
    for number in range(5000):
        guesses.wrong(f"10.0.{number // 256}.{number % 256}", b"digest")

    assert len(guesses._by) <= 1024


# ── Changes ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_form_of_our_page_changes_something(serve: Serve) -> None:
    client = serve().client(**PAGE)
    csrf = csrf_of(client.get("/"))

    assert client.post("/jobs", data={"csrf": csrf, "id": "7"}).json()["body"].endswith("id=7")
    assert client.post("/jobs", headers={"X-CSRF-Token": csrf}, content=b"anything").json()["body"] == "anything"
    assert client.delete("/jobs", headers={"X-CSRF-Token": csrf}).status_code == 200


def test_a_form_without_the_token_or_with_another_ones_changes_nothing(serve: Serve) -> None:
    place = serve()
    client, other = place.client(**PAGE), place.client(**PAGE)
    client.get("/")
    strange = csrf_of(other.get("/"))

    for csrf in ({}, {"csrf": ""}, {"csrf": "x"}, {"csrf": "é"}, {"csrf": strange}):
        answer = client.post("/jobs", data=csrf)
        assert answer.status_code == 403
        assert "reload the page" in answer.text


def test_the_form_of_another_session_changes_nothing(serve: Serve) -> None:
    place = serve(TOKENS)
    ada, bob = place.client(**PAGE), place.client(**PAGE)
    log_in(ada, ADA)
    log_in(bob, BOB)

    bobs = csrf_of(bob.get("/"))

    assert ada.post("/jobs", data={"csrf": bobs}).status_code == 403
    assert ada.post("/jobs", data={"csrf": csrf_of(ada.get("/"))}).status_code == 200


def test_the_form_of_before_logging_in_changes_nothing(serve: Serve) -> None:
    client = serve(TOKENS).client(**PAGE)
    before = csrf_of(client.get("/login"))
    log_in(client, ADA)

    assert client.post("/jobs", data={"csrf": before}).status_code == 403


def test_nobody_can_be_logged_in_by_another_site(serve: Serve) -> None:
    client = serve(TOKENS).client(**PAGE)

    assert client.post("/login", data={"token": BOB}).status_code == 403
    csrf = csrf_of(client.get("/login"))
    foreign = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert client.post("/login", data={"token": BOB, "csrf": csrf}, headers=foreign).status_code == 403


def test_a_change_from_a_foreign_origin_is_refused_whatever_it_brings(serve: Serve) -> None:
    place = serve()
    client, here = place.client(**PAGE), urlsplit(place.url).netloc
    csrf = csrf_of(client.get("/"))

    for origin in ("null", "https://evil.example", f"http://{here}.evil.example", f"https://{here}", here, ""):
        assert client.post("/jobs", headers={"Origin": origin, "X-CSRF-Token": csrf}).status_code == 403, origin
        assert place.client(Origin=origin).post("/api/jobs", json={}).status_code == 403
    for origin in ("http://127.0.0.1:1", "http://localhost", f"http://localhost:{urlsplit(place.url).port}"):
        assert client.post("/jobs", headers={"Origin": origin, "X-CSRF-Token": csrf}).status_code == 403, origin


def test_a_change_from_our_own_origin_goes_through(serve: Serve) -> None:
    place = serve()
    client = place.client(**PAGE, Origin=place.url)
    client.headers["Sec-Fetch-Site"] = "same-origin"
    csrf = csrf_of(client.get("/"))

    assert client.post("/jobs", data={"csrf": csrf}).status_code == 200


def test_a_foreign_origin_is_refused_with_a_right_token_too(serve: Serve) -> None:
    assert serve(TOKENS).bearer(ADA, Origin="https://evil.example").post("/api/jobs").status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "what"])
def test_other_sites_may_link_to_pages_and_nothing_else(serve: Serve, site: str) -> None:
    client = serve().client()
    client.headers["Sec-Fetch-Site"] = site

    assert client.get("/jobs", headers={"Sec-Fetch-Mode": "navigate"}).status_code == 200
    for path, mode in (("/jobs", "no-cors"), ("/api/jobs", "navigate"), ("/live", "cors"), ("/metrics", "no-cors")):
        assert client.get(path, headers={"Sec-Fetch-Mode": mode}).status_code == 403
    assert client.post("/jobs", headers={"Sec-Fetch-Mode": "navigate"}).status_code == 403


def test_curl_on_the_own_machine_says_json(serve: Serve) -> None:
    client = serve().client()

    assert client.post("/api/jobs", json={"a": 1}).json()["body"] == '{"a":1}'
    assert client.post("/api/jobs", headers={"Content-Type": "application/json; charset=utf-8"}).status_code == 200
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        refused = client.post("/api/jobs", headers={"Content-Type": kind}, content=b"{}")
        assert refused.status_code == 403
        assert "Content-Type: application/json" in refused.json()["detail"]


@pytest.mark.parametrize("header", ["Cookie", "Sec-Fetch-Site"])
def test_json_alone_is_not_enough_for_what_looks_like_a_browser(serve: Serve, header: str) -> None:
    client = serve().client(**{header: {"Cookie": "a=b", "Sec-Fetch-Site": "same-origin"}[header]})

    assert client.post("/api/jobs", json={}).status_code == 403


# ── The host app's hook ─────────────────────────────────────────────────────────────────────────────────────────


def by_header(request: Request) -> Any:
    return {
        "user": User("ada@shop", "operate", payloads=False),
        "role": "read+payloads",
        "true": True,
        "false": False,
        "odd": 7,
        "word": "root",
    }.get(request.headers.get("x-test", ""))


async def by_header_async(request: Request) -> Any:
    await asyncio.sleep(0)
    return by_header(request)


class ByHeader:
    async def __call__(self, request: Request) -> Any:
        return await by_header_async(request)


@pytest.mark.parametrize("hook", [by_header, by_header_async, ByHeader(), functools.partial(by_header_async)])
def test_the_hook_says_who_comes(serve: Serve, hook: Any) -> None:
    place = serve(auth=hook)

    def seen(said: str) -> Any:
        return place.client(**{"X-Test": said}).get("/").json()["user"]

    assert seen("user") == ["ada@shop", "operate", False]
    assert seen("role") == ["user", "read", True]
    assert seen("true") == ["user", "admin", True]


def test_whom_the_hook_does_not_know_is_nobody_also_on_the_own_machine(serve: Serve) -> None:
    place = serve(auth=by_header)

    assert place.client().get("/api/jobs").status_code == 401
    page = place.client(**{"X-Test": "false"}).get("/", headers=PAGE)
    assert (page.status_code, "sign in there" in page.text) == (403, True)


def test_whom_the_hook_does_not_know_may_have_a_token(serve: Serve) -> None:
    place = serve(TOKENS, auth=by_header)

    assert place.bearer(BOB).get("/metrics").json()["user"][0] == "bob"
    assert place.bearer(BOB, **{"X-Test": "user"}).get("/metrics").json()["user"][0] == "ada@shop"


@pytest.mark.parametrize("said", ["odd", "word"])
def test_an_odd_answer_of_the_hook_is_told(serve: Serve, said: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = serve(auth=by_header).client(**{"X-Test": said}).get("/api/jobs")

    assert answer.status_code == 500
    assert "expected a tenure.web.access.User, a role" in answer.json()["detail"]
    assert "expected a tenure.web.access.User" in caplog.text


@pytest.mark.parametrize("path", ["/", "/api/jobs"])
def test_what_a_hook_raises_is_in_the_log_and_not_in_the_answer(
    serve: Serve, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    def hook(_: Request) -> bool:
        raise LookupError("postgresql://shop:hunter2@db/shop")

    answer = serve(auth=hook).client().get(path)

    assert answer.status_code == 500
    assert "hunter2" not in answer.text
    assert "LookupError" not in answer.text
    assert "LookupError" in caplog.text
    assert "content-security-policy" in answer.headers


def test_a_hook_may_say_no_or_where_to_log_in_the_way_its_framework_does(serve: Serve) -> None:
    def hook(request: Request) -> bool:
        if request.url.path.startswith("/api"):
            raise HTTPException(403, "staff only")
        raise HTTPException(303, headers={"Location": "/accounts/login"})

    client = serve(auth=hook).client()

    assert (client.get("/api/jobs").status_code, client.get("/api/jobs").json()["detail"]) == (403, "staff only")
    assert client.get("/").headers["location"] == "/accounts/login"


def test_a_hook_cannot_take_the_body_away_from_the_app(serve: Serve) -> None:
    async def hook(request: Request) -> bool:
        await request.body()
        return True

    assert serve(auth=hook).client().post("/api/jobs", json={}).status_code == 500


def test_the_forms_of_the_hooks_users_are_bound_to_them(serve: Serve) -> None:
    place = serve(auth=by_header)
    client = place.client(**PAGE, **{"X-Test": "user"})
    csrf = csrf_of(client.get("/"))

    assert client.post("/jobs", data={"csrf": csrf}).status_code == 200
    assert client.post("/jobs", data={"csrf": csrf}, headers={"X-Test": "true"}).status_code == 403


def test_two_processes_of_one_host_app_take_each_others_forms(serve: Serve) -> None:
    first, second = serve(auth=by_header), serve(auth=by_header)
    client = first.client(**PAGE, **{"X-Test": "user"})
    page = client.get("/")

    sent = second.client(Cookie=page.headers["set-cookie"].partition(";")[0], **{"X-Test": "user"})

    assert sent.post("/jobs", data={"csrf": csrf_of(page)}).status_code == 200


# ── Mounted ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_mounted_all_its_paths_are_below_its_root(serve: Serve) -> None:
    client = serve(TOKENS, hosts="shop", root="/in/jobs").client(**PAGE)

    asked = client.get("/in/jobs/jobs?page=2")
    answer = log_in(client, ADA, "/in/jobs/jobs?page=2", root="/in/jobs")
    page = client.get("/in/jobs/")

    assert asked.headers["location"] == "/in/jobs/login?next=%2Fin%2Fjobs%2Fjobs%3Fpage%3D2"
    assert answer.headers["location"] == "/in/jobs/jobs?page=2"
    assert "Path=/in/jobs;" in answer.headers["set-cookie"]
    assert page.json()["user"][0] == "ada"
    assert "report-uri /in/jobs/csp-report" in page.headers["content-security-policy"]
    assert client.post("/in/jobs/jobs", data={"csrf": csrf_of(page)}).status_code == 200
    assert client.post("/in/jobs/logout", data={"csrf": csrf_of(page)}).headers["location"] == "/in/jobs/"


def test_mounted_it_goes_on_to_no_path_of_the_host_app(serve: Serve) -> None:
    place = serve(TOKENS, root="/in/jobs")

    for onward in ("/", "/accounts/delete", "/in/jobsx", "/in/jobs/../../x", "/in"):
        answer = log_in(place.client(**PAGE), ADA, onward, root="/in/jobs")
        assert answer.headers["location"] == "/in/jobs/", onward


def test_mounted_it_leaves_the_host_apps_state_alone(serve: Serve) -> None:
    settings, seen = load({}, environ={}), dict[str, Any]()
    security = Security(small_app(), Access(settings))
    inner = Starlette(routes=[Mount("/jobs", app=security)])

    async def host(scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {"user": "the host's own"}
        await inner(scope, receive, send)
        seen.update(scope["state"])

    with running(host, security) as place:
        assert place.client().get("/jobs/").json()["user"] == ["local", "admin", True]

    assert seen == {"user": "the host's own"}


# ── Bodies, headers, streams ────────────────────────────────────────────────────────────────────────────────────


def chunked(size: int) -> bytes:
    chunk = b"x" * 65_536
    count = size // len(chunk)
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for _ in range(count)) + b"0\r\n\r\n"


@pytest.mark.parametrize("method", [b"POST", b"GET", b"DELETE"])
def test_a_body_that_is_too_long_is_refused_also_without_a_length(serve: Serve, method: bytes) -> None:
    place = serve(TOKENS)
    head = method + b" /api/jobs HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer %s\r\n" % ADA.encode()
    long = b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"

    assert place.raw(head + long + chunked(MOST_BODY))[0] == 200
    assert place.raw(head + long + chunked(MOST_BODY + 65_536))[0] == 413
    assert place.raw(head + b"Content-Length: %d\r\n\r\n" % (MOST_BODY + 1))[0] == 413


def test_who_is_nobody_yet_has_nothing_read(serve: Serve) -> None:
    place = serve(TOKENS)

    assert place.raw(b"POST /api/jobs HTTP/1.1\r\nHost: HOST\r\nContent-Length: 999999999\r\n\r\n")[0] == 401
    for path in (b"/login", b"/csp-report"):
        assert place.raw(b"POST " + path + b" HTTP/1.1\r\nHost: HOST\r\nContent-Length: 99999\r\n\r\n")[0] == 413


def test_a_form_of_too_many_fields_is_refused(serve: Serve) -> None:
    client = serve().client(**PAGE)
    client.get("/")
    headers = {"Content-Type": "application/x-www-form-urlencoded"}

    assert client.post("/jobs", content=b"a=b&" * 30_000, headers=headers).status_code == 400
    assert client.post("/jobs", content=b"a=\xff", headers=headers).status_code == 400


def test_a_header_that_comes_twice_is_refused(serve: Serve) -> None:
    place = serve()

    for name in (b"Origin", b"Authorization", b"Content-Type", b"Sec-Fetch-Site", b"X-CSRF-Token"):
        twice = name + b": a\r\n" + name + b": b\r\n\r\n"
        assert place.raw(b"GET / HTTP/1.1\r\nHost: HOST\r\n" + twice)[0] == 400, name


def test_a_host_that_is_none_is_refused(serve: Serve) -> None:
    place = serve()

    for host in ("a/b", "a b", "user@127.0.0.1", "127.0.0.1:99999999", "[::1", "é"):
        assert place.raw(b"GET / HTTP/1.1\r\nHost: " + host.encode() + b"\r\n\r\n")[0] == 400, host


def test_too_many_headers_are_refused(serve: Serve) -> None:
    many = b"".join(b"X-%d: y\r\n" % number for number in range(150))

    assert serve().raw(b"GET / HTTP/1.1\r\nHost: HOST\r\n" + many + b"\r\n")[0] == 431


@pytest.mark.parametrize("tokens", [None, TOKENS])
def test_every_answer_keeps_a_browser_from_what_is_not_ours(serve: Serve, tokens: str | None) -> None:
    client = serve(tokens).client()

    for path in ("/", "/api/jobs", "/nowhere", "/static/tenure.css", "/login", "/healthz"):
        answer = client.get(path)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["cache-control"] == ("max-age=60" if "static" in path else "no-store")
        assert "server" not in answer.headers


def test_a_stream_is_not_held_back_and_ends_with_the_server(serve: Serve) -> None:
    place = serve()
    place.server.config.timeout_graceful_shutdown = 600  # so that it does not end because of a time-out

    with place.client().stream("GET", "/live") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "data: first"
        assert answer.headers["cache-control"] == "no-store"
        assert len(place.security._streams) == 1
        place.server.should_exit = True
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
        assert not place.security._streams


def test_a_report_of_a_browser_is_counted_and_logged_once_a_minute(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    now = [time.time()]
    place = serve(TOKENS, clock=lambda: now[0])
    client = place.client(**{"Content-Type": "application/csp-report"})
    report = {"csp-report": {"blocked-uri": "https://evil.example\n2025 forged line", "script-sample": "s3cret"}}

    for body in (json.dumps(report), "not json", "[]", '{"csp-report": 5}', "{}", "[" * 9000):
        assert client.post("/csp-report", content=body).status_code == 204
    (record,) = [record for record in caplog.records if "content security policy" in record.msg]
    now[0] += 61
    client.post("/csp-report", content="{}")

    assert place.security.reports == 7
    assert "evil.example" in record.getMessage()
    assert "\n" not in record.getMessage()
    assert "s3cret" not in record.getMessage()
    assert len([record for record in caplog.records if "content security policy" in record.msg]) == 2


def test_no_token_is_in_any_log_or_answer(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    place = serve(TOKENS)
    answers = [
        place.bearer(ADA).get("/nowhere"),
        place.bearer(ADA).post("/api/jobs", content=b"x" * (MOST_BODY + 1)),
        place.bearer(ADA, Origin="null").post("/jobs"),
        place.bearer(ADA, Host="evil.example").get("/"),
        log_in(place.client(**PAGE), ADA),
        log_in(place.client(**PAGE), ADA[:-1]),
    ]

    said = caplog.text + "".join(f"{answer.headers} {answer.text}" for answer in answers)
    assert not [secret for secret in (ADA, ADA[:-1], BOB, EVE) if secret in said]
