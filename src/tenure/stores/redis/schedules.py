"""Schedules, their ticks, and notes. Their meaning is decided by the callers; the scripts compare and write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from tenure.core.lifecycle import State
from tenure.ports import Draft, JobView
from tenure.ports.schedules import (
    REPLACED,
    Change,
    Due,
    Run,
    Schedule,
    Standing,
    Swapped,
    Tick,
    decode_schedule,
    decode_tick,
)
from tenure.stores.instants import last_millis, millis_at
from tenure.stores.redis import drafts as jobs
from tenure.stores.redis.base import RedisBase
from tenure.stores.redis.drafts import MOST
from tenure.stores.redis.facts import instant, millis
from tenure.stores.redis.reads import AT_ONCE, views_of
from tenure.stores.rules import body_of, check_drafts, check_text, is_id


class RedisSchedules(RedisBase):
    """The verbs of `ScheduleStore`."""

    def due(self, *, limit: int = 500) -> Due:
        now, later, cursor, names, ended = self._server.call("due", limit, 0)
        while cursor != "0" and len(ended) < limit:
            _, _, cursor, _, more = self._server.call("due", 0, cursor)
            ended += more
        found = self._read(dict.fromkeys([*names, *list(dict.fromkeys(ended))[:limit]]))
        return Due(instant(now), found, None if later is None else later / 1000)

    def schedules(self, names: Iterable[str] | None = None) -> list[Standing]:
        return self._read(self._names() if names is None else sorted(set(names)))

    def _names(self) -> list[str]:
        names: list[str] = []
        low = "-"
        while some := self._server.run("ZRANGEBYLEX", f"{self._server.prefix}schedules", low, "+", "LIMIT", 0, 1000):
            names += some
            low = f"({some[-1]}"
        return names

    def _read(self, names: Iterable[str]) -> list[Standing]:
        """Those of the named schedules that exist, in this order.

        Their jobs are read a moment later: a change of a tick in between also changes the schedule's rev.
        """
        batches = list(jobs.batches(list(names)))
        rows = [row for answers in self._server.call_each("standings", batches, list) for row in answers if row]
        found: list[tuple[Schedule, list[Tick]]] = []
        for body, first, number in rows:
            schedule = decode_schedule(body)
            more = self._open(schedule.name, len(first)) if number > len(first) else ()
            found.append((schedule, [decode_tick(tick) for tick in (*first, *more) if tick is not None]))
        views = self._views([tick.job_id for _, ticks in found for tick in ticks if tick.job_id is not None])
        owners = {view.worker_id for view in views.values() if view.state is State.PROCESSING and view.worker_id}
        ends = dict(zip(owners, self._server.call("lease_ends", *owners), strict=True)) if owners else {}
        return [Standing(schedule, tuple(_run(tick, views, ends) for tick in ticks)) for schedule, ticks in found]

    def _open(self, name: str, first: int) -> Iterator[str | None]:
        """The bodies of its open ticks, from number `first` on."""
        ticks: list[str] = self._server.run("ZRANGE", f"{self._server.prefix}open:{name}", first, -1)
        for place in range(0, len(ticks), 1000):
            yield from self._server.run("HMGET", f"{self._server.prefix}tick:{name}", *ticks[place : place + 1000])

    def _views(self, ids: Sequence[str]) -> dict[str, JobView]:
        views: dict[str, JobView] = {}
        for first in range(0, len(ids), AT_ONCE):
            found = views_of(self._server, ids[first : first + AT_ONCE])
            views |= {view.id: view for view in found if view is not None}
        return views

    def change(self, changes: Sequence[Change]) -> list[bool]:
        written = [_change(each) for each in changes]
        batches = list(jobs.batches(written, size=_length, things=lambda each: len(each) // 6))
        results = self._server.call_each(
            "change", batches, lambda batch: [REPLACED, *(text for each in batch for text in each)]
        )
        return [bool(landed) for answers in results for landed in answers]

    def ticks(self, name: str, *, limit: int = 50, before: datetime | None = None) -> list[Tick]:
        found: list[Tick] = []
        high, over = "+inf" if before is None else f"({millis_at(before)}", 0
        while len(found) < limit:
            asked = min(limit - len(found), MOST)
            page = self._server.call("ticks", name, high, over, asked)
            found += [decode_tick(body) for _, body in page]
            if len(page) < asked:
                break
            at = [tick.partition("|")[0] for tick, _ in page]  # ticks at the same instant differ in their causes
            high, over = at[-1], at.count(at[-1])
        return found

    def decided(self, since: datetime, until: datetime, *, skip: int = 0, limit: int = 50) -> list[Tick]:
        found: list[Tick] = []
        place = 0  # ticks of deleted schedules have a place, but the caller knows none: `skip` does not count them
        while len(found) < limit:
            asked = min(skip + limit - len(found), MOST)
            number, bodies = self._server.call("decided", millis_at(since), last_millis(until), place, asked)
            found += map(decode_tick, bodies[skip:])
            skip -= min(skip, len(bodies))
            place += number
            if number < asked:
                break
        return found

    def forget(self, *, keep: float, limit: int = 1000) -> int:
        gone, looked = 0, MOST
        while looked and gone < limit:
            looked, went = self._server.call("forget", millis(keep), min(limit - gone, MOST))
            gone += went
        return gone

    def swap(
        self, key: str, old: str | None, new: str | None, *, ttl: float | None = None, drafts: Sequence[Draft] = ()
    ) -> Swapped:
        check_text(key, old, new)
        check_drafts(drafts, ranges=True)
        expected, wanted = ("" if text is None else f"={text}" for text in (old, new))
        for_so_long = "" if ttl is None else millis(ttl)
        landed, says = self._server.call("swap", key, expected, wanted, for_so_long, *jobs.blocks(drafts))
        return Swapped(bool(landed), says[1:] if says else None)

    def notes(self, prefix: str) -> dict[str, str]:
        found: dict[str, str] = {}
        last: str | None = ""
        while last is not None:
            last, *pairs = self._server.call("notes", prefix, last, AT_ONCE)
            found |= dict(zip(pairs[::2], pairs[1::2], strict=True))
        return found


def _run(tick: Tick, views: dict[str, JobView], lease_ends: dict[str, int | None]) -> Run:
    job = views.get(tick.job_id or "")
    ends = lease_ends.get(job.worker_id or "") if job else None
    return Run(tick, job, None if ends is None else instant(ends))


def _length(values: Sequence[Any]) -> int:
    return sum(len(each) for each in values if isinstance(each, str | bytes))


def _change(change: Change) -> list[Any]:
    """The arguments of the script `change` for one change."""
    check_drafts(change.drafts, ranges=True)
    check_text(change.owner, *change.cancel)
    stored = body_of(change.stored)
    if change.delete:
        due_at = None if change.keep_until is None else last_millis(change.keep_until)
    else:
        due_at = None if change.schedule.due_at is None else millis_at(change.schedule.due_at)
    values: list[Any] = [
        change.schedule.name,
        change.schedule.rev,
        b"" if change.delete else stored,
        "" if due_at is None else due_at,
        change.owner or "",
        change.former,
        *jobs.blocks(change.drafts),
        len(change.ticks),
    ]
    places = {draft.id: place for place, draft in enumerate(change.drafts, 1)}
    for tick in change.ticks:
        place, job_id = places.get(tick.job_id or "", 0), tick.job_id or ""
        values += (_member(tick), int(tick.status == "open"), job_id, place, millis_at(tick.decided_at))
        values.append(body_of(tick))
    values += filter(is_id, change.cancel)
    return [len(values), *values]


def _member(tick: Tick) -> str:
    return f"{millis_at(tick.tick)}|{tick.cause}"
