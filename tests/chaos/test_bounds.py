"""The four bounds in time are checked: just inside each one nothing is wrong, just outside it is reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from chaos.checker import unmeasured
from chaos.history import Event
from chaos.seen import Allowed, Bounds, Timetable
from chaos.test_checker import MINUTE, Run
from chaos.workload import hold_the_gil

BOUNDS = Bounds(
    lease=3.0, scan=1.0, start=1.0, rescue=2.0, away=frozenset({"freeze server"}), deaf=frozenset({"kill queue"})
)
AT = 1000.0  #: when each of these runs begins
UNIX = MINUTE - AT  #: so that its clock shows MINUTE then


def a_run(bounds: Bounds | None = BOUNDS) -> Run:
    run = Run(allowed=Allowed(bounds=bounds, schedules={"hourly": Timetable(60.0, MINUTE, MINUTE + 10, each=False)}))
    run.gauge(run.now + 0.01 + UNIX)
    return run


def passes(run: Run, seconds: float) -> None:
    """This much time, and the clock shows it."""
    run.now += seconds - 0.01


def start(run: Run, late: float, due: float = 0.0) -> None:
    run.enqueue("job", innocent=True, due=due)
    passes(run, due + late)
    run.works("job")
    run.keep("job")


def delayed_start(run: Run, late: float) -> None:
    start(run, late, due=5.0)


def wave(run: Run, late: float) -> None:
    run.events.append(run.find("gauge")._replace(op="wave", key="wave", data={"due": run.now + UNIX, "jobs": 2}))
    run.enqueue("wave-1")
    passes(run, late - 0.02)
    run.works("wave-1")
    run.keep("wave-1")


def rescue(run: Run, late: float) -> None:
    run.enqueue("job")
    run.begin("job", 1, pid=21)
    run.kill(21)
    died = run.find("kill").at
    passes(run, late)
    run.works("job", 2, pid=22)
    run.keep("job", attempt=2, outcomes={1: "crashed"}, crashes=1, ended={1: died + late + UNIX})


def rescue_of_the_paused(run: Run, late: float) -> None:
    run.enqueue("job")
    run.begin("job", 1, pid=21)
    run.note("nemesis", "pause", "invoke", pids=[21])
    died = run.now
    passes(run, late)
    run.works("job", 2, pid=22)
    run.now = died + 10.0
    run.note("nemesis", "pause", "ok", pids=[21])
    run.keep("job", attempt=2, outcomes={1: "released"}, ended={1: died + late + UNIX})


def tick(run: Run, late: float) -> None:
    run.ticks["hourly"] = {MINUTE: ("tick",)}
    run.decided["hourly"] = {MINUTE: MINUTE + late}
    passes(run, late)
    run.note("worker-11", "tick", "ok", "", 1, job="tick", schedule="hourly", tick=MINUTE)
    run.keep("tick", id="tick", result=None)


def enqueue(run: Run, late: float) -> None:
    run.note("client-1", "enqueue", "invoke", "job", must="completed", unique="", script=[], innocent=True, due=0.0)
    passes(run, late)
    run.note("client-1", "enqueue", "ok", "job", id="id-job", created=True)
    run.works("job")
    run.keep("job")


#: each with what is promised of it
DUTIES = [
    pytest.param("I15", start, 1.0, id="start"),
    pytest.param("I15", delayed_start, 1.0, id="delayed start"),
    pytest.param("I15", wave, 1.0, id="wave"),
    pytest.param("I16", rescue, 6.0, id="rescue"),
    pytest.param("I16", rescue_of_the_paused, 6.0, id="rescue of the paused"),
    pytest.param("I17", tick, 2.0, id="tick"),
    pytest.param("I18", enqueue, 1.0, id="enqueue"),
]
duties = pytest.mark.parametrize(("invariant", "duty", "promised"), DUTIES)


@duties
def test_each_may_be_as_late_as_is_promised_and_no_later(invariant: str, duty: object, promised: float) -> None:
    for late, broken in ((promised - 0.1, set[str]()), (promised + 0.1, {invariant})):
        run = a_run()
        duty(run, late)  # type: ignore[operator]
        run.calm()
        assert run.broken() == broken, run.judge().violations


@duties
def test_without_bounds_nobody_is_judged(invariant: str, duty: object, promised: float) -> None:
    run = a_run(bounds=None)
    duty(run, promised + 0.1)  # type: ignore[operator]
    run.calm()

    assert run.broken() == set()
    assert run.judge().lags == {}


def strike(run: Run, kind: str, began: float, ended: float) -> None:
    """A fault, at times that the run has already passed."""
    for phase, at in (("invoke", began), ("ok", ended)):
        run.events.append(run.find("gauge")._replace(at=at, op="fault", phase=phase, data={"kind": kind}))  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "excused"), [("freeze server", 4.0), ("kill worker", 0.0)])
def test_the_time_in_which_the_store_did_not_answer_does_not_count_nor_a_lease_after_it(
    kind: str, excused: float
) -> None:
    for late, broken in ((1.0 + excused - 0.1, set[str]()), (1.0 + excused + 0.1, {"I15"})):
        run = a_run()
        start(run, late)
        due = run.find("enqueue", "job").at
        strike(run, kind, due + 0.1, due + 1.1)
        run.calm()
        assert run.broken() == broken
        assert run.judge().lags["start"].most == pytest.approx(late - min(excused, late - 0.1))


def test_faults_that_meet_are_not_counted_twice() -> None:
    run = a_run()
    start(run, 10.0)
    due = run.find("enqueue", "job").at
    strike(run, "freeze server", due + 1.0, due + 2.0)  # until 5, with its lease
    strike(run, "freeze server", due + 3.0, due + 4.0)  # until 7
    run.calm()

    assert run.judge().lags["start"].most == pytest.approx(4.0)


def test_while_no_ring_is_heard_starts_are_not_judged_and_all_else_is() -> None:
    for duty, broken in ((start, set[str]()), (tick, {"I17"})):
        run = a_run()
        run.note("nemesis", "fault", "invoke", kind="kill queue")
        duty(run, 5.0)
        run.note("nemesis", "fault", "ok", kind="kill queue")
        run.calm()
        assert run.broken() == broken


@pytest.mark.parametrize(
    ("told", "broken"), [({"locked": True}, set[str]()), ({"locked": False}, {"I18"}), (None, set[str]())]
)
def test_while_code_holds_the_gil_and_the_lock_of_a_file_nobody_is_late_and_the_gil_alone_excuses_nobody(
    told: dict[str, bool] | None, broken: set[str]
) -> None:
    """None: it was killed before it could tell."""
    run = a_run()
    run.note("worker-11", "hold", "invoke", "other", 1, seconds=1.5)
    enqueue(run, 1.5)
    if told is not None:
        run.note("worker-11", "hold", "ok", "other", 1, **told)
    run.calm()

    assert run.broken() == broken


@pytest.mark.parametrize(("sample", "more"), [({"late": 0.5}, 2.0), ({"store": 0.5}, 2.0), ({"slow": 21.0}, 1.0)])
def test_what_the_machine_and_the_store_themselves_are_late_is_allowed_on_top(
    sample: dict[str, float], more: float
) -> None:
    for late, broken in ((1.0 + more - 0.1, set[str]()), (1.0 + more + 0.1, {"I15"})):
        run = a_run()
        start(run, late)
        run.gauge(run.now + UNIX, **sample)
        run.calm()
        assert run.broken() == broken


@pytest.mark.parametrize(("there", "broken"), [(0.5, set[str]()), (4.8, {"I15"})])
def test_no_start_is_late_while_there_is_no_worker_and_one_that_is_there_is_no_excuse(
    there: float, broken: set[str]
) -> None:
    """A worker of the lane ends, and the next one begins 5 s later: until when was the former one there?"""
    run = a_run()
    start(run, 0.1)
    ended = run.find("end", "job", 1).at
    run.enqueue("next", innocent=True, due=0.0)
    for at in (ended + there / 2, ended + there):
        run.events.append(Event(at, "worker-11", "there", "ok"))
    passes(run, 5.0)
    run.works("next", pid=12)
    run.keep("next")
    run.calm()

    assert run.broken() == broken
    assert run.judge().lags["worker"].most == pytest.approx(5.0 - there, abs=0.1)


def test_a_start_is_not_judged_before_the_load_and_the_lane_are_there() -> None:
    for told_first, broken in ((True, {"I15"}), (False, set[str]())):
        run = a_run()
        if told_first:
            run.note("lane-1", "load", "ok", profile="lane")
        start(run, 5.0)
        if not told_first:
            run.note("lane-1", "load", "ok", profile="lane")
        run.calm()
        assert run.broken() == broken


def test_what_the_machine_was_late_at_another_time_excuses_nobody() -> None:
    run = a_run()
    run.gauge(run.now + UNIX, late=5.0)
    run.now += 60.0
    start(run, 1.5)
    run.calm()

    assert run.broken() == {"I15"}


def test_an_enqueue_may_take_three_times_as_long_as_the_store_itself() -> None:
    for late, broken in ((2.3, set[str]()), (2.5, {"I18"})):
        run = a_run()
        enqueue(run, late)
        run.gauge(run.now + UNIX, store=0.8)
        run.calm()
        assert run.broken() == broken


def test_an_innocent_enqueue_may_not_be_refused_while_the_store_answers() -> None:
    run = a_run()
    run.enqueue("job", "info", innocent=True, due=0.0)
    run.calm()
    (violation,) = run.judge().violations

    assert violation.invariant == "I18"
    assert "is refused though the store answers" in violation.sentence

    run = a_run()
    run.fault("freeze server", lambda: run.enqueue("job", "info", innocent=True, due=0.0))
    run.calm()
    assert run.broken() == set()


def test_a_due_job_that_never_starts_is_late_until_the_end() -> None:
    run = a_run()
    run.enqueue("job", innocent=True, due=0.0, must="any")
    run.keep("job", "cancelled", attempt=0)
    run.now += 5.0
    run.calm()

    assert run.broken() == {"I15"}


def test_behind_an_avalanche_a_delayed_job_waits_for_its_turn_and_is_only_measured() -> None:
    run = a_run(replace(BOUNDS, delayed=False))
    delayed_start(run, 20.0)
    run.calm()

    assert run.broken() == set()
    assert run.judge().lags["promote"].most == pytest.approx(20.0)


def test_a_violation_says_who_was_late_and_by_how_much() -> None:
    run = a_run()
    start(run, 1.5)
    run.calm()
    (violation,) = run.judge().violations

    assert violation.sentence == (
        "job 'job', due at 1000.030: a due job starts 1.50 s later, 1.00 s are promised, 0.00 s more are the machine's"
    )


def test_a_run_with_load_in_which_nobody_measured_anything_proves_nothing() -> None:
    run = Run(allowed=Allowed(bounds=BOUNDS))
    run.calm()

    assert unmeasured(run.judge()) == [
        "no start was measured",
        "no delayed start was measured",
        "no tick was measured",
        "no enqueue was measured",
        "the machine was not measured",
    ]


def test_a_handler_that_holds_the_gil_tells_whether_its_process_had_the_lock_of_a_file(tmp_path: Path) -> None:
    one, other = (apsw.Connection(str(tmp_path / "t.db")) for _ in range(2))
    one.execute("PRAGMA journal_mode = WAL; CREATE TABLE t (n)")
    assert not hold_the_gil(0.01)
    other.execute("BEGIN IMMEDIATE")
    assert hold_the_gil(0.01)
    other.execute("COMMIT")
    assert not hold_the_gil(0.01)
    one.close()
    other.close()
