"""The contestants on SQLite: `python -m bench.sqlite_peers NAME FOLDER COUNT SLOTS` prints one JSON line.

Every contestant gets the settings its own documentation recommends for speed with the durability it has by default.
Only Tenure and the bare fenced loop own their jobs: the others forget a job when they hand it out, or let any caller
finish it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from bench.measure import STARTS, Worker, laps, rate, start
from tenure.cli.bench import cuts

# ── huey ──


def huey_app(folder: str, count: int) -> Any:
    from huey import SqliteHuey

    counted = Worker(folder, count)

    huey = SqliteHuey("bench", filename=f"{folder}/huey.db", results=False)

    @huey.task()
    def nothing(n: int) -> None:
        counted.ran()

    @huey.task()
    def stamp(sent: int) -> None:
        counted.started(sent)

    return huey, nothing, stamp


def huey_consume(folder: str, count: int, slots: int) -> None:
    huey, *_ = huey_app(folder, count)
    huey.create_consumer(workers=slots, periodic=False, initial_delay=0.01, backoff=1.15, max_delay=0.1).run()


def huey_measure(folder: str, count: int, slots: int) -> dict[str, float]:
    _, nothing, stamp = huey_app(folder, count)
    bulk = rate(count, lambda: [nothing(n) for n in range(count)])  # it has no bulk call
    consumer = subprocess.Popen(
        [sys.executable, "-m", "bench.sqlite_peers", "huey-consumer", folder, str(count), str(slots)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        [lap] = laps(folder, 1, consumer)
        late: list[float] = []
        for number in range(1, STARTS + 1):
            stamp(time.monotonic_ns())
            late.append(start(folder, number, consumer))
            time.sleep(0.005)
    finally:
        consumer.kill()
        consumer.wait()
    p50, p99 = cuts(late)
    single = rate(2000, lambda: [nothing(n) for n in range(2000)])
    return {**lap, "bulk": bulk, "single": single, "start_p50_ms": p50, "start_p99_ms": p99}


# ── litequeue: a queue without a worker; the loop is the shortest one in its README ──


def litequeue_measure(folder: str, count: int, slots: int) -> dict[str, float]:
    from litequeue import LiteQueue

    queue = LiteQueue(f"{folder}/litequeue.db")

    def fill() -> None:
        with queue.transaction():
            for n in range(count):
                queue.put(json.dumps({"n": n}))

    bulk = rate(count, fill)
    # Without this index older SQLites sort the whole queue at each pop (3.40: 600 jobs/s here): measure its best case.
    queue.conn.execute(f"CREATE INDEX best ON {queue.table} (status, message_id)")
    cpu = time.process_time()

    def drain() -> None:
        for _ in range(count):
            message = queue.pop()
            json.loads(message.data)
            queue.done(message.message_id)

    drained = rate(count, drain)
    cpu_us = (time.process_time() - cpu) / count * 1e6
    single = rate(2000, lambda: [queue.put("{}") for _ in range(2000)])
    while queue.pop() is not None:
        pass
    found: list[float] = []
    stop = threading.Event()

    def consume() -> None:
        mine = LiteQueue(f"{folder}/litequeue.db")
        while not stop.is_set():
            message = mine.pop()
            if message is None:
                time.sleep(0.001)  # it has no doorbell: its users poll
            else:
                found.append((time.monotonic_ns() - int(message.data)) / 1e6)
                mine.done(message.message_id)

    thread = threading.Thread(target=consume)
    thread.start()
    for n in range(STARTS):
        queue.put(str(time.monotonic_ns()))
        while len(found) <= n:
            time.sleep(0.0005)
        time.sleep(0.005)
    stop.set()
    thread.join()
    p50, p99 = cuts(found)
    figures = {"drain": drained, "cpu_us": cpu_us, "bulk": bulk, "single": single}
    return {**figures, "start_p50_ms": p50, "start_p99_ms": p99}


# ── the bare loop: what SQLite can do with the same durable, fenced work and no engine around it ──

BARE_SCHEMA = """
CREATE TABLE jobs (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, state TEXT NOT NULL, queue TEXT NOT NULL,
  priority INTEGER NOT NULL, run_at INTEGER NOT NULL, attempt INTEGER NOT NULL DEFAULT 0, worker_id TEXT,
  ended_at INTEGER, task TEXT NOT NULL, payload TEXT NOT NULL, result TEXT) STRICT;
CREATE INDEX queued ON jobs (queue, priority DESC, run_at, id) WHERE state = 'queued';
CREATE INDEX processing ON jobs (worker_id) WHERE state = 'processing';
CREATE INDEX ended ON jobs (ended_at) WHERE ended_at IS NOT NULL;
"""


def bare_measure(folder: str, count: int, slots: int) -> dict[str, float]:
    import apsw

    connection = apsw.Connection(f"{folder}/bare.db")
    connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 4000")
    connection.execute(BARE_SCHEMA)
    insert = "INSERT INTO jobs (id, state, queue, priority, run_at, task, payload) VALUES (?,'queued','q',0,?,'t',?)"

    def fill() -> None:
        with connection:
            connection.executemany(insert, ((str(uuid4()), n, json.dumps({"n": n})) for n in range(count)))

    bulk = rate(count, fill)
    cpu = time.process_time()

    def drain() -> None:
        done: list[tuple[str, int]] = []
        while True:
            connection.execute("BEGIN IMMEDIATE")
            if done:
                connection.execute(
                    "UPDATE jobs SET state = 'completed', result = 'null', ended_at = 1, worker_id = NULL FROM (SELECT "
                    "value ->> 0 AS id, value ->> 1 AS attempt FROM json_each(?)) AS done WHERE jobs.id = done.id "
                    "AND +jobs.state = 'processing' AND jobs.attempt = done.attempt AND +jobs.worker_id = 'w'",
                    (json.dumps(done),),
                )
                assert connection.changes() == len(done)
            claimed, taken = connection.execute(
                "SELECT json_group_array(json_array(id, attempt + 1, task, payload)), json_group_array(seq) FROM "
                "(SELECT * FROM jobs WHERE state = 'queued' AND queue = 'q' ORDER BY priority DESC, run_at, id "
                "LIMIT ?)",
                (slots,),
            ).fetchone()
            connection.execute(
                "UPDATE jobs SET state = 'processing', attempt = attempt + 1, worker_id = 'w' "
                "WHERE seq IN (SELECT value FROM json_each(?))",
                (taken,),
            )
            connection.execute("COMMIT")
            jobs = json.loads(claimed)
            if not jobs:
                return
            done = [(job[0], job[1]) for job in jobs if json.loads(job[3])]

    drained = rate(count, drain)
    cpu_us = (time.process_time() - cpu) / count * 1e6
    single = rate(2000, lambda: [connection.execute(insert, (str(uuid4()), n, "{}")) for n in range(2000)])
    return {"drain": drained, "cpu_us": cpu_us, "bulk": bulk, "single": single}


def tenure_measure(folder: str, count: int, slots: int) -> dict[str, float]:
    from dataclasses import asdict

    from tenure.cli.bench import measure

    return asdict(measure(f"sqlite:///{folder}/tenure.db", count, slots, folder))


CONTESTANTS: dict[str, Callable[[str, int, int], dict[str, float]]] = {
    "tenure": tenure_measure,
    "bare apsw loop": bare_measure,
    "litequeue": litequeue_measure,
    "huey, 1 thread": lambda folder, count, slots: huey_measure(folder, count, 1),
    "huey, 8 threads": lambda folder, count, slots: huey_measure(folder, count, 8),
}


if __name__ == "__main__":
    _, name, folder, count, slots = sys.argv
    os.environ.setdefault("TENURE_RUNTIME_DIR", folder)
    if name == "huey-consumer":
        huey_consume(folder, int(count), int(slots))
    else:
        sys.stdout.write(json.dumps(CONTESTANTS[name](folder, int(count), int(slots))) + "\n")
