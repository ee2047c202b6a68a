"""Edges between jobs, as steps inside a transaction: stored with new jobs, closed by ended ones, opened by replays."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import apsw

from tenure.core.lifecycle import EXPIRED, Edge, State
from tenure.ports import Draft, Enqueued, Input, NotLanded
from tenure.stores.rules import (
    check_links,
    flow_made,
    flows_made_once,
    gathers,
    held_by_child,
    json_of,
    no_parent,
    not_replayed_for,
    parent_missing,
    still_gathers,
    stricter,
    waits_for_itself,
)
from tenure.stores.sqlite.file import fetch, first

LIVE_STATES = "('waiting', 'scheduled', 'queued', 'processing')"
ENDED_STATES = "('completed', 'dead', 'cancelled')"

#: Has this edge's parent `p` ended as the edge asks? One that is gone has ended.
_SATISFIED = f"(p.state IS 'completed' OR (e.until = 'ended' AND (p.state IS NULL OR p.state IN {ENDED_STATES})))"

_LIVE_CHILD = f"""
    SELECT e.child FROM edges AS e INDEXED BY edges_held JOIN jobs AS c ON c.id = e.child
    WHERE e.held AND e.parent = ? AND c.state IN {LIVE_STATES} LIMIT 1"""
_GATHERED = f"""
    SELECT e.parent FROM edges AS e JOIN jobs AS p ON p.id = e.parent
    WHERE e.child = ? AND e.mine AND p.state IN {LIVE_STATES} LIMIT 1"""
_MISSING = """
    SELECT e.parent, p.state FROM edges AS e LEFT JOIN jobs AS p ON p.id = e.parent
    WHERE e.child = ? AND e.until = 'completed' AND NOT e.mine AND NOT e.skipped
      AND (p.state IS NULL OR (p.state = 'cancelled' AND p.error IS NOT ?)) ORDER BY e.place LIMIT 1"""
NOT_NEEDED = "NOT EXISTS (SELECT 1 FROM edges INDEXED BY edges_held WHERE held AND parent = jobs.id)"
#: No job needs it, not even one that was stored just now, and its own end has been dealt with.
NOT_HELD = f"{NOT_NEEDED} AND NOT EXISTS (SELECT 1 FROM edges WHERE held AND child = jobs.id)"
_ADD = """
    INSERT INTO edges (child, parent, place, until, mine)
    SELECT :child, :parent, coalesce((SELECT max(place) + 1 FROM edges WHERE child = :child), 0), :until, :mine
    WHERE TRUE ON CONFLICT (child, parent) DO NOTHING"""
_RAISE = "UPDATE edges SET until = 'completed' WHERE child = :child AND parent = :parent"
_OPEN_AGAIN = f"""
    UPDATE edges AS e SET open = 1, armed = 0
    WHERE e.child = :child AND e.parent = :parent AND NOT e.open AND NOT e.skipped AND NOT
        (SELECT {_SATISFIED} FROM (SELECT 1) LEFT JOIN jobs AS p ON p.id = e.parent)"""
_INPUT = """
    SELECT {0} e.place, e.parent, e.until, e.open, e.skipped, e.mine, p.task, p.state, p.result, p.error
    FROM edges AS e LEFT JOIN jobs AS p ON p.id = e.parent WHERE """
INPUTS = _INPUT.format("") + "e.child = ? AND e.place >= ? ORDER BY e.place LIMIT ?"
DEPENDENTS = _INPUT.format("e.child,") + "e.parent = ? AND e.child > ? ORDER BY e.child LIMIT ?"


def input_of(row: Sequence[Any]) -> Input:
    place, parent, until, is_open, skipped, mine, task, state, result, error = row
    fate = None if state is None else State(state)
    return Input(place, parent, until, bool(is_open), bool(skipped), bool(mine), task, fate, result, error)


def ask(connection: apsw.Connection, items: Iterable[str]) -> None:
    connection.executemany("INSERT INTO asks (item) VALUES (?)", [(item,) for item in items])


# ── New jobs ────────────────────────────────────────────────────────────────────────────────────────────────────


def check(connection: apsw.Connection, drafts: Sequence[Draft]) -> None:
    """Raises BadData that names a parent which is neither stored nor earlier among the drafts; or FlowMade."""
    for flow in flows_made_once(drafts):
        if first(connection, "SELECT 1 FROM flows WHERE id = ?", (flow,)) is not None:
            raise flow_made(flow)
    needed = check_links(drafts)
    missing = first(
        connection,
        "SELECT value FROM json_each(?) WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE id = value) ORDER BY value LIMIT 1",
        (json_of(sorted(needed)),),
    )
    if missing is not None:
        raise no_parent(missing[0])


def link(connection: apsw.Connection, drafts: Sequence[Draft], answers: Sequence[Enqueued], now: int) -> None:
    """Store the edges and flows of new jobs. An edge leads from the job that stands for its parent."""
    stands = {draft.id: answer.id for draft, answer in zip(drafts, answers, strict=True)}
    new = {answer.id for answer in answers if answer.created}
    linked: set[str] = set()
    for draft, answer in zip(drafts, answers, strict=True):
        links = draft.links
        if links is None:
            continue
        if answer.created:
            parents = stricter(Edge(stands.get(edge.parent, edge.parent), edge.until) for edge in links.after)
            rows = [(answer.id, edge.parent, place, edge.until) for place, edge in enumerate(parents)]
            connection.executemany(
                "INSERT INTO edges (child, parent, place, until, mine) VALUES (?, ?, ?, ?, 0) ON CONFLICT DO NOTHING",
                rows,
            )
            if rows:
                linked |= {answer.id, *(edge.parent for edge in parents if edge.parent in new)}
                ask(connection, [answer.id])
            if links.flow is not None:
                connection.execute("UPDATE jobs SET flow = ? WHERE id = ?", (links.flow, answer.id))
                connection.execute(
                    "INSERT INTO flows VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (links.flow, links.name, now)
                )
        if links.gatherer is not None:
            if links.gatherer == answer.id:
                raise waits_for_itself(answer.id)
            add(connection, links.gatherer, Edge(answer.id, links.gathered), mine=answer.id == draft.id)
            linked |= {answer.id} & new | {links.gatherer}  # not by its ask, before which it may be parked
    ask(connection, {draft.links.gatherer: 0 for draft in drafts if draft.links and draft.links.gatherer})
    connection.execute("UPDATE jobs SET linked = 1 WHERE id IN (SELECT value FROM json_each(?))", (json_of([*linked]),))


def add(connection: apsw.Connection, child: str, edge: Edge, *, mine: bool = False) -> None:
    """An edge that is there keeps its place, and the stricter need holds; it opens if that is not met."""
    facts = {"child": child, "parent": edge.parent, "until": edge.until}
    connection.execute(_ADD, {**facts, "mine": mine})
    if connection.changes() == 0:
        if edge.until == "completed":
            connection.execute(_RAISE, facts)
        connection.execute(_OPEN_AGAIN, facts)


# ── What an operator asks ───────────────────────────────────────────────────────────────────────────────────────


def live_child(connection: apsw.Connection, job_id: str) -> str | None:
    """A live job that waits for this one, or goes on with its result."""
    found = first(connection, _LIVE_CHILD, (job_id,))
    return None if found is None else found[0]


def why_not_deleted(connection: apsw.Connection, job_id: str) -> NotLanded | None:
    child = live_child(connection, job_id)
    if child is not None:
        return held_by_child(child)
    gathered = _gathered(connection, job_id)
    return None if gathered is None else gathers(gathered)


def _gathered(connection: apsw.Connection, job_id: str) -> str | None:
    found = first(connection, _GATHERED, (job_id,))
    return None if found is None else found[0]


def why_not_replayed(connection: apsw.Connection, job_id: str, state: State) -> NotLanded | None:
    child = live_child(connection, job_id) if state is State.COMPLETED else None
    if child is not None:
        return not_replayed_for(child)
    gathered = _gathered(connection, job_id)
    if gathered is not None:
        return still_gathers(gathered)
    missing = first(connection, _MISSING, (job_id, EXPIRED))
    return None if missing is None else parent_missing(missing[0], gone=missing[1] is None)


def open_again(connection: apsw.Connection, job_id: str) -> bool:
    """Open the edges whose parents have not ended as they ask. Returns whether there is one."""
    if first(connection, "SELECT 1 FROM edges WHERE child = ? LIMIT 1", (job_id,)) is None:
        return False
    dropped = fetch(  # the handler gathers anew
        connection,
        "DELETE FROM edges AS e WHERE e.child = ? AND e.mine AND NOT e.skipped AND NOT EXISTS "
        f"(SELECT 1 FROM jobs AS p WHERE p.id = e.parent AND {_SATISFIED}) RETURNING parent",
        (job_id,),
    )
    ask(connection, [parent for (parent,) in dropped])  # they may be kept for this job only
    connection.execute(
        "UPDATE edges AS e SET held = 1, armed = 0, open = NOT e.skipped AND NOT "
        f"(SELECT {_SATISFIED} FROM (SELECT 1) LEFT JOIN jobs AS p ON p.id = e.parent) WHERE e.child = ?",
        (job_id,),
    )
    connection.execute(
        "UPDATE jobs SET linked = 1 WHERE id = ?1 OR id IN (SELECT parent FROM edges WHERE child = ?1)", (job_id,)
    )
    return first(connection, "SELECT 1 FROM edges WHERE child = ? AND open LIMIT 1", (job_id,)) is not None
