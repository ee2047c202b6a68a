"""What is wrong right now: causes before their symptoms, and what hangs silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.factories import World, claim, draft, put
from conformance.scene import Scene, paused_and_late
from conformance.test_limits import SHOP, declare, limited
from tenure.core.lifecycle import Lease
from tenure.notifiers.poll import PollNotifier
from tenure.operations import hangs
from tenure.operations.access import Access
from tenure.operations.admin import Admin
from tenure.operations.causes import Case, Problem, attributed, cases
from tenure.operations.schedules import ScheduleReads
from tenure.ports import Progress


@pytest.fixture
def scene(world: World, tmp_path: Path) -> Scene:
    return Scene(world, tmp_path)


def shown(scene: Scene) -> list[tuple[str, str]]:
    return [(each.key, each.cause) for each in scene.problems()]


def held_queue(scene: Scene) -> None:
    """A paused queue, a late schedule in it, and a job that has waited for a long time."""
    paused_and_late(scene.world, scene.store, scene.timetable)


# ── Causes ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_paused_queue_comes_before_all_that_waits_in_it(scene: Scene) -> None:
    held_queue(scene)

    assert shown(scene) == [
        ("queue-paused:reports", ""),
        ("queue-age:reports", "queue-paused:reports"),
        ("late:nightly", "queue-paused:reports"),
    ]
    cause, _, late = scene.problems()
    assert (cause.remedy, cause.fix) == ("resume-queue", "tenure queues resume reports")
    assert cause.says == "queue reports has been paused for 1h5m: 2 jobs wait in it, the oldest due for 1h5m"
    assert late.says == "nightly was due 5m1s ago, and its job waits in queue reports, which is paused"


def test_a_schedules_page_says_that_its_queue_is_paused(scene: Scene) -> None:
    held_queue(scene)
    schedules = ScheduleReads(Access.of(scene.store, PollNotifier(), scene.settings, "ada"))

    assert schedules.health("nightly").why_late == "its queue reports is paused"
    assert [each.why_late for each in schedules.healths()] == ["its queue reports is paused"]
    assert [each.why for each in schedules.overdue()] == ["its queue reports is paused"]


def test_a_paused_queue_in_which_nothing_is_late_is_no_problem(scene: Scene) -> None:
    scene.worker("reports")
    scene.store.pause("reports", paused=True)
    put(scene.store, queue="reports")
    scene.passes(300)

    assert shown(scene) == []


def test_what_waits_for_a_worker_is_a_symptom_of_that(scene: Scene) -> None:
    scene.worker("default")
    scene.scheduled(job=draft(queue="mail", max_failures=1))
    scene.scheduled("hourly", job=draft(task="gone", max_failures=1))
    scene.passes(3600)
    scene.fires()
    scene.passes(601)

    assert shown(scene) == [
        ("no-worker:queue mail", ""),
        ("queue-age:mail", "no-worker:queue mail"),
        ("late:nightly", "no-worker:queue mail"),
        ("no-worker:task gone", ""),
        ("late:hourly", "no-worker:task gone"),
        ("queue-age:default", ""),
    ]


def test_a_symptom_is_told_with_its_cause_and_alone_once_that_is_gone(scene: Scene) -> None:
    watch = scene.watch()
    held_queue(scene)
    watch.look()
    assert scene.told() == [("opened", "queue-paused:reports")]
    (note,) = scene.store.notes("incident").values()
    assert "it causes queue-age: reports; late: nightly; tenure queues resume reports" in note

    scene.store.pause("reports", paused=False)
    watch.look()

    assert sorted(scene.told()) == [
        ("opened", "late:nightly"),
        ("opened", "queue-age:reports"),
        ("opened", "queue-paused:reports"),
    ]
    scene.store.pause("reports", paused=True)
    for _ in range(4):
        scene.passes(31)
        watch.look()
    assert len(scene.told()) == 3, "what was told stays open while it lasts"


def test_a_problem_whose_cause_is_not_there_stands_alone() -> None:
    late = Problem("late", "nightly", "nightly is late", cause="queue-paused:reports")

    assert cases([late]) == [Case(late)]


def test_causes_are_told_from_symptoms_whatever_their_order() -> None:
    paused = [Problem("queue-paused", f"q{n}", "paused", queue=f"q{n}") for n in range(3)]
    late = [Problem("late", f"s{n}", "late", queue=f"q{n % 3}") for n in range(9)]

    found = cases(attributed([*late, *paused], {}))

    assert [case.problem.subject for case in found] == ["q0", "q1", "q2"]
    assert [[each.subject for each in case.symptoms] for case in found] == [
        ["s0", "s3", "s6"],
        ["s1", "s4", "s7"],
        ["s2", "s5", "s8"],
    ]


# ── Hangs ───────────────────────────────────────────────────────────────────────────────────────────────────────


def begun(scene: Scene, worker: str, jobs: int = 1, **options: object) -> list[str]:
    """This many jobs, claimed by the worker."""
    queue = str(options.get("queue", "default"))
    for _ in range(jobs):
        put(scene.store, **options)
    return sorted(job.id for job in claim(scene.store, worker, jobs, queue=queue))


def test_two_silent_jobs_that_hold_all_slots_are_the_cause_of_what_waits(scene: Scene) -> None:
    worker = scene.worker(slots=2)
    scene.runs_for(worker, 120.0, times=5, task="render")
    scene.scheduled()
    scene.passes(3300)
    ids = begun(scene, worker, 2, task="render")
    put(scene.store)
    scene.passes(300)
    scene.fires()
    scene.passes(780)

    assert shown(scene) == [
        ("slots-held:default", ""),
        ("queue-age:default", "slots-held:default"),
        ("late:nightly", "slots-held:default"),
    ]
    held = scene.problems()[0]
    assert held.says == (
        f"2 jobs of render have reported nothing for 18m, and hold all 2 slots of {worker}: nothing else can start "
        "there; 2 queued jobs can't start"
    )
    assert (list(held.jobs), held.remedy) == (ids, "cancel")
    assert held.fix == f"tenure jobs cancel {' '.join(ids)}"

    scene.store.cancel(ids, "hung")
    held, stuck = scene.problems()[0], scene.problems("stuck-jobs")
    assert (held.remedy, held.fix, stuck) == ("", "", [])
    assert held.says.endswith(". They were asked to stop")


def test_one_of_two_workers_that_is_held_is_told_of_by_its_name(scene: Scene) -> None:
    busy, _ = scene.worker(slots=1), scene.worker(slots=1)
    scene.runs_for(busy, 120.0, times=5)
    begun(scene, busy)
    put(scene.store, priority=-9)
    scene.passes(602)

    assert [each.key for each in scene.problems("slots-held")] == [f"slots-held:worker {busy}"]
    (age,) = scene.problems("queue-age")
    assert not age.cause, "another worker could have taken it"


def test_all_workers_of_a_queue_are_told_of_as_one(scene: Scene) -> None:
    scene.runs_for(scene.worker("a", slots=9), 120.0, times=5, queue="a")
    scene.dies(scene.living[0])
    for worker in (scene.worker("a", "b", slots=1), scene.worker("b", "a", slots=2)):
        begun(scene, worker, 2 if worker == scene.living[-1] and len(scene.living) > 1 else 1, queue="a")
    put(scene.store, queue="b")
    scene.passes(602)

    assert ("slots-held:a, b", "") in shown(scene)
    assert ("queue-age:b", "slots-held:a, b") in shown(scene)
    assert "hold all 3 slots of the 2 workers of a, b" in scene.problems("slots-held")[0].says


def test_a_job_that_hangs_and_a_run_that_is_too_long_are_one_cause(scene: Scene) -> None:
    worker = scene.worker(slots=1)
    scene.runs_for(worker, 1.0, times=5)
    scene.scheduled(too_long=600.0)
    scene.passes(3600)
    scene.fires()
    claim(scene.store, worker)
    scene.passes(602)

    assert shown(scene) == [
        ("slots-held:default", ""),
        ("stuck-jobs:work", "slots-held:default"),
        ("too-long:nightly", "slots-held:default"),
    ]


@pytest.mark.parametrize(
    "what",
    [
        *(
            pytest.param(each, marks=pytest.mark.thorough)
            for each in ("limit-paused:shop:{shop}", "limit-paused:shop:7", "queue-paused:default")
        ),
        "no-worker:queue default",
    ],
)
def test_what_keeps_the_places_of_a_key_from_its_jobs_is_told_as_the_cause(scene: Scene, what: str) -> None:
    kind, _, name = what.partition(":")
    scene.worker(*(("mail",) if kind == "no-worker" else ()))
    declare(scene.store, SHOP.limit, 1)
    limited(scene.store)
    if kind == "limit-paused":
        Admin(scene.store, PollNotifier()).limits.pause(name)
    elif kind == "queue-paused":
        scene.store.pause("default", paused=True)
    scene.store.admit()
    scene.passes(601)
    assert shown(scene) == [(what, "")]
    scene.passes(86_401)
    assert ("limit-behind:shop:7", what) in shown(scene)


def test_a_job_that_takes_as_long_as_its_task_does_hangs_not(scene: Scene) -> None:
    worker = scene.worker(slots=1)
    scene.runs_for(worker, 700.0, times=5)
    begun(scene, worker)
    scene.passes(1300)
    assert not scene.problems("slots-held") + scene.problems("stuck-jobs")

    scene.passes(200)
    assert scene.problems("slots-held")


def test_jobs_that_take_as_long_as_usual_hang_not_however_many_tasks_run(scene: Scene) -> None:
    names = [f"task-{n}" for n in range(7)]
    first, second = scene.worker(slots=5), scene.worker(slots=2)
    for name in names:
        scene.runs_for(first, 900.0, times=5, task=name)
    for n, name in enumerate(names):
        begun(scene, first if n < 5 else second, task=name)
        scene.passes(1)
    scene.passes(1300)
    assert not scene.problems("slots-held")

    scene.passes(600)
    assert [each.key for each in scene.problems("slots-held")] == ["slots-held:default"]


def test_a_task_whose_runs_are_not_read_is_not_suspected(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "_MOST_TASKS", 1)
    monkeypatch.setattr(hangs, "_MOST_SILENT", 1)
    worker = scene.worker(slots=3)
    for n in range(3):
        begun(scene, worker, task=f"task-{n}")
    scene.passes(7200)

    assert not scene.problems("slots-held")


def test_a_task_without_enough_runs_is_suspected_after_an_hour_of_silence(scene: Scene) -> None:
    worker = scene.worker(slots=1)
    begun(scene, worker)
    scene.passes(3599)
    assert not scene.problems()

    scene.passes(2)
    assert scene.problems("slots-held")


def test_a_job_that_reports_holds_no_slot_silently(scene: Scene) -> None:
    worker = scene.worker(slots=1)
    (job,) = begun(scene, worker)
    scene.passes(590)
    scene.store.progress([Progress(lease=Lease(job, 1, worker), message="page 7")])
    scene.passes(590)

    assert not scene.problems()


def test_few_runs_tell_nothing_of_a_task_and_a_free_slot_is_enough(scene: Scene) -> None:
    worker = scene.worker(slots=2)
    scene.runs_for(worker, 1.0, times=4)
    begun(scene, worker)
    scene.passes(3000)

    assert not scene.problems()


def test_the_fifth_run_tells(scene: Scene) -> None:
    worker = scene.worker(slots=2)
    scene.runs_for(worker, 1.0, 1.0, 1.0, 1.0, 29.0)
    (job,) = begun(scene, worker)
    scene.passes(299)
    assert not scene.problems()
    scene.passes(2)

    (stuck,) = scene.problems()
    assert (stuck.key, list(stuck.jobs)) == ("stuck-jobs:work", [job])
    assert stuck.says == (f"a job of work has been running for 5m1s; 95% of its last runs took less than 29s: {job}")


def test_a_worker_for_suspects_is_not_said_to_be_held(scene: Scene) -> None:
    worker = scene.worker(runner="solo", slots=1)
    put(scene.store, isolated=True)
    claim(scene.store, worker, solo=True)
    scene.worker()
    scene.passes(700)

    assert not scene.problems("slots-held")
