"""Roll-ups: how many jobs of each task ended in five minutes, or in an hour, and how long they waited and ran.

A duty writes them: it reads which jobs ended, up to a few hundred in each half minute, and keeps the figures as notes
that expire. So claims and outcomes pay nothing for them, and a store keeps at most 84 + 192 notes of a few KiB. Each
supervisor looks once in five minutes; the first one to see that a roll-up is missing writes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from tenure.core import spread
from tenure.core.lifecycle import State
from tenure.core.spread import Spread
from tenure.maintenance.roster import Turn
from tenure.ports import Ended, Store

SLOT, HOUR = 300, 3600  #: seconds
OTHERS = "(others)"  #: the tasks beyond the first fifty
_NOTES: Mapping[int, str] = {SLOT: "rollup:5m:", HOUR: "rollup:1h:"}
_KEPT: Mapping[int, float] = {SLOT: 7 * HOUR, HOUR: 192 * HOUR}
_BACK = 6 * HOUR  #: how far back a missing roll-up is still made
_SETTLED = 5.0  #: seconds after which the outcomes of a slot are stored
_PARTS = 10  #: a slot in which many jobs ended is read in this many parts
_SAMPLE = 300  #: jobs read of each part and state: if more ended, each of them counts for several
_MOST = 1_000_000
_TASKS = 50


class Figures(msgspec.Struct, omit_defaults=True):
    """How many jobs of a task ended. `stumbled`: how many of them after a failure or a crash."""

    completed: float = 0.0
    dead: float = 0.0
    cancelled: float = 0.0
    stumbled: float = 0.0
    waits: Spread = msgspec.field(default_factory=dict)  #: of the completed ones: seconds from due to started
    runs: Spread = msgspec.field(default_factory=dict)  #: and from started to ended

    @property
    def ended(self) -> float:
        return self.completed + self.dead + self.cancelled

    def add(self, other: Figures) -> None:
        for name in ("completed", "dead", "cancelled", "stumbled"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        spread.merge(self.waits, other.waits)
        spread.merge(self.runs, other.runs)


class RollUp(msgspec.Struct):
    """What ended from `at`, in Unix seconds, for `seconds`; by task, the first fifty. None: it was not recorded."""

    at: int
    seconds: int
    tasks: dict[str, Figures] | None = None

    @property
    def known(self) -> bool:
        return self.tasks is not None

    @property
    def total(self) -> Figures:
        return total((self.tasks or {}).values())


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RollUp).decode


def total(figures: Iterable[Figures]) -> Figures:
    found = Figures()
    for each in figures:
        found.add(each)
    return found


def joined(rollups: Iterable[RollUp], at: int, seconds: int) -> RollUp:
    """Several roll-ups as one."""
    tasks: dict[str, Figures] = {}
    for each in rollups:
        for task, figures in (each.tasks or {}).items():
            tasks.setdefault(task, Figures()).add(figures)
    if len(tasks) > _TASKS:
        order = sorted(tasks, key=lambda task: (task == OTHERS, -tasks[task].ended, task))
        tasks = {
            **{task: tasks[task] for task in order[: _TASKS - 1]},
            OTHERS: total(tasks[task] for task in order[_TASKS - 1 :]),
        }
    return RollUp(at, seconds, tasks)


def collect(store: Store, at: int, seconds: int) -> RollUp:
    """What ended in this time. Exact up to 300 jobs of each state; beyond that, the last 300 of each tenth are read."""
    whole = _read(store, at, at + seconds)
    if whole is not None:
        return RollUp(at, seconds, whole)
    step = seconds / _PARTS
    parts = (_read(store, at + n * step, at + (n + 1) * step, scaled=True) for n in range(_PARTS))
    return joined((RollUp(at, seconds, each) for each in parts), at, seconds)


def _read(store: Store, since: float, until: float, *, scaled: bool = False) -> dict[str, Figures] | None:
    """None: so many ended that they must be read in parts."""
    found = store.ended(_instant(since), _instant(until), most=_MOST, sample=_SAMPLE)
    return None if not scaled and max(found.counts.values()) > _SAMPLE else by_task(found)


def by_task(found: Ended) -> dict[str, Figures]:
    """If more jobs ended than were read, each one read counts for several."""
    read = Counter(job.state for job in found.last)
    tasks: dict[str, Figures] = {}
    for job in found.last:
        weight = max(round(found.counts[job.state] / read[job.state], 2), 1.0)
        figures = tasks.setdefault(job.task, Figures())
        setattr(figures, job.state, getattr(figures, job.state) + weight)
        figures.stumbled += weight if job.stumbled else 0.0
        if job.state is State.COMPLETED:
            spread.add(figures.waits, job.wait or 0.0, weight)
            spread.add(figures.runs, job.run or 0.0, weight)
    return tasks


class RollUps:
    """The duty: one roll-up a turn, the newest first. Example: `Row("roll up", RollUps(store).turn, 300.0)`"""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: set[str] = set()

    def turn(self, _: int = 1) -> Turn:
        now = self._store.now().timestamp()
        if not self._known:
            self._known = {key for prefix in _NOTES.values() for key in self._store.notes(prefix)}
        recent = {_key(*each): each for each in _recent(now)}
        self._known &= recent.keys()
        missing = [key for key in recent if key not in self._known]
        if missing:
            self._write(missing[0], *recent[missing[0]], newest=missing[0] == next(iter(recent)))
            self._known.add(missing[0])
        return Turn(len(missing) > 1, SLOT - (now - _SETTLED) % SLOT)

    def _write(self, key: str, at: int, seconds: int, *, newest: bool) -> None:
        if self._store.notes(key):
            return
        if seconds == SLOT:
            found, known = collect(self._store, at, seconds), newest
        else:
            slots = _slots(self._store, at)
            found, known = joined(slots, at, HOUR), len(slots) == HOUR // SLOT
        if found.tasks or known:  # an older roll-up without jobs says no more than a missing one
            self._store.swap(key, None, _encode(found).decode(), ttl=_KEPT[seconds])


def _slots(store: Store, hour: int) -> Collection[RollUp]:
    """The recorded slots of this hour."""
    return _stored(store, f"{_NOTES[SLOT]}{hour // HOUR}:").values()


def _recent(now: float) -> list[tuple[int, int]]:
    """The slots and hours that have passed, newest first, each as its time and its seconds."""
    spans: list[tuple[int, int]] = []
    for seconds, length in ((SLOT, _BACK), (HOUR, _BACK - HOUR)):  # of an hour before, some slots are too old
        last = int(now - _SETTLED) // seconds * seconds - seconds
        spans += [(last - back, seconds) for back in range(0, length, seconds)]
    return spans


def _key(at: int, seconds: int) -> str:
    """The hour is in each key, so that the slots of an hour are read at once."""
    hour = f"{_NOTES[seconds]}{at // HOUR}"
    return f"{hour}:{at % HOUR // SLOT:02}" if seconds == SLOT else hour


def _stored(store: Store, prefix: str) -> dict[int, RollUp]:
    return {each.at: each for each in map(_decode, store.notes(prefix).values())}


def read(store: Store, now: datetime, *, hours: int) -> list[RollUp]:
    """The last hours, oldest first: 6 in slots of five minutes, up to 168 by the hour. The last one is in progress."""
    seconds = SLOT if hours <= _BACK // HOUR else HOUR
    current = int(now.timestamp()) // seconds * seconds
    found = _stored(store, _NOTES[seconds])
    if seconds == HOUR:
        found[current] = joined(_slots(store, current), current, HOUR)
    else:
        found[current] = collect(store, current, SLOT)
    first = current - hours * HOUR + seconds
    return [found.get(at) or RollUp(at, seconds) for at in range(first, current + 1, seconds)]


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
