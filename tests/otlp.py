"""A collector: takes spans and metrics by OTLP over HTTP, or refuses them, or holds its answer back."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from waiting import until

Manner = Literal["takes", "refuses", "holds"]
_STATUS = ("unset", "ok", "error")
_KIND = ("", "internal", "server", "client", "producer", "consumer")


@dataclass(frozen=True)
class Seen:
    """A span as it arrived."""

    trace: str
    id: str
    parent: str  #: empty for a root
    name: str
    kind: str
    service: str
    begin: int  #: this and the next in Unix nanoseconds
    end: int
    status: str
    says: str  #: the status's description
    attributes: Mapping[str, Any]
    events: tuple[tuple[str, Mapping[str, Any]], ...]
    links: tuple[str, ...]  #: the ids of spans


class Collector:
    """Listens on a free port until the block ends. `manner` may change at any time."""

    def __init__(self, manner: Manner = "takes") -> None:
        self.manner = manner
        self.spans: list[Seen] = []
        self.metrics: dict[str, list[Any]] = {}  #: the newest points, by name
        self.asked = 0  #: requests, whatever became of them
        self._freed = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.asked += 1
                if collector.manner == "holds":
                    collector._freed.wait()
                status = 200 if collector.manner == "takes" else 503
                if status == 200:
                    collector._take(self.path, body)
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                except OSError:  # the exporter has given up, or was killed
                    return

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Nothing: a test that fails says what it looked for."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._freed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            self.spans += spans_of(ExportTraceServiceRequest.FromString(body))
        elif path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        data = getattr(metric, str(metric.WhichOneof("data")))
                        self.metrics[metric.name] = list(data.data_points)

    def until(self, *names: str) -> list[Seen]:
        """Wait for spans of these names, each as often as it is named. All that have arrived, in order of begin."""
        wanted = {name: names.count(name) for name in names}

        def arrived() -> bool:
            here = [span.name for span in self.spans]
            return all(here.count(name) >= number for name, number in wanted.items())

        try:
            until(arrived, f"the spans {wanted}", 90.0)
        except AssertionError as error:
            raise AssertionError(f"{error}; arrived are {sorted(span.name for span in self.spans)}") from None
        return sorted(self.spans, key=lambda span: span.begin)


def spans_of(request: ExportTraceServiceRequest) -> list[Seen]:
    found: list[Seen] = []
    for resource in request.resource_spans:
        service = values(resource.resource.attributes).get("service.name", "")
        found += [
            Seen(
                trace=span.trace_id.hex(),
                id=span.span_id.hex(),
                parent=span.parent_span_id.hex(),
                name=span.name,
                kind=_KIND[span.kind],
                service=service,
                begin=span.start_time_unix_nano,
                end=span.end_time_unix_nano,
                status=_STATUS[span.status.code],
                says=span.status.message,
                attributes=values(span.attributes),
                events=tuple((event.name, values(event.attributes)) for event in span.events),
                links=tuple(link.span_id.hex() for link in span.links),
            )
            for scope in resource.scope_spans
            for span in scope.spans
        ]
    return found


def values(pairs: Iterable[Any]) -> dict[str, Any]:
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in pairs}
