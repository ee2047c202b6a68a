"""What people look at costs what it shows or may look at, however many jobs the SQLite file keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import apsw
import pytest

from tenure.core.lifecycle import State
from tenure.errors import InvalidOption
from tenure.ports import Filter, Store
from tenure.stores.sqlite import SqliteStore, file

BEGAN = 1_800_000_000_000
EACH_LOOK = 100  #: instructions of SQLite's machine, of which a row that is looked at costs some ten

#: A few jobs of every kind, the oldest; then completed and queued ones in turn, all of these in `bulk`.
FILL = """
    INSERT INTO jobs (id, state, task, queue, priority, run_at, solo, isolated, attempt, worker_id, started_at,
        last_activity_at, active_boot, ended_at, max_failures, max_crashes, retry_base, retry_cap, enqueued_at, meta,
        payload, error)
    WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < :most),
    kinds AS (SELECT n, CASE WHEN n < 5 THEN 'dead' WHEN n < 10 THEN 'processing' WHEN n < 15 THEN 'queued'
        WHEN n < 20 THEN 'scheduled' WHEN n % 2 THEN 'queued' ELSE 'completed' END AS state FROM numbers)
    SELECT printf('job-%d', n), state, 'work', iif(n < 20, 'default', 'bulk'), 0, :began + n, 0, 0, 1,
        iif(state = 'processing', 'w', NULL), :began + n, :began + n, 0,
        iif(state IN ('completed', 'dead'), :began + n, NULL), 1, 1, 1, 1, :began + n, '{}', '{}', 'boom'
    FROM kinds"""


class Meter:
    """Counts what SQLite's machine does on every connection opened since."""

    def __init__(self) -> None:
        self.looks = 0

    def watch(self, connection: apsw.Connection) -> None:
        connection.set_progress_handler(self._look, EACH_LOOK)

    def _look(self) -> bool:
        self.looks += 1
        return False

    def of(self, call: Callable[[], object]) -> int:
        before = self.looks
        call()
        return self.looks - before


@pytest.fixture
def meter() -> Iterator[Meter]:
    meter = Meter()
    apsw.connection_hooks.append(meter.watch)
    yield meter
    apsw.connection_hooks.remove(meter.watch)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Filling a file is one transaction, which a slow machine may keep open for longer than an application should."""
    monkeypatch.setattr(file, "TRANSACTION_SECONDS", 60.0)


def at(number: int) -> datetime:
    return datetime.fromtimestamp((BEGAN + number) / 1000, UTC)


def filled(path: Path, most: int) -> SqliteStore:
    store = SqliteStore(str(path))
    store.open()
    with store.transaction() as tx:
        tx.execute(FILL, {"most": most, "began": BEGAN})
    return store


def of_state(state: State, **wanted: str) -> Filter:
    return Filter(states=frozenset({state}), **wanted)  # type: ignore[arg-type]


def page(where: Filter, shown: int) -> Callable[[Store], None]:
    def look(store: Store) -> None:
        assert len(store.search(where, limit=20, within=200).jobs) == shown

    return look


def span(store: Store) -> None:
    assert store.ended(at(0), at(10**9), most=50, sample=10).counts[State.COMPLETED] == 50


LOOKS: dict[str, Callable[[Store], None]] = {
    "all": page(Filter(), 20),
    "the few dead": page(of_state(State.DEAD), 5),
    "the few that one worker runs": page(Filter(worker_id="w"), 5),
    "the few that run in one queue": page(of_state(State.PROCESSING, queue="default"), 5),
    "the few that wait in one queue": page(of_state(State.QUEUED, queue="default"), 5),
    "the few that are due later": page(of_state(State.SCHEDULED, queue="default"), 5),
    "the many that wait in another": page(of_state(State.QUEUED, queue="bulk"), 20),
    "the many that completed": page(of_state(State.COMPLETED), 20),
    "what ended since": page(Filter(ended_since=at(0)), 20),
    "what was enqueued at first": page(Filter(enqueued_until=at(5)), 0),
    "a task of which there is none": page(Filter(task="none"), 0),
    "a text that stands nowhere": page(Filter(text="nowhere"), 0),
    "what ended in a span": span,
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_costs_no_more_where_ten_times_as_many_are_kept(look: str, meter: Meter, tmp_path: Path) -> None:
    small, large = filled(tmp_path / "small.db", 1_000), filled(tmp_path / "large.db", 10_000)

    costs = [meter.of(partial(LOOKS[look], store)) for store in (small, large)]

    assert costs[1] <= 1.5 * costs[0] + 5
    assert costs[1] < 200
    small.close()
    large.close()


@pytest.mark.parametrize("where", [of_state(State.DEAD), Filter(worker_id="w")], ids=["dead", "of a worker"])
def test_a_page_without_a_bound_is_as_cheap_where_an_index_knows_the_jobs(
    where: Filter, meter: Meter, tmp_path: Path
) -> None:
    store = filled(tmp_path / "t.db", 10_000)

    assert meter.of(lambda: store.search(where)) < 20
    store.close()


def test_a_page_of_very_many_is_not_put_in_order_first(
    meter: Meter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.stores.sqlite.reads._GATHERED", 200)
    store = filled(tmp_path / "t.db", 10_000)
    where = Filter(states=frozenset({State.COMPLETED}), ended_since=at(0))

    assert meter.of(lambda: store.search(where, limit=20)) < 100
    store.close()


@pytest.mark.parametrize("cursor", ["before-", "before--1", "before-" + "9" * 19, "before-" + "9" * 5_000])
def test_a_cursor_that_no_row_can_have_is_refused(cursor: str, tmp_path: Path) -> None:
    store = filled(tmp_path / "t.db", 30)

    with pytest.raises(InvalidOption, match="cursor"):
        store.search(Filter(), cursor=cursor)
    store.close()
