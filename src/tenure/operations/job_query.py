"""Job filters as text: parsed from flags, a query string or a form, and described in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tenure.core.durations import seconds
from tenure.core.lifecycle import State
from tenure.operations import job_search
from tenure.operations.job_search import checked, moment, states_of
from tenure.operations.jobs import CAN, Verb
from tenure.ports import Filter

_WORDS = {
    "q": "that match {}",
    "task": "of task {}",
    "queue": "in queue {}",
    "worker": "on worker {}",
    "unique": "with the unique key {}",
    "flow": "of flow {}",
    "text": "with “{}” in their error or id",
    "last": "enqueued within the last {}",
    "since": "enqueued at or after {}",
    "until": "enqueued before {}",
}
_NAMES = (*_WORDS, "guards")


@dataclass(frozen=True, slots=True)
class JobQuery:
    """A filter as it was entered: `state` has several values, all others at most one. Empty ones are left out."""

    state: tuple[str, ...]
    rest: Mapping[str, str]

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> JobQuery:
        """The pairs among these that filter jobs."""
        states, rest = list[str](), dict[str, str]()
        for name, text in pairs:
            if name == "state" and text:
                states.append(text)
            elif name in _NAMES and text.strip():
                rest[name] = text.strip()
        return cls(tuple(dict.fromkeys(states)), rest)

    @property
    def query(self) -> dict[str, str | list[str]]:
        """For links; parsing it gives the same filter."""
        return {**({"state": list(self.state)} if self.state else {}), **self.rest}

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """For the hidden fields of forms."""
        return [*(("state", each) for each in self.state), *self.rest.items()]

    def without(self, *names: str) -> dict[str, str | list[str]]:
        """`query` without these names."""
        return {name: text for name, text in self.query.items() if name not in names}

    def filter(self, now: datetime, *, payloads: bool) -> Filter:
        """For a reader with or without the right to see payloads. Raises InvalidOption."""
        states, given = states_of(self.state, "state"), {name: checked(text, name) for name, text in self.rest.items()}
        since = moment(given["since"], "since") if "since" in given else None
        if "last" in given:
            since = max(filter(None, (since, now - timedelta(seconds=seconds(given["last"], "last")))))
        where = Filter(
            states=states,
            task=given.get("task"),
            queue=given.get("queue"),
            worker_id=given.get("worker"),
            unique=given.get("unique"),
            flow=given.get("flow"),
            text=given.get("text"),
            guards=given.get("guards") != "no",
            enqueued_since=since,
            enqueued_until=moment(given["until"], "until") if "until" in given else None,
        )
        searched = job_search.parsed(given.get("q", ""), now)
        return job_search.permitted(job_search.both(where, searched), payloads=payloads)

    def fixed(self, now: datetime, *, payloads: bool) -> JobQuery:
        """A filter that finds the same jobs later: without those enqueued after `now`. Raises InvalidOption."""
        where, rest = self.filter(now, payloads=payloads), dict(self.rest)
        rest.pop("last", None)
        if "q" in rest:
            rest["q"] = job_search.fixed(rest["q"], now)
        if where.enqueued_since is not None:
            rest["since"] = where.enqueued_since.isoformat()
        rest["until"] = min(filter(None, (where.enqueued_until, now + timedelta(milliseconds=1)))).isoformat()
        return replace(self, rest=rest)

    def left_for(self, verb: Verb) -> str:
        """The states that the verb applies to, if it does not apply to all that were requested."""
        wanted = frozenset(map(State, self.state)) or frozenset(State)
        return "" if wanted <= CAN[verb] else " or ".join(each for each in State if each in wanted & CAN[verb])

    def __str__(self) -> str:
        kinds = " or ".join(self.state)
        said = [form.format(_spoken(name, self.rest[name])) for name, form in _WORDS.items() if name in self.rest]
        what = f"{kinds} jobs" if kinds else "jobs" if said else "all jobs"
        return " ".join(filter(None, (what, ", ".join(said))))


def _spoken(name: str, text: str) -> str:
    return f"{moment(text, name):%Y-%m-%d %H:%M:%S} UTC" if name in ("since", "until") else text
