"""Storing new jobs: one, a batch, or enough of them to be worth a COPY."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

from tenure.core.lifecycle import State
from tenure.errors import StoreError
from tenure.ports import BATCH_BYTES, Draft, Enqueued
from tenure.stores.fields import NEW, listed
from tenure.stores.postgres.links import (
    ASK,
    GATHERERS,
    KNOWN,
    MAKE,
    MAKE_SOON,
    WAITS,
    add_flows,
    link,
    linked,
    make_once,
    unmake,
)
from tenure.stores.postgres.server import Steps
from tenure.stores.rules import check_links, is_id, limits_text, no_parent

COPY_FROM = 50  #: from this many drafts on, COPY is worth it
COPY_AT_ONCE = 500
_ENQUEUE_TRIES = 5
_MOST_AT_ONCE = 5000  #: drafts in one statement

_COLUMN = {"str": "text", "int": "integer", "float": "float8", "bool": "boolean", "datetime": "timestamptz"}
_TYPES = {
    name: _COLUMN[kind.removesuffix(" | None")]
    for name, kind in Draft.__annotations__.items()
    if name not in ("links", "limits")
} | {"id": "uuid"}
_RECORD = ", ".join(f'"{name}" {kind}' for name, kind in _TYPES.items())
_STATE = "CASE WHEN due > @now THEN 'scheduled' ELSE 'queued' END"

_GIVEN = listed(
    NEW,
    unique_key='"unique"',
    state=_STATE,
    run_at="due",
    expires_at="due + expires * interval '1 second'",
    enqueued_at="@now",
    solo="isolated",
)
_ENQUEUE = f"""
    WITH given AS MATERIALIZED (
        SELECT *, coalesce(@now + delay * interval '1 second', run_at, @now) AS due{{waits}}
        FROM ROWS FROM (json_to_recordset(:p::json) AS ({_RECORD}{{record}})) WITH ORDINALITY AS d
    ), stored AS (
        INSERT INTO @.jobs ({listed(NEW)}{{columns}}) SELECT {{given}} FROM given ORDER BY ordinality
        ON CONFLICT DO NOTHING RETURNING id, state{{parked}}
    ){{asked}}
    SELECT id::text, state, pg_current_xact_id()::text FROM stored"""
_PLAIN = {"record": "", "columns": "", "given": _GIVEN, "parked": "", "asked": ""}
ENQUEUE = _ENQUEUE.format(waits="", **_PLAIN)

#: The same where the statement is a transaction of the store's own: StoreBusy after a moment.
ENQUEUE_SOON = _ENQUEUE.format(waits=WAITS, **_PLAIN)

_PARKED = "NOT waiting AND keys IS NOT NULL AND due <= @now"
_LINKED = {
    "record": ", waiting boolean, linked boolean, flow uuid, keys text",
    "columns": ", linked, flow, limits, parked, due_at, wait_until",
    "given": _GIVEN.replace(_STATE, f"CASE WHEN waiting OR {_PARKED} THEN 'waiting' ELSE {_STATE} END")
    + f""", linked, flow, keys, CASE WHEN {_PARKED} THEN keys::json -> 0 ->> 0 END, CASE WHEN {_PARKED} THEN due END,
            CASE WHEN {_PARKED} THEN due + expires * interval '1 second' END""",
    "parked": ", limits, parked",
    "asked": """, asked AS (
        INSERT INTO @.key_asks (key, limit_name)
        SELECT DISTINCT parked, limits::json -> 0 ->> 1 FROM stored WHERE parked IS NOT NULL)""",
}
#: The same for drafts with links or limits, each of which says whether it waits, and whether anything waits for it.
ENQUEUE_LINKED = _ENQUEUE.format(waits="", **_LINKED)
ENQUEUE_LINKED_SOON = _ENQUEUE.format(waits=WAITS, **_LINKED)

_ONE = {name: f"%({name})s::{kind}" for name, kind in _TYPES.items()}
_GIVEN_ONE = listed(
    NEW,
    **_ONE
    | {
        "unique_key": _ONE["unique"],
        "state": _STATE,
        "run_at": "due",
        "expires_at": f"due + {_ONE['expires']} * interval '1 second'",
        "enqueued_at": "@now",
        "solo": _ONE["isolated"],
    },
)
#: The common case of a single job, without the cost of unpacking a batch.
ENQUEUE_ONE = f"""
    INSERT INTO @.jobs ({listed(NEW)}) SELECT {_GIVEN_ONE}
    FROM (SELECT coalesce(@now + {_ONE["delay"]} * interval '1 second', {_ONE["run_at"]}, @now) AS due{WAITS}) AS d
    ON CONFLICT DO NOTHING RETURNING state"""

#: The existing job where an insert did nothing: the same id, else the live holder of the unique key.
STANDING = """
    SELECT d.ordinality, j.id::text, j.state
    FROM ROWS FROM (json_to_recordset(:p::json) AS (id uuid, task text, "unique" text)) WITH ORDINALITY AS d
    CROSS JOIN LATERAL (
        SELECT id, state FROM @.jobs WHERE id = d.id
        UNION ALL
        SELECT id, state FROM @.jobs WHERE task = d.task AND unique_key = d."unique"
            AND state IN ('waiting', 'scheduled', 'queued', 'processing')
        LIMIT 1) AS j"""

#: The fields that jobs of one batch most often share, in the order of COPY's columns.
_SAME = (
    "task",
    "queue",
    "priority",
    "isolated",
    "max_failures",
    "max_crashes",
    "retry_base",
    "retry_cap",
    "timeout",
    "stale_after",
)
_same = attrgetter(*_SAME)
COPY = f"""
    COPY @.jobs (id, state, {listed(_SAME[:3])}, run_at, solo, {listed(_SAME[3:])}, enqueued_at, expires_at, meta,
        payload) FROM STDIN"""


def facts_of(draft: Draft) -> dict[str, Any]:
    """The parameters of `ENQUEUE_ONE`."""
    return {name: getattr(draft, name) for name in _TYPES}


def parts(drafts: Sequence[Draft]) -> list[Sequence[Draft]]:
    """Few enough for one statement each: the server answers nothing while it works on one."""
    found: list[Sequence[Draft]] = []
    start = size = 0
    for n, draft in enumerate(drafts):
        size += len(draft.payload) + len(draft.meta)
        if n > start and (n - start == _MOST_AT_ONCE or size > BATCH_BYTES):
            found.append(drafts[start:n])
            start, size = n, len(draft.payload) + len(draft.meta)
    return [*found, drafts[start:]]


def enqueue_steps(drafts: Sequence[Draft], *, soon: bool = False) -> Steps[tuple[list[Enqueued], str]]:
    """Insert, then read the existing job where nothing was inserted; repeat for jobs that have ended meanwhile.

    Also returns the id of the transaction, if anything was inserted. `soon`: StoreBusy after a moment, where another
    open transaction holds a key. Drafts with links need a transaction.
    """
    if any(draft.links or draft.limits for draft in drafts):
        make, enqueue = (MAKE_SOON, ENQUEUE_LINKED_SOON) if soon else (MAKE, ENQUEUE_LINKED)
        return (yield from _linked_steps(drafts, make, enqueue))
    return (yield from _stored_steps(drafts, ENQUEUE_SOON if soon else ENQUEUE))


def _linked_steps(drafts: Sequence[Draft], make: str, enqueue: str) -> Steps[tuple[list[Enqueued], str]]:
    needed = check_links(drafts)
    made = yield from make_once(drafts, make)
    unknown = needed - {row[0] for row in (yield KNOWN, [each for each in needed if is_id(each)])} if needed else needed
    if unknown:
        yield from unmake(made)
        raise no_parent(min(unknown))
    answers, xid = yield from _stored_steps(drafts, enqueue, Marks(drafts))
    edges, asks, flows = linked(drafts, answers)
    if gatherers := {draft.links.gatherer for draft in drafts if draft.links and draft.links.gatherer}:
        yield GATHERERS, sorted(gatherers)
    yield from link(list(edges.values()))
    yield from add_flows(flows)
    stored = {draft.links.flow for draft, answer in zip(drafts, answers, strict=True) if draft.links and answer.created}
    yield from unmake(made - stored)  # other jobs stand for all of theirs
    if asks:
        yield ASK, sorted(asks)
    return answers, xid


class Marks:
    """What the rows of new jobs say of their links and limits."""

    def __init__(self, drafts: Sequence[Draft]) -> None:
        given = [draft.links for draft in drafts if draft.links]
        self._parents = {edge.parent for links in given for edge in links.after}

    def of(self, draft: Draft) -> dict[str, Any]:
        after, gatherer, flow = (draft.links.after, draft.links.gatherer, draft.links.flow) if draft.links else _BARE
        linked = bool(after) or gatherer is not None or draft.id in self._parents
        return {
            **facts_of(draft),
            "waiting": bool(after),
            "linked": linked or None,
            "flow": flow,
            "keys": limits_text(draft.limits),
        }


_BARE: tuple[tuple[Any, ...], None, None] = ((), None, None)


def _stored_steps(
    drafts: Sequence[Draft], enqueue: str, marks: Marks | None = None
) -> Steps[tuple[list[Enqueued], str]]:
    answers: list[Enqueued] = []
    xid = ""
    for part in parts(drafts):
        some, inserted = yield from _enqueue_part(part, enqueue, marks)
        answers += some
        xid = xid or inserted
    return answers, xid


def _enqueue_part(drafts: Sequence[Draft], enqueue: str, marks: Marks | None) -> Steps[tuple[list[Enqueued], str]]:
    answers: dict[int, Enqueued] = {}
    xid = ""
    for _ in range(_ENQUEUE_TRIES):
        missing = [n for n in range(len(drafts)) if n not in answers]
        stored: dict[str, str] = {}
        given: list[Any] = [drafts[n] if marks is None else marks.of(drafts[n]) for n in missing]
        for job_id, state, xid in (yield enqueue, given):  # noqa: B007
            stored[job_id] = state
        for n in missing:
            state = stored.pop(drafts[n].id, None)  # the same id twice in a batch is created once
            if state is not None:
                answers[n] = Enqueued(drafts[n].id, True, State(state))
        missing = [n for n in missing if n not in answers]
        if missing:
            asked = [{"id": drafts[n].id, "task": drafts[n].task, "unique": drafts[n].unique} for n in missing]
            for place, job_id, state in (yield STANDING, asked):
                answers[missing[place - 1]] = Enqueued(job_id, False, State(state))
        if len(answers) == len(drafts):
            return [answers[n] for n in range(len(drafts))], xid
    raise StoreError("a unique key changed its holder faster than the holder could be read; enqueue again")


_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"})


def lines(drafts: Sequence[Draft], now: datetime) -> tuple[list[str], list[Enqueued]]:
    """The COPY text of new jobs, and the answers if it succeeds."""
    at, found, answers = now.isoformat(), list[str](), list[Enqueued]()
    commons: dict[tuple[Any, ...], tuple[str, str]] = {}
    for draft in drafts:
        if draft.delay is None and draft.run_at is None:
            due, run_at, state = now, at, State.QUEUED
        else:
            due = now + timedelta(seconds=draft.delay) if draft.delay is not None else draft.run_at or now
            run_at, state = due.isoformat(), State.SCHEDULED if due > now else State.QUEUED
        same = _same(draft)
        common = commons.get(same)
        if common is None:
            options = [draft.isolated, *same[3:]]
            common = commons[same] = (
                f"\t{_escaped(draft.task)}\t{_escaped(draft.queue)}\t{draft.priority}\t",
                "\t" + "\t".join("\\N" if each is None else str(each) for each in options) + f"\t{at}\t",
            )
        expires = "\\N" if draft.expires is None else (due + timedelta(seconds=draft.expires)).isoformat()
        payload = (
            draft.payload if "\\" not in draft.payload and draft.payload.isprintable() else _escaped(draft.payload)
        )
        found.append(f"{draft.id}\t{state}{common[0]}{run_at}{common[1]}{expires}\t{_escaped(draft.meta)}\t{payload}\n")
        answers.append(Enqueued(draft.id, True, state))
    return found, answers


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)
