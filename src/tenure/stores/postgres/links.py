"""What jobs wait for, as it is stored: with new jobs, or with the end of an attempt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from tenure.core.lifecycle import Lease, Outcome, Suspended
from tenure.ports import Draft, Enqueued
from tenure.stores.postgres.server import Steps
from tenure.stores.rules import flow_made, flows_made_once, stricter, waits_for_itself

EDGES_AT_ONCE = 20_000
_GATHERING = 0x54454E57  # next to the lock of places

#: Locked against a delete and a prune, which don't see edges that are not committed yet; not against claims and ends.
KNOWN = """
    SELECT id::text FROM @.jobs WHERE id IN (SELECT json_array_elements_text(:p::json)::uuid)
    ORDER BY id FOR KEY SHARE"""

#: Edges in the order given, after those that the child has; each parent once. An edge from a job that is stored with
#: its child needs no look: that job's row is marked already, so its end will store an ask.
LINK = """
    WITH given AS MATERIALIZED (
        SELECT * FROM ROWS FROM (json_to_recordset(:p::json)
            AS (child uuid, parent uuid, "until" text, mine boolean, armed boolean)) WITH ORDINALITY
            AS g (child, parent, "until", mine, armed, n)
        WHERE NOT EXISTS (SELECT FROM @.edges AS e WHERE e.parent = g.parent AND e.child = g.child)
    )
    INSERT INTO @.edges (child, parent, place, "until", mine, state)
    SELECT g.child, g.parent, coalesce((SELECT max(place) FROM @.edges AS e WHERE e.child = g.child), -1)
            + row_number() OVER (PARTITION BY g.child ORDER BY g.n),
        g."until", g.mine, CASE WHEN g.armed THEN 'armed' ELSE 'new' END
    FROM given AS g ORDER BY g.parent, g.child
    ON CONFLICT DO NOTHING RETURNING place"""

#: Calls that add edges to one gatherer do so one after the other: each reads the places of the one before. A statement
#: of its own, since LINK reads what was committed when it began.
GATHERERS = f"""
    SELECT pg_advisory_xact_lock({_GATHERING}, hashtext(id))::text
    FROM (SELECT json_array_elements_text(:p::json) AS id ORDER BY id) AS g"""

#: Edges that were there keep their places, and the stricter need holds. A closed edge is new again if its parent
#: has not ended as is now asked: the next look reads the parent under its lock. Joined by the edge's key: an edge that
#: another transaction has just changed is then checked again.
AGAIN = """
    WITH given AS MATERIALIZED (
        SELECT g.*, p.id IS NULL OR p.ended_at IS NOT NULL AS ended, coalesce((p.state || '') = 'completed', false)
            AS completed
        FROM json_to_recordset(:p::json) AS g (child uuid, parent uuid, "until" text)
        LEFT JOIN @.jobs AS p ON p.id = g.parent
    )
    UPDATE @.edges AS e SET
        "until" = CASE WHEN g."until" = 'completed' THEN g."until" ELSE e."until" END,
        state = CASE
            WHEN e.state <> 'closed' OR g.completed THEN e.state
            WHEN 'completed' IN (e."until", g."until") OR NOT g.ended THEN 'new'
            ELSE e.state END
    FROM given AS g
    WHERE e.parent = g.parent AND e.child = g.child
      AND (e."until" = 'ended' AND g."until" = 'completed' OR e.state = 'closed' AND NOT g.completed)
    RETURNING e.place"""

#: Those that exist are locked against a delete of the last of their other jobs, which does not see jobs that are not
#: committed yet; not against each other. Only a flow that somebody stores or deletes meanwhile is not returned.
FLOWS = """
    WITH given AS MATERIALIZED (SELECT * FROM json_to_recordset(:p::json) AS g (id uuid, name text)),
    known AS MATERIALIZED (SELECT id FROM @.flows WHERE id IN (SELECT id FROM given) ORDER BY id FOR KEY SHARE),
    made AS (
        INSERT INTO @.flows (id, name, created_at)
        SELECT id, name, @now FROM given WHERE id NOT IN (SELECT id FROM known) ORDER BY id
        ON CONFLICT DO NOTHING RETURNING id)
    SELECT id::text FROM known UNION ALL SELECT id::text FROM made"""

_MAKE = """
    WITH given AS MATERIALIZED (SELECT *{waits} FROM json_to_recordset(:p::json) AS f (id uuid, name text))
    INSERT INTO @.flows (id, name, created_at) SELECT id, name, @now FROM given ORDER BY id
    ON CONFLICT DO NOTHING RETURNING id::text"""
#: The same for flows that are made once, before their jobs: of two calls the second waits here for the first to commit.
MAKE = _MAKE.format(waits="")
HELD_MS = 50  #: how long an enqueue of its own waits for a key, an id or a flow that another open transaction holds
WAITS = f", set_config('lock_timeout', '{HELD_MS}ms', true) AS waits"  # for this statement's transaction
MAKE_SOON = _MAKE.format(waits=WAITS)

UNMAKE = """
    DELETE FROM @.flows WHERE id IN (SELECT json_array_elements_text(:p::json)::uuid) RETURNING id::text"""

ASK = "INSERT INTO @.asks (item) SELECT json_array_elements_text(:p::json) RETURNING id"

#: LIMIT, not EXISTS: the planner would read all edges into a hash.
SUSPEND = """
    UPDATE @.jobs AS j SET wait_for = s.signal, wait_until = @now + s.timeout * interval '1 second',
        linked = coalesce(j.linked, (SELECT true FROM @.edges WHERE child = j.id LIMIT 1))
    FROM json_to_recordset(:p::json) AS s (id uuid, signal text, timeout float8)
    WHERE j.id = s.id RETURNING j.id::text"""


Edges = dict[tuple[str, str], dict[str, Any]]  #: by child and parent: of two the first one counts


def linked(drafts: Sequence[Draft], answers: Sequence[Enqueued]) -> tuple[Edges, set[str], dict[str, str]]:
    """The edges, asks and flows (names by id) of jobs that were stored just now. Raises BadData."""
    stands = {draft.id: answer.id for draft, answer in zip(drafts, answers, strict=True)}
    new = {answer.id for answer in answers if answer.created}
    edges, asks, flows = Edges(), set[str](), dict[str, str]()

    def add(child: str, named: str, until: str, *, mine: bool = False) -> None:
        parent = stands.get(named, named)
        armed = parent in new and parent == named  # a job that stands for it is not marked
        edge = {"child": child, "parent": parent, "until": until, "mine": mine, "armed": armed}
        if edges.setdefault((child, parent), edge)["until"] != until:
            edges[child, parent]["until"] = "completed"
        if mine or not armed:
            asks.add(child)

    for draft, (job_id, created, _) in zip(drafts, answers, strict=True):
        links = draft.links
        if links is not None and created:
            for parent, until in links.after:
                add(job_id, parent, until)
            if links.flow is not None and not links.once:
                flows.setdefault(links.flow, links.name)
        if links is not None and links.gatherer is not None:
            if links.gatherer == job_id:
                raise waits_for_itself(job_id)
            add(links.gatherer, job_id, links.gathered, mine=job_id == draft.id)
            asks.add(links.gatherer)
    return edges, asks, flows


def link(edges: Sequence[dict[str, Any]]) -> Steps[None]:
    for first in range(0, len(edges), EDGES_AT_ONCE):
        part = edges[first : first + EDGES_AT_ONCE]
        added = yield LINK, part
        if len(added) < len(part):
            yield AGAIN, part


def add_flows(names: Mapping[str, str]) -> Steps[None]:
    """Store the flows of new jobs, by id: they exist until the jobs are committed, whoever deletes their other jobs."""
    left = dict(names)
    while left:
        for (flow,) in (yield FLOWS, [{"id": each, "name": name} for each, name in left.items()]):
            del left[flow]


def make_once(drafts: Sequence[Draft], make: str) -> Steps[set[str]]:
    """Store the flows that only one call may make, and return them. Raises FlowMade: nothing is stored then."""
    wanted = flows_made_once(drafts)
    if not wanted:
        return set()
    made = {row[0] for row in (yield make, [{"id": each, "name": name} for each, name in wanted.items()])}
    if len(made) < len(wanted):
        yield from unmake(made)
        raise flow_made(min(wanted.keys() - made))
    return made


def unmake(made: Set[str]) -> Steps[None]:
    """Delete these flows again: no job of them is stored, and the caller's transaction may go on."""
    if made:
        yield UNMAKE, sorted(made)


def suspend(ends: Iterable[tuple[Lease, Outcome]]) -> Steps[None]:
    """Store what these attempts, which have just ended as suspended, wait for."""
    edges, rows = Edges(), dict[str, dict[str, Any]]()
    for lease, outcome in ends:
        if isinstance(outcome, Suspended):
            rows[lease.job_id] = {"id": lease.job_id, "signal": outcome.signal, "timeout": outcome.timeout}
            for parent, until in stricter(outcome.after):
                edge = {"child": lease.job_id, "parent": parent, "until": until, "mine": False, "armed": False}
                edges[lease.job_id, parent] = edge
    yield from link(list(edges.values()))
    if rows:
        yield SUSPEND, list(rows.values())
        yield ASK, list(rows)
