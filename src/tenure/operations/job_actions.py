"""Operator actions on jobs: enqueue, cancel, promote, replay, delete; one, several, or all that match.

Every action is recorded in the audit trail with the operator's name, and notifies workers afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tenure.core.lifecycle import GUARD, State
from tenure.core.offloaded import ELSEWHERE
from tenure.core.sealed import ENCRYPTED
from tenure.errors import InvalidArguments, InvalidOption
from tenure.operations import stacks
from tenure.operations.job_search import spelled
from tenure.operations.jobs import (
    BATCH,
    MOST_AT_ONCE,
    SECRET,
    Acted,
    Bulk,
    Edited,
    JobReads,
    JobRef,
    Verb,
    actionable,
    edits_in,
    is_secret,
)
from tenure.operations.pace import Pace
from tenure.operations.stacks import JobStack
from tenure.ports import EDITS, Answer, Draft, Edit, Enqueued, Filter, Landed, NotLanded, Ring
from tenure.tasks.arguments import STARS, dump
from tenure.tasks.client import Client, rings_of
from tenure.tasks.limits import key_of

if TYPE_CHECKING:
    from tenure.tasks.task import Task

_EDITS_KEPT = 5
Kind = Literal["queued", "due", "cancel"]  #: of a ring


class Jobs(JobReads):
    """Queries and actions on jobs. Example: `admin.jobs.act("cancel", [admin.jobs.ref(job_id)], "not wanted")`"""

    def enqueue(self, drafts: Sequence[Draft]) -> list[Enqueued]:
        """Store jobs, all or none of them."""
        if not drafts:
            return []
        first, many = drafts[0], len(drafts)
        subject = first.task if many == 1 else f"{many} jobs, the first of {first.task}"
        with self._access.recorded("jobs.enqueue", subject, queue=first.queue) as said:
            answers = self._access.store.enqueue(drafts)
            created = sum(answer.created for answer in answers)
            old = "" if created == many else ", which already existed" if many == 1 else f", {created} of them new"
            said.append(f"job {answers[0].id}{old}")
        self._access.notifier.announce(rings_of(drafts, answers))
        return answers

    def pace(self, per_minute: int, where: Filter | None = None) -> Pace:
        """For a replay of `per_minute` jobs a minute. `where`: the filter that they match. Raises InvalidOption."""
        return Pace(self._access.store, per_minute, where)

    def act(
        self,
        verb: Verb,
        refs: Sequence[JobRef],
        reason: str = "",
        *,
        pace: Pace | None = None,
        among: frozenset[State] | None = None,
    ) -> Iterator[list[Acted]]:
        """Cancel, promote, replay or delete these jobs, batch by batch, with a result for each job.

        `pace`: when each of the replayed jobs is due. `among`: a job that is in none of these states by now is left
        alone, as when somebody else acted on it while this operator was asked.
        """
        if not refs:
            return
        subject = refs[0].id if len(refs) == 1 else f"{len(refs)} jobs, {refs[0].id} to {refs[-1].id}"
        with self._access.recorded(f"jobs.{verb}", subject, **_details(reason, pace)) as said:
            landed, says = 0, ""
            for acted in self._act(verb, refs, reason, pace, among):
                landed, says = landed + sum(each.landed for each in acted), acted[-1].says
                yield acted
            said.append(says if len(refs) == 1 else f"{landed} of {len(refs)}")

    def act_on_all(
        self,
        verb: Verb,
        where: Filter,
        reason: str = "",
        *,
        cursor: str | None = None,
        per_minute: int | None = None,
    ) -> Bulk:
        """Act on all jobs that match, on the server's side, newest first; at most ten thousand per call.

        Jobs enqueued meanwhile are left alone, and so are jobs in states that the verb does not apply to. With
        `per_minute` the jobs of a replay are due one after another; one that was cut short goes on at the next call.
        """
        if per_minute is not None and verb != "replay":
            raise InvalidOption(f"per minute: expected only with replay, got it with {verb}")
        done, refusals, refused = 0, 0, list[Acted]()
        where = actionable(verb, where)
        pace = None if per_minute is None else self.pace(per_minute, where)
        with self._access.recorded(f"jobs.{verb}", _spelled(where), **_details(reason, pace)) as said:
            for page in self.matches(where, cursor, MOST_AT_ONCE):
                refs = [JobRef(job.id, job.queue, job.state) for job in page.jobs]
                for acted in self._act(verb, refs, reason, pace):
                    done += sum(each.landed for each in acted)
                    others = [each for each in acted if not each.landed]
                    refusals += len(others)
                    refused += others[: 100 - len(refused)]
                cursor = page.cursor
            said.append(f"{done} done, {refusals} refused" + ("" if cursor is None else ", with more remaining"))
        return Bulk(done, tuple(refused), refusals, cursor, pace.last if pace and done else None)

    def ask_for_stack(self, job_id: str) -> None:
        """Have its worker store the stack of this running job. Raises UnknownJob, Refused."""
        stacks.ask(self._access, self.get(job_id))

    def stack(self, job_id: str, *, within: float = 0.0) -> JobStack | None:
        """The stack that was asked for last: waits up to `within` seconds for an answer. Raises UnknownJob.

        Example: `admin.jobs.ask_for_stack(job_id); admin.jobs.stack(job_id, within=5.0)`
        """
        job = self.get(job_id)

        def answered(found: JobStack | None) -> bool:
            return found is None or found.state == "answered"

        return stacks.awaited(lambda: stacks.last(self._access, job), answered, within)

    def delete_all(self, where: Filter, reason: str = "") -> int:
        """Delete all jobs that match, without a limit. Returns their number."""
        deleted, bulk = 0, self.act_on_all("delete", where, reason)
        while bulk.cursor is not None:
            deleted, bulk = deleted + bulk.done, self.act_on_all("delete", where, reason, cursor=bulk.cursor)
        return deleted + bulk.done

    def replay_edited(
        self,
        job_id: str,
        put: Mapping[str, object],
        drop: Sequence[str] = (),
        task: Task[..., Any] | None = None,
    ) -> Acted:
        """Run an ended job again with other arguments: `put` these, `drop` those, keep all others, secrets too.

        What replaces a Secret is stored as a Secret. The previous arguments are kept with the job, and so is the
        operator's name. If `task` is given, the new arguments are checked against its signature first. Raises
        UnknownJob, InvalidArguments.
        """
        job = self._access.store.get(job_id) or self.get(job_id)
        if job.queue == GUARD:
            return Acted(
                job_id, landed=False, says="nothing done: it belongs to a guard, which runs it at its next call"
            )
        try:
            before = msgspec.json.decode(job.payload, type=dict[str, object])
        except msgspec.DecodeError:
            why = "have no names"
            if ELSEWHERE in job.payload:
                why = "are kept elsewhere, being large: enqueue a new job"
            elif ENCRYPTED in job.payload:
                why = "are encrypted, and this process has no key (in a shell, name the app: --app)"
            raise InvalidArguments(f"job {job_id}: its arguments {why}, so none can be changed") from None
        most = self._access.settings.max_payload if self._access.settings else 256 * 1024
        if unknown := set(drop) - set(before):
            raise InvalidArguments(f"drop: job {job_id} has no argument {', '.join(map(repr, sorted(unknown)))}")
        shown = msgspec.json.decode(self._access.stars.hide(job.payload), type=dict[str, object])
        for name, value in put.items():
            text = dump(value, f"{job.task}.{name}", most).decode()
            if STARS in text and shown.get(name) != before.get(name):
                raise InvalidArguments(
                    f"{job.task}.{name}: it still contains {STARS}: replace it with the actual value"
                )
        sealed = {name for name in put if is_secret(before.get(name)) and not is_secret(put[name])}
        put = {name: {SECRET: value} if name in sealed else value for name, value in put.items()}
        after = {name: value for name, value in {**before, **put}.items() if name not in drop}
        payload = msgspec.json.encode(after).decode()
        if len(payload.encode()) > most:
            raise InvalidArguments(f"job {job_id}: its arguments would be {len(payload.encode())} bytes, over {most}")
        if task is not None:
            task.arguments.load(payload)
        if task is not None and (key := task.moved_key(job.payload, payload, job.unique)) is not None:
            raise InvalidArguments(
                f"job {job_id}: its unique key is {job.unique!r}, and with these arguments it would be {key!r}: the "
                "key of a job stays; enqueue a new one"
            )
        if moved := [key for key in job.limits if key_of(key.limit, after, job.task) != key]:
            to = key_of(moved[0].limit, after, job.task).key
            raise InvalidArguments(
                f"job {job_id}: it needs a place of {moved[0].key!r}, and with these arguments of {to!r}: the keys of "
                "a job stay; enqueue a new one"
            )
        edits = [*edits_in(job.meta), Edited(self._access.store.now(), self._access.who, job.payload)][-_EDITS_KEPT:]
        meta = {**job.meta, EDITS: msgspec.json.encode(edits).decode()}
        edit = Edit(payload, msgspec.json.encode(meta).decode())
        changed = ", ".join(sorted({*put, *drop})) or "nothing"
        with self._access.recorded("jobs.replay", job_id, changed=changed) as said:
            acted = _answers(self._access.store.replay([job_id], edits={job_id: edit}), _REPLAYED)[job_id]
            said.append(acted.says)
        if acted.landed:
            rung: Kind = "due" if acted.says == _REPLAYED[State.WAITING] else "queued"
            self._access.notifier.announce([Ring(rung, job.queue, (job_id,))])
        return acted

    def _act(
        self,
        verb: Verb,
        refs: Sequence[JobRef],
        reason: str,
        pace: Pace | None = None,
        among: frozenset[State] | None = None,
    ) -> Iterator[list[Acted]]:
        for start in range(0, len(refs), BATCH):
            whole = refs[start : start + BATCH]
            moved = dict[str, Acted]() if among is None else self._moved(whole, among)
            batch = [ref for ref in whole if ref.id not in moved]
            ids = [ref.id for ref in batch]
            # To the millisecond, as stores keep them: a delay that rounds to 0 must ring as due at once.
            delays = (
                {job_id: round(delay, 3) for job_id, delay in zip(ids, pace.take(len(ids)), strict=True)}
                if pace
                else {}
            )
            acted, kind = self._applied(verb, batch, reason, delays)
            if kind is not None:
                landed: dict[tuple[str, Kind], list[str]] = {}
                for ref in batch:
                    if acted[ref.id].landed:
                        later = delays.get(ref.id) or acted[ref.id].says in (_REPLAYED[State.WAITING], _NEEDS_PLACE)
                        rung: Kind = "due" if later else kind
                        landed.setdefault((ref.queue, rung), []).append(ref.id)
                self._access.notifier.announce(
                    Ring(rung, queue, tuple(some)) for (queue, rung), some in sorted(landed.items())
                )
            acted |= moved
            yield [acted[ref.id] for ref in whole]

    def _moved(self, refs: Sequence[JobRef], among: frozenset[State]) -> dict[str, Acted]:
        """Those that are in none of these states by now."""
        now = self.states([ref.id for ref in refs])
        return {
            job_id: Acted(job_id, landed=False, says=f"nothing done: it is {state} by now" if state else "no such job")
            for job_id, state in now.items()
            if state not in among
        }

    def _applied(
        self, verb: Verb, refs: Sequence[JobRef], reason: str, delays: Mapping[str, float]
    ) -> tuple[dict[str, Acted], Kind | None]:
        """The results by id, and what to ring for those that landed."""
        store, ids = self._access.store, [ref.id for ref in refs]
        match verb:
            case "cancel":
                return _states(store.cancel(ids, reason), _CANCELLED), "cancel"
            case "promote":
                found = store.promote_now(ids)
                acted = _states(found, _PROMOTED)
                was = {ref.id for ref in refs if ref.state is State.SCHEDULED}
                limited = {job_id for job_id, state in found.items() if state is State.WAITING and job_id in was}
                return acted | {each: Acted(each, landed=True, says=_NEEDS_PLACE) for each in limited}, "queued"
            case "replay":
                return _answers(store.replay(ids, delays=delays), _REPLAYED), "queued"
            case "delete":
                return _answers(store.delete(ids), dict.fromkeys(State, "deleted")), None

    def result(self, job_id: str, timeout: float | None) -> str:
        """Wait for the result, as JSON, secrets redacted. Raises what `handle.result()` raises, and TimeoutError."""
        client = Client(self._access.store, self._access.notifier, self._access.needed_settings())
        return self._access.stars.hide(client.result(job_id, timeout))


_CANCELLED = {
    State.CANCELLED: "cancelled",
    State.PROCESSING: "asked to stop; its worker ends it once its code has stopped",
}
_REPLAYED = {
    State.QUEUED: "queued again",
    State.SCHEDULED: "due again later",
    State.WAITING: "waiting again, for what must happen first",
}
_NEEDS_PLACE = "due now, and waiting for its place of a limit"
_PROMOTED = {State.QUEUED: "queued", State.PROCESSING: "already processing"}


def _states(found: Mapping[str, State | None], done: Mapping[State, str]) -> dict[str, Acted]:
    def acted(job_id: str, state: State | None) -> Acted:
        if state is None:
            return Acted(job_id, landed=False, says="no such job")
        why = f"; see tenure jobs explain {job_id}" if state is State.WAITING else ""
        return Acted(job_id, state in done, done.get(state, f"nothing done: it is {state}{why}"))

    return {job_id: acted(job_id, state) for job_id, state in found.items()}


def _answers(found: Mapping[str, Answer | None], done: Mapping[State, str]) -> dict[str, Acted]:
    def acted(job_id: str, answer: Answer | None) -> Acted:
        match answer:
            case None:
                return Acted(job_id, landed=False, says="no such job")
            case Landed():
                return Acted(job_id, landed=True, says=done[answer.state])
            case NotLanded():
                return Acted(job_id, landed=False, says=f"nothing done: {answer.stands}")

    return {job_id: acted(job_id, answer) for job_id, answer in found.items()}


def _details(reason: str, pace: Pace | None) -> dict[str, str]:
    """What else the audit trail says."""
    given = {"why": reason, "per minute": f"{pace.per_minute:,}" if pace else ""}
    return {name: text for name, text in given.items() if text}


def _spelled(where: Filter) -> str:
    """A filter as text: `state=dead queue=reports`."""
    said = {each.name: getattr(where, each.name) for each in fields(where)}
    states = ",".join(sorted(where.states))
    left = ("states", "guards", "conditions")
    rest = [f"{name}={value}" for name, value in said.items() if name not in left and value is not None]
    return " ".join([f"state={states}", *rest, *map(spelled, where.conditions)])
