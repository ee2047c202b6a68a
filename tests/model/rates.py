"""The rate of a key, searched: jobs that are admitted at one time, and begin at another one.

`admit` reads the time; then what has begun since it last looked, and how many jobs are admitted and have not begun;
then it admits as many as there are tokens for. Workers claim when they like, or not for a long time; jobs are taken
back before they have begun, and a process that admits dies. The promises: no more jobs begin in any period than the
rate says; and none waits for a token that is there, when no ask is left and no time is kept at which to look again.

How the world is made small: the clock ticks a few times, for less time than a transaction of `admit` may stop; the
arithmetic is that of the code (`core/limits.py`). Who has the lock, and whose turn it is, is in `places.py`. A clock
that is set is left to the conformance suite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tenure.core.limits import Bounds, Bucket, Rate, after_begins, next_token, room

from .search import Step

MISHAPS = 2
TICK = 0.5  #: seconds
PERIOD = 4  #: ticks
RATES = tuple(Rate(most, PERIOD * TICK, burst) for most, burst in ((2, 1), (2, 2), (3, 2)))
JOBS, LAST = 4, 7  #: the number of jobs, and the last tick
SIGHTS = frozenset({"", "gives", "withdrawn", "gives, withdrawn"})


@dataclass(frozen=True, slots=True)
class Guards:
    L2_a_begin_takes_the_token: bool = True  #: and not the admission
    L2_what_has_not_begun_keeps_its_token: bool = True
    L2_the_burst_is_a_part_of_the_rate: bool = True  #: the bucket is refilled more slowly for it
    L2_begins_and_places_are_read_at_once: bool = True  #: in one statement, with no claim in between
    L2_a_begin_that_came_after_the_time_was_read_counts_from_then: bool = True  #: a full bucket gains nothing before
    L2_the_next_token_is_waited_for: bool = True  #: `admit` keeps the time at which to look again
    L2_a_place_that_goes_back_asks: bool = True


class World(NamedTuple):
    now: int = 0
    waiting: int = JOBS
    unbegun: int = 0  #: jobs that are admitted, and have not begun
    begins: tuple[int, ...] = ()  #: those of the last period
    told: tuple[int, ...] = ()  #: those that no `admit` has counted
    bucket: Bucket | None = None
    ask: bool = True
    due: float | None = None
    hand: str = ""  #: what `admit` has read last: the time, the begins, or the places
    time: int = 0  #: as it has read it
    saw: int = 0  #: jobs that had not begun, as it has read
    counted: tuple[int, ...] = ()  #: the begins that it has read, and taken away
    withdrawn: bool = False
    mishaps: int = 0


class _Unpaid(Rate):
    """A rate that is refilled as if it had no burst."""

    @property
    def refill(self) -> float:
        return self.most / self.period


class Rates:
    start = World()

    def __init__(self, guards: Guards, mishaps: int, rate: Rate) -> None:
        self.guards, self.mishaps = guards, mishaps
        self.rate = rate if guards.L2_the_burst_is_a_part_of_the_rate else _Unpaid(*rate)
        self.name = f"rates: {rate.most} in {PERIOD} ticks, {rate.burst} at once"

    def normal(self, world: World) -> World:
        return world

    def at_rest(self, world: World) -> bool:
        """All have begun, or time is over."""
        return not world.hand and (world.now == LAST or not (world.waiting or world.unbegun))

    def lost(self, world: World) -> str:
        return f"{world.waiting + world.unbegun} jobs can never begin"

    def sight(self, world: World) -> str:
        return ", ".join(["gives"] * bool(world.hand) + ["withdrawn"] * world.withdrawn)

    def broken(self, world: World) -> str:
        number = sum(world.now - at < PERIOD for at in world.begins)
        if number > self.rate.most:
            return f"{number} jobs have begun in {PERIOD} ticks, and the rate says {self.rate.most}"
        looked_at = world.ask or world.hand or (world.due is not None and world.due <= world.now)
        if (
            world.waiting
            and not looked_at
            and _room(self.rate, self._bucket(world, world.told, world.now), world.unbegun)
        ):
            return "a job is waiting, there is a token, and nobody looks"
        return ""

    def _bucket(self, world: World, begins: tuple[int, ...], now: int) -> Bucket:
        counted = begins if self.guards.L2_a_begin_takes_the_token else ()
        if not self.guards.L2_a_begin_that_came_after_the_time_was_read_counts_from_then:
            counted = tuple(min(at, now) for at in counted)
        return after_begins(world.bucket, self.rate, (at * TICK for at in counted), now * TICK)

    def _kept(self, unbegun: int) -> int:
        """The tokens that are there, but must not be given."""
        keeps = self.guards.L2_what_has_not_begun_keeps_its_token and self.guards.L2_a_begin_takes_the_token
        return unbegun if keeps else 0

    # ── what Tenure does by itself ──

    def engine(self, world: World) -> Iterator[Step[World]]:
        if world.now < LAST:
            later = world.now + 1
            kept = tuple(at for at in world.begins if later - at < PERIOD)
            yield Step("a tick passes", world._replace(now=later, begins=kept))
        if world.unbegun:
            begun = world._replace(unbegun=world.unbegun - 1, begins=(*world.begins, world.now))
            yield Step("a job begins", begun._replace(told=(*world.told, world.now)))
        if world.hand == "time":
            taken = world._replace(counted=world.told, told=())
            if self.guards.L2_begins_and_places_are_read_at_once:
                story = f"… it reads {len(world.told)} begins, and that {world.unbegun} have not begun"
                yield Step(story, taken._replace(hand="places", saw=world.unbegun))
            else:
                yield Step(f"… it reads {len(world.told)} begins", taken._replace(hand="begins"))
        elif world.hand == "begins":
            yield Step("… it reads how many have not begun", world._replace(hand="places", saw=world.unbegun))
        elif world.hand == "places":
            yield self._give(world)
        elif world.ask or (world.due is not None and world.due <= world.now):
            yield Step("admit reads the time", world._replace(ask=False, due=None, hand="time", time=world.now))

    def _give(self, world: World) -> Step[World]:
        bucket = self._bucket(world, world.counted, world.time)
        number = min(_room(self.rate, bucket, self._kept(world.saw)), world.waiting)
        waiting, unbegun = world.waiting - number, world.unbegun + number
        if not self.guards.L2_a_begin_takes_the_token:
            bucket = bucket._replace(tokens=bucket.tokens - number)
        due = None
        if waiting and self.guards.L2_the_next_token_is_waited_for:
            token = next_token(bucket, self.rate, self._kept(world.saw + number))
            due = max(world.time, bucket.at / TICK) + token / TICK
        after = world._replace(waiting=waiting, unbegun=unbegun, bucket=bucket, due=due)
        after = after._replace(hand="", time=0, saw=0, counted=())
        return Step(f"… {number} are queued", after)

    # ── what can't be relied on ──

    def chances(self, world: World) -> Iterator[Step[World]]:
        if world.mishaps == self.mishaps:
            return
        mishap = world._replace(mishaps=world.mishaps + 1)
        if world.hand:
            undone = mishap._replace(ask=True, told=(*world.counted, *world.told))
            yield Step("the process that admits dies", undone._replace(hand="", time=0, saw=0, counted=()))
        if world.unbegun:
            back = mishap._replace(unbegun=world.unbegun - 1, waiting=world.waiting + 1, withdrawn=True)
            asks = world.ask or self.guards.L2_a_place_that_goes_back_asks
            yield Step("a job that has not begun waits again", back._replace(ask=asks))


def _room(rate: Rate, bucket: Bucket, unbegun: int) -> int:
    return room(Bounds(rate=rate), bucket, held=0, unbegun=unbegun) or 0
