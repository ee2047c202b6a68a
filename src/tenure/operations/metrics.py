"""`/metrics` and `/healthz`: the contents of the store and the counters of this supervisor, for Prometheus and probes.

Only `tenure worker --listen` and `tenure check --metrics` import this; a worker process never does.

- `METRICS` lists every metric once; `docs/metrics.md` has the same list, and a test compares them.
- The store is read on scrapes, on a separate connection, never more than a twentieth of the time.
- `/healthz` queries nothing: it answers from the supervisor's state in memory.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from io import BytesIO
from typing import Any, Literal, cast

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from tenure.config import Settings, host_and_port, redact
from tenure.core.durations import spell
from tenure.core.lifecycle import LIVE, State
from tenure.core.logs import logger
from tenure.maintenance.holder import ASK_AFTER
from tenure.operations.alerts import open_incidents
from tenure.operations.keys import Sum, most_waited, oldest_of, usage
from tenure.operations.queues import idle
from tenure.operations.sinks import KINDS
from tenure.operations.workers import ended_at, runs_user_jobs
from tenure.ports import KeyView, QueueView, Store, Waits
from tenure.worker.tally import BOUNDS, Reading, Tally, Times, Vitals

FRESH_SECONDS = 1.0
SHARE = 20  #: a read that took a second is kept for twenty
PATIENCE_SECONDS = 3.0  #: how long a scrape waits for the store; Prometheus itself gives up after ten
REQUEST_SECONDS = 5.0
MOST_REQUESTS = 16
POLL_SECONDS = 0.25  #: how long it may take to notice that it must close
LONGEST_HEAD = 8192
CAUSES = ("crash", "host", "stale", "queue")
MOST_LIMITS, MOST_KEYS = 100, 20  #: that have labels: those that are waited for most
_KEY = ("limit", "key")

Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily
Health = tuple[int, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `source`: where its values come from, the store or this supervisor."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    source: Literal["store", "supervisor"]
    help: str

    def family(self) -> Any:
        made = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}
        return made[self.kind](self.name, self.help, labels=self.labels)


METRICS = {
    metric.name: metric
    for metric in (
        Metric("tenure_jobs", "gauge", ("state",), "store", "Jobs in this state."),
        Metric("tenure_queue_jobs", "gauge", ("queue", "state"), "store", "Jobs of a queue that have not ended."),
        Metric(
            "tenure_queue_oldest_queued_seconds",
            "gauge",
            ("queue",),
            "store",
            "How long the longest-waiting queued job has been due; 0 if none is waiting.",
        ),
        Metric("tenure_queue_paused", "gauge", ("queue",), "store", "1 while nothing may be claimed from this queue."),
        Metric("tenure_asks", "gauge", (), "store", "Looks at waiting jobs that are left to do; counted up to 10,000."),
        Metric("tenure_flows_open", "gauge", (), "store", "Flows with a job that has not ended, among the newest 200."),
        Metric("tenure_limit_keys", "gauge", ("limit", "state"), "store", "Keys of a limit: known, paused."),
        Metric("tenure_limit_places_held", "gauge", ("limit",), "store", "Places held of a limit, over all its keys."),
        Metric("tenure_limit_waiting", "gauge", ("limit",), "store", "Jobs that wait for a place, over all its keys."),
        Metric("tenure_key_places", "gauge", _KEY, "store", "Places of a key: it allows so many at a time."),
        Metric("tenure_key_places_held", "gauge", _KEY, "store", "Places held of a key: jobs queued or processing."),
        Metric("tenure_key_waiting", "gauge", _KEY, "store", "Jobs that wait for a place of a key; up to 10,000."),
        Metric(
            "tenure_key_oldest_waiting_seconds",
            "gauge",
            _KEY,
            "store",
            "How long the job that gets the next place of a key has waited, or an older one.",
        ),
        Metric("tenure_key_paused", "gauge", _KEY, "store", "1 while no job gets a place of this key."),
        Metric("tenure_workers", "gauge", (), "store", "Workers that are alive, of all supervisors and apps."),
        Metric("tenure_incidents", "gauge", ("kind",), "store", "Open incidents, by kind of problem."),
        Metric("tenure_claims_total", "counter", ("queue",), "supervisor", "Jobs claimed."),
        Metric(
            "tenure_outcomes_total", "counter", ("task", "outcome"), "supervisor", "Attempts ended, by their outcome."
        ),
        Metric("tenure_attempt_seconds", "histogram", ("task",), "supervisor", "How long the code of an attempt ran."),
        Metric(
            "tenure_refused_writes_total",
            "counter",
            ("task",),
            "supervisor",
            "Attempts whose write the store refused because they no longer owned the job.",
        ),
        Metric(
            "tenure_rescues_total", "counter", ("cause",), "supervisor", "Jobs rescued, by the path that found them."
        ),
        Metric("tenure_worker_deaths_total", "counter", (), "supervisor", "Worker processes that died unexpectedly."),
        Metric("tenure_stalls_total", "counter", (), "supervisor", "Times a worker's event loop was seen blocked."),
        Metric("tenure_slots", "gauge", ("state",), "supervisor", "Slots of the workers that are ready."),
        Metric(
            "tenure_duty_lag_seconds",
            "gauge",
            ("duty",),
            "supervisor",
            "How long this duty of the maintenance has been due; 0 while it is on time.",
        ),
        Metric("tenure_store_up", "gauge", (), "supervisor", "1 while the store answers."),
        Metric("tenure_store_seconds", "histogram", ("verb",), "supervisor", "How long a call of the store took."),
        Metric(
            "tenure_notifier_up",
            "gauge",
            (),
            "supervisor",
            "0 while a process of this supervisor polls instead of listening.",
        ),
        Metric("tenure_build_info", "gauge", ("version", "python"), "supervisor", "Always 1."),
    )
}


# ── Contents of the store ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Holdings:
    """One read of the store."""

    counts: dict[State, int]
    queues: list[QueueView]
    workers: int
    incidents: Mapping[str, int]  #: by kind
    waits: Waits
    limits: Mapping[str, Sum]  #: those that are waited for most
    keys: Sequence[tuple[KeyView, float]]  #: those that are waited for most, with their oldest wait in seconds

    @classmethod
    def of(cls, store: Store) -> Holdings:
        now = store.now()
        workers = sum(runs_user_jobs(row) and ended_at(row, now) is None for row in store.workers())
        incidents = Counter(each.kind for each in open_incidents(store))
        keys = usage(store)
        limits = sorted(keys.sums.items(), key=lambda each: (-each[1].waiting, -each[1].held, each[0]))[:MOST_LIMITS]
        most = most_waited(keys.keys, MOST_KEYS)
        since = oldest_of(store, keys, most)
        oldest = [(each, max((keys.at - since.get(each.key, keys.at)).total_seconds(), 0.0)) for each in most]
        return cls(store.counts(), store.queues(), workers, incidents, store.waits(), dict(limits), oldest)

    def families(self, served: Iterable[str] = ()) -> Iterator[Family]:
        """For all queues that hold a job, are paused, or are served: an empty one has zeros, not gaps."""
        jobs = METRICS["tenure_jobs"].family()
        for state in State:
            jobs.add_metric([state], self.counts.get(state, 0))
        yield jobs
        waiting, oldest, paused = (
            METRICS[name].family()
            for name in ("tenure_queue_jobs", "tenure_queue_oldest_queued_seconds", "tenure_queue_paused")
        )
        for queue in (*self.queues, *idle(self.queues, served)):
            for state in sorted(LIVE):
                waiting.add_metric([queue.name, state], queue.counts.get(state, 0))
            oldest.add_metric([queue.name], queue.oldest_queued or 0.0)
            paused.add_metric([queue.name], float(queue.paused_at is not None))
        yield from (waiting, oldest, paused)
        yield _single("tenure_asks", self.waits.asks)
        yield _single("tenure_flows_open", self.waits.flows)
        yield from self._limits()
        yield _single("tenure_workers", self.workers)
        incidents = METRICS["tenure_incidents"].family()
        for kind in KINDS:
            incidents.add_metric([kind], self.incidents.get(kind, 0))
        yield incidents

    def _limits(self) -> Iterator[Family]:
        keys, held, waiting = (METRICS[f"tenure_limit_{name}"].family() for name in ("keys", "places_held", "waiting"))
        for limit, found in self.limits.items():
            for state, number in (("known", found.keys), ("paused", found.paused)):
                keys.add_metric([limit, state], number)
            held.add_metric([limit], found.held)
            waiting.add_metric([limit], found.waiting)
        yield from (keys, held, waiting)
        names = ("places", "places_held", "waiting", "oldest_waiting_seconds", "paused")
        places, held, waiting, oldest, paused = (METRICS[f"tenure_key_{name}"].family() for name in names)
        for key, age in self.keys:
            labels = [key.limit, key.key]
            if key.bounds.concurrency is not None:
                places.add_metric(labels, key.bounds.concurrency)
            held.add_metric(labels, key.held)
            waiting.add_metric(labels, key.waiting)
            oldest.add_metric(labels, age)
            paused.add_metric(labels, float(key.paused_until is not None))
        yield from (places, held, waiting, oldest, paused)


class Reader:
    """Reads the store for scrapes: they share one read, in a thread that each waits for only up to a limit.

    The more a read costs, the longer it is kept. Without a fresh one no values are reported: old ones would mislead.
    """

    def __init__(self, open_store: Callable[[Settings], Store]) -> None:
        self._open = open_store
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._thread: threading.Thread | None = None
        self._found: Holdings | None = None
        self._fresh_until = 0.0

    def read(self, settings: Settings) -> Holdings | None:
        with self._lock:
            if time.monotonic() >= self._fresh_until and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._refresh, args=(settings,), daemon=True)
                self._thread.start()
            thread = self._thread
        if thread is not None:
            thread.join(PATIENCE_SECONDS)
            if thread.is_alive():
                return None
        return self._found

    def close(self) -> None:
        with self._lock:
            if self._store is not None and not (self._thread and self._thread.is_alive()):
                self._store.close()

    def _refresh(self, settings: Settings) -> None:
        began, share = time.monotonic(), float(SHARE)
        try:
            if self._store is None:
                self._store = self._open(settings)
            self._found = Holdings.of(self._store)
        except Exception as error:
            self._found, share = None, 0.0  # how long it failed says nothing about what the next read costs
            logger("tenure.supervisor").warning("the store can't be read for metrics: %s", error)
        ended = time.monotonic()
        self._fresh_until = ended + max(FRESH_SECONDS, (ended - began) * share)


def store_families(store: Store) -> list[Family]:
    """The metrics of a whole store, read now."""
    return list(Holdings.of(store).families())


# ── Counters of this supervisor ─────────────────────────────────────────────────────────────────────────────────


def seen_families(reading: Reading, vitals: Vitals, *, store_up: bool) -> Iterator[Family]:
    counted = {"claims", "outcomes", "refused", "rescues", "deaths", "stalls"}
    counts = {("rescues", cause): 0 for cause in CAUSES} | {("deaths",): 0, ("stalls",): 0} | reading.counts
    named = {"refused": "tenure_refused_writes_total", "deaths": "tenure_worker_deaths_total"}
    for what in sorted(counted):
        family = METRICS[named.get(what, f"tenure_{what}_total")].family()
        for (kind, *labels), number in sorted(counts.items()):
            if kind == what:
                family.add_metric(labels, number)
        yield family
    for what in ("attempt", "store"):
        family = METRICS[f"tenure_{what}_seconds"].family()
        for (kind, label), times in sorted(reading.times.items()):
            if kind == what:
                family.add_metric([label], _cumulative(BOUNDS[what], times), times.total)
        yield family
    slots = METRICS["tenure_slots"].family()
    slots.add_metric(["busy"], vitals.busy)
    slots.add_metric(["free"], max(vitals.slots - vitals.busy, 0))
    yield slots
    lags = METRICS["tenure_duty_lag_seconds"].family()
    for duty, seconds in vitals.lags.items():
        lags.add_metric([duty], seconds)
    yield lags
    yield _single("tenure_store_up", float(store_up))
    yield _single("tenure_notifier_up", float(not vitals.notifier))
    build = METRICS["tenure_build_info"].family()
    build.add_metric([version("tenure"), ".".join(map(str, sys.version_info[:3]))], 1)
    yield build


def _cumulative(bounds: Iterable[float], times: Times) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    total = 0
    for bound, number in zip((*map(str, bounds), "+Inf"), times.buckets, strict=True):
        total += number
        found.append((bound, total))
    return found


def _single(name: str, value: float) -> Family:
    family = METRICS[name].family()
    family.add_metric([], value)
    return cast("Family", family)


# ── Text and health ─────────────────────────────────────────────────────────────────────────────────────────────


class _Given(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def text(families: Iterable[Family]) -> bytes:
    """In Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given(list(families)))
    return generate_latest(registry)


class Page:
    """What a supervisor serves about itself and its store."""

    def __init__(self, tally: Tally, vitals: Callable[[], Vitals], open_store: Callable[[Settings], Store]) -> None:
        self._tally, self._vitals = tally, vitals
        self._reader = Reader(open_store)

    def metrics(self) -> bytes:
        vitals = self._vitals()
        # A store known to be unavailable is not queried: the scrape is answered at once, without its values.
        held = None if vitals.settings is None or vitals.away else self._reader.read(vitals.settings)
        seen = seen_families(self._tally.read(), vitals, store_up=held is not None)
        return text((*(held.families(vitals.queues) if held else ()), *seen))

    def health(self) -> Health:
        return health(self._vitals())

    def close(self) -> None:
        self._reader.close()


def health(vitals: Vitals) -> Health:
    """Status and reasons: 200 while the store answers and a worker is ready, or while the supervisor drains."""
    reason = "" if vitals.stopping else _reason(vitals)
    body = {
        "status": "unhealthy" if reason else "draining" if vitals.stopping else "ok",
        **({"reason": reason} if reason else {}),
        "store": redact(vitals.store) or "not known yet",
        **({"away": redact(vitals.away)} if vitals.away else {}),
        "notifier": f"polling: {redact(vitals.notifier)}" if vitals.notifier else "ok",
        "workers": {"wanted": vitals.workers, "ready": vitals.ready},
        "slots": {"busy": vitals.busy, "free": max(vitals.slots - vitals.busy, 0)},
    }
    return (503 if reason else 200), body


def _reason(vitals: Vitals) -> str:
    if vitals.settings is not None and (vitals.renewed_ago or 0.0) > vitals.settings.lease * ASK_AFTER:
        said = f"no renewal has reached the store for {spell(vitals.renewed_ago or 0.0)}"
        return f"{said}: {redact(vitals.away)}" if vitals.away else said
    return "" if vitals.ready else "no worker is ready"


# ── The server ──────────────────────────────────────────────────────────────────────────────────────────────────


def serve(listen: str, page: Page) -> Server:
    """Serve HOST:PORT from separate threads until closed. Raises OSError if the address can't be bound."""
    host, port = host_and_port(listen)
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    server = Server(family, address, page)
    threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,), name="tenure-metrics", daemon=True).start()
    return server


class Server(ThreadingHTTPServer):
    """Small, and hard to exhaust: few requests at once, each with a time limit, no keep-alive."""

    daemon_threads = True
    allow_reuse_port = False  # a second supervisor on this port is a mistake, and must get an error
    request_queue_size = 64

    def __init__(self, family: int, address: Any, page: Page) -> None:
        self.address_family = family
        self.page = page
        self._free = threading.BoundedSemaphore(MOST_REQUESTS)
        super().__init__(address, _Handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}" if self.address_family == socket.AF_INET6 else f"http://{host!s}:{port}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self.page.close()

    def server_bind(self) -> None:
        """Without HTTPServer's lookup of the local host name, which may wait for a name server."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that disconnected is not worth logging
            logger("tenure.supervisor").exception("a request for metrics failed")


class _Handler(BaseHTTPRequestHandler):
    default_request_version = "HTTP/1.0"  # so that an unparsable request also gets a status line
    error_message_format = "%(message)s\n"
    error_content_type = "text/plain; charset=utf-8"

    def handle(self) -> None:
        """One request. Its whole head must arrive within the time limit, however slowly the client sends it."""
        head = self._head()
        if head is not None:
            self.connection.settimeout(REQUEST_SECONDS)
            self.rfile = BytesIO(head)
            self.handle_one_request()

    def _head(self) -> bytes | None:
        head, deadline = b"", time.monotonic() + REQUEST_SECONDS
        while b"\r\n\r\n" not in head and b"\n\n" not in head:
            left = deadline - time.monotonic()
            if left <= 0 or len(head) > LONGEST_HEAD:
                return None
            self.connection.settimeout(left)
            chunk = self.connection.recv(LONGEST_HEAD)
            if not chunk:
                return None
            head += chunk
        return head

    def do_GET(self) -> None:
        page = cast("Server", self.server).page
        match self.path.partition("?")[0]:
            case "/metrics":
                self._answer(200, CONTENT_TYPE_PLAIN_0_0_4, page.metrics())
            case "/healthz":
                status, body = page.health()
                self._answer(status, "application/json", json.dumps(body).encode() + b"\n")
            case _:
                self.send_error(404, "Not Found: expected /metrics or /healthz")

    def do_HEAD(self) -> None:
        self.do_GET()

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Handles every other method."""
        if not name.startswith("do_"):
            raise AttributeError(name)
        return lambda: self.send_error(405, "Method Not Allowed: only GET and HEAD")

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "tenure"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """A log line per scrape is useless."""
