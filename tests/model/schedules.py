"""Schedules, searched: two supervisors fire the ticks of one schedule, and workers of two releases declare it.

What becomes of a tick is decided by the code itself (`Plan` of `schedules/plan.py`); here is what reads and writes, in
which order, and what may happen in between: a supervisor that crashes between its reading and its write, a write that
is carried out late, a job that waits for its retry or outlasts the next tick, hours in which none fires, a deploy
that changes the rule, and an older release that starts again. The promises: each tick ends in one row, a job or a
reason; it is decided once; its job is there when its row is; runs do not overlap where they may not; and the schedule
is as the newest release declares it.

How the world is made small: the clock moves by hours, and so do the ticks. A reply that is lost after the commit is one
more reading, as every process reads before each write. All that counts of a job is whether it is over: its owner until
then is left to `protocol.py`, how its worker learns of it to `messages.py`. Daylight saving, jitter and expiry are
arithmetic, tested in `tests/unit`; pauses and what operators do are written by the same guarded step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from tenure.core.lifecycle import LIVE, State
from tenure.ports import Draft, JobView
from tenure.ports.schedules import CatchUp, Change, Overlap, Run, Schedule, Standing, Tick
from tenure.schedules.plan import Plan

from .search import Step

MISHAPS = 2
LAST = 3  #: the hour of the last tick
RULES = {"old": 1, "new": 2}  #: hours between two ticks, by release
POLICIES: tuple[tuple[Overlap, CatchUp], ...] = (
    ("skip", "latest"),
    ("queue", "all"),
    ("replace", "latest"),
    ("skip", "skip"),
)

_MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Guards:
    change_compares_rev: bool = True  #: a write lands only if no other has landed since its read
    job_and_cursor_in_one_step: bool = True  #: a tick's job, its row, and the move to the next tick: all or nothing
    overlap_sees_every_unfinished_run: bool = True  #: also one that waits for its retry
    due_tells_of_ended_runs: bool = True  #: a run that has ended is seen also when no tick is due
    declaration_fires_what_is_due: bool = True  #: what was due by the old rule is decided by the old rule
    declaration_compares_releases: bool = True  #: an older release that was held up changes nothing


# ── The world ───────────────────────────────────────────────────────────────────────────────────────────────────


class Row(NamedTuple):
    """What may differ in the stored schedule; the rest is its declaration."""

    release: str = "old"
    next_tick: int | None = 1
    due: int | None = 1
    pending: int | None = None
    catching_up_to: int | None = None


class Entry(NamedTuple):
    """What became of a tick, or of all from the first to the last."""

    first: int
    last: int
    status: str


class Write(NamedTuple):
    """A change that was read, planned, and not yet written. `jobs`: the ticks that become jobs."""

    row: Row
    entries: tuple[Entry, ...]
    jobs: tuple[int, ...]
    cancels: tuple[int, ...]
    fresh: bool = True  #: no write has landed since it was read
    declares_at: int | None = None  #: by the store's clock, when it was read


REFUSED = Write(Row(), (), (), (), fresh=False)


class Hand(NamedTuple):
    """A supervisor."""

    write: Write | tuple[()] = ()
    late_jobs: tuple[int, ...] = ()  #: without one of the rules: the jobs of ticks that it has written down
    declares: str = ""  #: the release that its workers bring, if it was the newest when they came


class World(NamedTuple):
    clock: int = 0
    row: Row = Row()
    entries: tuple[Entry, ...] = ()
    jobs: tuple[tuple[int, State], ...] = ()
    hands: tuple[Hand, Hand] = (Hand(), Hand())
    stray: Write | tuple[()] = ()  #: its sender is gone
    newest: str = "old"  #: the release seen last
    moved: int | None = None  #: since when the new rule holds
    mishaps: int = 0


Next = Step[World]


class Schedules:
    start = World()

    def __init__(self, guards: Guards, mishaps: int, overlap: Overlap, catch_up: CatchUp) -> None:
        self.guards, self.mishaps = guards, mishaps
        self.overlap: Overlap = overlap
        self.catch_up: CatchUp = catch_up
        self.name = f"schedules, overlap={overlap}, catch_up={catch_up}"

    def normal(self, world: World) -> World:
        """What does not matter: which supervisor is which, how a tick was closed, what a doomed write says."""
        a, b = map(self._refused, world.hands)
        opened = tuple(entry for entry in world.entries if entry.status == "open")
        closed = tuple(entry for entry in world.entries if entry.status != "open")
        unfinished = {entry.first for entry in opened}
        return world._replace(
            entries=opened + _merged(closed),
            jobs=tuple(job for job in world.jobs if job[1] in LIVE or job[0] in unfinished),
            hands=(b, a) if _order(b) < _order(a) else (a, b),
            stray=world.stray if self._may_land(world.stray) else (),
        )

    def _may_land(self, write: Write | tuple[()]) -> bool:
        return isinstance(write, Write) and (write.fresh or not self.guards.change_compares_rev)

    def _refused(self, hand: Hand) -> Hand:
        if not hand.write or self._may_land(hand.write):
            return hand
        return hand._replace(write=REFUSED)

    def at_rest(self, world: World) -> bool:
        return (
            world.clock > LAST
            and world.row.next_tick is None
            and world.row.pending is None
            and world.row.release == world.newest
            and all(entry.status != "open" for entry in world.entries)
            and all(state not in LIVE for _, state in world.jobs)
        )

    def lost(self, world: World) -> str:
        row = world.row
        if row.release != world.newest:
            return f"the schedule stands as the {row.release} release declares it, and the {world.newest} one is newer"
        return f"Tenure alone can never again decide all ticks and close all runs: {row}, {world.entries}"

    def sight(self, world: World) -> str:
        if world.row.pending is not None:
            return "waits"
        return "catches up" if world.row.catching_up_to is not None else world.row.release

    def broken(self, world: World) -> str:
        known = {tick for entry in world.entries for tick in range(entry.first, entry.last + 1)}
        for tick in range(1, LAST + 1):
            new = world.moved is not None and tick > world.moved
            due = tick % RULES["new" if new else "old"] == 0
            passed = world.row.next_tick is None or tick < world.row.next_tick
            if due and passed and tick not in known and tick != world.row.pending:
                return f"the tick of {tick}:00 is lost: it became no job, and no reason says why"
        there = {tick for tick, _ in world.jobs}
        coming = {tick for hand in world.hands for tick in hand.late_jobs}
        for entry in world.entries:
            if entry.status == "open" and entry.first not in there | coming:
                return f"the tick of {entry.first}:00 is lost: its row names a job that nobody has made"
        if sum(state in LIVE for _, state in world.jobs) > 1:
            return "two runs of the schedule are unfinished at once"
        return ""

    # ── what Tenure does by itself ──

    def engine(self, world: World) -> Iterator[Next]:
        if world.clock <= LAST:
            yield Step(f"it is {world.clock + 1}:00", world._replace(clock=world.clock + 1))
        for number, hand in enumerate(world.hands):
            name = f"supervisor {'AB'[number]}"
            if hand.late_jobs:
                made = _enqueued(world, hand.late_jobs)
                yield Step(f"{name} makes the job", _put(made, number, hand._replace(late_jobs=())))
            elif hand.write:
                waiting = hand._replace(write=())
                yield self._write(_put(world, number, waiting), number, hand.write, f"{name} writes")
            else:
                yield from self._read(world, number, hand, name)
        if world.stray:
            yield self._write(
                world._replace(stray=()), None, world.stray, "late, the write of a supervisor that is gone"
            )
        for number, (tick, state) in enumerate(world.jobs):
            if state in LIVE:
                jobs = (*world.jobs[:number], (tick, State.COMPLETED), *world.jobs[number + 1 :])
                yield Step(f"the job of {tick}:00 has ended", world._replace(jobs=jobs))

    def chances(self, world: World) -> Iterator[Next]:
        if world.mishaps == self.mishaps:
            return
        mishap = world._replace(mishaps=world.mishaps + 1)
        for number, hand in enumerate(world.hands):
            name = f"supervisor {'AB'[number]}"
            if hand.write or hand.late_jobs:
                gone = _put(mishap, number, Hand(declares=hand.declares))  # its workers die with it, and declare again
                yield Step(f"{name} crashes, and starts anew", gone)
                if hand.write and not world.stray:
                    stray = gone._replace(stray=hand.write)
                    yield Step(f"{name} crashes, its write still under way, and starts anew", stray)
            if not hand.write and not hand.late_jobs and not hand.declares:
                yield Step(f"{name} brings workers of the new release", self._brought(mishap, number, "new"))
                if world.newest == "old":  # otherwise it hears that a newer one is in force
                    yield Step(f"{name} starts workers of the old release again", self._brought(mishap, number, "old"))
        for number, (tick, state) in enumerate(world.jobs):
            if state is State.QUEUED:
                jobs = (*world.jobs[:number], (tick, State.SCHEDULED), *world.jobs[number + 1 :])
                yield Step(f"the job of {tick}:00 raises, and waits for its retry", mishap._replace(jobs=jobs))

    def _brought(self, world: World, number: int, release: str) -> World:
        world = world._replace(newest="new" if release == "new" else world.newest)
        return _put(world, number, Hand(declares=release))

    # ── read, plan, compare and write ──

    def _read(self, world: World, number: int, hand: Hand, name: str) -> Iterator[Next]:
        ended = any(entry.status == "open" and _state(world, entry.first) not in LIVE for entry in world.entries)
        row = world.row
        is_due = row.due is not None and row.due <= world.clock
        if hand.declares:
            write = self._plan(world, hand.declares)
            if write is None:
                yield Step(f"{name} finds nothing to declare", _put(world, number, Hand()))
            else:
                story = f"{name} reads the schedule, to declare it as of the {hand.declares} release"
                yield Step(story, _put(world, number, hand._replace(write=write)))
        elif is_due or (ended and self.guards.due_tells_of_ended_runs):
            write = self._plan(world)
            if write is not None:
                yield Step(f"{name} reads what is due", _put(world, number, hand._replace(write=write)))

    def _plan(self, world: World, declares: str = "") -> Write | None:
        runs = tuple((entry.first, _state(world, entry.first)) for entry in world.entries if entry.status == "open")
        return _planned(self.guards, self.overlap, self.catch_up, world.row, runs, world.clock, declares)

    def _write(self, world: World, number: int | None, write: Write, story: str) -> Next:
        if not write.fresh and self.guards.change_compares_rev:
            return Step(f"{story}, and hears that somebody else was first", world)
        broken, entries = "", {entry.first: entry for entry in world.entries}
        for entry in write.entries:
            old = next((e for e in entries.values() if e.first <= entry.last and entry.first <= e.last), None)
            closes = old is not None and old.status == "open" and entry.status in ("success", "cancelled")
            if old is not None and not closes:
                broken = f"the tick of {entry.first}:00 is decided twice: {old.status}, and now {entry.status}"
            entries[entry.first] = entry
        a, b = map(_stale, world.hands)
        declares = write.declares_at is not None
        moves = declares and write.row.release == "new" and world.moved is None
        after = world._replace(
            row=write.row,
            entries=tuple(entries.values()),
            hands=(a, b),
            stray=world.stray._replace(fresh=False) if world.stray else world.stray,
            moved=write.declares_at if moves else world.moved,
            jobs=tuple((tick, State.CANCELLED if tick in write.cancels else state) for tick, state in world.jobs),
        )
        if number is None or self.guards.job_and_cursor_in_one_step:
            after = _enqueued(after, write.jobs)
        if number is not None:
            late = () if self.guards.job_and_cursor_in_one_step else write.jobs
            hand = after.hands[number]
            after = _put(after, number, hand._replace(late_jobs=late, declares="" if declares else hand.declares))
        return Step(f"{story}: {_told(write)}", after, broken)


def _merged(closed: tuple[Entry, ...]) -> tuple[Entry, ...]:
    ticks = sorted(tick for entry in closed for tick in range(entry.first, entry.last + 1))
    return tuple(Entry(tick, tick, "closed") for tick in ticks)


@lru_cache(100_000)
def _order(hand: Hand) -> str:
    return repr(hand)


def _put(world: World, number: int, hand: Hand) -> World:
    a, b = world.hands
    return world._replace(hands=(hand, b) if number == 0 else (a, hand))


def _stale(hand: Hand) -> Hand:
    return hand._replace(write=hand.write._replace(fresh=False)) if hand.write else hand


def _enqueued(world: World, ticks: tuple[int, ...]) -> World:
    """A job of the same id is there already, or is made."""
    there = {tick for tick, _ in world.jobs}
    new = [(tick, State.QUEUED) for tick in ticks if tick not in there]
    return world._replace(jobs=tuple(sorted((*world.jobs, *new)))) if new else world


def _state(world: World, tick: int) -> State:
    return dict(world.jobs).get(tick, State.QUEUED)


def _told(write: Write) -> str:
    told = [f"{entry.first}:00 is {entry.status}" for entry in write.entries]
    if write.row.pending is not None:
        told.append(f"{write.row.pending}:00 waits")
    told.append("no tick is next" if write.row.next_tick is None else f"{write.row.next_tick}:00 is next")
    return ", ".join(told)


# ── What the code decides ───────────────────────────────────────────────────────────────────────────────────────


class _Hasty(Plan):
    """Declares without a look at what is due."""

    def _decide_by_old_rule(self, moved: bool, *, spread: bool) -> None:
        return


@lru_cache(100_000)
def _planned(
    guards: Guards,
    overlap: Overlap,
    catch_up: CatchUp,
    row: Row,
    runs: tuple[tuple[int, State], ...],
    clock: int,
    declares: str,
) -> Write | None:
    stored = _schedule(overlap, catch_up, row)
    seen = [
        (tick, state)
        for tick, state in runs
        if state is not State.SCHEDULED or guards.overlap_sees_every_unfinished_run
    ]
    standing = Standing(stored, tuple(_run(tick, state) for tick, state in seen))
    plan = (Plan if guards.declaration_fires_what_is_due else _Hasty)(standing, _at(clock)).close(lambda _: ())
    if declares:
        new = _schedule(overlap, catch_up, Row(release=declares))
        older = row.release == "new" and declares == "old"
        if not (older and guards.declaration_compares_releases):
            plan = plan.declare(new)
    else:
        plan = plan.fire()
    change = plan.change()
    return None if change is None else _read_off(change, clock if declares else None)


def _read_off(change: Change, declares_at: int | None) -> Write:
    s = change.schedule
    row = Row(s.release, _hour(s.next_tick), _hour(s.due_at), _hour(s.pending_tick), _hour(s.catching_up_to))
    entries = (Entry(tick.tick.hour, (tick.until or tick.tick).hour, tick.status) for tick in change.ticks)
    made = tuple(tick.tick.hour for tick in change.ticks if tick.status == "open")
    return Write(row, tuple(entries), made, tuple(int(job_id) for job_id in change.cancel), declares_at=declares_at)


def _at(hour: int) -> datetime:
    return _MIDNIGHT + timedelta(hours=hour)


def _hour(instant: datetime | None) -> int | None:
    """Rounded up: a check within the hour happens at its end."""
    return None if instant is None else -((_MIDNIGHT - instant) // timedelta(hours=1))


def _instant(hour: int | None) -> datetime | None:
    return None if hour is None else _at(hour)


def _schedule(overlap: Overlap, catch_up: CatchUp, row: Row) -> Schedule:
    return Schedule(
        name="hourly",
        rule=f"every {RULES[row.release]}h",
        source="app",
        release=row.release,
        job=Draft(id="", task="work", payload="{}"),
        overlap=overlap,
        catch_up=catch_up,
        end=_at(LAST),
        rev=1,
        since=_MIDNIGHT,
        next_tick=_instant(row.next_tick),
        due_at=_instant(row.due),
        pending_tick=_instant(row.pending),
        catching_up_to=_instant(row.catching_up_to),
    )


def _run(tick: int, state: State) -> Run:
    job = replace(_JOB, id=str(tick), state=state, meta={"schedule": "hourly"})
    return Run(Tick(schedule="hourly", tick=_at(tick), job_id=str(tick), decided_at=_at(tick)), job, None)


_JOB = JobView(
    id="",
    task="work",
    queue="default",
    state=State.QUEUED,
    priority=0,
    payload="{}",
    result=None,
    error=None,
    attempt=0,
    failures=0,
    max_failures=1,
    crashes=0,
    crashes_total=0,
    max_crashes=1,
    solo=False,
    isolated=False,
    unique=None,
    worker_id=None,
    completed_by=None,
    stage=None,
    progress=None,
    message=None,
    checkpoint=None,
    meta={},
    timeout=None,
    stale_after=None,
    enqueued_at=_MIDNIGHT,
    run_at=_MIDNIGHT,
    expires_at=None,
    started_at=None,
    last_activity_at=None,
    ended_at=None,
    cancel_reason=None,
)
