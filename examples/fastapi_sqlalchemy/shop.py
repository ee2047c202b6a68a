"""Orders and their jobs in one transaction, a worker on the app's own loop, progress as Server-Sent Events."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import UUID

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tenure import Job, Tenure
from tenure.errors import UnknownJob

URL = os.environ.get("DATABASE_URL", "postgresql://localhost/shop")
jobs = Tenure(URL)
engine = create_async_engine(URL.replace("postgresql://", "postgresql+asyncpg://", 1))
Session = async_sessionmaker(engine)


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    state: Mapped[str] = mapped_column(default="ordered")


@jobs.task
async def pack(job: Job, order_id: int) -> None:
    for parcel in range(1, 5):
        await asyncio.sleep(0.2)
        job.progress(parcel / 4, message=f"parcel {parcel} of 4")
    await job.aflush()  # progress is stored within a second, and this job ends sooner
    async with Session.begin() as session:
        (await session.get_one(Order, order_id)).state = "packed"
        await job.afinish(tx=session)  # the order is packed and the job completed: both, or neither


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with jobs.worker():  # on this loop, so that its tasks share the engine
        yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{item}")
async def buy(item: str) -> dict[str, str]:
    async with Session.begin() as session:
        session.add(order := Order(item=item))
        await session.flush()
        handle = await pack.using(tx=session).aenqueue(order.id)
        if item == "unicorn":
            raise HTTPException(409, "sold out")  # rolls back: there is neither an order nor a job
        return {"order": str(order.id), "job": str(handle.id)}


@app.get("/orders/{order_id}")
async def look(order_id: int) -> dict[str, str]:
    async with Session() as session:
        if (order := await session.get(Order, order_id)) is None:
            raise HTTPException(404, "no such order")
        return {"item": order.item, "state": order.state}


@app.get("/jobs/{job_id}/events")
async def events(job_id: UUID) -> StreamingResponse:
    handle = jobs.handle(job_id)
    try:
        await handle.astatus()
    except UnknownJob as error:
        raise HTTPException(404, "no such job") from error

    async def stream() -> AsyncGenerator[str]:
        async for status in handle.updates():  # ends when the job has ended
            yield f"data: {json.dumps({'state': status.state, 'progress': status.progress})}\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")
