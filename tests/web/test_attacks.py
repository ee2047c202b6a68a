"""Attacks on the dashboard that were tried once, and are tried again at every change, security included."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection, HTTPException
from threading import Event, Semaphore, Thread
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tenure.config import load
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.stores.sqlite import SqliteStore
from tenure.web import memo as memos
from tenure.web import server, site
from tenure.web.dashboard import create
from tenure.web.memo import Memo
from tenure.web.security import Visit
from tenure.web.threads import ThreadPool
from web.test_security import Place, running

ROOT = "root-secret-0123456789"
LONG = "9" * 5000  #: digits: more than Python converts to a number


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Its health page waits for the store for longer than two seconds: this process may be held up."""
    folder = tmp_path_factory.mktemp("store")
    settings = load(code={"tokens": f"root:admin:{ROOT}"}, environ={}, folder=folder)
    store = SqliteStore(str(folder / "tenure.db"))
    store.open()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "ThreadPool", lambda name, threads, patience: ThreadPool(name, threads, patience=60.0))
        made = create(lambda: Admin(store, PollNotifier(), settings), settings)
    yield made
    store.close()


def ask(app: Any, path: str, *, secret: str = "", method: str = "GET", **headers: str) -> httpx.Response:
    async def call() -> httpx.Response:
        sent = {**headers, **({"authorization": f"Bearer {secret}"} if secret else {})}
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, headers=sent)

    return asyncio.run(call())


@pytest.mark.parametrize(
    "path",
    [
        "/static/../jobs",
        "/static/%2e%2e/jobs",
        "/static/..%2fjobs",
        "/healthz/../jobs",
        "/healthz/",
        "//jobs",
        "/./jobs",
        "/%6aobs",
        "/jobs/",
        "/JOBS",
        "/jobs%00",
        "/csp-report/../jobs",
        "/login/../jobs",
        "/api//v1/jobs",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "DELETE", "PROPFIND"])
def test_no_way_of_writing_a_path_lets_a_stranger_see_anything(app: Any, method: str, path: str) -> None:
    answer = ask(app, path, method=method, **{"x-original-url": "/jobs", "x-forwarded-for": "127.0.0.1"})

    assert answer.status_code >= 300
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers.get("location", "/login").startswith("/login")


@pytest.mark.parametrize(
    "path",
    [
        f"/schedules?page={LONG}",
        f"/jobs/bulk?verb=cancel&all=yes&done={LONG}",
        "/audit?cursor=0001-01-01:00000000-0000-0000-0000-00000000dead",
        "/audit?cursor=9999-12-31:",
        f"/jobs?last={LONG}w",
        "/jobs?last=99999999999999w",
        "/jobs?since=0001-01-01T00:00%2B23:59",
        "/ticks?until=0001-01-01T00:00",
        "/ticks?until=9999-12-31T23:59&since=9999-12-31T23:59",
        "/schedules/nightly?since=0001-01-01T00:00&until=0001-01-02T00:00",
        f"/jobs?cursor=before-{LONG}",
        "/jobs?cursor=%00",
        "/jobs?text=%00",
        "/jobs/%00",
        "/schedules/%00",
        "/dead?cursor=zzz",
        "/flows/%00",
        f"/flows?cursor={LONG}",
        "/flows?cursor=0001-01-01T00:00:00.000000%2B0000~%00",
        "/flows?q=%00&stands=%00",
        "/static/%00",
        f"/api/v1/jobs?limit={LONG}",
        "/api/v1/preview?cron=0+0+30+2+*&count=100",
    ],
)
def test_no_value_however_odd_is_an_error_of_ours(app: Any, path: str) -> None:
    assert ask(app, path, secret=ROOT).status_code < 500


def test_a_read_that_began_before_somebody_acted_is_not_kept_as_new(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(memos, "monotonic", lambda: now[0])
    memo, reading, go_on = Memo(), Event(), Event()
    truth = ["before"]

    def slow() -> str:
        found = truth[0]
        reading.set()
        assert go_on.wait(60)
        now[0] += 0.5
        return found

    looking = Thread(target=lambda: memo.get("counts", slow, fresh=3600.0))
    looking.start()
    assert reading.wait(60)
    truth[0] = "after"
    memo.forget()
    go_on.set()
    looking.join(60)

    now[0] += 5.0  # what was expensive is read again a little later
    memo.get("counts", lambda: truth[0], fresh=3600.0)  # in the background
    with memo._cell("counts").lock:
        pass
    found = memo.get("counts", lambda: truth[0], fresh=3600.0)
    assert found == "after", "what was read before somebody acted stays for an hour"


@pytest.mark.thorough
def test_who_connects_and_asks_for_nothing_is_sent_away(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_SILENT_SECONDS", 1)
    with running(app, app) as place:
        port = int(place.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
            assert silent.recv(1) == b""
        with socket.create_connection(("127.0.0.1", port), timeout=60) as half:
            answer = b""
            with suppress(ConnectionError):  # it may be disconnected before the first half is sent
                half.sendall(b"GET /healthz HTTP/1.1\r\nHost: local")
                answer = half.recv(1)
            assert answer == b""


HELLO = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
#: What a client sends that only wants to keep its connection.
SLOW = {
    "nothing": b"",
    "half a header": b"GET /jobs HTTP/1.1\r\nHost: local",
    "half a second request": HELLO + b"GET /jobs HTTP/1.1\r\nHost: local",
    "half a body": b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
}


def drip(sock: socket.socket, until: Event) -> None:
    """A byte now and then, so that the connection is never idle."""
    while not until.wait(0.2):
        with suppress(OSError):
            sock.send(b"x")


@pytest.mark.parametrize("sent", SLOW.values(), ids=list(SLOW))
def test_slow_clients_take_no_place_from_the_health_page(
    sent: bytes, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, and before the server has had the time to find them slow."""
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 20)
    monkeypatch.setattr(server, "_MORE", 5)
    with running(app, app) as place, ExitStack() as opened:
        at = urlsplit(place.url)
        for _ in range(46):
            slow = opened.enter_context(socket.create_connection((at.hostname or "", at.port or 0), timeout=60))
            with suppress(ConnectionError):
                slow.sendall(sent)
        assert [place.client().get("/healthz").status_code for _ in range(10)] == [200] * 10


@pytest.mark.thorough
@pytest.mark.parametrize("sent", SLOW.values(), ids=list(SLOW))
def test_a_client_that_sends_too_slowly_is_disconnected(sent: bytes, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_SILENT_SECONDS", 1)
    with running(app, app) as place, ExitStack() as opened:
        at, over = urlsplit(place.url), Event()
        slow = opened.enter_context(socket.create_connection((at.hostname or "", at.port or 0), timeout=60))
        slow.sendall(sent)
        dripping = Thread(target=drip, args=(slow, over))
        dripping.start()
        try:
            with suppress(ConnectionError):
                while slow.recv(65_536):
                    pass
        finally:
            over.set()
            dripping.join()


@pytest.mark.thorough
def test_a_client_that_does_not_read_is_disconnected(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a response that nobody reads would hold its place for ever: streams have 500."""
    monkeypatch.setattr(server, "_UNREAD_SECONDS", 1)
    ended = Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        async def sending() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
                await asyncio.sleep(0)

        task = asyncio.create_task(sending())
        while (await receive())["type"] != "http.disconnect":
            pass
        task.cancel()
        ended.set()

    with running(endless, app) as place:
        at = urlsplit(place.url)
        with socket.create_connection((at.hostname or "", at.port or 0), timeout=60) as deaf:
            deaf.sendall(HELLO)
            assert ended.wait(60)


def test_the_health_page_has_a_place_when_all_others_are_taken(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By requests in progress, which are not sent away."""
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 5)
    reached, most = Semaphore(0), 5

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            reached.release()
            await asyncio.sleep(60)
        await app(scope, receive, send)

    with running(slow, app) as place, ExitStack() as opened:
        at = urlsplit(place.url)
        for _ in range(most):
            busy = opened.enter_context(socket.create_connection((at.hostname or "", at.port or 0), timeout=60))
            busy.sendall(HELLO.replace(b"/healthz", b"/slow"))
            assert reached.acquire(timeout=60)
        assert place.client().get("/healthz").status_code == 200
        for path in ("/jobs", "/jobs/healthz"):
            refused = place.client().get(path)
            assert (refused.status_code, refused.headers.get("retry-after")) == (503, "1")


def kept(place: Place) -> HTTPConnection:
    """A connection that is not reopened once it is closed."""
    at = urlsplit(place.url)
    connection = HTTPConnection(at.hostname or "", at.port, timeout=60)
    connection.connect()
    connection.auto_open = 0
    return connection


def answers(connection: HTTPConnection) -> bool:
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().read() != b""
    except (HTTPException, OSError):
        return False


def test_a_client_that_asks_now_and_then_keeps_its_connection(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now, looked = [100.0], Event()

    def clock() -> float:
        looked.set()
        return now[0]

    monkeypatch.setattr(server, "monotonic", clock)
    with running(app, app) as place, closing(kept(place)) as client:
        for _ in range(4):
            assert answers(client)
            now[0] += server._SILENT_SECONDS / 2
        for _ in range(3):  # at most one is for the last answer, the others are sweeps
            looked.clear()
            assert looked.wait(60)
        assert answers(client), "it was closed, counting from when it was opened"


def test_the_connection_idle_for_longest_makes_room(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is not the one that was opened first."""
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 2)
    with running(app, app) as place, closing(kept(place)) as first, closing(kept(place)) as second:
        assert answers(first)
        assert answers(second)
        assert answers(first)
        with closing(kept(place)) as third:
            assert answers(third)
            assert answers(first)
            assert not answers(second)


@pytest.mark.parametrize("pieces", [1, 2], ids=["complete", "in progress"])
def test_clients_that_do_not_read_take_no_place_from_others(
    pieces: int, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 5)
    monkeypatch.setattr(server, "_MORE", 0)

    async def large(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/large":
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for left in reversed(range(pieces)):
            await send({"type": "http.response.body", "body": bytes(16 << 20), "more_body": left > 0})

    with running(large, app) as place, ExitStack() as opened:
        at = urlsplit(place.url)
        for _ in range(5):
            deaf = opened.enter_context(socket.create_connection((at.hostname or "", at.port or 0), timeout=60))
            deaf.sendall(HELLO.replace(b"/healthz", b"/large"))
            assert deaf.recv(1)
        assert [place.client().get("/healthz").status_code for _ in range(3)] == [200] * 3


@pytest.mark.parametrize("root", ["", "/jobs-of-ours"])
@pytest.mark.parametrize(
    ("path", "seated"),
    [
        ("/api/v1/events", False),
        ("/api/v1/jobs/some-job/events", False),
        ("/api/v1/schedules/events", True),
        ("/api/v1/jobs/events", True),
        ("/api/v1/jobs/some-job/more/events", True),
        ("/api/v1/events/events", True),
        ("/api/events", True),
        ("/jobs/events", False),
    ],
)
def test_only_streams_need_no_seat_among_the_calls(root: str, path: str, seated: bool) -> None:
    scope = {"type": "http", "method": "GET", "path": root + path, "root_path": root, "headers": []}
    assert Visit(scope, "cookie").seated == seated


def test_the_health_page_answers_while_the_store_hangs(app: Any) -> None:
    hang = Event()
    stuck = SqliteStore(":memory:")

    def connect() -> Admin:
        assert hang.wait(60)
        return Admin(stuck, PollNotifier())

    site = create(connect, load(environ={}))
    asked = [Thread(target=ask, args=(site, path)) for path in ("/jobs", "/queues", "/healthz") * 12]
    for each in asked:
        each.start()
    try:
        answer = ask(site, "/healthz")
        assert (answer.status_code, answer.json()) == (503, {"status": "away"})
    finally:
        hang.set()
        for each in asked:
            each.join(60)
        site.close()
