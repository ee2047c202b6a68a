"""One PostgreSQL server, as a store needs it: connections, mapped errors, the schema's version.

Idle connections are a stack, not a pool with threads: a caller gets the one used last, a new one, or at once the error
that says why there is none. Every statement is a transaction of its own unless a verb needs several.
"""

from __future__ import annotations

import os
import re
import select
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager, suppress
from random import uniform
from typing import Any, LiteralString, TypeVar, cast
from urllib.parse import quote
from weakref import WeakSet

import psycopg
from psycopg import conninfo, pq

from tenure.core.clock import Clock
from tenure.errors import BadData, InvalidOption, StoreAway, StoreBusy, StoreError
from tenure.ports import Enqueued, Readable
from tenure.stores.postgres import deadlines
from tenure.stores.postgres.joins import Rows

T = TypeVar("T")
Connection = deadlines.Connection
Steps = Generator[tuple[str, Any], Rows, T]  #: statements, each with one `:p`, and the value it stands for as JSON
Asking = Generator[tuple[str, Any], Rows, T]  #: statements and their parameters
Sql = Callable[[str], LiteralString]  #: fits a statement to the schema

MOST_CONNECTIONS = 20
MOST_TRANSACTIONS = 15  #: of those, for callers' transactions: the rest are for verbs, which end soon
BUSY_SECONDS = 5.0
TURN_SECONDS = 30.0  #: how long a caller's transaction waits until another one has ended
ANSWER_SECONDS = 8.0  #: of silence; for a renewal in all: one that times out can still be repeated in time
READ_SECONDS = 60.0  #: of silence, for reads by people
TRIES = 5

# A dead peer is noticed in seconds, not in two hours, and before a renewal is late; waiting for a lock ends with an
# error; and no default of the server or the role weakens a claim (synchronous_commit, isolation). Plan types that would
# read a whole table, or all rows that are due to return a few of them, are disabled: a plan made for an empty table
# must not be kept for a full one.
_DEFAULTS: dict[str, str] = {
    "connect_timeout": "5",
    "keepalives_idle": "3",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
    "application_name": "tenure",
    "target_session_attrs": "read-write",
}
_FORCED = {"client_encoding": "utf8"}
_CLOCK: LiteralString = "SELECT set_config('tenure.now', to_timestamp(%s)::text, false)"
# Overrides what the role, the database or the environment of this process sets: the driver must be able to parse it.
_FORMATS: LiteralString = "SET timezone = 'UTC'; SET datestyle = 'ISO'"
_DURABLE: LiteralString = (
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)
_OWN: LiteralString = f"{_DURABLE}; SET idle_in_transaction_session_timeout = '60s'"
# As DISCARD ALL, which can't share a round trip: nothing that a caller's transaction left is there for the next one.
_AS_NEW: LiteralString = f"""
    RESET SESSION AUTHORIZATION; RESET ALL; CLOSE ALL; DEALLOCATE ALL; UNLISTEN *; SELECT pg_advisory_unlock_all();
    DISCARD TEMP; DISCARD SEQUENCES; {_OWN}"""
# Longer than deadlock_timeout (1 s), so that a deadlock is reported as one.
_SESSION: LiteralString = f"""
    {_FORMATS};
    {_DURABLE};
    SET default_transaction_isolation = 'read committed';
    SET lock_timeout = '2s';
    SET idle_in_transaction_session_timeout = '60s';
    SET enable_seqscan = off;
    SET enable_bitmapscan = off;
    SET enable_hashjoin = off;
    SET enable_mergejoin = off;
    SET jit = off"""

#: The server undid the whole transaction. The last: this process was stopped in it for a moment (`cut_off_after`).
ROLLED_BACK = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.IdleInTransactionSessionTimeout,
)
_AWAY_CLASSES = ("08", "53", "57", "58", "40")
_READ_ONLY = "25006"
_UNDONE = "an error in this transaction made PostgreSQL roll it back: nothing of it is stored"
_BROKEN = "the connection broke in this transaction, and PostgreSQL rolled it back: nothing of it is stored"
# The id alone is no proof: a server that crashed, or a standby that took over, may give it to another transaction.
_FATE: LiteralString = "SELECT pg_xact_status(%s::text::xid8), EXISTS (SELECT FROM @.jobs WHERE id = %s::text::uuid)"
# For a failed connection libpq gives no code, only a message. A person has to fix these; retrying does not help.
_REFUSALS = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
    "permission denied",
    "not permitted to log in",
    "unrecognized configuration parameter",
    "SSL was required",
    "certificate",
)

# How libpq parses a URL, without the special characters that it would misinterpret.
_SHAPE = re.compile(r"postgres(ql)?://([^/@:?]*(:[^/@?]*)?@)?[^/@?]*(/[^/@?]*)?(\?[^@]*)?")
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}", re.ASCII)


# ── Errors ──────────────────────────────────────────────────────────────────────────────────────────────────────


def mapped(error: BaseException, server: Server, *, theirs: bool = False) -> BaseException:
    """The one place that maps the driver's errors to ours. They never contain a password: libpq reports none.

    `theirs`: the caller's own statement failed.
    """
    if isinstance(error, UnicodeEncodeError):
        return BadData(f"{server.url} can't store a value: {error}")
    if isinstance(error, OSError):  # psycopg waits for a connection with an epoll of its own: too many open files
        return StoreAway(f"{server.url} is out of reach: {error}")
    if not isinstance(error, psycopg.Error):
        return error
    state, message = error.sqlstate or "", _first_line(error)
    if state in ("42P01", "3F000", "42703") and not theirs:
        return StoreError(
            f"{server.url} has no schema {server.schema} of this version ({message}): "
            f"run `{server.migrated_by}` there first"
        )
    if state == "42501":
        return StoreError(f"{server.url}: the role lacks a right ({message}): GRANT it, or use a role that has it")
    if state == _READ_ONLY:
        return _read_only(server)
    if state == "25P02":
        return StoreError(_UNDONE)
    if state in ("25P03", "25P04"):
        return StoreError(
            f"{server.url} rolled back a transaction that was open for too long ({message}): do slow work before it"
        )
    if state == "55P03":
        return StoreBusy(f"{server.url}: another open transaction holds a row or a unique key that this write needs")
    if state.startswith(_AWAY_CLASSES):
        return StoreAway(f"{server.url} can't do this now: {message}")
    if isinstance(error, psycopg.DataError | psycopg.IntegrityError) or state.startswith("54"):
        return BadData(f"{server.url} refused a value: {message}")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not state:
        return _unreachable(server, message)
    return StoreError(f"{server.url}: {message}")


def _unreachable(server: Server, message: str) -> StoreError:
    if "session is read-only" in message or "in hot standby mode" in message:
        return _read_only(server)
    if message.startswith("connection is bad: ") or any(words in message for words in _REFUSALS):
        return StoreError(
            f"{server.url} can't be used: {message.removeprefix('connection is bad: ')}; correct TENURE_URL (or "
            "TENURE_PASSWORD), or allow this connection on the server"
        )
    return StoreAway(f"{server.url} is out of reach: {message}")


def _read_only(server: Server) -> StoreAway:
    return StoreAway(
        f"{server.url} is read-only (a standby, or default_transaction_read_only is on): nothing can be stored there "
        "until it is a primary"
    )


def _first_line(error: psycopg.Error) -> str:
    """The first line of the message: the rest may quote values. Of several hosts, the message of one that answered."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if error.sqlstate is not None:
        return lines[0]
    line = next((line for line in lines if "FATAL: " in line), lines[0])
    return re.sub(r"^.*?connection to server (at|on) .*? failed: ", "", line)


# ── The server ──────────────────────────────────────────────────────────────────────────────────────────────────


MIGRATED_BY = "tenure migrate"


class Server:
    """Connections to one schema of one database. Safe from every thread; a forked child must make its own."""

    def __init__(
        self, url: str, schema: str, password: str | None, clock: Clock | None, migrated_by: str = MIGRATED_BY
    ) -> None:
        self.conninfo, self.url = _read(url, password)
        self.migrated_by = migrated_by  #: the command that makes the schema, for errors
        self.schema = _checked(schema)
        self._clock = clock
        self._idle: list[Connection] = []
        self._idle_own: list[Connection] = []  # for callers' transactions, with other settings
        self._lock = threading.RLock()  # the collector may end a call of a closed loop, which puts its connection back
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._turns = threading.BoundedSemaphore(MOST_TRANSACTIONS)
        self._sql: dict[str, LiteralString] = {}
        self.pid = os.getpid()
        self._open = False
        self._pooled: bool | None = None  # None: not known yet

    # ── statements ──

    def sql(self, text: str) -> LiteralString:
        """`text` with the schema for `@.` and the server's clock for `@now`. It never contains a caller's value."""
        found = self._sql.get(text)
        if found is None:
            now = "statement_timestamp()" if self._clock is None else "current_setting('tenure.now')::timestamptz"
            fitted = text.replace("@now", now).replace("@.", f'"{self.schema}".')
            found = self._sql[text] = cast(LiteralString, fitted)  # type: ignore[redundant-cast]
        return found

    # ── connections ──

    def open(self) -> None:
        """Keep connections from now on."""
        self._open = True

    def close(self) -> None:
        self._open = False
        if os.getpid() != self.pid:  # they are the parent's: closing them here would end its sessions
            return
        with self._lock:
            idle, self._idle, self._idle_own = self._idle + self._idle_own, [], []
        for connection in idle:
            connection.close()

    @contextmanager
    def connection(self, seconds: float = ANSWER_SECONDS, *, strict: bool = False) -> Generator[Connection]:
        """A connection for one verb. Errors are mapped to ours, and a broken connection is not used again."""
        with self._lent() as connection, self.mapping_errors(), connection.within(seconds, strict=strict):
            yield connection

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        """A caller's transaction: only errors of the server are mapped to ours, not those of the caller's own code.

        Its connections are kept apart from those of verbs: they have the settings of the role, and a SET in one
        transaction must not outlive it. A connection that its caller can still reach is not used again.
        """
        if not self._turns.acquire(timeout=TURN_SECONDS):
            raise StoreAway(
                f"this process has {MOST_TRANSACTIONS} transactions open at {self.url}, the most at a time, and none "
                f"ended within {TURN_SECONDS:g}s: do slow work before a transaction, or open fewer"
            )
        try:
            with self._lent(own=True) as connection:
                transaction = Transaction(connection, self)
                try:
                    yield transaction
                except BaseException:
                    transaction.end(commit=False)
                    raise
                transaction.end(commit=True)
        finally:
            self._turns.release()

    @contextmanager
    def mapping_errors(self, *, theirs: bool = False) -> Generator[None]:
        """Map the driver's errors to ours."""
        try:
            yield
        except (psycopg.Error, UnicodeEncodeError, OSError) as error:
            raise mapped(error, self, theirs=theirs) from error

    @contextmanager
    def _lent(self, *, own: bool = False) -> Generator[Connection]:
        self.refuse_child()
        if not self._open:
            raise StoreError(f"{self.url} is not open")
        if not self._room.acquire(timeout=BUSY_SECONDS):
            raise StoreAway(f"all {MOST_CONNECTIONS} connections of this process to {self.url} are busy")
        try:
            with self.mapping_errors():
                connection = self._take(own=own) or (self._connect_own() if own else self.connect())
            with self._returned(connection, own=own):
                if self._clock is not None:
                    with self.mapping_errors():
                        connection.execute(_CLOCK, (self._clock.unix(),))
                yield connection
        finally:
            self._room.release()

    @contextmanager
    def _returned(self, connection: Connection, *, own: bool = False) -> Generator[None]:
        """Put it back afterwards, unless it is broken."""
        read_only = False
        try:
            yield
        except StoreAway as error:
            read_only = getattr(error.__cause__, "sqlstate", None) == _READ_ONLY
            raise
        finally:
            if own and not self._made_as_new(connection):
                self._end(connection)
            else:  # a new connection looks for the primary again
                self._put_back(connection, good=not read_only, own=own)

    def on_loop(self, asking: Asking[T], *, binary: bool = False) -> Generator[Readable, None, T | None]:
        """Run these statements for a caller on an event loop.

        None: no connection is idle, or the server has undone the first one. Nothing was changed; `ask` tries again.
        """
        if os.getpid() != self.pid or not self._open or not self._room.acquire(blocking=False):
            return None
        try:
            connection = self._take(own=False)
            if connection is None:
                return None
            with self._returned(connection), self.mapping_errors():
                if self._clock is not None:
                    yield from connection.on_loop(_CLOCK, (self._clock.unix(),), ANSWER_SECONDS)
                sql, params = next(asking)
                try:
                    rows = yield from connection.on_loop(self.sql(sql), params, ANSWER_SECONDS, binary=binary)
                except ROLLED_BACK:
                    return None
                while True:
                    try:
                        sql, params = asking.send(rows)
                    except StopIteration as end:
                        return end.value  # type: ignore[no-any-return]
                    rows = yield from connection.on_loop(self.sql(sql), params, ANSWER_SECONDS, binary=binary)
        finally:
            self._room.release()

    def refuse_child(self) -> None:
        if os.getpid() != self.pid:
            raise StoreError(f"{self.url} was opened before a fork(): a child process must open the store itself")

    def _take(self, *, own: bool) -> Connection | None:
        """An idle connection."""
        while True:
            with self._lock:
                stack = self._idle_own if own else self._idle
                connection = stack.pop() if stack else None
            if connection is None or not _closed_by_server(connection):
                return connection
            connection.close()

    def connect(self, session: LiteralString = _SESSION) -> Connection:
        """A new connection that only the caller uses."""
        connection = Connection.connect(self.conninfo, autocommit=True, prepare_threshold=2)
        try:
            with connection.within(ANSWER_SECONDS):
                if self._pooled is None:
                    self._pooled = _pooled(connection)
                if self._pooled:  # a setting would leak to other clients, a prepared statement be lost
                    connection.prepare_threshold = None
                    connection.execute(_FORMATS)  # except those that poolers track
                else:
                    connection.execute(session)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_own(self) -> Connection:
        connection = self.connect(_OWN)
        connection.prepare_threshold = None  # the driver would not notice that they are gone
        return connection

    def _made_as_new(self, connection: Connection) -> bool:
        """After a caller's transaction: has nothing of it stayed, and can the caller not reach this connection?"""
        idle = connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
        if not idle or self._pooled or connection.reached or os.getpid() != self.pid:
            return False
        try:
            with connection.within(ANSWER_SECONDS):
                connection.execute(_AS_NEW)
        except psycopg.Error:
            return False
        return True

    def _end(self, connection: Connection) -> None:
        if os.getpid() == self.pid:
            with suppress(psycopg.Error):
                connection.close()

    def _put_back(self, connection: Connection, *, good: bool, own: bool) -> None:
        if os.getpid() != self.pid:
            return
        good = good and connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
        with self._lock:
            if good and self._open:
                (self._idle_own if own else self._idle).append(connection)
                return
            stale: list[Connection] = []
            if not good:  # its server is gone, so the other connections are dead too
                stale, self._idle, self._idle_own = self._idle + self._idle_own, [], []
        for each in (connection, *stale):
            self._end(each)

    def run(self, call: Callable[[Connection], T], seconds: float = ANSWER_SECONDS, *, strict: bool = False) -> T:
        """Run `call` with a connection. If it changed nothing, as after a deadlock, it is run again: `ROLLED_BACK`."""
        for last in (*[False] * (TRIES - 1), True):
            try:
                with self.connection(seconds, strict=strict) as connection:
                    return call(connection)
            except StoreError as error:
                if last or not isinstance(error.__cause__, ROLLED_BACK):
                    raise
            time.sleep(uniform(0.005, 0.05))  # let the other transaction get the lock it waits for
        raise AssertionError("the last try returns or raises")

    def ask(self, asking: Asking[T]) -> T:
        """Run these statements, each a transaction of its own."""
        sql, params = next(asking)
        while True:
            fitted: LiteralString = self.sql(sql)
            rows = self.run(lambda each: each.execute(fitted, params, binary=True).fetchall())  # noqa: B023
            try:
                sql, params = asking.send(rows)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    def fetch(self, sql: str, *params: object, seconds: float = ANSWER_SECONDS) -> list[tuple[Any, ...]]:
        """All rows of one statement."""
        return self.run(lambda each: each.execute(self.sql(sql), params, binary=True).fetchall(), seconds)

    def read(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """The same for reads by people, with a longer time limit."""
        return self.fetch(sql, *params, seconds=READ_SECONDS)


def one(sql: str, params: object) -> Asking[Rows]:
    """A single statement, for `Server.on_loop`."""
    return (yield sql, params)


def run(connection: Connection, sql: LiteralString, text: str) -> list[tuple[Any, ...]]:
    """One statement with one text in it, written `:p`."""
    return connection.execute(sql.replace(":p", "%s"), (text,)).fetchall()


class Transaction:
    """A caller's transaction on a connection of the store: the jobs and the caller's rows commit together."""

    def __init__(self, connection: Connection, server: Server) -> None:
        self._connection = connection
        self.server = server
        self.committed: list[Callable[[], None]] = []  #: called after the commit
        self.landed = False  #: has it committed, as far as is known? True also if nobody can say
        self._job: tuple[str, str] | None = None  # its id and that of a job stored in it: they tell what came of it
        self._open = True
        self._cursors = WeakSet[psycopg.Cursor[tuple[Any, ...]]]()
        with server.mapping_errors():
            connection.execute("BEGIN")

    def execute(self, sql: LiteralString, params: Any = None) -> psycopg.Cursor[tuple[Any, ...]]:
        """Run your own SQL in the transaction, as psycopg does."""
        self._check()
        with self.server.mapping_errors(theirs=True):
            cursor = deadlines.GivenCursor(self._connection)
            cursor.execute(sql, params)
        cursor.given = True
        self._cursors.add(cursor)
        return cursor

    def run(self, sql: LiteralString, text: str) -> list[tuple[Any, ...]]:
        self._check()
        with self.server.mapping_errors():
            return run(self._connection, sql, text)

    def joined(self, answers: Sequence[Enqueued], xid: str, committed: Callable[[], None] | None) -> None:
        """Jobs were enqueued in it. `xid`: its id, if any was stored."""
        if committed is not None:
            self.committed.append(committed)
        if xid:
            self._job = (xid, next(answer.id for answer in answers if answer.created))

    def end(self, *, commit: bool) -> None:
        try:
            if commit:
                self._check()
        finally:
            self._open = False
            if self._cursors:  # the caller has kept one, and could go on with it in another caller's transaction
                self._connection.reached = True
        status = self._connection.pgconn.transaction_status
        if status == pq.TransactionStatus.UNKNOWN or os.getpid() != self.server.pid:
            if commit and os.getpid() == self.server.pid:
                raise StoreAway(_BROKEN)
            return
        if commit and status == pq.TransactionStatus.INTRANS:
            self._commit()
            return
        with suppress(psycopg.Error):
            self._connection.execute("ROLLBACK")
        if commit:  # PostgreSQL would answer COMMIT with "ROLLBACK", which no driver reports as an error
            raise StoreError(_UNDONE)

    def _commit(self) -> None:
        try:
            with self.server.mapping_errors():
                self._connection.execute("COMMIT")
        except StoreAway as error:
            refused = self._connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
            fate = "aborted" if refused else self._fate()
            if fate == "aborted":
                raise
            self.landed = True
            if fate != "committed":
                raise StoreAway(
                    f"{error}; COMMIT was sent, and whether it took effect is not known: all of this transaction may "
                    "be stored, or nothing; check which before you repeat it"
                ) from error
        self.landed = True

    def _fate(self) -> str | None:
        """What came of COMMIT, asked once on another connection. None: not known."""
        if self._job is None:
            return None
        try:
            with closing(self.server.connect()) as connection, connection.within(ANSWER_SECONDS):
                ((status, found),) = connection.execute(self.server.sql(_FATE), self._job).fetchall()
        except (psycopg.Error, OSError):
            return None
        return None if status == "committed" and not found else status

    def _check(self) -> None:
        self.server.refuse_child()
        if not self._open:
            raise StoreError("this transaction has ended")
        if self._connection.pgconn.transaction_status == pq.TransactionStatus.IDLE:
            raise StoreError("this transaction has ended: a COMMIT or ROLLBACK was executed in it")


def _pooled(connection: Connection) -> bool:
    """Is there a pooler (pgbouncer) between us and the server, which may assign another session to each transaction?"""
    mine = connection.info.backend_pid
    return any(connection.execute("SELECT pg_backend_pid()").fetchone() != (mine,) for _ in range(2))


def _closed_by_server(connection: Connection) -> bool:
    """Has an idle connection something to read? No query is open, so its server has closed it or is gone."""
    socket = select.poll()
    try:
        socket.register(connection.pgconn.socket, select.POLLIN)
    except psycopg.Error:
        return True
    return bool(socket.poll(0))


def _read(url: str, password: str | None) -> tuple[str, str]:
    """(conninfo, what may be shown) of a URL."""
    found = _parsed(url, password) if _SHAPE.fullmatch(url) else None
    if found is None:  # not `raise … from`: what libpq says may quote the password
        raise InvalidOption(
            "url: expected postgresql://user:password@host:5432/database?option=value with libpq's options; special "
            "characters (@ / : ? %) are written as %XX, or the password is given in TENURE_PASSWORD"
        )
    text, facts = found
    names = [f"[{name}]" if ":" in name else quote(name, safe="") for name in facts.get("host", "").split(",")]
    ports = facts.get("port", "").split(",")
    if len(ports) == 1:
        ports *= len(names)
    hosts = ",".join(f"{name}:{port}" if port else name for name, port in zip(names, ports, strict=False))
    user = f"{quote(facts['user'], safe='')}@" if facts.get("user") else ""
    return text, f"postgresql://{user}{hosts}/{quote(facts.get('dbname', ''), safe='')}"


def _parsed(url: str, password: str | None) -> tuple[str, dict[str, str]] | None:
    try:
        given = conninfo.conninfo_to_dict(url) | ({} if password is None else {"password": password})
        facts = {**_DEFAULTS, **{name: str(value) for name, value in given.items() if value is not None}, **_FORCED}
        text = conninfo.make_conninfo("", **facts)
        for host in facts.get("host", "").split(","):
            if not host.startswith("/"):
                host.encode("idna")  # an empty label, or one that is too long: the driver would fail at it
    except (psycopg.ProgrammingError, UnicodeError):
        return None
    return None if "\0" in text else (text, facts)


def _checked(schema: str) -> str:
    if not _SCHEMA.fullmatch(schema):
        raise InvalidOption(
            f"namespace: expected letters, digits, _ and - (at most 63, a letter or _ first), got {schema!r}"
        )
    lowered = schema.lower()
    if lowered.startswith("pg_") or lowered == "information_schema":
        raise InvalidOption(f"namespace: {schema!r} is a schema of PostgreSQL's own; choose another name")
    return schema
