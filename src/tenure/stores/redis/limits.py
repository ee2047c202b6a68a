"""Limits in Redis: the verbs of `LimitStore`, and how `admit` gives places (give.lua)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import chain, islice

from tenure.core.lifecycle import EXPIRED
from tenure.core.limits import Bucket, Key
from tenure.ports import PROTOCOL, Admitted, JobView, KeyView, LimitRow, Withdrawn
from tenure.ports.limits import decode_limit
from tenure.stores.places import Count, Lane, key_view, paused, state_of
from tenure.stores.redis.base import RedisBase
from tenure.stores.redis.drafts import MOST, batches
from tenure.stores.redis.facts import millis
from tenure.stores.redis.reads import AT_ONCE, views_of
from tenure.stores.rules import check_limit_rows, json_of

STEPS = 20  #: scripts of one `admit`, and queues of one `withdraw`
LISTED = 10_000
SOLO = "\0solo"  #: ends the name of a lane of suspects


class RedisLimits(RedisBase):
    """The verbs of `LimitStore`."""

    def change_limits(self, rows: Sequence[LimitRow]) -> list[bool]:
        check_limit_rows(rows)
        written = [
            (
                *(int(row.key), row.name, row.limit, row.rev, int(row.rated)),
                "" if row.blank else json_of(row.but(rev=row.rev + 1)),
            )
            for row in rows
        ]
        answers = self._server.call_each(
            "change_limits", list(batches(written, lambda row: len(row[5]))), lambda some: list(chain(*some))
        )
        return [bool(landed) for some in answers for landed in some]

    def withdraw(self, *, limit: int = 200) -> Withdrawn:
        asked, more = map(bool, self._server.call("idle", MOST))
        # Any twenty of them: others have their turn in the next calls, which need not be made at once.
        lanes: list[str] = self._server.run("SRANDMEMBER", f"{self._server.prefix}unbegun_of", STEPS)
        left = limit
        for lane in lanes:
            if left > 0:
                patience = Lane(lane.removesuffix(SOLO), lane.endswith(SOLO)).patience
                number, rest = self._server.call("withdraw", lane, min(left, MOST), millis(patience))
                left, more = left - number, more or bool(rest)
        return Withdrawn(limit - left, asked or left < limit, more)

    def give(self, found: Admitted, limit: int) -> Admitted:
        """Give places to the jobs that are parked under keys, after `admit` has dealt with the others."""
        jobs = {queue: list(ids) for queue, ids in found.jobs.items()}
        cancelled, more, due = found.cancelled, True, None
        for _ in range(STEPS):
            number, left, due, stopped, *queued = self._server.call("give", min(limit, MOST), PROTOCOL, EXPIRED)
            for queue, job_id in zip(queued[::2], queued[1::2], strict=True):
                jobs.setdefault(queue, []).append(job_id)
            cancelled, more, limit = cancelled + stopped, bool(left), limit - number
            if not more or limit <= 0:
                break
        ends = [each for each in (found.next_due, None if due is None else due / 1000) if each is not None]
        return Admitted(jobs, found.scheduled, cancelled, found.more or more, min(ends, default=None))

    # ── reads ──

    def limits(self, names: Iterable[str] | None = None, *, keys: bool = False) -> list[LimitRow]:
        rows, index = ("key_limits", "limited_keys") if keys else ("limits", "limit_names")
        wanted: list[str] = (
            self._server.run("ZRANGE", f"{self._server.prefix}{index}", 0, LISTED - 1)
            if names is None
            else sorted(set(names))[:LISTED]
        )
        found: list[LimitRow] = []
        for first in range(0, len(wanted), MOST):
            bodies = self._server.run("HMGET", f"{self._server.prefix}{rows}", *wanted[first : first + MOST])
            found += [decode_limit(body) for body in bodies if body is not None]
        return found

    def keys(
        self,
        names: Iterable[str] | None = None,
        *,
        limited_by: str | None = None,
        start: str = "",
        limit: int = 50,
        most: int = 10_000,
    ) -> list[KeyView]:
        found: list[KeyView] = []
        wanted = None if names is None else [name for name in sorted(set(names)) if name > start]
        while len(found) < limit:
            asked = min(limit - len(found), AT_ONCE)
            some = self._listed(limited_by, start, asked) if wanted is None else wanted[:asked]
            if not some:
                break
            start, wanted = some[-1], wanted and wanted[asked:]
            now, *rows = self._server.call("key_states", *some)
            views = [_key(now / 1000, most, *row) for row in rows]
            found += [view for view in views if limited_by is None or view.limit == limited_by]
        return found

    def _listed(self, limit: str | None, start: str, number: int) -> list[str]:
        index = self._server.prefix + ("keys" if limit is None else f"keys_of:{limit}")
        low = f"({start}" if start else "-"
        found: list[str] = self._server.run("ZRANGEBYLEX", index, low, "+", "LIMIT", 0, number)
        return found

    def holders(self, key: str, *, limit: int = 50) -> list[JobView]:
        ids = self._server.run("ZRANGE", f"{self._server.prefix}places:{key}", 0, limit - 1)
        return [view for view in views_of(self._server, ids) if view is not None]

    def parked(self, key: str, *, limit: int = 50) -> list[JobView]:
        lanes = self._server.run("ZRANGE", f"{self._server.prefix}parked_of:{key}", 0, -1)
        lots = [self._lot(key, lane, limit) for lane in lanes]
        ids = [job_id for _, job_id in islice(heapq.merge(*lots), limit)]
        return [view for view in views_of(self._server, ids) if view is not None and view.parked == key]

    def _lot(self, key: str, lane: str, limit: int) -> list[tuple[float, str]]:
        flat = self._server.run("ZRANGE", f"{self._server.prefix}parked:{key}\0{lane}", 0, limit - 1, "WITHSCORES")
        return [(float(score), job_id) for job_id, score in zip(flat[::2], flat[1::2], strict=True)]


def _key(
    now: float,
    most: int,
    name: str,
    limit: str,
    of_limit: str | None,
    of_key: str | None,
    tokens: str | None,
    at: str | None,
    begun: Sequence[str],
    held: int,
    unbegun: int,
    waiting: int,
) -> KeyView:
    rows = (of_limit and decode_limit(of_limit)) or None, (of_key and decode_limit(of_key)) or None
    bucket = None if tokens is None or at is None else Bucket(float(tokens), float(at))
    begins = [int(each) / 1000 for each in begun]
    state = state_of(Key(name, limit), rows, bucket, begins, Count(held, unbegun), now)
    return key_view(state, waiting=min(waiting, most), why=paused(rows[0], rows[1], now)[1], now=now)
