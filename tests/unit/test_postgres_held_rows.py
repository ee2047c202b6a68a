"""An open transaction holds a row: only calls that need this row wait, and no verb waits for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from itertools import count
from math import inf
from pathlib import Path
from pkgutil import resolve_name
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from conformance.factories import claim, claim_one, draft, finish, look, made, put, running, start
from conformance.test_waiting import after, end, settle_waits
from proxy import Proxy
from servers import shared_postgres
from tenure import config
from tenure.core.lifecycle import Completed, Crashed, Failed, Outcome, Released, State
from tenure.errors import StoreAway, StoreBusy
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Busy, Landed, Progress
from tenure.ports.schedules import Change
from tenure.stores.postgres import PostgresStore, base, server, steps, workers
from tenure.stores.postgres.deadlines import Silent
from tenure.tasks.client import Client
from unit.fresh_postgres import other as other
from unit.fresh_postgres import store as store
from unit.fresh_postgres import url as url
from waiting import until

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    ("where", "verb"),
    [
        ("tenure.stores.postgres.schedules.check_drafts", "change"),  # fires a tick, among other things
        ("tenure.stores.postgres.workers.lost", "rescue"),
        ("tenure.stores.postgres.admission.Ask", "admit"),
        ("tenure.stores.postgres.steps.ending", "finish"),
        ("tenure.stores.postgres.workers.settled", "settle"),
        ("tenure.stores.postgres.operated._state", "cancel"),
    ],
)
def test_a_process_that_stops_while_it_has_rows_that_others_need_is_cut_off_and_tries_again(
    where: str, verb: str, store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by SIGSTOP, or on a host that is suspended: its session goes on, and would keep the locks."""
    stands, lease = made(store), running(store)
    store.declare_dead([lease.worker_id])
    put(store, links=after(lease.job_id))
    mine = running(store)
    known = resolve_name(where)
    stopped, goes_on, here = threading.Event(), threading.Event(), threading.get_ident()

    def stops(*given: Any) -> Any:
        if threading.get_ident() != here:
            stopped.set()
            assert goes_on.wait(60.0)
        return known(*given)

    monkeypatch.setattr(where, stops)
    calls: dict[str, Callable[[PostgresStore], Any]] = {
        "change": lambda each: each.change([Change(schedule=stands.but(jitter=1.0))]) == [True],
        "rescue": lambda each: [one.id for one in each.rescue()] == [lease.job_id],
        "admit": lambda each: not each.admit().more and each.waits().asks == 0,
        "finish": lambda each: each.finish([(mine, Failed("boom", final=True))]) == [Landed(State.DEAD)],
        "settle": lambda each: [one.id for one in each.settle(mine.worker_id, {}, Released())] == [mine.job_id],
        "cancel": lambda each: each.cancel([mine.job_id], "enough")[mine.job_id] is State.PROCESSING,
    }
    other = PostgresStore(url)
    other.open()

    def others_go_on() -> bool:
        with suppress(StoreBusy):
            return bool(calls[verb](other))
        return False

    with closing(other), ThreadPoolExecutor(1) as pool:
        late = pool.submit(calls[verb], store)
        try:
            assert stopped.wait(60.0)
            until(others_go_on, "the other process to do it", 20.0)
        finally:
            goes_on.set()
        late.result(60.0)  # it finds what the other process has done


def test_a_process_that_was_cut_off_tries_again_though_the_last_words_of_the_server_are_lost(
    store: PostgresStore, other: psycopg.Connection
) -> None:
    """A write on the line that the server has closed can discard what it had sent: then there is no code."""
    asked = list[int]()
    other.autocommit = True

    def step(connection: server.Connection) -> str:
        pid = connection.info.backend_pid
        asked.append(pid)
        if len(asked) > 1:
            return "done"
        there = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
        until(lambda: other.execute(there, (pid,)).fetchall() == [(0,)], "the server to end the session")
        raise psycopg.OperationalError("consuming input failed: server closed the connection unexpectedly")

    assert store._locking(step, sent=0) == "done"
    assert len(set(asked)) == 2

    def breaks(connection: server.Connection) -> None:
        asked.append(0)
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with pytest.raises(StoreAway):  # at once: that was no stop of this process
        store._locking(breaks, sent=0)
    assert asked.count(0) == 1


def test_a_server_that_does_not_answer_is_not_asked_again(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still be at work, with its locks: another try would wait for them."""
    boot, asked = count(0.0, 60.0), list[int]()
    monkeypatch.setattr(base, "monotonic", lambda: next(boot))

    def silent(connection: server.Connection) -> None:
        asked.append(1)
        raise Silent("no answer in 8s")

    with pytest.raises(StoreAway, match="no answer in 8s"):
        store._locking(silent, sent=0)
    assert len(asked) == 1


def test_a_claim_that_was_given_none_of_the_jobs_it_chose_chooses_again(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each had been changed between the statement's snapshot and its lock, but were still queued."""
    worker, job_id = start(store), put(store)
    run, none_of_two = store._server.run, [[(None, 2)]]
    monkeypatch.setattr(store._server, "run", lambda call: none_of_two.pop() if none_of_two else run(call))

    assert [each.id for each in claim(store, worker)] == [job_id]


def hold(other: psycopg.Connection, job_id: str) -> None:
    other.execute("SELECT FROM tenure.jobs WHERE id = %s FOR UPDATE", (job_id,))


def test_a_record_that_waited_for_another_of_its_key_is_that_one(
    store: PostgresStore, other: psycopg.Connection
) -> None:
    """Its snapshot is older than the record."""
    lease = running(store)
    hold(other, lease.job_id)
    with ThreadPoolExecutor(2) as pool:
        writes = [pool.submit(store.once, lease, "k", value) for value in ("1", "2")]
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND position('once' in query) > 0"
        )
        until(lambda: store._server.fetch(waiting) == [(2,)], "both to wait")
        other.rollback()
        first, second = (each.result(30.0) for each in writes)

    assert first is not None and first.value is not None and first == second


def test_the_server_ends_a_session_that_is_idle_in_a_transaction_for_a_minute(store: PostgresStore) -> None:
    """Whatever verb its process was stopped in."""
    assert store._server.fetch("SHOW idle_in_transaction_session_timeout") == [("1min",)]


def test_code_that_keeps_the_interpreter_for_more_than_a_second_delays_an_outcome_and_does_not_stop_it(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending, lease = steps.ending, running(store)

    def slowly(*given: Any) -> Any:
        time.sleep(1.5)  # as long as the whole process stands still
        return ending(*given)

    monkeypatch.setattr(steps, "ending", slowly)
    assert store.finish([(lease, Failed("boom", final=True))]) == [Landed(State.DEAD)]


@pytest.mark.parametrize("outcome", [Completed("1"), Failed("boom", retry_in=60)], ids=repr)
def test_a_row_that_is_held_holds_up_no_other_outcome(
    outcome: Outcome, store: PostgresStore, other: psycopg.Connection
) -> None:
    worker = start(store)
    held, free, failed = (running(store, worker) for _ in range(3))
    hold(other, held.job_id)

    answers = store.finish([(held, outcome), (free, Completed()), (failed, Failed("boom", final=True))])

    assert answers == [Busy(), Landed(State.COMPLETED), Landed(State.DEAD)]
    assert store.finish([(held, outcome)]) == [Busy()]
    other.rollback()
    assert isinstance(store.finish([(held, outcome)])[0], Landed)


def test_a_row_that_is_held_holds_up_no_other_progress(store: PostgresStore, other: psycopg.Connection) -> None:
    worker = start(store)
    held, free, lost = running(store, worker), running(store, worker), running(store, worker)._replace(attempt=9)
    hold(other, held.job_id)

    assert store.progress([Progress(lease=each, fraction=0.5) for each in (held, free, lost)]) == [True, True, False]

    assert look(store, free.job_id).progress == 0.5
    with pytest.raises(StoreBusy):
        store.progress([Progress(lease=held, checkpoint="7")])


def test_a_dead_worker_is_declared_and_its_other_jobs_go_on_while_its_transaction_lingers(
    store: PostgresStore, other: psycopg.Connection
) -> None:
    worker = start(store)
    held, free = running(store, worker), running(store, worker)
    hold(other, held.job_id)

    settled = store.settle(worker, {held.job_id: Crashed("killed", process_died=True)}, Released("a neighbour died"))

    assert [each.id for each in settled] == [free.job_id]
    assert look(store, free.job_id).crashes == 0
    assert store.renew([worker]) == frozenset()
    other.rollback()
    assert [each.id for each in store.rescue()] == [held.job_id]


def test_a_row_that_its_dead_worker_holds_for_a_moment_ends_as_its_supervisor_says(
    store: PostgresStore, other: psycopg.Connection, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage the server still runs what the dead worker sent last: no job is charged for that."""
    monkeypatch.setattr(workers, "HELD_MS", 60_000)
    worker = start(store)
    held = running(store, worker)
    hold(other, held.job_id)

    with ThreadPoolExecutor(1) as thread, psycopg.connect(url, autocommit=True) as looking:
        settling = thread.submit(store.settle, worker, {}, Released("its lease could not be renewed"))
        until(lambda: looking.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall(), "the settling to wait")
        other.rollback()
        settled = settling.result()

    assert [each.id for each in settled] == [held.job_id]
    assert (look(store, held.job_id).state, look(store, held.job_id).crashes) == (State.QUEUED, 0)


def test_a_due_job_that_is_held_is_not_asked_for_without_a_pause(
    store: PostgresStore, other: psycopg.Connection
) -> None:
    held, free = put(store, delay=0.001), put(store, queue="b", delay=0.001)
    hold(other, held)
    while "b" not in (promoted := store.promote()).jobs:
        assert promoted.next_due is not None

    waiting = store.promote()

    assert waiting.jobs == {}
    assert waiting.next_due is not None
    assert waiting.next_due > 0
    assert look(store, free).state is State.QUEUED
    other.rollback()
    assert store.promote().jobs == {"default": [held]}


def test_a_cancel_waits_for_who_changes_the_job(store: PostgresStore, other: psycopg.Connection) -> None:
    held = put(store)
    hold(other, held)

    with pytest.raises(StoreBusy, match="open transaction"):
        store.cancel([held], "unwanted")
    other.rollback()

    assert store.cancel([held], "unwanted") == {held: State.CANCELLED}


def test_a_replayed_job_does_not_go_on_with_a_result_that_is_taken_back_meanwhile(
    store: PostgresStore, other: psycopg.Connection
) -> None:
    parent = put(store)
    child = put(store, links=after(parent))
    settle_waits(store)
    end(store, parent)
    settle_waits(store)
    end(store, child)
    settle_waits(store)
    hold(other, parent)  # as a replay that has found no live child does
    other.execute("UPDATE tenure.jobs SET state = 'queued', ended_at = NULL, result = NULL WHERE id = %s", (parent,))

    assert store.replay([child]) == {child: Landed(State.WAITING)}

    other.commit()
    assert settle_waits(store) == []
    end(store, parent)
    assert settle_waits(store) == [child]


def test_settings_of_a_callers_transaction_end_with_it(store: PostgresStore) -> None:
    with store.transaction() as tx:
        tx.execute("SET synchronous_commit = off; SET statement_timeout = '1h'; SET default_transaction_read_only = on")

    shown = "SELECT current_setting('synchronous_commit'), current_setting('statement_timeout')"
    assert store._server.fetch(shown) == [("on", "0")]
    assert finish(store, running(store), Completed()) is State.COMPLETED


@contextmanager
def line(url: str) -> Iterator[tuple[Proxy, PostgresStore]]:
    """A store behind a proxy."""
    parts = urlsplit(url)
    with Proxy(parts.hostname or "", parts.port or 0) as proxy:
        through = PostgresStore(parts._replace(netloc=parts.netloc.replace(str(parts.port), str(proxy.port))).geturl())
        through.open()
        yield proxy, through
        proxy.heal()
        through.close()


def test_operators_take_more_than_a_slow_line_lets_a_verb_do(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [put(store) for _ in range(100)]
    monkeypatch.setattr(base, "OPERATED_SECONDS", 0.5)
    monkeypatch.setattr(base, "cut_off_after", lambda *_: inf)  # a process that is held up has not stopped
    with line(url) as (proxy, through):
        monkeypatch.setattr(server.Server.run, "__defaults__", (60.0,))
        proxy.latency(0.005)  # four round trips a job: four seconds

        assert through.cancel(["no id", *jobs, jobs[0]], "not wanted") == {
            "no id": None,
            **dict.fromkeys(jobs, State.CANCELLED),
        }
        assert through.replay(jobs) == dict.fromkeys(jobs, Landed(State.QUEUED))


def test_a_connection_that_hears_nothing_more_is_given_up(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with line(url) as (proxy, through):
        worker = start(through)
        proxy.blackhole()
        with monkeypatch.context() as hurry:  # only here: answers that come may be late
            hurry.setattr(server.Server.fetch, "__kwdefaults__", {"seconds": 1.0})
            with pytest.raises(StoreAway, match="out of reach"):
                through.renew([worker])
        proxy.heal()

        assert through.renew([worker]) == {worker}


def test_a_database_that_cannot_hold_every_text_is_refused(url: str) -> None:
    databases = shared_postgres()
    name = f"narrow_{token_hex(4)}"
    databases.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' LOCALE_PROVIDER libc TEMPLATE template0")
    try:
        with pytest.raises(Exception, match="LATIN1, which can't hold every text"):
            PostgresStore(databases.url(name)).migrate()
    finally:
        databases.execute(f"DROP DATABASE {name} WITH (FORCE)")  # the session that was refused may not be over


def test_claims_step_over_what_is_held(store: PostgresStore, other: psycopg.Connection) -> None:
    held, free = put(store), put(store)
    hold(other, held)

    assert [each.id for each in claim(store, start(store), 2)] == [free]
    other.rollback()
    assert claim_one(store, start(store)).job_id == held


def test_a_key_that_an_open_transaction_holds_keeps_no_other_caller_waiting(
    store: PostgresStore, url: str, tmp_path: Path
) -> None:
    """40 callers, every tenth with the held key: all the others have their answers before one of these gives up."""
    jobs = Client(PostgresStore(url), PollNotifier(), config.load(environ={}, folder=tmp_path))
    jobs.store.open()
    order: list[bool] = []

    async def call(n: int) -> None:
        hot = n % 10 == 0
        key = "hot" if hot else f"own {n}" if n % 3 == 0 else None
        with suppress(StoreBusy):
            await jobs.aenqueue([draft(unique=key)])
        order.append(hot)

    async def main() -> None:
        await jobs.aenqueue([draft()])
        await asyncio.gather(*(call(n) for n in range(40)))

    with jobs.store.transaction() as tx:
        jobs.store.enqueue([draft(unique="hot")], tx=tx)
        asyncio.run(main())
    jobs.close()

    assert order == [False] * 36 + [True] * 4


def test_log_lines_do_not_undo_a_finish_in_a_transaction_with_an_older_snapshot(
    store: PostgresStore, other: psycopg.Connection
) -> None:
    lease = running(store, start(store))
    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    other.execute("SELECT 1 FROM tenure.jobs")

    assert store.progress([Progress(lease=lease, log="a line")]) == [True]
    assert store.finish([(lease, Completed("7"))], tx=other) == [Landed(State.COMPLETED)]
    other.commit()

    assert look(store, lease.job_id).state is State.COMPLETED
    assert store.logs(lease.job_id) == {1: "a line"}
