"""Any story: random steps on a store, repeated on a model of a few lines, and compared after each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from conformance.factories import NewWorld, World, assert_sound, draft, everything, start
from tenure.core.lifecycle import (
    ENDED,
    LIVE,
    TOTAL_CRASHES,
    Cancelled,
    Completed,
    Crashed,
    Failed,
    Lease,
    Outcome,
    Released,
    Snoozed,
    State,
    group_size,
)
from tenure.ports import JobView, Landed, NotLanded, Progress, Store

# Off the grid on which `advance` moves: which side an instant that is reached exactly belongs to is left open.
WORKER_LEASE, DELAY, STALE, KEEP = 30.5, 20.5, 40.25, 600.5
MAX_FAILURES, MAX_CRASHES = 2, 2

OUTCOMES: list[Outcome] = [
    Completed("1"),
    Failed("boom", retry_in=DELAY),
    Failed("no", final=True),
    Snoozed(DELAY),
    Released("drain"),
    Cancelled("stopped"),
    Crashed("its lease ended"),
    Crashed("hung", at_fault=True),
    Crashed("killed", process_died=True),
]
pick = st.integers(0, 99)
keys = st.sampled_from([None, None, "a", "b"])
priorities = st.integers(-1, 1)


@dataclass
class Known:
    """What the model knows of a job."""

    state: State
    key: str | None
    attempt: int = 0
    owner: str | None = None
    failures: int = 0
    crashes: int = 0
    crashes_total: int = 0
    solo: bool = False  #: of the next attempt, or of the one that runs; no worker here has slots for a group
    cancel_asked: bool = False
    silent_since: float = 0.0
    ended_at: float = 0.0
    ends: dict[int, str] = field(default_factory=dict[int, str])

    def end(self, outcome: Outcome, now: float, *, neighbours: bool = True) -> None:
        assert self.attempt not in self.ends, "an attempt ends once"
        self.ends[self.attempt] = type(outcome).__name__
        self.owner = None
        final = isinstance(outcome, Failed) and outcome.final
        self.failures += isinstance(outcome, Failed)
        dead = self.failures >= MAX_FAILURES or final
        again = State.SCHEDULED
        if isinstance(outcome, Crashed):
            dead, again = self.crash(outcome, neighbours)
        match outcome:
            case Completed():
                self.state = State.COMPLETED
            case Failed() | Crashed() if not self.cancel_asked and dead:
                self.state = State.DEAD
            case _ if self.cancel_asked or isinstance(outcome, Cancelled):
                self.state = State.CANCELLED
            case Released():
                self.state = State.QUEUED
            case _:
                self.state = again
        self.ended_at = now

    def ended_as(self, attempt: int, outcome: Outcome) -> bool:
        forgotten = isinstance(outcome, Completed) and (attempt, State.COMPLETED) != (self.attempt, self.state)
        return self.ends.get(attempt) == type(outcome).__name__ and not forgotten

    def crash(self, outcome: Crashed, neighbours: bool) -> tuple[bool, State]:
        """Whether it is dead, and where it goes if not. It is dead only if nothing else can have been the cause."""
        self.crashes, self.crashes_total = self.crashes + 1, self.crashes_total + 1
        worn_out = self.crashes_total > TOTAL_CRASHES
        spent = self.crashes > MAX_CRASHES or worn_out
        alone = self.solo and not neighbours
        dead = spent and (outcome.at_fault or (alone and (outcome.process_died or worn_out)))
        first = (self.crashes_total if spent else self.crashes) == 1
        self.solo = self.solo or outcome.process_died or self.crashes >= 2
        if not dead:
            self.crashes = min(self.crashes, MAX_CRASHES)
        return dead, State.QUEUED if first else State.SCHEDULED


class Story(RuleBasedStateMachine):
    new_world: ClassVar[NewWorld]

    def __init__(self) -> None:
        super().__init__()
        self.world: World = type(self).new_world()
        self.store: Store = self.world.store()
        self.jobs: dict[str, Known] = {}
        self.leases: list[Lease] = []
        self.workers: dict[str, float | None] = {}  # the end of its lease; None: dead
        self.proved: set[str] = set()  # workers whose processes are known to be gone

    def teardown(self) -> None:
        self.world.close()

    def boot(self) -> float:
        return self.world.clock.boot()

    def a_job(self, n: int) -> str:
        names = list(self.jobs)
        return names[n % len(names)] if names else "00000000-0000-0000-0000-000000000000"

    def a_worker(self, n: int) -> str:
        """Any worker, preferably one that owns a job."""
        owners = [worker for worker in self.workers if self.held_by(worker)]
        names = owners if owners and n % 4 else list(self.workers)
        return names[n % len(names)]

    def held_by(self, worker: str) -> set[str]:
        return {name for name, job in self.jobs.items() if job.owner == worker}

    # ── clients and operators ──

    @initialize(asked=st.lists(st.tuples(keys, st.booleans(), priorities), min_size=2, max_size=6))
    def begin(self, asked: list[tuple[str | None, bool, int]]) -> None:
        self.start_worker()
        for key, later, priority in asked:
            self.enqueue_one(key, later, priority)

    @rule(key=keys, later=st.booleans(), priority=priorities)
    def enqueue(self, key: str | None, later: bool, priority: int) -> None:
        self.enqueue_one(key, later, priority)

    def enqueue_one(self, key: str | None, later: bool, priority: int) -> None:
        options = {"max_failures": MAX_FAILURES, "max_crashes": MAX_CRASHES, "retry_base": 0.0, "stale_after": STALE}
        asked = draft(unique=key, delay=DELAY if later else None, priority=priority, **options)
        holders = [name for name, job in self.jobs.items() if key and job.key == key and job.state in LIVE]

        (answer,) = self.store.enqueue([asked])

        assert answer.created == (not holders)
        if answer.created:
            self.jobs[asked.id] = Known(State.SCHEDULED if later else State.QUEUED, key)
        else:
            assert [answer.id] == holders
            assert answer.state is self.jobs[answer.id].state

    @rule(n=pick)
    def enqueue_again(self, n: int) -> None:
        if self.jobs:
            (answer,) = self.store.enqueue([draft(id=self.a_job(n), unique="a")])
            assert not answer.created
            assert answer.id == self.a_job(n)

    @rule(n=pick, word=st.sampled_from(["cancel", "replay", "replay", "delete"]))
    def operate(self, n: int, word: str) -> None:
        {"cancel": self.cancel, "replay": self.replay, "delete": self.delete}[word](n)

    def cancel(self, n: int) -> None:
        job = self.jobs.get(self.a_job(n))
        (state,) = self.store.cancel([self.a_job(n)], "unwanted").values()
        if job is None:
            assert state is None
            return
        if job.state is State.PROCESSING:
            job.cancel_asked = True
        elif job.state in LIVE:
            job.state, job.ended_at = State.CANCELLED, self.boot()
        assert state is job.state

    def replay(self, n: int) -> None:
        job = self.jobs.get(self.a_job(n))
        (answer,) = self.store.replay([self.a_job(n)]).values()
        if job is None:
            assert answer is None
            return
        taken = any(job.key and other.key == job.key and other.state in LIVE for other in self.jobs.values())
        assert isinstance(answer, Landed) == (job.state in ENDED and not taken)
        if isinstance(answer, Landed):
            job.state, job.failures, job.crashes, job.cancel_asked = State.QUEUED, 0, 0, False
            job.crashes_total, job.solo = 0, False

    def delete(self, n: int) -> None:
        job = self.jobs.get(self.a_job(n))
        (answer,) = self.store.delete([self.a_job(n)]).values()
        assert isinstance(answer, Landed) == (job is not None and job.state is not State.PROCESSING)
        if isinstance(answer, Landed):
            del self.jobs[self.a_job(n)]

    @rule(keep_dead=st.sampled_from([None, KEEP]))
    def prune(self, keep_dead: float | None) -> None:
        old = {
            name
            for name, job in self.jobs.items()
            if job.state in ENDED and self.boot() - job.ended_at > KEEP and (keep_dead or job.state is not State.DEAD)
        }
        assert self.store.prune(keep=KEEP, keep_dead=keep_dead) == len(old)
        for name in old:
            del self.jobs[name]

    @rule(seconds=st.sampled_from([0, 1, 21, 21, 31, 120, 601]), look=st.booleans())
    def time_passes(self, seconds: int, look: bool) -> None:
        self.world.advance(seconds)
        if look:
            self.promote()

    def promote(self) -> None:
        due = [view for view in everything(self.store) if view.state is State.SCHEDULED]
        due = [view for view in due if view.run_at <= self.store.now()]
        assert bool(self.store.promote().jobs) == bool(due)
        for view in due:
            self.jobs[view.id].state = State.QUEUED

    # ── owners ──

    @rule(limit=st.integers(1, 3))
    def claim(self, limit: int) -> None:
        self.renew(list(self.workers))
        alive = [worker for worker, ends in self.workers.items() if ends is not None]
        worker = alive[-1] if alive else self.start_worker()
        for solo in (False, True):
            self.claim_as(worker, limit, solo)

    @rule(n=pick)
    def claim_in_any_condition(self, n: int) -> None:
        self.claim_as(self.a_worker(n), 1, solo=False)

    def claim_as(self, worker: str, limit: int, solo: bool) -> None:
        waiting = [view for view in everything(self.store) if view.state is State.QUEUED and view.solo == solo]
        expected = sorted(waiting, key=lambda view: (-view.priority, view.run_at, view.id))[:limit]
        if solo:
            owns = any(job.state is State.PROCESSING and job.owner == worker for job in self.jobs.values())
            expected = [] if owns else expected[: group_size(view.together for view in expected)]
        ends = self.workers[worker]
        if ends is None or ends < self.boot():
            expected = []

        claimed = self.store.claim(worker, {"default": limit}, limit, solo=solo)

        assert [each.id for each in claimed] == [view.id for view in expected]
        for each in claimed:
            job = self.jobs[each.id]
            assert each.attempt == job.attempt + 1
            job.state, job.attempt, job.owner, job.silent_since = State.PROCESSING, each.attempt, worker, self.boot()
            self.leases.append(Lease(each.id, each.attempt, worker))

    def holds(self, lease: Lease) -> bool:
        job = self.jobs.get(lease.job_id)
        return job is not None and (job.attempt, job.owner) == (lease.attempt, lease.worker_id)

    @rule(n=pick, checkpoint=st.sampled_from([None, "1", "2"]))
    def progress(self, n: int, checkpoint: str | None) -> None:
        if not self.leases:
            return
        lease = self.leases[n % len(self.leases)]
        before = self.store.get(lease.job_id)

        assert self.store.progress([Progress(lease=lease, checkpoint=checkpoint)]) == [self.holds(lease)]

        if before and self.holds(lease):
            job = self.jobs[lease.job_id]
            job.silent_since = self.boot()
            job.crashes = 0 if checkpoint not in (None, before.checkpoint) else job.crashes

    def ends(self, lease: Lease, outcome: Outcome) -> None:
        held, job = self.holds(lease), self.jobs.get(lease.job_id)

        (answer,) = self.store.finish([(lease, outcome)])

        if held and job:
            job.end(outcome, self.boot())
            assert isinstance(answer, Landed)
            assert answer.state is job.state
        elif job and job.ended_as(lease.attempt, outcome):
            assert answer == Landed(job.state)
        else:
            assert isinstance(answer, NotLanded)

    @rule(n=pick, outcome=st.sampled_from(OUTCOMES))
    def finish(self, n: int, outcome: Outcome) -> None:
        live = [lease for lease in self.leases if self.holds(lease)]
        if live:
            self.ends(live[n % len(live)], outcome)

    @rule(n=pick, outcome=st.sampled_from(OUTCOMES))
    def finish_as_a_ghost(self, n: int, outcome: Outcome) -> None:
        gone = [lease for lease in self.leases if not self.holds(lease)]
        if gone:
            self.ends(gone[n % len(gone)], outcome)

    # ── supervisors ──

    def start_worker(self) -> str:
        worker = start(self.store, lease=WORKER_LEASE)
        self.workers[worker] = self.boot() + WORKER_LEASE
        return worker

    @rule(n=pick, news=st.sampled_from(["start", "renew", "expire", "die"]))
    def supervise(self, n: int, news: str) -> None:
        match news:
            case "start":
                self.start_worker()
            case "renew":
                self.renew([self.a_worker(n)])
            case "expire":
                late = {worker for worker, ends in self.workers.items() if ends is not None and ends < self.boot()}
                assert self.store.declare_expired() == late
                self.workers.update(dict.fromkeys(late))
            case _:
                worker = self.a_worker(n)
                alive = self.workers[worker] is not None
                self.proved |= {worker} if alive else set()
                assert self.store.declare_dead([worker]) == (frozenset({worker}) if alive else frozenset())
                self.workers[worker] = None

    def renew(self, workers: list[str]) -> None:
        alive = {worker for worker in workers if self.workers[worker] is not None}
        assert self.store.renew(workers) == alive
        self.workers.update(dict.fromkeys(alive, self.boot() + WORKER_LEASE))

    @rule(n=pick, verdict=st.sampled_from(OUTCOMES), rest=st.sampled_from([Released("spared"), Crashed("gone")]))
    def settle(self, n: int, verdict: Outcome, rest: Outcome) -> None:
        worker = self.a_worker(n)
        held = sorted(self.held_by(worker))

        settled = self.store.settle(worker, dict.fromkeys(held[:1], verdict), rest)

        self.workers[worker] = None
        assert sorted(each.id for each in settled) == held
        for name in held:
            outcome = verdict if name in held[:1] else rest
            self.jobs[name].end(outcome, self.boot(), neighbours=len(held) > 1)
        assert {each.id: each.state for each in settled} == {name: self.jobs[name].state for name in held}

    @rule()
    def rescue(self) -> None:
        lost: dict[str, float] = {}
        for name, job in self.jobs.items():
            if job.owner is not None:
                hung = self.boot() - job.silent_since > STALE + 2 * WORKER_LEASE
                if self.workers.get(job.owner) is None or hung:
                    lost[name] = job.silent_since

        rescued = self.store.rescue()

        assert {each.id for each in rescued} == set(lost)
        beside = {owner: len(self.held_by(owner)) > 1 for owner in self.workers}
        silences = [lost[each.id] for each in rescued]
        assert silences == sorted(silences)
        for each in rescued:
            job = self.jobs[each.id]
            assert (each.attempt, each.worker_id) == (job.attempt, job.owner)
            dead = self.workers.get(each.worker_id) is None
            crash = Crashed("", process_died=dead and each.worker_id in self.proved, at_fault=not dead)
            job.end(crash, self.boot(), neighbours=beside[each.worker_id])
            assert each.state is job.state

    # ── what is always true ──

    @invariant()
    def the_store_and_the_model_tell_the_same(self) -> None:
        views = {view.id: view for view in everything(self.store)}
        assert views.keys() == self.jobs.keys(), "nothing lost, nothing invented"
        for name, job in self.jobs.items():
            assert self.told(views[name]) == (
                *(job.state, job.attempt, job.owner),
                *(job.failures, job.crashes, job.crashes_total, job.solo),
            )
        assert self.store.counts() == {state: sum(j.state is state for j in self.jobs.values()) for state in State}

    def told(self, view: JobView) -> tuple[State, int, str | None, int, int, int, bool]:
        spent = view.failures, view.crashes, view.crashes_total
        return view.state, view.attempt, view.worker_id, *spent, view.solo

    @invariant()
    def a_worker_owns_what_the_model_says(self) -> None:
        for worker in self.workers:
            assert {each.claimed.id for each in self.store.owned(worker)} == self.held_by(worker)

    @invariant()
    def keys_are_held_once_and_jobs_are_sound(self) -> None:
        held = [job.key for job in self.jobs.values() if job.key and job.state in LIVE]
        assert len(held) == len(set(held))
        assert_sound(self.store)


@pytest.mark.timeout(400)  # shrinking a failure to a short story takes time
@pytest.mark.parametrize("share", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_any_story_ends_as_the_model_says(new_world: NewWorld, share: int) -> None:
    durable = new_world().store().capabilities.durable
    told = type("Told", (Story,), {"new_world": new_world})

    run_state_machine_as_test(
        told,
        settings=settings(
            max_examples=share * (8 if durable else 100),  # each step of a durable store waits for its disk
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
