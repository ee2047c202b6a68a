"""Jobs that wait, in memory: the verbs of `WaitStore`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter

from tenure.core.lifecycle import ENDED, LIVE, State, legal
from tenure.ports import (
    LINKS_PROTOCOL,
    NEWEST_FLOWS,
    PROTOCOL,
    Admitted,
    Answer,
    EdgeView,
    FlowView,
    Input,
    JobView,
    Landed,
    Member,
    SignalView,
    Waits,
)
from tenure.stores.memory.base import atomic
from tenure.stores.memory.limits import MemoryLimits
from tenure.stores.memory.links import Edge
from tenure.stores.memory.rows import Row
from tenure.stores.rules import (
    MOST_ASKS,
    SHARED,
    Fate,
    check_text,
    closes,
    gatherer_ended,
    not_skipped,
    parent_lost,
    sent_before,
    too_late,
)


class MemoryWaiting(MemoryLimits):
    """The verbs of `WaitStore`."""

    @atomic
    def admit(self, *, limit: int = 200) -> Admitted:
        jobs: dict[str, list[str]] = {}
        scheduled, cancelled = False, 0
        if self.outdated(LINKS_PROTOCOL):
            return Admitted({})
        for row in self._rows():
            if row.view.wait_until is not None and row.view.wait_until <= self.now():
                self._known.ask(row.view.id)
        for item in list(self._known.asks)[:limit]:
            del self._known.asks[item]
            for job_id in self._concerned(item):
                match self._answer(job_id):
                    case State.QUEUED:
                        jobs.setdefault(self._jobs[job_id].view.queue, []).append(job_id)
                    case State.SCHEDULED:
                        scheduled = True
                    case State.CANCELLED:
                        cancelled += 1
                    case _:
                        pass
        limited = not self.outdated()
        for job_id, state in self._give_places(limit) if limited else ():
            if state is State.QUEUED:
                jobs.setdefault(self._jobs[job_id].view.queue, []).append(job_id)
            else:
                cancelled += 1
        ends = [row.view.wait_until.timestamp() for row in self._rows() if row.view.wait_until is not None]
        ends += [due for due, _ in self._known.dues.values()] if limited else []
        next_due = max(min(ends) - self._clock.unix(), 0.0) if ends else None
        more = bool(self._known.asks or (limited and self._known.told))
        return Admitted(jobs, scheduled, cancelled, more, next_due)

    def _give_places(self, most: int) -> list[tuple[str, State]]:
        done: list[tuple[str, State]] = []
        now = self._clock.unix()
        for key in [key for key, (due, found) in self._known.dues.items() if due <= now or found > now]:
            del self._known.dues[key]
            self._known.tell(key, "look")
        for key in list(self._known.told)[:most]:
            if len(done) < most:
                done += self._serve(key, most - len(done))
        return done

    @atomic
    def outdated(self, protocol: int = PROTOCOL) -> list[str]:
        living = [worker for worker in self._workers.values() if not worker.died_at and not self._lease_over(worker)]
        return sorted(worker.identity.id for worker in living if worker.identity.protocol < protocol)

    @atomic
    def signal(self, job_id: str | None, key: str, value: str, *, replace: bool = False) -> Answer | None:
        check_text(key, value)
        row = self._jobs.get(job_id or "")
        if job_id is not None:
            if row is None:
                return None
            if row.view.state in ENDED:
                return too_late(row.view.state)
        before = self._known.signals.get((job_id or "", key))
        if before is not None and not replace:
            return sent_before(key, before[1])
        self._known.signals[job_id or "", key] = (value, self.now())
        self._known.ask(job_id or key)
        return Landed(row.view.state if row else State.WAITING)

    @atomic
    def signals(self, job_id: str | None, keys: Iterable[str] | None = None, *, start: str = "") -> list[SignalView]:
        known = {key for key in self._known.keys(job_id or "") if key > start}
        wanted = sorted(known if keys is None else known & set(keys))
        return [SignalView(key, *self._known.signals[job_id or "", key]) for key in wanted[:1000]]

    @atomic
    def inputs(self, job_id: str, *, start: int = 0, limit: int = 200) -> list[Input]:
        return [self._input(edge) for edge in self._known.before(job_id) if edge.place >= start][:limit]

    @atomic
    def dependents(self, job_id: str, *, start: str = "", limit: int = 200) -> list[tuple[str, Input]]:
        found = sorted(((edge.child, edge) for edge in self._known.behind(job_id)), key=lambda each: each[0])
        return [(child, self._input(edge)) for child, edge in found if child > start][:limit]

    @atomic
    def ask(self, ids: Iterable[str]) -> None:
        for each in ids:
            self._known.ask(each)

    @atomic
    def skip(self, ids: Iterable[str]) -> dict[str, Answer | None]:
        return {name: self._skip(row) if row else None for name, row in self._named(ids)}

    @atomic
    def flows(
        self, ids: Iterable[str] | None = None, *, limit: int = 50, before: tuple[datetime, str] | None = None
    ) -> list[FlowView]:
        known = self._known.flows
        wanted = list(known) if ids is None else [each for each in dict.fromkeys(ids) if each in known]
        order = sorted(((known[each][1], each) for each in wanted), reverse=True)
        found = [each for each in order if before is None or each < before]
        return [self._flow(name) for _, name in found[:limit]]

    @atomic
    def members(self, flow: str, *, start: str = "", limit: int = 1000) -> list[Member]:
        found = sorted((row.view for row in self._rows() if row.view.flow == flow), key=lambda view: view.id)
        return [Member(view.id, view.task, view.queue, view.state) for view in found if view.id > start][:limit]

    @atomic
    def edges(self, ids: Sequence[str], *, limit: int = 2000) -> list[EdgeView]:
        found = [edge for job_id in ids for edge in self._known.before(job_id)]
        return [EdgeView(*attrgetter(*EdgeView._fields)(edge)) for edge in found[:limit]]

    @atomic
    def holding(self, *, limit: int = 50) -> list[JobView]:
        dead = [row.view for row in self._rows() if row.view.linked and row.view.state is State.DEAD]
        return sorted(dead, key=lambda view: (view.ended_at, view.id), reverse=True)[:limit]

    @atomic
    def waited_longest(self, *, limit: int = 50) -> list[JobView]:
        waiting = [row.view for row in self._rows() if row.view.state is State.WAITING]
        return sorted(waiting, key=lambda view: (view.run_at, view.id))[:limit]

    @atomic
    def lost_waits(self, ids: Iterable[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        asks = self._known.asks
        if len(asks) > MOST_ASKS:
            return found
        for row in [row for each in ids if (row := self._jobs.get(each)) is not None]:
            view = row.view
            if view.state is not State.WAITING or view.parked is not None or {view.id, view.wait_for} & asks.keys():
                continue
            left = [edge for edge in self._known.before(view.id) if edge.open]
            missed = [each.parent for each in left if each.parent not in asks and self._fate(each) != "hold"]
            if missed or (not left and self._is_sent(view)):
                found[view.id] = missed
        return found

    @atomic
    def waits(self, *, most: int = 10_000) -> Waits:
        live = {row.view.flow for row in self._rows() if row.view.state in LIVE}
        newest = sorted(((at, flow) for flow, (_, at) in self._known.flows.items()), reverse=True)[:NEWEST_FLOWS]
        return Waits(min(len(self._known.asks), most), sum(flow in live for _, flow in newest))

    # ── one ask ──

    def _concerned(self, item: str) -> list[str]:
        if not item.startswith(SHARED):
            return [item]
        return [row.view.id for row in self._rows() if row.view.wait_for == item]

    def _answer(self, job_id: str) -> State | None:
        """The state of a job that was waiting; None: it was not."""
        row = self._jobs.get(job_id)
        if row is None:
            return None
        if row.view.state in ENDED:
            self._tell(row)
        elif self._known.before(job_id) and not row.view.linked:
            row = self._keep(row, linked=True)
        return self._look(row) if legal("admit", row.view.state) else None

    def _look(self, row: Row) -> State:
        """A waiting job: close what can be closed, and admit it if nothing is left."""
        view = row.view
        if view.parked is not None:  # only a key lets it go, but it may have expired
            expired = view.wait_until is not None and view.wait_until <= self.now()
            return self._expired(view.id) if expired else State.WAITING
        for edge in self._known.before(view.id):
            if edge.open:
                parent = self._jobs.get(edge.parent)
                if parent is not None and not parent.view.linked:
                    self._keep(parent, linked=True)
                if self._closed(edge, parent) is State.CANCELLED:
                    return self._jobs[view.id].view.state
        if not self._signalled(row):
            return State.WAITING
        if self._known.waits(view.id):
            self._keep(self._jobs[view.id], wait_for=None, wait_until=None)
            return State.WAITING
        row = self._jobs[view.id]
        now = self.now()
        due = view.run_at if view.run_at > max(now, view.enqueued_at) else now
        expires = None if view.expires_at is None else view.expires_at + (due - view.run_at)
        changes = {"run_at": due, "expires_at": expires, "wait_for": None, "wait_until": None}
        if view.limits and due <= now:
            row = self._keep(row, **changes)
            self._keep(row, **self._parking(row, due))
            return State.WAITING
        return self._move("admit", row, State.SCHEDULED if due > now else State.QUEUED, **changes).view.state

    def _closed(self, edge: Edge, parent: Row | None) -> State | None:
        """Close the edge if its parent's state allows it; CANCELLED: its child was cancelled instead."""
        fate = self._fate(edge)
        if fate == "close":
            edge.open = False
        child = self._jobs.get(edge.child)
        if fate != "cancel" or child is None or child.view.state not in LIVE:
            return None
        self._cancel(child, parent_lost(edge.parent, gone=parent is None))
        return State.CANCELLED

    def _fate(self, edge: Edge) -> Fate:
        parent = self._jobs.get(edge.parent)
        state, error = (None, None) if parent is None else (parent.view.state, parent.view.error)
        return closes(edge.until, state, error)

    def _signalled(self, row: Row) -> bool:
        until = row.view.wait_until
        return self._is_sent(row.view) or (until is not None and until <= self.now())

    def _is_sent(self, view: JobView) -> bool:
        key = view.wait_for
        owner = "" if key is None or key.startswith(SHARED) else view.id
        return key is None or (owner, key) in self._known.signals

    def _tell(self, row: Row) -> None:
        """An ended job: its children are looked at, what it still gathers ends, and no job is kept for it any more."""
        view = row.view
        for edge in self._known.behind(view.id):
            if edge.open and self._closed(edge, row) is None and not self._known.waits(edge.child):
                self._known.ask(edge.child)
        for edge in self._known.before(view.id):
            parent = self._jobs.get(edge.parent)
            if parent is None:
                continue
            if edge.mine and view.state is not State.COMPLETED and parent.view.state in LIVE:
                self._cancel(parent, gatherer_ended(view.id, view.state))
            self._release(edge.parent)
        self._release(view.id)

    def _release(self, job_id: str) -> None:
        """An ended job is kept for the live jobs that wait for it, and no longer."""
        row = self._jobs.get(job_id)
        if row is not None and row.view.linked and row.view.state in ENDED and not self._live_child(job_id):
            self._keep(row, linked=False)

    # ── what people ask ──

    def _skip(self, row: Row) -> Answer:
        view = row.view
        if view.state not in (State.DEAD, State.CANCELLED):
            return not_skipped(view.state)
        for edge in self._known.behind(view.id):
            if edge.open:
                edge.open, edge.skipped = False, True
                self._known.ask(edge.child)
        return Landed(view.state)

    def _input(self, edge: Edge) -> Input:
        parent = self._jobs.get(edge.parent)
        place = edge.place, edge.parent, edge.until, edge.open, edge.skipped, edge.mine
        if parent is None:
            return Input(*place, None, None, None, None)
        view = parent.view
        return Input(*place, view.task, view.state, view.result, view.error)

    def _flow(self, flow_id: str) -> FlowView:
        name, created_at = self._known.flows[flow_id]
        states = [row.view.state for row in self._rows() if row.view.flow == flow_id]
        counts = {state: states.count(state) for state in State}
        return FlowView(id=flow_id, name=name, created_at=created_at, counts=counts)
