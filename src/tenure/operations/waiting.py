"""What a waiting job waits for and why that has not happened; and which jobs wait for one that ended badly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tenure.core.lifecycle import ENDED, EXPIRED, State
from tenure.events import headline
from tenure.ports import LINKS_PROTOCOL, MOST_EDGES, AttemptView, EdgeView, Input, JobView, Status, Store

NAMED = 5  #: jobs that an explanation names
MOST_LOOKED_UP = 1_000  #: jobs whose state an explanation reads
_PAGE = 200
#: What keeps an edge open, the most fundamental first.
_KINDS = ("dead", "expired", "processing", "queued", "scheduled", "waiting", "ended")
_SAYS: Mapping[str, tuple[str, str]] = {  #: of one job, and of several
    "dead": ("is a dead letter, which holds it", "are dead letters, which hold it"),
    "expired": ("expired before it could start, which holds it", "expired before they could start, which hold it"),
    "processing": ("is running", "are running"),
    "queued": ("is queued", "are queued"),
    "scheduled": ("is due later", "are due later"),
    "waiting": ("is waiting itself", "are waiting themselves"),
    "ended": ("has ended, which is noticed at the next scan", "have ended, which is noticed at the next scan"),
}


@dataclass(frozen=True, slots=True)
class Wait:
    """What a job waits for. `over`: it has happened, and the job is queued at the next scan."""

    verdict: str
    reasons: Sequence[str]
    what_to_do: str
    over: bool
    signal: str | None  #: the name of the signal that it waits for, quoted
    since: datetime  #: when the wait began
    outdated: Sequence[str]  #: live workers of an older release: nothing is admitted while they live


@dataclass(frozen=True, slots=True)
class Holding:
    """Jobs that wait for one that ended badly."""

    jobs: Sequence[str]  #: the first of them
    more: int  #: and how many others
    says: str
    without_it: str  #: how to go on without that job


def wait_of(store: Store, job: JobView, last: AttemptView | None) -> Wait:
    """Reads the edges of the job, and the state of at most a thousand jobs before it."""
    edges = store.edges([job.id], limit=MOST_EDGES + 1)
    left = [edge for edge in edges if edge.open]
    found = _by_kind(store, left[:MOST_LOOKED_UP])
    signal = None if job.wait_for is None else repr(job.wait_for.partition(":")[2])
    since = last.ended_at if last is not None and last.outcome == "suspended" else job.run_at
    owner = None if job.wait_for is None or job.wait_for.startswith("shared:") else job.id
    arrived = job.wait_for is not None and bool(store.signals(owner, [job.wait_for]))
    waits = list(_waits(edges, left, None if arrived else signal))
    verdict = f"it waits for {' and '.join(waits)}" if waits else "what it waited for has happened"
    over = not waits or (set(found) <= {"ended"} and (signal is None or arrived))
    if over:
        verdict += ": it is queued at the next scan"
    held = [*found.get("dead", ()), *found.get("expired", ())]
    advice = ""
    if held:
        one = held[0][0]
        advice = (
            f"look at it: tenure jobs explain {one}; then run it again: tenure jobs replay {one}; or go on without it: "
            f"tenure flows skip {one}"
        )
    elif signal is not None and not arrived:
        name = str(job.wait_for).partition(":")[2]
        to = f"--shared {name}" if owner is None else f"{job.id} {name}"
        advice = f"send it: tenure signals send {to} JSON"
    return Wait(
        verdict,
        tuple(_reasons(found, unread=max(len(left) - MOST_LOOKED_UP, 0))),
        advice,
        over,
        None if arrived else signal,
        since,
        store.outdated(LINKS_PROTOCOL),
    )


def _waits(edges: Sequence[EdgeView], left: Sequence[EdgeView], signal: str | None) -> Iterator[str]:
    if left:
        many = f"{len(left):,} of {len(edges):,} jobs" if len(edges) > 1 else "a job"
        needs = {edge.until for edge in left}
        how = "to complete" if needs == {"completed"} else "to end" if needs == {"ended"} else "to complete or end"
        yield f"{many}{' that it gathers' if all(edge.mine for edge in left) else ''} {how}"
    if signal is not None:
        yield f"the signal {signal}"


def _by_kind(store: Store, left: Sequence[EdgeView]) -> dict[str, list[tuple[str, Status | None]]]:
    """The parents of these open edges, by what keeps the edge open."""
    seen = {edge.parent: "" for edge in left}
    known = {each.id: each.status for each in store.updates(seen, limit=len(seen))} if seen else {}
    found: dict[str, list[tuple[str, Status | None]]] = {}
    for edge in left:
        status = known.get(edge.parent)
        found.setdefault(_kind(edge, status), []).append((edge.parent, status))
    return {kind: found[kind] for kind in _KINDS if kind in found}


def _kind(edge: EdgeView, status: Status | None) -> str:
    if status is None or status.state not in ENDED:
        return "ended" if status is None else str(status.state)
    if edge.until == "completed" and status.state is State.DEAD:
        return "dead"
    if edge.until == "completed" and status.state is State.CANCELLED and status.error == EXPIRED:
        return "expired"
    return "ended"


def _reasons(found: Mapping[str, Sequence[tuple[str, Status | None]]], *, unread: int) -> Iterator[str]:
    for kind, jobs in found.items():
        named = few((_named(job_id, status) for job_id, status in jobs[:NAMED]), len(jobs))
        yield f"{len(jobs):,} {_SAYS[kind][len(jobs) > 1]}: {named}"
    if unread:
        yield f"{unread:,} more were not looked at"


def _named(job_id: str, status: Status | None) -> str:
    if status is None:
        return f"{job_id}, which is gone"
    why = f" ({headline(status.error)})" if status.state is State.DEAD and status.error else ""
    return f"{status.task} {job_id}{why}"


def few(names: Iterable[str], total: int | None = None) -> str:
    """The first five of them, and how many more there are.

    >>> few(["a", "b"], 7)
    'a, b and 5 more'
    """
    found = list(names)
    shown = found[:NAMED]
    more = (len(found) if total is None else total) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


# ── Of a job that ended badly ───────────────────────────────────────────────────────────────────────────────────


def held_by(store: Store, job: JobView) -> Holding | None:
    """The jobs that wait for this one, which is dead or expired; None: there are none."""
    expired = job.state is State.CANCELLED and job.error == EXPIRED
    if not job.linked or not (job.state is State.DEAD or expired):
        return None
    jobs = [child for child, _ in open_edges(store, job.id)]
    if not jobs:
        return None
    states = "a job waits" if len(jobs) == 1 else f"{len(jobs):,} jobs wait"
    return Holding(
        tuple(jobs[:NAMED]),
        max(len(jobs) - NAMED, 0),
        f"{states} for it: {few(jobs)}",
        f"or let them go on without it: tenure flows skip {job.id}",
    )


def open_edges(store: Store, job_id: str) -> Iterator[tuple[str, Input]]:
    """The jobs that still wait for this one, in order of their ids, and their edges; at most 10,000 are read."""
    start, read = "", 0
    while read < MOST_EDGES:
        page = store.dependents(job_id, start=start, limit=_PAGE)
        yield from ((child, edge) for child, edge in page if edge.open)
        if len(page) < _PAGE:
            return
        start, read = page[-1][0], read + len(page)
