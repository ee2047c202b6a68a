"""A history, put in order: the calls, what is known of each job, and what the nemesis did meanwhile.

An answer that was not received does not count: a call whose end is `info`, or has none, may still happen at any
later time. All clocks are one, so what ended before something else began did happen before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import inf
from typing import Any, NamedTuple

from .history import Dump, Event, Kept

ENDED = frozenset({"completed", "dead", "cancelled"})
ASKED = frozenset({"enqueue", "cancel", "replay", "delete", "read", "ghost", "signal"})
WRITES = frozenset({"checkpoint", "once", "hand_in"})
LOCKED = "held GIL and lock"
HANDLERS = WRITES | {"begin", "alive", "effect", "made", "end", "tick", "given", "heard"}
CHARGED = frozenset({"raise", "final"})  #: ends that are the code's own fault
FINAL = ENDED | {"gone"}
ORDERLY = CHARGED | {"snooze", "suspend", "cancelled"}  #: ends after which another attempt is no surprise


@dataclass(frozen=True, slots=True)
class Timetable:
    """A schedule of the run: ticks at every multiple of `period` within [start, end], in Unix seconds.

    With `each`, every one of them is one job, as `catch_up="all", overlap="allow"` promises; else at most one.
    """

    period: float
    start: float
    end: float
    each: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How late each duty may be, in seconds, while the store answers (bounds.py)."""

    lease: float
    scan: float
    start: float = 1.0
    rescue: float = 2.0  #: after a lease and a scan
    tick: float = 2.0
    enqueue: float = 1.0
    #: is a delayed job due like any other? Behind many that were due before it, it waits for its turn
    delayed: bool = True
    away: frozenset[str] = frozenset()  #: faults in which the store does not answer
    deaf: frozenset[str] = frozenset()  #: faults in which it answers, and no ring is heard


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The exceptions that are declared, in seconds."""

    #: for this long after a whole host was paused, old code may still run; what it writes is refused all the same
    waking: float = 1.0
    #: by name of a fault ("kill server"): what was acknowledged in this time before it, or during it, may be gone
    lost_window: Mapping[str, float] = field(default_factory=dict[str, float])
    #: from `calm` to `drained`
    drain: float = 60.0
    schedules: Mapping[str, Timetable] = field(default_factory=dict[str, Timetable])
    bounds: Bounds | None = None  #: None: nothing was late, for all that is judged


# ── Calls: an invoke and its answer ─────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Call:
    """What was asked and what came back. `ended` is infinite if the answer is unknown: it may still happen."""

    op: str
    actor: str
    key: str
    attempt: int
    began: float
    data: dict[str, Any]
    ended: float = inf
    outcome: str = "info"

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    @property
    def landed(self) -> bool:
        return self.ok and bool(self.data.get("landed", True))

    @property
    def possible(self) -> bool:
        """It has happened, or may have."""
        return self.outcome == "info" or self.landed

    @property
    def made_a_job(self) -> bool:
        return self.ok and self.data.get("created", True) is True


def pair(events: Iterable[Event]) -> list[Call]:
    """Every call, in order of its invoke. One without an invoke (a read) may have begun at any time before."""
    calls: list[Call] = []
    waiting: dict[tuple[object, ...], Call] = {}
    for event in events:
        attempt = event.attempt if event.op in WRITES else None  # what a read was told is no part of its question
        which = (event.actor, event.op, event.key, attempt, event.data.get("name"))
        if event.phase == "invoke":
            call = Call(event.op, event.actor, event.key, event.attempt, event.at, dict(event.data))
            waiting[which] = call
            calls.append(call)
            continue
        if which not in waiting:
            waiting[which] = Call(event.op, event.actor, event.key, event.attempt, -inf, {})
            calls.append(waiting[which])
        answered = waiting.pop(which)
        answered.data |= event.data
        answered.attempt = event.attempt
        answered.outcome = event.phase
        answered.ended = inf if event.phase == "info" else event.at
    return calls


# ── The story of one job ────────────────────────────────────────────────────────────────────────────────────────


class Claim(NamedTuple):
    """The job was in this state at some time between `began` and `ended`; `told`: how that is known."""

    began: float
    ended: float
    state: str
    told: str


@dataclass(slots=True)
class Story:
    """All that is known of one job, in order of time."""

    key: str
    calls: dict[str, list[Call]] = field(default_factory=lambda: defaultdict[str, list[Call]](list))
    events: list[Event] = field(default_factory=list[Event])  #: its handlers'
    kept: list[Kept] = field(default_factory=list[Kept])
    of_schedule: bool = False
    of_edges: list[Event] = field(default_factory=list[Event])  #: what it waits for, told before it was asked for

    def of(self, *ops: str) -> list[Event]:
        return [event for event in self.events if event.op in ops]

    @property
    def name(self) -> str:
        return f"job {self.key!r}"

    @property
    def job(self) -> Kept | None:
        return self.kept[0] if self.kept else None

    @property
    def must(self) -> str:
        """The state it has to end in, as its client says."""
        return next((call.data["must"] for call in self.calls["enqueue"] if "must" in call.data), "any")

    @property
    def acknowledged(self) -> Call | None:
        return next((call for call in self.calls["enqueue"] if call.made_a_job), None)

    @property
    def asked(self) -> bool:
        """A client has asked for it, and was not refused, as far as is known."""
        return any(call.made_a_job or call.outcome == "info" for call in self.calls["enqueue"])

    @property
    def deletable(self) -> bool:
        return any(call.possible for call in self.calls["delete"])

    def replays(self) -> list[Call]:
        return [call for call in self.calls["replay"] if call.possible]

    def replayed(self, after: float, before: float = inf) -> bool:
        """Could a replay have happened in between?"""
        return any(call.began < before and call.ended > after for call in self.replays())

    def begins(self) -> list[Event]:
        return self.of("begin", "tick")

    def writes(self) -> list[Call]:
        return [call for op in sorted(WRITES) for call in self.calls[op]]

    def overtaken(self) -> Callable[[int], Event | None]:
        """The first begin of any attempt after a given one."""
        begins = sorted(self.begins(), key=lambda event: event.attempt)
        attempts = [event.attempt for event in begins]
        first = list(accumulate(reversed(begins), earlier))[::-1]

        def of(attempt: int) -> Event | None:
            place = bisect_right(attempts, attempt)
            return first[place] if place < len(first) else None

        return of

    def claims(self) -> list[Claim]:
        """Every state that a client or handler was told, in order of the answers."""
        found = [
            Claim(
                call.began, call.ended, call.data["state"], f"a {call.op} at {call.ended:.3f} told {call.data['state']}"
            )
            for op in ("read", "cancel")
            for call in self.calls[op]
            if call.ok and call.data.get("state") is not None
        ]
        found += [
            Claim(call.began, call.ended, "completed", f"attempt {call.attempt} was handed in at {call.ended:.3f}")
            for call in self.calls["hand_in"]
            if call.ok
        ]
        found += [
            Claim(call.began, call.ended, "gone", f"it was deleted at {call.ended:.3f}")
            for call in self.calls["delete"]
            if call.landed
        ]
        return sorted(found, key=lambda claim: claim.ended)


def by_time(event: Event) -> float:
    return event.at


def earlier(one: Event, two: Event) -> Event:
    return two if two.at < one.at else one


def higher(one: Event, two: Event) -> Event:
    return two if two.attempt > one.attempt else one


class Span(NamedTuple):
    name: str
    began: float
    ended: float


class Seen:
    """A history in the order in which it is judged."""

    def __init__(self, events: Sequence[Event], dump: Dump, allowed: Allowed) -> None:
        self.dump, self.allowed = dump, allowed
        self.events = sorted(events, key=by_time)
        self.of_schedules = {job for ticks in dump.ticks.values() for jobs in ticks.values() for job in jobs}
        self.stories: dict[str, Story] = {}
        self.by_id: dict[str, Story] = {}
        self._gather()
        self._tell_nemesis()

    def story(self, key: str, job: str) -> Story:
        """A job of a schedule has no client, and so no key but its id."""
        scheduled = job in self.of_schedules
        name = job if scheduled or not key else key
        story = self.stories.setdefault(name, Story(name))
        story.of_schedule |= scheduled
        if job:
            self.by_id.setdefault(job, story)
        return story

    def _gather(self) -> None:
        for kept in self.dump.jobs:
            self.story(kept.key, kept.id).kept.append(kept)
        for event in self.events:
            if event.op in HANDLERS:
                self.story(event.key, event.job).events.append(event)
            elif event.op == "waits":
                self.story(event.key, "").of_edges.append(event)
        for call in pair(event for event in self.events if event.op in ASKED):
            self.story(call.key, "").calls[call.op].append(call)
            if call.op == "enqueue" and call.made_a_job and "id" in call.data:
                self.by_id.setdefault(call.data["id"], self.stories[call.key])
        for story in self.stories.values():
            for call in pair(story.of(*WRITES)):
                story.calls[call.op].append(call)
            for call in story.calls[
                "enqueue"
            ]:  # a client that had to send it twice is told that the job exists: it is its own
                own = not call.data.get("unique") or self.by_id.get(call.data.get("id", "")) is story
                if own and "created" in call.data:
                    call.data["created"] = True
        self.pids = {
            event.actor: event.data["pid"] for event in self.events if event.op == "begin" and "pid" in event.data
        }

    def _tell_nemesis(self) -> None:
        calls = pair(event for event in self.events if event.op in ("fault", "pause"))
        self.faults = [Span(call.data["kind"], call.began, call.ended) for call in calls if call.op == "fault"]
        self.lossy = [
            (span.began - window, span)
            for span in self.faults
            if (window := self.allowed.lost_window.get(span.name)) is not None
        ]
        self.pauses: dict[int, list[Span]] = defaultdict(list)
        self.wakings: dict[int, list[Span]] = defaultdict(list)
        for call in calls:
            if call.op == "pause":
                within = self.during(call.began)
                span = Span(within or "pause", call.began, call.ended)
                for pid in call.data.get("pids", ()):
                    self.pauses[pid].append(span)
                    if within.endswith(" host"):
                        self.wakings[pid].append(span._replace(ended=span.ended + self.allowed.waking))
        self.kills = [event for event in self.events if event.op == "kill"]
        self.locked = [
            Span(LOCKED, call.began, min(call.ended, call.began + call.data["seconds"] + 1.0))
            for call in pair(event for event in self.events if event.op == "hold")
            if call.data.get("locked", True)  # unknown for one that was killed
        ]

    def during(self, at: float) -> str:
        """The name of the last fault that had begun, and was not over."""
        return next((span.name for span in reversed(self.faults) if span.began <= at <= span.ended), "")

    def forgotten(self, began: float, ended: float, later: float) -> bool:
        """May what was acknowledged in that time be gone at the later one, in a window that is declared?"""
        return any(since <= ended and began <= span.ended and later >= span.began for since, span in self.lossy)

    def waking(self, event: Event) -> bool:
        """Does it come from a host that was paused, and is just waking up?"""
        spans = self.wakings.get(self.pids.get(event.actor, 0), ())
        return any(span.began <= event.at <= span.ended for span in spans)

    @cached_property
    def rows(self) -> Counter[str]:
        return Counter(self.dump.rows)

    @cached_property
    def handed_in(self) -> Mapping[str, Counter[int]]:
        found: dict[str, Counter[int]] = defaultdict(Counter)
        for key, attempt in self.dump.handed_in:
            found[key][attempt] += 1
        return found
