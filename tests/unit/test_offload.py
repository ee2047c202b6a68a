"""Large values are kept in a bucket, found there again, and never lost because it is slow, away, full or lies."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance.factories import claim, claim_one, draft, finish, look, put, running, start
from tenure import Job, Tenure
from tenure.codecs import AesSiv
from tenure.core.lifecycle import Completed, Lease, State
from tenure.core.offloaded import MARK, is_offloaded, offloaded
from tenure.errors import BucketAway, InvalidOption, NotFetched, Refused
from tenure.operations.explain import explain
from tenure.ports import Filter, Place, Progress, Store, Text
from tenure.stores import offload
from tenure.stores.memory import MemoryStore
from tenure.stores.offload import OffloadStore
from tenure.stores.offload.bucket import Bucket, Entry, Folder
from tenure.stores.offload.sweep import EVERY, MARKS, VALUES
from waiting import until

MOST = 1024  #: bytes in a row
BIG = "x" * 3000
LARGEST: dict[Place, int] = {"payload": MOST, "result": MOST, "checkpoint": MOST, "once": MOST}
DAY = 86_400.0
GRACE = 2 * DAY
CODECS = [None, AesSiv(AesSiv.new_key())]


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
        """All that is there was written so much earlier."""
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
    jobs = Tenure(f"sqlite:///{folder}/tenure.db", **{"offload": f"file://{folder}/values", **options})

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

    @jobs.task(timeout="1s", stale_after="1s")
    def work(job: Job[str], text: str) -> str:
        job.progress(checkpoint=text)
        job.flush()
        assert job.once("key", lambda: text) == text
        (found,) = job.gather("children", lambda: [echo.bind(text)])
        assert job.checkpoint == text or job.attempt == 1
        return found

    return jobs


@pytest.fixture(params=CODECS, ids=["plain", "encrypted"])
def jobs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tenure]:
    monkeypatch.setenv("TENURE_MAX_PAYLOAD", str(MOST))
    monkeypatch.setenv("TENURE_MAX_RESULT", str(MOST))
    with app(tmp_path, codec=request.param) as made:
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
    import asyncio

    assert asyncio.run(large_from_a_loop(jobs)) == BIG


# ── A bucket that fails ──

FAULTS: dict[str, Callable[[Moody], None]] = {
    "it is away": lambda moody: setattr(moody, "refuses", ConnectionRefusedError("connection refused")),
    "it gives another object": lambda moody: setattr(moody, "lies", b'{"text":"yours"}'),
    "it gives nothing": lambda moody: setattr(moody, "lies", b""),
    "it has lost it": lambda moody: shutil.move(moody.root, moody.root.with_name("lost")),
}


@pytest.mark.parametrize("jobs", CODECS[:1], indirect=True)
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


# Nobody else waits for it.

plain = pytest.mark.parametrize("jobs", CODECS[:1], indirect=True)
STOPS: dict[str, Callable[[Moody], None]] = {
    "away": lambda moody: setattr(moody, "refuses", ConnectionRefusedError("connection refused")),
    "full": lambda moody: setattr(moody, "refuses", OSError(28, "No space left on device")),
    "slow": lambda moody: moody.answers.clear(),
}


def works_again(moody: Moody) -> None:
    moody.refuses = moody.lies = None
    moody.answers.set()


@plain
@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
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
def test_a_time_limit_begins_when_the_arguments_are_there(behind: Moody, jobs: Tenure) -> None:
    handle = jobs.tasks["work"].enqueue(BIG)
    behind.answers.clear()
    behind.calls.clear()
    with jobs.worker(concurrency=2):
        until(lambda: behind.calls, "it is fetching")
        time.sleep(1.5)  # longer than its time limit, and than it may be silent
        behind.answers.set()
        assert handle.result("60s") == BIG
    assert handle.status().failures == 0


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


def test_a_call_of_the_bucket_is_bounded(
    store: OffloadStore, bucket: Moody, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload, "WAIT_SECONDS", 0.05)
    job_id = put(store, payload=json_of(5000))
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

    said = [record.getMessage().removeprefix(str(bucket)) for record in caplog.records]
    assert said == [" does not answer as it should; what needs it waits: refused", " answers again"]
