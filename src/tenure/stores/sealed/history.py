"""What schedules keep of errors from before there was a codec: why a run failed, and the last error.

With a codec no schedule quotes an error of the app's code: it names the job that has it. Older texts are replaced by
that, so that nothing in a schedule needs a key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from tenure.core.sealed import is_sealed
from tenure.ports import Store
from tenure.ports.schedules import Change, Schedule, Tick

_PAGE = 500  #: ticks; two of one instant differ in their cause, so a page has many instants
_INSTANT = timedelta(microseconds=1)
_NAMED = "its error is encrypted, and shown with job"  #: as schedules/plan.py says it
_GONE = "its error is not shown: it may be from before the codec, and its job is gone"


class Replaced(NamedTuple):
    """What became of the texts of one schedule; `unread`: those left in a schedule that a newer release wrote."""

    written: int = 0
    raced: int = 0
    unread: int = 0


def replace_errors(store: Store) -> Iterator[Replaced]:
    """Walk over all schedules, after their jobs were encrypted. `store`: beneath the codec."""
    for standing in store.schedules():
        yield _of(store, standing.schedule)


def _of(store: Store, schedule: Schedule) -> Replaced:
    written, new, kept = 0, dict[str, str](), set[str]()
    for page in _pages(store, schedule.name):
        changed = list[Tick]()
        for tick in page:
            if tick.status in ("failure", "cancelled") and (why := _why(store, schedule, tick)) != tick.why:
                new[tick.why] = why
                changed.append(replace(tick, why=why))
            else:
                kept.add(tick.why)
        if changed and schedule.unread:
            return Replaced(written, unread=len(changed))
        if changed:
            if not store.change([Change(schedule=schedule, ticks=tuple(changed))])[0]:
                return Replaced(written, raced=len(changed))
            written, schedule = written + len(changed), schedule.but(rev=schedule.rev + 1)
    last = schedule.last_error
    if (
        not last
        or last.startswith((_NAMED, _GONE))
        or schedule.unread
        or schedule.command
        or (last in kept and last not in new)
    ):
        return Replaced(written)
    landed = store.change([Change(schedule=schedule.but(last_error=new.get(last, _GONE)))])[0]
    return Replaced(written + landed, raced=1 - landed)


def _pages(store: Store, name: str) -> Iterator[list[Tick]]:
    before: datetime | None = None
    while True:
        page = store.ticks(name, limit=_PAGE, before=before)
        yield page
        if len(page) < _PAGE:
            return
        before = page[-1].tick + _INSTANT  # the page may have ended between two ticks of one instant


def _why(store: Store, schedule: Schedule, tick: Tick) -> str:
    if schedule.command:  # what is kept of a command is readable
        return tick.why
    job = store.get(tick.job_id) if tick.job_id else None
    named = f"{_NAMED} {tick.job_id}"
    if job is not None:
        return named if is_sealed(job.error or "") else tick.why
    return tick.why if tick.status == "cancelled" or tick.why in ("", named, _GONE) else _GONE
