"""How asks are answered in PostgreSQL, some at a time, each time in one transaction.

1. The transaction takes asks that no other has taken, and locks their jobs. It waits for no lock of a job or an edge:
   what is locked is left for later, behind all other asks. So it holds up no other transaction, and never deadlocks.
2. The edges of a job that has ended are closed, a page at a time, with an ask for each child; only a later transaction
   looks at these. So of two that close the last two edges of a child, the one that commits last leaves an ask for it.
3. A job that waits marks the parents of its new edges as linked, under their locks. Whatever ends one of these then
   stores an ask in its own transaction (by a trigger), and one that had ended before is seen.
4. A job that waits, and has no open edge, is admitted once its signal is there or its time is over.
5. An ask that is not answered in full is stored again, with the place that was reached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from tenure.core.lifecycle import ENDED, EXPIRED, State
from tenure.stores.postgres.server import Connection, Sql
from tenure.stores.rules import SHARED, closes, gatherer_ended, is_id, parent_lost

EDGES_A_STEP = 1_000  #: looked at in one transaction
PAGE = 200  #: of one job
LEAST_PAGE = 5

TAKE = """
    DELETE FROM @.asks WHERE id IN (SELECT id FROM @.asks ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
    RETURNING item, phase, place, start::text"""
KEEP = """
    INSERT INTO @.asks (item, phase, place, start)
    SELECT * FROM unnest(%s::text[], %s::smallint[], %s::integer[], %s::uuid[]) RETURNING id"""
TIMED_OUT = """
    SELECT id::text FROM @.jobs WHERE state = 'waiting' AND wait_until IS NOT NULL AND wait_until <= @now
    ORDER BY wait_until LIMIT %s"""
FOR_SHARED = """
    SELECT id::text FROM @.jobs
    WHERE state = 'waiting' AND starts_with(wait_for, 'shared:') AND wait_for = %s AND id > %s::uuid
    ORDER BY id LIMIT %s"""

LOCK = """
    SELECT id::text, state, error FROM @.jobs WHERE id = ANY (%s::uuid[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED"""
STORED = "SELECT id::text FROM @.jobs WHERE id = ANY (%s::uuid[])"
MARK = "UPDATE @.jobs SET linked = true WHERE id = ANY (%s::uuid[]) AND linked IS NULL"
#: Here and below LIMIT, not EXISTS: where one job has most of the edges, the planner would read all of them.
MARK_CHILDREN = f"{MARK} AND (SELECT true FROM @.edges AS e WHERE e.child = jobs.id LIMIT 1)"

#: A range of both ends, and not one parent's in the order of the children: for that the planner would read those of all
#: parents, where one has most of the edges.
_LAST = "ffffffff-ffff-ffff-ffff-ffffffffffff"
OF_PARENT = f"(e.parent, e.child) > (a.item, a.start) AND (e.parent, e.child) <= (a.item, '{_LAST}')"
BEHIND = f"""
    SELECT a.item::text, e.child::text, e."until" FROM unnest(%s::uuid[], %s::uuid[]) AS a (item, start)
    CROSS JOIN LATERAL (
        SELECT child, "until" FROM @.edges AS e WHERE {OF_PARENT} AND (state || '') IN ('new', 'armed')
        ORDER BY parent, child LIMIT %s) AS e"""
NEW = """
    SELECT a.item::text, e.parent::text, e."until" FROM unnest(%s::uuid[], %s::uuid[]) AS a (item, start)
    CROSS JOIN LATERAL (
        SELECT parent, "until" FROM @.edges WHERE child = a.item AND state = 'new' AND parent > a.start
        ORDER BY parent LIMIT %s) AS e"""
BEFORE = """
    SELECT a.item::text, e.parent::text, e.place, e.mine
    FROM unnest(%s::uuid[], %s::integer[], %s::uuid[]) AS a (item, place, start)
    CROSS JOIN LATERAL (
        SELECT parent, place, mine FROM @.edges
        WHERE child = a.item AND place >= a.place AND (place, parent) > (a.place, a.start)
        ORDER BY place, parent LIMIT %s) AS e"""

#: For edges given by both ends: each is looked up. A bare condition on the state, or a plain join, would make the
#: planner read a whole index when it expects little in it.
_OPEN, _NEW = "(e.state || '') IN ('new', 'armed')", "(e.state || '') = 'new'"
_EDGES = """
    WITH free AS MATERIALIZED (
        SELECT e.place{given} FROM unnest({arrays}) AS g (parent, child{given})
        CROSS JOIN LATERAL (
            SELECT ctid AS place FROM @.edges AS e WHERE e.parent = g.parent AND e.child = g.child AND {which}
            LIMIT 1 FOR UPDATE SKIP LOCKED) AS e)
    UPDATE @.edges AS e SET {change} FROM free WHERE e.ctid = free.place
    RETURNING e.parent::text, e.child::text"""
_TWO = "%s::uuid[], %s::uuid[]"
CLOSE = f"""
    WITH closed AS ({_EDGES.format(given="", arrays=_TWO, which=_OPEN, change="state = 'closed'")}), asked AS (
        INSERT INTO @.asks (item) SELECT DISTINCT j.id FROM closed JOIN @.jobs AS j ON j.id = closed.child::uuid
        WHERE j.ended_at IS NULL)
    SELECT parent, child FROM closed"""
ARM = _EDGES.format(given=", became", arrays=f"{_TWO}, %s::text[]", which=_NEW, change="state = became")
UNNEED = _EDGES.format(given="", arrays=_TWO, which="e.live", change="live = false")
#: Those of these edges that are still as they were, because another transaction has locked them.
STILL = """
    SELECT e.* FROM unnest(%s::uuid[], %s::uuid[]) AS g (parent, child)
    CROSS JOIN LATERAL (
        SELECT e.parent::text, e.child::text FROM @.edges AS e
        WHERE e.parent = g.parent AND e.child = g.child AND {which} LIMIT 1) AS e"""
STILL_OPEN = STILL.format(which=_OPEN)
STILL_NEW = STILL.format(which=_NEW)
STILL_LIVE = STILL.format(which="e.live")

CANCEL = """
    WITH free AS MATERIALIZED (
        SELECT j.id, g.reason FROM unnest(%s::uuid[], %s::text[]) AS g (id, reason) JOIN @.jobs AS j ON j.id = g.id
        WHERE j.ended_at IS NULL ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED)
    UPDATE @.jobs AS j SET wait_for = NULL, wait_until = NULL, parked = NULL,
        state = CASE j.state WHEN 'processing' THEN j.state ELSE 'cancelled' END,
        cancel_reason = CASE j.state WHEN 'processing' THEN coalesce(j.cancel_reason, free.reason) ELSE free.reason END,
        error = CASE j.state WHEN 'processing' THEN j.error ELSE free.reason END,
        ended_at = CASE j.state WHEN 'processing' THEN j.ended_at ELSE @now END
    FROM free WHERE j.id = free.id RETURNING j.id::text, j.state"""
STILL_LIVING = "SELECT id::text FROM @.jobs WHERE id = ANY (%s::uuid[]) AND ended_at IS NULL"

TO_RELEASE = "SELECT id::text FROM @.jobs WHERE id = ANY (%s::uuid[]) AND linked AND ended_at IS NOT NULL"
LOCK_TO_RELEASE = f"{TO_RELEASE} ORDER BY id FOR NO KEY UPDATE SKIP LOCKED"
RELEASE = """
    UPDATE @.jobs AS j SET linked = NULL WHERE id = ANY (%s::uuid[])
      AND (SELECT true FROM @.edges AS e WHERE e.parent = j.id AND e.live LIMIT 1) IS NULL"""

#: At its admission a job is due at once, or when it was to be due, and `expires` counts from then. One with limits that
#: is due is parked by this write, through a trigger; one that is parked waits for its keys alone.
ADMIT = """
    UPDATE @.jobs AS j SET state = CASE WHEN d.due > @now THEN 'scheduled' ELSE 'queued' END, run_at = d.due,
        expires_at = j.expires_at + (d.due - j.run_at), wait_for = NULL, wait_until = NULL
    FROM (
        SELECT w.id, CASE WHEN w.run_at > greatest(@now, w.enqueued_at) THEN w.run_at ELSE @now END AS due
        FROM @.jobs AS w WHERE w.id = ANY (%s::uuid[]) AND (w.state || '') = 'waiting' AND w.parked IS NULL
          AND (SELECT true FROM @.edges AS e WHERE e.child = w.id AND e.state IN ('new', 'armed') LIMIT 1) IS NULL
          AND (w.wait_for IS NULL OR w.wait_until <= @now
            OR (SELECT true FROM @.signals AS s WHERE s.job_id = w.id AND s.key = w.wait_for LIMIT 1)
            OR (SELECT true FROM @.shared_signals AS s WHERE s.key = w.wait_for LIMIT 1))) AS d
    WHERE j.id = d.id RETURNING j.queue, j.id::text, j.state, j.limits IS NOT NULL"""
#: A wait that has timed out is over, even if the job still waits for others: it would be found again and again. A
#: parked job has expired then.
TIME_OVER = """
    UPDATE @.jobs SET wait_for = NULL, wait_until = NULL, parked = NULL,
        state = CASE WHEN parked IS NULL THEN state ELSE 'cancelled' END,
        error = CASE WHEN parked IS NULL THEN error ELSE %s END,
        ended_at = CASE WHEN parked IS NULL THEN ended_at ELSE @now END
    WHERE id = ANY (%s::uuid[]) AND (state || '') = 'waiting' AND wait_until <= @now RETURNING state"""

_FIRST = "00000000-0000-0000-0000-000000000000"
_Pairs = set[tuple[str, str]]


class Ask(NamedTuple):
    """An ask, and how far it has been answered: phase, then the place of an edge, or the id at its other end."""

    item: str
    phase: int = 0
    place: int = -1
    start: str = _FIRST


BEHIND_IT, BEFORE_IT, LOOKING = range(3)  #: phases: first those that wait for an ended job, then those it waited for


@dataclass(slots=True)
class Step:
    """What one transaction has done."""

    jobs: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict[str, list[str]](list))
    scheduled: bool = False
    cancelled: int = 0
    full: bool = False  #: more waits have timed out than it took
    left: list[int] = field(default_factory=list[int])  #: the asks that it left because of a lock


class Admission:
    """One transaction of `admit`."""

    def __init__(self, connection: Connection, sql: Sql) -> None:
        self._connection = connection
        self._sql = sql
        self._done = Step()
        self._again: list[Ask] = []
        self._held: list[Ask] = []

    def run(self, limit: int) -> Step:
        asks = dict[str, Ask]()
        for row in sorted(self._rows(TAKE, limit), reverse=True):  # of two for one job, the one that has got less far
            asks[row[0]] = Ask(*row)
        timed_out = [row[0] for row in self._rows(TIMED_OUT, limit)]
        self._done.full = len(timed_out) == limit
        self._work({job_id: Ask(job_id) for job_id in timed_out} | asks)
        if self._again:
            self._keep(self._again)
        if self._held:
            passing = set(timed_out) - asks.keys()  # found again by its time
            self._done.left = self._keep([ask for ask in self._held if ask.item not in passing])
        return self._done

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(self._sql(statement), values).fetchall()

    def _write(self, statement: str, ids: Collection[str]) -> None:
        if ids:
            self._connection.execute(self._sql(statement), (list(ids),))

    def _keep(self, asks: list[Ask]) -> list[int]:
        return [row[0] for row in self._rows(KEEP, *map(list, zip(*asks, strict=True)))] if asks else []

    def _work(self, asks: Mapping[str, Ask]) -> None:
        for ask in asks.values():
            if ask.item.startswith(SHARED):
                self._expand(ask)
        ids = [item for item in asks if is_id(item)]
        if not ids:
            return
        jobs, held = self._locked(ids)
        self._held += [asks[each] for each in held]
        self._write(MARK_CHILDREN, [each for each, (state, _) in jobs.items() if state and state not in ENDED])
        ended = {each: job for each, job in jobs.items() if job[0] is None or job[0] in ENDED}
        waiting = [asks[each] for each, (state, _) in jobs.items() if state is State.WAITING]
        page = max(LEAST_PAGE, min(PAGE, EDGES_A_STEP // max(len(ended) + len(waiting), 1)))
        if ended:
            told = self._tell([asks[each] for each in ended], ended, page)
            self._let_go([ask for ask in told if ended[ask.item][0] is not None], ended, page)
        if waiting:
            self._look(waiting, page)

    def _expand(self, ask: Ask) -> None:
        """A shared signal: each job that waits for it gets an ask."""
        found = [row[0] for row in self._rows(FOR_SHARED, ask.item, ask.start, PAGE)]
        self._again += [Ask(each) for each in found]
        if len(found) == PAGE:
            self._again.append(ask._replace(start=found[-1]))

    def _locked(self, ids: Iterable[str]) -> tuple[dict[str, tuple[State | None, str | None]], set[str]]:
        """State and error of each, None if it is gone; and those that are locked elsewhere."""
        wanted = set(ids)
        jobs: dict[str, tuple[State | None, str | None]] = {
            row[0]: (State(row[1]), row[2]) for row in self._rows(LOCK, sorted(wanted))
        }
        missing = wanted - jobs.keys()
        held = {row[0] for row in self._rows(STORED, list(missing))} if missing else set[str]()
        return jobs | dict.fromkeys(missing - held, (None, None)), held

    # ── a job that has ended, or is gone ──

    def _tell(self, asks: list[Ask], jobs: Mapping[str, tuple[State | None, str | None]], page: int) -> list[Ask]:
        """Close the edges of their children, or cancel these. Returns the asks that are done with that."""
        todo = [Ask(ask.item) if ask.phase == LOOKING else ask for ask in asks]
        first = [ask for ask in todo if ask.phase == BEHIND_IT]
        done = [ask for ask in todo if ask.phase == BEFORE_IT]
        if not first:
            return done
        found = self._rows(BEHIND, [ask.item for ask in first], [ask.start for ask in first], page)
        closing, cancels, last = _Pairs(), dict[str, tuple[str, str]](), defaultdict[str, list[str]](list)
        for item, child, until in found:
            last[item].append(child)
            fate = closes(until, *jobs[item])
            if fate == "close":
                closing.add((item, child))
            elif fate == "cancel":
                cancels.setdefault(child, (item, parent_lost(item, gone=jobs[item][0] is None)))
        held = {parent for parent, _ in self._change(CLOSE, STILL_OPEN, closing)}
        locked = self._cancel({child: reason for child, (_, reason) in cancels.items()})
        held |= {item for item, child, _ in found if child in locked}
        for ask in first:
            if ask.item in held:
                self._held.append(ask)
            elif len(last[ask.item]) == page:
                self._again.append(ask._replace(start=last[ask.item][-1]))
            else:
                done.append(Ask(ask.item, BEFORE_IT))
        return done

    def _let_go(self, asks: list[Ask], jobs: Mapping[str, tuple[State | None, str | None]], page: int) -> None:
        """Let go of the parents of these jobs, and cancel what they still gather."""
        if not asks:
            return
        places = ([ask.item for ask in asks], [ask.place for ask in asks], [ask.start for ask in asks])
        found = self._rows(BEFORE, *places, page)
        cancels, last = dict[str, str](), defaultdict[str, list[tuple[int, str]]](list)
        for item, parent, place, mine in found:
            last[item].append((place, parent))
            state = jobs[item][0]
            if mine and state is not State.COMPLETED:
                cancels[parent] = gatherer_ended(item, cast(State, state))
        locked = self._cancel(cancels)
        held = {item for item, parent, _, _ in found if parent in locked}
        held |= {child for _, child in self._change(UNNEED, STILL_LIVE, {(row[1], row[0]) for row in found})}
        locked = self._release({row[1] for row in found})
        held |= {item for item, parent, _, _ in found if parent in locked}
        whole: list[Ask] = []
        for ask in asks:
            if ask.item in held:
                self._held.append(ask)
            elif len(last[ask.item]) == page:
                place, parent = last[ask.item][-1]
                self._again.append(ask._replace(place=place, start=parent))
            else:
                whole.append(ask)
        self._release({ask.item for ask in whole})

    def _release(self, ids: set[str]) -> set[str]:
        """An ended job is kept for those that may need it, and no longer. Returns those that are locked elsewhere.

        Whether any does is read in the statement after the lock: a transaction that has just marked it has committed.
        """
        if not ids:
            return set()
        free = {row[0] for row in self._rows(LOCK_TO_RELEASE, sorted(ids))}
        self._write(RELEASE, free)
        rest = ids - free
        return {row[0] for row in self._rows(TO_RELEASE, list(rest))} if rest else rest

    # ── a job that waits ──

    def _look(self, asks: list[Ask], page: int) -> None:
        todo = [ask if ask.phase == LOOKING else Ask(ask.item, LOOKING) for ask in asks]
        found = self._rows(NEW, [ask.item for ask in todo], [ask.start for ask in todo], page)
        parents, locked = self._locked({row[1] for row in found})
        self._write(MARK, [each for each, (state, _) in parents.items() if state is not None])
        held = {child for child, parent, _ in found if parent in locked}
        becomes, cancels, last = dict[tuple[str, str], str](), dict[str, str](), defaultdict[str, list[str]](list)
        for child, parent, until in found:
            last[child].append(parent)
            if parent in locked:
                continue
            fate = closes(until, *parents[parent])
            if fate == "cancel":
                cancels.setdefault(child, parent_lost(parent, gone=parents[parent][0] is None))
            else:
                becomes[parent, child] = "closed" if fate == "close" else "armed"
        held |= {child for _, child in self._change(ARM, STILL_NEW, set(becomes), becomes)}
        self._cancel(cancels)
        self._admit([ask.item for ask in todo if ask.item not in cancels])
        for ask in todo:
            if ask.item in cancels:
                continue
            if ask.item in held:
                self._held.append(ask)
            elif len(last[ask.item]) == page:
                self._again.append(ask._replace(start=last[ask.item][-1]))

    def _admit(self, ids: list[str]) -> None:
        if not ids:
            return
        # First: each statement has its own time, and a wait that has ended in between must still be known as one.
        over = self._rows(TIME_OVER, EXPIRED, ids)
        self._done.cancelled += sum(state == State.CANCELLED for (state,) in over)
        for queue, job_id, state, limited in sorted(self._rows(ADMIT, ids)):
            if state == State.SCHEDULED:
                self._done.scheduled = True
            elif not limited:
                self._done.jobs[queue].append(job_id)

    # ── writes that wait for no lock ──

    def _change(
        self, statement: str, still: str, pairs: _Pairs, becomes: Mapping[tuple[str, str], str] | None = None
    ) -> _Pairs:
        """Change edges, (parent, child) each. Returns those that are locked elsewhere."""
        if not pairs:
            return _Pairs()
        order = sorted(pairs)
        ends = [parent for parent, _ in order], [child for _, child in order]
        more = [] if becomes is None else [[becomes[pair] for pair in order]]
        rest = pairs.difference(self._rows(statement, *ends, *more))
        return set(self._rows(still, [pair[0] for pair in rest], [pair[1] for pair in rest])) if rest else rest

    def _cancel(self, reasons: Mapping[str, str]) -> set[str]:
        """Cancel live jobs. Returns those that are locked elsewhere."""
        if not reasons:
            return set()
        states = dict(self._rows(CANCEL, list(reasons), list(reasons.values())))
        self._done.cancelled += sum(state == State.CANCELLED for state in states.values())
        rest = reasons.keys() - states.keys()
        return {row[0] for row in self._rows(STILL_LIVING, list(rest))} if rest else set()
