"""Models of the endpoints kept from the original queue."""

from __future__ import annotations

from typing import Annotated, Self
from uuid import UUID

from pydantic import Field

from tenure.ports import JobView
from tenure.web.models.values import At, Json, Length, Model, Name, Payloads, Stored, Text, read, shown


class PlainStats(Model):
    active: int = Field(description="Due and waiting.")
    delayed: int = Field(description="Due later, or waiting for other jobs or a signal.")
    processing: int
    completed: int
    dead: int
    cancelled: int


class DeadLetter(Model):
    id: UUID
    name: str = Field(description="The task.")
    queue: str
    payloads: Payloads
    payload: Stored = Field(description="The arguments by name, secrets redacted; null if payloads are hidden.")
    attempts: int
    failed_at: At | None
    error: str | None

    @classmethod
    def of(cls, job: JobView, payloads: bool) -> Self:
        return cls.like(
            job,
            name=job.task,
            payloads=shown(payloads),
            payload=read(job.payload, payloads),
            attempts=job.attempt,
            failed_at=job.ended_at,
        )


class PlainJob(Model):
    """`name` and `type` are the same: the task. One of them is needed."""

    name: Text | None = Field(None, examples=["greet"])
    type: Text | None = None
    payload: dict[str, Json] = Field({}, description="Arguments by name.")
    queue: Name | None = Field(None, description="A queue other than the task's own.")
    delay: Length | Annotated[float, Field(ge=0, le=3_000_000_000)] | None = Field(
        None, description="Run it after this delay: 5s, or a number of seconds."
    )


class Flushed(Model):
    deleted: int
    left: int = Field(description="Running jobs, which are not deleted.")
