"""A Litestar app with a worker on its own loop, a nightly report, and its progress as Server-Sent Events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import UUID

from litestar import Litestar, get, post
from litestar.exceptions import NotFoundException
from litestar.response import ServerSentEvent, ServerSentEventMessage

from tenure import Job, Tenure
from tenure.errors import UnknownJob

jobs = Tenure()  # sqlite:///tenure.db in this folder; TENURE_URL changes it


@jobs.task
async def report(job: Job[int], pages: int) -> str:
    for page in range(job.checkpoint or 0, pages):  # after a crash it goes on with the page that was next
        await asyncio.sleep(0.1)
        job.progress((page + 1) / pages, message=f"page {page + 1}", checkpoint=page + 1)
    return f"{pages} pages"


jobs.schedule("0 3 * * *", tz="Europe/Paris", name="nightly-report")(report.bind(5))


@asynccontextmanager
async def worker(app: Litestar) -> AsyncGenerator[None]:
    async with jobs.worker():  # fires the schedule, too
        yield


@post("/reports/{pages:int}")
async def ask(pages: int) -> dict[str, str]:
    return {"job": str((await report.aenqueue(pages)).id)}


@get("/reports/{job:uuid}")
async def events(job: UUID) -> ServerSentEvent:
    handle = jobs.handle(job)
    try:
        await handle.astatus()
    except UnknownJob as error:
        raise NotFoundException("no such report") from error

    async def messages() -> AsyncGenerator[ServerSentEventMessage]:
        async for status in handle.updates():  # ends when the job has ended
            yield ServerSentEventMessage(event=status.state, data=f"{status.progress or 0:.0%}")

    return ServerSentEvent(messages())


app = Litestar([ask, events], lifespan=[worker])
