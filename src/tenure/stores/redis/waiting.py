"""Jobs that wait, in Redis: the verbs of `WaitStore`. Each script does little; what is left is an ask (admit.lua)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from tenure.core.lifecycle import ENDED, EXPIRED, State
from tenure.ports import LINKS_PROTOCOL, PROTOCOL, Admitted, Answer, FlowView, Input, Landed, SignalView
from tenure.stores.instants import millis_at
from tenure.stores.redis.drafts import MOST
from tenure.stores.redis.facts import decode_facts, instant
from tenure.stores.redis.limits import STEPS, RedisLimits
from tenure.stores.redis.links import ANY_END, MINE, SKIPPED
from tenure.stores.rules import (
    check_text,
    gatherer_ended,
    is_id,
    not_skipped,
    parent_lost,
    sent_before,
    too_late,
)

AT_ONCE = 50  #: edges per read, since results may be long
COUNTED = 1000  #: jobs of a flow whose states one script reads
SIGNALS = 1000
_REASONS = (
    parent_lost("\1", gone=False),
    parent_lost("\1", gone=True),
    gatherer_ended("\1", State.DEAD),
    gatherer_ended("\1", State.CANCELLED),
)


class RedisWaiting(RedisLimits):
    """The verbs of `WaitStore`."""

    def admit(self, *, limit: int = 200) -> Admitted:
        jobs: dict[str, list[str]] = {}
        room, cancelled, scheduled, more, keys, next_due = limit, 0, False, True, False, None
        for _ in range(STEPS):
            answered, left, next_due, stopped, later, keys, *queued = self._server.call(
                "admit", room, LINKS_PROTOCOL, EXPIRED, *_REASONS
            )
            for queue, job_id in zip(queued[::2], queued[1::2], strict=True):
                jobs.setdefault(queue, []).append(job_id)
            cancelled, scheduled, more = cancelled + stopped, scheduled or bool(later), bool(left)
            if more:
                self._store_sealed()
            room -= answered
            if not more or room <= 0:
                break
        found = Admitted(jobs, scheduled, cancelled, more, None if next_due is None else next_due / 1000)
        return self.give(found, limit) if keys else found

    def _store_sealed(self) -> None:
        """Store a part of a call whose caller may be gone."""
        for call in self._server.run("ZRANGE", f"{self._server.prefix}sealed", 0, 0):
            self._server.call("unpack", call)

    def outdated(self, protocol: int = PROTOCOL) -> list[str]:
        return sorted(self._server.call("outdated", protocol))

    # ── signals ──

    def signal(self, job_id: str | None, key: str, value: str, *, replace: bool = False) -> Answer | None:
        check_text(key, value)
        if job_id is not None and not is_id(job_id):
            return None
        found = self._server.call("signal", job_id or "", key, value, int(replace))
        if found is None:
            return None
        if isinstance(found, str):
            return Landed(State(found))
        state, *before = found
        return sent_before(key, instant(before[0])) if before else too_late(State(state))

    def signals(self, job_id: str | None, keys: Iterable[str] | None = None, *, start: str = "") -> list[SignalView]:
        if job_id is not None and not is_id(job_id):
            return []
        kept = self._server.prefix + ("shared" if job_id is None else f"signals:{job_id}")
        if keys is not None:
            wanted = sorted(set(keys))
        elif job_id is None:
            first = f"({start}" if start else "-"
            wanted = self._server.run(
                "ZRANGEBYLEX", f"{self._server.prefix}shared_keys", first, "+", "LIMIT", 0, SIGNALS
            )
        else:
            wanted = sorted(self._server.run("HKEYS", kept))
        wanted = [key for key in wanted if key > start][:SIGNALS]
        found: list[str | None] = self._server.run("HMGET", kept, *wanted) if wanted else []
        return [_signal(key, text) for key, text in zip(wanted, found, strict=True) if text is not None]

    # ── edges ──

    def inputs(self, job_id: str, *, start: int = 0, limit: int = 200) -> list[Input]:
        found: list[Input] = []
        while is_id(job_id) and len(found) < limit:
            asked = min(limit - len(found), AT_ONCE)
            some = self._server.call("inputs", job_id, start, asked)
            found += [_input(*row) for row in some]
            if len(some) < asked:
                break
            start = found[-1].place + 1
        return found

    def dependents(self, job_id: str, *, start: str = "", limit: int = 200) -> list[tuple[str, Input]]:
        found: list[tuple[str, Input]] = []
        while is_id(job_id) and limit > 0:
            asked = min(limit, MOST)
            parent, *rows = self._server.call("dependents", job_id, start, asked)
            found += [
                (child, _input(job_id, edge, is_open, *parent)) for child, edge, is_open in rows if edge is not None
            ]
            limit -= asked
            if len(rows) < asked:
                break
            start = rows[-1][0]
        return found

    def ask(self, ids: Iterable[str]) -> None:
        wanted = [each for each in ids if is_id(each)]
        for first in range(0, len(wanted), MOST):
            self._server.call("ask", *wanted[first : first + MOST])

    def skip(self, ids: Iterable[str]) -> dict[str, Answer | None]:
        return {each: self._skip(each) if is_id(each) else None for each in dict.fromkeys(ids)}

    def _skip(self, job_id: str) -> Answer | None:
        last, state = "", ""
        while last is not None:
            found = self._server.call("skip", job_id, last)
            if found is None:
                return None
            state, *more = found
            if not more:
                return not_skipped(State(state))
            (last,) = more
        return Landed(State(state))

    # ── flows ──

    def flows(
        self, ids: Iterable[str] | None = None, *, limit: int = 50, before: tuple[datetime, str] | None = None
    ) -> list[FlowView]:
        end = None if before is None else (millis_at(before[0]), before[1])
        found = self._newest(limit, end) if ids is None else self._named(list(dict.fromkeys(ids)))
        wanted = [each for each in sorted(found, reverse=True) if end is None or each < end][:limit]
        if not wanted:
            return []
        names = self._server.run("HMGET", f"{self._server.prefix}flow_names", *(each for _, each in wanted))
        return [
            FlowView(id=each, name=name or "", created_at=instant(made), counts=self._counts(each))
            for (made, each), name in zip(wanted, names, strict=True)
        ]

    def _named(self, ids: Sequence[str]) -> list[tuple[int, str]]:
        made: list[str | None] = self._server.run("ZMSCORE", f"{self._server.prefix}flows", *ids) if ids else []
        return [(int(at), each) for each, at in zip(ids, made, strict=True) if at is not None]

    def _newest(self, limit: int, end: tuple[int, str] | None) -> list[tuple[int, str]]:
        """The newest flows, from `end` on; those of its millisecond may be among them."""
        found: list[tuple[int, str]] = []
        skip = 0
        while len(found) < limit:
            rows = self._server.run(
                *("ZREVRANGEBYSCORE", f"{self._server.prefix}flows", "+inf" if end is None else end[0], "-inf"),
                *("WITHSCORES", "LIMIT", skip, MOST),
            )
            some = [(int(made), each) for each, made in zip(rows[::2], rows[1::2], strict=True)]
            found += [each for each in some if end is None or each < end]
            if len(some) < MOST:
                break
            skip += MOST
        return found

    def _counts(self, flow_id: str) -> Mapping[State, int]:
        counts = dict.fromkeys(State, 0)
        last: str | None = ""
        while last is not None:
            last, *pairs = self._server.call("members", flow_id, last, COUNTED)
            for state, number in zip(pairs[::2], pairs[1::2], strict=True):
                counts[State(state)] += number
        return counts


def _signal(key: str, text: str) -> SignalView:
    at, _, value = text.partition("=")
    return SignalView(key, value, instant(at))


def _input(
    parent: str, edge: str, is_open: int, facts: str | None, state: str | None, result: str | None, error: str | None
) -> Input:
    place, marks = divmod(int(float(edge)), 8)
    stands = None if state is None else State(state)
    return Input(
        place,
        parent,
        "ended" if marks & ANY_END else "completed",
        bool(is_open),
        bool(marks & SKIPPED),
        bool(marks & MINE),
        None if facts is None else decode_facts(facts).task,
        stands,
        (result or "null") if stands is State.COMPLETED else None,
        error if stands in ENDED or stands is not None else None,
    )
