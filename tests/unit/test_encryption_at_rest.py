"""With a codec, no text of an app's code is readable in the store or the engine's log; with the key, all of it is."""

from __future__ import annotations

import json
import logging
import secrets
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from redis import Redis

from servers import shared_postgres, shared_valkey
from tenure import Ended, Fail, Job, Snooze, Tenure
from tenure.app.backends import open_store, rotation
from tenure.codecs import AesSiv, Codec
from tenure.errors import JobFailed
from tenure.operations.admin import Admin
from tenure.ports import EDITS, Filter, Store
from tenure.stores.sealed import beneath
from waiting import until

KEY = AesSiv.new_key()
MARK = "pl41n-t3xt"
Place = tuple[str, str, Callable[[], bytes]]  # the store's URL, the namespace, and all of its bytes


def _sqlite(folder: Path) -> Place:
    def everything() -> bytes:
        files = sorted(folder.glob("tenure.db*"))
        assert folder / "tenure.db-wal" in files
        return subprocess.run(["cat", *files], check=True, capture_output=True).stdout  # not in the store's own process

    return f"sqlite:///{folder}/tenure.db", "tenure", everything


def _postgres(_: Path) -> Place:
    url, schema = shared_postgres().url(), f"sealed_{secrets.token_hex(4)}"

    def everything() -> bytes:
        with psycopg.connect(url) as connection:
            named = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema])
            rows: list[Any] = []
            for (table,) in named.fetchall():
                rows += connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(schema, table))).fetchall()
        return repr(rows).encode()

    return url, schema, everything


def _redis(_: Path) -> Place:
    url, namespace = shared_valkey().url, f"sealed_{secrets.token_hex(4)}"

    def everything() -> bytes:
        client: Any = Redis.from_url(url)
        read: dict[bytes, Callable[[bytes], Any]] = {
            b"hash": client.hgetall,
            b"string": client.get,
            b"set": client.smembers,
            b"list": lambda key: client.lrange(key, 0, -1),
            b"stream": client.xrange,
            b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        }
        found = [(key, read[client.type(key)](key)) for key in client.scan_iter(f"{{{namespace}}}*")]
        client.close()
        return repr(found).encode()

    return url, namespace, everything


@pytest.fixture(params=[_sqlite, _postgres, _redis], ids=["sqlite", "postgres", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield request.param(tmp_path)


def app(place: Place, codec: Codec | None) -> Tenure:
    """Its code writes the marker wherever code can write text."""
    url, namespace, _ = place
    jobs = Tenure(url, namespace=namespace, codec=codec)
    open_store(jobs.settings).migrate()

    @jobs.task
    def child(text: str) -> str:
        return text

    @jobs.task(signals={"go": str})
    def work(job: Job[str], text: str) -> str:
        logging.getLogger("shop").warning("it works on %s", text)
        job.progress(0.5, stage=text, message=text, checkpoint=text)
        job.flush()
        assert job.once("key", lambda: text) == text
        assert jobs.once("global", lambda: text) == text
        shared = job.expect("paid", str, shared=True)
        assert job.gather("children", lambda: [child.bind(shared)]) == [shared]
        return job.expect("go", str)

    @jobs.task(retry=1, unique="key:{text}")
    def fails(text: str) -> None:
        raise ValueError(text)

    @jobs.task(retry=1)
    def refuses(text: str) -> None:
        raise Fail(text)

    @jobs.task
    def snoozes(text: str) -> None:
        raise Snooze("1h", text)

    @jobs.schedule("@yearly", name="yearly")
    @jobs.task(retry=1)
    def yearly() -> None:
        raise ValueError(MARK)

    return jobs


def story(jobs: Tenure) -> dict[str, str]:
    """Run a job of each task; their ids."""
    work, fails, refuses, snoozes = (jobs.tasks[name] for name in ("work", "fails", "refuses", "snoozes"))
    with jobs.worker(concurrency=4):
        handles = {task.name: task.enqueue(MARK) for task in (work, fails, refuses, snoozes)}
        jobs.signal("paid", MARK)
        assert handles["work"].signal("go", MARK)
        assert handles["work"].result("60s") == MARK
        for name in ("fails", "refuses"):
            with pytest.raises(JobFailed, match=MARK):
                handles[name].result("60s")
        client = jobs.client()
        admin = Admin(client.store, client.notifier, jobs.settings)
        assert admin.jobs.replay_edited(str(handles["fails"].id), {"text": f"{MARK} 2"}).landed
        with pytest.raises(JobFailed, match=f"{MARK} 2"):
            handles["fails"].result("60s")
        until(lambda: handles["snoozes"].status().state == "scheduled", "it snoozes")
        admin.schedules.trigger("yearly")
        until(lambda: client.store.ticks("yearly")[0].status == "failure", "its run to be recorded")
    return {name: str(handle.id) for name, handle in handles.items()}


def ours(caplog: pytest.LogCaptureFixture) -> str:
    """What the engine logged."""
    records = [each for each in caplog.records if each.name.startswith("tenure")]
    assert records
    return "\n".join([logging.Formatter("%(message)s").format(each) for each in records])


def test_nothing_is_readable_in_the_store_or_the_log(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with app(place, AesSiv(KEY)) as jobs:
        ids = story(jobs)
        found, logged = place[2](), ours(caplog)
        store = jobs.client().store

        assert MARK.encode() not in found
        assert MARK not in logged
        assert ids["work"].encode() in found  # these are the bytes of the right store

        work, fails = (_shown(store, ids[name]) for name in ("work", "fails"))
        assert [work[name] for name in ("payload", "result", "checkpoint")] == [
            f'{{"text":"{MARK}"}}',
            f'"{MARK}"',
            f'"{MARK}"',
        ]
        assert [work[name] for name in ("stage", "message")] == [MARK, MARK]
        assert MARK in json.dumps(store.logs(ids["work"]))
        assert store.records(ids["work"])["key"] == f'"{MARK}"'
        assert [each.value for each in store.signals(ids["work"])] == [f'"{MARK}"']
        assert [each.value for each in store.signals(None)] == [f'"{MARK}"']
        assert MARK in store.notes("once:")["once:global"]
        assert fails["payload"] == f'{{"text":"{MARK} 2"}}'
        assert MARK in fails["error"]
        assert MARK in fails["meta"][EDITS]
        assert [MARK in each.error for each in store.attempts(ids["snoozes"])] == [True]
        assert [job.id for job in store.search(Filter(text=f"{MARK} 2")).jobs] == [ids["fails"]]


def test_after_a_rotation_the_new_key_reads_all_of_it(place: Place) -> None:
    new = AesSiv.new_key()
    with app(place, AesSiv(KEY)) as jobs:
        ids = story(jobs)
        before = {name: _shown(jobs.client().store, job_id) for name, job_id in ids.items()}
        under = beneath(jobs.client().store)
        *_, done = rotation(under, AesSiv([new, KEY]))
        *_, again = rotation(under, AesSiv([new]))

    assert (done.raced, done.unread, again.written, again.unread) == (0, {}, 0, {})
    assert done.written >= 20
    with app(place, AesSiv(new)) as jobs:
        assert {name: _shown(jobs.client().store, job_id) for name, job_id in ids.items()} == before
        assert jobs.tasks["work"].handle(ids["work"]).result("0s") == MARK


def test_after_a_rotation_what_was_stored_before_the_codec_needs_the_key(place: Place) -> None:
    with app(place, None) as jobs:
        story(jobs)
        store = jobs.client().store
        assert MARK in _told(store)
        *_, done = rotation(store, AesSiv(KEY))
        *_, again = rotation(store, AesSiv(KEY))

        assert (done.raced, done.unread, again.written, again.unread) == (0, {}, 0, {})
        assert MARK not in _told(store)
        (tick,) = store.ticks("yearly")
        (standing,) = store.schedules()
        assert tick.why == standing.schedule.last_error == f"its error is encrypted, and shown with job {tick.job_id}"


class Payments:
    """An app that reads how one job ended in each way there is."""

    def __init__(self, folder: Path, *keys: str) -> None:
        self.jobs = jobs = Tenure(f"sqlite:///{folder}/tenure.db", codec=AesSiv(list(keys)))

        @jobs.task(queue="pay", retry=1)
        def charge() -> str:
            raise ValueError(MARK)

        @jobs.task(queue="tell")
        def given(ended: Ended[str]) -> str:
            return ended.error

        @jobs.task(queue="tell")
        def joins(job: Job, charged: str) -> str:
            return job.join(charge.handle(charged)).error

        @jobs.task(queue="tell")
        def gathers(job: Job) -> str:
            return job.gather("charges", lambda: [charge.bind()], ended=True)[0].error

        self.charge, self.given, self.joins, self.gathers = charge, given, joins, gathers


def test_how_another_job_ended_is_told_only_to_a_handler_with_the_key(tmp_path: Path) -> None:
    """Another one waits for a worker that has it, as for the result of another job."""
    new = AesSiv.new_key()
    knows, lacks = Payments(tmp_path, new, KEY), Payments(tmp_path, KEY)
    with knows.jobs.flow("order") as flow:
        step = flow.add(knows.charge.bind())
        told = flow.add(knows.given.bind(step.ended))
    handles = [told.handle, lacks.joins.enqueue(str(step.handle.id)), lacks.gathers.enqueue()]
    store = knows.jobs.client().store

    def refused() -> int:
        found = [each.error for handle in handles for each in store.attempts(str(handle.id))]
        return sum(each.startswith("this worker has no key for the error of charge") for each in found)

    with knows.jobs.worker(queues=["pay"]), lacks.jobs.worker(queues=["tell"]):
        until(lambda: refused() >= len(handles), "all of them to wait for the key")
    with knows.jobs.worker(queues=["tell"]):
        for handle in handles:
            store.promote_now([str(handle.id)])
            assert MARK in knows.jobs.handle(handle.id).result("60s")


def test_without_a_codec_the_marker_is_everywhere(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with app(place, None) as jobs:
        story(jobs)

        assert place[2]().count(MARK.encode()) >= 15
        assert MARK in ours(caplog)


def _shown(store: Store, job_id: str) -> dict[str, Any]:
    found = store.get(job_id)
    assert found is not None
    return {name: getattr(found, name) for name in found.__dataclass_fields__}


def _told(store: Store) -> str:
    """What jobs and schedules hold, as a reader without the key sees it; unique keys stay readable."""
    told: list[object] = [store.signals(None), store.notes("once:")]
    for job in store.search(Filter()).jobs:
        told += [
            replace(job, unique=None),
            store.attempts(job.id),
            store.logs(job.id),
            store.records(job.id),
            store.signals(job.id),
        ]
    for standing in store.schedules():
        told += [standing.schedule, store.ticks(standing.schedule.name)]
    return repr(told)
