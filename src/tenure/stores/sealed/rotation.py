"""Encrypt what is stored with the first key of a codec: what another key encrypted, and what was stored without one.

A walk over all jobs, newest first, a page at a time: a page is read, and those of its texts are written that the
first key has not encrypted yet. Then over all schedules (history.py). So the walk can be stopped anywhere and started
again: what is done is only read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tenure.codecs import Codec
from tenure.core.lifecycle import ALERT, ALERTS, GUARD, State
from tenure.core.sealed import is_sealed, key_of, why_sealed
from tenure.errors import NotFetched
from tenure.ports import EDITS, AttemptView, Field, Filter, JobView, Store, Text
from tenure.stores.rules import CLEARED, json_of
from tenure.stores.sealed.history import replace_errors
from tenure.stores.sealed.values import ONCE, Seal

_JOBS = 100  #: per page
_ALWAYS: tuple[Field, ...] = ("payload", "result", "checkpoint", "stage")  #: never the engine's own words
#: So begin the engine's own reasons, which quote no value: those of events.py, which stores do not import.
_OURS = ("this worker knows no task", "this worker has no key", "this worker can't fetch", "could not reach a database")


class Rotated(NamedTuple):
    """What a walk has done so far. `unread`: how many texts can't be decrypted, by the reason."""

    jobs: int
    written: int
    raced: int  #: texts that changed in that moment, or were locked: the next walk finds them
    unread: Counter[str]


def rotate(store: Store, codec: Codec) -> Iterator[Rotated]:
    """Walk once; yields what was done so far, after each page. `store`: beneath the codec, with its bucket."""
    seal, jobs, written, raced, unread = Seal(codec), 0, 0, 0, Counter[str]()
    for count, texts in _pages(store):
        changes: list[tuple[Text, str]] = []
        for text in texts:
            try:
                held = text._replace(value=store.fetch(text))
            except NotFetched as error:
                unread[error.lacks] += 1
                continue
            part = seal.part(held)
            if is_sealed(part) and key_of(part) == codec.key:
                continue
            opened = seal.opened(held)
            left = seal.part(held._replace(value=opened))
            if is_sealed(left):
                unread[why_sealed(left)] += 1
            elif (new := seal.closed(held, opened)) == held.value:
                continue
            elif held.value == text.value:
                changes.append((text, new))
            else:  # a large one: written at once, so that it does not stay in memory
                landed = store.rewrite([(text, new)])
                written, raced = written + landed, raced + 1 - landed
        landed = store.rewrite(changes) if changes else 0
        jobs, written, raced = jobs + count, written + landed, raced + len(changes) - landed
        yield Rotated(jobs, written, raced, unread)
    for each in replace_errors(store):
        written, raced = written + each.written, raced + each.raced
        if each.unread:
            unread["a newer release wrote their schedule"] += each.unread
        yield Rotated(jobs, written, raced, unread)


def _pages(store: Store) -> Iterator[tuple[int, list[Text]]]:
    """Per page, how many jobs and their texts; at the end, the texts that belong to no job."""
    cursor: str | None = ""
    while cursor is not None:
        page = store.search(Filter(), limit=_JOBS, cursor=cursor or None)
        cursor = page.cursor
        yield len(page.jobs), [text for job in page.jobs for text in _of(store, job)]
    yield from ((0, texts) for texts in _signals(store, None))
    yield 0, [Text("note", key, "", value) for key, value in store.notes(ONCE).items()]


def _of(store: Store, job: JobView) -> Iterator[Text]:
    alert = (job.task, job.queue) == (ALERT, ALERTS)  # an app may have a queue of that name
    if alert or (job.queue == GUARD and '"command"' in job.payload):
        return  # they are delivered, and read, where no app names the codec
    for field in _ALWAYS:
        text = getattr(job, field)
        if text is not None:
            yield Text(field, job.id, "", text)
    if job.message is not None and not job.message.startswith(CLEARED):
        yield Text("message", job.id, "", job.message)
    if EDITS in job.meta:
        yield Text("meta", job.id, "", json_of(job.meta))
    theirs = set[str]()  # the errors of these attempts: no other error is text of the app's code
    if job.attempt > (job.state is State.COMPLETED):
        for each in store.attempts(job.id):
            if each.outcome == "failed" or is_sealed(each.error) or _is_theirs(each):
                theirs.add(each.error)
                yield Text("attempt", job.id, str(each.attempt), each.error)
    if job.error is not None and (job.error in theirs or is_sealed(job.error)):
        yield Text("error", job.id, "", job.error)
    if job.attempt:
        yield from (Text("log", job.id, str(number), text) for number, text in store.logs(job.id).items())
        yield from (Text("once", job.id, key, text) for key, text in store.records(job.id).items())
    for texts in _signals(store, job.id):
        yield from texts


def _is_theirs(attempt: AttemptView) -> bool:
    """Is it put off for a reason of its handler's, or one that quotes its arguments?"""
    return attempt.outcome == "snoozed" and not attempt.error.startswith(_OURS)


def _signals(store: Store, job_id: str | None) -> Iterator[list[Text]]:
    """The signals of this job, or with None the shared ones, a page at a time."""
    start = ""
    while signals := store.signals(job_id, start=start):
        start = signals[-1].key
        yield [Text("signal", job_id or "", each.key, each.value) for each in signals]
