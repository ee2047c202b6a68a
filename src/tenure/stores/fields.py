"""The facts of jobs, attempts and workers are written once, in the values of the ports: this makes columns of them.

A SQL store keeps each field in a column of the same name, and says which differ. So the names of a statement and the
mapping of its rows have one order, that of the fields, and a new fact of a job is one field and one column.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar, cast

from tenure.core.lifecycle import LIVE, Charges, State
from tenure.ports import Claimed, Draft, JobView, QueueView, WorkerIdentity, WorkerView
from tenure.stores.rules import json_of

T = TypeVar("T")
Decoders = Mapping[str, Callable[[Any], Any]]  #: by the annotation of a field: what makes its value

#: Of a value's fields those that a row has as text, by the fields' annotations.
_TEXTS: Decoders = {
    "State": State,
    "Mapping[str, str]": json.loads,
    "tuple[str, ...]": lambda text: tuple(json.loads(text)),
}


def names_of(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def listed(names: Iterable[str], **others: str) -> str:
    """Columns for a SELECT, an INSERT or VALUES. `others`: the expressions of fields that are no plain column."""
    return ", ".join(others.get(name, name) for name in names)


def reader(kind: type[T], decoders: Decoders | None = None) -> Callable[[Sequence[Any]], T]:
    """What makes a value of a row of all its fields. `decoders`: how what the driver gives becomes ours."""
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
CLAIMED = Claimed._fields
CHARGED = tuple("cancel_reason" if name == "cancel_asked" else name for name in Charges._fields)
COMPLETED_BY = "CASE WHEN state = 'completed' THEN last_worker_id END"

#: A draft's fields that are stored as they are; of the others the store makes times.
_KEPT = tuple(name for name in names_of(Draft) if name not in ("delay", "run_at", "expires"))
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


# ── Workers ──

IDENTITY = names_of(WorkerIdentity)
_identity = attrgetter(*IDENTITY)


def identity_row(worker: WorkerIdentity) -> list[Any]:
    values: tuple[object, ...] = _identity(worker)
    return [value if isinstance(value, str | int | float) else json_of(value) for value in values]


def worker_reader(decoders: Decoders | None = None) -> Callable[[Sequence[Any]], WorkerView]:
    """For rows of the identity's columns and then those of the view."""
    identity, view, end = reader(WorkerIdentity), reader(WorkerView, decoders), len(IDENTITY)
    return lambda row: view((identity(row[:end]), *row[end:]))


# ── Queues ──


def queue_views(
    counts: Mapping[str, Mapping[State, int]], paused: Mapping[str, Any], oldest: Mapping[str, float | None]
) -> list[QueueView]:
    """Of every queue that holds a live job or is paused."""
    return [
        QueueView(
            name=name,
            paused_at=paused.get(name),
            counts={state: counts.get(name, {}).get(state, 0) for state in State if state in LIVE},
            oldest_queued=oldest.get(name),
        )
        for name in sorted({*counts, *paused})
    ]
