"""Judges a run by what everybody saw (history.py): twenty-five invariants, and figures that show what was tried.

The engine is never asked. The dump only says what is there at the end; clients and handlers say what should be there.
A call without a known answer is not judged: where an `info`, or a call without an end, could explain what is there, it
does. All events share one clock, so what ended before something else began did happen before it.

    I1   what was acknowledged is there            I8   a schedule's tick is one job
    I2   an attempt is begun once                  I9   a job ends as its script says, dead letters stay
    I3   one owner at a time                       I10  only failures and crashes are charged, each once
    I4   only the present owner writes, and what   I11  a unique key has one live job
         it wrote is what others are given         I12  a row and its job: both, or neither
    I5   every attempt ends once                   I13  what is done again is bounded by what was lost
    I6   what has ended stays so                   I14  nothing runs that nobody asked for
    I7   when faults are over, all jobs end

I15 to I18 are bounds in time (bounds.py), judged only in runs with load. I19 to I21 and I25 are about jobs that wait
(waits.py), I22 to I24 about limits (places.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, pairwise
from math import ceil, floor, inf
from typing import Any, NamedTuple

from . import bounds, places, waits
from .bounds import Lags, Machine
from .history import Dump, Event, Kept
from .seen import CHARGED, ENDED, FINAL, ORDERLY, Allowed, Call, Claim, Seen, Span, Story, Timetable, by_time, higher


class Violation(NamedTuple):
    invariant: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is wrong, and what was tried."""

    violations: tuple[Violation, ...]
    jobs: int
    attempts: int  #: those that handlers have begun
    kills: int
    faults: Mapping[str, int]  #: by name, "kill worker"
    refusals: int  #: former owners' writes, as far as their handlers, or the rows of their attempts, record them
    rescues: int
    redeliveries: int  #: attempts begun after an earlier one of the same job that had not ended in order
    effects: Mapping[int, int]  #: how many jobs made how many effects
    recoveries: Mapping[
        str, tuple[float, ...]
    ]  #: by name of a fault: seconds from it until a job whose attempt it ended began again
    lags: Mapping[str, Lags]  #: by duty, in a run with load
    machine: Machine | None  #: what it was like, in a run with load


def bites(verdict: Verdict) -> list[str]:
    """What never happened. Unless this is empty, the run proves nothing."""
    counted = {
        "nothing was killed": verdict.kills,
        "no write of a former owner was refused": verdict.refusals,
        "no attempt was rescued": verdict.rescues,
        "no job was delivered again": verdict.redeliveries,
    }
    return [sentence for sentence, times in counted.items() if not times]


def unmeasured(verdict: Verdict) -> list[str]:
    """What was not measured in a run with load. Unless this is empty, the run says nothing about lateness."""
    needed = {"start": "no start", "promote": "no delayed start", "tick": "no tick", "enqueue": "no enqueue"}
    return [
        *(f"{what} was measured" for duty, what in needed.items() if duty not in verdict.lags),
        *([] if verdict.machine else ["the machine was not measured"]),
    ]


# ── The invariants: each takes all that was seen, and tells what is wrong ───────────────────────────────────────

Judged = Iterator[str]


def _i1(seen: Seen) -> Judged:
    """What was acknowledged is there, once, under the id that was told."""
    for story in seen.stories.values():
        if len(story.kept) > 1:
            yield f"{story.name} was enqueued once and is there {len(story.kept)} times"
        call = story.acknowledged
        if call is not None and not seen.forgotten(call.began, call.ended, inf):
            yield from _lost(seen, story, call)
        for refused in story.calls["enqueue"]:
            if refused.ok and not refused.made_a_job:
                yield from _nobody_holds(seen, story, refused)


def _lost(seen: Seen, story: Story, call: Call) -> Judged:
    if story.job is None:
        elsewhere = seen.rows[story.key] or _must_be_dead(story)
        if not story.deletable and not elsewhere:  # else it is I12's or I9's
            yield f"{story.name} was acknowledged at {call.ended:.3f} and is not there"
        return
    if "id" in call.data and story.job.id != call.data["id"]:
        yield f"{story.name} was acknowledged as {call.data['id']} and is there as {story.job.id}"
    for op in ("read", "cancel"):
        for told in story.calls[op]:
            missing = told.ok and "state" in told.data and told.data["state"] is None and told.began > call.ended
            if missing and not any(each.possible and each.began < told.ended for each in story.calls["delete"]):
                yield f"{story.name} was acknowledged at {call.ended:.3f}, a {op} at {told.ended:.3f} knew none such"


def _nobody_holds(seen: Seen, story: Story, call: Call) -> Judged:
    """Its client was told that another job has its unique key: then that job is there."""
    holder = seen.by_id.get(call.data.get("id", ""))
    there = holder is not None and (holder.job or holder.acknowledged or holder.deletable)
    if not there and "id" in call.data and not seen.forgotten(call.began, call.ended, inf):
        yield f"{story.name} was refused in favour of {call.data['id']}, which is not there"


def _i2(seen: Seen) -> Judged:
    """Attempts are begun once each, and only those that the store has counted; it never counts backwards."""
    for story in seen.stories.values():
        begun: dict[int, Event] = {}
        for event in story.begins():
            before = begun.get(event.attempt)
            if before is not None and not seen.forgotten(before.at, before.at, event.at):
                yield f"{story.name}, attempt {event.attempt}: begun at {before.at:.3f} and again at {event.at:.3f}"
            begun[event.attempt] = event
        yield from _counted(seen, story, begun)


def _counted(seen: Seen, story: Story, begun: Mapping[int, Event]) -> Judged:
    if min(begun, default=1) < 1:
        yield f"{story.name} began as attempt {min(begun)}, and attempts are counted from 1"
    last = story.job.attempt if story.job else inf
    for attempt, event in begun.items():
        if attempt > last and not seen.forgotten(event.at, event.at, inf):
            yield f"{story.name}, attempt {attempt}: begun at {event.at:.3f}, but the store counts only {last}"
    times = sorted(event.at for event in begun.values())
    highest = list(accumulate(sorted(begun.values(), key=by_time), higher))
    for read in story.calls["read"]:
        told = read.attempt
        if not read.ok or read.data.get("state") is None:
            continue
        if told > last and not seen.forgotten(-inf, read.ended, inf):
            yield f"{story.name}: at {read.ended:.3f} a read was told attempt {told}, but the store counts only {last}"
        place = bisect_left(times, read.began)
        before = highest[place - 1] if place else None
        if before is not None and told < before.attempt and not seen.forgotten(before.at, before.at, read.ended):
            yield f"{story.name}: attempt {before.attempt} had begun, and at {read.ended:.3f} a read was told {told}"


def _i3(seen: Seen) -> Judged:
    """When an attempt has begun, the code of all earlier ones has stopped."""
    for story in seen.stories.values():
        latest: Event | None = None
        told: set[int] = set()
        for event in story.events:
            if latest is None or event.attempt > latest.attempt:
                latest = event if event.op in ("begin", "tick") else latest
                continue
            if event.attempt == latest.attempt or event.attempt in told or seen.waking(event):
                continue
            if not seen.forgotten(latest.at, latest.at, event.at):
                told.add(event.attempt)
                yield (
                    f"{story.name}, attempt {event.attempt}: {event.op} at {event.at:.3f} by {event.actor}, and "
                    f"attempt {latest.attempt} had begun at {latest.at:.3f}"
                )


def _i4(seen: Seen) -> Judged:
    """What a former owner writes is refused; what an owner wrote is what its successors and clients are given."""
    for story in seen.stories.values():
        overtaken = story.overtaken()
        for call in story.writes():
            later = overtaken(call.attempt) if call.ok else None
            if later is not None and later.at < call.began and not seen.forgotten(later.at, later.at, call.began):
                yield (
                    f"{story.name}, attempt {call.attempt}: its {call.op} at {call.began:.3f} was accepted, and "
                    f"attempt {later.attempt} had begun at {later.at:.3f}"
                )
        for ghost in story.calls["ghost"]:
            if ghost.ok:
                what = f"a {ghost.data['name']} was sent again under its lost lease at {ghost.began:.3f}, and accepted"
                yield f"{story.name}, attempt {ghost.attempt}: {what}"
        yield from _checkpoints(seen, story, overtaken)
        yield from _result(story)
        yield from _told_once(seen, story)


def _checkpoints(seen: Seen, story: Story, overtaken: Callable[[int], Event | None]) -> Judged:
    calls = sorted(story.calls["checkpoint"], key=lambda call: call.began)
    shown: list[tuple[str, Any, float, float]] = [
        (f"attempt {event.attempt} was given", event.data["checkpoint"], event.attempt, event.at)
        for event in story.events
        if event.op == "begin" and "checkpoint" in event.data
    ]
    if story.job is not None and calls:
        shown.append(("the store keeps", story.job.checkpoint, inf, inf))
    for reader, value, attempt, at in shown:
        acked: Call | None = None
        possible: list[Call] = []
        for call in calls:
            if call.attempt >= attempt or call.began >= at:
                continue
            if call.ok and call.ended < at:
                acked, possible = call, []
            elif call.outcome != "fail" or _may_have_landed(call, overtaken):
                possible.append(call)
        newest = acked.data["value"] if acked else None
        if value == newest or any(value == call.data["value"] for call in possible):
            continue
        if acked is None or not seen.forgotten(acked.began, acked.ended, at):
            yield f"{story.name}: {reader} the checkpoint {value!r}, the newest that was accepted is {newest!r}"


def _may_have_landed(call: Call, overtaken: Callable[[int], Event | None]) -> bool:
    """Only the flush was refused: a beat may have stored the same value before, while the lease was good."""
    later = overtaken(call.attempt)
    return later is None or call.began < later.at


def _result(story: Story) -> Judged:
    job = story.job
    if job is None or job.state != "completed":
        return
    mine = [event for event in story.events if event.attempt == job.attempt]
    began = {event.op for event in mine if event.op in ("begin", "tick")}
    if not began:
        yield f"{story.name} is completed by attempt {job.attempt}, which nobody has run"
    handed = [call for call in story.calls["hand_in"] if call.attempt == job.attempt and call.possible]
    returned = [event.data.get("value") for event in mine if event.op == "end" and event.data.get("how") == "return"]
    possible = [call.data["value"] for call in handed if "value" in call.data]
    if not any(call.ok for call in handed):
        possible += returned
    if "begin" in began and job.result not in possible:
        yield f"{story.name}: its result is {job.result!r}, attempt {job.attempt} gave {_any_of(possible)}"


def _any_of(values: Sequence[object]) -> str:
    return " or ".join(map(repr, values)) or "none"


def _told_once(seen: Seen, story: Story) -> Judged:
    made = defaultdict[str, list[Any]](list)
    for event in story.of("made"):
        made[event.data["name"]].append(event.data["value"])
    first: dict[str, Call] = {}
    for call in sorted(story.calls["once"], key=lambda call: call.ended):
        if not call.ok:
            continue
        name, value = call.data["name"], call.data["value"]
        before = first.setdefault(name, call)
        if value not in made[name]:
            yield f"{story.name}, attempt {call.attempt}: once {name!r} told {value!r}, which nobody had made"
        elif value != before.data["value"] and not seen.forgotten(before.began, before.ended, call.ended):
            yield (
                f"{story.name}: once {name!r} told {before.data['value']!r} to attempt {before.attempt}, and "
                f"{value!r} to attempt {call.attempt}"
            )


def _i5(seen: Seen) -> Judged:
    """An attempt that began ends once: it completed the job, or the store keeps how else it ended."""
    for story in seen.stories.values():
        begun = Counter(event.attempt for event in story.begins())
        for attempt, ends in sorted(Counter(event.attempt for event in story.of("end")).items()):
            if ends > begun[attempt]:
                yield f"{story.name}, attempt {attempt}: its code began {begun[attempt]} times and ended {ends} times"
        if story.job is not None:
            yield from _outcomes(story, story.job)


def _outcomes(story: Story, job: Kept) -> Judged:
    open_ones = {job.attempt} if job.state in ("completed", "processing") else set[int]()
    for attempt in sorted(job.outcomes.keys() - (set(range(1, job.attempt + 1)) - open_ones)):
        state = f"{job.state} with {job.attempt} attempts"
        yield f"{story.name}, attempt {attempt}: ended {job.outcomes[attempt]}, though the job is {state}"
    missing = sorted(set(range(1, job.attempt + 1)) - open_ones - job.outcomes.keys())
    finished = {event.attempt for event in story.of("end") if event.data.get("how") == "return"}
    finished |= {call.attempt for call in story.calls["hand_in"] if call.possible}
    finished |= {event.attempt for event in story.of("tick")}
    unexplained = [attempt for attempt in missing if attempt not in finished]
    completed = [attempt for attempt in missing if attempt in finished]
    for attempt in unexplained + completed[len(story.replays()) :]:  # each replay explains one that completed, at most
        yield f"{story.name}, attempt {attempt}: the store keeps no outcome of it, and it is not what completed the job"


def _i6(seen: Seen) -> Judged:
    """Once a client was told that a job has ended, it neither begins again nor changes state, unless replayed."""
    for story in seen.stories.values():
        claims = story.claims()
        final = [claim for claim in claims if claim.state in FINAL]
        known = [claim.ended for claim in final]
        for began, ended, state, what in _facts(seen, story, claims):
            place = bisect_left(known, began)
            if not place or final[place - 1].state == state:
                continue
            claim = final[place - 1]
            again = claim.state != "gone" and story.replayed(claim.began, ended)
            if not again and not seen.forgotten(claim.began, claim.ended, ended):
                yield f"{story.name}: {claim.told}, and then {what}"


def _facts(seen: Seen, story: Story, claims: Sequence[Claim]) -> Iterator[Claim]:
    """What must agree with what was told before it. (Whatever has ended may be deleted.)"""
    yield from (claim for claim in claims if claim.state != "gone")
    for event in story.begins():
        if not seen.waking(event):
            yield Claim(event.at, event.at, "processing", f"attempt {event.attempt} began at {event.at:.3f}")
    if story.job is not None:
        yield Claim(inf, inf, story.job.state, f"the store keeps it as {story.job.state}")


def _i7(seen: Seen) -> Judged:
    """When all faults are over, every job ends in time."""
    calm = next((event.at for event in seen.events if event.op == "calm"), None)
    drained = next((event.at for event in seen.events if event.op == "drained"), None)
    if calm is None:
        yield "the run was never calm, so nobody knows whether its jobs would have ended"
    elif drained is None:
        yield f"after {seen.allowed.drain:g} s of calm there are jobs that have not ended"
    elif drained - calm > seen.allowed.drain:
        yield f"all jobs had ended {drained - calm:.1f} s after the last fault, {seen.allowed.drain:g} s are allowed"
    for job in seen.dump.jobs:
        if job.state not in ENDED:
            yield f"job {job.key or job.id!r} is {job.state} at the end, attempt {job.attempt}"


def _i8(seen: Seen) -> Judged:
    """Every tick that its schedule expects is one job, and no other tick is any."""
    for schedule in sorted({*seen.allowed.schedules, *seen.dump.ticks}):
        ticks, timetable = seen.dump.ticks.get(schedule, {}), seen.allowed.schedules.get(schedule)
        became = Counter(job for jobs in ticks.values() for job in jobs)
        for tick, jobs in sorted(ticks.items()):
            if len(jobs) > 1:
                yield f"schedule {schedule!r}, tick {tick}: one job was expected, there are {', '.join(jobs)}"
            if timetable and tick % timetable.period:
                yield f"schedule {schedule!r}, tick {tick}: it is due every {timetable.period:g} s, and not then"
            for job in jobs:
                story = seen.by_id.get(job)
                if became[job] > 1:
                    yield f"schedule {schedule!r}, tick {tick}: its job {job} is that of another tick too"
                elif story is None or not (story.job or story.deletable):
                    yield f"schedule {schedule!r}, tick {tick}: its job {job} is not there"
        for tick in _expected(timetable):
            if not ticks.get(tick):
                yield f"schedule {schedule!r}, tick {tick}: one job was expected, there is none"
    yield from _ran(seen)


def _expected(timetable: Timetable | None) -> Iterator[int]:
    if timetable is not None and timetable.each:
        first, last = ceil(timetable.start / timetable.period), floor(timetable.end / timetable.period)
        yield from (round(count * timetable.period) for count in range(first, last + 1))


def _ran(seen: Seen) -> Judged:
    told: set[tuple[str, int, str]] = set()
    for event in seen.events:
        if event.op == "tick":
            schedule, tick = event.data["schedule"], _instant(event.data["tick"])
            if event.job not in seen.dump.ticks.get(schedule, {}).get(tick, ()):
                told.add((schedule, tick, event.job))
    for schedule, tick, job in sorted(told):
        yield f"schedule {schedule!r}, tick {tick}: job {job} ran for it, which is not what the store says it became"


def _instant(tick: str | float) -> int:
    """Unix seconds, of an ISO date too."""
    return round(datetime.fromisoformat(tick).timestamp()) if isinstance(tick, str) else round(tick)


def _i9(seen: Seen) -> Judged:
    """A job ends as its script says; a dead letter stays until somebody takes it away."""
    for story in seen.stories.values():
        must, job = story.must, story.job
        if job is None:
            call = story.acknowledged
            if (
                call
                and _must_be_dead(story)
                and not story.deletable
                and not seen.forgotten(call.began, call.ended, inf)
            ):
                yield f"{story.name} must be a dead letter, and is not there"
        elif story.asked and job.state in ENDED and must not in ("any", job.state) and not story.replays():
            cancelled = job.state == "cancelled" and any(_took_effect(call) for call in story.calls["cancel"])
            if not cancelled:
                yield f"{story.name} must end {must}, and is {job.state} after {job.attempt} attempts"


def _must_be_dead(story: Story) -> bool:
    return story.must == "dead" and bool(story.begins())


def _took_effect(cancel: Call) -> bool:
    return cancel.outcome == "info" or (cancel.ok and cancel.data.get("state") in ("processing", "cancelled"))


def _i10(seen: Seen) -> Judged:
    """Its code or its process did all that a job is charged with; what was released or snoozed is free."""
    for story in seen.stories.values():
        job = story.job
        if job is None:
            continue
        since = max((call.began for call in story.calls["replay"] if call.landed), default=-inf)
        raised = sum(event.data.get("how") in CHARGED and event.at > since for event in story.of("end"))
        if job.failures > raised:
            yield f"{story.name} is charged with {job.failures} failures, its code has raised {raised} times"
        for what, charged, outcome in (("failures", job.failures, "failed"), ("crashes", job.crashes, "crashed")):
            kept = sum(each == outcome for each in job.outcomes.values())
            if charged > kept or (charged < kept and not story.replays()):
                yield f"{story.name} is charged with {charged} {what}, and {kept} of its attempts ended {outcome}"


class Life(NamedTuple):
    """A time in which a job was live for sure: from `since` to `until`. It became so between `began` and `since`."""

    story: Story
    began: float
    since: float
    until: float


def _i11(seen: Seen) -> Judged:
    """Of all jobs with one unique key at most one is live; a job is refused only in favour of a live one."""
    lives: dict[str, list[Life]] = defaultdict(list)
    for story in seen.stories.values():
        unique = next((call.data["unique"] for call in story.calls["enqueue"] if call.data.get("unique")), "")
        if unique:
            lives[unique] += _lives(seen, story)
        for call in story.calls["enqueue"]:
            if call.ok and not call.made_a_job:
                yield from _held_by_ended(seen, story, call)
    for unique, each in lives.items():
        yield from _two_live(seen, unique, sorted(each, key=lambda life: life.since))


def _lives(seen: Seen, story: Story) -> Iterator[Life]:
    """One for its enqueue, and one for each replay. Between its start and the last sign of its code a job is live."""
    overtaken = story.overtaken()
    signs = [
        event.at
        for event in story.events
        if not seen.waking(event) and ((later := overtaken(event.attempt)) is None or event.at < later.at)
    ]
    starts = [call for call in story.calls["enqueue"] if call.made_a_job or call.outcome == "info"]
    starts = sorted([*starts[:1], *story.replays()], key=lambda call: call.began)
    ends = [call.began for call in starts[1:]] + [inf]
    for start, end in zip(starts, ends, strict=False):
        known = start.ended
        if not start.ok:  # then its first sign tells that it is live
            place = bisect_left(signs, start.began)
            known = signs[place] if place < len(signs) else inf
        place = bisect_left(signs, end)
        last = signs[place - 1] if place else -inf
        if known < end:
            yield Life(story, start.began, known, max(known, last))


def _two_live(seen: Seen, unique: str, lives: Sequence[Life]) -> Judged:
    longest: Life | None = None
    for life in lives:
        if longest is not None and longest.story is not life.story and life.since < longest.until:
            sure = life.until > life.since or longest.since <= life.began  # it may have ended before the other began
            if sure and not seen.forgotten(longest.began, longest.since, life.since):
                yield (
                    f"unique {unique!r}: {life.story.name} was live at {life.since:.3f}, and {longest.story.name} from "
                    f"{longest.since:.3f} to {longest.until:.3f}"
                )
        if longest is None or life.until > longest.until:
            longest = life


def _held_by_ended(seen: Seen, story: Story, call: Call) -> Judged:
    holder = seen.by_id.get(call.data.get("id", ""))
    if holder is None or holder is story:
        return
    final = [claim for claim in holder.claims() if claim.state in FINAL and claim.ended < call.began]
    for claim in final[-1:]:
        again = holder.replayed(claim.began, call.ended)
        if not again and not seen.forgotten(claim.began, claim.ended, call.ended):
            yield f"{story.name} was refused at {call.ended:.3f} in favour of {holder.name}: {claim.told}"


def _i12(seen: Seen) -> Judged:
    """What commits together is there together."""
    for story in seen.stories.values():
        within = next((call for call in story.calls["enqueue"] if call.data.get("tx")), None)
        if within is None:
            if seen.rows[story.key]:
                yield f"{story.name}: a row of it is there, which nobody has written"
        else:
            yield from _row(seen, story, within)
        yield from _handed_in(seen, story)
    for key in sorted({*seen.rows, *seen.handed_in} - seen.stories.keys()):
        yield f"job {key!r}: a row of it is there, and nobody has asked for it"


def _row(seen: Seen, story: Story, call: Call) -> Judged:
    rows, there = seen.rows[story.key], story.job is not None or story.deletable
    refused = call.ok and not call.made_a_job
    if rows > 1:
        yield f"{story.name}: one row was written with it, there are {rows}"
    elif call.ok and seen.forgotten(call.began, call.ended, inf):
        return
    elif call.outcome == "fail" and rows:
        yield f"{story.name} was rolled back, and its row is there"
    elif call.ok and not rows and (story.job or story.deletable or refused):
        yield f"{story.name} was committed at {call.ended:.3f}, and its row is not there"
    elif call.outcome == "info" and story.job and not rows:
        yield f"{story.name} is there, and the row of its transaction is not"
    elif rows and not there and not refused and not (call.outcome == "info" and call.data.get("unique")):
        yield f"{story.name} is not there, and the row of its transaction is"


def _handed_in(seen: Seen, story: Story) -> Judged:
    there = seen.handed_in.get(story.key, Counter[int]())
    calls = {call.attempt: call for call in story.calls["hand_in"]}
    for attempt in sorted({*there, *calls}):
        call, rows, name = calls.get(attempt), there[attempt], f"{story.name}, attempt {attempt}"
        if rows > 1:
            yield f"{name}: handed in once, there are {rows} rows of it"
        elif call is None or (call.outcome == "fail" and rows):
            yield f"{name}: its row is there, and it was {'refused' if call else 'never handed in'}"
        elif call.ok and not rows and not seen.forgotten(call.began, call.ended, inf):
            yield f"{name}: handed in at {call.ended:.3f}, and its row is not there"
        elif rows and call.outcome == "info" and not _completed_by(story, attempt):
            yield f"{name}: its row is there, and the job is not completed by it"


def _completed_by(story: Story, attempt: int) -> bool:
    """As far as is known: it may be deleted by now, or replayed."""
    job = story.job
    return job is None or bool(story.replays()) or (job.state, job.attempt) == ("completed", attempt)


def _i13(seen: Seen) -> Judged:
    """An effect is repeated only by another attempt, and an attempt follows another one only if that was lost."""
    for story in seen.stories.values():
        effects = Counter(event.attempt for event in story.of("effect"))
        begun = Counter(event.attempt for event in story.begins())
        for attempt, times in sorted(effects.items()):
            if times > begun[attempt] > 0:
                yield f"{story.name}, attempt {attempt}: one effect was expected, there are {times}"
        again = {event.attempt for event in story.of("end") if event.data.get("how") in ORDERLY}
        if story.job is not None:
            again |= {each for each, outcome in story.job.outcomes.items() if outcome in ("crashed", "released")}
            made, bound = len(effects), len(effects.keys() & again) + 1 + len(story.replays())
            if made > bound and not any(seen.forgotten(event.at, event.at, inf) for event in story.begins()):
                yield f"{story.name}: {made} attempts made its effect, what was lost or raised explains {bound}"
        yield from _made(seen, story)


def _made(seen: Seen, story: Story) -> Judged:
    """A value of `once` is made again only as long as no attempt was told that it is kept."""
    calls: dict[tuple[int, str], Call] = {}
    kept: dict[str, Call] = {}
    for call in sorted(story.calls["once"], key=lambda call: call.ended):
        calls[call.attempt, call.data["name"]] = call
        if call.ok:
            before = kept.setdefault(call.data["name"], call)
            twice = call is not before and call.data.get("made") and before.data.get("made")
            if twice and not seen.forgotten(before.began, before.ended, call.ended):
                both = f"attempts {before.attempt} and {call.attempt}"
                yield f"{story.name}: once {call.data['name']!r} was made, and kept, by {both}"
    for event in story.of("made"):
        name = event.data["name"]
        first, mine = kept.get(name), calls.get((event.attempt, name))
        if first is None or mine is None or mine is first or (mine.ok and mine.data.get("made")):
            continue
        if mine.began > first.ended and not seen.forgotten(first.began, first.ended, event.at):
            yield (
                f"{story.name}, attempt {event.attempt}: once {name!r} was made at {event.at:.3f}, and attempt "
                f"{first.attempt} was told at {first.ended:.3f} that it is kept"
            )


def _i14(seen: Seen) -> Judged:
    """Every job that runs, or is there, was asked for."""
    for story in seen.stories.values():
        ticks = story.of_schedule or any(event.op == "tick" for event in story.events)  # those are I8's
        if not ticks and not story.asked and (story.events or story.kept):
            why = "was rolled back, or refused" if story.calls["enqueue"] else "was asked for by nobody"
            yield f"{story.name} {why}, and {'it ran' if story.events else 'it is there'}"
        begun = {event.attempt for event in story.begins()}
        for attempt in sorted({event.attempt for event in story.events if event.op != "end"} - begun):
            yield f"{story.name}, attempt {attempt}: its code ran, and never began"
        call = story.acknowledged
        known = call.data.get("id") if call else story.job.id if story.job else None
        for job in sorted({event.job for event in story.begins()} - {known, ""} if known else ()):
            yield f"{story.name} is {known}, and ran as {job}"


INVARIANTS: Mapping[str, Callable[[Seen], Judged]] = {
    "I1": _i1, "I2": _i2, "I3": _i3, "I4": _i4, "I5": _i5, "I6": _i6, "I7": _i7,
    "I8": _i8, "I9": _i9, "I10": _i10, "I11": _i11, "I12": _i12, "I13": _i13, "I14": _i14,
    "I19": waits.i19, "I20": waits.i20, "I21": waits.i21, "I25": waits.i25,
    "I22": places.i22, "I23": places.i23, "I24": places.i24,
    "I15": bounds.i15, "I16": bounds.i16, "I17": bounds.i17, "I18": bounds.i18,
}  # fmt: skip


# ── The figures ─────────────────────────────────────────────────────────────────────────────────────────────────


def check(events: Sequence[Event], dump: Dump, allowed: Allowed | None = None) -> Verdict:
    """What this run shows. Example: `check(history.read(path), dump, Allowed(drain=30)).violations == ()`"""
    seen = Seen(events, dump, allowed or Allowed())
    stories = seen.stories.values()
    again = [pair for story in stories for pair in _again(story)]
    lateness = bounds.lateness(seen)
    return Verdict(
        violations=tuple(Violation(name, said) for name, judge in INVARIANTS.items() for said in judge(seen)),
        jobs=len(dump.jobs),
        attempts=sum(len(story.begins()) for story in stories),
        kills=len(seen.kills),
        faults=Counter(span.name for span in seen.faults),
        refusals=sum(map(_refused, stories)),
        rescues=sum(outcome == "crashed" for job in dump.jobs for outcome in job.outcomes.values()),
        redeliveries=len(again),
        effects=Counter(len(story.of("effect")) for story in stories if story.job or story.events),
        recoveries=_recoveries(seen, again),
        lags=lateness.by_duty() if lateness else {},
        machine=lateness.machine() if lateness else None,
    )


def _refused(story: Story) -> int:
    """A refusal is recorded by its handler, by the attempt's row, or by both: this many there were at least."""
    told = sum(call.outcome == "fail" for call in story.writes())
    ghosts = sum(call.outcome == "fail" for call in story.calls["ghost"])
    return max(told, sum(job.refused for job in story.kept)) + ghosts


class Again(NamedTuple):
    """An attempt that was lost: its begin, its last sign of life, and the begin of the next."""

    lost: Event
    sign: float
    next: Event


def _again(story: Story) -> Iterator[Again]:
    ended = {event.attempt: event.data.get("how") for event in story.of("end")}
    ended |= {call.attempt: "return" for call in story.calls["hand_in"] if call.ok}
    signs = {event.attempt: event.at for event in story.events}
    for lost, following in pairwise(story.begins()):
        how = ended.get(lost.attempt)
        replayed = how == "return" and story.replayed(lost.at, following.at)
        if how in ORDERLY or replayed or following.attempt < lost.attempt:  # the last: its host has only just woken up
            continue
        yield Again(lost, min(signs[lost.attempt], following.at), following)


def _recoveries(seen: Seen, again: Iterable[Again]) -> Mapping[str, tuple[float, ...]]:
    found: dict[str, list[float]] = defaultdict(list)
    kills = defaultdict[int, list[Event]](list)
    for kill in seen.kills:
        kills[kill.data["pid"]].append(kill)
    for each in again:
        cause = _cause(seen, kills, each)
        if cause is not None:
            found[cause.name].append(each.next.at - cause.began)
    return {name: tuple(times) for name, times in found.items()}


def _cause(seen: Seen, kills: Mapping[int, Sequence[Event]], again: Again) -> Span | None:
    """What ended this attempt: a kill or a pause of its process; else the first fault since it was last seen."""
    pid, until = seen.pids.get(again.lost.actor, 0), again.next.at
    for kill in kills.get(pid, ()):
        if again.lost.at <= kill.at <= until:
            return Span(seen.during(kill.at) or "kill", kill.at, kill.at)
    for pause in seen.pauses.get(pid, ()):
        if again.lost.at <= pause.ended and again.sign <= pause.ended and pause.began <= until:
            return pause
    return next((span for span in seen.faults if again.sign <= span.ended and span.began <= until), None)
