"""The loads that a run can have beside its faults, as data: what each is, and the stage that it needs.

What a load does is in load.py, a process of its own; how late it made others is judged by bounds.py. `scale` makes any
of them smaller or larger: 1 is what is promised to be survived, a few hundredths make a run of seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

MEGABIT = 125_000  # bytes
LANE = "lane"  #: the queue whose worker always has a free slot
LOAD = "load"


def _two(_: float) -> tuple[str, ...]:
    return ("default", LOAD)


def _thousand(scale: float) -> tuple[str, ...]:
    return ("default", *(f"{LOAD}-{number:04}" for number in range(max(2, round(1000 * scale)))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One load. `any_of`: a stage must have one of these (`Stage.has`); nothing: any stage will do."""

    name: str
    about: str
    any_of: frozenset[str] = frozenset()
    only: tuple[str, ...] = ()  #: the faults of its runs; nothing: all
    queues: Callable[[float], tuple[str, ...]] = _two  #: of the two hosts
    slots: int = 5  #: of each of their workers
    latency: float = 0.0  #: in seconds, one way, of every line
    rate: float = 0.0  #: in bytes a second, of each host's line
    disk_mib: int = 512
    delayed: bool = True  #: does a job that is due later start as soon as any other? (`Bounds.delayed`)


PROFILES: tuple[Profile, ...] = (
    Profile(name="light", about="nothing but the jobs whose lateness is measured: what the bounds are like in peace"),
    Profile(
        name="trickle",
        about="delayed jobs that come due without a pause: 150 a second over lines of 3 ms, 1,000 where the store is a "
        "file",
        latency=0.0015,
        disk_mib=1536,
    ),
    Profile(
        name="avalanche",
        about="300,000 jobs that are due at one instant",
        disk_mib=1536,
        delayed=False,
    ),
    Profile(
        name="heavy",
        about="160 results of 240 KB at once, every 20 s, over a line of 12 Mbit/s for each host",
        slots=50,
        rate=12 * MEGABIT,
        disk_mib=3072,
    ),
    Profile(
        name="hot key",
        about="40 callers of one process want one unique key, which an open transaction holds for 4 s, again and again "
        "(where there are none, or the file would be locked, a delayed job holds it); the same process enqueues others",
    ),
    Profile(
        name="full memory",
        about="50 jobs a second, and every few seconds no memory, or no disk, is left",
        any_of=frozenset({"memory", "small-disk"}),
        only=("full memory server", "full disk", "kill worker", "ghost writes"),
    ),
    Profile(
        name="1,000 queues",
        about="every worker serves a thousand queues, and 200 jobs a second come to any of them",
        queues=_thousand,
    ),
    Profile(
        name="800 waiters",
        about="one process waits for 800 results, of jobs that are due 2 to 12 s later",
    ),
    Profile(
        name="flows",
        about="two flows a second: fan-ins of 2 to 200, chains, gatherers, jobs that wait for a signal, sent before "
        "or after they do",
        slots=20,
    ),
    Profile(
        name="limits",
        about="40 jobs a second with limits: one of a shop, three of a shop, ten in all, and a few at a pace",
        slots=20,
    ),
    Profile(
        name="bulk cancel",
        about="500 delayed jobs are cancelled every second, beside 100 running jobs of 200 KB",
        slots=50,
        disk_mib=1536,
    ),
)


def named(name: str) -> Profile:
    found = next((each for each in PROFILES if each.name == name), None)
    if found is None:
        raise SystemExit(f"no load is called {name!r}; there are: {', '.join(each.name for each in PROFILES)}")
    return found


class Unfit(SystemExit):
    """A load that this stage can't have."""


def refuse_unfit(profile: Profile, has: Collection[str]) -> None:
    if profile.any_of and not profile.any_of & set(has):
        needed = " or ".join(sorted(profile.any_of))
        raise Unfit(f"the load {profile.name!r} needs {needed}, which this store does not have here")
