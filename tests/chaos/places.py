"""I22 to I24: limits hold by what handlers saw, and no place is held when all is over.

A begin tells what its limits allow (`places`: how many at a time, by key; `pace`: begins in so many seconds, by key),
so the checker knows no definition. A load without limits is judged too: nothing is wrong.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from math import inf

from .history import Event
from .seen import Seen, Story

PACE_SLACK = 4.0  #: seconds between a claim and its handler's begin, at most, on lines and machines that are in trouble


def i22(seen: Seen) -> Iterator[str]:
    """Never more jobs of a key run at a time than it has places."""
    begins: dict[str, list[tuple[float, float, Story, Event]]] = defaultdict(list)
    most: dict[str, int] = {}
    for story in seen.stories.values():
        for begin in story.of("begin"):
            last = max((each.at for each in _lived(seen, story, begin)), default=begin.at)
            for key, places in begin.data.get("places", {}).items():
                begins[key].append((begin.at, last, story, begin))
                most[key] = places
    for key, found in begins.items():
        found.sort(key=lambda each: each[0])
        for place, (at, _, story, begin) in enumerate(found):
            beside = [other for _, last, other, _ in found[:place] if last > at]
            if len(beside) >= most[key] and not seen.forgotten(-inf, at, at) and not seen.waking(begin):
                names = ", ".join(sorted(each.name for each in beside)[:5])
                yield (
                    f"{story.name}, attempt {begin.attempt}: it began at {at:.3f} beside {names}, and {key} has "
                    f"{most[key]} places"
                )


def _lived(seen: Seen, story: Story, begin: Event) -> list[Event]:
    """What shows that this attempt's code was running. A host that wakes up stops it in a moment."""
    events = [each for each in story.events if each.attempt == begin.attempt and each.actor == begin.actor]
    return [each for each in events if not seen.waking(each)]


def i23(seen: Seen) -> Iterator[str]:
    """Never more jobs of a key begin in any period than its rate says. (Those of a paused worker began late.)"""
    begins: dict[str, list[float]] = defaultdict(list)
    pace: dict[str, tuple[int, float]] = {}
    for story in seen.stories.values():
        for begin in story.of("begin"):
            for key, (most, period) in begin.data.get("pace", {}).items():
                pace[key] = most, period
                if not _paused_before(seen, begin):
                    begins[key].append(begin.at)
    for key, found in begins.items():
        found.sort()
        most, period = pace[key]
        for place, at in enumerate(found):
            number = bisect_left(found, at + period - PACE_SLACK) - place
            if number > most and not seen.forgotten(-inf, at, at + period):
                yield f"{number} jobs of {key} began within {period - PACE_SLACK:g} s from {at:.3f}, and {most} may"


def _paused_before(seen: Seen, begin: Event) -> bool:
    spans = seen.pauses.get(seen.pids.get(begin.actor, 0), ())
    return any(span.began <= begin.at <= span.ended + PACE_SLACK for span in spans)


def i24(seen: Seen) -> Iterator[str]:
    """When all jobs have ended, nothing holds a place, or waits for one."""
    live = {kept.id for kept in seen.dump.jobs if kept.state in ("waiting", "scheduled", "queued", "processing")}
    for key, held, waiting in seen.dump.places:
        if not live and (held or waiting):
            yield f"{held} places of {key} are held, and {waiting} jobs wait for one, and no job is live"
