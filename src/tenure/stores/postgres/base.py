"""The base of the PostgreSQL store: one server, and verbs that run as a sequence of statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import count
from math import inf
from time import monotonic
from typing import LiteralString, TypeVar

import psycopg

from tenure.ports import Draft, Enqueued
from tenure.stores.postgres.deadlines import Silent
from tenure.stores.postgres.drafts import enqueue_steps
from tenure.stores.postgres.joins import Rows
from tenure.stores.postgres.server import Connection, Server, Steps, run
from tenure.stores.rules import is_id, json_of

T = TypeVar("T")

#: A process that stops between two statements, by SIGSTOP or with its host, keeps what it has locked for this long.
STOPPED: LiteralString = "SELECT set_config('idle_in_transaction_session_timeout', %s, true)"
OPERATED_SECONDS = 2.0  #: of a verb's eight, after which it commits and so releases the rows it has locked
SLOWEST_LINE = 64 * 1024  #: bytes a second

#: Queues and kinds of jobs that are queued: one look-up in the index for each, however many are served.
WITH_JOBS = """
    WITH RECURSIVE lanes AS (
        (SELECT queue, solo FROM @.jobs WHERE state = 'queued' ORDER BY queue, solo LIMIT 1)
        UNION ALL
        SELECT following.* FROM lanes CROSS JOIN LATERAL (
            SELECT queue, solo FROM @.jobs WHERE state = 'queued' AND (queue, solo) > (lanes.queue, lanes.solo)
            ORDER BY queue, solo LIMIT 1) AS following)
    SELECT queue, solo FROM lanes LIMIT %s"""


def cut_off_after(connection: Connection, sent: int, tried: int = 0) -> float:
    """If this process stops in the middle of the transaction, the server ends it after a second, and rolls it back.

    Returns the seconds.

    The server does not see a statement that is on its way, so it waits as long as a slow line needs for these bytes,
    up to the minute of every session. Each further try has twice as long: code that keeps the GIL stops us, too.
    """
    milliseconds = min((1000 + 1000 * sent // SLOWEST_LINE) << tried, 60_000)
    connection.execute(STOPPED, (f"{milliseconds}ms",))
    return milliseconds / 1000


class PostgresBase:
    """The server. Each statement is a transaction of its own, unless a verb needs several."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sql = server.sql

    def now(self) -> datetime:
        return self._server.fetch("SELECT @now")[0][0].astimezone(UTC)  # type: ignore[no-any-return]

    def _with_jobs(self, queues: Sequence[str], *, solo: bool) -> Sequence[str]:
        """Those in which jobs are queued, in the same order; or all, if most queues are of other workers."""
        most = 2 * len(queues)
        lanes = set(self._server.fetch(WITH_JOBS, most + 1))
        return queues if len(lanes) > most else [queue for queue in queues if (queue, solo) in lanes]

    def _drive(self, steps: Steps[T], run: Callable[[LiteralString, str], Rows]) -> T:
        """Run the steps of a verb, each with `run`: on a connection of the store, or in a caller's transaction."""
        try:
            sql, given = next(steps)
            while True:
                sql, given = steps.send(run(self._sql(sql), json_of(given)))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _drive_on(self, connection: Connection, steps: Steps[T]) -> T:
        return self._drive(steps, partial(run, connection))

    def _locking(self, call: Callable[[Connection], T], *, sent: int | None = None) -> T:
        """Several statements in one transaction.

        `sent`: about how many bytes they have, where others soon need what this one locks: see `cut_off_after`.
        """

        tries = count()

        def step(connection: Connection) -> T:
            tried, patience, began, committing = next(tries), inf, monotonic(), False
            try:
                with connection.transaction():
                    if sent is not None:
                        patience = cut_off_after(connection, sent, tried)
                    answer = call(connection)
                    committing = True
                    return answer
            except psycopg.OperationalError as error:
                told = error.sqlstate is not None or isinstance(error, Silent)
                if committing or told or monotonic() - began < patience:
                    raise
                # The server closed the line after its last words, which a write on that line can lose.
                raise psycopg.errors.IdleInTransactionSessionTimeout(str(error)) from error

        return self._server.run(step)

    def _each(
        self,
        ids: Iterable[str],
        step: Callable[[Connection, str], T],
        *,
        sent: int = 0,
        last: Callable[[Connection], None] = lambda _: None,
    ) -> dict[str, T | None]:
        """One by one, in as many transactions as needed: over a slow network hundreds exceed a verb's time limit."""
        answers: dict[str, T | None] = dict.fromkeys(ids)
        left = [job_id for job_id in answers if is_id(job_id)]

        def some(connection: Connection) -> dict[str, T]:
            done, until = dict[str, T](), monotonic() + OPERATED_SECONDS
            for job_id in left:
                done[job_id] = step(connection, job_id)
                if monotonic() > until:
                    break
            last(connection)
            return done

        while left:
            done = self._locking(some, sent=sent)
            answers.update(done)
            del left[: len(done)]
        return answers

    def _in_steps(self, steps: Callable[[], Steps[T]], *, sent: int | None = None) -> T:
        """The steps of a verb, in one transaction."""
        return self._locking(lambda connection: self._drive_on(connection, steps()), sent=sent)

    def _enqueue(self, connection: Connection, drafts: Sequence[Draft]) -> list[Enqueued]:
        return self._drive_on(connection, enqueue_steps(drafts))[0]
