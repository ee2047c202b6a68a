"""The world a store lives in during a test, and short ways to put jobs and workers into it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from itertools import count
from threading import Barrier
from time import monotonic, sleep
from typing import Any, TypeVar
from uuid import UUID

from tenure.core.clock import Clock
from tenure.core.lifecycle import ENDED, GUARD, Cancelled, Completed, Failed, Lease, Outcome, Released, State, Suspended
from tenure.errors import StoreBusy
from tenure.ports import AttemptView, Busy, Claimed, Draft, Filter, JobView, Landed, Progress, Store, WorkerIdentity
from tenure.ports.schedules import Change, Schedule, Standing, Tick

T = TypeVar("T")

LEASE = 30.0
DAY = 86_400.0
PATIENCE = 60.0  #: real seconds

_numbers = count(1)


class World:
    """One set of data under one virtual clock, and every store opened onto it."""

    def __init__(self, make: Callable[[Clock], Store]) -> None:
        self._make = make
        self._unix = 1_800_000_000.0
        self._boot = 1_000.0
        self._stores: list[Store] = []
        self.clock = Clock(lambda: self._unix, lambda: self._boot, "the-only-boot")

    def store(self) -> Store:
        """An open store on this world's data; each call opens another one."""
        store = self._make(self.clock)
        store.migrate()
        store.open()
        self._stores.append(store)
        return store

    def advance(self, seconds: float) -> None:
        self._unix += seconds
        self._boot += seconds

    def step_wall_clock(self, seconds: float) -> None:
        """The date is set; no time passes."""
        self._unix += seconds

    def close(self) -> None:
        for store in self._stores:
            store.close()


NewWorld = Callable[[], World]


def draft(**options: Any) -> Draft:
    """A job to enqueue; ids rise in the order of the calls."""
    given: dict[str, Any] = {"id": str(UUID(int=next(_numbers))), "task": "work", "payload": "{}", **options}
    return Draft(**given)


def identity(**options: Any) -> WorkerIdentity:
    number = next(_numbers)
    given: dict[str, Any] = {
        "id": f"host-{number}-abc",
        "host": "host",
        "pid": number,
        "started": "1",
        "boot_id": "the-only-boot",
        "pid_namespace": "1",
        "runner": "worker",
        "queues": ("default",),
        "tasks": ("work",),
        "slots": 5,
        "lease": LEASE,
        **options,
    }
    return WorkerIdentity(**given)


def put(store: Store, **options: Any) -> str:
    """Enqueue one job; its id."""
    (enqueued,) = store.enqueue([draft(**options)])
    assert enqueued.created
    return enqueued.id


def start(store: Store, **options: Any) -> str:
    """Register one worker; its id."""
    worker = identity(**options)
    store.register(worker)
    return worker.id


def claim(store: Store, worker_id: str, limit: int = 1, *, queue: str = "default", solo: bool = False) -> list[Claimed]:
    return store.claim(worker_id, {queue: limit}, limit, solo=solo)


def claim_one(store: Store, worker_id: str, *, solo: bool = False) -> Lease:
    (claimed,) = claim(store, worker_id, solo=solo)
    return Lease(claimed.id, claimed.attempt, worker_id)


def running(store: Store, worker_id: str | None = None, **options: Any) -> Lease:
    """A job that a living worker has just claimed. `limits`: keys that have room."""
    worker_id = worker_id or start(store)
    job_id = put(store, **options)
    if options.get("limits"):
        store.admit()
    lease = claim_one(store, worker_id, solo=options.get("isolated", False))
    assert lease.job_id == job_id
    return lease


def finish(store: Store, lease: Lease, outcome: Outcome) -> State | None:
    """The state that the outcome led to; None: it did not land."""
    (answer,) = store.finish([(lease, outcome)])
    if isinstance(answer, Busy):  # undecided: a caller that waits for a transaction uses `patiently`
        raise StoreBusy(f"the row of job {lease.job_id} is held")
    return answer.state if isinstance(answer, Landed) else None


def kept_elsewhere(store: Store) -> bool:
    """Whether the store's values are in a bucket rather than in its rows."""
    return store.capabilities.inline == 0


def seen_by_a_schedule(store: Store, view: JobView) -> JobView:
    """The job as the runs of its schedule show it: without values that are encrypted, or kept in a bucket."""
    hidden = store.capabilities.sealed or kept_elsewhere(store)
    blank = {"payload": "", "error": None, "result": None} if hidden else {}
    return replace(view, **blank)  # type: ignore[arg-type]


def bring(store: Store, state: State, **options: Any) -> Lease:
    """A job in `state` that has been claimed before; returns its last lease."""
    lease = running(store, **options)
    ways: dict[State, Outcome] = {
        State.SCHEDULED: Failed("not yet", retry_in=60),
        State.WAITING: Suspended("for a word", signal="own:go"),
        State.QUEUED: Released("drained"),  # with limits, it is then admitted again
        State.COMPLETED: Completed('"done"'),
        State.DEAD: Failed("for good", final=True),
        State.CANCELLED: Cancelled("not wanted"),
    }
    if state in ways:
        limited = state is State.QUEUED and options.get("limits")
        assert finish(store, lease, ways[state]) is (State.WAITING if limited else state)
        if limited:
            store.admit()
            assert look(store, lease.job_id).state is state
    return lease


def schedule(**options: Any) -> Schedule:
    """A schedule to store: its ticks enqueue `work`."""
    given: dict[str, Any] = {"name": f"schedule-{next(_numbers)}", "rule": "every 1m", "job": draft(id=""), **options}
    return Schedule(**given)


def made(store: Store, **options: Any) -> Schedule:
    """A schedule as the store has it."""
    new = schedule(**options)
    assert store.change([Change(schedule=new)]) == [True]
    return standing(store, new.name).schedule


def standing(store: Store, name: str) -> Standing:
    (found,) = store.schedules([name])
    return found


def tick(of: Schedule, at: datetime, **options: Any) -> Tick:
    given: dict[str, Any] = {"schedule": of.name, "tick": at, "decided_at": at, **options}
    return Tick(**given)


def begin(store: Store, name: str, at: datetime | None = None, **options: Any) -> str:
    """A run of a stored schedule begins; the id of its job."""
    job, now = draft(**options), store.now()
    stands = standing(store, name).schedule
    change = Change(schedule=stands, ticks=(tick(stands, at or now, job_id=job.id, decided_at=now),), drafts=(job,))
    assert store.change([change]) == [True]
    return job.id


def begin_guarded(store: Store, name: str, worker_id: str, at: datetime | None = None) -> str:
    """A guard's run begins under the lease of that worker; the id of its job."""
    job, now = draft(task=name, queue=GUARD, max_failures=1, max_crashes=0), store.now()
    stands = standing(store, name).schedule
    ticks = (tick(stands, at or now, job_id=job.id, decided_at=now, started_at=now, host="host"),)
    assert store.change([Change(schedule=stands, ticks=ticks, drafts=(job,), owner=worker_id)]) == [True]
    return job.id


def jobs_in_every_way(store: Store, worker_id: str) -> None:
    """What clients and workers do all the time, each once. Afterwards no job is left to run."""
    put(store), put(store, unique="key"), store.enqueue([draft(), draft()])
    put(store, run_at=store.now())
    store.promote()
    claimed = store.claim(worker_id, {"default": 10}, 10)
    assert len(claimed) == 5
    leases = [Lease(job.id, job.attempt, worker_id) for job in claimed]
    assert store.progress([Progress(lease=leases[0], fraction=0.5)]) == [True]
    for ends in ([(leases[0], Completed("1"))], [(lease, Completed("1")) for lease in leases[1:3]]):
        assert all(isinstance(answer, Landed) for answer in store.finish(ends))
    finish(store, leases[3], Failed("again", retry_in=60))
    finish(store, leases[4], Released("drained"))
    store.cancel([leases[3].job_id, leases[4].job_id], "done with")
    assert store.renew([worker_id]) == {worker_id}
    assert len(store.updates({lease.job_id: "" for lease in leases})) == len(leases)
    assert store.claim(worker_id, {"default": 10}, 10) == []


def look(store: Store, job_id: str) -> JobView:
    view = store.get(job_id)
    assert view is not None, f"job {job_id} is lost"
    return view


def memory_of(store: Store, job_id: str) -> tuple[JobView | None, list[AttemptView]]:
    """All that the store knows of a job: equal before and after a call that must change nothing."""
    return store.get(job_id), store.attempts(job_id)


def everything(store: Store) -> list[JobView]:
    return list(store.search(Filter(), limit=1000).jobs)


def assert_sound(store: Store) -> None:
    """What is true of every job at any moment."""
    for view in everything(store):
        owned = view.state is State.PROCESSING
        assert (view.worker_id is not None) == owned, view
        assert (view.ended_at is not None) == (view.state in ENDED), view
        assert not owned or (view.started_at and view.last_activity_at), view
        assert view.result is None or view.state is State.COMPLETED, view
        ended = [attempt.attempt for attempt in store.attempts(view.id)]
        assert ended == sorted(set(ended)), ended
        assert all(attempt <= view.attempt for attempt in ended), ended


def lose_asks(store: Store) -> None:
    """Lose what `admit` has to look at, which no fault that Tenure names may do."""
    from tenure.stores.memory import MemoryStore
    from tenure.stores.postgres import PostgresStore
    from tenure.stores.redis import RedisStore
    from tenure.stores.sqlite import SqliteStore

    below: Any = store
    while hasattr(below, "beneath"):
        below = below.beneath
    match below:
        case MemoryStore():
            below._known.asks.clear()
        case SqliteStore():
            below._file.write(lambda connection: connection.execute("DELETE FROM asks"))
        case PostgresStore():
            below._server.run(lambda connection: connection.execute(below._sql("DELETE FROM @.asks")))
        case RedisStore():
            below._server.run("DEL", f"{below._server.prefix}asks", f"{below._server.prefix}asked")
        case _:
            raise AssertionError(f"no way to its asks is known: {below}")


def patiently(call: Callable[[], T]) -> T:
    """Retry while another open transaction holds a row that the call needs: such a call changed nothing.

    A store waits for a row for a limited time (PostgreSQL: 2 s); a busy machine may stall its holder for longer.
    """
    until = monotonic() + PATIENCE
    while True:
        try:
            return call()
        except StoreBusy:
            if monotonic() > until:
                raise
        sleep(0.01)


def race(*calls: Callable[[], T]) -> list[T]:
    """Run the calls at the same moment, each in its own thread; their answers in order."""
    together = Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        together.wait(timeout=30)
        return patiently(call)

    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.result() for future in [threads.submit(run, call) for call in calls]]
