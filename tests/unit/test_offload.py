"""Large values are kept in a bucket, found there again, and never lost because it is slow, away, full or lying."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from secrets import token_hex
from time import monotonic, time
from typing import Any

import pytest

from conformance.factories import claim, draft, finish, look, put, running, start
from servers import shared_postgres, shared_valkey
from tenure import Job, Tenure
from tenure.app.backends import open_store, rotation, shown
from tenure.codecs import AesSiv
from tenure.core.clock import Clock
from tenure.core.conditions import Condition
from tenure.core.lifecycle import Completed, Lease, State
from tenure.core.offloaded import MARK, is_offloaded, offloaded
from tenure.errors import BucketAway, InvalidArguments, InvalidOption, NotFetched, Refused
from tenure.operations.explain import explain
from tenure.ports import Filter, Place, Progress, Text
from tenure.stores import offload
from tenure.stores.memory import MemoryStore
from tenure.stores.offload import OffloadStore
from tenure.stores.offload.bucket import Entry, Folder
from tenure.stores.offload.sweep import EVERY, MARKS, VALUES, Sweep
from tenure.stores.sealed import beneath
from tenure.worker import slots, worker
from tenure.worker.executor import Attempt
from waiting import until

LIMIT = 60.0
MOST = 1024  #: bytes in a row
BIG = "x" * 3000
LARGEST: dict[Place, int] = {"payload": MOST, "result": MOST, "checkpoint": MOST, "once": MOST}
DAY = 86_400.0
GRACE = 2 * DAY


class Moody(Folder):
    """A folder that can be away, full, slow, or give another object."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.root = path
        self.refuses: Exception | None = None
        self.lies: bytes | None = None
        self.answers = threading.Event()
        self.answers.set()
        self.calls = list[str]()

    def put(self, name: str, data: bytes) -> None:
        self._call(f"put {name}")
        super().put(name, data)

    def get(self, name: str, size: int) -> bytes:
        self._call(f"get {name}")
        return super().get(name, size) if self.lies is None else self.lies

    def names(self, folder: str, after: str, limit: int) -> list[Entry]:
        self._call(f"names {folder}")
        return super().names(folder, after, limit)

    def _call(self, call: str) -> None:
        self.calls.append(call)
        assert self.answers.wait(60)
        if self.refuses is not None:
            raise self.refuses

    def objects(self, folder: str = VALUES) -> list[str]:
        return [each.name for each in Folder(self.root).names(folder, "", 1000)]

    def age(self, seconds: float) -> None:
        """Make everything there this much older."""
        for path in self.root.rglob("*"):
            if path.is_file():
                modified = path.stat().st_mtime - seconds
                os.utime(path, (modified, modified))


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Moody]:
    yield (moody := Moody(tmp_path / "values"))
    moody.answers.set()


@pytest.fixture
def store(bucket: Moody) -> Iterator[OffloadStore]:
    yield (made := OffloadStore(MemoryStore(), bucket, LARGEST, GRACE))
    made.close()


# ── What is large ──


def json_of(size: int) -> str:
    return f'"{"x" * (size - 2)}"'


@pytest.mark.parametrize(
    ("payload", "elsewhere"),
    [
        (json_of(MOST - 1), False),
        (json_of(MOST), False),
        (json_of(MOST + 1), True),
        (f'"{"ä" * (MOST // 2 - 1)}"', False),
        (f'"{"ä" * (MOST // 2)}"', True),
        (offloaded(b"somebody's"), True),
        (f'{MARK}9:new"', True),
    ],
    ids=["below", "at the limit", "above", "at it in bytes", "above in bytes", "looks like one", "of a later form"],
)
def test_what_is_larger_than_a_row_may_be_is_kept_elsewhere(store: OffloadStore, payload: str, elsewhere: bool) -> None:
    lease = running(store, payload=payload)
    assert store.progress([Progress(lease=lease, checkpoint=payload)]) == [True]
    assert store.once(lease, "k", payload) == store.once(lease, "k", "1")
    assert finish(store, lease, Completed(payload)) is State.COMPLETED

    job = look(store, lease.job_id)
    stored: dict[Place, str] = {"payload": job.payload, "result": job.result or "", "checkpoint": job.checkpoint or ""}
    stored["once"] = store.beneath.records(lease.job_id)["k"]
    for place, text in stored.items():
        assert (text != payload) == elsewhere
        assert store.fetch(Text(place, lease.job_id, "k" if place == "once" else "", text)) == payload


def test_an_outcome_that_is_sent_again_is_recognised(store: OffloadStore) -> None:
    lease = running(store)

    assert [finish(store, lease, Completed(json_of(5000))) for _ in range(2)] == [State.COMPLETED] * 2
    assert finish(store, lease, Completed(json_of(5001))) is None


def test_a_value_of_another_job_is_not_reached(store: OffloadStore) -> None:
    first, second = (put(store, payload=json_of(5000 + n)) for n in range(2))

    with pytest.raises(NotFetched, match="has no"):
        store.fetch(Text("payload", second, "", look(store, first).payload))


# ── Through an app ──


def app(folder: Path, **options: Any) -> Tenure:
    given = {"url": f"sqlite:///{folder}/tenure.db", "offload": f"file://{folder}/values", **options}
    jobs = Tenure(**given)
    open_store(jobs.settings).migrate()

    @jobs.task
    def echo(text: str) -> str:
        return text

    @jobs.task
    async def aecho(job: Job, text: str) -> str:
        ended = await job.ajoin(echo.handle(text.split()[0]))
        return ended.value

    @jobs.task
    def grow(job: Job[str], size: int) -> str:
        job.progress(0.5, checkpoint="c" * size)
        return "x" * size

    @jobs.task(stale_after="2s")
    def watched_text(job: Job, text: str) -> int:
        return len(text)

    @jobs.task(stale_after="2s")
    def watched(job: Job, size: int) -> str:
        return "x" * size

    @jobs.task(stale_after="2s", timeout="60s")
    async def reports(job: Job[str], size: int) -> None:
        job.progress(0.0, checkpoint="c" * size)
        while (job.checkpoint or "") != "enough":
            job.progress()
            await asyncio.sleep(0.05)

    @jobs.task(retry=1)
    def keeps(job: Job, size: int) -> str:
        return job.once("key", lambda: "x" * size)

    @jobs.task(timeout="30s")
    def work(job: Job[str], text: str) -> str:
        job.progress(checkpoint=text)
        job.flush()
        assert job.once("key", lambda: text) == text
        (found,) = job.gather("children", lambda: [echo.bind(text)])
        assert job.checkpoint == text or job.attempt == 1
        return found

    return jobs


def postgres() -> dict[str, Any]:
    return {"url": shared_postgres().url(), "namespace": f"offload_{token_hex(4)}"}


def redis() -> dict[str, Any]:
    return {"url": shared_valkey().url, "namespace": f"offload_{token_hex(4)}"}


KEY = AesSiv.new_key()
APPS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "encrypted": lambda: {"codec": AesSiv(KEY)},
    "postgres": lambda: {**postgres(), "codec": AesSiv(KEY)},
    "redis": lambda: {**redis(), "codec": AesSiv(KEY)},
}
plain = pytest.mark.parametrize("jobs", [dict], indirect=True)


@pytest.fixture(
    params=[
        pytest.param(each, id=name, marks=() if name == "encrypted" else pytest.mark.thorough)
        for name, each in APPS.items()
    ]
)
def jobs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tenure]:
    monkeypatch.setenv("TENURE_MAX_PAYLOAD", str(MOST))
    monkeypatch.setenv("TENURE_MAX_RESULT", str(MOST))
    with app(tmp_path, **request.param()) as made:
        yield made


@pytest.fixture
def behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Moody:
    """The bucket of the app."""
    moody = Moody(tmp_path / "values" / "tenure")
    monkeypatch.setattr(offload, "bucket_of", lambda url, namespace: moody)
    return moody


def test_large_values_go_through_a_job_and_back(jobs: Tenure) -> None:
    echo, work, aecho = (jobs.tasks[name] for name in ("echo", "work", "aecho"))
    with jobs.worker(concurrency=3):
        handle = work.enqueue(BIG)
        assert handle.result("60s") == BIG
        first = echo.enqueue(BIG)
        assert aecho.enqueue(f"{first.id} {BIG}").result("60s") == BIG
        with jobs.flow("both") as flow:
            last = flow.add(echo.bind(flow.add(echo.bind(BIG)).output))
        assert last.handle.result("60s") == BIG
    shown = look(jobs.client().store, str(handle.id))
    assert BIG not in repr(shown)


async def large_from_a_loop(jobs: Tenure) -> str:
    async with jobs.worker(concurrency=1):
        handle = await jobs.tasks["echo"].aenqueue(BIG)
        found: str = await handle.aresult("60s")
        return found


def test_large_values_go_there_from_an_event_loop(jobs: Tenure) -> None:
    assert asyncio.run(large_from_a_loop(jobs)) == BIG


# ── A bucket that fails ──

FAULTS: dict[str, Callable[[Moody], None]] = {
    "it is away": lambda moody: setattr(moody, "refuses", ConnectionRefusedError("connection refused")),
    "it gives another object": lambda moody: setattr(moody, "lies", b'{"text":"yours"}'),
    "it gives nothing": lambda moody: setattr(moody, "lies", b""),
    "it has lost it": lambda moody: shutil.move(moody.root, moody.root.with_name("lost")),
}


@plain
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_job_whose_arguments_are_not_there_waits_uncharged_and_says_why(
    behind: Moody, jobs: Tenure, fault: Callable[[Moody], None]
) -> None:
    handle = jobs.tasks["echo"].enqueue(BIG)
    store, job_id = jobs.client().store, str(handle.id)
    fault(behind)
    with jobs.worker(concurrency=1):
        until(lambda: handle.status().attempt == 1 and handle.status().state == "scheduled", "it is snoozed")
        job = look(store, job_id)
        assert (job.failures, job.crashes, job.error) == (0, 0, None)
        assert store.attempts(job_id)[0].error.startswith(f"this worker can't fetch the payload of job {job_id}: ")
        assert "could not fetch the payload" in explain(store, job).verdict

        behind.refuses = behind.lies = None
        if not behind.root.exists():
            shutil.move(behind.root.with_name("lost"), behind.root)
        store.promote_now([job_id])
        jobs.client().notifier.announce([])
        assert handle.result("60s") == BIG


# No other job waits for the bucket.

STOPS: dict[str, Callable[[Moody], None]] = {
    "away": lambda moody: setattr(moody, "refuses", ConnectionRefusedError("connection refused")),
    "full": lambda moody: setattr(moody, "refuses", OSError(28, "No space left on device")),
    "slow": lambda moody: moody.answers.clear(),
}


def works_again(moody: Moody) -> None:
    moody.refuses = moody.lies = None
    moody.answers.set()


@plain
@pytest.mark.parametrize(
    "stop",
    [pytest.param(each, marks=() if name == "slow" else pytest.mark.thorough) for name, each in STOPS.items()],
    ids=STOPS,
)
def test_other_jobs_of_the_worker_go_on_while_the_bucket_takes_nothing(
    behind: Moody, jobs: Tenure, stop: Callable[[Moody], None]
) -> None:
    echo, grow = jobs.tasks["echo"], jobs.tasks["grow"]
    stop(behind)
    with jobs.worker(concurrency=1):
        large = [grow.enqueue(5000 + n) for n in range(20)]  # more than there are threads for the bucket
        small = [echo.enqueue(f"small {n}") for n in range(3)]
        assert [each.result("60s") for each in small] == ["small 0", "small 1", "small 2"]
        assert {each.status().state for each in large} == {"processing"}
        works_again(behind)
        assert [len(each.result("60s")) for each in large] == [5000 + n for n in range(20)]
    stored = [look(jobs.client().store, str(each.id)) for each in large]
    assert {(job.attempt, job.failures, job.crashes) for job in stored} == {(1, 0, 0)}
    assert all(is_offloaded(job.checkpoint or "") for job in stored)


@plain
@pytest.mark.thorough
def test_a_job_whose_result_waits_for_the_bucket_is_not_taken_for_one_that_hangs(behind: Moody, jobs: Tenure) -> None:
    store = jobs.client().store
    behind.refuses = ConnectionRefusedError("refused")
    with jobs.worker(concurrency=1):
        handle = jobs.tasks["watched"].enqueue(5000)
        until(lambda: behind.calls, "its result is brought there")
        seen = {look(store, str(handle.id)).last_activity_at}
        until(lambda: seen.add(look(store, str(handle.id)).last_activity_at) or len(seen) > 2, "it is active")
        behind.refuses = None
        assert len(handle.result("60s")) == 5000
    job = look(store, str(handle.id))
    assert (job.attempt, job.crashes_total) == (1, 0)


@plain
@pytest.mark.thorough
def test_a_job_that_reports_is_active_while_its_checkpoint_waits_for_the_bucket(behind: Moody, jobs: Tenure) -> None:
    store = jobs.client().store
    behind.refuses = ConnectionRefusedError("refused")
    with jobs.worker(concurrency=1):
        handle = jobs.tasks["reports"].enqueue(5000)
        until(lambda: behind.calls, "its checkpoint is brought there")
        seen = {look(store, str(handle.id)).last_activity_at}
        until(lambda: seen.add(look(store, str(handle.id)).last_activity_at) or len(seen) > 3, "it is active")
        job = look(store, str(handle.id))
        assert (job.checkpoint, job.attempt, job.crashes_total) == (None, 1, 0)
        behind.refuses = None
        until(lambda: look(store, str(handle.id)).checkpoint, "its checkpoint is stored")
        handle.cancel()


@plain
@pytest.mark.thorough
def test_a_job_whose_arguments_are_fetched_is_not_taken_for_one_that_hangs(behind: Moody, jobs: Tenure) -> None:
    store = jobs.client().store
    handle = jobs.tasks["watched_text"].enqueue(BIG)
    behind.answers.clear()
    behind.calls.clear()
    with jobs.worker(concurrency=1):
        until(lambda: behind.calls, "they are fetched")
        seen = {look(store, str(handle.id)).last_activity_at}
        until(lambda: seen.add(look(store, str(handle.id)).last_activity_at) or len(seen) > 2, "it is active")
        assert handle.status().attempt == 1
        behind.answers.set()
        assert handle.result("60s") == 3000


@plain
def test_a_record_that_the_bucket_does_not_take_costs_no_failure_however_often(behind: Moody, jobs: Tenure) -> None:
    store = jobs.client().store
    handle = jobs.tasks["keeps"].enqueue(1100)
    behind.refuses = PermissionError("access denied")
    with jobs.worker(concurrency=1):
        for tries in range(1, 8):
            until(lambda: len(store.attempts(str(handle.id))) == tries, "it is put off")  # noqa: B023
            assert handle.status().failures == 0
            if tries == 7:
                behind.refuses = None
            store.promote_now([str(handle.id)])
            jobs.client().notifier.announce([])
        assert len(handle.result("60s")) == 1100


class Away:
    """A codec whose key server does not answer for a while."""

    def __init__(self) -> None:
        self.codec, self.fails = AesSiv(KEY), 0

    @property
    def key(self) -> str:
        return self.codec.key

    def encode(self, data: bytes, about: str) -> bytes:
        if self.fails and about.startswith("result"):
            self.fails -= 1
            raise ConnectionRefusedError("the key server refuses")
        return self.codec.encode(data, about)

    def decode(self, data: bytes, about: str, key: str) -> bytes:
        return self.codec.decode(data, about, key)


def test_a_codec_that_fails_for_a_moment_costs_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_MAX_RESULT", str(MOST))
    codec = Away()
    with app(tmp_path, codec=codec) as jobs, jobs.worker(concurrency=1):
        codec.fails = 3
        handle = jobs.tasks["grow"].enqueue(5000)
        assert len(handle.result("60s")) == 5000
        assert (handle.status().attempt, codec.fails) == (1, 0)


@plain
@pytest.mark.thorough
def test_a_worker_whose_memory_is_full_of_results_claims_nothing_more(
    behind: Moody, jobs: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "MAX_KEPT", 9000)
    stop, grow = STOPS["slow"], jobs.tasks["grow"]
    stop(behind)
    with jobs.worker(concurrency=1):
        large = [grow.enqueue(5000 + n) for n in range(3)]
        until(lambda: [each.status().state for each in large[:2]] == ["processing"] * 2, "two have ended")
        with pytest.raises(TimeoutError):
            large[2].result("300ms")
        assert large[2].status().state == "queued"
        works_again(behind)
        assert [len(each.result("60s")) for each in large] == [5000, 5001, 5002]


@plain
@pytest.mark.thorough
def test_a_worker_that_must_stop_before_the_bucket_takes_a_result_gives_the_job_back(
    behind: Moody, jobs: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "KEEP_SECONDS", 0.1)
    behind.refuses = ConnectionRefusedError("refused")
    with jobs.worker(concurrency=1):
        handle = jobs.tasks["watched"].enqueue(5000)
        until(lambda: behind.calls, "its result is brought there")
    behind.refuses = None
    with jobs.worker(concurrency=1):
        assert len(handle.result("60s")) == 5000
    assert (handle.status().attempt, handle.status().failures) == (2, 0)


@plain
def test_a_time_limit_begins_when_the_arguments_are_there(
    behind: Moody, jobs: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = list[bool]()
    monkeypatch.setattr(Attempt, "_begin_timer", lambda attempt: began.append(attempt.is_elsewhere()))
    handle = jobs.tasks["work"].enqueue(BIG)
    behind.answers.clear()
    behind.calls.clear()
    with jobs.worker(concurrency=2):
        until(lambda: behind.calls, "it is fetching")
        assert began == []
        behind.answers.set()
        assert handle.result("60s") == BIG
    assert began == [False] * 3  # it, its child, and it again


def test_claims_beats_and_reads_do_not_touch_the_bucket(store: OffloadStore, bucket: Moody) -> None:
    worker_id = start(store)
    job_id = put(store, payload=json_of(5000))
    bucket.calls.clear()

    (claimed,) = claim(store, worker_id)
    store.owned(worker_id)
    look(store, job_id)
    store.updates({job_id: ""})

    assert is_offloaded(claimed.payload)
    assert bucket.calls == []


def test_nothing_is_stored_if_the_bucket_does_not_take_it(store: OffloadStore, bucket: Moody) -> None:
    bucket.refuses = PermissionError("access denied")

    with pytest.raises(BucketAway, match="3,002 bytes: access denied"):
        store.enqueue([draft(payload='"small"'), draft(payload=json_of(3002))])
    assert store.search(Filter()).jobs == ()


def test_a_call_of_the_bucket_is_bounded(store: OffloadStore, bucket: Moody, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = put(store, payload=json_of(5000))
    monkeypatch.setattr(offload, "WAIT_SECONDS", 0.05)  # only now: a busy machine may take longer to put it there
    bucket.answers.clear()

    with pytest.raises(NotFetched, match="no answer for"):
        store.fetch(Text("payload", job_id, "", look(store, job_id).payload))
    with pytest.raises(BucketAway, match="has not answered"):
        store.enqueue([draft(payload=json_of(6000))])


def test_that_a_bucket_fails_is_logged_once(
    store: OffloadStore, bucket: Moody, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.refuses = ConnectionRefusedError("refused")
    for _ in range(3):
        with pytest.raises(BucketAway):
            put(store, payload=json_of(5000))
    bucket.refuses = None
    put(store, payload=json_of(5000))

    said = [record.getMessage() for record in caplog.records]
    assert [text.removeprefix(str(bucket)) for text in said if text.startswith(str(bucket))] == [
        " does not answer as it should; what needs it waits: refused",
        " answers again",
    ]


# ── The sweep ──


def walk(store: OffloadStore, batch: int = 1000) -> int:
    """A whole walk, due or not; how many objects it deleted."""
    return store._sweep.whole(batch).deleted


def values_of(store: OffloadStore, lease: Lease) -> None:
    """A running job with a value in each place."""
    assert store.progress([Progress(lease=lease, checkpoint=json_of(5001))]) == [True]
    assert store.once(lease, "k", json_of(5002)) is not None


def test_many_values_go_into_the_bucket_side_by_side_and_once_each(
    store: OffloadStore, bucket: Moody, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload, "MOST_KEPT", 3)
    texts = [Text("payload", draft().id, "", json_of(3000 + n)) for n in range(40)]
    bucket.answers.clear()

    keeping = store.keep(texts)

    assert keeping is not None
    until(lambda: len(bucket.calls) == offload.THREADS, "each thread to have begun with one")
    bucket.answers.set()
    keeping.result(LIMIT)
    assert len(bucket.calls) == len(set(bucket.calls)) == len(bucket.objects()) == 40


def test_one_of_many_values_that_the_bucket_does_not_take_is_told_when_all_have_been_tried(
    store: OffloadStore, bucket: Moody
) -> None:
    texts = [Text("payload", draft().id, "", json_of(3000 + n)) for n in range(40)]
    bucket.refuses = ConnectionRefusedError("refused")

    keeping = store.keep(texts)

    assert keeping is not None
    with pytest.raises(BucketAway, match="refused"):
        keeping.result(LIMIT)
    assert len(bucket.calls) == 40


async def many(jobs: Tenure, number: int) -> int:
    echo = jobs.tasks["echo"]
    return len(await jobs.aenqueue_many([echo.bind(f"{n}{BIG}") for n in range(number)]))


def test_more_values_than_are_remembered_are_enqueued(
    behind: Moody, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload, "MOST_KEPT", 3)
    monkeypatch.setenv("TENURE_MAX_PAYLOAD", str(MOST))

    with app(tmp_path) as jobs:
        assert asyncio.run(asyncio.wait_for(many(jobs, 20), LIMIT)) == 20

    assert len(behind.objects()) == 20


def test_what_a_row_names_stays_and_what_none_names_goes_after_the_grace(store: OffloadStore, bucket: Moody) -> None:
    lease = running(store, payload=json_of(5000))
    values_of(store, lease)
    store.progress([Progress(lease=lease, checkpoint=json_of(5003))])  # no row names 5001 any more
    finish(store, lease, Completed(json_of(5004)))
    bucket.age(30 * DAY)

    assert (walk(store), len(bucket.objects()), len(bucket.objects(MARKS))) == (0, 5, 1)
    bucket.age(GRACE - 60)
    assert (walk(store), len(bucket.objects())) == (0, 5)
    bucket.age(120)
    assert (walk(store), len(bucket.objects()), bucket.objects(MARKS)) == (1, 4, [])

    store.delete([lease.job_id])
    assert (walk(store), len(bucket.objects()), len(bucket.objects(MARKS))) == (0, 4, 4)
    bucket.age(GRACE + 60)
    assert (walk(store), bucket.objects(), bucket.objects(MARKS)) == (4, [], [])


def test_the_orphan_of_a_transaction_that_was_rolled_back_goes(store: OffloadStore, bucket: Moody) -> None:
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        store.enqueue([draft(payload=json_of(5000))], tx=tx)
        walk(store)  # it may yet be committed
        raise ZeroDivisionError
    assert len(bucket.objects()) == 1
    bucket.age(GRACE + 60)
    assert (walk(store), bucket.objects(), bucket.objects(MARKS)) == (1, [], [])


def test_one_that_is_named_again_loses_its_mark(store: OffloadStore, bucket: Moody) -> None:
    lease = running(store, payload=json_of(1))
    for size in (5001, 5002):
        store.progress([Progress(lease=lease, checkpoint=json_of(size))])
    walk(store)
    bucket.age(GRACE + 60)
    store.progress([Progress(lease=lease, checkpoint=json_of(5001))])

    assert walk(store) == 0
    store.delete([lease.job_id]), finish(store, lease, Completed("1")), store.delete([lease.job_id])
    bucket.age(GRACE - 60)
    assert walk(store) == 0  # unnamed only just now; the earlier mark is gone
    assert len(bucket.objects()) == 2


def test_what_was_written_again_just_now_is_not_swept(store: OffloadStore, bucket: Moody) -> None:
    """The row that names it may be written next."""
    store.delete([put(store, payload=json_of(5000))])
    walk(store)
    bucket.age(GRACE + 60)
    (name,) = bucket.objects()
    bucket.put(f"{VALUES}/{name}", json_of(5000).encode())

    assert walk(store) == 0


def test_what_is_written_again_while_rows_are_read_is_not_swept(
    store: OffloadStore, bucket: Moody, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.delete([put(store, payload=json_of(5000)), gone := put(store, payload=json_of(5001))])
    walk(store)
    bucket.age(GRACE + 60)
    (name,) = [each for each in bucket.objects() if gone not in each]
    named = Sweep._named

    def late(sweep: Sweep, job_id: str) -> Iterable[str]:
        """The row of the first names it again, and that is read too early."""
        found = named(sweep, job_id)
        if job_id in name:
            bucket.put(f"{VALUES}/{name}", json_of(5000).encode())
        return found

    monkeypatch.setattr(Sweep, "_named", late)
    assert (walk(store), bucket.objects()) == (1, [name])


def test_what_is_written_again_while_others_are_deleted_is_not_swept(
    store: OffloadStore, bucket: Moody, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = [put(store, payload=json_of(5000 + number)) for number in range(3)]
    store.delete(gone)
    walk(store)
    bucket.age(GRACE + 60)
    *_, last = sorted(bucket.objects())
    delete = bucket.delete

    def slow(names: Sequence[str]) -> None:
        """Meanwhile another process stores the value of the last one again."""
        delete(names)
        if f"{VALUES}/{last}" not in names and last in bucket.objects():
            bucket.put(f"{VALUES}/{last}", b"again")

    monkeypatch.setattr(bucket, "delete", slow)
    assert (walk(store), bucket.objects()) == (2, [last])


def test_nothing_is_stored_in_place_of_a_folder_that_is_not_mounted(store: OffloadStore, bucket: Moody) -> None:
    put(store, payload=json_of(5000))  # of a new store the folder is made
    walk(store)
    share = bucket.root.rename(bucket.root.with_name("share"))

    for call in (lambda: put(store, payload=json_of(5001)), lambda: walk(store)):
        with pytest.raises(BucketAway, match="is not there, and this store has kept its values in it: is it mounted"):
            call()
    assert not bucket.root.exists()

    share.rename(bucket.root)
    put(store, payload=json_of(5001))
    assert len(bucket.objects()) == 2


def test_a_store_from_the_backup_of_yesterday_has_its_values(tmp_path: Path, bucket: Moody) -> None:
    from tenure.stores.sqlite import SqliteStore

    def opened(name: str) -> OffloadStore:
        clock = Clock(time, monotonic, "the-only-boot")
        made = OffloadStore(SqliteStore(str(tmp_path / name), clock=clock), bucket, LARGEST, GRACE)
        made.open()
        return made

    today = opened("today.db")
    lease = running(today, payload=json_of(5000))
    finish(today, lease, Completed(json_of(5001)))
    bucket.age(7 * DAY)
    walk(today)
    today.backup(str(tmp_path / "yesterday.db"))
    today.delete([lease.job_id])
    since = put(today, payload=json_of(5002))
    for _ in range(24):
        walk(today)
        bucket.age(DAY / 24)
    today.close()

    restored = opened("yesterday.db")
    job = look(restored, lease.job_id)
    assert restored.fetch(Text("payload", job.id, "", job.payload)) == json_of(5000)
    assert restored.fetch(Text("result", job.id, "", job.result or "")) == json_of(5001)
    bucket.age(GRACE)
    assert walk(restored) == 0  # what was stored since the backup is unnamed from now on
    assert any(since in name for name in bucket.objects())
    bucket.age(GRACE + 60)
    assert (walk(restored), len(bucket.objects())) == (1, 2)
    restored.close()


@pytest.mark.parametrize("batch", [1, 2, 3, 7])
def test_a_walk_in_small_steps_does_the_same_and_may_be_cut(store: OffloadStore, bucket: Moody, batch: int) -> None:
    ids = [put(store, payload=json_of(5000 + n)) for n in range(12)]
    store.delete(ids[::2])
    walk(store, batch)
    bucket.age(GRACE + 60)

    assert store._sweep.walk(batch)
    again = OffloadStore(store.beneath, bucket, LARGEST, GRACE)  # another process, from the beginning
    walk(again, batch)
    again.close()

    assert sorted(name[3:39] for name in bucket.objects()) == sorted(ids[1::2])
    assert bucket.objects(MARKS) == []


def test_marks_without_their_objects_hide_no_other_mark(store: OffloadStore, bucket: Moody) -> None:
    """A process was killed between the two deletions."""
    for n in range(6):
        bucket.put(f"{MARKS}/00/{n}0000000-0000-7000-8000-000000000000.{'0' * 64}", b"")
    store.delete([put(store, payload=json_of(5000))])
    walk(store, 1)
    bucket.age(GRACE + 60)

    assert (walk(store, 1), bucket.objects(), bucket.objects(MARKS)) == (1, [], [])


def test_one_process_walks_in_an_hour(store: OffloadStore, bucket: Moody) -> None:
    put(store, payload=json_of(5000))
    other = OffloadStore(store.beneath, bucket, LARGEST, GRACE)
    bucket.calls.clear()

    assert store.sweep(1) == 0.0  # there is more
    assert 0 < other.sweep(1) <= EVERY
    assert store.sweep(1) == EVERY
    assert 0 < store.sweep(1) <= EVERY
    assert bucket.calls.count(f"names {VALUES}") == 2
    other.close()


def test_a_process_whose_clock_was_ahead_stops_no_sweep(
    store: OffloadStore, bucket: Moody, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as ahead:
        ahead.setattr("tenure.stores.offload.sweep.time", lambda: time() + 365 * DAY)
        store.sweep(1)
    bucket.calls.clear()
    other = OffloadStore(store.beneath, bucket, LARGEST, GRACE)

    assert other.sweep(1) == EVERY
    assert bucket.calls.count(f"names {VALUES}") == 1
    other.close()


def test_the_objects_of_another_store_are_left_alone(store: OffloadStore, bucket: Moody) -> None:
    put(store, payload=json_of(5000))
    foreign = bucket.root / VALUES / "00" / "notes.txt"
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_text("mine")
    walk(store)
    bucket.age(10 * GRACE)
    other = OffloadStore(MemoryStore(), bucket, LARGEST, GRACE)

    with pytest.raises(Refused, match="belongs to another store"):
        walk(other)
    other.close()
    assert walk(store) == 0
    assert len(bucket.objects()) == 2
    assert foreign.exists()


def test_a_sweep_of_a_bucket_that_is_away_says_so_and_deletes_nothing(store: OffloadStore, bucket: Moody) -> None:
    put(store, payload=json_of(5000))
    bucket.refuses = ConnectionRefusedError("refused")

    for _ in range(2):  # it is tried again, and not taken for done
        with pytest.raises(BucketAway, match="refused"):
            store.sweep(10)
    bucket.refuses = None
    assert store.sweep(10) == EVERY
    assert f"names {VALUES}" in bucket.calls
    assert 0 < store.sweep(10) <= EVERY
    assert bucket.calls.count(f"names {MARKS}") == 1


def test_what_is_shown_in_place_of_a_value_is_not_found(store: OffloadStore) -> None:
    put(store, payload=json_of(5000))

    for text in ("bytes", "kept", "xxxx"):
        where = Filter(conditions=(Condition("payload", "", exactly=False, text=text),))
        assert shown(store).search(where).jobs == ()


def test_a_file_that_was_cut_short_is_removed_and_never_read(store: OffloadStore, bucket: Moody) -> None:
    put(store, payload=json_of(5000))
    (folder,) = (bucket.root / VALUES).iterdir()
    (folder / ".0123456789abcdef").write_bytes(b"half")
    walk(store)
    assert len(list(folder.iterdir())) == 2
    bucket.age(2 * DAY)
    walk(store)
    assert len(list(folder.iterdir())) == 1


# ── Settings, and the command line ──


@pytest.mark.parametrize(
    "url", ["values", "file://values", "s3://", "http://x/y", "s3://me:secret@bucket", "s3://bucket?region=x"]
)
def test_a_bucket_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidOption, match="expected file:///FOLDER, s3://BUCKET/FOLDER"):
        _ = Tenure("sqlite:///x.db", offload=url).settings


def test_without_a_bucket_large_values_are_refused_and_with_one_very_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_MAX_OFFLOADED", "1MiB")
    for options, most in (({"offload": None}, 256 << 10), ({}, 1 << 20)):
        echo = app(tmp_path, **options).tasks["echo"]
        echo.bind("x" * (most - len('{"text":""}')))
        with pytest.raises(InvalidArguments, match="the limit is"):
            echo.bind("x" * (most - len('{"text":""}') + 1))


@pytest.mark.parametrize("jobs", [APPS["encrypted"]], indirect=True)
def test_a_process_without_the_bucket_says_so(jobs: Tenure, tmp_path: Path) -> None:
    handle = jobs.tasks["echo"].enqueue(BIG)
    with jobs.worker(concurrency=1):
        assert handle.result("60s") == BIG
    with app(tmp_path, offload=None, codec=jobs.codec) as other:
        with pytest.raises(NotFetched, match="this process has no bucket"):
            other.tasks["echo"].handle(handle.id).result("0s")


def test_a_rotated_key_reads_what_is_kept_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = AesSiv.new_key(), AesSiv.new_key()
    monkeypatch.setenv("TENURE_MAX_PAYLOAD", "1MiB")
    with app(tmp_path, codec=AesSiv(old), offload=None) as jobs:
        jobs.tasks["echo"].enqueue(BIG)  # before there was a bucket
    monkeypatch.setenv("TENURE_MAX_PAYLOAD", str(MOST))
    with app(tmp_path, codec=AesSiv(old)) as jobs:
        handle = jobs.tasks["echo"].enqueue(BIG)
        under = beneath(jobs.client().store)
        *_, done = rotation(under, AesSiv([new, old]))
        *_, again = rotation(under, AesSiv([new]))
        assert (done.written, done.raced, done.unread, again.written) == (2, 0, {}, 0)
    with app(tmp_path, codec=AesSiv(new)) as jobs, jobs.worker(concurrency=1):
        assert handle.id and jobs.tasks["echo"].handle(handle.id).result("60s") == BIG


def test_the_arguments_of_a_schedule_are_never_kept_elsewhere_so_they_have_the_limit_of_a_row(tmp_path: Path) -> None:
    with app(tmp_path) as jobs:
        jobs.schedule("@daily", name="fits")(jobs.tasks["echo"].bind("x" * 1000))
        assert [each.name for each in jobs.schedules] == ["fits"]
        jobs.schedule("@daily", name="large")(jobs.tasks["echo"].bind("x" * (300 << 10)))
        with pytest.raises(
            InvalidOption, match=r"schedule large \(.*\): its arguments are 307,211 bytes as JSON, the limit"
        ):
            _ = jobs.schedules


APP = """
import os
from tenure import Tenure
from tenure.codecs import AesSiv

jobs = Tenure(codec=AesSiv(os.environ["KEYS"]))

@jobs.task
def echo(text: str, password: str = "") -> str:
    return text
"""
Run = Callable[..., tuple[int, str, str]]


def test_the_command_line_tries_shows_and_sweeps(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", AesSiv.new_key())
    assert run("offload", "try")[0] == 2
    monkeypatch.setenv("TENURE_OFFLOAD", f"file://{folder}/values")
    assert run("offload", "try")[:2] == (0, f"the folder {folder}/values/tenure works\n")
    monkeypatch.setenv("TENURE_MAX_PAYLOAD", "1KiB")
    refused = run("schedules", "add", "big", "--task", "echo", f"text={BIG}", "--every", "5m")
    assert refused[0] == 2
    assert "schedule big: its arguments are 3,025 bytes as JSON, the limit is 1,024" in refused[2]
    job_id = run("enqueue", "echo", f"text={BIG}", "password=hunter2")[1].strip()

    assert "kept elsewhere: 4,091 bytes" in run("jobs", "show", job_id)[1]
    assert run("offload", "show", job_id[-8:], "--app", "shop")[1] == f'{{"text":"{BIG}","password":"***"}}\n'
    assert "it needs the key" in run("offload", "show", job_id)[2]
    assert run("offload", "show", job_id, "result", "--app", "shop")[0] == 1
    run("jobs", "delete", job_id, "--yes")
    assert run("offload", "sweep")[1] == "1 values looked at, 0 deleted; 1 that no job has are kept for now\n"
    Moody(folder / "values" / "tenure").age(GRACE + 60)
    assert run("offload", "sweep")[1] == "1 values looked at, 1 deleted; 0 that no job has are kept for now\n"

    (folder / "values").rename(folder / "away")
    code, _, said = run("offload", "try")
    assert (code, "is not there, and this store has kept its values in it: is it mounted?" in said) == (1, True)
    assert not (folder / "values").exists(), "it is not made anew"
    (folder / "values").write_text("a file")
    assert run("offload", "try")[0] == 1


def test_a_result_that_is_kept_elsewhere_is_waited_for(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", AesSiv.new_key())
    monkeypatch.setenv("TENURE_OFFLOAD", f"file://{folder}/values")
    monkeypatch.setenv("TENURE_MAX_RESULT", "1KiB")
    with Tenure() as jobs:

        @jobs.schedule(every="1d", name="daily")
        @jobs.task
        def large() -> str:
            return BIG

        with jobs.worker():
            until(lambda: run("schedules", "show", "daily")[0] == 0, "the schedule's declaration")
            for options in ([], ["--app", "shop"]):
                code, out, err = run("schedules", "trigger", "daily", "--wait", "--timeout", "60s", *options)
                assert (code, out) == (0, f'"{BIG}"\n'), err
