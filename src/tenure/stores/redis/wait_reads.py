"""Reads of jobs that wait, for people and their tools, in Redis: a few hundred items a script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tenure.core.lifecycle import EXPIRED, LIVE, State
from tenure.ports import NEWEST_FLOWS, EdgeView, JobView, Member, Waits
from tenure.stores.redis.base import RedisBase
from tenure.stores.redis.drafts import MOST
from tenure.stores.redis.facts import decode_facts
from tenure.stores.redis.links import ANY_END, MINE, SKIPPED
from tenure.stores.redis.reads import views_of
from tenure.stores.rules import MOST_ASKS, is_id

_IDS = 50  #: of one script


class RedisWaitReads(RedisBase):
    """The verbs of `WaitReads`, except for those that workers and supervisors depend on."""

    def members(self, flow: str, *, start: str = "", limit: int = 1000) -> list[Member]:
        found: list[Member] = []
        while is_id(flow) and len(found) < limit:
            start, *rows = self._server.call("flow_members", flow, start, min(MOST, limit - len(found)))
            found += [Member(each, decode_facts(facts).task, queue, State(state)) for each, facts, queue, state in rows]
            if not start:
                break
        return found

    def edges(self, ids: Sequence[str], *, limit: int = 2000) -> list[EdgeView]:
        found: list[EdgeView] = []
        left, after = [each for each in ids if is_id(each)], "-inf"
        while left and len(found) < limit:
            asked, most = left[:_IDS], min(MOST, limit - len(found))
            rows = self._server.call("edges", most, after, *asked)
            found += [_edge(*row) for row in rows]
            if len(rows) < most:
                left, after = left[_IDS:], "-inf"
            else:  # this child may have more
                last, _, edge, _ = rows[-1]
                left, after = left[left.index(last) :], f"({edge}"
        return found

    def holding(self, *, limit: int = 50) -> list[JobView]:
        ids = self._server.run("ZREVRANGE", f"{self._server.prefix}holding", 0, limit - 1)
        return [view for view in views_of(self._server, ids) if view is not None and view.state is State.DEAD]

    def waited_longest(self, *, limit: int = 50) -> list[JobView]:
        ids = self._server.run("ZRANGE", f"{self._server.prefix}waited", 0, limit - 1)
        return [view for view in views_of(self._server, ids) if view is not None and view.state is State.WAITING]

    def lost_waits(self, ids: Iterable[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        left = [each for each in ids if is_id(each)]
        while left:
            looked, *rows = self._server.call("lost_waits", EXPIRED, MOST_ASKS, *left[:_IDS])
            found |= {job_id: parents for job_id, *parents in rows}
            left = left[looked:]
        return found

    def waits(self, *, most: int = 10_000) -> Waits:
        asks: int = self._server.run("ZCARD", f"{self._server.prefix}asks")
        newest = self._server.run("ZREVRANGE", f"{self._server.prefix}flows", 0, NEWEST_FLOWS - 1)
        return Waits(min(asks, most), sum(map(self._is_open, newest)))

    def _is_open(self, flow: str) -> bool:
        last: str | None = ""
        while last is not None:
            last, *pairs = self._server.call("members", flow, last, MOST)
            if any(State(state) in LIVE for state in pairs[::2]):
                return True
        return False


def _edge(child: str, parent: str, edge: str, is_open: int) -> EdgeView:
    marks = int(float(edge)) % 8
    return EdgeView(
        child,
        parent,
        "ended" if marks & ANY_END else "completed",
        bool(is_open),
        bool(marks & SKIPPED),
        bool(marks & MINE),
    )
