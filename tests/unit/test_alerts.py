"""What is alerted on: each problem is reported once when it comes and once when it is over, whichever process looks."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from threading import Event, Semaphore
from time import time
from types import SimpleNamespace
from typing import Any, Literal

import msgspec
import pytest

from conformance.factories import World, claim, draft, identity, lose_asks, put
from conformance.scene import HOOK, Scene
from conformance.test_limits import SHOP, declare, limited
from conformance.test_waiting import settle_waits
from tenure.config import load, sink_label
from tenure.core.lifecycle import Completed, Edge, Failed, Snoozed, State
from tenure.core.retry import Fail, Snooze
from tenure.errors import InvalidOption, StoreAway
from tenure.maintenance.roster import Lag
from tenure.maintenance.wait_check import WaitCheck
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.operations.alerts import KEPT_SECONDS, NOTES, PREFIX, Alarm, deliver_now, delivery, open_incidents
from tenure.operations.checkup import examine
from tenure.operations.problems import MOST_OPEN, of_duties
from tenure.operations.sinks import OLDER, QUEUE, TASK, Incident, Message, Undelivered, open_sinks, signature
from tenure.ports import LINKS_PROTOCOL, Filter, Links, Page, Store, WorkerView
from tenure.ports.schedules import Change, Schedule
from tenure.stores.memory import MemoryStore

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def scene(world: World, tmp_path: Path) -> Scene:
    return Scene(world, tmp_path)


# ── Each kind ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Case:
    key: str
    says: str
    breaks: Callable[[Scene], object]
    mends: Callable[[Scene], object]


def guard_is_not_called(scene: Scene) -> None:
    scene.timetable.put(Schedule(name="backup", rule="every 1h", kind="guard"))
    scene.call()
    scene.passes(3600 + 301)


def nobody_starts_its_job(scene: Scene) -> None:
    scene.worker()
    scene.scheduled()
    scene.passes(3600)
    scene.fires()
    scene.passes(301)


def its_job_starts(scene: Scene) -> None:
    (job,) = claim(scene.store, scene.living[0])
    scene.ends(job, scene.living[0])


def it_runs_too_long(scene: Scene) -> None:
    worker = scene.worker()
    scene.scheduled(too_long=600.0)
    scene.passes(3600)
    scene.fires()
    claim(scene.store, worker)
    scene.passes(601)


def it_ends(scene: Scene) -> None:
    worker = scene.living[0]
    (owned,) = scene.store.owned(worker)
    scene.ends(owned.claimed, worker)


def it_fails_twice(scene: Scene) -> None:
    worker = scene.worker()
    scene.scheduled()
    scene.runs(worker, Failed("no disk"))
    assert not scene.problems("failures")
    scene.runs(worker, Failed("no disk"))


def a_job_dies(scene: Scene) -> None:
    worker = scene.worker()
    put(scene.store, max_failures=1)
    (job,) = claim(scene.store, worker)
    scene.ends(job, worker, Failed("no disk"))


def it_is_deleted(scene: Scene) -> None:
    dead = scene.store.search(Filter(task="work")).jobs
    scene.store.delete([job.id for job in dead])


def jobs_wait(scene: Scene) -> None:
    scene.worker()
    put(scene.store)
    scene.passes(601)


def its_queue_is_paused(scene: Scene) -> None:
    scene.store.pause("default", paused=True)
    jobs_wait(scene)


def its_jobs_are_cancelled(scene: Scene) -> None:
    scene.store.cancel([job.id for job in scene.store.search(Filter(queue="default")).jobs], "enough")


def silent_jobs_hold_every_slot(scene: Scene) -> None:
    worker = scene.worker(slots=2)
    scene.runs_for(worker, 120.0, times=5)
    for _ in range(2):
        put(scene.store)
    claim(scene.store, worker, 2)
    scene.passes(601)


def a_job_takes_many_times_as_long(scene: Scene) -> None:
    worker = scene.worker()
    scene.runs_for(worker, 20.0, times=5)
    put(scene.store)
    claim(scene.store, worker)
    scene.passes(301)


def they_end(scene: Scene) -> None:
    (worker,) = scene.living
    for owned in scene.store.owned(worker):
        scene.ends(owned.claimed, worker)


def queue_without_worker(scene: Scene) -> None:
    put(scene.store, queue="mail")
    scene.passes(61)


def its_arguments_fit_no_code(scene: Scene) -> None:
    worker = scene.worker()
    put(scene.store)
    (job,) = claim(scene.store, worker)
    scene.ends(job, worker, Snoozed(300.0, "arguments fit no worker's code since 2026-11-22 10:00:00 UTC: no `to`"))
    snoozed = put(scene.store, task="patient")
    (job,) = claim(scene.store, worker)
    scene.ends(job, worker, Snoozed(300.0, "the shop is closed"))
    assert job.id == snoozed
    scene.passes(61)


def its_value_is_not_fetched(scene: Scene) -> None:
    _snoozed(scene, "this worker can't fetch the payload of job x: the bucket is away")


def no_worker_has_its_key(scene: Scene) -> None:
    _snoozed(scene, "this worker has no key: its payload is encrypted")


def _snoozed(scene: Scene, reason: str) -> None:
    worker = scene.worker()
    put(scene.store)
    (job,) = claim(scene.store, worker)
    scene.ends(job, worker, Snoozed(300.0, reason, ours=True))
    scene.passes(61)


def a_worker_takes_them(scene: Scene) -> None:
    scene.passes(300)
    scene.store.promote()
    for job in claim(scene.store, scene.living[0], 2):
        scene.ends(job, scene.living[0])


def task_nobody_knows(scene: Scene) -> None:
    scene.worker()
    put(scene.store, task="gone")
    scene.passes(61)


def admitted(store: Store) -> None:
    while store.admit().more:
        pass


def child_of(store: Store, parent: str, **options: Any) -> str:
    child = put(store, links=Links(after=(Edge(parent),)), **options)
    admitted(store)
    return child


def a_dead_letter_holds_a_flow(scene: Scene) -> None:
    worker = scene.worker()
    parent = put(scene.store, max_failures=1)
    child_of(scene.store, parent)
    child_of(scene.store, parent)
    (job,) = claim(scene.store, worker)
    scene.ends(job, worker, Failed("no disk"))
    admitted(scene.store)
    (death,) = scene.problems("dead-letters")
    assert [each.cause for each in scene.problems("flow-held")] == [death.key]
    scene.passes(3601)


def it_is_skipped(scene: Scene) -> None:
    (problem,) = scene.problems("flow-held")
    scene.store.skip(problem.jobs)
    admitted(scene.store)


def an_older_worker_lives_beside_waiting_jobs(scene: Scene) -> None:
    scene.worker(protocol=1)
    child_of(scene.store, put(scene.store, delay=3600.0))
    assert not scene.problems("admission-held")
    scene.passes(61)


def an_ask_is_lost(scene: Scene) -> None:
    worker = scene.worker()
    child_of(scene.store, put(scene.store))
    (job,) = claim(scene.store, worker)
    scene.ends(job, worker)
    lose_asks(scene.store)
    WaitCheck(scene.store).turn(100)
    admitted(scene.store)


def a_job_waits_for_a_day(scene: Scene) -> None:
    child_of(scene.store, put(scene.store, task="far", delay=1e6))
    scene.world.advance(86_399)
    assert not scene.problems("waits-long")
    scene.world.advance(2)


def waiting_jobs_are_cancelled(scene: Scene) -> None:
    waiting = scene.store.search(Filter(states=frozenset({State.WAITING}))).jobs
    scene.store.cancel([job.id for job in waiting], "enough")


def a_limit_is_paused(scene: Scene) -> None:
    scene.worker()
    declare(scene.store, SHOP.limit, 1)
    limited(scene.store, number=2)
    Admin(scene.store, PollNotifier(), who="ada").limits.pause(SHOP.limit, why="too many 429")
    settle_waits(scene.store)
    scene.passes(600)
    assert not scene.problems("limit-paused")
    scene.passes(1)


def it_is_resumed(scene: Scene) -> None:
    (problem,) = scene.problems("limit-paused")
    assert (problem.remedy, problem.fix) == ("resume-limit", "tenure limits resume 'shop:{shop}'")
    Admin(scene.store, PollNotifier()).limits.resume(problem.subject)


def a_key_is_behind_for_a_day(scene: Scene) -> None:
    worker = scene.worker()
    declare(scene.store, SHOP.limit, 1)
    limited(scene.store, number=3)
    settle_waits(scene.store)
    claim(scene.store, worker)
    scene.world.advance(86_399)
    scene.store.renew([worker])
    assert not scene.problems("limit-behind")
    scene.passes(2)
    assert not scene.problems("waits-long")


def an_older_worker_lives_beside_limited_jobs(scene: Scene) -> None:
    scene.worker(protocol=LINKS_PROTOCOL)
    declare(scene.store, SHOP.limit, 1)
    limited(scene.store)
    assert not scene.problems("admission-held")
    scene.passes(61)


def nobody_fires(scene: Scene) -> None:
    scene.scheduled()
    scene.passes(3600 + 61)


def its_zone_is_no_more(scene: Scene) -> None:
    scene.scheduled()
    (standing,) = scene.store.schedules(["nightly"])
    gone = standing.schedule.but(rule="0 6 * * *", tz="Mars/Olympus")
    scene.store.change([Change(schedule=gone)])
    scene.passes(3600)
    scene.fires()


CASES = {
    "overdue": Case("overdue:backup", "no call came", guard_is_not_called, Scene.call),
    "late": Case("late:nightly", "no worker has started its job", nobody_starts_its_job, its_job_starts),
    "too-long": Case("too-long:nightly", "has been running for 10m1s (too_long=10m)", it_runs_too_long, it_ends),
    "failures": Case(
        "failures:nightly",
        "has failed 2 times in a row: ",
        it_fails_twice,
        lambda scene: scene.runs(scene.living[0], Completed()),
    ),
    "dead-letters": Case("dead-letters:work", "work left a dead letter within 1h", a_job_dies, it_is_deleted),
    "dead-letters, an hour later": Case(
        "dead-letters:work", ": no disk; tenure dead list", a_job_dies, lambda scene: scene.passes(3600)
    ),
    "queue-age": Case(
        "queue-age:default",
        "queue default: 1 queued, the oldest due for 10m1s",
        jobs_wait,
        its_jobs_are_cancelled,
    ),
    "queue-paused": Case(
        "queue-paused:default",
        "paused for 10m1s: a job waits in it, due for 10m1s; tenure queues resume default",
        its_queue_is_paused,
        its_jobs_are_cancelled,
    ),
    "slots-held": Case(
        "slots-held:default",
        "2 jobs of work have reported nothing for 10m1s, and hold all 2 slots of host-",
        silent_jobs_hold_every_slot,
        they_end,
    ),
    "stuck-jobs": Case(
        "stuck-jobs:work",
        "a job of work has been running for 5m1s; 95% of its last runs took less than 20s",
        a_job_takes_many_times_as_long,
        they_end,
    ),
    "no-worker, queue": Case(
        "no-worker:queue mail",
        "no live worker serves queue mail",
        queue_without_worker,
        lambda scene: scene.worker("mail"),
    ),
    "no-worker, task": Case(
        "no-worker:task gone",
        "no live worker knows the task gone, and jobs of it are due, ",
        task_nobody_knows,
        lambda scene: scene.worker(tasks=("gone",)),
    ),
    "arguments-misfit": Case(
        "arguments-misfit:work",
        "10:00:00 UTC: no `to`; deploy the code",
        its_arguments_fit_no_code,
        a_worker_takes_them,
    ),
    "key-missing": Case(
        "key-missing:work",
        "among them: this worker has no key: its payload is encrypted; give the key to all workers",
        no_worker_has_its_key,
        a_worker_takes_them,
    ),
    "value-missing": Case(
        "value-missing:work",
        "among them: this worker can't fetch the payload of job x: the bucket is away; give the bucket to all workers",
        its_value_is_not_fetched,
        a_worker_takes_them,
    ),
    "flow-held": Case(
        "flow-held:work",
        "2 jobs wait for a dead letter of work, the last is ",
        a_dead_letter_holds_a_flow,
        it_is_skipped,
    ),
    "admission-held": Case(
        "admission-held:all",
        "nothing that waits goes on, a waiting job in all, since a worker of an older release lives: host-",
        an_older_worker_lives_beside_waiting_jobs,
        lambda scene: scene.dies(scene.living[0]),
    ),
    "waits-long": Case(
        "waits-long:work",
        "a job of work has waited for more than 1d, ",
        a_job_waits_for_a_day,
        waiting_jobs_are_cancelled,
    ),
    "wait-lost": Case(
        "wait-lost:work",
        "a job of work has waited for what had happened, ",
        an_ask_is_lost,
        lambda scene: scene.passes(86_401),
    ),
    "admission-held, limits": Case(
        "admission-held:limits",
        "no job with a limit gets a place, since a worker of an older release lives: host-",
        an_older_worker_lives_beside_limited_jobs,
        lambda scene: scene.dies(scene.living[0]),
    ),
    "limit-paused": Case(
        "limit-paused:shop:{shop}",
        "is paused by ada for 10m1s, until somebody resumes it (too many 429): 2 jobs wait, for up to 10m1s",
        a_limit_is_paused,
        it_is_resumed,
    ),
    "limit-behind": Case(
        "limit-behind:shop:7",
        "2 jobs have waited for a place of shop:7 for more than 1d, ",
        a_key_is_behind_for_a_day,
        waiting_jobs_are_cancelled,
    ),
    "scheduler-silent": Case("scheduler-silent:all", "1 due for up to 1m1s (nightly)", nobody_fires, Scene.fires),
    "failures, its rule": Case(
        "failures:nightly",
        "nightly is paused: can't be fired",
        its_zone_is_no_more,
        lambda scene: scene.timetable.remove("nightly"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_kind_is_told_once_and_its_end_once(scene: Scene, name: str) -> None:
    case, kind, watch = CASES[name], name.partition(",")[0], scene.watch()

    assert not scene.problems()
    case.breaks(scene)
    (problem,) = scene.problems(kind)
    assert case.says in problem.told
    for _ in range(3):
        watch.look()
        scene.passes(1)
    assert scene.told(kind) == [("opened", case.key)]

    case.mends(scene)
    assert not scene.problems(kind)
    for _ in range(5):
        watch.look()
        scene.passes(31)
    assert scene.told(kind) == [("opened", case.key), ("closed", case.key)]
    assert not [note for note in scene.store.notes(NOTES) if f":{kind}" in note]


class OldIncident(msgspec.Struct):
    """What the release before this one decodes."""

    id: str
    key: str
    kind: Literal[
        "overdue",
        "late",
        "too-long",
        "failures",
        "dead-letters",
        "queue-age",
        "no-worker",
        "arguments-misfit",
        "scheduler-silent",
        "duty-late",
    ]
    gone_at: datetime | None = None


@pytest.mark.parametrize("name", [name for name in CASES if name.partition(",")[0] in OLDER])
def test_the_release_before_reads_no_note_and_delivers_each_message_of_a_newer_kind(scene: Scene, name: str) -> None:
    CASES[name].breaks(scene)
    scene.watch().look()

    for text in scene.store.notes(PREFIX).values():
        msgspec.json.decode(text, type=OldIncident)
    assert [each.key for each in open_incidents(scene.store) if each.kind == name.partition(",")[0]] == [
        CASES[name].key
    ]
    sent = scene.store.search(Filter(queue=QUEUE), limit=100).jobs
    assert sent
    for job in sent:
        msgspec.convert(msgspec.json.decode(job.payload)["message"]["data"], OldIncident)


def test_a_problem_names_only_the_jobs_that_have_it(scene: Scene) -> None:
    worker = scene.worker()
    unfit, patient = put(scene.store), put(scene.store)
    reasons = {unfit: "arguments fit no worker's code since 10:00:00 UTC: no `to`", patient: "the shop is closed"}
    for job in claim(scene.store, worker, 2):
        scene.ends(job, worker, Snoozed(300.0, reasons[job.id]))
    scene.passes(61)

    assert [problem.jobs for problem in scene.problems("arguments-misfit")] == [(unfit,)]


def test_a_sink_gets_the_kind_that_this_release_found(scene: Scene) -> None:
    its_queue_is_paused(scene)
    scene.watch().look()
    got = list[Message]()

    class Noted:
        label = "noted"

        def send(self, message_id: str, message: Message) -> None:
            got.append(message)

    for job in scene.store.search(Filter(queue=QUEUE), limit=100).jobs:
        given = msgspec.json.decode(job.payload)
        told = msgspec.convert(given["message"], Message)
        delivery(scene.settings, {given["sink"]: Noted()}, scene.store).call(sink=given["sink"], to="x", message=told)

    assert [each.data.kind for each in got] == ["queue-paused"]


def test_dead_letters_of_two_causes_say_so(scene: Scene) -> None:
    worker = scene.worker()
    for error in ("no user 17", "no user 4711", "no disk"):
        put(scene.store, max_failures=1)
        (job,) = claim(scene.store, worker)
        scene.ends(job, worker, Failed(error))
        scene.passes(1)

    (problem,) = scene.problems("dead-letters")
    assert problem.says.startswith("work left 3 dead letters within 1h, the last is ")
    assert problem.says.endswith(": no disk, and 1 other error")


def test_a_schedule_that_pauses_after_its_first_failure_is_told_of(scene: Scene) -> None:
    worker = scene.worker()
    scene.scheduled(pause_after=1)
    scene.runs(worker, Failed("no disk"))

    (problem,) = scene.problems("failures")
    said, _, paused = problem.says.rpartition("; ")
    assert (said.startswith("nightly has failed once: "), paused) == (True, "it is paused: 1 failures in a row")
    assert ("no disk" in said) is not scene.store.capabilities.sealed  # an alert goes to other services


# ── What is no problem ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_that_is_replaced_within_two_leases_is_not_missed(scene: Scene) -> None:
    first = scene.worker("mail")
    put(scene.store, queue="mail")
    scene.passes(100)
    scene.dies(first)
    scene.passes(59)

    assert not scene.problems("no-worker")
    scene.passes(2)
    assert scene.problems("no-worker")


def test_a_guard_serves_no_queue(scene: Scene) -> None:
    row = identity(runner="guard", queues=(), tasks=(), lease=3000.0)
    scene.store.register(row)
    queue_without_worker(scene)

    assert [each.key for each in scene.problems("no-worker")] == ["no-worker:queue mail"]


def test_what_waits_for_its_time_or_was_paused_by_someone_is_no_problem(scene: Scene) -> None:
    scene.scheduled()
    scene.timetable.pause("nightly")
    put(scene.store, task="gone", delay=7200.0)
    scene.worker()
    scene.passes(3700)

    assert not scene.problems()


def test_a_scheduled_job_that_waits_for_a_place_is_late_by_its_limit(scene: Scene) -> None:
    scene.worker()
    scene.scheduled(job=draft(id="", limits=(SHOP,)))
    scene.passes(3600)
    scene.fires()
    scene.passes(301)

    (problem,) = scene.problems("late")
    (job,) = problem.jobs
    assert problem.says.endswith(f"and its job waits for a place of {SHOP.key}")
    assert problem.fix == f"tenure jobs explain {job}"


def test_what_is_not_fired_is_said_once_and_not_of_every_schedule(scene: Scene) -> None:
    for number in range(30):
        scene.scheduled(f"s{number}")
    scene.passes(3600 + 400)

    (problem,) = scene.problems()
    assert problem.kind == "scheduler-silent"
    assert "30 due for up to 6m40s (s0, s1, s10, s11, s12 and 25 more)" in problem.says


# ── Incidents ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_of_two_who_look_one_tells(scene: Scene) -> None:
    here, there = scene.watch(), scene.watch(scene.world.store())
    queue_without_worker(scene)

    for watch in (here, there, here, there):
        watch.look()
    scene.worker("mail")
    for watch in (here, there, here, there):
        scene.passes(25)
        watch.look()

    assert scene.told() == [("opened", "no-worker:queue mail"), ("closed", "no-worker:queue mail")]


def sinks_told(scene: Scene) -> list[tuple[str, str]]:
    """Which sink got what, oldest first."""
    jobs = sorted(scene.store.search(Filter(queue=QUEUE), limit=100).jobs, key=lambda job: job.id)
    given = [json.loads(job.payload) for job in jobs]
    return [(each["to"], each["message"]["type"].partition(".")[2]) for each in given]


OTHER = "https://other.example/T1"


def test_each_sink_is_told_once_whichever_processes_have_it(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tenure.alerts")
    supervisors, cron, third = scene.watch(alerts="log"), scene.watch(), scene.watch(alerts=OTHER)
    hook, other = (sink_label(url) for url in (HOOK, OTHER))
    queue_without_worker(scene)

    for _ in range(2):
        supervisors.look()
        cron.look()
    assert sinks_told(scene) == [(hook, "opened")]
    worker = scene.worker("mail")
    supervisors.look()
    third.look()  # it is not told of a problem that is gone
    scene.dies(worker)
    scene.passes(61)
    for watch in (cron, third, supervisors, cron):
        watch.look()
    assert sorted(sinks_told(scene)) == [(hook, "opened"), (other, "opened")]

    scene.worker("mail")
    for _ in range(5):
        supervisors.look()  # that it is over is told to the sinks of other processes, too
        scene.passes(31)
    assert sorted(sinks_told(scene)) == [(hook, "closed"), (hook, "opened"), (other, "closed"), (other, "opened")]
    assert [each.getMessage().split(":")[0] for each in caplog.records if each.name == "tenure.alerts"] == [
        "no-worker",
        "no-worker",
    ]
    assert not scene.store.notes(NOTES)


def test_what_a_release_told_that_kept_no_names_is_not_told_again(scene: Scene) -> None:
    queue_without_worker(scene)
    scene.watch().look()
    ((note, text),) = scene.store.notes(NOTES).items()
    kept = json.loads(text)
    assert kept.pop("told")
    assert scene.store.swap(note, text, json.dumps(kept)).landed

    scene.watch().look()
    scene.watch(alerts=OTHER).look()
    assert scene.told() == [("opened", "no-worker:queue mail")]
    scene.worker("mail")
    for _ in range(5):
        scene.watch().look()
        scene.passes(31)
    assert sinks_told(scene) == [(sink_label(HOOK), "opened"), (sink_label(HOOK), "closed")]


def test_a_sink_gets_the_end_after_the_beginning(scene: Scene) -> None:
    queue_without_worker(scene)
    scene.watch(alerts=f"{HOOK},{OTHER}").look()
    scene.worker("mail")
    for _ in range(5):
        scene.watch().look()
        scene.passes(31)
    got = list[tuple[str, str]]()

    class Noted:
        def __init__(self, label: str) -> None:
            self.label = label

        def send(self, message_id: str, message: Message) -> None:
            got.append((self.label, message.type))

    name, other = open_sinks(load({"alerts": f"{HOOK},{OTHER}"}, environ={}, folder=scene.folder))
    deliver = delivery(scene.settings, {name: Noted("hook"), other: Noted("other")}, scene.store)
    sender = scene.worker(QUEUE, tasks=(TASK,))
    messages = {}
    for job in claim(scene.store, sender, 9, queue=QUEUE):
        given = json.loads(job.payload)
        told = msgspec.convert(given["message"], Message)
        messages[given["sink"], told.type] = (job, {**given, "message": told})

    with pytest.raises(Snooze, match="has not got the beginning"):
        deliver.call(**messages[name, "incident.closed"][1])
    first, arguments = messages[other, "incident.opened"]
    deliver.call(**arguments)
    scene.ends(first, sender)
    deliver.call(**messages[other, "incident.closed"][1])
    assert got == [("other", "incident.opened"), ("other", "incident.closed")]

    given_up, _ = messages[name, "incident.opened"]
    scene.ends(given_up, sender, Failed("refused", final=True))
    deliver.call(**messages[name, "incident.closed"][1])
    assert got[2:] == [("hook", "incident.closed")]


def test_of_a_sink_that_was_taken_away_only_a_beginning_is_a_dead_letter(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = time() + KEPT_SECONDS + 1.0
    monkeypatch.setattr("tenure.operations.alerts.time", SimpleNamespace(time=lambda: ahead))
    deliver = delivery(scene.settings, {}, scene.store)

    deliver.call(sink="0badcafe", to="slack://…", message=replace(message(), type="incident.closed"))
    with pytest.raises(Fail, match="no process has had slack://… configured"):
        deliver.call(sink="0badcafe", to="slack://…", message=message())


def test_a_problem_that_comes_and_goes_is_told_once(scene: Scene) -> None:
    watch = scene.watch()
    queue_without_worker(scene)
    watch.look()

    for _ in range(10):
        worker = scene.worker("mail")
        for _ in range(4):
            scene.passes(10)
            watch.look()
        scene.dies(worker)
        scene.passes(61)
        watch.look()

    assert scene.told("no-worker") == [("opened", "no-worker:queue mail")]


def test_a_flood_of_one_kind_is_told_of_in_a_bounded_number_of_messages(scene: Scene) -> None:
    watch, worker = scene.watch(), ""
    for number in range(MOST_OPEN + 5):
        put(scene.store, queue=f"q{number:02}")
    scene.passes(61)
    for _ in range(3):
        watch.look()
    opened = scene.told()

    assert len(opened) == MOST_OPEN + 1
    assert opened[-1] == ("opened", "no-worker:*")
    worker = scene.worker(*(f"q{number:02}" for number in range(MOST_OPEN + 5)))
    for _ in range(4):
        scene.passes(31)
        watch.look()
    assert sorted(key for _, key in scene.told()) == sorted(key for _, key in opened * 2), worker
    assert not scene.store.notes(NOTES)


def test_the_log_is_told_by_whoever_opened_it(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tenure.alerts")
    scene = Scene(world, tmp_path, alerts="log")
    queue_without_worker(scene)

    scene.watch().look()
    scene.watch().look()

    (record,) = [each for each in caplog.records if each.name == "tenure.alerts"]
    assert record.getMessage().startswith("no-worker: no live worker serves queue mail")
    assert not scene.told()


def test_it_looks_one_interval_after_its_start_and_after_the_store_was_away(tmp_path: Path) -> None:
    asked, looked = list[str](), Event()

    class Flaky(MemoryStore):
        def now(self) -> datetime:
            asked.append("now")
            if len(asked) < 3:
                raise StoreAway("away")
            return super().now()

        def workers(self, *, dead: bool = False) -> list[WorkerView]:
            asked.append("look")
            looked.set()
            return super().workers(dead=dead)

    settings = load({"alert_every": "100ms"}, environ={}, folder=tmp_path)
    alarm = Alarm(Flaky(), PollNotifier(), settings, lambda _: MemoryStore(), lambda _, __: PollNotifier(), list)
    alarm.start()
    assert looked.wait(60)
    alarm.stop()

    assert asked[:4] == ["now", "now", "now", "look"]


def test_a_check_that_the_store_refuses_although_it_answers_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    looks = Semaphore(0)

    class Refusing(MemoryStore):
        def workers(self, *, dead: bool = False) -> list[WorkerView]:
            looks.release()
            raise StoreAway("permission denied for table workers")

    settings = load({"alert_every": "100ms"}, environ={}, folder=tmp_path)
    alarm = Alarm(Refusing(), PollNotifier(), settings, lambda _: MemoryStore(), lambda _, __: PollNotifier(), list)
    alarm.start()
    for _ in range(4):
        assert looks.acquire(timeout=60)
    alarm.stop()

    told = [each.getMessage() for each in caplog.records if "permission denied" in each.getMessage()]
    assert told == ["problems can't be looked for, so none is alerted: permission denied for table workers"]


def test_every_look_of_a_machine_is_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Redis an unbounded search may walk all jobs, and every supervisor looks twice a minute."""
    unbounded: list[Filter] = []
    search = scene.store.search

    def noted(where: Filter, *, limit: int = 50, cursor: str | None = None, within: int | None = None) -> Page:
        if within is None:
            unbounded.append(where)
        return search(where, limit=limit, cursor=cursor, within=within)

    silent_jobs_hold_every_slot(scene)
    worker = scene.worker("other")
    put(scene.store, queue="other", max_failures=1)
    scene.ends(claim(scene.store, worker, queue="other")[0], worker, Failed("no disk"))
    task_nobody_knows(scene)
    monkeypatch.setattr(scene.store, "search", noted)

    found = [each.key for each in scene.problems()]
    deliver_now(scene.store, scene.settings, [], lambda _: scene.store, lambda _, __: PollNotifier())
    findings = examine(scene.store, scene.settings, lambda _, __: PollNotifier())

    assert [key.partition(" ")[0] for key in found] == ["no-worker:task", "slots-held:worker", "dead-letters:work"]
    assert "dead letters" in [each.what for each in findings if not each.ok]
    assert unbounded == []


def test_a_duty_that_is_late_is_a_problem_with_its_last_error() -> None:
    lags = [Lag("fire", 29.0, ""), Lag("prune", 61.0, "out of memory"), Lag("rescue", 61.0, "")]

    found = {each.key: each.says for each in of_duties(lags)}

    assert list(found) == ["duty-late:prune", "duty-late:rescue"]
    assert "has been due for 1m1s: out of memory" in found["duty-late:prune"]


# ── Sinks ───────────────────────────────────────────────────────────────────────────────────────────────────────


def message() -> Message:
    now = MemoryStore().now()
    data = Incident(id="1", key="late:x", kind="late", subject="x", says="x is late", store="memory://", opened_at=now)
    return Message(type="incident.opened", timestamp=now, title="tenure: late: x", text="x is late", data=data)


def test_a_secret_of_a_sink_is_shown_nowhere(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    away = "http://user:s3cret@127.0.0.1:9/T0?token=s3cret"
    scene = Scene(world, tmp_path, alerts=f"log,{away}", alert_secret=SECRET)
    queue_without_worker(scene)
    scene.watch().look()
    sinks = open_sinks(scene.settings)
    (name,) = sinks

    with pytest.raises(Fail) as failed:
        delivery(scene.settings, sinks, scene.store).call(sink=name, to="x", message=message())

    assert str(failed.value).startswith("http://127.0.0.1:9/… is unreachable: ")
    (job,) = scene.store.search(Filter(queue=QUEUE)).jobs
    seen = [repr(scene.settings), str(scene.settings.shown()), repr(sinks), repr(job), str(failed.value), caplog.text]
    seen += [*scene.store.notes(""), *scene.store.notes("").values()]
    assert not [text for text in seen if "s3cret" in text or "MfKQ9" in text]
    assert json.loads(job.payload)["to"] == "http://127.0.0.1:9/…"


def test_a_message_for_a_sink_that_others_have_is_left_to_them(tmp_path: Path) -> None:
    settings = load(environ={}, folder=tmp_path)

    with pytest.raises(Snooze):
        delivery(settings, {}, MemoryStore()).call(sink="0badcafe", to="slack://…", message=message())


def test_the_signature_is_that_of_the_standard() -> None:
    made = signature(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')

    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("value", "sinks"),
    [
        ("log", ("log",)),
        ("", ("log",)),
        (
            "log, https://a/b , mailto://u:p@h?to=a@b,c@d,log",
            ("log", "https://a/b", "mailto://u:p@h?to=a@b,c@d"),
        ),
        ("slack://T/B/c,slack://T/B/c", ("slack://T/B/c",)),
    ],
)
def test_alerts_are_separated_by_commas_which_a_url_may_have_too(
    tmp_path: Path, value: str, sinks: tuple[str, ...]
) -> None:
    assert load(environ={"TENURE_ALERTS": value}, folder=tmp_path).alerts == sinks


@pytest.mark.parametrize("value", ["hooks.example/T0?token=s3cret", "log,x:s3cret", "https://", "mailto://a log b"])
def test_what_is_no_sink_is_refused_without_being_shown(tmp_path: Path, value: str) -> None:
    with pytest.raises(InvalidOption, match="expected log, https://HOST/PATH") as refused:
        load(environ={"TENURE_ALERTS": value}, folder=tmp_path)

    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("secret", ["hunter2", "whsec_c2hvcnQ=", "whsec_not base64 at all, is it?"])
def test_a_secret_that_signs_nothing_is_refused_without_being_shown(tmp_path: Path, secret: str) -> None:
    with pytest.raises(InvalidOption, match="openssl rand") as refused:
        load(environ={"TENURE_ALERT_SECRET": secret}, folder=tmp_path)

    assert secret not in str(refused.value)


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")  # what apprise imports, before Python 3.13
@pytest.mark.parametrize(
    "url", ["https://h:x/s3cret", "https://[::1/s3cret", "https:///s3cret", "nosuch://s3cret", "slack://s3cret"]
)
def test_a_url_that_leads_nowhere_is_refused_at_the_start_without_being_shown(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidOption) as refused:
        open_sinks(load(environ={"TENURE_ALERTS": url}, folder=tmp_path))

    assert sink_label(url).partition("://")[0] in str(refused.value)
    assert "s3cret" not in str(refused.value) + caplog.text


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")
def test_a_service_that_does_not_take_a_message_is_a_failure_to_be_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    away = "mailto://me:s3cret@127.0.0.1:9/?from=me@example.com&to=ops@example.com"
    (sink,) = open_sinks(load({"alerts": away}, environ={}, folder=tmp_path)).values()

    with pytest.raises(Undelivered, match=r"^mailto://… did not accept it; see the log of apprise$"):
        sink.send("1", message())
    assert [record for record in caplog.records if record.name == "apprise"]
    assert "s3cret" not in caplog.text


def test_a_service_of_apprise_says_which_extra_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)

    with pytest.raises(InvalidOption, match=r'pip install "\.\[alerts\]" in the checkout'):
        open_sinks(load(environ={"TENURE_ALERTS": "slack://a/b/c"}, folder=tmp_path))


def test_an_incident_tells_since_when_it_is_over(scene: Scene) -> None:
    watch = scene.watch()
    queue_without_worker(scene)
    watch.look()
    scene.passes(3600)
    scene.worker("mail")
    for _ in range(4):
        watch.look()
        scene.passes(31)

    newest = scene.store.search(Filter(queue=QUEUE)).jobs[0]
    told = json.loads(newest.payload)["message"]
    assert told["title"] == "tenure: over after 1h: no-worker: queue mail"
    assert told["data"]["gone_at"] > told["data"]["opened_at"]


def test_an_incident_was_never_shorter_than_nothing_whatever_the_clock_does(scene: Scene) -> None:
    watch = scene.watch()
    queue_without_worker(scene)
    watch.look()
    scene.world.step_wall_clock(-7200)
    scene.worker("mail")
    for _ in range(4):
        watch.look()
        scene.passes(31)

    messages = [json.loads(job.payload)["message"] for job in scene.store.search(Filter(queue=QUEUE)).jobs]
    (over,) = [each["title"] for each in messages if each["type"] == "incident.closed"]
    assert over.startswith("tenure: over after 0")
