"""When one host declares another dead: both are checked through an outage that delays requests.

The story of `docs/adr/0015`, with time in it. What is searched: an outage of any length; which requests it refuses,
and which it holds up and lets through when it is over, each by itself and a while later; renewals whose sender waits
for them, and renewals whose sender has given up and asks again. The promise: an outage costs no living worker its
jobs, and a host that is lost is declared dead all the same.

Time passes in sixths of a lease, the same for all. Left to `protocol.py`, where time is not a number: what a
declaration does to jobs, and processes that stop. That a redelivered permit may declare under these very conditions
makes no difference here: it is one more scan. The witness of ADR 15 is a second line of defence: these rules keep the
promise without it, and so it is not played.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from .search import Step

MISHAPS = 1  #: an outage, or a host that is lost
LEASE = 6
BEAT = LEASE // 3
RETRY = 1  #: until a refused request is retried
LATE = 1  #: after an outage, until the last of what it held up is carried out
OVER = -1  #: a lease that has run out, a time that has passed


@dataclass(frozen=True, slots=True)
class Guards:
    declaration_void_after_a_while: bool = True  #: it is carried out within lease/3 of when the store told the time
    judges_itself_after_the_answer: bool = True  #: was I away? is asked after the store has told the time, not before
    judges_its_last_renewal: bool = True  #: a host whose last renewal is too old declares none dead
    quiet_after_a_gap: bool = True  #: … nor for one lease after a gap in its own renewals
    gap_lasts_until_the_answer: bool = True  #: a renewal may be sent in time, and be held up
    away_after_half_a_lease: bool = True  #: at two thirds, no time is left for others to be renewed


class Net(StrEnum):
    UP = "up"
    AWAY = "away"
    BACK = "back"  #: but not all that was held up has come through


class Renewal(NamedTuple):
    """Held up on its way."""

    age: int = 0  #: since it was sent
    awaited: bool = True  #: its sender waits for the answer; else it has given up


class Host(NamedTuple):
    """A worker and the thread that renews it."""

    left: int = LEASE  #: of the lease in its worker's row
    due: int = BEAT  #: until its next renewal is sent
    held: Renewal | tuple[()] = ()
    gone: bool = False


class Asking(StrEnum):
    NOT = "not"
    TIME = "time"  #: the store is asked for its time
    TOLD = "told"  #: it has answered, and the answer is on its way
    SENT = "sent"  #: a declaration is on its way


class World(NamedTuple):
    net: Net = Net.UP
    late: int = 0
    mishaps: int = 0
    other: Host = Host()
    mine: Host = Host()  #: the host that scans
    renewed: int = 0  #: since the last renewal of mine that landed was sent, as my supervisor knows it
    quiet: int = 0  #: for how long it declares no worker dead
    asking: Asking = Asking.NOT
    until: int = OVER  #: when the declaration is void
    judged: bool = False  #: I was not away when I asked
    dead: bool = False  #: the other host's worker is declared dead


Next = Step[World]


class Declarations:
    name = "declarations"
    start = World()

    def __init__(self, guards: Guards, mishaps: int) -> None:
        self.guards = guards
        self.mishaps = mishaps
        self._away_after = LEASE // 2 if guards.away_after_half_a_lease else LEASE * 2 // 3

    def normal(self, world: World) -> World:
        """When the other host's renewal was sent makes no difference."""
        held = world.other.held
        if held and held.age:
            return world._replace(other=world.other._replace(held=held._replace(age=0)))
        return world

    def at_rest(self, world: World) -> bool:
        return world.dead == world.other.gone

    def lost(self, world: World) -> str:
        return "the other host is lost, and is never declared dead"

    def broken(self, world: World) -> str:
        return ""

    def sight(self, world: World) -> Net:
        return world.net

    # ── what happens by itself ──

    def engine(self, world: World) -> Iterator[Next]:
        if world.dead:
            return
        yield from self._renew(world)
        yield from self._scan(world)
        yield from self._time(world)

    def chances(self, world: World) -> Iterator[Next]:
        if world.dead:
            return
        if world.net is not Net.UP:
            yield from self._given_up(world)
        if world.net is Net.AWAY:
            story = "the network is back"
            yield Step(story, world._replace(net=Net.BACK, late=LATE))
        if world.mishaps == self.mishaps:
            return
        mishap = world._replace(mishaps=world.mishaps + 1)
        if world.net is Net.UP:
            yield Step("nobody can reach the store", mishap._replace(net=Net.AWAY))
        if not world.other.gone:
            lost = world.other._replace(gone=True, held=(), due=0)
            yield Step("the other host is lost", mishap._replace(other=lost))

    def _time(self, world: World) -> Iterator[Next]:
        """Time passes only when nothing is due, except what an outage holds up."""
        flowing, hosts = world.net is Net.UP, (world.other, world.mine)
        if any(host.due == 0 and not host.held and not host.gone for host in hosts):
            return
        if (flowing or world.late == 1) and (world.asking is not Asking.NOT or any(host.held for host in hosts)):
            return
        late = max(world.late - 1, 0)
        later = world._replace(
            net=Net.UP if world.net is Net.BACK and not late else world.net,
            late=late,
            other=_older(world.other),
            mine=_older(world.mine),
            renewed=min(world.renewed + 1, LEASE + 1),
            quiet=max(world.quiet - 1, 0),
            until=max(world.until - 1, OVER),
        )
        yield Step("time passes", later)

    # ── renewals ──

    def _renew(self, world: World) -> Iterator[Next]:
        for host in (world.other, world.mine):
            whose = "the other worker" if host is world.other else "my worker"
            mine = host is world.mine
            if host.held and world.net is not Net.AWAY:
                yield Step(f"late, {whose}'s renewal is carried out", self._landed(world, mine, host.held))
            awaited = bool(host.held and host.held.awaited)
            if host.due > 0 or host.gone or awaited:
                continue
            if world.net is not Net.AWAY:
                yield Step(f"{whose} is renewed", self._landed(world, mine, Renewal()))
                continue
            refused = _put(world, mine, host._replace(due=RETRY))
            yield Step(f"{whose}'s renewal is refused", refused)
            if not host.held:
                yield Step(f"{whose}'s renewal is held up on its way", _put(world, mine, host._replace(held=Renewal())))

    def _landed(self, world: World, mine: bool, renewal: Renewal) -> World:
        host = world.mine if mine else world.other
        stray = not renewal.awaited
        host = host._replace(
            left=LEASE, due=host.due if stray else BEAT, held=() if renewal == host.held else host.held
        )
        world = _put(world, mine, host)
        if not mine or stray:
            return world
        answered = 0 if self.guards.gap_lasts_until_the_answer else renewal.age
        gap = world.renewed - answered > self._away_after
        return world._replace(
            renewed=renewal.age, quiet=LEASE if gap and self.guards.quiet_after_a_gap else world.quiet
        )

    def _given_up(self, world: World) -> Iterator[Next]:
        for host in (world.other, world.mine):
            if host.held and host.held.awaited:
                whose = "the other host" if host is world.other else "my supervisor"
                stray = host._replace(held=host.held._replace(age=0, awaited=False), due=0)
                yield Step(f"{whose} gives its renewal up, and asks again", _put(world, host is world.mine, stray))

    # ── the scan ──

    def _scan(self, world: World) -> Iterator[Next]:
        guards, reachable = self.guards, world.net is not Net.AWAY
        match world.asking:
            case Asking.NOT:
                judged = self._well(world)
                if judged or guards.judges_itself_after_the_answer:
                    asks = world._replace(asking=Asking.TIME, judged=judged)
                    yield Step("my supervisor scans, and asks the store for its time", asks)
            case Asking.TIME if reachable:
                yield Step("the store tells its time", world._replace(asking=Asking.TOLD, until=BEAT))
            case Asking.TOLD if reachable:
                may = self._well(world) if guards.judges_itself_after_the_answer else world.judged
                story = "my supervisor hears the time"
                if may:
                    yield Step(f"{story}, and sends a declaration", world._replace(asking=Asking.SENT, judged=False))
                else:
                    yield Step(f"{story}, and was away itself", _not_asking(world))
            case Asking.SENT if reachable:
                yield self._declared(world)
            case _:
                return

    def _well(self, world: World) -> bool:
        return world.quiet == 0 and (world.renewed <= self._away_after or not self.guards.judges_its_last_renewal)

    def _declared(self, world: World) -> Next:
        in_time = world.until > OVER or not self.guards.declaration_void_after_a_while
        after = _not_asking(world)
        if not (in_time and world.other.left == OVER):
            return Step("the declaration is carried out: nobody is declared dead", after)
        why = "the other worker is declared dead, though only an outage kept it from renewing"
        broken = "" if world.other.gone else why
        return Step("the declaration is carried out: the other worker is dead", after._replace(dead=True), broken)


def _put(world: World, mine: bool, host: Host) -> World:
    return world._replace(mine=host) if mine else world._replace(other=host)


def _older(host: Host) -> Host:
    held = host.held._replace(age=min(host.held.age + 1, LEASE)) if host.held and host.held.awaited else host.held
    return host._replace(left=max(host.left - 1, OVER), due=max(host.due - 1, 0), held=held)


def _not_asking(world: World) -> World:
    return world._replace(asking=Asking.NOT, until=OVER, judged=False)
