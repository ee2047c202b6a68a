"""OpenTelemetry: spans of enqueues and attempts, and the counters of a worker. The extra `otel`.

    from tenure import Tenure
    from tenure.otel import instrument

    jobs = Tenure()
    instrument(jobs)

It needs the API package only. Without an SDK, whose providers the program sets, nothing is recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.backends import extra
from tenure.errors import InvalidOption
from tenure.tasks.tracing import Traced

with extra("otel"):
    from tenure.otel.traces import Traces

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["instrument"]


def instrument(jobs: Traced, *, links: bool = False, tracer_provider: TracerProvider | None = None) -> None:
    """Trace what this app enqueues and runs. Call it in the module of the app: each worker process imports that.

    Example: `instrument(jobs)` below `jobs = Tenure()`. An attempt is a child of the span that enqueued its job. With
    `links` it begins a trace of its own, linked to that span: for jobs that run days later, or a hundred thousand from
    one request. `tracer_provider`: None is the program's own, `opentelemetry.trace.get_tracer_provider()`, also if it
    is set later. Raises InvalidOption.
    """
    if not isinstance(jobs, Traced):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"instrument: expected an app, jobs = Tenure(), got {jobs!r:.80}")
    jobs.tracing = Traces(tracer_provider, links=links)
