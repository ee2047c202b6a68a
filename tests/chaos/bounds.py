"""How late duties were, and the four bounds that are promised whatever the load, as long as the store answers.

    I15  a due job with a free slot starts within 1 s          I17  a tick fires within 2 s
    I16  a dead owner's jobs are rescued within                I18  an innocent enqueue takes at most 1 s, or three
         lease + scan + 2 s                                         times what the store itself takes

They are judged only where a run declares them (`Allowed.bounds`): a run with load has a lane of its own, a queue with
its own worker whose slots are always free and which no fault hits, so whatever is late there waits for other work.

The time in which a fault kept the store from answering, and a lease after it, does not count as lateness; nor does the
time in which a handler held the GIL while its process held the lock of SQLite's file (docs/delivery.md), as the kernel
tells (workload.py); nor, for a start, the time in which the lane had no worker (an outage that outlasts a lease ends
it). The machine's own delay is allowed on top, as measured during the wait: for each hop of the way (`HOPS`) the
longest that a process overslept which wanted to sleep 10 ms, and the longest that the store took for an unrelated
write; and how much longer the computing on the way (`WORK`) took than the processor time that it was given.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import inf
from statistics import median
from typing import NamedTuple

from .history import Event
from .seen import LOCKED, Bounds, Seen, Span

HOPS = 4  #: wake-ups and answers between an enqueue and its handler: client, bell, worker, store
WORK = 0.05  #: seconds of computing on that way, by all of them together
SAMPLE_SECONDS = 1.0  #: the time that one event of the gauge covers
DUTIES = {
    "start": "a due job starts",
    "promote": "a delayed job starts",
    "wave": "the first of many jobs that are due at once starts",
    "rescue": "a dead owner's job is taken back",
    "tick": "a tick fires",
    "enqueue": "an innocent enqueue is answered",
    "answer": "a waiting result() returns",
    "worker": "the next worker begins its first job where one has ended",
}


class Lag(NamedTuple):
    """Something that was due at `began` and happened at `ended`: `late` is what counts, `promised` the bound."""

    duty: str
    what: str
    began: float
    ended: float
    late: float
    promised: float
    machine: float  #: allowed on top
    refused: bool = False  #: it never happened

    @property
    def broken(self) -> bool:
        return self.refused or self.late > self.promised + self.machine


@dataclass(frozen=True, slots=True)
class Lags:
    """Those of one duty: how many, and their median and greatest lateness, in seconds."""

    count: int
    half: float
    most: float
    broken: int  #: those later than the promise and the machine's delay together allow


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine itself was like: the maximum and the median of each second's worst, and its load average."""

    load: float
    stall: float
    stall_half: float
    slow: float
    slow_half: float
    store: float
    store_half: float


class Gauge:
    """What was measured of the machine alongside the run (gauge.py)."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._samples = [event for event in events if event.op == "gauge"]
        self._times = [event.at for event in self._samples]

    @property
    def offset(self) -> float:
        """Boot-clock seconds at Unix time 0."""
        return median(event.at - event.data["unix"] for event in self._samples) if self._samples else 0.0

    def worst(self, what: str, began: float, ended: float, at_least: float = 0.0) -> float:
        """The greatest value of `what` in the samples from `began` to `ended`."""
        first = bisect_left(self._times, began)
        last = bisect_right(self._times, ended + SAMPLE_SECONDS)
        return max((event.data[what] for event in self._samples[first:last]), default=at_least)

    def machine(self) -> Machine | None:
        if not self._samples:
            return None
        told = {name: [event.data[name] for event in self._samples] for name in ("load", "late", "slow", "store")}
        return Machine(
            load=median(told["load"]),
            stall=max(told["late"]),
            stall_half=median(told["late"]),
            slow=max(told["slow"]),
            slow_half=median(told["slow"]),
            store=max(told["store"]),
            store_half=median(told["store"]),
        )


def excused(faults: Iterable[Span], names: Iterable[str], lease: float) -> list[Span]:
    """When the store did not answer: these faults, each a lease longer, joined where they meet."""
    return joined(each._replace(ended=each.ended + lease) for each in faults if each.name in set(names))


def joined(spans: Iterable[Span]) -> list[Span]:
    found: list[Span] = []
    for span in sorted(spans, key=lambda each: each.began):
        if found and span.began <= found[-1].ended:
            found[-1] = found[-1]._replace(ended=max(found[-1].ended, span.ended))
        else:
            found.append(span)
    return found


class Lateness:
    """Every lateness of a run that declares bounds, and how much of each counts."""

    def __init__(self, seen: Seen, bounds: Bounds) -> None:
        self._seen, self._bounds = seen, bounds
        self._gauge = Gauge(seen.events)
        spans, away = [*seen.faults, *seen.locked], bounds.away | {LOCKED}
        self._away = excused(spans, away, bounds.lease)
        faults = excused(spans, away | bounds.deaf, bounds.lease)
        self._empty = list(self._without_a_worker())
        self._deaf = joined([*faults, *self._empty])

    @cached_property
    def lags(self) -> Sequence[Lag]:
        ways = (
            *(self._starts, self._waves, self._rescues, self._ticks, self._enqueues),
            *(self._answers, self._workers),
        )
        return [lag for way in ways for lag in way()]

    def by_duty(self) -> Mapping[str, Lags]:
        found: dict[str, list[Lag]] = defaultdict(list)
        for lag in self.lags:
            found[lag.duty].append(lag)
        return {
            duty: Lags(
                count=len(mine),
                half=median(lag.late for lag in mine),
                most=max(lag.late for lag in mine),
                broken=sum(lag.broken for lag in mine),
            )
            for duty, mine in found.items()
        }

    def machine(self) -> Machine | None:
        return self._gauge.machine()

    def broken(self, *duties: str) -> Iterator[str]:
        for lag in self.lags:
            if lag.duty in duties and lag.broken:
                how = "is refused though the store answers," if lag.refused else DUTIES[lag.duty]
                yield (
                    f"{lag.what}, due at {lag.began:.3f}: {how} {lag.late:.2f} s later, "
                    f"{lag.promised:.2f} s are promised, {lag.machine:.2f} s more are the machine's"
                )

    def _lag(
        self, duty: str, what: str, began: float, ended: float, promised: float, away: Sequence[Span] | None = None
    ) -> Lag:
        spans = self._away if away is None else away
        out = sum(max(0.0, min(ended, span.ended) - max(began, span.began)) for span in spans)
        stall, store = (self._gauge.worst(each, began, ended) for each in ("late", "store"))
        slow = WORK * (self._gauge.worst("slow", began, ended, at_least=1.0) - 1)
        if duty == "enqueue":
            promised, store = max(promised, 3 * store), 0.0
        return Lag(duty, what, began, ended, max(0.0, ended - began - out), promised, HOPS * (stall + store) + slow)

    def _last(self) -> float:
        """Until when lateness is judged here: what happens later is for I7."""
        calm = [event.at for event in self._seen.events if event.op == "calm"]
        return calm[0] if calm else self._seen.events[-1].at

    # ── starts ──

    def _starts(self) -> Iterator[Lag]:
        last = self._last()
        ready = max((e.at for e in self._seen.events if e.op == "load" and e.phase == "ok"), default=-inf)
        for story in self._seen.stories.values():
            call = story.acknowledged
            if call is None or not call.data.get("innocent") or call.began < ready:  # then the lane has no worker yet
                continue
            delay = float(call.data["due"])
            due = call.ended + delay
            began = min((event.at for event in story.begins()), default=max(last, due))
            duty = "promote" if delay else "start"
            promised = self._bounds.start if not delay or self._bounds.delayed else inf
            yield self._lag(duty, story.name, due, max(began, due), promised, self._deaf)

    def _waves(self) -> Iterator[Lag]:
        """Of many jobs that are due at once only the first has a bound: the others queue behind one another."""
        for wave in self._seen.events:
            if wave.op == "wave":
                due, prefix = wave.data["due"] + self._gauge.offset, wave.key
                first = min(
                    (e.at for e in self._seen.events if e.op == "begin" and e.key.startswith(prefix) and e.at >= due),
                    default=self._last(),
                )
                if first >= due:
                    yield self._lag("wave", f"wave {prefix!r}", due, first, self._bounds.start, self._deaf)

    # ── rescues ──

    def _rescues(self) -> Iterator[Lag]:
        promised = self._bounds.lease + self._bounds.scan + self._bounds.rescue
        deaths: dict[int, list[float]] = defaultdict(list)
        for kill in self._seen.kills:
            deaths[kill.data["pid"]].append(kill.at)
        for pid, pauses in self._seen.pauses.items():
            # An owner survives a shorter pause, or is back before its rescue is due.
            deaths[pid] += [span.began for span in pauses if span.ended - span.began > promised]
        for story in self._seen.stories.values():
            ended = story.job.ended if story.job else {}
            for begin in story.begins():
                if begin.attempt in ended:
                    taken = ended[begin.attempt] + self._gauge.offset
                    for died in deaths.get(self._seen.pids.get(begin.actor, 0), ()):
                        if begin.at <= died <= taken:
                            what = f"{story.name}, attempt {begin.attempt}"
                            yield self._lag("rescue", what, died, taken, promised)

    # ── ticks ──

    def _ticks(self) -> Iterator[Lag]:
        for schedule, decided in self._seen.dump.decided.items():
            timetable = self._seen.allowed.schedules.get(schedule)
            for tick, at in decided.items():
                if timetable is not None and timetable.start <= tick <= timetable.end:
                    due, fired = tick + self._gauge.offset, at + self._gauge.offset
                    yield self._lag("tick", f"tick {tick} of {schedule!r}", due, max(due, fired), self._bounds.tick)

    # ── enqueues ──

    def _enqueues(self) -> Iterator[Lag]:
        """As long as the store answers, an enqueue may not fail either."""
        answers = {(e.actor, e.key): e for e in self._seen.events if e.op == "enqueue" and e.phase in ("ok", "info")}
        for event in self._seen.events:
            if event.op == "enqueue" and event.phase == "invoke" and event.data.get("innocent"):
                answer = answers.get((event.actor, event.key))
                if answer is not None:
                    lag = self._lag("enqueue", f"job {event.key!r}", event.at, answer.at, self._bounds.enqueue)
                    met = any(span.began <= answer.at and event.at <= span.ended for span in self._away)
                    yield lag._replace(refused=answer.phase == "info" and not met)

    # ── what has no bound ──

    def _without_a_worker(self) -> Iterator[Span]:
        """From the last sign of life of a worker of the lane to the first job of the next one."""
        actors = {
            event.actor
            for story in self._seen.stories.values()
            if story.acknowledged and story.acknowledged.data.get("innocent")
            for event in story.begins()
        }
        first: dict[str, float] = {}
        last: dict[str, float] = {}
        for event in self._seen.events:
            if event.actor in actors:
                last[event.actor] = event.at
                if event.op == "begin":
                    first.setdefault(event.actor, event.at)
        order = sorted(first, key=lambda actor: first[actor])
        for one, two in pairwise(order):
            if first[two] > last[one]:
                yield Span(two, last[one], first[two])

    def _workers(self) -> Iterator[Lag]:
        for span in self._empty:
            yield self._lag("worker", span.name, span.began, span.ended, inf)

    def _answers(self) -> Iterator[Lag]:
        for event in self._seen.events:
            if event.op == "answer" and event.key in self._seen.stories:
                ends = [each.at for each in self._seen.stories[event.key].of("end") if each.data.get("how") == "return"]
                if ends:
                    yield self._lag("answer", f"job {event.key!r}", ends[-1], max(ends[-1], event.at), inf)


@lru_cache(maxsize=1)  # of one run: four invariants and the figures ask for it
def lateness(seen: Seen) -> Lateness | None:
    return Lateness(seen, seen.allowed.bounds) if seen.allowed.bounds is not None else None


def i15(seen: Seen) -> Iterator[str]:
    """A due job with a free slot starts within a second."""
    yield from _broken(seen, "start", "promote", "wave")


def i16(seen: Seen) -> Iterator[str]:
    """The jobs of a dead owner are taken back in time."""
    yield from _broken(seen, "rescue")


def i17(seen: Seen) -> Iterator[str]:
    """A tick fires in time."""
    yield from _broken(seen, "tick")


def i18(seen: Seen) -> Iterator[str]:
    """One caller's trouble is never another caller's wait."""
    yield from _broken(seen, "enqueue")


def _broken(seen: Seen, *duties: str) -> Iterator[str]:
    found = lateness(seen)
    if found is not None:
        yield from found.broken(*duties)
