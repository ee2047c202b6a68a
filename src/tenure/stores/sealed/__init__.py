"""A store whose values are encrypted before it keeps them: any store, with a codec in front of it.

It is the only seam: all that writes or reads values of jobs goes through a `Store`, so neither the code above
nor the store below knows of a codec. What the engine finds, orders and counts by is not encrypted (values.py), so each
verb works as without a codec, on the same rows.

Without a codec it is for people: it encrypts nothing, and says of each encrypted value why it can't be shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from tenure.codecs import Codec
from tenure.core.lifecycle import Lease, Outcome, State
from tenure.core.sealed import ALTERED, is_sealed, why_sealed
from tenure.errors import Locked
from tenure.ports import (
    NO_DELAYS,
    NO_EDITS,
    NONE_KNOWN,
    Answer,
    AttemptView,
    Busy,
    Capabilities,
    Claimed,
    Draft,
    Edit,
    Enqueued,
    Filter,
    Input,
    JobView,
    OnceRecord,
    OnLoop,
    Owned,
    Page,
    Progress,
    Rescued,
    SignalView,
    Store,
    Text,
    Update,
)
from tenure.ports.schedules import Change, Swapped
from tenure.stores.inline import told
from tenure.stores.rules import matches
from tenure.stores.sealed.values import ONCE, Seal

_HIDDEN = frozenset(
    ("payload", "result", "error", "text")
)  #: fields that a store can't compare when they are encrypted
_AT_LEAST = 100  #: jobs that are read at a time to compare such fields: one by one would take long


class SealedStore:
    """`sealed(store, codec)` makes one. What is not named here passes unchanged: names, times, states, counts."""

    def __init__(self, store: Store, codec: Codec | None) -> None:
        self.beneath = store
        self.seal = Seal(codec)
        inline = store.capabilities.inline
        if codec is not None:
            inline = inline // 2  # what is encrypted is longer by a third
        self.capabilities: Capabilities = replace(store.capabilities, sealed=codec is not None, inline=inline)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.beneath, name)
        with suppress(AttributeError):
            if callable(found):
                setattr(self, name, found)  # so that the next call bypasses this
        return found

    # ── clients ──

    def enqueue(
        self, drafts: Sequence[Draft], *, tx: object = None, committed: Callable[[], None] | None = None
    ) -> list[Enqueued]:
        return self.beneath.enqueue(list(map(self.seal.draft, drafts)), tx=tx, committed=committed)

    def enqueue_on_loop(self, draft: Draft) -> OnLoop[Enqueued]:
        return self.beneath.enqueue_on_loop(self.seal.draft(draft))

    def replay(
        self, ids: Iterable[str], *, edits: Mapping[str, Edit] = NO_EDITS, delays: Mapping[str, float] = NO_DELAYS
    ) -> dict[str, Answer | None]:
        closed = {job_id: self.seal.edit(job_id, edit) for job_id, edit in edits.items()}
        return self.beneath.replay(ids, edits=closed, delays=delays)

    def signal(self, job_id: str | None, key: str, value: str, *, replace: bool = False) -> Answer | None:
        return self.beneath.signal(job_id, key, self.seal.close(value, "signal", job_id or "", key), replace=replace)

    def change(self, changes: Sequence[Change]) -> list[bool]:
        return self.beneath.change([self._changed(each) if each.drafts else each for each in changes])

    def _changed(self, change: Change) -> Change:
        return replace(change, drafts=tuple(map(self.seal.draft, change.drafts)))

    def swap(
        self, key: str, old: str | None, new: str | None, *, ttl: float | None = None, drafts: Sequence[Draft] = ()
    ) -> Swapped:
        drafts = list(map(self.seal.draft, drafts))
        if not key.startswith(ONCE):
            return self.beneath.swap(key, old, new, ttl=ttl, drafts=drafts)
        note = self.seal.note
        landed, value = self.beneath.swap(key, note(key, old), note(key, new), ttl=ttl, drafts=drafts)
        return Swapped(landed, self.seal.opened_note(key, value))

    def notes(self, prefix: str) -> dict[str, str]:
        found = self.beneath.notes(prefix)
        return {key: self.seal.shown_note(key, text) if key.startswith(ONCE) else text for key, text in found.items()}

    # ── owners ──

    def claim(self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False) -> list[Claimed]:
        return list(map(self.seal.claimed, self.beneath.claim(worker_id, wants, limit, solo=solo)))

    def claim_on_loop(
        self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False
    ) -> OnLoop[list[Claimed]]:
        claimed = yield from self.beneath.claim_on_loop(worker_id, wants, limit, solo=solo)
        return None if claimed is None else list(map(self.seal.claimed, claimed))

    def owned(self, worker_id: str, known: Mapping[Lease, Claimed] = NONE_KNOWN) -> list[Owned]:
        found = self.beneath.owned(worker_id, known)
        return [each._replace(claimed=self.seal.claimed(each.claimed)) for each in found]

    def progress(self, reports: Sequence[Progress]) -> list[bool]:
        return self.beneath.progress(list(map(self.seal.report, reports)))

    def once(self, lease: Lease, key: str, value: str | None) -> OnceRecord | None:
        """As in any store. Raises Locked."""
        closed = None if value is None else self.seal.close(value, "once", lease.job_id, key)
        found = self.beneath.once(lease, key, closed)
        if found is None or found.value is None:
            return found
        return OnceRecord(self.seal.needed(found.value, "once", lease.job_id, key, f"the record {key!r}"))

    def finish(self, ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        return self.beneath.finish(
            [(lease, self.seal.outcome(lease.job_id, outcome)) for lease, outcome in ends], tx=tx
        )

    def settle(self, worker_id: str, verdicts: Mapping[str, Outcome], rest: Outcome, *, how: str = "") -> list[Rescued]:
        closed = {job_id: self.seal.outcome(job_id, outcome) for job_id, outcome in verdicts.items()}
        return self.beneath.settle(worker_id, closed, rest, how=how)

    def records(self, job_id: str) -> Mapping[str, str]:
        found = self.beneath.records(job_id).items()
        return {key: self.seal.open(text, "once", job_id, key) for key, text in found}

    def rewrite(self, changes: Sequence[tuple[Text, str]]) -> int:
        closed = self.seal.closed
        return self.beneath.rewrite(
            [(each._replace(value=closed(each, each.value)), closed(each, new)) for each, new in changes]
        )

    def keep(self, texts: Iterable[Text]) -> Future[None] | None:
        return self.beneath.keep([each._replace(value=self.seal.closed(each, each.value)) for each in texts])

    def fetch(self, text: Text) -> str:
        """As in any store. Raises Locked."""
        found = self.seal.opened(text._replace(value=self.beneath.fetch(text)))
        if is_sealed(found):
            raise Locked(told(text), why_sealed(found), altered=found == ALTERED)
        return found

    # ── reads ──

    def get(self, job_id: str) -> JobView | None:
        found = self.beneath.get(job_id)
        return None if found is None else self.seal.view(found)

    def updates(self, seen: Mapping[str, str], *, limit: int = 50) -> list[Update]:
        return list(map(self.seal.update, self.beneath.updates(seen, limit=limit)))

    def search(self, where: Filter, *, limit: int = 50, cursor: str | None = None, within: int | None = None) -> Page:
        """As in any store; encrypted fields are compared here, job by job, until `limit` are found or none is left."""
        if where.text is None and not any(each.field in _HIDDEN for each in where.conditions):
            page = self.beneath.search(where, limit=limit, cursor=cursor, within=within)
            return replace(page, jobs=tuple(map(self.seal.view, page.jobs)))
        left = within
        there = tuple(each for each in where.conditions if each.field not in _HIDDEN)
        rest, found = replace(where, text=None, conditions=there), list[JobView]()

        def meets(job: JobView) -> bool:
            return matches(self.seal.searched(job), where)

        while True:
            room = limit - len(found)
            page = self.beneath.search(rest, limit=max(room, _AT_LEAST), cursor=cursor, within=left)
            met = list(map(meets, page.jobs))
            if sum(met) > room:  # read fewer, so that the cursor is behind the last job of this page
                last = [place for place, yes in enumerate(met) if yes][room - 1]
                page = self.beneath.search(rest, limit=last + 1, cursor=cursor, within=left)
                met = list(map(meets, page.jobs))
            looked, cursor = page.jobs, page.cursor
            found += [self.seal.view(job) for job, yes in zip(looked, met, strict=True) if yes]
            left = None if left is None else left - max(len(looked), 1)
            if cursor is None or len(found) >= limit or page.reached is not None or (left is not None and left <= 0):
                reached = page.reached or (looked[-1].enqueued_at if looked else None)
                return Page(tuple(found), cursor, reached if cursor and len(found) < limit else None)

    def latest_ended(self, state: State, **options: Any) -> list[JobView]:
        return list(map(self.seal.view, self.beneath.latest_ended(state, **options)))

    def holding(self, *, limit: int = 50) -> list[JobView]:
        return list(map(self.seal.view, self.beneath.holding(limit=limit)))

    def waited_longest(self, *, limit: int = 50) -> list[JobView]:
        return list(map(self.seal.view, self.beneath.waited_longest(limit=limit)))

    def holders(self, key: str, *, limit: int = 50) -> list[JobView]:
        return list(map(self.seal.view, self.beneath.holders(key, limit=limit)))

    def parked(self, key: str, *, limit: int = 50) -> list[JobView]:
        return list(map(self.seal.view, self.beneath.parked(key, limit=limit)))

    def logs(self, job_id: str) -> dict[int, str]:
        return {attempt: self.seal.log(job_id, text) for attempt, text in self.beneath.logs(job_id).items()}

    def attempts(self, job_id: str) -> list[AttemptView]:
        return list(map(self.seal.attempt, self.beneath.attempts(job_id)))

    def signals(self, job_id: str | None, keys: Iterable[str] | None = None, *, start: str = "") -> list[SignalView]:
        return [self.seal.signal(job_id, each) for each in self.beneath.signals(job_id, keys, start=start)]

    def inputs(self, job_id: str, *, start: int = 0, limit: int = 200) -> list[Input]:
        return list(map(self.seal.input, self.beneath.inputs(job_id, start=start, limit=limit)))

    def dependents(self, job_id: str, *, start: str = "", limit: int = 200) -> list[tuple[str, Input]]:
        found = self.beneath.dependents(job_id, start=start, limit=limit)
        return [(child, self.seal.input(each)) for child, each in found]


def sealed(store: Store, codec: Codec | None) -> Store:
    """The store, with this codec in front of it."""
    return cast("Store", SealedStore(store, codec))


def beneath(store: Store) -> Store:
    """The store without the codec in front of it, if there is one."""
    return store.beneath if isinstance(store, SealedStore) else store
