"""Metrics and health: what is exposed, what a probe is told, and what can't hold the supervisor up."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conformance.factories import bring, put, running, start
from conformance.test_limits import ALL, SHOP, declare, limited
from conformance.test_waiting import settle_waits
from tenure.cli.main import main
from tenure.config import Settings, host_and_port, load
from tenure.core.clock import system_clock
from tenure.core.lifecycle import Edge, State
from tenure.core.limits import Key
from tenure.errors import InvalidOption, StoreAway
from tenure.events import Events, JobRescued, LeaseRefused
from tenure.notifiers.poll import PollNotifier
from tenure.operations import metrics
from tenure.operations.admin import Admin
from tenure.operations.metrics import METRICS, Page, Reader, Server, health, serve, text
from tenure.ports import Links, Rescued, Store, WorkerView
from tenure.stores.sqlite import SqliteStore
from tenure.worker.tally import BOUNDS, Tally, Vitals, timed

ROOT = Path(__file__).resolve().parents[2]
BOOT = system_clock().boot_id
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
LIMIT = 60.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape and a request have all the time they need, however busy this machine is."""
    monkeypatch.setattr(metrics, "PATIENCE_SECONDS", LIMIT)
    monkeypatch.setattr(metrics, "REQUEST_SECONDS", LIMIT)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load({"url": f"sqlite:///{tmp_path}/tenure.db"}, environ={}, folder=tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = SqliteStore(str(tmp_path / "tenure.db"))
    store.open()
    yield store
    store.close()


@pytest.fixture
def well(settings: Settings) -> Vitals:
    return Vitals(
        settings=settings,
        store=settings.url,
        renewed_ago=1.0,
        away="",
        notifier="",
        queues=frozenset({"default"}),
        workers=1,
        ready=1,
        slots=5,
        busy=2,
        stopping=False,
        lags={"prune": 2.5, "fire": 0.0},
    )


def opened(settings: Settings) -> Store:
    store = SqliteStore(settings.url.removeprefix("sqlite:///"))
    store.open()
    return store


@pytest.fixture
def server(well: Vitals) -> Iterator[Server]:
    server = serve("127.0.0.1:0", Page(Tally(), lambda: well, opened))
    yield server
    server.close()


def ask(server: Server, path: str, method: str = "GET") -> tuple[int, str, str]:
    """Status, content type and body."""
    host, port = server.server_address[:2]
    with closing(http.client.HTTPConnection(str(host), int(port), timeout=LIMIT)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()


def samples(exposed: bytes | str) -> Samples:
    told = exposed.decode() if isinstance(exposed, bytes) else exposed
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(told)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))


def busy_tally() -> Tally:
    """One of everything."""
    tally = Tally()
    tally.count_all({("claims", "default"): 3, ("outcomes", "work", "completed"): 2, ("refused", "work"): 1})
    tally.time_all("attempt", "work", [7200.0, 0.025])
    tally.time("store", "claim", 0.0007)
    return tally


def test_one_duration_is_in_the_bucket_that_it_would_be_in_among_others() -> None:
    one, many = Tally(), Tally()
    for seconds in (0.0, *BOUNDS["store"], *(bound * 1.01 for bound in BOUNDS["store"])):
        one.time("store", "claim", seconds)
        many.time_all("store", "claim", [seconds])
        assert one.read().times == many.read().times


# ── What is exposed ──


def test_every_metric_is_exposed_as_it_is_declared_and_no_other(store: Store, well: Vitals) -> None:
    put(store)
    page = Page(busy_tally(), lambda: well, opened)

    exposed = page.metrics().decode()

    page.close()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", exposed, re.MULTILINE))
    assert kinds == {metric.name: metric.kind for metric in METRICS.values()}
    for name, labels in samples(exposed):
        metric = METRICS.get(name) or METRICS[name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")]
        assert {label for label, _ in labels} - {"le"} == set(metric.labels), name


def test_the_page_of_the_docs_names_the_same_metrics_with_the_same_labels() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()

    told = {
        name: tuple(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(r"^\| `(tenure_\w+)` \| \w+ \|([^|]*)\|", page, re.MULTILINE)
    }

    assert told == {metric.name: metric.labels for metric in METRICS.values()}


def test_the_gauges_are_what_the_store_holds(store: Store, well: Vitals) -> None:
    bring(store, State.DEAD, worker_id=start(store, boot_id=BOOT))
    running(store, start(store, boot_id=BOOT))
    put(store, queue="mail")
    store.pause("mail", paused=True)
    page = Page(Tally(), lambda: replace(well, queues=frozenset({"idle"})), opened)

    found = samples(page.metrics())

    page.close()
    assert value(found, "tenure_jobs", state="dead") == 1
    assert value(found, "tenure_jobs", state="completed") == 0
    assert value(found, "tenure_queue_jobs", queue="default", state="processing") == 1
    assert value(found, "tenure_queue_jobs", queue="mail", state="queued") == 1
    assert value(found, "tenure_queue_jobs", queue="idle", state="queued") == 0, "served, and empty: zero, not a gap"
    assert value(found, "tenure_queue_paused", queue="mail") == 1
    assert value(found, "tenure_queue_oldest_queued_seconds", queue="default") == 0
    assert value(found, "tenure_workers") == 2
    assert value(found, "tenure_slots", state="busy") == 2
    assert value(found, "tenure_slots", state="free") == 3
    assert value(found, "tenure_store_up") == 1


class ReadLater(SqliteStore):
    """Every read of its workers takes until its clock has moved on by 10 ms."""

    def workers(self, *, dead: bool = False) -> list[WorkerView]:
        before = self.now()
        while self.now() < before + timedelta(milliseconds=10):
            time.sleep(0.001)
        return super().workers(dead=dead)


def test_a_worker_whose_lease_has_ended_is_not_counted(store: Store, well: Vitals, tmp_path: Path) -> None:
    """Where no supervisor is left, nothing declares it dead. The time is read before the workers are."""
    start(store, boot_id="before")
    later = ReadLater(str(tmp_path / "tenure.db"))
    later.open()
    page = Page(Tally(), lambda: well, lambda _: later)

    found = samples(page.metrics())

    page.close()
    assert value(found, "tenure_workers") == 0


def test_flows_that_are_open_and_asks_that_are_left_are_counted(store: Store, well: Vitals) -> None:
    flow = {"flow": "0190a0a0-0000-7000-8000-000000000001", "name": "nightly"}
    parent = put(store, links=Links(**flow))
    put(store, links=Links(after=(Edge(parent),), **flow))
    page = Page(Tally(), lambda: well, opened)

    found = samples(page.metrics())

    page.close()
    assert value(found, "tenure_jobs", state="waiting") == 1
    assert value(found, "tenure_flows_open") == 1
    assert value(found, "tenure_asks") == 1


def shop(store: Store, *waiting: int) -> None:
    """Keys with one place each, which is held, and for each of which this many jobs wait."""
    start(store, boot_id=BOOT, lease=3600.0)
    declare(store, SHOP.limit, 1)
    for place, number in enumerate(waiting):
        limited(store, Key(f"shop:{place}", SHOP.limit), number=number + 1)
    settle_waits(store)


def test_limits_are_told_in_sums_and_their_most_waited_for_keys_by_name(store: Store) -> None:
    shop(store, 1, 3, 0)
    Admin(store, PollNotifier()).limits.pause("shop:2", "1h")

    found = samples(text(metrics.store_families(store)))

    of = {"limit": SHOP.limit}
    assert value(found, "tenure_limit_keys", state="known", **of) == 3
    assert value(found, "tenure_limit_keys", state="paused", **of) == 1
    assert value(found, "tenure_limit_places_held", **of) == 3
    assert value(found, "tenure_limit_waiting", **of) == 4
    for key, waiting, paused in (("shop:0", 1, 0), ("shop:1", 3, 0), ("shop:2", 0, 1)):
        assert value(found, "tenure_key_places", key=key, **of) == 1
        assert value(found, "tenure_key_places_held", key=key, **of) == 1
        assert value(found, "tenure_key_waiting", key=key, **of) == waiting
        assert value(found, "tenure_key_paused", key=key, **of) == paused
        assert (value(found, "tenure_key_oldest_waiting_seconds", key=key, **of) > 0) is bool(waiting)


def test_however_many_keys_there_are_labels_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_KEYS", 2)
    monkeypatch.setattr(metrics, "MOST_LIMITS", 1)
    shop(store, 2, 1, 3, 0)
    declare(store, ALL.limit, 1)
    limited(store, ALL, number=2)
    settle_waits(store)

    found = samples(text(metrics.store_families(store)))

    assert {dict(labels)["key"] for name, labels in found if name == "tenure_key_waiting"} == {"shop:2", "shop:0"}
    assert [dict(labels)["limit"] for name, labels in found if name == "tenure_limit_waiting"] == [SHOP.limit]


def test_buckets_add_up_and_what_is_longer_than_all_is_counted_too(store: Store, well: Vitals) -> None:
    page = Page(busy_tally(), lambda: well, opened)

    found = samples(page.metrics())

    page.close()
    assert value(found, "tenure_attempt_seconds_bucket", task="work", le="0.005") == 0
    assert value(found, "tenure_attempt_seconds_bucket", task="work", le="0.025") == 1
    assert value(found, "tenure_attempt_seconds_bucket", task="work", le="3600.0") == 1
    assert value(found, "tenure_attempt_seconds_bucket", task="work", le="+Inf") == 2
    assert value(found, "tenure_attempt_seconds_count", task="work") == 2
    assert value(found, "tenure_attempt_seconds_sum", task="work") == pytest.approx(7200.025)


def test_what_has_not_happened_yet_is_zero_so_that_its_first_time_is_an_increase(store: Store, well: Vitals) -> None:
    page = Page(Tally(), lambda: well, opened)

    found = samples(page.metrics())

    page.close()
    assert [value(found, "tenure_rescues_total", cause=cause) for cause in metrics.CAUSES] == [0, 0, 0, 0]
    assert value(found, "tenure_worker_deaths_total") == 0


def test_a_notifier_that_polls_and_a_store_that_is_away_are_told(well: Vitals) -> None:
    def refuse(settings: Settings) -> Store:
        raise AssertionError("a store that is known to be away must not be asked")

    page = Page(busy_tally(), lambda: replace(well, away="away for 3s: gone", notifier="no socket"), refuse)

    found = samples(page.metrics())

    assert value(found, "tenure_store_up") == 0
    assert value(found, "tenure_notifier_up") == 0
    assert value(found, "tenure_claims_total", queue="default") == 3
    assert value(found, "tenure_jobs", state="queued") is None, "old numbers would lie"


# ── Reading the store ──


class Slow(SqliteStore):
    """Its counts come once `go` is set."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.asked, self.go = threading.Event(), threading.Event()
        self.readings = 0

    def counts(self) -> dict[State, int]:
        self.readings += 1
        self.asked.set()
        self.go.wait(LIMIT)
        return super().counts()


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    store = Slow(str(tmp_path / "tenure.db"))
    store.open()
    yield store
    store.go.set()
    store.close()


def test_many_scrapes_are_one_reading(slow: Slow, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "FRESH_SECONDS", 3600.0)
    slow.go.set()
    reader = Reader(lambda settings: slow)

    found = [reader.read(settings) for _ in range(20)]

    assert slow.readings == 1
    assert all(each is found[0] for each in found)


def test_a_reading_is_kept_for_longer_the_more_it_costs(
    slow: Slow, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0

    def dear() -> dict[State, int]:
        nonlocal now
        now += 2.0
        return {}

    monkeypatch.setattr(slow, "counts", dear)
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: now))
    reader = Reader(lambda settings: slow)

    first = reader.read(settings)

    assert 2.0 * metrics.SHARE > metrics.FRESH_SECONDS
    now += 2.0 * metrics.SHARE - 0.1
    assert reader.read(settings) is first
    now += 0.2
    assert reader.read(settings) is not first


def test_a_failed_reading_is_soon_tried_again(slow: Slow, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    now, answers = 1000.0, [StoreAway("no answer")]

    def counts() -> dict[State, int]:
        nonlocal now
        now += 8.0
        if answers:
            raise answers.pop()
        return {}

    monkeypatch.setattr(slow, "counts", counts)
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: now))
    reader = Reader(lambda settings: slow)

    assert reader.read(settings) is None
    now += metrics.FRESH_SECONDS + 0.1
    assert reader.read(settings) is not None


def test_a_scrape_does_not_wait_for_a_store_that_hangs_and_starts_no_second_reading(
    slow: Slow, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "PATIENCE_SECONDS", 0.05)
    reader = Reader(lambda settings: slow)

    assert reader.read(settings) is None
    assert slow.asked.wait(LIMIT)
    assert [reader.read(settings) for _ in range(2)] == [None, None]
    assert slow.readings == 1

    slow.go.set()
    monkeypatch.setattr(metrics, "PATIENCE_SECONDS", LIMIT)
    assert reader.read(settings) is not None


def test_a_store_that_cannot_be_opened_is_tried_again_later(
    settings: Settings, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(metrics, "SHARE", 0)
    slow.go.set()
    answers: list[Any] = [StoreAway("gone"), slow]

    def open_store(settings: Settings) -> Store:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    reader = Reader(open_store)

    assert reader.read(settings) is None
    assert reader.read(settings) is not None


# ── Health ──


def test_a_supervisor_with_a_store_and_a_worker_is_well(well: Vitals) -> None:
    status, body = health(well)

    assert (status, body["status"], body["notifier"], body["workers"]) == (200, "ok", "ok", {"wanted": 1, "ready": 1})
    assert "reason" not in body


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ready": 0}, "no worker is ready"),
        ({"settings": None, "store": "", "renewed_ago": None, "ready": 0}, "no worker is ready"),
        ({"renewed_ago": 21.0}, "no renewal has reached the store for 21s"),
        ({"renewed_ago": 21.0, "away": "away for 21s: gone"}, "store for 21s: away for 21s: gone"),
    ],
)
def test_it_is_not_well_without_a_store_or_without_a_worker(well: Vitals, changes: Any, reason: str) -> None:
    status, body = health(replace(well, **changes))

    assert (status, body["status"]) == (503, "unhealthy")
    assert reason in body["reason"]


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"notifier": "no socket"}, {"status": "ok", "notifier": "polling: no socket"}),
        ({"away": "away for 2s: locked"}, {"status": "ok", "away": "away for 2s: locked"}),
        ({"stopping": True, "ready": 0}, {"status": "draining"}),
    ],
)
def test_what_is_no_fault_is_told_and_is_well(well: Vitals, changes: Any, shown: dict[str, str]) -> None:
    status, body = health(replace(well, **changes))

    assert status == 200
    assert {name: body[name] for name in shown} == shown


def test_no_password_is_in_the_health(well: Vitals) -> None:
    url = "postgresql://shop:hunter2@db/shop"

    _, body = health(replace(well, store=url, notifier=f"{url} is shut", away=f"{url} is away", renewed_ago=99.0))

    assert "hunter2" not in json.dumps(body)


# ── The server ──


def test_metrics_and_health_are_served(store: Store, server: Server) -> None:
    status, kind, body = ask(server, "/metrics?x=1")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    assert value(samples(body), "tenure_store_up") == 1

    status, kind, body = ask(server, "/healthz")
    assert (status, kind, json.loads(body)["status"]) == (200, "application/json", "ok")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/metrics", 200),
        ("HEAD", "/nowhere", 404),
        ("GET", "/", 404),
        ("GET", "/metrics/../etc/passwd", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/healthz", 405),
        ("BREW", "/healthz", 405),
    ],
)
def test_only_two_pages_can_be_read_and_nothing_can_be_changed(
    server: Server, method: str, path: str, status: int
) -> None:
    found, kind, body = ask(server, path, method)

    assert found == status
    assert kind.startswith("text/plain")
    assert (body == "") == (method == "HEAD")


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"\x16\x03\x01\x02\x00\x01\n\n", b"400"),
        (b"GET /metrics HTTP/9.9\r\n\r\n", b"505"),
        (b"GET\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nno colon at all\r\n\r\n", b"200"),
        (b"GET /" + b"a" * 20_000, b""),
        (b"\r\n\r\n", b""),
        (b"", b""),
    ],
)
def test_a_bad_request_costs_nothing_but_itself(
    server: Server, sent: bytes, answered: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(server.server_address[:2], timeout=LIMIT) as raw:  # type: ignore[arg-type]
        try:
            raw.sendall(sent)
            raw.shutdown(socket.SHUT_WR)
            first = raw.makefile("rb").readline()
        except OSError:  # the server has had enough already, and has hung up
            first = b""

    assert answered in first
    assert ask(server, "/healthz")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_more_clients_than_there_is_room_for_are_turned_away_at_once(server: Server) -> None:
    with _hogs(server, metrics.MOST_REQUESTS), _hogs(server, 20) as others:
        assert all(_is_cut_off(other) for other in others)
    _until_well(server)


def test_slow_clients_are_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "REQUEST_SECONDS", 0.3)

    with _hogs(server, metrics.MOST_REQUESTS) as hogs:
        assert all(_is_cut_off(hog) for hog in hogs)
    _until_well(server)


@contextmanager
def _hogs(server: Server, number: int) -> Iterator[list[socket.socket]]:
    """Clients that begin a request and never end it."""
    with ExitStack() as stack:
        hogs: list[socket.socket] = []
        for _ in range(number):
            hog = socket.create_connection(server.server_address[:2], timeout=LIMIT)  # type: ignore[arg-type]
            hogs.append(stack.enter_context(hog))
        for hog in hogs:
            with suppress(OSError):
                hog.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        yield hogs


def _until_well(server: Server) -> None:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        with suppress(OSError, http.client.HTTPException):
            assert ask(server, "/healthz")[0] == 200
            return
    raise AssertionError("no place became free")


def _is_cut_off(hog: socket.socket) -> bool:
    with hog:
        try:
            return hog.recv(1) == b""
        except ConnectionResetError:
            return True


def test_a_client_that_drips_does_not_win_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "REQUEST_SECONDS", 0.3)
    with socket.create_connection(server.server_address[:2], timeout=LIMIT) as raw:  # type: ignore[arg-type]
        with pytest.raises(OSError):
            deadline = time.monotonic() + LIMIT
            while time.monotonic() < deadline:
                raw.sendall(b"X")
                time.sleep(0.01)


def test_a_port_that_is_taken_is_one_sentence_and_exit_code_2(
    server: Server, settings: Settings, tmp_path: Path
) -> None:
    taken = server.url.removeprefix("http://")
    order = json.dumps({"url": settings.url, "metrics_listen": taken})

    ended = subprocess.run(
        [sys.executable, "-m", "tenure.cli.supervise", order], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )

    assert ended.returncode == 2
    problem = f"--listen: cannot bind {taken}: Address already in use"
    assert ended.stderr == f"{problem}; use another HOST:PORT, or leave it unset\n"


def test_it_listens_on_ipv6_too(well: Vitals) -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        server = serve("[::1]:0", Page(Tally(), lambda: well, opened))
    except OSError as error:
        pytest.skip(f"this machine has no ::1: {error}")

    assert server.url.startswith("http://[::1]:")
    assert ask(server, "/healthz")[0] == 200
    server.close()


@pytest.mark.parametrize("listen", ["127.0.0.1:9100", "[::1]:9100", "localhost:0", "0.0.0.0:65535", "web_1.shop:80"])
def test_an_address_is_a_host_and_a_port(listen: str, tmp_path: Path) -> None:
    found = load({"listen": listen, "metrics_listen": listen}, environ={}, folder=tmp_path)
    assert (found.listen, found.metrics_listen) == (listen, listen)
    host, port = host_and_port(listen)
    assert f"{host}:{port}" == listen.replace("[", "").replace("]", "")


@pytest.mark.parametrize(
    "listen", [":9100", "9100", "*:9100", "::1:9100", "a:65536", "a:", "a b:1", "http://a:1", 9100]
)
def test_anything_else_is_refused_with_an_example(listen: object, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"--listen: expected HOST:PORT like 127\.0\.0\.1:9100"):
        load({"listen": listen}, environ={}, folder=tmp_path)
    with pytest.raises(InvalidOption, match=r"--listen: expected HOST:PORT like 127\.0\.0\.1:9100"):
        load({"metrics_listen": listen}, environ={}, folder=tmp_path)


def test_the_dashboards_address_in_dotenv_is_not_the_workers_too(
    server: Server, settings: Settings, tmp_path: Path
) -> None:
    taken = server.url.removeprefix("http://")
    (tmp_path / ".env").write_text(f"TENURE_LISTEN={taken}\n")
    (tmp_path / "none.py").write_text("from tenure import Tenure\njobs = Tenure()\njobs.task(name='t')(lambda: None)\n")
    order = json.dumps({"url": settings.url, "app": "none", "until_empty": True})

    ended = subprocess.run(
        [sys.executable, "-m", "tenure.cli.supervise", order], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )

    assert ended.returncode == 0, ended.stderr
    assert f"no metrics are served: TENURE_LISTEN={taken} is the dashboard's address" in ended.stderr
    assert "--listen or TENURE_METRICS_LISTEN" in ended.stderr


# ── Counting ──


def test_what_a_worker_took_is_added_to_what_its_supervisor_has() -> None:
    worker, supervisor = busy_tally(), busy_tally()

    supervisor.add(json.loads(json.dumps(worker.take())))
    supervisor.add(json.loads(json.dumps(worker.take())))

    reading = supervisor.read()
    assert reading.counts["claims", "default"] == 6
    assert reading.counts["outcomes", "work", "completed"] == 4
    assert sum(reading.times["attempt", "work"].buckets) == 4
    assert reading.times["attempt", "work"].total == pytest.approx(14_400.05)
    assert worker.read() == ({}, {}), "nothing is handed over twice"


def test_durations_of_newer_code_with_other_buckets_are_left_out() -> None:
    supervisor = Tally()

    supervisor.add({"counts": [], "times": [["store", "claim", 1.0, [1, 2]], ["unheard_of", "x", 1.0, [1]]]})

    assert supervisor.read().times == {}


def test_events_are_counted_by_task_cause_and_outcome_and_never_by_id() -> None:
    tally, events = Tally(), Events()
    tally.follow(events)
    rescued = Rescued(
        id="0190", task="work", queue="mail", attempt=1, worker_id="w-1", cause="host", state=State.QUEUED
    )

    events.emit(JobRescued(rescued=rescued))
    events.emit(JobRescued(rescued=rescued, outcome="released"))
    events.emit(LeaseRefused(job_id="0190", task="work", queue="mail", attempt=1, worker_id="w-1", stands="gone"))

    assert tally.read().counts == {
        ("rescues", "host"): 2,
        ("outcomes", "work", "crashed"): 1,
        ("outcomes", "work", "released"): 1,
        ("refused", "work"): 1,
    }


def test_a_timed_store_is_the_same_store_and_its_failures_are_timed_too(tmp_path: Path) -> None:
    inner, tally = SqliteStore(str(tmp_path / "tenure.db")), Tally()
    store = timed(inner, tally)
    store.open()
    worker = start(store, boot_id=BOOT)
    put(store)

    assert len(store.claim(worker, {"default": 1}, 1)) == 1
    assert store.url == inner.url
    with pytest.raises(Exception, match="was used before"):
        store.register(inner.workers()[0].identity)

    store.close()
    assert {verb: sum(times.buckets) for (_, verb), times in tally.read().times.items()} == {"claim": 1, "register": 2}


def test_counting_from_many_threads_loses_nothing() -> None:
    tally, taken = Tally(), Tally()

    def work() -> None:
        for _ in range(500):
            tally.count("stalls")
            tally.time("store", "claim", 0.1)
            taken.add(tally.take())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert taken.read().counts == {("stalls",): 2000}
    assert sum(taken.read().times["store", "claim"].buckets) == 2000


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_the_bounds_of_buckets_rise(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))


def test_a_worker_and_a_supervisor_without_listen_never_load_the_library() -> None:
    runtime = "tenure.worker.child, tenure.supervisor.supervisor"
    code = f"import sys, {runtime}; print({{'prometheus_client', 'http.server'}} & {{*sys.modules}})"

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert ended.stdout == "set()\n"


# ── tenure check ──

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENURE_NOTIFIER", "poll")
    monkeypatch.delenv("TENURE_URL", raising=False)

    def run(*argv: str) -> tuple[int, str]:
        code = main(argv)
        return code, capsys.readouterr().out

    return run


def test_check_prints_the_metrics_of_the_store_for_a_textfile(run: Run, store: Store) -> None:
    put(store, queue="mail")
    shop(store, 1)

    code, out = run("check", "--metrics")

    found = samples(out)
    assert code == 0
    assert value(found, "tenure_queue_jobs", queue="mail", state="queued") == 1
    assert {name for name, _ in found} == {metric.name for metric in METRICS.values() if metric.source == "store"}


def test_check_prints_the_same_numbers_as_json(run: Run, store: Store) -> None:
    put(store, queue="mail")

    listed = json.loads(run("check", "--metrics", "--json")[1])

    told = {(each["metric"], frozenset(each["labels"].items())): each["value"] for each in listed}
    oldest = "tenure_queue_oldest_queued_seconds"
    assert {key: number for key, number in told.items() if key[0] != oldest} == {
        key: number for key, number in samples(text(metrics.store_families(store))).items() if key[0] != oldest
    }


def test_check_tells_of_the_store_the_doorbell_and_each_queue_that_waits(run: Run, store: Store) -> None:
    put(store, queue="mail")
    put(store, queue="mail")

    findings = {each["what"]: each["says"] for each in json.loads(run("check", "--json")[1])}

    assert "answers a small read in" in findings["latency"]
    assert findings["notifier"] == "poll: no problem"
    assert re.match(r"mail: 2 queued, the oldest due for \d.*, 0 running", findings["queue"])
