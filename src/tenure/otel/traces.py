"""Spans of enqueues and attempts, by the conventions for messaging systems, with further attributes `tenure.…`.

The context of an enqueue travels in the job's meta, as the headers of W3C Trace Context under reserved names. If
something else is there, the attempt begins a trace of its own. An SDK that raises is logged once, and changes nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Token
from datetime import datetime
from time import time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec
from opentelemetry import context, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation import get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tenure.core.lifecycle import Completed, Crashed, Failed, Outcome, State, outcome_name, reason_of
from tenure.core.logs import logger
from tenure.errors import FlowMade
from tenure.events import RESCUE_REASONS, headline
from tenure.otel.metrics import Counters, Counts
from tenure.ports import RESERVED, AttemptView, Claimed, Draft, Enqueued, JobView, Rescued

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Histogram
    from opentelemetry.trace import Tracer, TracerProvider
    from opentelemetry.util.types import Attributes

_log = logger("tenure.otel")
_headers = TraceContextTextMapPropagator()
_decode = msgspec.json.Decoder(dict[str, str]).decode
_LONGEST = 512  #: characters of a text in a span

_complained = set[str]()


@contextmanager
def _harmless() -> Generator[None]:
    """A failure in this block changes nothing but the trace."""
    try:
        yield
    except Exception as error:
        kind = f"{type(error).__name__}: {error}"
        if len(_complained) < 10 and kind not in _complained:
            _complained.add(kind)
            _log.warning("OpenTelemetry failed, and spans are missing or incomplete: %s", kind, exc_info=error)


class Traces:
    """The tracer of an app. Without `texts` its spans have none of the values and errors that a codec encrypts.

    `texts` is asked for each span: a Django project's codec is known on first use only.
    """

    def __init__(
        self, provider: TracerProvider | None, counters: Counters, *, links: bool, texts: Callable[[], bool]
    ) -> None:
        self._provider, self._counters, self._links, self._texts = provider, counters, links, texts
        self._tracer = trace.get_tracer("tenure", tracer_provider=provider)

    def enqueue(self, drafts: Sequence[Draft]) -> _Enqueue:
        return _Enqueue(self._tracer, drafts, texts=self._texts())

    def attempt(self, claimed: Claimed, worker_id: str) -> _Attempt:
        about = _about_attempt(claimed.id, claimed.task, claimed.queue, claimed.attempt, worker_id)
        about |= {"tenure.failures": claimed.failures, "tenure.crashes": claimed.crashes}
        span: Span = trace.INVALID_SPAN
        with _harmless():
            span = self._start(claimed.task, _context_of(_meta_of(claimed.meta)), about, None)
        return _Attempt(span, self._counters.attempt_seconds, claimed.task, texts=self._texts())

    def rescued(self, rescued: Rescued, job: JobView, attempt: AttemptView) -> None:
        about = _about_attempt(job.id, job.task, job.queue, attempt.attempt, attempt.worker_id)
        about |= {"tenure.outcome": attempt.outcome, "tenure.state": str(rescued.state)}
        texts = self._texts()
        if texts:
            about |= {f"tenure.evidence.{name}": text for name, text in attempt.evidence.items()}
        with _harmless():
            span = self._start(job.task, _context_of(job.meta), about, _nanoseconds(attempt.started_at))
            why = RESCUE_REASONS[rescued.cause]
            told = {"tenure.cause": rescued.cause, "tenure.reason": why, "tenure.state": str(rescued.state)}
            span.add_event("tenure.rescue", told)
            if attempt.outcome in ("failed", "crashed"):  # failed: it timed out, and had to be killed
                span.set_attribute("error.type", attempt.outcome)
                text = headline(attempt.error)[:_LONGEST] if texts else None
                span.set_status(Status(StatusCode.ERROR, text))
            span.end(_nanoseconds(attempt.ended_at))

    def counts(self, read: Callable[[], Counts]) -> None:
        with _harmless():
            self._counters.add(read)

    def flush(self) -> None:
        for provider in (self._provider or trace.get_tracer_provider(), self._counters.provider):
            flush: Callable[[], object] | None = getattr(provider, "force_flush", None)  # the API has none
            if flush is not None:
                with _harmless():
                    flush()

    def _start(self, task: str, parent: Context, about: Attributes, at: int | None) -> Span:
        links: list[Link] = []
        enqueued = get_current_span(parent).get_span_context()
        if self._links and enqueued.is_valid:
            parent, links = context.Context(), [Link(enqueued)]
        return self._tracer.start_span(f"attempt {task}", parent, SpanKind.CONSUMER, about, links, at)


class _Enqueue:
    """The span of one call that stores jobs. It is the current one within the block."""

    def __init__(self, tracer: Tracer, drafts: Sequence[Draft], *, texts: bool) -> None:
        self._tracer, self._texts = tracer, texts
        self._span: Span = trace.INVALID_SPAN
        self._token: Token[Context] | None = None
        self.drafts = drafts

    def __enter__(self) -> Self:
        with _harmless():
            tasks, queues = {draft.task for draft in self.drafts}, {draft.queue for draft in self.drafts}
            about: dict[str, str | int] = {
                "messaging.system": "tenure",
                "messaging.operation.name": "enqueue",
                "messaging.operation.type": "send",
            }
            for one, names in ((tasks, ("tenure.task",)), (queues, ("tenure.queue", "messaging.destination.name"))):
                if len(one) == 1:
                    about |= dict.fromkeys(names, *one)
            if len(self.drafts) == 1:
                about |= dict.fromkeys(("tenure.job_id", "messaging.message.id"), self.drafts[0].id)
            else:
                about["messaging.batch.message_count"] = len(self.drafts)
            name = f"enqueue {next(iter(tasks))}" if len(tasks) == 1 else "enqueue jobs"
            self._span = self._tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=about)
            here = set_span_in_context(self._span)
            self._token = context.attach(here)
            headers: dict[str, str] = {}
            _headers.inject(headers, here)
            if headers:
                self.drafts = [draft.but(meta=_with(draft.meta, headers)) for draft in self.drafts]
        return self

    def stored(self, answers: Iterable[Enqueued]) -> None:
        with _harmless():
            answers = list(answers)
            created = sum(answer.created for answer in answers)
            self._span.set_attribute("tenure.created", created)
            if len(answers) == 1 and not created:  # the live job that has its unique key
                self._span.set_attribute("messaging.message.id", answers[0].id)
                self._span.set_attribute("tenure.job_id", answers[0].id)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _harmless():
            if self._token is not None:
                context.detach(self._token)
            if isinstance(error, FlowMade):  # the flow was made before: as it should be
                self._span.set_attribute("tenure.created", 0)
            elif error is not None:
                _failed(self._span, error, str(error), texts=self._texts)
            self._span.end()


class _Attempt:
    """The span of one attempt. Any thread may call it; it ends once."""

    def __init__(self, span: Span, seconds: Histogram, task: str, *, texts: bool) -> None:
        self._span, self._seconds, self._task, self._texts = span, seconds, task, texts
        self._began = time_ns()
        self._stopped_at: int | None = None

    def enter(self) -> None:
        with _harmless():
            context.attach(set_span_in_context(self._span, context.Context()))

    def asked_to_stop(self, reason: str) -> None:
        with _harmless():
            self._span.add_event("tenure.stop_requested", {"tenure.reason": reason})

    def stopped(self) -> None:
        self._stopped_at = now = time_ns()
        with _harmless():
            self._seconds.record((now - self._began) / 1e9, {"task": self._task})

    def end(self, outcome: Outcome | None, raised: BaseException | None, state: State | None, stands: str) -> None:
        with _harmless():
            span = self._span
            if span.is_recording():
                if outcome is not None:
                    span.set_attribute("tenure.outcome", outcome_name(outcome))
                if state is not None:
                    span.set_attribute("tenure.state", str(state))
                if outcome is None or stands:
                    span.set_attribute("error.type", "lease_lost")
                    span.add_event("tenure.lease_lost", {"tenure.stands": stands[:_LONGEST]} if stands else None)
                    span.set_status(Status(StatusCode.ERROR, "its lease was lost, and its outcome was refused"))
                elif isinstance(outcome, Failed | Crashed):
                    _failed(span, raised, reason_of(outcome), outcome_name(outcome), texts=self._texts)
                elif self._texts and not isinstance(outcome, Completed):
                    span.set_attribute("tenure.reason", reason_of(outcome)[:_LONGEST])
            span.end(self._stopped_at)


def _failed(span: Span, raised: BaseException | None, why: str, kind: str = "", *, texts: bool) -> None:
    if raised is not None:
        kind = type(raised).__qualname__
        if texts:
            span.record_exception(raised)
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, headline(why)[:_LONGEST] if texts else None))


def _about_attempt(job_id: str, task: str, queue: str, attempt: int, worker_id: str) -> dict[str, str | int]:
    return {
        "messaging.system": "tenure",
        "messaging.operation.name": "attempt",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue,
        "messaging.message.id": job_id,
        "messaging.client.id": worker_id,
        "tenure.job_id": job_id,
        "tenure.task": task,
        "tenure.queue": queue,
        "tenure.attempt": attempt,
        "tenure.worker_id": worker_id,
    }


# ── The context in a job's meta ─────────────────────────────────────────────────────────────────────────────────


def _with(meta: str, headers: Mapping[str, str]) -> str:
    """The meta with these headers. It is not decoded: one call may store a hundred thousand jobs.

    >>> _with('{"user":"7"}', {"traceparent": "00-…"})
    '{"user":"7","tenure.traceparent":"00-…"}'
    """
    more = msgspec.json.encode({RESERVED + name: text for name, text in headers.items()}).decode()
    return more if meta == "{}" else f"{meta[:-1]},{more[1:]}"


def _meta_of(text: str) -> dict[str, str]:
    with suppress(msgspec.DecodeError):
        return _decode(text)
    return {}


def _context_of(meta: Mapping[str, str]) -> Context:
    """The context of the enqueue; an empty one if there is none, or something else in its place."""
    found = context.Context()
    with suppress(Exception):
        headers = {name.removeprefix(RESERVED): text for name, text in meta.items() if name.startswith(RESERVED)}
        found = _headers.extract(headers, found)
    return found


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1000
