"""Every duty of the maintenance gets its turn, however busy or broken the others are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.factories import World, bring, draft, look, made, put, running, start
from tenure import Tenure
from tenure.core.lifecycle import State
from tenure.errors import StoreAway
from tenure.ports import Promoted, Store
from waiting import until

Promote = Callable[[Store, int], Promoted]


class Spoilt:
    """A store whose `promote` is replaced."""

    def __init__(self, store: Store, promote: Promote) -> None:
        self._store, self._promote = store, promote

    def promote(self, *, limit: int = 1000) -> Promoted:
        return self._promote(self._store, limit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def serve(world: World, monkeypatch: pytest.MonkeyPatch, promote: Promote) -> Tenure:
    """An app whose embedded worker opens this world's store."""
    monkeypatch.setattr("tenure.app.backends.connect", lambda _: Spoilt(world.store(), promote))
    jobs = Tenure("memory:", notifier="poll")

    @jobs.task(queue="served")
    def served() -> None: ...

    return jobs


def always_more(world: World) -> Promote:
    def promote(store: Store, limit: int) -> Promoted:
        store.enqueue([draft(queue="other", delay=0.001)])  # it falls due before the next call
        world.advance(0.01)
        return store.promote(limit=limit)

    return promote


def fails(_: Store, __: int) -> Promoted:
    raise StoreAway("out of memory")


@pytest.mark.parametrize("kind", ["always more", "fails"])
def test_every_duty_has_its_turn_while_promotion_always_has_more_or_always_fails(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.store()
    old = bring(store, State.COMPLETED, queue="default").job_id
    schedule = made(store, job=draft(id="", queue="other"), next_tick=store.now(), due_at=store.now())
    world.advance(30 * 86_400)
    dead = start(store)
    lease = running(store, dead)
    store.declare_dead([dead])
    monkeypatch.setattr("tenure.maintenance.maintenance.PRUNE_SECONDS", 0.5)
    monkeypatch.setattr("tenure.maintenance.maintenance.PROMOTE_BATCH", 1)
    promote = always_more(world) if kind == "always more" else fails

    with serve(world, monkeypatch, promote).worker():
        until(lambda: look(store, lease.job_id).state is not State.PROCESSING, "the rescue")
        until(lambda: store.ticks(schedule.name), "the tick")
        until(lambda: store.get(old) is None, "the prune")


def test_jobs_that_fall_due_are_promoted_whatever_their_number(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.maintenance.maintenance.PROMOTE_BATCH", 2)
    store = world.store()
    ids = [put(store, queue="other", delay=1.0) for _ in range(7)]
    world.advance(1.0)

    with serve(world, monkeypatch, lambda store, limit: store.promote(limit=limit)).worker():
        until(lambda: all(look(store, each).state is State.QUEUED for each in ids), "all to be queued")
