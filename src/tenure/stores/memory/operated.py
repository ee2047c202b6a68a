"""One job in memory, as an operator asks; and what is forgotten with it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tenure.core.lifecycle import ENDED, State, legal
from tenure.ports import Answer, Edit, JobView, Landed, NotLanded
from tenure.stores.memory.base import MemoryBase
from tenure.stores.memory.rows import FORGOTTEN, SAID, Row, age
from tenure.stores.rules import (
    NOT_DELETED,
    closes,
    gathers,
    held_by_child,
    key_held,
    not_replayed_for,
    parent_missing,
    still_gathers,
    why_not_replayed,
)

_EVER = datetime.min.replace(tzinfo=UTC)


class MemoryOperated(MemoryBase):
    """How a job is replayed, deleted and forgotten."""

    def _replay(self, row: Row, edit: Edit | None, delay: float) -> Answer:
        view = row.view
        refused = why_not_replayed(view.state, view.queue)
        if refused:
            return refused
        holder = self._holder(view.task, view.unique)
        if holder:
            return key_held(holder.view.id, view.unique)
        refused = self._open_again(view)
        if refused:
            return refused
        fresh: dict[str, Any] = {
            **dict.fromkeys(FORGOTTEN),
            **dict.fromkeys(("failures", "crashes", "crashes_total"), 0),
        }
        if edit:
            row = replace(row, draft=row.draft.but(payload=edit.payload, meta=edit.meta))
            fresh |= {"payload": edit.payload, "meta": json.loads(edit.meta), **dict.fromkeys(SAID)}
        to, due = State.SCHEDULED if delay > 0 else State.QUEUED, self.now() + timedelta(seconds=delay)
        if self._known.waits(view.id):
            to = State.WAITING
            self._known.ask(view.id)
        fresh["linked"] = bool(self._known.before(view.id) or self._live_child(view.id))
        fresh |= {"run_at": due, "due_at": None, "solo": view.isolated, "together": 1}
        to = (
            self._due("replay", row, **fresh) if to is State.QUEUED else self._move("replay", row, to, **fresh)
        ).view.state
        for key, tick in self._ticks.items():
            # The job is a run of its schedule again; the new rev refuses a writer that still saw the run as ended.
            stands = self._schedules.get(tick.schedule)
            if tick.job_id == view.id and stands is not None and (stands.named_at or _EVER) <= tick.decided_at:
                self._ticks[key] = tick.reopened
                self._schedules[tick.schedule] = stands.but(rev=stands.rev + 1)
        return Landed(to)

    def _delete(self, row: Row) -> Answer:
        if not legal("delete", row.view.state):
            return NOT_DELETED
        child = self._live_child(row.view.id)
        if child is not None:
            return held_by_child(child)
        gathered = self._gathers(row.view.id)
        if gathered is not None:
            return gathers(gathered)
        self._forget(row.view.id)
        return Landed(row.view.state)

    def _open_again(self, view: JobView) -> NotLanded | None:
        """Before a replay: reopen edges whose parents have not ended as they ask. Returns why not, if it is refused."""
        child = self._live_child(view.id)
        if view.state is State.COMPLETED and child is not None:
            return not_replayed_for(child)
        gathered = self._gathers(view.id)
        if gathered is not None:
            return still_gathers(gathered)
        fates = [(edge, self._jobs.get(edge.parent)) for edge in self._known.before(view.id)]
        for edge, parent in fates:
            lost = parent is None or closes(edge.until, parent.view.state, parent.view.error) == "cancel"
            if lost and edge.until == "completed" and not edge.mine and not edge.skipped:
                return parent_missing(edge.parent, gone=parent is None)
        for edge, parent in fates:
            state = parent.view.state if parent else None
            met = state is State.COMPLETED or (edge.until == "ended" and state in ENDED)
            if edge.mine and not edge.skipped and not met:
                self._known.drop(edge)  # the handler gathers anew
                self._known.ask(edge.parent)
                continue
            if not edge.skipped and not (parent is None and edge.until == "ended"):
                edge.open = not met
            if parent is not None:
                self._keep(self._jobs[edge.parent], linked=True)
        return None

    def _forget(self, job_id: str) -> None:
        """Its parents are looked at: they may be kept for this job only."""
        for edge in self._known.before(job_id):
            self._known.ask(edge.parent)
        view = self._jobs.pop(job_id).view
        for key in view.limits if view.state is State.QUEUED else ():
            self._known.tell(key, "look")
        self._known.forget(job_id)

    def _forget_flows(self) -> None:
        """Forget flows of which no job is left."""
        used = {row.view.flow for row in self._rows()}
        for name in self._known.flows.keys() - used:
            del self._known.flows[name]

    def _forget_signals(self, keep: float) -> None:
        """Forget old shared signals."""
        now = self.now()
        for key, (_, sent_at) in list(self._known.signals.items()):
            if not key[0] and age(now, sent_at) > keep:
                del self._known.signals[key]
