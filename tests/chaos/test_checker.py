"""The checker is checked: healthy histories pass, and one that is broken in one place fails for exactly that."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.checker import INVARIANTS, Verdict, bites, check
from chaos.history import Dump, Event, Kept, Phase
from chaos.seen import Allowed, Bounds, Timetable

MINUTE = 1_800_000_000  # a Unix time
LOSSY = Allowed(lost_window={"kill server": 1.0})


@dataclass
class Run:
    """A history that is told line by line, 10 ms apart, and what the store holds at its end."""

    events: list[Event] = field(default_factory=list[Event])
    jobs: dict[str, Kept] = field(default_factory=dict[str, Kept])
    rows: list[str] = field(default_factory=list[str])
    handed_in: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    ticks: dict[str, dict[int, tuple[str, ...]]] = field(default_factory=dict[str, dict[int, tuple[str, ...]]])
    decided: dict[str, dict[int, float]] = field(default_factory=dict[str, dict[int, float]])
    places: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    lost_waits: list[str] = field(default_factory=list[str])
    allowed: Allowed = field(default_factory=Allowed)
    now: float = 1000.0

    # ── telling ──

    def note(self, actor: str, op: str, phase: Phase = "ok", key: str = "", attempt: int = 0, **data: Any) -> None:
        self.now += 0.01
        job = data.pop("job", f"id-{key}" if attempt else "")
        self.events.append(Event(self.now, actor, op, phase, key, job, attempt, data))

    def ask(self, op: str, key: str, phase: Phase | None = "ok", actor: str = "client-1", **told: Any) -> None:
        self.note(actor, op, "invoke", key)
        if phase is not None:
            self.note(actor, op, phase, key, **told)

    def enqueue(self, key: str, phase: Phase | None = "ok", *, created: bool = True, **about: Any) -> None:
        held = about.pop("held_by", key)
        told: dict[str, Any] = {"id": f"id-{held}", "created": created} if phase == "ok" else {}
        asked: dict[str, Any] = {"must": "completed", "unique": "", "script": [], **about}
        self.note("client-1", "enqueue", "invoke", key, **asked)
        if phase is not None:
            self.note("client-1", "enqueue", phase, key, **told)

    def begin(self, key: str, attempt: int, pid: int = 11, checkpoint: Any = None, **limits: Any) -> None:
        self.note(f"worker-{pid}", "begin", "ok", key, attempt, checkpoint=checkpoint, pid=pid, **limits)

    def write(self, op: str, key: str, attempt: int, phase: Phase | None, pid: int = 11, **data: Any) -> None:
        asked = {
            name: value for name, value in data.items() if name in ("name", "value") and (op, name) != ("once", "value")
        }
        self.note(f"worker-{pid}", op, "invoke", key, attempt, **asked)
        if data.get("made"):
            self.note(f"worker-{pid}", "made", "ok", key, attempt, name=data["name"], value=data["value"])
        if phase is not None:
            self.note(f"worker-{pid}", op, phase, key, attempt, **data)

    def send(self, key: str, value: str, *, taken: bool) -> None:
        self.note("client-1", "signal", "invoke", key, value=value)
        self.note("client-1", "signal", "ok", key, taken=taken)

    def effect(self, key: str, attempt: int, pid: int = 11) -> None:
        self.note(f"worker-{pid}", "effect", "ok", key, attempt)

    def end(self, key: str, attempt: int, how: str = "return", pid: int = 11) -> None:
        value = {"value": f"{key}/{attempt}"} if how == "return" else {}
        self.note(f"worker-{pid}", "end", "ok", key, attempt, how=how, **value)

    def works(self, key: str, attempt: int = 1, pid: int = 11, **given: Any) -> None:
        """An attempt as it should be."""
        self.begin(key, attempt, pid, **given)
        self.effect(key, attempt, pid)
        self.end(key, attempt, "return", pid)

    def keep(self, key: str, state: str = "completed", attempt: int = 1, **more: Any) -> None:
        result = f"{key}/{attempt}" if state == "completed" else None
        told: dict[str, Any] = {
            "id": f"id-{key}", "task": "act", "result": result, "checkpoint": None, "unique": "", "failures": 0,
            "crashes": 0, "outcomes": {},
        }  # fmt: skip
        self.jobs[key] = Kept(key=key, state=state, attempt=attempt, **told | more)

    def fault(self, kind: str, during: Callable[[], None] = lambda: None) -> None:
        self.note("nemesis", "fault", "invoke", kind=kind)
        during()
        self.note("nemesis", "fault", "ok", kind=kind)

    def kill(self, pid: int) -> None:
        self.fault("kill worker", lambda: self.note("nemesis", "kill", pid=pid))

    def gauge(self, unix: float, *, late: float = 0.0, store: float = 0.0, slow: float = 1.0) -> None:
        self.note("gauge-61", "gauge", late=late, store=store, slow=slow, load=1.0, unix=unix)

    def calm(self) -> None:
        self.note("runner", "calm")
        self.note("runner", "drained")

    # ── breaking ──

    def find(self, op: str, key: str = "", attempt: int = 0, phase: Phase = "ok", nth: int = 0) -> Event:
        return [e for e in self.events if (e.op, e.key, e.attempt, e.phase) == (op, key, attempt, phase)][nth]

    def drop(self, *where: Any, **more: Any) -> None:
        self.events.remove(self.find(*where, **more))

    def change(self, *where: Any, data: Mapping[str, Any], **more: Any) -> None:
        event = self.find(*where, **more)
        self.events[self.events.index(event)] = event._replace(data={**event.data, **data})

    def again(self, *where: Any, **more: Any) -> None:
        self.events.append((event := self.find(*where, **more))._replace(at=event.at + 0.001))

    def later(self, *where: Any, at: float, **more: Any) -> None:
        event = self.find(*where, **more)
        self.events[self.events.index(event)] = event._replace(at=at)

    def stands(self, key: str, **changes: Any) -> None:
        self.jobs[key] = replace(self.jobs[key], **changes)

    # ── judging ──

    def judge(self) -> Verdict:
        dump = Dump(
            jobs=tuple(self.jobs.values()),
            rows=tuple(self.rows),
            handed_in=tuple(self.handed_in),
            ticks=self.ticks,
            decided=self.decided,
            places=tuple(self.places),
            lost_waits=tuple(self.lost_waits),
        )
        return check(self.events, dump, self.allowed)

    def broken(self) -> set[str]:
        return {violation.invariant for violation in self.judge().violations}


def eventful() -> Run:
    """A bit of everything that is as it should be, however odd it looks."""
    run = Run()
    _ordinary(run)
    _unknown(run)
    _lost_and_rescued(run)
    _paused_host(run)
    _operators(run)
    _keys(run)
    _transactions(run)
    _scheduled(run)
    _on_time(run)
    _waiting(run)
    _limited(run)
    run.calm()
    return run


def _ordinary(run: Run) -> None:
    run.enqueue("plain")
    run.works("plain")
    run.keep("plain")
    run.ask("read", "plain", state="completed", attempt=1)
    run.enqueue("raises")
    run.begin("raises", 1)
    run.effect("raises", 1)
    run.end("raises", 1, "raise")
    run.works("raises", 2)
    run.keep("raises", attempt=2, outcomes={1: "failed"}, failures=1)
    run.enqueue("snoozes")
    run.begin("snoozes", 1)
    run.end("snoozes", 1, "snooze")
    run.works("snoozes", 2)
    run.keep("snoozes", attempt=2, outcomes={1: "snoozed"})
    run.enqueue("dies", must="dead")
    run.begin("dies", 1)
    run.end("dies", 1, "final")
    run.keep("dies", "dead", outcomes={1: "failed"}, failures=1)


def _unknown(run: Run) -> None:
    run.enqueue("unknown, there", "info")
    run.works("unknown, there")
    run.keep("unknown, there")
    run.enqueue("unknown, not there", "info")
    run.enqueue("its client was killed", None)
    run.works("its client was killed")
    run.keep("its client was killed")
    run.enqueue("sent twice", created=False)  # the first answer was lost: the job that is there is its own
    run.works("sent twice")
    run.keep("sent twice")
    run.enqueue("refused", "fail")


def _lost_and_rescued(run: Run) -> None:
    run.enqueue("killed")
    run.begin("killed", 1, pid=21)
    run.write("checkpoint", "killed", 1, "ok", pid=21, value=[1, 1])
    run.write("checkpoint", "killed", 1, "info", pid=21, value=[1, 2])
    run.effect("killed", 1, pid=21)
    run.kill(21)
    run.works("killed", 2, pid=22, checkpoint=[1, 1])
    run.keep("killed", attempt=2, outcomes={1: "crashed"}, crashes=1, checkpoint=[1, 1])
    run.enqueue("once")
    run.begin("once", 1, pid=23)
    run.write("once", "once", 1, None, pid=23, name="mail", value="one", made=True)
    run.kill(23)
    run.begin("once", 2, pid=24)
    run.write("once", "once", 2, "ok", pid=24, name="mail", value="two", made=True)
    run.kill(24)
    run.begin("once", 3)
    run.write("once", "once", 3, "ok", name="mail", value="two", made=False)
    run.end("once", 3)
    run.keep("once", attempt=3, outcomes={1: "crashed", 2: "released"}, crashes=1)
    run.enqueue("never begun")  # its second attempt was claimed by a worker that died the next moment
    run.begin("never begun", 1, pid=25)
    run.kill(25)
    run.works("never begun", 3)
    run.keep("never begun", attempt=3, outcomes={1: "crashed", 2: "crashed"}, crashes=2)
    run.enqueue("unheard")  # it returned, and its process died before that was stored
    run.works("unheard", 1, pid=26)
    run.kill(26)
    run.works("unheard", 2)
    run.keep("unheard", attempt=2, outcomes={1: "crashed"}, crashes=1)


def _paused_host(run: Run) -> None:
    """Two jobs of a host that is paused are done by another one, and it still has one to begin when it wakes up."""
    run.enqueue("paused", unique="paused")
    run.enqueue("claimed")
    run.begin("paused", 1, pid=31)
    run.note("nemesis", "fault", "invoke", kind="pause host")
    run.note("nemesis", "pause", "invoke", pids=[30, 31])
    run.works("paused", 2, pid=32)
    run.works("claimed", 2, pid=32)
    run.enqueue("paused next", unique="paused")
    run.works("paused next", pid=32)
    run.ask("read", "claimed", state="completed", attempt=2)
    run.note("nemesis", "pause", "ok", pids=[30, 31])
    run.note("nemesis", "fault", "ok", kind="pause host")
    run.note("worker-31", "alive", "ok", "paused", 1)
    run.write("checkpoint", "paused", 1, "fail", pid=31, value=[1, 1])
    run.begin("claimed", 1, pid=31)
    run.keep("paused", attempt=2, outcomes={1: "crashed"}, crashes=1, refused=1)
    run.keep("claimed", attempt=2, outcomes={1: "crashed"}, crashes=1)
    run.keep("paused next")


def _operators(run: Run) -> None:
    run.enqueue("cancelled")
    run.ask("cancel", "cancelled", state="cancelled")
    run.ask("read", "cancelled", state="cancelled", attempt=0)
    run.keep("cancelled", "cancelled", attempt=0)
    run.enqueue("cancelled late")
    run.begin("cancelled late", 1)
    run.ask("cancel", "cancelled late", state="processing")
    run.end("cancelled late", 1, "cancelled")
    run.keep("cancelled late", "cancelled", outcomes={1: "cancelled"})
    run.enqueue("replayed")
    run.works("replayed")
    run.ask("read", "replayed", state="completed", attempt=1)
    run.ask("replay", "replayed", landed=True)
    run.works("replayed", 2)
    run.keep("replayed", attempt=2)
    run.enqueue("deleted")
    run.works("deleted")
    run.ask("read", "deleted", state="completed", attempt=1)
    run.ask("delete", "deleted", landed=True)
    run.enqueue("may be deleted")
    run.works("may be deleted")
    run.ask("delete", "may be deleted", "info")


def _keys(run: Run) -> None:
    run.enqueue("holds", unique="only")
    run.begin("holds", 1)
    run.enqueue("is refused", unique="only", created=False, held_by="holds")
    run.end("holds", 1)
    run.keep("holds", unique="only")
    run.ask("read", "holds", state="completed", attempt=1)
    run.enqueue("holds next", unique="only")
    run.works("holds next")
    run.ask("read", "holds next", state="completed", attempt=1)
    run.ask("replay", "holds next", landed=True)
    run.begin("holds next", 2)
    run.enqueue("is refused next", unique="only", created=False, held_by="holds next")
    run.end("holds next", 2)
    run.keep("holds next", attempt=2, unique="only")


def _transactions(run: Run) -> None:
    run.enqueue("committed", tx="commit")
    run.works("committed")
    run.keep("committed")
    run.rows.append("committed")
    run.enqueue("rolled back", "fail", tx="rollback")
    run.enqueue("perhaps committed", "info", tx="commit")
    run.works("perhaps committed")
    run.keep("perhaps committed")
    run.rows.append("perhaps committed")
    run.enqueue("perhaps not", "info", tx="commit")
    run.enqueue("handed in")
    run.begin("handed in", 1)
    run.write("hand_in", "handed in", 1, "ok", value="handed in/1")
    run.end("handed in", 1)
    run.keep("handed in")
    run.handed_in.append(("handed in", 1))
    run.enqueue("in doubt")
    run.begin("in doubt", 1)
    run.write("hand_in", "in doubt", 1, "info", value="in doubt/1")
    run.end("in doubt", 1, "raise")
    run.keep("in doubt")
    run.handed_in.append(("in doubt", 1))


def _scheduled(run: Run) -> None:
    run.allowed = replace(run.allowed, schedules={"hourly": Timetable(60.0, MINUTE - 10, MINUTE + 130)})
    run.ticks["hourly"] = {MINUTE + 60 * n: (f"tick-{n}",) for n in range(4)}  # one more than must be
    for n in range(4):
        tick = {"schedule": "hourly", "tick": MINUTE + 60 * n}
        run.note("worker-11", "tick", "ok", "", 1, job=f"tick-{n}", **tick)
        run.keep(f"tick {n}", id=f"tick-{n}", result=None)


def _on_time(run: Run) -> None:
    """A run in which nothing is late, and the hourly tick is due."""
    run.allowed = replace(run.allowed, bounds=Bounds(lease=3.0, scan=1.0, away=frozenset({"freeze server"})))
    run.gauge(MINUTE + 60)
    run.decided["hourly"] = {MINUTE + 60: MINUTE + 60.0}
    run.enqueue("innocent", innocent=True, due=0.0)
    run.works("innocent")
    run.keep("innocent")
    run.enqueue("taken back")
    run.begin("taken back", 1, pid=51)
    run.kill(51)
    run.works("taken back", 2, pid=52)
    run.keep("taken back", attempt=2, outcomes={1: "crashed"}, crashes=1, ended={1: MINUTE + 60.1})


def _waiting(run: Run) -> None:
    """A fan-in, a gatherer that was suspended, and a job that heard a signal, which was sent twice."""
    run.note("client-1", "waits", key="last", of="parts", parents=["part-1", "part-2"], gathered=False)
    for key in ("part-1", "part-2", "last", "gatherer", "listener", "deaf"):
        run.enqueue(key)
    for key in ("part-1", "part-2"):
        run.works(key)
        run.keep(key)
    run.begin("last", 1)
    run.note("worker-11", "given", "ok", "last", 1, of="parts", values=["part-1/1", "part-2/1"])
    run.end("last", 1)
    run.keep("last")
    run.begin("gatherer", 1)
    run.note("worker-11", "waits", key="gatherer", of="unstored", parents=["unstored"], gathered=True)
    run.note("worker-11", "waits", key="gatherer", of="child", parents=["child"], gathered=True)
    run.enqueue("child")
    run.end("gatherer", 1, "suspend")
    run.works("child")
    run.keep("child")
    run.begin("gatherer", 2)
    run.note("worker-11", "given", "ok", "gatherer", 2, of="child", values=["child/1"])
    run.end("gatherer", 2)
    run.keep("gatherer", attempt=2, outcomes={1: "suspended"})
    run.begin("listener", 1)
    began = run.now
    run.end("listener", 1, "suspend")
    run.send("listener", "go", taken=True)
    run.send("listener", "stop", taken=False)
    run.begin("listener", 2)
    run.note("worker-11", "heard", "ok", "listener", 2, value="go", since=began)
    run.end("listener", 2)
    run.keep("listener", attempt=2, outcomes={1: "suspended"})
    run.begin("deaf", 1)
    run.note("worker-11", "heard", "ok", "deaf", 1, value=None, since=run.now)
    run.end("deaf", 1)
    run.keep("deaf")


def _limited(run: Run) -> None:
    """Two at a time in a shop, one of which is killed; two in any five seconds at a pace."""
    shop, pace = {"places": {"shop:7": 2, "all": 9}}, {"pace": {"pace": (2, 5.0)}}
    for key in ("one of a shop", "two of a shop", "three of a shop", "one paced", "two paced", "three paced"):
        run.enqueue(key)
        run.keep(key)
    run.begin("one of a shop", 1, pid=61, **shop)
    run.begin("two of a shop", 1, **shop)
    run.kill(61)
    run.begin("one of a shop", 2, **shop)
    run.keep("one of a shop", attempt=2, outcomes={1: "crashed"}, crashes=1)
    run.end("two of a shop", 1)
    run.begin("three of a shop", 1, **shop)
    run.end("one of a shop", 2)
    run.end("three of a shop", 1)
    run.begin("one paced", 1, **pace)
    run.end("one paced", 1)
    run.begin("two paced", 1, **pace)
    run.end("two paced", 1)
    run.now += 1.0
    run.begin("three paced", 1, **pace)
    run.end("three paced", 1)
    run.places = [("shop:7", 0, 0), ("all", 0, 0), ("pace", 0, 0)]


def test_nothing_is_wrong_with_a_healthy_history() -> None:
    assert eventful().judge().violations == ()


# ── Each invariant, broken ──────────────────────────────────────────────────────────────────────────────────────

Break = Callable[[Run], object]


def all_of(*steps: Break) -> Break:
    def broken(run: Run) -> None:
        for step in steps:
            step(run)

    return broken


def without(lost: Callable[[Event], bool]) -> Break:
    def broken(run: Run) -> None:
        run.events = [event for event in run.events if not lost(event)]

    return broken


def _old_code_runs_on(run: Run) -> None:
    run.events.append(Event(run.find("begin", "killed", 2).at + 0.001, "worker-21", "alive", "ok", "killed", "", 1))


def _is_owned_twice(run: Run) -> None:
    """The second one begins while the first one works."""
    run.later("begin", "raises", 2, at=run.find("effect", "raises", 1).at - 0.001)


def _zombie_is_believed(run: Run) -> None:
    run.events.remove(event := run.find("checkpoint", "paused", 1, phase="fail"))
    run.events.append(event._replace(phase="ok"))
    run.stands("paused", checkpoint=[1, 1])


def _runs_again(key: str, attempt: int) -> Break:
    def broken(run: Run) -> None:
        run.events.remove(calm := run.find("calm"))
        run.now += 1
        run.begin(key, attempt, pid=12)
        run.end(key, attempt, pid=12)
        run.events.append(calm._replace(at=run.now))
        run.later("drained", at=run.now + 0.01)
        outcomes = {**run.jobs[key].outcomes, attempt - 1: "released"}
        run.keep(key, attempt=attempt, outcomes=outcomes)

    return broken


def _two_hold_the_key(run: Run) -> None:
    run.change("enqueue", "is refused", data={"created": True, "id": "id-is refused"})
    run.keep("is refused", "cancelled", attempt=0)
    run.ask("cancel", "is refused", state="cancelled")


def _effect_of_the_unbegun(run: Run) -> None:
    run.effect("never begun", 2, pid=25)
    run.later("effect", "never begun", 2, at=run.find("begin", "never begun", 3).at - 0.001)


def _made_though_kept(run: Run) -> None:
    after = run.find("once", "once", 3, phase="invoke").at + 0.001
    run.events.append(Event(after, "worker-11", "made", "ok", "once", "", 3, {"name": "mail", "value": "three"}))


def _runs_as_another(run: Run) -> None:
    run.events.remove(event := run.find("begin", "plain", 1))
    run.events.append(event._replace(job="other"))


NINTH: Break = lambda run: run.keep("tick 9", "cancelled", id="tick-9", attempt=0)  # noqa: E731

BROKEN: list[tuple[str, str, Break]] = [
    ("I1", "an acknowledged job is lost", lambda run: run.jobs.pop("plain")),
    ("I1", "a job is there under another id", lambda run: run.stands("snoozes", id="other")),
    ("I1", "a job is there twice", lambda run: run.jobs.update(twin=run.jobs["plain"])),
    ("I1", "an acknowledged job is not found", lambda run: run.ask("read", "plain", state=None, attempt=0)),
    ("I1", "the job in whose favour one was refused is not there",
        lambda run: run.change("enqueue", "is refused", data={"id": "nobody"})),
    ("I2", "an attempt is begun twice", lambda run: run.again("begin", "plain", 1)),
    ("I2", "an attempt is begun that the store has not counted", lambda run: run.begin("dies", 2)),
    ("I2", "an attempt has no number", all_of(
        lambda run: run.enqueue("unnumbered", "info"),
        lambda run: run.note("worker-11", "begin", key="unnumbered", job="id-unnumbered"))),
    ("I2", "a client is told of an attempt that the store has not counted",
        lambda run: run.ask("read", "raises", state="completed", attempt=3)),
    ("I2", "attempts are counted backwards", lambda run: run.ask("read", "raises", state="completed", attempt=1)),
    ("I3", "old code runs beside the new", _old_code_runs_on),
    ("I3", "an attempt begins while another one runs", _is_owned_twice),
    ("I4", "a former owner's checkpoint is accepted", _zombie_is_believed),
    ("I4", "an attempt is given no checkpoint",
        lambda run: run.change("begin", "killed", 2, data={"checkpoint": None})),
    ("I4", "a refused checkpoint is kept", lambda run: run.stands("paused", checkpoint=[1, 1])),
    ("I4", "an unknown checkpoint is kept", lambda run: run.stands("killed", checkpoint=[0, 0])),
    ("I4", "a result is that of another attempt", lambda run: run.stands("killed", result="killed/1")),
    ("I4", "a job is completed that nobody ran", without(lambda event: (event.key, event.attempt) == ("plain", 1))),
    ("I4", "once tells two values", lambda run: run.change("once", "once", 3, data={"value": "one"})),
    ("I4", "once tells what nobody made", lambda run: run.change("once", "once", 3, data={"value": "three"})),
    ("I5", "an attempt ends twice", lambda run: run.again("end", "plain", 1)),
    ("I5", "an attempt that was lost has no outcome", lambda run: run.stands("once", outcomes={1: "crashed"})),
    ("I5", "the attempt that completed has another outcome too",
        lambda run: run.stands("snoozes", outcomes={1: "snoozed", 2: "snoozed"})),
    ("I5", "an attempt has an outcome that nobody claimed",
        lambda run: run.stands("snoozes", outcomes={1: "snoozed", 7: "released"})),
    ("I6", "a completed job begins again", _runs_again("plain", 2)),
    ("I6", "a job that was handed in begins again", _runs_again("handed in", 2)),
    ("I6", "a dead letter is cancelled", all_of(
        lambda run: run.enqueue("was dead", must="any"),
        lambda run: run.ask("read", "was dead", state="dead", attempt=0),
        lambda run: run.keep("was dead", "cancelled", attempt=0))),
    ("I6", "a completed job is queued", lambda run: run.ask("read", "plain", state="queued", attempt=1)),
    ("I6", "a deleted job is there", lambda run: run.keep("deleted")),
    ("I7", "the run never becomes calm", lambda run: run.drop("calm")),
    ("I7", "it is never drained", lambda run: run.drop("drained")),
    ("I7", "a job is left queued", lambda run: run.stands("dies", state="queued")),
    ("I8", "a tick is no job", all_of(
        lambda run: run.ticks["hourly"].update({MINUTE + 120: ()}),
        lambda run: run.jobs.pop("tick 2"),
        without(lambda event: event.job == "tick-2"))),
    ("I8", "a tick is two jobs", all_of(
        NINTH, lambda run: run.ticks["hourly"].update({MINUTE: ("tick-0", "tick-9")}))),
    ("I8", "a job is that of two ticks", lambda run: run.ticks["hourly"].update({MINUTE + 240: ("tick-0",)})),
    ("I8", "a tick comes when none is due", all_of(
        NINTH, lambda run: run.ticks["hourly"].update({MINUTE + 30: ("tick-9",)}))),
    ("I8", "a tick's job is lost", lambda run: run.jobs.pop("tick 0")),
    ("I8", "a job runs for a tick that is another's",
        lambda run: run.change("tick", "", 1, data={"tick": MINUTE + 60})),
    ("I9", "a job completes that must die",
        lambda run: run.change("enqueue", "plain", phase="invoke", data={"must": "dead"})),
    ("I9", "a dead letter is dropped", lambda run: run.jobs.pop("dies")),
    ("I9", "a job dies that must complete",
        lambda run: run.change("enqueue", "dies", phase="invoke", data={"must": "completed"})),
    ("I10", "a release is charged", lambda run: run.stands("once", crashes=2)),
    ("I10", "a snooze is charged", lambda run: run.stands("snoozes", failures=1)),
    ("I10", "a failure that nobody raised is charged",
        lambda run: run.stands("never begun", outcomes={1: "crashed", 2: "failed"}, failures=1, crashes=1)),
    ("I10", "a failure is free", lambda run: run.stands("dies", failures=0)),
    ("I11", "two hold a unique key", _two_hold_the_key),
    ("I11", "an ended job holds a unique key",
        lambda run: run.enqueue("is refused too", unique="only", created=False, held_by="holds")),
    ("I12", "a committed row is lost", lambda run: run.rows.remove("committed")),
    ("I12", "a committed job is lost", lambda run: run.jobs.pop("committed")),
    ("I12", "a row is there twice", lambda run: run.rows.append("committed")),
    ("I12", "a row is rolled back and there", lambda run: run.rows.append("rolled back")),
    ("I12", "a row is there without its job, in doubt", lambda run: run.rows.append("perhaps not")),
    ("I12", "a job is there without its row, in doubt", lambda run: run.rows.remove("perhaps committed")),
    ("I12", "a row is there that nobody wrote", lambda run: run.rows.append("plain")),
    ("I12", "a row is there that nobody knows", lambda run: run.rows.append("phantom")),
    ("I12", "what was handed in is lost", lambda run: run.handed_in.remove(("handed in", 1))),
    ("I12", "what was handed in is there twice", lambda run: run.handed_in.append(("handed in", 1))),
    ("I12", "what was never handed in is there", lambda run: run.handed_in.append(("plain", 1))),
    ("I12", "a row is handed in, and its job is not", all_of(
        lambda run: run.stands("in doubt", state="dead", result=None, outcomes={1: "failed"}, failures=1),
        lambda run: run.change("enqueue", "in doubt", phase="invoke", data={"must": "any"}))),
    ("I13", "an attempt has two effects", lambda run: run.again("effect", "plain", 1)),
    ("I13", "an effect is repeated and nothing was lost",
        lambda run: run.stands("unheard", outcomes={1: "snoozed"}, crashes=0)),
    ("I13", "what once keeps is made again", _made_though_kept),
    ("I13", "two make what once keeps",
        lambda run: run.write("once", "once", 3, "ok", name="mail", value="two", made=True)),
    ("I14", "a job runs that nobody asked for", lambda run: run.works("phantom")),
    ("I14", "a job is there that nobody asked for", lambda run: run.keep("phantom", "cancelled", attempt=0)),
    ("I14", "a refused job runs", lambda run: run.works("refused")),
    ("I14", "a rolled back job is there", lambda run: run.keep("rolled back", "cancelled", attempt=0)),
    ("I14", "a job runs under another id", _runs_as_another),
    ("I14", "an effect of an attempt that never began", _effect_of_the_unbegun),
    ("I15", "a due job with a free slot waits",
        lambda run: run.later("begin", "innocent", 1, at=run.find("enqueue", "innocent").at + 1.1)),
    ("I16", "a dead owner's job is taken back late",
        lambda run: run.stands("taken back", ended={1: run.jobs["taken back"].ended[1] + 6.1})),
    ("I17", "a tick fires late", lambda run: run.decided["hourly"].update({MINUTE + 60: MINUTE + 62.1})),
    ("I18", "an innocent enqueue waits", lambda run: run.later(
        "enqueue", "innocent", phase="invoke", at=run.find("enqueue", "innocent").at - 1.1)),
    ("I19", "a job begins before what it waits for has ended", lambda r: r.later("end", "part-2", 1, at=r.now)),
    ("I19", "a gatherer goes on before its child has ended", lambda r: r.later("end", "child", 1, at=r.now)),
    ("I20", "a job is given less than was left", lambda r: r.change("given", "last", 1, data={"values": ["part-1/1"]})),
    ("I20", "a gatherer is given another result", lambda r: r.change("given", "gatherer", 2, data={"values": ["x"]})),
    ("I20", "a gatherer is given what it never listed", lambda r: r.change("given", "gatherer", 2, data={"of": "x"})),
    ("I21", "a signal is lost", lambda r: r.change("heard", "listener", 2, data={"value": None, "since": r.now})),
    ("I21", "a signal is heard that nobody sent", lambda r: r.change("heard", "deaf", 1, data={"value": "boo"})),
    ("I21", "two signals are taken", lambda r: r.change("signal", "listener", data={"taken": True}, nth=1)),
    ("I21", "what was heard is reversed",
        lambda r: (r.again("heard", "listener", 2), r.change("heard", "listener", 2, data={"value": "stop"}))),
    ("I22", "three begin where two may run",
        lambda r: r.later("begin", "three of a shop", 1, at=r.find("begin", "two of a shop", 1).at + 0.001)),
    ("I22", "one begins while the code of one that has ended runs", lambda r: r.events.append(
        Event(r.find("begin", "three of a shop", 1).at + 0.001, "worker-11", "alive", "ok", "two of a shop", "", 1))),
    ("I23", "three begin in a period of two",
        lambda r: r.later("begin", "three paced", 1, at=r.find("begin", "one paced", 1).at + 0.99)),
    ("I24", "a place is held when all is over", lambda r: r.places.append(("shop:8", 1, 0))),
    ("I25", "no ask was left for a job that waited", lambda r: r.lost_waits.append("some job")),
    ("I24", "a job waits for a place when all is over", lambda r: r.places.append(("shop:8", 0, 1))),
]  # fmt: skip


@pytest.mark.parametrize(("invariant", "broken"), [pytest.param(i, b, id=f"{i}: {name}") for i, name, b in BROKEN])
def test_one_fault_is_found_and_called_by_its_name(invariant: str, broken: Break) -> None:
    run = eventful()
    broken(run)

    found = run.judge().violations

    assert {violation.invariant for violation in found} == {invariant}, found


#: What a store does once it has lost what it had acknowledged.
LOSSES = {
    "an acknowledged job is lost", "a job is there under another id", "an acknowledged job is not found",
    "the job in whose favour one was refused is not there", "an attempt is begun twice",
    "an attempt is begun that the store has not counted", "attempts are counted backwards",
    "a client is told of an attempt that the store has not counted", "old code runs beside the new",
    "an attempt begins while another one runs", "a former owner's checkpoint is accepted",
    "an attempt is given no checkpoint", "an unknown checkpoint is kept", "once tells two values",
    "a completed job begins again", "a job that was handed in begins again", "a dead letter is cancelled",
    "a completed job is queued", "a deleted job is there", "a dead letter is dropped", "two hold a unique key",
    "an ended job holds a unique key", "a committed row is lost", "a committed job is lost",
    "what was handed in is lost", "an effect is repeated and nothing was lost", "what once keeps is made again",
    "two make what once keeps", "a job begins before what it waits for has ended",
    "a gatherer goes on before its child has ended",
    "a job is given less than was left", "a gatherer is given another result", "a signal is lost",
    "two signals are taken", "what was heard is reversed", "three begin where two may run",
    "one begins while the code of one that has ended runs", "three begin in a period of two",
}  # fmt: skip


@pytest.mark.parametrize(("invariant", "name", "broken"), [pytest.param(*each, id=each[1]) for each in BROKEN])
def test_a_declared_loss_excuses_what_a_loss_can_do_and_nothing_else(invariant: str, name: str, broken: Break) -> None:
    run = eventful()
    broken(run)
    run.events.append(Event(0.0, "nemesis", "fault", "invoke", data={"kind": "kill server"}))
    run.allowed = replace(run.allowed, lost_window={"kill server": 1.0})

    assert run.broken() == (set() if name in LOSSES else {invariant})


def test_every_invariant_is_broken_somewhere() -> None:
    assert {invariant for invariant, _, _ in BROKEN} == INVARIANTS.keys()


def test_a_violation_says_which_job_which_attempt_and_what_was_expected() -> None:
    run = eventful()
    run.change("begin", "killed", 2, data={"checkpoint": None})

    (violation,) = run.judge().violations

    assert violation.sentence == (
        "job 'killed': attempt 2 was given the checkpoint None, the newest that was accepted is [1, 1]"
    )


# ── What is unknown is not judged ───────────────────────────────────────────────────────────────────────────────


UNKNOWN: list[tuple[str, Break]] = [
    ("a checkpoint without an answer is there", lambda run: run.stands("killed", checkpoint=[1, 2])),
    ("an enqueue without an answer is not there", all_of(
        lambda run: run.jobs.pop("unknown, there"),
        without(lambda event: event.key == "unknown, there" and event.op != "enqueue"))),
    ("a delete without an answer was none", lambda run: run.keep("may be deleted")),
    ("a replay without an answer was one", all_of(
        lambda run: run.ask("replay", "plain", "info"), _runs_again("plain", 2))),
    ("a cancel without an answer came too late", lambda run: run.ask("cancel", "plain", "info")),
    ("a read tells what was true before", lambda run: run.note("client-1", "read", key="plain", state="processing")),
]  # fmt: skip


@pytest.mark.parametrize("odd", [pytest.param(odd, id=name) for name, odd in UNKNOWN])
def test_what_may_have_happened_is_no_violation(odd: Break) -> None:
    run = eventful()
    odd(run)

    assert run.judge().violations == ()


# ── Allowances: just inside, just outside ───────────────────────────────────────────────────────────────────────


def _waking(run: Run, seconds: float) -> None:
    at = run.find("pause").at + seconds
    run.events.append(Event(at, "worker-31", "alive", "ok", "paused", "", 1))


def test_a_whole_host_that_wakes_up_may_run_old_code_for_a_second_and_no_longer() -> None:
    run = eventful()
    _waking(run, 0.99)
    assert run.broken() == set()

    _waking(run, 1.01)
    assert run.broken() == {"I3"}


def test_only_what_was_paused_may_wake_up() -> None:
    run = eventful()
    run.change("pause", phase="invoke", data={"pids": [30, 33]})
    run.change("pause", data={"pids": [30, 33]})

    assert run.broken() == {"I3", "I6"}


def test_of_a_paused_worker_no_old_code_runs() -> None:
    run = eventful()
    for fault in [event for event in run.events if event.data.get("kind") == "pause host"]:
        run.events[run.events.index(fault)] = fault._replace(data={"kind": "pause worker"})

    assert run.broken() == {"I3", "I6"}


def test_a_begin_is_not_held_against_its_limit_when_its_worker_was_paused_or_its_host_wakes_up() -> None:
    run = eventful()
    run.later("begin", "three paced", 1, at=run.find("begin", "one paced", 1).at + 0.99)
    run.later("begin", "three of a shop", 1, at=run.find("begin", "two of a shop", 1).at + 0.001)
    assert run.broken() == {"I22", "I23"}

    for phase, kind in (("invoke", "fault"), ("invoke", "pause"), ("ok", "pause"), ("ok", "fault")):
        told = {"kind": "pause host"} if kind == "fault" else {"pids": [11]}
        run.note("nemesis", kind, phase, **told)  # type: ignore[arg-type]
        run.later(kind, phase=phase, nth=-1, at=run.find("begin", "one of a shop", 1).at)
    assert run.broken() == set()


def _lossy(seconds: float) -> Run:
    """A job that was acknowledged so long before the server was killed, and another one long before."""
    run = Run(allowed=LOSSY)
    run.enqueue("long ago")
    run.works("long ago")
    run.keep("long ago")
    run.now += 100
    run.enqueue("just now")
    run.now += seconds - 0.01
    run.fault("kill server")
    run.calm()
    return run


def test_what_was_acknowledged_in_a_declared_window_before_a_loss_may_be_gone_and_nothing_older() -> None:
    assert _lossy(0.99).broken() == set()
    assert _lossy(1.01).broken() == {"I1"}

    run = _lossy(0.5)
    run.jobs.clear()
    assert run.broken() == {"I1"}


def test_a_loss_is_allowed_only_for_the_fault_that_is_named() -> None:
    run = _lossy(0.5)
    run.allowed = Allowed(lost_window={"freeze server": 1.0})

    assert run.broken() == {"I1"}


def _undone(seconds: float) -> Run:
    """An attempt that begins and completes so long before a loss, and begins again after it."""
    run = Run(allowed=LOSSY)
    run.enqueue("undone")
    run.now += 100
    run.works("undone", pid=41)
    run.ask("read", "undone", state="completed", attempt=1)
    run.now += seconds - 0.01
    run.fault("kill server")
    run.works("undone", pid=42)
    run.keep("undone")
    run.calm()
    return run


def test_an_attempt_that_a_loss_undid_may_be_issued_again_and_no_other() -> None:
    assert _undone(0.9).broken() == set()
    assert {"I2", "I6"} <= _undone(1.1).broken()


@pytest.mark.parametrize(("seconds", "broken"), [(9.99, set[str]()), (10.01, {"I7"})])
def test_jobs_end_within_the_time_that_is_allowed(seconds: float, broken: set[str]) -> None:
    run = eventful()
    run.allowed = replace(run.allowed, drain=10.0)
    run.later("drained", at=run.find("calm").at + seconds)

    assert run.broken() == broken


@pytest.mark.parametrize(("end", "broken"), [(MINUTE + 239.0, set[str]()), (MINUTE + 240.0, {"I8"})])
def test_ticks_are_expected_up_to_the_end_of_a_timetable(end: float, broken: set[str]) -> None:
    run = eventful()
    run.allowed = replace(run.allowed, schedules={"hourly": Timetable(60.0, MINUTE, end)})

    assert run.broken() == broken


def test_a_schedule_that_may_skip_ticks_is_only_held_to_one_job_each() -> None:
    run = eventful()
    run.allowed = replace(run.allowed, schedules={"hourly": Timetable(60.0, MINUTE - 600, MINUTE + 600, each=False)})

    assert run.broken() == set()


# ── Figures ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_report_is_given_its_figures() -> None:
    verdict = eventful().judge()

    assert verdict.jobs == len(eventful().jobs)
    assert verdict.attempts == 58
    assert verdict.kills == 7
    assert verdict.faults == {"kill worker": 7, "pause host": 1}
    assert verdict.refusals == 1
    assert verdict.rescues == 9
    assert verdict.redeliveries == 8
    assert verdict.effects[2] == 4
    assert {name: len(times) for name, times in verdict.recoveries.items()} == {"kill worker": 7, "pause host": 1}
    assert all(0 < seconds < 1 for times in verdict.recoveries.values() for seconds in times)
    assert bites(verdict) == []


def test_a_run_in_which_nothing_happened_proves_nothing() -> None:
    run = Run()
    run.enqueue("plain")
    run.works("plain")
    run.keep("plain")
    run.calm()

    assert run.broken() == set()
    assert bites(run.judge()) == [
        "nothing was killed",
        "no write of a former owner was refused",
        "no attempt was rescued",
        "no job was delivered again",
    ]


# ── Any history ─────────────────────────────────────────────────────────────────────────────────────────────────


HEARD: tuple[Phase | None, ...] = ("ok", "info", None)


def drawn(draw: random.Random, jobs: int = 6) -> Run:
    """Jobs that run one after the other, and lose some of their attempts."""
    run = Run()
    for number in range(jobs):
        key = f"job {number}"
        run.enqueue(key, draw.choice(("ok", "ok", "info", None)))
        outcomes, kept, attempt = dict[int, str](), None, 1
        while draw.random() < 0.5:
            if draw.random() < 0.8:
                kept = _lost_attempt(run, draw, key, attempt, kept, outcomes)
            else:
                outcomes[attempt] = "crashed"
            attempt += 1
        run.works(key, attempt, checkpoint=kept)
        told = list(outcomes.values())
        run.keep(
            key,
            attempt=attempt,
            outcomes=outcomes,
            checkpoint=kept,
            crashes=told.count("crashed"),
            failures=told.count("failed"),
        )
    run.calm()
    return run


def _lost_attempt(run: Run, draw: random.Random, key: str, attempt: int, kept: Any, outcomes: dict[int, str]) -> Any:
    pid = 100 + len(run.events)
    run.begin(key, attempt, pid, kept)
    for step in range(draw.randrange(3)):
        phase = draw.choice(HEARD)
        run.write("checkpoint", key, attempt, phase, pid, value=[attempt, step])
        if phase == "ok" or draw.random() < 0.5:
            kept = [attempt, step]
    if draw.random() < 0.5:
        run.effect(key, attempt, pid)
    if draw.random() < 0.5:
        run.kill(pid)
        outcomes[attempt] = draw.choice(("crashed", "released"))
    else:
        how, outcomes[attempt] = draw.choice((("raise", "failed"), ("snooze", "snoozed")))
        run.end(key, attempt, how, pid)
    return kept


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_no_healthy_history_is_accused(seed: int) -> None:
    assert drawn(random.Random(seed)).judge().violations == ()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_in_any_history_a_fault_is_found(seed: int) -> None:
    draw = random.Random(seed)
    run = drawn(draw)
    begins = [event for event in run.events if event.op == "begin"]
    victim = draw.choice(begins)
    last = [event for event in begins if event.key == victim.key][-1]
    match draw.randrange(5):
        case 0:
            run.events.append(victim._replace(at=victim.at + 0.001, actor="worker-1"))
            expected = "I2"
        case 1:
            run.events.remove(last)
            expected = "I4"
        case 2:
            run.stands(victim.key, result="another")
            expected = "I4"
        case 3:
            run.works(victim.key + "'", 1)
            expected = "I14"
        case _:
            run.stands(victim.key, crashes=run.jobs[victim.key].crashes + 1)
            expected = "I10"

    assert expected in run.broken()


def _haunted(phase: Phase) -> Run:
    """The write of a former owner, sent again when the job has ended."""
    run = Run()
    run.enqueue("haunted")
    run.works("haunted")
    run.keep("haunted")
    for now in ("invoke", phase):
        run.note("nemesis", "ghost", now, "haunted", 1, name="finish")  # type: ignore[arg-type]
    run.calm()
    return run


def test_a_ghosts_write_that_is_accepted_is_told_and_one_that_is_refused_is_counted() -> None:
    assert _haunted("ok").broken() == {"I4"}
    assert _haunted("fail").broken() == set()
    assert _haunted("fail").judge().refusals == 1
