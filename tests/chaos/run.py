"""One run: jobs, clients and faults for some time, then peace, then a verdict."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crash.harness import alive, boot, until
from previous import previous
from tenure.app.backends import open_notifier
from tenure.core.offloaded import is_offloaded
from tenure.core.sealed import is_sealed
from tenure.errors import StoreError
from tenure.maintenance.wait_check import lost_waits
from tenure.operations.admin import Admin
from tenure.ports import Filter, JobView, Store
from tenure.ports.schedules import Tick
from tenure.stores.sealed import beneath

from . import faults, history, upgrade, workload
from .checker import Verdict, bites, check, unmeasured
from .faults import Fault
from .history import Dump, Event, Kept
from .nemesis import Nemesis
from .seen import Allowed, Timetable
from .stage import TODAY, Stage, Values, read

LEASE = 3.0
RATE = 12.0  # new jobs a second, of all clients
DRAIN_SECONDS = 120.0
PAGE = 500  #: jobs that are read at once when all is over: some are large
CLIENTS_SECONDS = 60.0
LOAD_SECONDS = 600.0  #: for a load to be there, and to be taken back
AWAY = 75  #: the exit code of a supervisor that finds no store at its start: its service manager restarts it
#: A whole machine that was paused may run old code for about a second when it wakes (docs/delivery.md). Here its
#: processes compete with all others for two cores, so that second lasts longer.
WAKING_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run did, and what is wrong with how it ended."""

    backend: str
    load: str  #: the name of its profile; empty: no load, and lateness was not measured
    scale: float
    seed: int
    asked: float  #: seconds of faults
    seconds: float  #: until calm
    faults: Sequence[Fault]
    verdict: Verdict
    toothless: Sequence[str]  #: what never happened although it should have
    oddities: Sequence[str]  #: processes that ended by themselves, or not with 0
    drained: float  #: seconds from calm until nothing was live
    folder: Path
    upgraded: bool = False  #: it was a rolling upgrade
    values: Values = ""

    @property
    def passed(self) -> bool:
        return not (self.verdict.violations or self.toothless or self.oddities)


def play(
    backend: str,
    folder: Path,
    *,
    seconds: float,
    seed: int,
    only: Collection[str] = (),
    plan: Sequence[Fault] | None = None,
    lease: float = LEASE,
    rate: float = RATE,
    load: str = "",
    scale: float = 1.0,
    least: int = 0,
    upgraded: bool = False,
    values: Values = "",
) -> Result:
    """Play one run in this folder, where its history and its faults stay. `upgraded`: see upgrade.py.

    The load goes on until it has enqueued `least` jobs: how many come in the seconds of the faults is up to the
    machine, and to how long the store was away.
    """
    phases = upgrade.PHASES if upgraded else upgrade.WITHOUT
    first = previous() if upgraded else TODAY
    facts: dict[str, Any] = {"lease": lease, "seed": seed, "rate": rate, "load": load, "scale": scale}
    with Stage(backend, folder, **facts, first=first, values=values) as stage:
        only = only or (stage.profile.only if stage.profile else ())
        if plan is None:
            kinds = faults.possible(stage.has, only)
            plan = [
                fault
                for number, phase in enumerate(phases)
                for fault in faults.plan(seed, seconds / len(phases), lease, phase.of(kinds), number)
            ]
        faults.write(folder / "faults.json", plan)
        until(lambda: _answers(stage), "the first jobs to have run", 120)
        _wait_for_the_load(stage)
        began, ticking_since = boot(), time.time()
        nemesis = Nemesis(stage)
        for number, phase in enumerate(phases):
            phase.begin(stage, nemesis)
            for fault in (each for each in plan if each.phase == number):
                nemesis.strike(fault)
            phase.end(stage)
        stage.heal()
        _wait_for_its_jobs(stage, least)
        time.sleep(2 * lease)  # peace: ticks that fell due meanwhile are caught up with
        nemesis.wait_until_all_serve()
        ticking = (ticking_since, time.time() - lease)
        with suppress(AssertionError):  # the checker says which are missing
            stage.site.until(lambda: _patiently(lambda: _caught_up(stage.site.store, ticking[1])), "ticks", 60)
        oddities = _calm(stage)
        calm = boot()
        drained = _drain(stage)
        oddities += _stop(stage)
        oddities += _kept_otherwise(stage)
        dump, bounds = _dump(stage), stage.bounds
    history.write_dump(folder / "dump.json", dump)
    events = history.read(folder / "history.jsonl")
    oddities += [f"ended: {event.data}" for event in events if event.op == "ended" and event.data["code"] != AWAY]
    schedules = {name: Timetable(period, *ticking) for name, period in workload.EVERY.items()}
    verdict = check(
        events, dump, Allowed(waking=WAKING_SECONDS, drain=DRAIN_SECONDS, schedules=schedules, bounds=bounds)
    )
    return Result(
        backend=backend,
        load=load,
        scale=scale,
        seed=seed,
        asked=seconds,
        seconds=calm - began,
        faults=plan,
        verdict=verdict,
        toothless=[*(bites(verdict) if not only else ()), *(unmeasured(verdict) if load else ())],
        oddities=oddities,
        drained=drained,
        folder=folder,
        upgraded=upgraded,
        values=values,
    )


def _answers(stage: Stage) -> bool:
    return any(event.op == "end" for event in history.read(stage.history))


def _wait_for_the_load(stage: Stage) -> None:
    """Wait until the load and the lane beside it have both said that they are there."""
    deadline = boot() + LOAD_SECONDS
    while stage.profile and stage.history.read_bytes().count(b',"load","ok",') < 2:
        gone = [each.poll() for each in stage.loads]
        if any(code is not None for code in gone) or boot() > deadline:
            logs = "\n".join(path.read_text()[-3000:] for path in stage.history.parent.glob("[gl]*.log"))
            raise AssertionError(f"the load {stage.profile.name!r} is not there; exit codes: {gone}\n{logs}")
        time.sleep(0.5)


def _wait_for_its_jobs(stage: Stage, least: int) -> None:
    """Wait until the load has enqueued so many, or tried to."""
    deadline = boot() + LOAD_SECONDS
    while (found := _enqueued(history.read(stage.history)) if least else 0) < least:
        assert boot() < deadline, f"the load has enqueued {found} jobs, and not {least}, in {LOAD_SECONDS:g} s"
        time.sleep(0.5)


def _enqueued(events: Sequence[Event]) -> int:
    asked = (event for event in events if event.op == "enqueue" and event.phase == "invoke")
    return sum(event.actor.startswith("load") for event in asked)


def _caught_up(store: Store, end: float) -> bool:
    """Has every schedule fired its last tick up to this moment? A busy machine takes longer to."""
    last = {name: max(_jobs_of(store.ticks(name, limit=1)), default=0) for name in workload.EVERY}
    return all(last[name] > end - period for name, period in workload.EVERY.items())


def _calm(stage: Stage) -> list[str]:
    """All faults are over, clients stop, and schedules fire no more: what is there now must end."""
    codes = stage.stop_clients(LOAD_SECONDS if stage.profile else CLIENTS_SECONDS)
    store = stage.site.store
    notifier = open_notifier(workload.jobs.settings, store)
    admin = Admin(store, notifier, workload.jobs.settings)
    for name in workload.EVERY:
        _patiently(lambda name=name: admin.schedules.pause(name, "the run is over"))
    notifier.close()
    stage.pen.note("calm")
    return [f"a client ended with {code}" for code in codes if code not in (0, -signal.SIGTERM)]  # that: just started


def _drain(stage: Stage) -> float:
    began = boot()
    with suppress(AssertionError):  # the checker says what is live still
        stage.site.until(lambda: _patiently(lambda: _live(stage.site.store)) == 0, "all jobs to end", 2 * DRAIN_SECONDS)
        stage.pen.note("drained")
    return boot() - began


def _live(store: Store) -> int:
    return sum(sum(view.counts.values()) for view in store.queues())


def _patiently(call: Any) -> Any:
    """The store is back, but connections that it closed are discovered one by one."""
    for _ in range(50):
        with suppress(StoreError):
            return call()
        time.sleep(0.2)
    return call()


def _stop(stage: Stage) -> list[str]:
    pids = [pid for host in stage.supervised() for pid in host.pids()]
    codes = [host.supervisor.stop() for host in stage.supervised()]
    wrong = [f"a supervisor ended with {code}" for code in codes if code]
    left = [pid for pid in pids if alive(pid)]
    return wrong + ([f"{len(left)} processes are left after their supervisors"] if left else [])


def _kept_otherwise(stage: Stage) -> list[str]:
    """A run whose values are not kept as it was asked to keep them proves nothing about that."""
    if not stage.values:
        return []
    is_so = is_sealed if stage.values == "sealed" else is_offloaded
    found = beneath(stage.site.store).search(Filter(task="act"), limit=100).jobs
    plain = [view.id for view in found if not is_so(view.payload)]
    return [] if found and not plain else [f"the arguments of {len(plain)} of {len(found)} jobs are not {stage.values}"]


# ── What the store holds ────────────────────────────────────────────────────────────────────────────────────────


def _dump(stage: Stage) -> Dump:
    store = stage.site.store
    tables = store.capabilities.transactions
    ticks = {name: store.ticks(name, limit=100_000) for name in workload.EVERY}
    return Dump(
        jobs=tuple(_kept(store, view) for view in _everything(store)),
        rows=tuple(str(key) for (key,) in workload.read_table("rows")) if tables else (),
        handed_in=tuple((str(k), int(n)) for k, n in workload.read_table("handed_in")) if tables else (),
        ticks={name: _jobs_of(mine) for name, mine in ticks.items()},
        decided={
            name: {int(tick.tick.timestamp()): tick.decided_at.timestamp() for tick in mine if tick.job_id}
            for name, mine in ticks.items()
        },
        places=tuple((view.key, view.held, view.waiting) for view in store.keys(limit=10_000)),
        lost_waits=tuple(job for lost in lost_waits(store) for job in lost.jobs),
    )


def _everything(store: Store) -> list[JobView]:
    found: list[JobView] = []
    cursor: str | None = None
    while True:
        page = store.search(Filter(), limit=PAGE, cursor=cursor)
        found += page.jobs
        cursor = page.cursor
        if cursor is None:
            return found


def _kept(store: Store, view: JobView) -> Kept:
    only_completed = view.state == "completed" and view.attempt == 1
    attempts = store.attempts(view.id) if view.attempt and not only_completed else []
    return Kept(
        key=read(store, view, "payload").get("key", ""),  # those of schedules have none
        id=view.id,
        task=view.task,
        state=view.state,
        attempt=view.attempt,
        result=None if view.result is None else workload.short(read(store, view, "result")),
        checkpoint=read(store, view, "checkpoint"),
        unique=view.unique or "",
        failures=view.failures,
        crashes=view.crashes_total,
        outcomes={each.attempt: each.outcome for each in attempts},
        ended={each.attempt: each.ended_at.timestamp() for each in attempts},
        refused=sum("refused" in each.evidence for each in attempts),
    )


def _jobs_of(ticks: Sequence[Tick]) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for tick in ticks:
        at = int(tick.tick.timestamp())
        found[at] = (*found.get(at, ()), *([tick.job_id] if tick.job_id else []))
    return found
