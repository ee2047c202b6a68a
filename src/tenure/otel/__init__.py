"""OpenTelemetry: spans of enqueues and attempts, and metrics. The extra `otel`.

    from tenure import Tenure
    from tenure.otel import instrument

    jobs = Tenure()
    instrument(jobs)

It needs the API package only. Without an SDK, whose providers the program sets, nothing is recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.app.backends import extra
from tenure.errors import InvalidOption
from tenure.tasks.tracing import Traced

with extra("otel"):
    from tenure.otel.metrics import Counters, observe_store
    from tenure.otel.traces import Traces

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["instrument", "observe_store"]


def instrument(
    jobs: Traced,
    *,
    links: bool = False,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Trace what this app enqueues and runs, and count what its workers do.

    Call it in the module of the app, which each worker process imports. The store's own gauges are `observe_store`.

    Example: `instrument(jobs)` below `jobs = Tenure()`. An attempt is a child of the span that enqueued its job. With
    `links` it begins a trace of its own, linked to that span: for jobs that run days later, or a hundred thousand from
    one request. With `Tenure(codec=…)` spans have no text of errors. The providers are those that the program has set,
    or sets later, unless others are given. A second call replaces what the first one set. Raises InvalidOption.
    """
    if not isinstance(jobs, Traced):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"instrument: expected an app, jobs = Tenure(), got {jobs!r:.80}")
    counters = Counters(meter_provider)
    jobs.tracing = Traces(tracer_provider, counters, links=links, texts=lambda: jobs.codec is None)
