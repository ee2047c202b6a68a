"""Limits in a running worker: declared before it claims, and places that are handed on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from tenure import Tenure
from tenure.config import Settings
from tenure.core.lifecycle import State
from tenure.core.limits import Bounds
from tenure.errors import StoreAway
from tenure.maintenance import maintenance
from tenure.maintenance.maintenance import Declaration
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Admitted, LimitRow, Promoted, Withdrawn, WorkerIdentity
from tenure.stores.memory import MemoryStore
from tenure.worker.embedded import Embedded
from waiting import until


class Silent:
    """An alarm that says nothing: with an alarm, the worker maintains its store."""

    def start(self) -> None: ...

    def stop(self, until: float) -> None: ...


class Watched(MemoryStore):
    """Records the order in which a worker calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.admitted_by: list[str] = []
        self.away = False
        self.most = 200  #: jobs that one look admits

    def change_limits(self, rows: Sequence[LimitRow]) -> list[bool]:
        self.calls.append("declare")
        return super().change_limits(rows)

    def register(self, worker: WorkerIdentity) -> None:
        self.calls.append("register")
        super().register(worker)

    def admit(self, *, limit: int = 200) -> Admitted:
        name = threading.current_thread().name
        if self.away and name.startswith("tenure-background"):
            self.calls.append("away")
            raise StoreAway("for a moment")
        admitted = super().admit(limit=min(limit, self.most))
        self.admitted_by += [name] * sum(map(len, admitted.jobs.values()))
        return admitted

    def close(self) -> None:
        """Nothing: one store serves all."""


@pytest.fixture
def jobs() -> Tenure:
    return Tenure("sqlite:////nowhere/at/all.db")


@pytest.fixture
def store() -> Watched:
    return Watched()


def worker(jobs: Tenure, store: Watched, *, slots: int) -> Embedded:
    def open_store(settings: Settings) -> Any:
        return store

    alarm: Any = lambda *args: Silent()  # noqa: E731
    return Embedded(
        jobs.program, open_store, lambda *_: PollNotifier(), jobs.settings, {"default": None}, slots, new_alarm=alarm
    )


def counted(jobs: Tenure, store: Watched, *, at_once: int) -> tuple[Any, list[int]]:
    """A limited task of which `at_once` jobs run at a time; and, for each that ran, how many were processing then."""
    ran, together = list[int](), threading.Barrier(at_once, timeout=30.0)

    def work(n: int) -> None:
        together.wait()
        ran.append(store.counts()[State.PROCESSING])

    return jobs.task(limit=jobs.limit("work", concurrency=at_once))(work), ran


@pytest.mark.parametrize("at_once", [1, 3])
def test_jobs_that_were_there_before_the_first_worker_are_limited(jobs: Tenure, store: Watched, at_once: int) -> None:
    work, ran = counted(jobs, store, at_once=at_once)
    store.enqueue([work.bind(n).draft() for n in range(30)])

    with worker(jobs, store, slots=8):
        until(lambda: len(ran) == 30, "all jobs have run")

    assert store.calls[:2] == ["declare", "register"]
    assert max(ran) == at_once
    assert store.limits()[0].declared == Bounds(at_once)


def test_places_are_handed_on_by_the_worker_whose_jobs_have_ended(jobs: Tenure, store: Watched) -> None:
    work, ran = counted(jobs, store, at_once=1)
    store.enqueue([work.bind(n).draft() for n in range(30)])

    with worker(jobs, store, slots=2):
        until(lambda: len(ran) == 30, "all jobs have run")

    assert (
        sum(name.startswith("tenure-background") for name in store.admitted_by) >= 15
    )  # the maintenance looks once a second, too


def test_the_worker_looks_again_while_there_is_more(jobs: Tenure, store: Watched) -> None:
    """It does not ring: all supervisors would look at the same asks."""
    work, ran = counted(jobs, store, at_once=3)
    store.enqueue([work.bind(n).draft() for n in range(30)])
    store.most = 1

    with worker(jobs, store, slots=6):
        until(lambda: len(ran) == 30, "all jobs have run")

    assert (
        sum(name.startswith("tenure-background") for name in store.admitted_by) >= 15
    )  # the maintenance looks once a second, too


def test_what_the_worker_could_not_hand_over_is_handed_over_by_the_maintenance(jobs: Tenure, store: Watched) -> None:
    work, ran = counted(jobs, store, at_once=1)
    store.enqueue([work.bind(n).draft() for n in range(2)])
    store.away = True

    with worker(jobs, store, slots=2):
        until(lambda: len(ran) == 2, "all jobs have run")

    assert store.calls.count("away") >= 1
    assert not any(name.startswith("tenure-background") for name in store.admitted_by)


# ── the maintenance ──


def upkeep(store: Any) -> maintenance.Maintenance:
    settings = Tenure("sqlite:////nowhere/at/all.db").settings
    return maintenance.Maintenance(store, PollNotifier(), Any, settings, mine=frozenset)  # type: ignore[arg-type]


class Scripted:
    """Answers as it is told."""

    capabilities = MemoryStore().capabilities

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self._answers[name]


def due(kept: maintenance.Maintenance, name: str) -> bool:
    place = kept.urgent._places[name]
    return place.hurried


@pytest.mark.parametrize(
    ("answers", "verb", "hurried"),
    [
        ({"withdraw": Withdrawn(2, True, True)}, "withdraw", True),
        ({"withdraw": Withdrawn(0)}, "withdraw", False),
        ({"promote": Promoted({}, None, limited=3)}, "promote", True),
        ({"promote": Promoted({}, None)}, "promote", False),
    ],
)
def test_places_and_due_jobs_have_admit_done_at_once(answers: dict[str, Any], verb: str, hurried: bool) -> None:
    kept = upkeep(Scripted(**answers))

    turn = getattr(kept, verb)(3)

    assert due(kept, "admit") is hurried
    assert turn.more is hurried


def test_an_older_release_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    kept, limits = upkeep(MemoryStore()), (LimitRow(name="a", declared=Bounds(1)),)

    kept.declare_limits(Declaration("app", "1", (), limits))
    kept.declare_limits(Declaration("app", "2", (), ()))
    kept.declare_limits(Declaration("app", "1", (), limits))

    assert [each.getMessage().partition(",")[0] for each in caplog.records if each.levelname == "WARNING"] == [
        "limits retired",
        "the limits of app stay as release 2 declares them",
    ]
