"""The app of the tests of traces, with an SDK that exports by OTLP. It runs in worker processes and in a web server."""

from __future__ import annotations

from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from shop import SOON, note, until_told  # type: ignore[import-not-found]

from tenure import Job, Tenure
from tenure.otel import instrument

provider = TracerProvider()  # OTEL_SERVICE_NAME
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))  # OTEL_EXPORTER_OTLP_ENDPOINT
trace.set_tracer_provider(provider)

jobs = Tenure(retry=SOON)
instrument(jobs)
web = FastAPI()


@jobs.task
async def charge(job: Job, order: int) -> str:
    """Its first attempt waits to be killed, the next one until it is told to go on."""
    note(job, "begin")
    await until_told()
    with trace.get_tracer("bank").start_as_current_span("pay"):
        note(job, "paid")
    return str((await receipt.aenqueue(order)).id)


@jobs.task
def receipt(job: Job, order: int) -> None:
    note(job, "sent")


@jobs.task
async def doomed(job: Job) -> None:
    note(job, "begin")
    await until_told()


@jobs.task
def plain(job: Job) -> None:
    note(job, "ran")


@web.post("/orders/{order}")
async def buy(order: int) -> str:
    return str((await charge.aenqueue(order)).id)
