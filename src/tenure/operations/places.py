"""Why a job that is parked under a key has no place of it: the pause, the jobs that have the places, the next token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from tenure.core.durations import spell
from tenure.core.lifecycle import State
from tenure.core.limits import Bucket, next_token
from tenure.operations.keys import allowed_rate, command, held_of, pause_of
from tenure.operations.waiting import NAMED, few
from tenure.ports import JobView, KeyView, Store

_MOST_AHEAD = 50
Cause = tuple[str, str]  #: a sentence, and what to do about it


@dataclass(frozen=True, slots=True)
class Refused:
    """`causes`: the most fundamental first; empty: the key has room. `reasons`: what else there is to know."""

    key: str
    causes: Sequence[Cause]
    reasons: Sequence[str]


def refused(store: Store, job: JobView, now: datetime) -> Refused:
    """Why the key under which a job is parked has no place for it: reads its keys, and at most fifty jobs."""
    name = str(job.parked)
    views = {key.key: key for key in store.keys([name, *(each.key for each in job.limits)], limit=len(job.limits) + 1)}
    causes, reasons = list[Cause](), list[str]()
    if (found := views.pop(name, None)) is not None:  # else no process has looked at it yet
        causes += _causes(store, found, now)
        reasons += _holders(store, found, now)
    reasons += _ahead(store, job)
    for other in views.values():
        reasons += [f"it needs a place of {other.key}, too: {says}" for says, _ in _causes(store, other, now)]
    return Refused(name, causes, reasons)


def _causes(store: Store, key: KeyView, now: datetime) -> Iterator[Cause]:
    if (pause := pause_of(store, key)) is not None:
        whole = "" if pause.name == key.key else f"its limit {pause.name} is "
        until = pause.until_at
        when = "" if until is None else f", which is in {spell(max((until - now).total_seconds(), 0.0))}"
        end = "until somebody resumes it" if until is None else f"until {until:%Y-%m-%d %H:%M:%S} UTC{when}"
        by = f"; {pause.by.who} paused it" if pause.by else ""
        why = f": {pause.why}" if pause.why else ""
        yield f"{whole or f'{key.key} is '}paused {end}{by}{why}", f"resume it: {command('resume', pause.name)}"
    token = _token(key)
    if key.bounds.concurrency is not None and key.held >= key.bounds.concurrency:
        held = few((f"{job.task} {job.id}" for job in store.holders(key.key, limit=NAMED)), key.held)
        verb = "is" if key.bounds.concurrency == 1 else "are"
        places = "place" if key.bounds.concurrency == 1 else "places"
        later = f"; next token in {spell(token)}" if token else ""
        yield (
            f"{held_of(key)} {places} of {key.key} {verb} held by {held}{later}",
            f"wait, or allow more: {command('set', key.key)} --concurrency N",
        )
    elif token and key.bounds.rate is not None:
        yield f"{key.key} allows {allowed_rate(key.bounds.rate)}: next token in {spell(token)}", ""


def _token(key: KeyView) -> float | None:
    """Seconds until its next token, whether or not a place is free."""
    if key.bounds.rate is None or key.tokens is None:
        return None
    return next_token(Bucket(key.tokens, 0.0), key.bounds.rate, key.unbegun)


def _holders(store: Store, key: KeyView, now: datetime) -> Iterator[str]:
    for job in store.holders(key.key, limit=NAMED):
        since = job.started_at if job.state is State.PROCESSING else job.run_at
        age = spell(max((now - since).total_seconds(), 0.0)) if since else "an unknown time"
        does = f"runs for {age} on {job.worker_id}" if job.state is State.PROCESSING else f"has not begun for {age}"
        yield f"{job.task} {job.id} has a place and {does}"


def _ahead(store: Store, job: JobView) -> Iterator[str]:
    ids = [each.id for each in store.parked(str(job.parked), limit=_MOST_AHEAD + 1)]
    ahead = ids.index(job.id) if job.id in ids else None
    if ahead:
        yield f"{ahead} {'job goes' if ahead == 1 else 'jobs go'} before it"
    elif ahead is None and ids:
        yield f"at least {len(ids)} jobs go before it"
