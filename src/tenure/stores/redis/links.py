"""New jobs with what they wait for, as arguments of scripts; and very many edges, a few at a time.

A call that is too large for one script is staged in parts, which no reader sees. Then it is sealed, in one step: from
then on all of it will be stored, by its caller or, if that has died, by `admit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal, cast
from uuid import uuid4

import msgspec

from tenure.core.lifecycle import EXPIRED, Edge, Lease, Outcome, State, Suspended
from tenure.errors import StoreAway, StoreError
from tenure.ports import Draft, Enqueued, Links
from tenure.stores.redis.drafts import MOST, MOST_BYTES, values
from tenure.stores.redis.server import Server
from tenure.stores.rules import check_links, flow_made, flows_made_once, no_parent, waits_for_itself

ANY_END, MINE, SKIPPED = 1, 2, 4  #: the marks of an edge, added to 8 times its place
_STATES = {1: State.QUEUED, 2: State.SCHEDULED, 4: State.WAITING}


def enqueued(drafts: Sequence[Draft], answers: Sequence[Any]) -> list[Enqueued]:
    """The answers of `enqueue` in common.lua."""
    return [
        Enqueued(draft.id, True, _STATES[answer])
        if isinstance(answer, int)
        else Enqueued(answer[0], False, State(answer[1]))
        for draft, answer in zip(drafts, answers, strict=True)
    ]


def marks(until: Literal["completed", "ended"]) -> int:
    return ANY_END if until == "ended" else 0


def edges_of(outcome: Suspended) -> list[tuple[str, int]]:
    return [(edge.parent, marks(edge.until)) for edge in outcome.after]


# ── One part of a call ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Part:
    """What one script stores: jobs, and rows of five texts about them (`store` in waits.lua)."""

    drafts: list[Draft] = field(default_factory=list[Draft])
    rows: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    number: int = 0
    size: int = 0

    def fits(self, number: int, size: int) -> bool:
        return not self.number or (self.number + number <= MOST and self.size + size <= MOST_BYTES)

    def values(self) -> list[Any]:
        jobs = values(self.drafts)
        return [len(jobs), *jobs, *chain.from_iterable((*row, *("",) * (5 - len(row))) for row in self.rows)]


def parts(drafts: Sequence[Draft], needed: set[str]) -> Iterator[Part]:
    """The jobs in their order, each with its edges; where these are very many, some follow in parts of their own.

    `needed`: the parents that must be stored already, each of which is checked once.
    """
    part, unchecked = Part(), set(needed)

    def rows(child: str, edges: Sequence[Edge]) -> Iterator[tuple[Any, ...]]:
        for edge in edges:
            if edge.parent in unchecked:
                unchecked.discard(edge.parent)
                yield "need", edge.parent
            yield "edge", child, edge.parent, marks(edge.until)

    for draft in drafts:
        links = draft.links or Links()
        size = len(draft.payload) + len(draft.meta)
        many = len(links.after) >= MOST
        if not part.fits(1 if many else 1 + len(links.after), size):
            yield part
            part = Part()
        part.drafts.append(draft)
        part.number, part.size = part.number + 1, part.size + size
        if links.flow is not None:
            part.rows.append(("flow", draft.id, links.flow, links.name, int(links.once)))
        if links.gatherer is not None:
            if links.gatherer in unchecked:
                unchecked.discard(links.gatherer)
                part.rows.append(("need", links.gatherer))
            unique = "" if draft.unique is None else f"{draft.task}\0{draft.unique}"
            part.rows.append(("gather", links.gatherer, draft.id, marks(links.gathered), unique))
        if links.after:
            part.rows.append(("wait", draft.id, 1 if many else ""))
        if not many:
            part.rows += rows(draft.id, links.after)
            part.number += len(links.after)
            continue
        yield part
        for first in range(0, len(links.after), MOST):
            yield Part(rows=list(rows(draft.id, links.after[first : first + MOST])), number=MOST)
        part = Part(rows=[("last", draft.id)], number=1)
    yield part


# ── A call ──────────────────────────────────────────────────────────────────────────────────────────────────────


def enqueue_linked(server: Server, drafts: Sequence[Draft]) -> list[Enqueued]:
    """All of these jobs, or none."""
    first = dict[str, int]()
    for n, draft in enumerate(drafts):
        first.setdefault(draft.id, n)
    if len(first) == len(drafts):
        return _enqueue_linked(server, drafts)
    # A job that is given twice: the scripts would take the second copy for one that was there before.
    answers = dict(zip(first, _enqueue_linked(server, [drafts[n] for n in first.values()]), strict=True))
    return [
        answers[draft.id] if first[draft.id] == n else answers[draft.id]._replace(created=False)
        for n, draft in enumerate(drafts)
    ]


def _enqueue_linked(server: Server, drafts: Sequence[Draft]) -> list[Enqueued]:
    needed = check_links(drafts)
    for draft in drafts:
        if draft.links is not None and draft.links.gatherer == draft.id:
            raise waits_for_itself(draft.id)
    sent = list(parts(drafts, needed))
    if len(sent) > 1:
        return enqueued(drafts, _staged(server, sent, len(drafts), flows_made_once(drafts)))
    stored, *found = server.call("enqueue_linked", *sent[0].values())
    if not stored:
        raise _refused(*found)
    return enqueued(drafts, found[0])


def _refused(name: str, why: str) -> StoreError:
    if why == "made":
        return flow_made(name)
    return no_parent(name) if why == "missing" else waits_for_itself(name)


def _staged(server: Server, sent: Sequence[Part], jobs: int, once: Mapping[str, str]) -> list[Any]:
    call, length = uuid4().hex, 0

    for part in sent:  # one after the other: a pipeline that meets a server without the script mixes them up
        given = part.values()
        length += 1 + len(given)
        refused = server.call("stage", call, *given)
        if refused is not None:
            server.run("UNLINK", f"{server.prefix}staged:{call}")
            raise _refused(*refused)
    sealed = server.call("seal", call, length, *chain.from_iterable(once.items()))
    if isinstance(sealed, list):  # by another call, since the first part was staged
        raise _refused(*cast("list[str]", sealed))
    if not sealed:
        raise StoreAway(f"{server.url}: these jobs were not stored within an hour; enqueue all of them again")
    while server.call("unpack", call):
        pass
    key = f"{server.prefix}answers:{call}"
    found: list[str] = server.run("LRANGE", key, 0, -1)
    server.run("UNLINK", key)
    answers = [answer for text in found for answer in msgspec.json.decode(text)]
    if len(answers) < jobs:  # the seal was not on the server that took over
        raise StoreAway(f"{server.url}: these jobs were lost in a failover, all of them; enqueue all of them again")
    return answers


# ── Very many edges ─────────────────────────────────────────────────────────────────────────────────────────────


def tied(server: Server, lease: Lease, outcome: Outcome) -> Outcome:
    """The outcome with no more edges than the script `end` takes; the others are stored first."""
    if not isinstance(outcome, Suspended) or len(outcome.after) <= MOST // 2:
        return outcome
    edges = edges_of(outcome)
    batches = [edges[first : first + MOST] for first in range(0, len(edges), MOST)]
    server.call_each("tie", batches, lambda batch: [*lease, *chain.from_iterable(batch)])
    return replace(outcome, after=())


def open_edges(server: Server, job_id: str) -> list[str] | None:
    """Open all edges of a job before its replay. Returns what `replay` would, if it can't run."""
    first: Any = "-inf"
    while first is not None:
        first = server.call("reopen", job_id, first, EXPIRED)
        if isinstance(first, list):
            return cast("list[str]", first)
    return None
