from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from conformance.factories import LEASE, World, bring, claim_one, look, put, start
from tenure.config import load
from tenure.core.lifecycle import State
from tenure.errors import StoreAway
from tenure.events import Events
from tenure.maintenance.maintenance import Maintenance
from tenure.maintenance.roster import Lag, Roster, Row, Turn
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Ring, Store
from tenure.stores.memory import MemoryStore


@pytest.fixture
def world() -> World:
    return World(MemoryStore)


def watching(world: World, store: Store, mine: str, keep: float = 1e9) -> Maintenance:
    """A maintenance with regular renewals for a long time; the last one was sent, and landed, just now."""
    settings = replace(load(environ={}), lease=LEASE, keep=keep, keep_dead=None, keep_history=keep)
    maintenance = Maintenance(store, PollNotifier(), Events(), settings, mine=lambda: frozenset({mine}))
    judge = maintenance.judge
    judge._boot, judge._renewed, judge.quiet_until = world.clock.boot, world.clock.boot(), 0.0
    store.renew([mine])
    judge.renewed(world.clock.boot(), [mine])
    return maintenance


def test_a_silent_worker_of_another_host_is_declared_dead(world: World) -> None:
    store = world.store()
    assert isinstance(store, MemoryStore)
    other = start(store)
    world.advance(LEASE + 1)
    mine = start(store)

    watching(world, store, mine).scan()

    assert store.renew([other]) == frozenset()


def test_a_scan_that_was_blocked_reading_the_time_declares_no_worker_dead(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.store()
    assert isinstance(store, MemoryStore)
    other, mine = start(store), start(store)
    maintenance = watching(world, store, mine)
    now = store.now

    def after_an_outage() -> datetime:
        monkeypatch.setattr(store, "now", now)
        world.advance(2 * LEASE)
        store.renew([mine])  # this renewal was on its way for as long, and is carried out first
        return now()

    monkeypatch.setattr(store, "now", after_an_outage)
    maintenance.scan()

    assert store.renew([other]) == {other}


# ── An outage costs no living worker its jobs: two stories that tests/model/declarations.py found ───────────────


def test_a_renewal_sent_in_time_but_delayed_counts_as_a_gap(world: World) -> None:
    store = world.store()
    other, mine = start(store), start(store)
    world.advance(LEASE / 3)
    maintenance = watching(world, store, mine)

    world.advance(LEASE / 3)  # the store is unavailable, also for the other one's renewal, which was due first
    sent = world.clock.boot()
    world.advance(LEASE * 0.4)  # the network is back, and mine is carried out before that of the other one
    store.renew([mine])
    maintenance.judge.renewed(sent, [mine])
    maintenance.scan()

    assert store.renew([other]) == {other}


def test_after_an_outage_others_have_the_time_to_be_renewed_too(world: World) -> None:
    store = world.store()
    other, mine = start(store), start(store)
    world.advance(LEASE / 3)
    maintenance = watching(world, store, mine)

    world.advance(LEASE * 0.66)  # the store is unavailable; then my renewal is the first
    store.renew([mine])
    maintenance.judge.renewed(world.clock.boot(), [mine])
    world.advance(LEASE / 60)  # a refused process retries within a second: lease/30
    maintenance.scan()

    assert store.renew([other]) == {other}


# ── Announcements ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_and_every_later_rescue_is_announced_with_the_words_of_its_row(world: World) -> None:
    store = world.store()
    job_id, plain = put(store, retry_base=8.0, retry_cap=8.0), put(store, queue="other", delay=8.0)
    rings: list[Ring] = []
    notifier = PollNotifier()
    notifier.announce = rings.extend  # type: ignore[method-assign]
    maintenance = Maintenance(store, notifier, Events(), load(environ={}), mine=frozenset)
    said: list[str | None] = []
    for _ in range(2):
        worker = start(store)
        claim_one(store, worker, solo=look(store, job_id).solo)
        store.declare_dead([worker])
        maintenance.report_rescued(store.rescue())
        said.append(look(store, job_id).message)
        assert worker in (said[-1] or "")
    world.advance(8)
    maintenance.promote(1000)

    cleared = [Ring("queued", "default", (job_id,), words or "") for words in said]
    assert [ring for ring in rings if ring.jobs] == [*cleared, Ring("queued", "other", (plain,))]


# ── The roster: every duty has its turn ─────────────────────────────────────────────────────────────────────────


class Loop:
    """A roster under a clock of its own: each turn takes as long as its duty says, and is noted."""

    def __init__(self) -> None:
        self.time, self.ran, self.away = 0.0, list[tuple[str, float]](), False
        self.shortages = 0
        self.roster = Roster([], answers=self._answers, short=self._short, clock=lambda: self.time)

    def _answers(self) -> None:
        if self.away:
            raise StoreAway("away")

    def _short(self) -> None:
        self.shortages += 1

    def duty(
        self,
        name: str,
        period: float,
        *,
        takes: float = 0.0,
        does: Callable[[int], Turn] = lambda _: Turn(),
        **options: Any,
    ) -> None:
        def turn(limit: int) -> Turn:
            self.ran.append((name, self.time))
            self.time += takes
            return does(limit)

        self.roster.add(Row(name, turn, period, **options))

    def run(self, seconds: float) -> None:
        end = self.time + seconds
        while self.time < end:
            pause = self.roster.step()  # which lets time pass itself
            self.time += pause

    def gaps(self, name: str) -> list[float]:
        """Seconds between its turns, and from the last one to the end."""
        times = [at for each, at in self.ran if each == name]
        return [after - before for before, after in pairwise([0.0, *times, self.time])]


@pytest.fixture
def loop() -> Loop:
    return Loop()


def failing(_: int) -> Turn:
    raise StoreAway("out of memory")


def test_a_duty_that_always_has_more_holds_up_no_other(loop: Loop) -> None:
    loop.duty("endless", 1.0, takes=0.1, does=lambda _: Turn(more=True), batch=1000)
    for name in ("a", "b"):
        loop.duty(name, 1.0, takes=0.1)

    loop.run(100.0)

    assert max(loop.gaps("a")) < 1.5
    assert max(loop.gaps("b")) < 1.5
    assert len(loop.gaps("endless")) > 700, "and it has the time that the others leave"


@pytest.mark.parametrize("takes", [0.01, 8.0])
def test_a_duty_that_always_fails_backs_off_alone_and_is_told_once(
    loop: Loop, takes: float, caplog: pytest.LogCaptureFixture
) -> None:
    loop.duty("broken", 60.0, takes=takes, does=failing)
    loop.duty("sound", 1.0)

    loop.run(1000.0)

    assert max(loop.gaps("sound")) <= takes + 1.2
    late = sum(gap > 2.0 for gap in loop.gaps("sound"))
    assert late < len(loop.gaps("sound")) / 10, "its failures take little of the time"
    assert [record.getMessage() for record in caplog.records] == [
        "broken fails, and is retried until it works: out of memory"
    ]
    assert [(lag.duty, lag.seconds > 900, lag.error) for lag in loop.roster.lags()] == [
        ("broken", True, "out of memory"),
        ("sound", False, ""),
    ]
    assert loop.shortages == len(loop.gaps("broken")) - 1


def test_a_duty_that_works_again_is_told_once(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Callable[[int], Turn]] = [failing, failing]
    loop.duty("prune", 60.0, does=lambda limit: answers.pop()(limit) if answers else Turn())

    loop.run(600.0)

    assert [record.getMessage() for record in caplog.records] == [
        "prune fails, and is retried until it works: out of memory",
        "prune works again after 3s",
    ]
    assert loop.roster.lags() == [Lag("prune", 0.0, "")]


def test_a_mistake_in_one_duty_stops_no_other(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    loop.duty("mistaken", 1.0, does=lambda _: Turn(more=bool(1 / 0)))
    loop.duty("sound", 1.0)

    loop.run(10.0)

    assert max(loop.gaps("sound")) < 1.5
    (record,) = caplog.records
    assert record.exc_info


def test_of_an_unavailable_store_nothing_is_said_but_that(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    loop.duty("prune", 60.0, does=failing)
    loop.away = True

    for _ in range(3):
        with pytest.raises(StoreAway, match="away"):
            loop.roster.step()

    assert not caplog.records


def test_a_batch_that_takes_too_long_is_halved_and_grows_again_while_it_is_full(loop: Loop) -> None:
    limits: list[int] = []
    slow = True

    def does(limit: int) -> Turn:
        limits.append(limit)
        loop.time += limit / 1000 if slow else 0.0
        return Turn(more=True)

    loop.duty("prune", 60.0, does=does, batch=1000, budget=0.1)
    loop.run(3.0)
    slow = False
    for _ in range(10):
        loop.roster.step()

    assert limits[:5] == [1000, 500, 250, 125, 62]
    assert limits[-1] == 1000 - 1000 % 62 or limits[-1] == 1000


def test_a_duty_of_slow_calls_keeps_up_with_what_comes(loop: Loop) -> None:
    """On a machine under load each call takes longer than the budget, however small its batch."""
    waiting = 3000.0

    def does(limit: int) -> Turn:
        nonlocal waiting
        waiting += 45 * 0.2
        waiting -= (taken := min(limit, int(waiting)))
        return Turn(more=taken >= limit)

    loop.duty("promote", 1.0, takes=0.2, does=does, batch=1000, spacing=0.02)
    loop.run(60.0)

    assert waiting < 45 * 1.5


def test_a_slow_turn_that_found_little_to_do_keeps_its_batch(loop: Loop) -> None:
    limits: list[int] = []
    loop.duty("promote", 1.0, takes=0.2, does=lambda limit: limits.append(limit) or Turn(), batch=1000)  # type: ignore[func-returns-value]
    loop.run(10.0)

    assert set(limits) == {1000}


def test_a_batch_that_failed_is_halved_to_one_and_grows_when_one_works(loop: Loop) -> None:
    limits: list[int] = []

    def does(limit: int) -> Turn:
        limits.append(limit)
        if limit > 1 and not works:
            raise StoreAway("out of memory")
        return Turn(more=True)

    works = False
    loop.duty("prune", 1.0, takes=0.2, does=does, batch=128)
    loop.run(30.0)
    assert limits[:9] == [128, 64, 32, 16, 8, 4, 2, 1, 2]

    works = True
    loop.run(30.0)
    assert limits[-1] == 8


def test_a_duty_that_is_hurried_during_its_turn_has_another_one(loop: Loop) -> None:
    loop.duty("promote", 60.0, does=lambda _: Turn(more=False) if loop.roster.hurry("promote") else Turn())

    loop.roster.step()

    assert loop.roster.step() == 0.0
    assert len(loop.ran) == 2
    assert not loop.roster.hurry("unknown")


def test_what_is_due_one_after_another_is_done_together(loop: Loop) -> None:
    loop.duty("promote", 1.0, does=lambda _: Turn(next_due=0.001), spacing=0.02)

    loop.run(1.0)

    assert 45 <= len(loop.ran) <= 51


def test_much_to_prune_goes_in_batches_and_the_other_duties_have_their_turn_between(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.store()
    mine = start(store)
    for _ in range(5):
        bring(store, State.COMPLETED, worker_id=mine)
    world.advance(3601)
    maintenance = watching(world, store, mine, keep=3600)

    turns = [maintenance.prune(2).more for _ in range(4)]

    assert turns == [True, True, False, False]
    assert store.counts()[State.COMPLETED] == 0


def test_when_a_duty_fails_though_the_store_answers_prune_is_due_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.store()
    mine = start(store)
    maintenance = watching(world, store, mine)
    before = {lag.duty: lag.seconds for lag in maintenance.lags()}
    monkeypatch.setattr(store, "due", lambda limit: failing(limit))

    for _ in range(4):
        maintenance.urgent.step()

    assert before["prune"] == 0.0
    assert {lag.duty: lag.seconds for lag in maintenance.lags()}["prune"] > 0.0
