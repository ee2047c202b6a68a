"""Spans by OpenTelemetry's own SDK: of enqueues and attempts, in one trace; and that they change nothing else."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import SpanKind

from tenure import Fail, Job, JobHandle, Snooze, Tenure, TenureError
from tenure.codecs import AesSiv, Codec
from tenure.core.lifecycle import ENDED, Failed, Released, State
from tenure.errors import InvalidOption
from tenure.maintenance.holder import identity
from tenure.operations.metrics import METRICS
from tenure.otel import instrument, observe_store
from tenure.otel import traces as implementation
from tenure.ports import Draft
from tenure.worker.tally import Tally
from waiting import until

GARBAGE = (
    "{}",
    '{"tenure.traceparent":""}',
    '{"tenure.traceparent":"nonsense"}',
    '{"tenure.traceparent":"00-zz-yy-01"}',
    '{"tenure.traceparent":"00-00000000000000000000000000000000-0000000000000000-01"}',
    '{"tenure.traceparent":"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}',
    '{"tenure.tracestate":"é=é,=,,"}',
    f'{{"tenure.traceparent":"{"0" * 5000}"}}',
)


class Shop:
    """An app with an SDK of its own: the program's providers belong to all tests."""

    def __init__(self, folder: Path, codec: Codec | None = None) -> None:
        self.exported = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exported))
        self.jobs = Tenure(f"sqlite:///{folder}/tenure.db", retry=2, codec=codec)
        self.jobs.configure({"poll_interval": "50ms", "grace": "0s", "retry_base": "0s", "runtime_dir": str(folder)})
        instrument(self.jobs, tracer_provider=self.provider)
        self.caller = self.provider.get_tracer("caller")
        self.begun = threading.Event()

        @self.jobs.task
        def double(n: int) -> int:
            return 2 * n

        self.double = double

    def spans(self, *names: str) -> list[ReadableSpan]:
        """Wait for spans of these names; returns them in the order of the names."""

        def arrived() -> list[ReadableSpan]:
            found = sorted(self.exported.get_finished_spans(), key=lambda span: (span.name, span.start_time or 0))
            chosen = [span for span in found if span.name in names]
            return chosen if sorted(span.name for span in chosen) == sorted(names) else []

        found = until(arrived, f"the spans {names}, and no others of these names")
        return [found.pop(next(n for n, span in enumerate(found) if span.name == name)) for name in names]

    def run(self, *handles: JobHandle[Any]) -> list[State]:
        """Run these jobs to their ends."""
        with self.jobs.worker(concurrency=2):
            return [until(lambda handle=handle: self.ended(handle), "they end") for handle in handles]  # type: ignore[misc]

    def ended(self, handle: JobHandle[Any]) -> State | None:
        view = self.jobs.client().store.get(str(handle.id))
        return view.state if view is not None and view.state in ENDED else None

    def put(self, *metas: str) -> list[JobHandle[Any]]:
        """Jobs with this in their meta, stored as by another program."""
        ids = [str(self.double.bind(1).id) for _ in metas]
        drafts = [
            Draft(id=id_, task="double", payload='{"n":1}', meta=meta) for id_, meta in zip(ids, metas, strict=True)
        ]
        self.jobs.client().store.enqueue(drafts)
        return [self.jobs.handle(id_) for id_ in ids]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    with shop.jobs:
        yield shop


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def about(span: ReadableSpan, *names: str) -> list[Any]:
    return [(span.attributes or {}).get(name) for name in names]


def events(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


def trace_of(span: ReadableSpan) -> int:
    return span.get_span_context().trace_id


def id_of(span: ReadableSpan) -> int:
    return span.get_span_context().span_id


def test_an_attempt_is_a_child_of_the_span_that_enqueued_its_job(shop: Shop) -> None:
    with shop.caller.start_as_current_span("request"):
        handle = shop.double.using(meta={"user": "7"}).enqueue(21)
    assert shop.run(handle) == [State.COMPLETED]

    request, enqueue, attempt = shop.spans("request", "enqueue double", "attempt double")
    assert len({trace_of(span) for span in (request, enqueue, attempt)}) == 1
    assert (parent_of(enqueue), parent_of(attempt)) == (id_of(request), id_of(enqueue))
    assert (enqueue.kind, attempt.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    for span, operation, kind in ((enqueue, "enqueue", "send"), (attempt, "attempt", "process")):
        names = ("system", "operation.name", "operation.type", "destination.name", "message.id")
        found = about(span, *(f"messaging.{name}" for name in names))
        assert found == ["tenure", operation, kind, "default", str(handle.id)]
        assert about(span, "tenure.job_id", "tenure.task", "tenure.queue") == [str(handle.id), "double", "default"]
    assert about(attempt, "tenure.attempt", "tenure.outcome", "tenure.state") == [1, "completed", "completed"]
    assert about(attempt, "messaging.client.id") == about(attempt, "tenure.worker_id") != [None]
    assert attempt.status.is_unset


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_what_a_handler_does_is_inside_of_its_attempt(shop: Shop, kind: str) -> None:
    def plain() -> None:
        with shop.caller.start_as_current_span("work"):
            shop.double.enqueue(1)

    async def coroutine() -> None:
        with shop.caller.start_as_current_span("work"):
            await shop.double.aenqueue(1)

    task: Any = shop.jobs.task(name="handler")(plain if kind == "plain" else coroutine)
    shop.run(task.enqueue())

    attempt, work, enqueue = shop.spans("attempt handler", "work", "enqueue double")
    assert (parent_of(work), parent_of(enqueue)) == (id_of(attempt), id_of(work))


def test_a_retry_is_a_sibling_of_the_attempt_that_failed(shop: Shop) -> None:
    @shop.jobs.task
    async def flaky(job: Job) -> None:
        if job.attempt == 1:
            raise ValueError("no such order")

    assert shop.run(flaky.enqueue()) == [State.COMPLETED]

    enqueue, first, second = shop.spans("enqueue flaky", "attempt flaky", "attempt flaky")
    assert parent_of(first) == parent_of(second) == id_of(enqueue)
    assert (first.status.is_ok, first.status.description) == (False, "ValueError: no such order")
    assert about(first, "tenure.outcome", "tenure.state", "error.type") == ["failed", "scheduled", "ValueError"]
    assert events(first) == ["exception"]
    assert about(second, "tenure.attempt", "tenure.failures", "tenure.outcome") == [2, 1, "completed"]


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("by", ["cancel", "timeout"])
def test_an_attempt_that_is_stopped_says_why(shop: Shop, kind: str, by: str) -> None:
    def plain(job: Job) -> None:
        shop.begun.set()
        while True:
            job.progress(0.5)

    async def coroutine(job: Job) -> None:
        shop.begun.set()
        await asyncio.sleep(3600)

    limit: dict[str, Any] = {"timeout": "50ms", "retry": 1} if by == "timeout" else {}
    task: Any = shop.jobs.task(name="handler", **limit)(plain if kind == "plain" else coroutine)
    handle = task.enqueue()
    with shop.jobs.worker():
        assert shop.begun.wait(30)
        if by == "cancel":
            handle.cancel("the order was withdrawn")
        until(lambda: shop.ended(handle), "it ends")

    (attempt,) = shop.spans("attempt handler")
    if by == "cancel":
        assert about(attempt, "tenure.outcome", "tenure.reason") == ["cancelled", "the order was withdrawn"]
        assert attempt.status.is_unset
    else:
        assert about(attempt, "tenure.outcome", "tenure.state") == ["failed", "dead"]
        assert attempt.status.description == "timed out after 50ms"
    asked = [event for event in attempt.events if event.name == "tenure.stop_requested"]
    assert [dict(event.attributes or {}) for event in asked] == [{"tenure.reason": by}]


@pytest.mark.parametrize("early", [True, False])
def test_with_a_codec_a_span_names_the_error_and_quotes_nothing(tmp_path: Path, early: bool) -> None:
    codec = AesSiv([AesSiv.new_key()])
    shop = Shop(tmp_path, codec if early else None)
    shop.jobs.codec = codec  # that of a Django project is known on first use, after `instrument`

    @shop.jobs.task(retry=1)
    async def buy(order: int) -> None:
        raise ValueError(f"no such order: {order}")

    with shop.jobs:
        assert shop.run(buy.enqueue(4711)) == [State.DEAD]

    (attempt,) = shop.spans("attempt buy")
    assert about(attempt, "tenure.outcome", "error.type") == ["failed", "ValueError"]
    assert "4711" not in attempt.to_json()


def test_an_attempt_that_loses_its_lease_is_an_error(shop: Shop) -> None:
    @shop.jobs.task
    def robbed(job: Job) -> None:
        if job.attempt == 1:
            store = shop.jobs.client().store
            store.declare_dead([row.identity.id for row in store.workers()])
            store.rescue(limit=1)

    handle = robbed.enqueue()
    with shop.jobs.worker():
        shop.spans("attempt robbed")
        until(lambda: shop.exported.get_finished_spans(), "its span")
    (attempt, *_) = (span for span in shop.exported.get_finished_spans() if span.name == "attempt robbed")
    assert about(attempt, "tenure.attempt", "error.type") == [1, "lease_lost"]
    assert not attempt.status.is_ok
    assert "tenure.lease_lost" in events(attempt)
    assert shop.ended(handle) is None


def test_what_is_neither_success_nor_failure_has_its_reason(shop: Shop) -> None:
    @shop.jobs.task
    def snoozes(job: Job) -> None:
        if job.attempt == 1:
            raise Snooze("50ms", "too early")
        raise Fail("no such order", final=True)

    assert shop.run(snoozes.enqueue()) == [State.DEAD]

    first, second = shop.spans("attempt snoozes", "attempt snoozes")
    assert about(first, "tenure.outcome", "tenure.state", "tenure.reason") == ["snoozed", "scheduled", "too early"]
    assert first.status.is_unset and events(first) == []
    assert about(second, "tenure.outcome", "tenure.state", "error.type") == ["failed", "dead", "Fail"]


def test_a_bulk_is_one_span_with_its_number(shop: Shop) -> None:
    handles = shop.jobs.enqueue_many(shop.double.bind(n) for n in range(3))
    shop.run(*handles)

    enqueue, *attempts = shop.spans("enqueue double", *["attempt double"] * 3)
    assert about(enqueue, "messaging.batch.message_count", "messaging.message.id", "tenure.created") == [3, None, 3]
    assert {parent_of(each) for each in attempts} == {id_of(enqueue)}


def test_jobs_of_several_tasks_and_queues_are_one_span_that_names_none(shop: Shop) -> None:
    @shop.jobs.task(queue="mail")
    def send() -> None: ...

    shop.jobs.enqueue_many([shop.double.bind(1), send.bind()])

    (enqueue,) = shop.spans("enqueue jobs")
    assert about(enqueue, "tenure.task", "messaging.destination.name", "messaging.batch.message_count") == [
        None,
        None,
        2,
    ]


def test_callers_that_share_a_write_have_a_trace_each(shop: Shop) -> None:
    async def request(n: int) -> JobHandle[int]:
        with shop.caller.start_as_current_span(f"request {n}"):
            return await shop.double.aenqueue(n)

    async def main() -> list[JobHandle[int]]:
        return await asyncio.gather(*(request(n) for n in range(3)))

    handles = asyncio.run(main())
    shop.run(*handles)

    requests = [shop.spans(f"request {n}")[0] for n in range(3)]
    attempts = shop.spans(*["attempt double"] * 3)
    of = {about(span, "tenure.job_id")[0]: trace_of(span) for span in attempts}
    assert [of[str(handle.id)] for handle in handles] == [trace_of(span) for span in requests]


def test_the_steps_of_a_flow_are_in_its_trace(shop: Shop) -> None:
    with shop.jobs.flow("sums") as flow:
        first = flow.add(shop.double.bind(1))
        second = flow.add(shop.double.bind(first.output))
    assert shop.run(second.handle) == [State.COMPLETED]

    enqueue, *attempts = shop.spans("enqueue double", "attempt double", "attempt double")
    assert {parent_of(each) for each in attempts} == {id_of(enqueue)}


def test_a_flow_that_was_made_before_is_no_error(shop: Shop) -> None:
    for _ in range(2):
        with shop.jobs.flow("sums", unique="day:7") as flow:
            flow.add(shop.double.bind(1))

    spans = shop.spans("enqueue double", "enqueue double")
    assert [about(each, "tenure.created") for each in spans] == [[1], [0]]
    assert [(each.status.is_ok, events(each)) for each in spans] == [(True, [])] * 2


def test_jobs_that_a_handler_gathers_are_children_of_its_attempt(shop: Shop) -> None:
    @shop.jobs.task
    async def total(job: Job) -> int:
        return sum(await job.agather("parts", lambda: [shop.double.bind(1), shop.double.bind(2)]))

    assert shop.run(total.enqueue()) == [State.COMPLETED]

    waited, completed, enqueue = shop.spans("attempt total", "attempt total", "enqueue double")
    assert about(waited, "tenure.outcome", "tenure.state") == ["suspended", "waiting"]
    assert about(completed, "tenure.outcome") == ["completed"]
    assert parent_of(enqueue) == id_of(waited)


def test_a_job_that_is_there_already_keeps_its_trace(shop: Shop) -> None:
    task = shop.double.using(unique="one")
    handle, again = task.enqueue(1), task.enqueue(1)
    shop.run(handle)

    first, second, attempt = shop.spans("enqueue double", "enqueue double", "attempt double")
    assert again.id == handle.id
    assert about(second, "tenure.created", "tenure.job_id") == [0, str(handle.id)]
    assert parent_of(attempt) == id_of(first)


def test_an_enqueue_that_fails_is_an_error(shop: Shop) -> None:
    with shop.jobs.transaction(), pytest.raises(TenureError, match="must join"):
        shop.double.enqueue(1)

    (enqueue,) = shop.spans("enqueue double")
    assert not enqueue.status.is_ok and events(enqueue) == ["exception"]
    assert about(enqueue, "error.type") == ["StoreError"]


def test_with_links_each_attempt_begins_a_trace(shop: Shop) -> None:
    instrument(shop.jobs, links=True, tracer_provider=shop.provider)
    shop.run(shop.double.enqueue(1))

    enqueue, attempt = shop.spans("enqueue double", "attempt double")
    assert trace_of(attempt) != trace_of(enqueue) and attempt.parent is None
    assert [link.context.span_id for link in attempt.links] == [id_of(enqueue)]


def test_garbage_in_place_of_a_context_is_ignored(shop: Shop) -> None:
    assert set(shop.run(*shop.put(*GARBAGE))) == {State.COMPLETED}

    attempts = shop.spans(*["attempt double"] * len(GARBAGE))
    assert {parent_of(each) for each in attempts} == {None}
    assert len({trace_of(each) for each in attempts}) == len(GARBAGE)


def test_reserved_names_are_neither_taken_nor_shown(shop: Shop) -> None:
    seen: list[dict[str, str]] = []

    @shop.jobs.task
    def passes_on(job: Job) -> None:
        seen.append(dict(job.meta))
        shop.double.using(meta=job.meta).enqueue(1)

    with pytest.raises(InvalidOption, match=r"'tenure\.traceparent' is a name of Tenure's own"):
        shop.double.using(meta={"tenure.traceparent": "mine"})
    assert shop.run(passes_on.using(meta={"traceparent": "mine"}).enqueue()) == [State.COMPLETED]

    assert seen == [{"traceparent": "mine"}]


def test_what_is_not_sampled_is_not_sampled_in_the_worker(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    off = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    with shop.jobs:
        instrument(shop.jobs, tracer_provider=off)
        handle = shop.double.enqueue(1)
        instrument(shop.jobs, tracer_provider=shop.provider)
        shop.run(handle)

    assert shop.exported.get_finished_spans() == ()


class Broken(Sampler):
    def should_sample(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("a sampler of the program's own")

    def get_description(self) -> str:
        return "broken"


class BrokenEnd(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("a processor of the program's own")


@pytest.mark.parametrize("how", ["sampler", "processor"])
def test_an_sdk_that_raises_is_logged_once_and_harms_no_job(
    shop: Shop, how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(implementation, "_complained", set[str]())
    provider = TracerProvider(sampler=Broken(), shutdown_on_exit=False) if how == "sampler" else shop.provider
    if how == "processor":
        shop.provider.add_span_processor(BrokenEnd())
    instrument(shop.jobs, tracer_provider=provider)

    with caplog.at_level(logging.WARNING, "tenure.otel"):
        assert shop.run(*(shop.double.enqueue(n) for n in range(3))) == [State.COMPLETED] * 3

    assert [record.getMessage() for record in caplog.records if record.name == "tenure.otel"] == [
        f"OpenTelemetry failed, and spans are missing or incomplete: RuntimeError: a {how} of the program's own"
    ]


def test_jobs_of_a_test_are_traced_too(shop: Shop) -> None:
    with shop.jobs.testing() as queue:
        shop.double.enqueue(1)
        queue.drain()

    enqueue, attempt = shop.spans("enqueue double", "attempt double")
    assert parent_of(attempt) == id_of(enqueue)
    assert about(attempt, "tenure.outcome") == ["completed"]


def test_without_an_sdk_nothing_is_stored_and_without_instrument_nothing_is_imported(tmp_path: Path) -> None:
    script = """
import sys
from tenure import Tenure
jobs = Tenure("sqlite:///tenure.db")
@jobs.task
def double(n: int) -> int: return 2 * n
with jobs.worker():
    assert double.enqueue(1).result("30s") == 2
assert not [name for name in sys.modules if name.startswith("opentelemetry")], "it was imported"
from tenure.otel import instrument
instrument(jobs)
handle = double.enqueue(2)
assert jobs.client().store.get(str(handle.id)).meta == {}
with jobs.worker():
    assert handle.result("30s") == 4
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environ, cwd=tmp_path, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")


def test_instrument_says_what_it_expects() -> None:
    with pytest.raises(InvalidOption, match=r"expected an app, jobs = Tenure\(\), got 'shop'"):
        instrument("shop")  # type: ignore[arg-type]


def test_a_rescued_attempt_of_another_process_is_in_the_trace(shop: Shop) -> None:
    handle = shop.double.enqueue(1)
    store = shop.jobs.client().store
    gone = identity("worker", ("default",), ("double",), 1, 60.0, pid=2**22 - 1, token="gone")
    store.register(gone)
    store.claim(gone.id, {"default": 1}, 1)
    store.declare_dead([gone.id])
    assert shop.run(handle) == [State.COMPLETED]

    enqueue, died, again = shop.spans("enqueue double", "attempt double", "attempt double")
    assert parent_of(died) == parent_of(again) == id_of(enqueue)
    assert about(died, "tenure.attempt", "tenure.outcome", "tenure.worker_id") == [1, "crashed", gone.id]
    assert not died.status.is_ok and events(died) == ["tenure.rescue"]
    assert about(again, "tenure.attempt", "tenure.outcome") == [2, "completed"]


def test_an_attempt_that_timed_out_and_was_killed_is_an_error_in_the_trace(shop: Shop) -> None:
    handle = shop.double.enqueue(1)
    store = shop.jobs.client().store
    gone = identity("worker", ("default",), ("double",), 1, 60.0, pid=2**22 - 1, token="gone")
    store.register(gone)
    store.claim(gone.id, {"default": 1}, 1)
    assert shop.jobs.tracing is not None
    (rescued,) = store.settle(gone.id, {str(handle.id): Failed("timed out after 30s")}, Released("drained"))
    job = store.get(rescued.id)
    assert job is not None

    shop.jobs.tracing.rescued(rescued, job, store.attempts(job.id)[0])

    (died,) = shop.spans("attempt double")
    assert about(died, "tenure.outcome", "error.type") == ["failed", "failed"]
    assert (died.status.is_ok, died.status.description) == (False, "timed out after 30s")


# ── Metrics ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def points(reader: InMemoryMetricReader) -> dict[str, dict[tuple[str, ...], Any]]:
    """The value of each metric, or the count of a histogram, by the values of its labels."""
    data = reader.get_metrics_data()
    found: dict[str, dict[tuple[str, ...], Any]] = {}
    for metric in [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []:
        found[metric.name] = {
            tuple(str(value) for value in (point.attributes or {}).values()): getattr(point, "value", None)
            if not isinstance(point, HistogramDataPoint)
            else point.count
            for point in metric.data.data_points
        }
    return found


def test_metrics_have_the_names_and_values_of_the_page(shop: Shop) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    instrument(shop.jobs, tracer_provider=shop.provider, meter_provider=provider)
    observe_store(shop.jobs, meter_provider=provider)
    only = shop.jobs.limit("only:{n}", concurrency=1)
    shop.run(*(shop.double.enqueue(n) for n in range(3)))
    shop.double.using(queue="other").enqueue(1)
    shop.double.using(limit=only).enqueue(1)
    shop.jobs.client().store.admit()  # it looks at the key

    found = points(reader)
    assert found["tenure_claims_total"] == {("default",): 3}
    assert found["tenure_outcomes_total"] == {("double", "completed"): 3}
    assert found["tenure_attempt_seconds"] == {("double",): 3}
    assert found["tenure_jobs"]["completed",] == 3
    assert found["tenure_queue_jobs"]["other", "queued"] == 1
    assert set(found) <= set(METRICS)
    assert {each.name for each in METRICS.values() if each.source == "store"} <= set(found)
    provider.shutdown()


def test_what_a_supervisor_has_taken_still_counts() -> None:
    tally = Tally()
    tally.count("claims", "default")
    tally.take()
    tally.count("claims", "default")

    assert tally.counted() == {("claims", "default"): 2}
    assert tally.take()["counts"] == [["claims", "default", 1]]
