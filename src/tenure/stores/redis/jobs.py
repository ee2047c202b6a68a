"""Jobs in Redis: the verbs of clients and owners."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

from tenure.core.lifecycle import EXPIRED, Completed, Lease, Outcome, State, reason_of
from tenure.errors import StoreAway, StoreError
from tenure.ports import (
    BATCH_BYTES,
    NO_DELAYS,
    NO_EDITS,
    NONE_KNOWN,
    Answer,
    Busy,
    Claimed,
    Draft,
    Edit,
    Enqueued,
    Landed,
    OnceRecord,
    OnLoop,
    Owned,
    Progress,
    Promoted,
)
from tenure.stores.redis import on_loop
from tenure.stores.redis.base import RedisBase
from tenure.stores.redis.drafts import MOST, MOST_BYTES, batches, cost, values
from tenure.stores.redis.facts import decode_facts, millis, with_meta
from tenure.stores.redis.links import enqueue_linked, enqueued, open_edges, tied
from tenure.stores.redis.server import out_of_memory
from tenure.stores.redis.steps import TRIES, decided, what_stands
from tenure.stores.rules import (
    COMPLETED,
    GUARDED,
    MANY_QUEUES,
    NOT_DELETED,
    WORKER_KEPT,
    ages,
    check_drafts,
    check_outcomes,
    check_replay,
    check_reports,
    check_text,
    gathers,
    held_by_child,
    is_id,
    json_of,
    key_held,
    not_ended,
    not_replayed_for,
    parent_missing,
    promoted,
    still_gathers,
)

_End = tuple[int, Lease, Outcome]  #: the first item is its position in the batch

MOST_CLAIMED = 500
MOST_KEPT = 1000  #: jobs that others need, over which one `prune` steps
FACTS = 1024  #: bytes of a job's facts that `claim` does not count: few jobs have more
_REPLAYED = {1: State.QUEUED, 3: State.SCHEDULED, 4: State.WAITING}
CHANGED, MANY_EDGES, NO_ROOM = 2, 5, 6  #: `replay` did nothing: see replay.lua
_NO_PAST = ("0", "0", None, 0, 0, 0)
NO_TRANSACTIONS = (
    "tx: a job in Redis can't join a transaction of another database, and Redis has none to lend: enqueue after the "
    "commit, or keep the jobs in PostgreSQL or SQLite"
)


class RedisJobs(RedisBase):
    """The verbs of `JobStore`."""

    # ── clients ──

    def enqueue(
        self, drafts: Sequence[Draft], *, tx: object = None, committed: Callable[[], None] | None = None
    ) -> list[Enqueued]:
        """As in the port, which promises less for more than 200 jobs: if the call fails, enqueue all of it again.

        A call with links stores all of its jobs, or none.
        """
        if tx is not None:
            raise StoreError(NO_TRANSACTIONS)
        check_drafts(drafts, ranges=True)
        try:
            if any(draft.links for draft in drafts):
                return enqueue_linked(self._server, drafts)
            sent = list(batches(drafts, lambda draft: len(draft.payload) + len(draft.meta)))
            results = self._server.call_each("enqueue", sent, values)
        except StoreAway as error:
            if out_of_memory(error.__cause__):
                raise StoreAway(f"{error}. {self._what_is_stored(drafts)}") from error
            raise
        return enqueued(drafts, list(chain.from_iterable(results)))

    def _what_is_stored(self, drafts: Sequence[Draft]) -> str:
        """For the error of a refused enqueue: an earlier batch, or an earlier try, may have stored some."""
        keys = [f"{self._server.prefix}job:{job_id}" for job_id in {draft.id for draft in drafts}]
        stored = sum(self._server.run("EXISTS", *some) for some in batches(keys))
        if not stored:
            return "Nothing of this was stored"
        return (
            f"{stored:,} of these {len(keys):,} jobs are stored: enqueue all of them again, the same bind()s or with "
            "the same ids, and each is stored once"
        )

    def enqueue_on_loop(self, draft: Draft) -> OnLoop[Enqueued]:
        check_drafts([draft], ranges=True)
        answers = yield from on_loop.call(self._server, "enqueue", values([draft]))
        return None if answers is None else enqueued([draft], answers)[0]

    def cancel(self, ids: Iterable[str], reason: str) -> dict[str, State | None]:
        check_text(reason)
        return self._states("cancel", ids, reason)

    def promote(self, *, limit: int = 1000) -> Promoted:
        moved: list[tuple[str, str, str | None]] = []
        limited = 0
        while True:
            next_due, waiting, *batch = self._server.call("promote", min(limit, MOST))
            moved += zip(batch[::3], batch[1::3], batch[2::3], strict=True)
            limited += waiting
            number = waiting + len(batch) // 3
            limit -= number
            if not limit or number < MOST:
                return promoted(moved, None if next_due is None else next_due / 1000, limited)

    def promote_now(self, ids: Iterable[str]) -> dict[str, State | None]:
        return self._states("promote_now", ids)

    def replay(
        self, ids: Iterable[str], *, edits: Mapping[str, Edit] = NO_EDITS, delays: Mapping[str, float] = NO_DELAYS
    ) -> dict[str, Answer | None]:
        wanted = list(dict.fromkeys(ids))
        check_replay(wanted, edits, delays)
        answers: dict[str, Answer | None] = {}
        waiting = [each for each in wanted if is_id(each)]
        opened: set[str] = set()
        tries = 0
        while waiting and tries < TRIES:
            again: list[str] = []
            asked = [
                (
                    each,
                    str(round(1000 * delays.get(each, 0.0))),
                    *self._edited(each, edits.get(each)),
                    "1" if each in opened else "",
                )
                for each in waiting
            ]
            for batch in batches(asked, lambda each: sum(map(len, each))):
                results = self._server.call("replay", EXPIRED, *chain.from_iterable(batch))
                for (job_id, *_), answer in zip(batch, results, strict=True):
                    if answer not in (CHANGED, MANY_EDGES, NO_ROOM):
                        answers[job_id] = _replayed(answer)
                        continue
                    lost = open_edges(self._server, job_id) if answer == MANY_EDGES else None
                    if lost:
                        answers[job_id] = _replayed(lost)
                        continue
                    if answer == MANY_EDGES:
                        opened.add(job_id)
                    again.append(job_id)
            tries += len(again) == len(waiting)
            waiting = again
        if not waiting:
            return {each: answers.get(each) for each in wanted}
        raise StoreAway(f"{self._server.url}: these jobs were edited faster than they could be read; try again")

    def _edited(self, job_id: str, edit: Edit | None) -> tuple[str, str, str]:
        """The arguments of the script `replay` for one edit: the current facts, the new facts, and the payload."""
        facts = edit and self._server.run("HGET", f"{self._server.prefix}job:{job_id}", "facts")
        return (facts, with_meta(facts, edit.meta), edit.payload) if edit and facts else ("", "", "")

    def delete(self, ids: Iterable[str]) -> dict[str, Answer | None]:
        return {each: _deleted(answer) for each, answer in self._each("delete", ids).items()}

    def _states(self, script: str, ids: Iterable[str], *values: str) -> dict[str, State | None]:
        found = self._each(script, ids, *values)
        return {each: None if state is None else State(state) for each, state in found.items()}

    def _each(self, script: str, ids: Iterable[str], *values: str) -> dict[str, Any]:
        """What a script answers for each job, in order; None for what is no id."""
        found: dict[str, Any] = dict.fromkeys(ids)
        for batch in batches([each for each in found if is_id(each)]):
            found |= zip(batch, self._server.call(script, *values, *batch), strict=True)
        return found

    def prune(self, *, keep: float, keep_dead: float | None, limit: int = 1000) -> int:
        gone = 0
        for state, age in ages(keep, keep_dead):
            examined, more = 0, True
            while more and gone < limit and examined < limit + MOST_KEPT:
                looked, went, more = self._server.call("prune", state, millis(age), min(limit - gone, MOST))
                gone += went
                examined += looked
        self._server.call("tidy", millis(WORKER_KEPT))
        self._server.call("forget_signals", millis(keep), MOST)
        return gone

    def pause(self, queue: str, *, paused: bool) -> bool:
        check_text(queue)
        return bool(self._server.call("pause", queue, int(paused)))

    # ── owners ──

    def claim_on_loop(
        self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False
    ) -> OnLoop[list[Claimed]]:
        if not wants or len(wants) >= MANY_QUEUES:
            return None
        claiming = _claiming(worker_id, wants, limit, solo=solo)
        results = yield from on_loop.call(self._server, "claim", next(claiming), large=True)
        return None if results is None else self._claim_rest(claiming, results)

    def claim(self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False) -> list[Claimed]:
        if len(wants) >= MANY_QUEUES:
            wants = {queue: wants[queue] for queue in self._with_jobs(list(wants), solo=solo)}
            if not wants:
                return []
        claiming = _claiming(worker_id, wants, limit, solo=solo)
        return self._claim_rest(claiming, self._server.call("claim", *next(claiming)))

    def _claim_rest(self, claiming: _Claiming, results: list[Any]) -> list[Claimed]:
        """Go on after the first script: more of them claim very many jobs, or large ones."""
        while True:
            try:
                values = claiming.send(results)
            except StopIteration as end:
                claimed: list[Claimed] = end.value
                return claimed
            results = self._server.call("claim", *values)

    def owned(self, worker_id: str, known: Mapping[Lease, Claimed] = NONE_KNOWN) -> list[Owned]:
        held: list[Owned] = []
        attempts = {lease.job_id: lease.attempt for lease in known}
        left = self._held(worker_id)
        while left:
            asked = [text for job_id in left[:MOST] for text in (job_id, attempts.get(job_id, ""))]
            looked, *rows = self._server.call("owned", worker_id, MOST_BYTES, *asked)
            for job_id, attempt, cancel_reason, *rest in rows:
                claimed = _claimed(job_id, attempt, *rest) if rest else known[Lease(job_id, int(attempt), worker_id)]
                held.append(Owned(claimed, cancel_reason))
            del left[:looked]
        return held

    def progress(self, reports: Sequence[Progress]) -> list[bool]:
        check_reports(reports, ranges=True)
        rows: list[tuple[Any, ...]] = []
        for report in reports:
            fields = {
                "progress": report.fraction,
                "stage": report.stage,
                "message": report.message,
                "checkpoint": report.checkpoint,
                "log": report.log,
            }
            rows.append((*report.lease, json_of({k: v for k, v in fields.items() if v is not None})))
        sent = list(batches(rows, lambda each: len(each[3])))
        answers = self._server.call_each("progress", sent, lambda batch: list(chain.from_iterable(batch)))
        return [bool(landed) for results in answers for landed in results]

    def refused(self, refusals: Sequence[tuple[Lease, str]]) -> None:
        check_text(*(why for _, why in refusals))
        rows: list[tuple[Any, ...]] = [(*lease, why) for lease, why in refusals]
        for batch in batches(rows, lambda each: len(each[3])):
            self._server.call("refused", *chain.from_iterable(batch))

    def once(self, lease: Lease, key: str, value: str | None) -> OnceRecord | None:
        check_text(key, value)
        result = self._server.call("once", *lease, key, *([] if value is None else [value]))
        return None if result is None else OnceRecord(result[0])

    def finish(self, ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        if tx is not None:
            raise StoreError(NO_TRANSACTIONS)
        check_outcomes([outcome for _, outcome in ends])
        ends = [(lease, tied(self._server, lease, outcome)) for lease, outcome in ends]
        landed: dict[int, Answer] = {}
        waiting: list[_End] = [(n, lease, outcome) for n, (lease, outcome) in enumerate(ends)]
        while waiting:  # if a lease is in the batch twice, the first outcome counts
            first = {lease: n for n, lease, _ in reversed(waiting)}
            landed |= self._finish([each for each in waiting if first[each[1]] == each[0]])
            waiting = [each for each in waiting if first[each[1]] != each[0]]
        return [landed[n] for n in range(len(ends))]

    def _finish(self, ends: Sequence[_End]) -> dict[int, Answer]:
        landed: dict[int, Answer] = {}
        for worker_id in dict.fromkeys(lease.worker_id for _, lease, _ in ends):
            mine = [(n, lease, end) for n, lease, end in ends if lease.worker_id == worker_id]
            landed |= self._complete(
                worker_id, [(n, lease, end) for n, lease, end in mine if isinstance(end, Completed)]
            )
        landed |= self._end([each for each in ends if not isinstance(each[2], Completed)])
        return landed

    def _complete(self, worker_id: str, done: Sequence[tuple[int, Lease, Completed]]) -> dict[int, Answer]:
        sent = list(batches(done, lambda each: len(each[2].result)))

        def arguments(batch: Sequence[tuple[int, Lease, Completed]]) -> list[Any]:
            return [worker_id, *(text for _, lease, end in batch for text in (lease.job_id, lease.attempt, end.result))]

        landed: dict[int, Answer] = {}
        for batch, refused in zip(sent, self._server.call_each("complete", sent, arguments), strict=True):
            landed |= dict.fromkeys((n for n, _, _ in batch), COMPLETED)
            for place, stands in refused:
                n, lease, outcome = batch[int(place)]
                landed[n] = what_stands(lease, outcome, stands)
        return landed

    def _end(self, ends: Sequence[_End]) -> dict[int, Answer]:
        """End attempts otherwise than completed: read the charges of each, decide, and write if they still hold."""
        landed: dict[int, Answer] = {}
        for batch in batches(ends, lambda each: cost(reason_of(each[2]) or "")):
            waiting = list(batch)
            for _ in range(TRIES):
                results = self._server.call("charges", *(text for _, lease, _ in waiting for text in lease))
                written: list[tuple[int, Landed, str]] = []
                again: list[_End] = []
                for (n, lease, outcome), (held, *found) in zip(waiting, results, strict=True):
                    if not held:
                        landed[n] = what_stands(lease, outcome, found[0])
                        continue
                    answer, end = decided(lease, outcome, found, None)
                    written.append((n, answer, end))
                    again.append((n, lease, outcome))
                if not written:
                    break
                fits = self._server.call("end", "", "", *(end for _, _, end in written))
                landed |= {n: answer for (n, answer, _), fit in zip(written, fits, strict=True) if fit}
                waiting = [each for each, fit in zip(again, fits, strict=True) if not fit]
                if not waiting:
                    break
            else:
                raise StoreAway(
                    f"{self._server.url}: the charges of these jobs changed faster than they could be read; try again"
                )
        return landed


# ── What scripts are given, and what they answer ────────────────────────────────────────────────────────────────


_Claiming = Generator[list[Any], list[Any], list[Claimed]]


def _claiming(worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool) -> _Claiming:
    """The values for one script after another, each for the results of the one before; at last, what they claimed."""
    left, claimed, room = dict(wants), list[Claimed](), BATCH_BYTES
    while True:
        asked, most = min(limit - len(claimed), MOST_CLAIMED), min(room, MOST_BYTES)
        asks = [each for want in left.items() for each in want]
        results = yield [worker_id, asked, int(solo), most, *asks]
        some = [_claimed(*results[place : place + 6]) for place in range(0, len(results), 6)]
        claimed += some
        size = 0 if len(some) == asked < MOST_CLAIMED else _bytes_of(results)
        room -= size
        if solo or room <= 0 or len(claimed) == limit or (len(some) < MOST_CLAIMED and size < most):
            return claimed
        for each in some:
            left[each.queue] -= 1


def _claimed(
    job_id: str, attempt: str, facts_text: str, payload: str, enqueued_at: str, past: Sequence[Any] | None
) -> Claimed:
    facts = decode_facts(facts_text)
    failures, crashes, checkpoint, expired, linked, limited = past or _NO_PAST
    return Claimed(
        job_id,
        int(attempt),
        facts.task,
        facts.queue,
        payload,
        int(failures),
        int(crashes),
        facts.meta,
        checkpoint,
        facts.timeout,
        facts.stale_after,
        int(enqueued_at),
        bool(expired),
        bool(linked),
        bool(limited),
    )


def _bytes_of(results: Sequence[Any]) -> int:
    """What the script `claim` counts: the texts of a job, and its facts as far as they are large."""
    texts = chain(results[3::6], (past[2] for past in results[5::6] if past and past[2]))
    large = sum(max(len(facts.encode()) - FACTS, 0) for facts in results[2::6])
    return large + sum(len(text.encode()) for text in texts)


def _replayed(result: Any) -> Answer | None:
    if result is None:
        return None
    if result == 0:
        return GUARDED
    if isinstance(result, int):
        return Landed(_REPLAYED[result])
    if isinstance(result, str):
        return not_ended(State(result))
    other, unique, *why = result
    if not why:
        return key_held(other, unique.partition("\0")[2])
    if why == ["child"]:
        return not_replayed_for(other)
    return still_gathers(other) if why == ["gathered"] else parent_missing(other, gone=why == ["gone"])


def _deleted(result: Any) -> Answer | None:
    if isinstance(result, list):
        other, why = cast("list[str]", result)
        return held_by_child(other) if why == "waits" else gathers(other)
    return NOT_DELETED if result == State.PROCESSING else result and Landed(State(result))
