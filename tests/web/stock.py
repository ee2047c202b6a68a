"""A store with something of everything that pages show, and a text of the caller's choice in every field."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from tenure.config import Settings
from tenure.core.clock import system_clock
from tenure.core.ids import new_id
from tenure.core.lifecycle import Cancelled, Completed, Crashed, Edge, Failed, Lease, Outcome, Suspended
from tenure.core.limits import Bounds, Key
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.operations.audit import Trail
from tenure.ports import Draft, LimitRow, Links, Progress, Store, WorkerIdentity
from tenure.ports.schedules import Change, Status, Tick
from tenure.schedules.declarations import schedule
from tenure.schedules.timetable import Timetable
from tenure.worker.job_log import LogLine, encode

Say = Callable[[str], str]  #: the text for a field, by the field's name


@dataclass(frozen=True)
class Stock:
    """Ids of its jobs by what they show, names of its schedules, its living worker, the id of its flow, and a key."""

    jobs: dict[str, str]
    schedules: list[str]
    worker: str
    flow: str
    key: Key


def stock(store: Store, settings: Settings, say: Say) -> Stock:
    """Jobs in every state, played by workers of our own; queues, schedules with a history, and an audit trail."""
    alive, gone = (_worker(say, each) for each in ("worker", "lost worker"))
    store.register(alive)
    store.register(gone)
    store.renew([alive.id], notes={alive.id: say("note")}, memory={alive.id: 61 << 20})
    jobs = {
        name: play(store, _draft(say, name), alive.id if name != "crashed" else gone.id)
        for name, play in {
            "completed": _completed(say),
            "processing": _processing(say),
            "dead": _dead(say),
            "crashed": _crashed(say),
            "cancelled": _cancelled(say),
            "edited": _dead(say),
            "signalled": _signalled(say),
            "queued": _waiting,
        }.items()
    }
    jobs["scheduled"] = _waiting(store, _draft(say, "scheduled").but(delay=3600.0), "")
    flow = new_id()
    for name, parent in (("waiting", "dead"), ("last", "waiting")):
        links = Links(after=(Edge(jobs[parent], "completed"),), flow=flow, name=say("flow"))
        jobs[name] = _waiting(store, _draft(say, name).but(links=links), "")
    while store.admit().more:
        pass
    key = Key(say("key"), say("limit"))
    assert store.change_limits([LimitRow(name=key.limit, declared=Bounds(1), source=say("app"))]) == [True]
    for name in ("limited", "parked"):
        jobs[name] = _waiting(store, _draft(say, name).but(limits=(key,)), "")
    while store.admit().more:
        pass
    store.settle(gone.id, {}, Crashed(say("reason"), process_died=True, evidence={"signal": say("signal")}))
    admin = Admin(store, PollNotifier(), settings, who=say("who"))
    assert admin.jobs.replay_edited(jobs["edited"], {"name": say("new argument")}).landed
    admin.limits.pause(key.key, why=say("limit pause"))
    store.pause(say("queue"), paused=True)
    with Trail(store).recorded(
        say("who"), say("action"), say("subject"), **{say("detail name"): say("detail")}
    ) as said:
        said.append(say("outcome"))
    schedules = [_schedule(store, say, say(kind)) for kind in ("schedule", "paused schedule")]
    admin.schedules.pause(schedules[1], say("pause reason"))
    return Stock(jobs, schedules, alive.id, flow, key)


def _worker(say: Say, name: str) -> WorkerIdentity:
    return WorkerIdentity(
        id=say(name),
        host=say("host"),
        pid=2**22 + 1,  # of no process
        started="1",
        boot_id=system_clock().boot_id,  # a lease on SQLite counts in this boot only
        pid_namespace="another",
        runner="worker",
        queues=(say("queue"),),
        tasks=(say("task"),),
        slots=4,
        lease=86_400.0,
    )


def _draft(say: Say, name: str) -> Draft:
    arguments = {"name": say("argument"), say("argument name"): [say("inner argument"), 1, None]}
    return Draft(
        id=new_id(),
        task=say("task"),
        queue=say("queue"),
        payload=json.dumps(arguments),
        unique=f"{say('unique key')} {name}",
        meta=json.dumps({say("meta name"): say("meta")}),
        priority=5,
        timeout=300.0,
        stale_after=60.0,
        retry_base=3600.0,
    )


Play = Callable[[Store, Draft, str], str]


def _waiting(store: Store, draft: Draft, worker: str) -> str:
    store.enqueue([draft])
    return draft.id


def _claimed(store: Store, draft: Draft, worker: str) -> Lease:
    store.enqueue([draft])
    (claimed,) = store.claim(worker, {draft.queue: 1}, 1)
    assert claimed.id == draft.id
    return Lease(draft.id, claimed.attempt, worker)


def _processing(say: Say) -> Play:
    def play(store: Store, draft: Draft, worker: str) -> str:
        lease = _claimed(store, draft, worker)
        log = encode([LogLine(store.now(), say("level"), say("log line"))], dropped=3)
        checkpoint = json.dumps(say("checkpoint"))
        assert store.progress(
            [
                Progress(
                    lease=lease,
                    fraction=0.4,
                    stage=say("stage"),
                    message=say("message"),
                    checkpoint=checkpoint,
                    log=log,
                )
            ]
        ) == [True]
        return draft.id

    return play


def _ended(outcome: Outcome) -> Play:
    def play(store: Store, draft: Draft, worker: str) -> str:
        store.finish([(_claimed(store, draft, worker), outcome)])
        return draft.id

    return play


def _completed(say: Say) -> Play:
    return _ended(Completed(json.dumps({"said": say("result")})))


def _cancelled(say: Say) -> Play:
    return _ended(Cancelled(say("cancel reason")))


def _signalled(say: Say) -> Play:
    """It has one signal, and waits for another."""
    key = f"own:{say('signal name')}"[:200]

    def play(store: Store, draft: Draft, worker: str) -> str:
        lease = _claimed(store, draft, worker)
        store.signal(draft.id, f"{key}?", json.dumps({"by": say("signal value")}))
        store.finish([(lease, Suspended(say("wait"), signal=key, timeout=3600.0))])
        return draft.id

    return play


def _dead(say: Say) -> Play:
    def play(store: Store, draft: Draft, worker: str) -> str:
        lease = _claimed(store, draft, worker)
        error = f"ValueError: {say('error')}\n  File {say('file')}, line 1\n"
        store.finish([(lease, Failed(error, final=True))])
        store.refused([(lease, say("refusal"))])
        return draft.id

    return play


def _crashed(say: Say) -> Play:
    def play(store: Store, draft: Draft, worker: str) -> str:
        return _claimed(store, draft, worker).job_id

    return play


def _schedule(store: Store, say: Say, name: str) -> str:
    """One with a history of every status."""
    rule = schedule("any", "30 2 * * *", tz="Europe/Paris", jitter="5m")
    job = _draft(say, name).but(id="", unique=None)
    stands = Timetable(store, PollNotifier()).put(rule.but(name=name, job=job)).schedule
    now = store.now()
    failed = stands.but(last_error=say("error"), last_status="failure", failure_count=2, last_run_at=now)
    statuses: tuple[Status, ...] = ("failure", "success", "cancelled", "skipped", "missed")
    ticks = tuple(
        Tick(schedule=name, tick=now - timedelta(days=ago), status=status, why=say("why"), decided_at=now)
        for ago, status in enumerate(statuses, start=1)
    )
    assert store.change([Change(schedule=failed, ticks=ticks)]) == [True]
    return name
