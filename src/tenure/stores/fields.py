"""Columns and row mappings derived from the values in `ports`, so that each field of a job or worker is defined once.

A SQL store keeps each field in a column of the same name, and names the exceptions. The columns of a statement and the
mapping of its rows thus share one order, that of the fields, and a new property of a job is one field and one column.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar, cast

import msgspec

from tenure.core.lifecycle import LIVE, Charges, State
from tenure.core.limits import Key
from tenure.ports import Claimed, Draft, EndedJob, JobView, QueueView, Status, Update, WorkerIdentity, WorkerView
from tenure.stores.rules import Beside, json_of

T = TypeVar("T")
Decoders = Mapping[str, Callable[[Any], Any]]  #: the converter of a field's value, by the field's annotation

#: The keys of a job, from the column of `limits_text`. Most jobs have the keys of many others.
keys_of = lru_cache(4096)(msgspec.json.Decoder(tuple[Key, ...]).decode)

#: The types that a row holds as text, by the annotation of their fields.
_TEXTS: Decoders = {
    "State": State,
    "Mapping[str, str]": json.loads,
    "tuple[str, ...]": lambda text: tuple(json.loads(text)),
    "tuple[Key, ...]": keys_of,
}


def names_of(kind: type[Any]) -> tuple[str, ...]:
    return getattr(kind, "__struct_fields__", None) or tuple(each.name for each in fields(kind))


def listed(names: Iterable[str], **others: str) -> str:
    """Columns for a SELECT, an INSERT or VALUES. `others`: the expressions of fields that are not plain columns."""
    return ", ".join(others.get(name, name) for name in names)


def reader(kind: type[T], decoders: Decoders | None = None) -> Callable[[Sequence[Any]], T]:
    """A function that builds a value from a row of all its fields. `decoders` convert the driver's types to ours."""
    known = {**_TEXTS, **(decoders or {})}
    names = names_of(kind)
    decoded = [
        (each.name, known[annotation])
        for each in fields(cast(Any, kind))
        if (annotation := str(each.type).removesuffix(" | None")) in known
    ]

    def read(row: Sequence[Any]) -> T:
        values = dict(zip(names, row, strict=True))
        for name, decode in decoded:
            value = values[name]
            if value is not None:
                values[name] = decode(value)
        return kind(**values)

    return read


# ── Jobs ──

VIEW = names_of(JobView)
STATUS = names_of(Status)
CLAIMED = Claimed._fields
CHARGED = tuple(
    "cancel_reason" if name == "cancel_asked" else name for name in Charges._fields if name not in Beside._fields
)
LIMITS = "coalesce(limits, '[]')"
LIMITED = "limits IS NOT NULL"
COMPLETED_BY = "CASE WHEN state = 'completed' THEN last_worker_id END"

#: The fields of a draft that are stored unchanged; the store turns the others into times.
_KEPT = tuple(name for name in names_of(Draft) if name not in ("delay", "run_at", "expires", "links", "limits"))
kept = attrgetter(*_KEPT)
#: The columns of a new job: those fields, and what the store adds.
NEW = (
    *("unique_key" if name == "unique" else name for name in _KEPT),
    "state",
    "run_at",
    "expires_at",
    "enqueued_at",
    "solo",
)


def update_reader(decoders: Decoders | None = None) -> Callable[[Sequence[Any]], Update]:
    """For rows of id, mark, result, and the columns of the status, which are all NULL if there is no such job."""
    status = reader(Status, decoders)
    return lambda row: Update(row[0], row[1], None if row[3] is None else status(row[3:]), row[2])


# ── Workers ──

IDENTITY = names_of(WorkerIdentity)
_identity = attrgetter(*IDENTITY)


def identity_row(worker: WorkerIdentity) -> list[Any]:
    values: tuple[object, ...] = _identity(worker)
    return [value if isinstance(value, str | int | float) else json_of(value) for value in values]


def worker_reader(decoders: Decoders | None = None) -> Callable[[Sequence[Any]], WorkerView]:
    """For rows with the columns of the identity, followed by those of the view."""
    identity, view, end = reader(WorkerIdentity), reader(WorkerView, decoders), len(IDENTITY)
    return lambda row: view((identity(row[:end]), *row[end:]))


# ── Queues ──


def ended_job(job_id: str, task: str, state: str, stumbled: bool, wait: float | None, run: float | None) -> EndedJob:
    """Only a job that completed has times; a clock that was set back makes none negative."""
    if state != State.COMPLETED or wait is None or run is None:
        wait = run = None
    else:
        wait, run = max(wait, 0.0), max(run, 0.0)
    return EndedJob(job_id, task, State(state), stumbled, wait, run)


def queue_views(
    counts: Mapping[str, Mapping[State, int]], paused: Mapping[str, Any], oldest: Mapping[str, float | None]
) -> list[QueueView]:
    """A view of every queue that has a live job or is paused."""
    return [
        QueueView(
            name=name,
            paused_at=paused.get(name),
            counts={state: counts.get(name, {}).get(state, 0) for state in State if state in LIVE},
            oldest_queued=oldest.get(name),
        )
        for name in sorted({*counts, *paused})
    ]
