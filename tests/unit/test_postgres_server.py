"""A PostgreSQL server that refuses, goes away, comes back, or has ways of its own: what a store makes of it."""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, LiteralString, Self, cast
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from conformance.factories import (
    claim,
    claim_one,
    draft,
    everything,
    finish,
    look,
    put,
    race,
    running,
    start,
)
from proxy import Proxy
from servers import Postgres
from tenure.app.app import Tenure
from tenure.cli.main import main
from tenure.config import load
from tenure.core.lifecycle import Completed, Crashed, Failed, Lease, Released, Snoozed, State
from tenure.errors import BadData, InvalidOption, StoreAway, StoreError
from tenure.ports import Filter, Landed, Progress, Readable
from tenure.stores.postgres import PostgresStore, deadlines, schema
from tenure.stores.postgres import claims as verbs
from tenure.stores.postgres import server as module
from tenure.stores.postgres.commits import CommitWatch
from tenure.stores.postgres.deadlines import Connection
from waiting import until

WRONG = "Wr0ng-w0rd"
NEWEST = schema.migrations()[-1][0]

_passwords = {WRONG}


# ── Servers, roles, and what must never be told ──


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres({"max_connections": 100, "fsync": "off"}) as server:
        _passwords.add(password_of(server.url()))
        yield server


@pytest.fixture(scope="module")
def migrated(server: Postgres) -> str:
    """A database to copy, which takes half as long as migrating an empty one."""
    url = server.create_database()
    PostgresStore(url).migrate()
    return urlsplit(url).path[1:]


@pytest.fixture
def url(server: Postgres, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database, with the schema if the test uses `store`."""
    with_schema = "store" in request.fixturenames
    url = server.create_database(request.getfixturevalue("migrated")) if with_schema else server.create_database()
    yield url
    server.drop_database(url)


@pytest.fixture(autouse=True)
def no_log_tells_a_password(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    assert not [password for password in _passwords if password in caplog.text]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is away when it refuses us, and not because a busy machine takes long to let us in."""
    monkeypatch.setitem(module._DEFAULTS, "connect_timeout", "30")


def password_of(url: str) -> str:
    found = urlsplit(url).password
    assert found is not None
    return found


def with_login(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    return parts._replace(netloc=f"{login}@{parts.hostname}:{parts.port}").geturl()


def with_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.username}:{parts.password}@{parts.hostname}:{port}").geturl()


@contextmanager
def opened(url: str, **options: Any) -> Iterator[PostgresStore]:
    store = PostgresStore(url, **options)
    try:
        store.open()
        yield store
    finally:
        store.close()


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    with opened(url) as store:
        yield store


def look_in(url: str) -> None:
    with opened(url):
        pass


def refused(call: Callable[[], object], kind: type[StoreError | InvalidOption] = StoreError) -> str:
    """What the error says. Nothing in its chain of causes reveals a password."""
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    told, links = "", list[BaseException | None]([caught.value])
    while links:
        link = links.pop()
        if link is not None:
            told += f"{link!r} {link.args} {''.join(traceback.format_exception(link))}"
            links += [link.__cause__, link.__context__]
    assert not [password for password in _passwords if password in told]
    return str(caught.value)


@contextmanager
def a_role(server: Postgres, url: str, *settings: str) -> Iterator[str]:
    """The URL of a fresh role in this database; `settings`: what ALTER ROLE says of it."""
    name, password = f"role_{secrets.token_hex(4)}", secrets.token_hex(8)
    database = urlsplit(url).path[1:]
    _passwords.add(password)
    server.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
    for setting in settings:
        server.execute(f"ALTER ROLE {name} {setting}")
    try:
        yield with_login(url, name, password)
    finally:
        server.execute(f"DROP OWNED BY {name} CASCADE", database=database)
        server.execute(f"DROP ROLE {name}")


def granted(server: Postgres, url: str, role_url: str) -> None:
    """Grant the rights that running jobs needs, and none to change the schema."""
    role, database = urlsplit(role_url).username, urlsplit(url).path[1:]
    server.execute(f"GRANT USAGE ON SCHEMA tenure TO {role}", database=database)
    server.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tenure TO {role}", database=database)


def sessions(server: Postgres, url: str, condition: str = "true") -> int:
    """How many sessions of clients this database has, without the one that asks. A closed one may still be ending."""
    database = urlsplit(url).path[1:]
    (found,) = server.execute(
        f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}' AND {condition} "
        "AND backend_type = 'client backend'"  # autovacuum comes and goes
    )
    return int(found[0])


def warm(store: PostgresStore, connections: int) -> None:
    """Leave this many idle connections in the store's stack."""
    with ExitStack() as stack:
        for _ in range(connections):
            stack.enter_context(store._server.connection())


# ── Who is refused, and how it is said ──


def test_a_wrong_password_is_said_without_it(server: Postgres, url: str) -> None:
    told = refused(lambda: look_in(with_login(url, "tenure", WRONG)))

    assert f"postgresql://tenure@127.0.0.1:{server.port}/" in told
    assert "can't be used: FATAL:  password authentication failed" in told
    assert "correct TENURE_URL (or TENURE_PASSWORD)" in told


def test_a_missing_password_an_unknown_user_and_an_unknown_database_are_said(server: Postgres, url: str) -> None:
    password = password_of(url)
    cases = {
        url.replace(f":{password}", ""): "no password supplied",
        with_login(url, "stranger", password): 'password authentication failed for user "stranger"',
        f"{url}_not": '_not" does not exist',
    }
    for wrong, words in cases.items():
        told = refused(lambda wrong=wrong: look_in(wrong))  # type: ignore[misc]
        assert words in told
        assert "correct TENURE_URL" in told


def test_a_role_that_may_not_come_in_is_told_so(server: Postgres, url: str) -> None:
    database = urlsplit(url).path[1:]
    with a_role(server, url, "NOLOGIN") as role:
        assert "is not permitted to log in" in refused(lambda: look_in(role))
    with a_role(server, url) as role:
        server.execute(f"REVOKE CONNECT ON DATABASE {database} FROM public")
        assert "permission denied for database" in refused(lambda: look_in(role))


@pytest.mark.parametrize(
    "options",
    [
        "?sslmode=require",
        "?sslmode=bogus",
        pytest.param("?options=-c%20nonsense%3D1", marks=pytest.mark.thorough),
        "?connect_timeout=soon",
    ],
)
def test_an_option_that_cannot_work_is_no_matter_of_waiting(url: str, options: str) -> None:
    assert urlsplit(url).path[1:] in refused(lambda: look_in(url + options))


@pytest.mark.parametrize(
    "bad",
    [
        f"postgresql://tenure:pa/{WRONG}@127.0.0.1/db",
        f"postgresql://tenure:pa@{WRONG}@127.0.0.1/db",
        f"postgresql://tenure:pa?{WRONG}@127.0.0.1/db",
        f"postgresql://tenure:{WRONG}%zz@127.0.0.1/db",
        f"postgresql://tenure:{WRONG}%00@127.0.0.1/db",
        f"postgresql://?host=127.0.0.1&password=pa@{WRONG}",
        f"postgresql://127.0.0.1:5432?password=pa@{WRONG}",
        f"postgresql://tenure@127.0.0.1/db?pasword={WRONG}",
        f"postgresql://tenure@127.0.0.1/db?{WRONG}",
        f"postgresql://tenure:{WRONG}@db..internal/db",
        f"postgresql://tenure:{WRONG}@127.0.0.1,{'a' * 64}.example/db",
    ],
)
def test_a_url_that_libpq_would_read_otherwise_than_meant_is_refused_untold(bad: str) -> None:
    told = refused(lambda: PostgresStore(bad), InvalidOption)

    assert "url: expected postgresql://user:password@host" in told
    assert "written as %XX" in told


@pytest.mark.parametrize("odd", ["\udcff", "\0"])
def test_a_password_that_cannot_be_sent_is_refused_untold(odd: str) -> None:
    assert "TENURE_PASSWORD" in refused(
        lambda: PostgresStore("postgresql://tenure@127.0.0.1/db", password=WRONG + odd), InvalidOption
    )


def test_a_url_is_shown_as_one_that_can_be_typed() -> None:
    shown = {
        "postgres://a%40b:x@h/d%2Fb": "postgresql://a%40b@h/d%2Fb",
        "postgresql:///d?host=/tmp/sock&user=u": "postgresql://u@%2Ftmp%2Fsock/d",
        "postgresql://u@[::1]:5433/d": "postgresql://u@[::1]:5433/d",
        "postgresql://u:x@a:1,b:2/d": "postgresql://u@a:1,b:2/d",
        "postgresql://u:x@a,b/d?port=7": "postgresql://u@a:7,b:7/d",
    }
    assert {url: PostgresStore(url).url for url in shown} == shown


# ── Passwords, wherever they come from ──


def test_every_way_to_give_a_password_works_and_none_shows_it(
    server: Postgres, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = f"p@s/s:w?o#r%d {secrets.token_hex(4)}"
    _passwords.update({odd, quote(odd, safe=""), odd[-8:]})
    parts = urlsplit(url)
    host, database = f"127.0.0.1:{server.port}", parts.path[1:]
    PostgresStore(url).migrate()
    with a_role(server, url) as role_url:
        role = urlsplit(role_url).username
        server.execute(f"ALTER ROLE {role} PASSWORD '{odd}'")
        granted(server, url, role_url)
        passfile, services = tmp_path / "pgpass", tmp_path / "services"
        passfile.write_text(f"127.0.0.1:{server.port}:*:{role}:{odd.replace(':', chr(92) + ':')}\n")
        passfile.chmod(0o600)
        services.write_text(f"[shop]\nhost=127.0.0.1\nport={server.port}\ndbname={database}\nuser={role}\n")
        monkeypatch.setenv("PGSERVICEFILE", str(services))
        monkeypatch.setenv("PGPASSFILE", str(passfile))
        forms: dict[str, str | None] = {
            f"postgresql://{role}:{quote(odd, safe='')}@{host}/{database}": None,
            f"postgresql://{role}@{host}/{database}?password={quote(odd, safe='')}": None,
            f"postgresql:///{database}?host=127.0.0.1&port={server.port}&user={role}": odd,
            f"postgresql://{role}:{WRONG}@{host}/{database}": odd,
            f"postgresql://{role}@{host}/{database}": None,  # PGPASSFILE
            f"postgresql:///?service=shop&passfile={quote(str(passfile), safe='')}": None,
        }
        for form, password in forms.items():
            with opened(form, password=password) as store:
                put(store)
                assert not leaks(store.url, repr(store), repr(vars(store)["_server"]))
            environ = {"TENURE_URL": form} | ({} if password is None else {"TENURE_PASSWORD": password})
            for name in ("TENURE_URL", "TENURE_PASSWORD"):
                monkeypatch.delenv(name, raising=False)
            for name, value in environ.items():
                monkeypatch.setenv(name, value)
            assert main(["check", "--config"]) == main(["check", "--config", "--json"]) == 0
            said = capsys.readouterr()
            assert not leaks(said.out, said.err, repr(load(environ=environ)), repr(Tenure(form)))


def leaks(*texts: str) -> list[str]:
    return [text for text in texts for password in _passwords if password in text]


# ── The command line ──


SHOP = """
import time
from tenure import Tenure
jobs = Tenure()

@jobs.task
def sell() -> None:
    with open("sold", "a") as ledger:
        ledger.write(".")
    time.sleep(0.02)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENURE_NOTIFIER", "poll")
    return tmp_path


def command(url: str, *argv: str) -> tuple[int, str]:
    """Exit code and all that was said."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TENURE_URL": url}
    code = "from tenure.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], env=environ, capture_output=True, text=True, timeout=110, check=False
    )
    said = done.stdout + done.stderr
    assert not leaks(said)
    return done.returncode, said


@pytest.mark.thorough
def test_a_host_that_is_down_is_worth_another_try_and_a_wrong_password_is_not(folder: Path, url: str) -> None:
    wrong = with_login(url, "tenure", WRONG)

    with socket.socket() as taken:  # it does not listen, and no one else can on its port
        taken.bind(("127.0.0.1", 0))
        nowhere = with_port(url, taken.getsockname()[1])
        for argv in (["worker", "shop"], ["check"], ["migrate"], ["jobs", "list"], ["enqueue", "sell"]):
            code, said = command(nowhere, *argv, *(["--app", "shop"] if argv[0] == "enqueue" else []))
            assert (code, "is out of reach: Connection refused" in said) == (75, True), (argv, said)
    for argv, code in ((["worker", "shop"], 2), (["check"], 1), (["migrate"], 1)):
        told = command(wrong, *argv)
        assert (told[0], "password authentication failed" in " ".join(told[1].split())) == (code, True), (argv, told)


@pytest.mark.thorough
def test_who_starts_before_the_schema_is_told_the_command(folder: Path, url: str) -> None:
    for argv, code in ((["worker", "shop"], 2), (["check"], 1), (["jobs", "list"], 1)):
        exit_code, said = command(url, *argv)
        assert exit_code == code
        assert "run `tenure migrate` there first" in " ".join(said.split())
    assert command(url, "migrate")[0] == 0
    assert command(url, "check")[0] == 0


@pytest.mark.thorough
def test_a_worker_outlives_restarts_of_its_server_and_runs_each_job_once(
    folder: Path, server: Postgres, store: PostgresStore, url: str
) -> None:
    (folder / "sold").touch()
    jobs = [draft(task="sell") for _ in range(300)]
    store.enqueue(jobs)

    def sold() -> int:
        return (folder / "sold").stat().st_size

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(command, url, "worker", "shop", "--until-empty")
        for mode, number in (("fast", 20), ("immediate", 120)):
            until(lambda number=number: sold() > number, "some work")  # type: ignore[misc]
            server.restart(mode)  # type: ignore[arg-type]
        code, said = working.result()

    assert code == 0, said
    assert {(view.state, view.attempt) for view in (look(store, each.id) for each in jobs)} == {(State.COMPLETED, 1)}
    assert sold() == 300


# ── Away, and back ──


def test_an_outage_is_told_and_ends_with_it(server: Postgres, store: PostgresStore) -> None:
    job = put(store)
    server.stop()
    try:
        told = [refused(lambda: store.counts(), StoreAway), refused(lambda: store.enqueue([draft()]), StoreAway)]
    finally:
        server.start()

    assert all("is out of reach" in each for each in told), told
    assert [view.id for view in everything(store)] == [job]


@pytest.mark.parametrize(
    "mode", ["fast", *(pytest.param(mode, marks=pytest.mark.thorough) for mode in ("immediate", "kill"))]
)
def test_a_restart_while_nobody_asks_is_not_noticed(server: Postgres, store: PostgresStore, mode: Any) -> None:
    warm(store, 5)
    if mode == "kill":
        server.kill()
        server.start()
    else:
        server.restart(mode)

    with ExitStack() as stack:
        for _ in range(5):
            assert stack.enter_context(store.transaction()).execute("SELECT 1").fetchall() == [(1,)]
    assert finish(store, running(store), Completed()) is State.COMPLETED


def test_an_idle_connection_that_the_server_ended_is_not_used(server: Postgres, url: str) -> None:
    PostgresStore(url).migrate()
    with opened(url) as store:
        with ExitStack() as stack:
            for _ in range(3):  # not as a setting of the role, which would also strike between two statements of a verb
                connection = stack.enter_context(store._server.connection())
                connection.execute("SET idle_session_timeout = '50ms'")
        until(lambda: sessions(server, url) == 0, "the server to end its idle sessions")
        assert store.counts()[State.QUEUED] == 0


def test_restarts_in_the_middle_of_work_lose_nothing_and_double_nothing(server: Postgres, store: PostgresStore) -> None:
    over = threading.Event()
    sent: list[str] = []
    away: list[str] = []

    def work() -> None:
        while not over.is_set():
            job = draft()
            sent.append(job.id)
            while True:
                try:
                    store.enqueue([job])
                    break
                except StoreAway as error:
                    away.append(str(error))
                    time.sleep(0.01)

    with ThreadPoolExecutor(4) as threads:
        workers = [threads.submit(work) for _ in range(4)]
        for mode in ("fast", "immediate"):
            done = len(sent)
            until(lambda done=done: len(sent) > done + 40, "some work")  # type: ignore[misc]
            server.restart(mode)
        done = len(sent)
        until(lambda: len(sent) > done + 40, "some work")
        over.set()
        for worker in workers:
            worker.result()

    assert away
    found = [
        row[0] for row in server.execute("SELECT id::text FROM tenure.jobs", database=urlsplit(store.url).path[1:])
    ]
    assert sorted(found) == sorted(sent)


def test_a_broken_connection_takes_the_other_idle_ones_with_it(server: Postgres, store: PostgresStore) -> None:
    warm(store, 4)
    until(lambda: sessions(server, store.url) == 4, "nobody but the four to be there")

    with pytest.raises(StoreAway), store._server.connection() as connection:
        (pid,) = connection.execute("SELECT pg_backend_pid()").fetchall()[0]
        server.execute("SELECT pg_terminate_backend(%s)", (pid,))
        until(lambda: sessions(server, store.url, f"pid = {pid}") == 0, "the session to end")
        connection.execute("SELECT 1")

    until(lambda: sessions(server, store.url) == 0, "the idle ones to be closed")
    assert store.counts()[State.QUEUED] == 0


def test_a_full_server_is_away_until_somebody_leaves() -> None:
    settings = {"max_connections": 6, "superuser_reserved_connections": 0, "max_wal_senders": 0}
    with Postgres(settings) as small:
        _passwords.add(password_of(small.url()))
        url = small.create_database()
        PostgresStore(url).migrate()
        with opened(url) as store, ExitStack() as others:
            here: list[object] = []

            def fill() -> bool:
                with suppress(psycopg.OperationalError):
                    while True:
                        here.append(others.enter_context(psycopg.connect(url)))
                return len(here) == 5

            def let_in() -> bool:
                with suppress(StoreAway):
                    return store.counts()[State.QUEUED] == 0
                return False

            until(fill, "the places of those who have just left")
            assert store.counts()[State.QUEUED] == 0  # its own connection is still there
            with store._server.connection():
                assert "sorry, too many clients already" in refused(lambda: store.counts(), StoreAway)
            others.close()
            with store._server._lent():
                until(let_in, "somebody to have left")


@pytest.mark.thorough
def test_a_server_that_shuts_down_is_away(server: Postgres, url: str) -> None:
    PostgresStore(url).migrate()
    told: list[str] = []

    def shutting_down() -> bool:
        try:
            look_in(url)
        except StoreAway as error:
            told.append(str(error))
        return bool(told)

    with ThreadPoolExecutor(1) as threads:
        with psycopg.connect(url):  # a smart stop waits for this session
            stopping = threads.submit(server.stop, "smart")
            until(shutting_down, "the server to refuse newcomers")
        stopping.result()
    server.start()
    assert "the database system is shutting down" in told[0]


# ── Standbys ──


class Standby(Postgres):
    """A streaming replica of another server."""

    def __init__(self, primary: Postgres) -> None:
        self._primary = primary
        super().__init__()

    def _init(self, password: str) -> None:
        self._url = with_port(self._primary.url(), self.port)
        program, data = str(self._programs / "pg_basebackup"), str(self.folder / "data")
        self._run(
            *(program, "--dbname", self._primary.url(), "--pgdata", data),
            *("--write-recovery-conf", "--checkpoint", "fast", "--no-sync"),
        )

    def set(self, name: str, value: str) -> None:
        self._settings[name] = value

    def _answers(self) -> bool:
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError as error:
            return "FATAL" in str(error) and "not accepting" in str(error)
        return True


@pytest.mark.thorough
def test_a_standby_is_told_and_used_once_it_is_promoted() -> None:
    with Postgres() as primary:
        _passwords.add(password_of(primary.url()))
        url = primary.create_database()
        PostgresStore(url).migrate()
        with Standby(primary) as standby, ExitStack() as stack:
            alone = with_port(url, standby.port)
            both = url.replace(f"127.0.0.1:{primary.port}", f"127.0.0.1:{standby.port},127.0.0.1:{primary.port}")
            follower = stack.enter_context(opened(both))
            kept = put(follower)  # it finds the primary among them
            ((written,),) = primary.execute("SELECT pg_current_wal_lsn()::text")
            until(  # the standby itself is asked: it reports to the primary only every ten seconds
                lambda: standby.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (written,)) == [(True,)],
                "the standby to have it",
            )

            for call in (lambda: look_in(alone), PostgresStore(alone).migrate):
                told = refused(call, StoreAway)
                assert f"127.0.0.1:{standby.port}/" in told
                assert "is read-only (a standby" in told

            standby.set("hot_standby", "off")
            standby.restart()
            assert "not accepting connections" in refused(lambda: look_in(alone), StoreAway)
            standby.set("hot_standby", "on")
            standby.restart()

            primary.kill()
            refused(lambda: follower.counts(), StoreAway)
            assert standby.execute("SELECT pg_promote()") == [(True,)]
            until(lambda: standby.execute("SELECT pg_is_in_recovery()") == [(False,)], "the promotion")
            assert [view.id for view in everything(follower)] == [kept]
            with opened(alone) as store:
                lease = claim_one(store, start(store))
                assert lease.job_id == kept
                assert finish(store, lease, Completed()) is State.COMPLETED


def test_a_primary_that_turns_read_only_is_left_until_it_turns_back(server: Postgres, store: PostgresStore) -> None:
    warm(store, 2)
    server.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    try:
        server.execute("SELECT pg_reload_conf()")
        until(lambda: server.execute("SHOW default_transaction_read_only") == [("on",)], "the reload")
        until(lambda: sessions(server, store.url, "state = 'idle'") == 2, "idle sessions")
        for _ in range(2):
            assert "is read-only" in refused(lambda: store.enqueue([draft()]), StoreAway)
    finally:
        writable = "-c default_transaction_read_only=off"
        with psycopg.connect(server.url(), autocommit=True, options=writable) as connection:
            connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
            connection.execute("SELECT pg_reload_conf()")
    until(lambda: server.execute("SHOW default_transaction_read_only") == [("off",)], "the reload")
    put(store)


# ── The schema ──


def test_a_missing_schema_is_told_with_the_place_and_the_command(server: Postgres, url: str) -> None:
    told = refused(lambda: look_in(url))

    assert f"127.0.0.1:{server.port}/{urlsplit(url).path[1:]} has no schema tenure" in told
    assert "run `tenure migrate`" in told


def test_one_version_ahead_is_accepted_two_are_not(server: Postgres, url: str) -> None:
    def version(number: int) -> None:
        server.execute(
            f"UPDATE tenure.migrations SET version = {number} "
            "WHERE version = (SELECT max(version) FROM tenure.migrations)",
            database=urlsplit(url).path[1:],
        )

    store = PostgresStore(url)
    assert store.migrate() == store.migrate() == NEWEST
    version(NEWEST + 1)
    look_in(url)
    assert store.migrate() == NEWEST + 1
    version(NEWEST + 2)
    for call in (lambda: look_in(url), store.migrate):
        assert f"has version {NEWEST + 2}, this Tenure knows {NEWEST}" in refused(call)
    version(0)
    assert "run `tenure migrate`" in refused(lambda: look_in(url))


@pytest.mark.thorough
def test_many_processes_migrate_an_empty_database_at_once(server: Postgres, url: str) -> None:
    code = """import sys; from tenure.stores.postgres import PostgresStore; store = PostgresStore(sys.argv[1])
print("ready", flush=True); sys.stdin.read(1); print(store.migrate())"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    patient = f"{url}?connect_timeout=60"  # they all come at the same moment
    with ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", code, patient], env=environ, **pipes))  # type: ignore[call-overload]
            for _ in range(8)
        ]
        for process in processes:
            process.stdout.readline()
        answers = race(*[lambda process=process: process.communicate(b"g")[0] for process in processes])

    assert answers == [b"%d\n" % NEWEST] * 8
    versions = server.execute("SELECT version FROM tenure.migrations", database=urlsplit(url).path[1:])
    assert versions == [(number,) for number, _ in schema.migrations()]


def test_a_role_without_the_right_to_create_is_told_and_can_use_a_schema_made_for_it(
    server: Postgres, url: str
) -> None:
    with a_role(server, url) as role:
        told = refused(PostgresStore(role).migrate)
        assert "the role lacks a right (permission denied for database" in told
        assert "GRANT it" in told

        server.execute(f"CREATE SCHEMA tenure AUTHORIZATION {urlsplit(role).username}", database=urlsplit(url).path[1:])
        assert PostgresStore(role).migrate() == NEWEST
        with opened(role) as store:
            put(store)


def test_a_role_that_may_only_change_rows_can_do_everything_but_migrate(server: Postgres, url: str) -> None:
    PostgresStore(url).migrate()
    with a_role(server, url) as role:
        assert "permission denied for schema tenure" in refused(lambda: look_in(role))
        granted(server, url, role)
        assert PostgresStore(role).migrate() == NEWEST  # there is nothing to do
        with opened(role) as store:
            store.enqueue([draft() for _ in range(60)])
            worker = start(store)
            first, second, third, *_ = claim(store, worker, 60)
            leases = [Lease(each.id, each.attempt, worker) for each in (first, second, third)]
            assert store.progress([Progress(lease=leases[0], fraction=0.5)]) == [True]
            assert store.once(leases[0], "key", "1") is not None
            store.finish([(leases[0], Completed("1")), (leases[1], Failed("no", final=True)), (leases[2], Snoozed(0))])
            with store.transaction() as tx:
                store.enqueue([draft(unique="k")], tx=tx)
            assert store.renew([worker]) == {worker}
            assert len(store.promote().jobs["default"]) == 1
            assert store.replay([leases[1].job_id]) == {leases[1].job_id: Landed(State.QUEUED)}
            assert store.cancel([leases[1].job_id], "no") == {leases[1].job_id: State.CANCELLED}
            assert store.delete([leases[0].job_id]) == {leases[0].job_id: Landed(State.COMPLETED)}
            assert len(store.settle(worker, {}, Released())) == 57
            assert store.rescue() == []
            assert store.pause("default", paused=True)
            assert store.prune(keep=0, keep_dead=0) == 1
            assert store.declare_expired() == frozenset()
            assert store.search(Filter()).jobs
            assert store.queues()
            assert store.workers(dead=True)
        server.execute("DELETE FROM tenure.migrations", database=urlsplit(url).path[1:])
        assert "the role lacks a right" in refused(PostgresStore(role).migrate)


@pytest.mark.parametrize("name", ["UPPER", "a-b", "_", "select", "x" * 63, "tenure2"])
def test_a_namespace_is_one_schema_whatever_its_letters(name: str, server: Postgres, url: str) -> None:
    settings = load(code={"namespace": name}, environ={})
    store = PostgresStore(url, schema=settings.namespace)
    store.migrate()
    with opened(url, schema=name) as store:
        store.enqueue([draft() for _ in range(50)])
        assert finish(store, claim_one(store, start(store)), Completed()) is State.COMPLETED
    found = server.execute(
        "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|public|information_schema)'",
        database=urlsplit(url).path[1:],
    )
    assert found == [(name,)]


@pytest.mark.parametrize(
    "name",
    [
        "",
        'a"b',
        "a.b",
        "a b",
        "a;DROP SCHEMA x",
        "a'b",
        "1a",
        "é",
        "%s",
        "@.",
        "x" * 64,
        "pg_mine",
        "PG_MINE",
        "Information_Schema",
    ],
)
def test_a_namespace_that_cannot_be_is_refused(name: str, url: str) -> None:
    assert "namespace: " in refused(lambda: PostgresStore(url, schema=name), InvalidOption)


def test_an_old_server_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PostgresStore(url).migrate()
    monkeypatch.setattr(psycopg.ConnectionInfo, "server_version", 13_00_14)

    for call in (lambda: look_in(url), PostgresStore(url).migrate):
        assert "is PostgreSQL 13: Tenure needs 14 or newer" in refused(call)


# ── Ways of a role, a database, an environment ──


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("synchronous_commit = off", "on"),
        ("synchronous_commit = local", "local"),
        ("default_transaction_isolation = 'serializable'", "read committed"),
        ("default_transaction_isolation = 'repeatable read'", "read committed"),
        ("lock_timeout = 0", "2s"),
        ("timezone = 'Pacific/Auckland'", "UTC"),
        ("datestyle = 'German'", "ISO"),
        ("client_encoding = 'latin1'", "UTF8"),
        ("enable_seqscan = on", "off"),
    ],
)
def test_what_a_role_prefers_weakens_nothing(server: Postgres, url: str, theirs: str, ours: str) -> None:
    PostgresStore(url).migrate()
    name = theirs.partition(" ")[0].replace("default_transaction_isolation", "transaction_isolation")
    with a_role(server, url, f"SET {theirs}") as role:
        granted(server, url, role)
        with opened(role) as store:
            job = put(store, run_at=datetime(2100, 1, 2, tzinfo=UTC))
            store.enqueue([draft(payload="é") for _ in range(50)])
            assert look(store, job).run_at.isoformat() == "2100-01-02T00:00:00+00:00"
            ((shown,),) = store._server.fetch(f"SHOW {name}")
            assert shown.startswith(ours)


def test_eight_claimers_of_a_serializable_role_meet_no_conflict(server: Postgres, url: str) -> None:
    PostgresStore(url).migrate()
    with a_role(server, url, "SET default_transaction_isolation = 'serializable'") as role:
        granted(server, url, role)
        with opened(role) as store:
            workers = [start(store) for _ in range(8)]
            store.enqueue([draft() for _ in range(160)])

            def work(worker: str) -> list[str]:
                mine: list[str] = []
                while found := claim(store, worker, 4):
                    leases = [Lease(each.id, each.attempt, worker) for each in found]
                    assert store.finish([(lease, Completed()) for lease in leases]) == [Landed(State.COMPLETED)] * len(
                        leases
                    )
                    mine += [each.id for each in found]
                return mine

            ran = race(*[lambda worker=worker: work(worker) for worker in workers])
            assert len({job for mine in ran for job in mine}) == sum(map(len, ran)) == 160


def test_a_database_that_looks_at_no_text_keeps_ours(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    name = f"e_{secrets.token_hex(4)}"
    server.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0")
    url = server.url(name)
    PostgresStore(url).migrate()
    with opened(url) as store:
        for number in (1, 50):
            (first, *_) = store.enqueue([draft(payload="é") for _ in range(number)])
            assert look(store, first.id).payload == "é"
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")


# ── Locks ──


def test_a_claim_passes_by_a_row_that_somebody_holds(store: PostgresStore, url: str) -> None:
    held, free = put(store, priority=5), put(store)
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM tenure.jobs WHERE id = %s FOR UPDATE", (held,))
        assert [each.id for each in claim(store, start(store), 2)] == [free]


def test_a_claim_takes_what_was_changed_after_its_statement_began(
    server: Postgres, store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It chooses the new version of the job, which its snapshot does not show."""
    # The statement has its snapshot when it waits here.
    stops = verbs.CLAIM.replace("FROM unnest(", "FROM pg_advisory_lock_shared(4711), unnest(", 1)
    assert stops != verbs.CLAIM
    monkeypatch.setattr(verbs, "CLAIM", stops)
    worker, jobs = start(store), {put(store) for _ in range(3)}
    with psycopg.connect(url, autocommit=True) as other, ThreadPoolExecutor(1) as threads:
        other.execute("SELECT pg_advisory_lock(4711)")
        claims = threads.submit(claim, store, worker, 3)
        until(lambda: sessions(server, url, "wait_event = 'advisory'") == 1, "the claim to wait")
        other.execute("UPDATE tenure.jobs SET message = 'x' WHERE id = %s", (min(jobs),))
        other.execute("SELECT pg_advisory_unlock(4711)")

        assert {each.id for each in claims.result()} == jobs


def test_a_statement_timeout_of_the_role_is_told_and_nothing_is_done(server: Postgres, url: str) -> None:
    PostgresStore(url).migrate()
    with a_role(server, url, "SET statement_timeout = '200ms'") as role, opened(url) as store:
        granted(server, url, role)
        lease = running(store)

        def finish_in_a_hurry() -> None:
            with opened(role) as hurried:
                hurried.finish([(lease, Completed())])

        with psycopg.connect(url) as other:
            other.execute("SELECT FROM tenure.jobs WHERE id = %s FOR UPDATE", (lease.job_id,))
            told = refused(finish_in_a_hurry, StoreAway)
            assert "canceling statement due to statement timeout" in told
        assert look(store, lease.job_id).state is State.PROCESSING
        assert finish(store, lease, Completed()) is State.COMPLETED


def test_a_deadlock_is_tried_again_and_nothing_is_lost(
    server: Postgres, store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start(store)
    first, second = running(store, worker), running(store, worker)
    # All in the server: it looks for a deadlock only once, four seconds after the finish began to wait.
    session = module._SESSION.replace("lock_timeout = '2s'", "lock_timeout = '60s'; SET deadlock_timeout = '4s'")
    monkeypatch.setattr(module.Server.connect, "__defaults__", (session,))
    crosswise = f"""DO $$ BEGIN
        UPDATE tenure.jobs SET message = 'x' WHERE id = '{second.job_id}';
        LOOP
            PERFORM pg_sleep(0.01);
            EXIT WHEN EXISTS (SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted);
        END LOOP;
        UPDATE tenure.jobs SET message = 'x' WHERE id = '{first.job_id}';
    END $$"""
    with psycopg.connect(url, autocommit=True) as other, ThreadPoolExecutor(1) as threads:
        other.execute("SET deadlock_timeout = '100s'")  # so the store's statement is the one that is cancelled
        crossing = threads.submit(other.execute, crosswise.encode())
        until(lambda: sessions(server, url, "wait_event = 'PgSleep'") == 1, "the other to hold the second job")
        with opened(url) as patient:
            answers = patient.finish([(first, Failed("a")), (second, Failed("b"))])
        crossing.result()

    assert [each.state for each in answers if isinstance(each, Landed)] == [State.SCHEDULED] * 2
    assert [len(store.attempts(lease.job_id)) for lease in (first, second)] == [1, 1]
    assert [look(store, lease.job_id).failures for lease in (first, second)] == [1, 1]
    database = urlsplit(url).path[1:]
    until(
        lambda: (
            server.execute("SELECT deadlocks > 0 FROM pg_stat_database WHERE datname = %s", (database,)) == [(True,)]
        ),
        "the deadlock to be counted",
    )


# ── A caller's transaction ──


def test_a_transaction_that_sleeps_is_undone_and_told(
    server: Postgres, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_OWN", module._OWN.replace("'60s'", "'100ms'"))
    PostgresStore(url).migrate()

    def sleep(store: PostgresStore) -> None:
        with store.transaction() as tx:
            store.enqueue([draft()], tx=tx)
            until(lambda: sessions(server, url, "state LIKE 'idle in tra%'") == 0, "the server to lose patience")

    with opened(url) as store:
        told = refused(lambda: sleep(store))
        assert "rolled back a transaction that was open for too long" in told
        assert everything(store) == []


def test_an_error_that_the_caller_swallowed_undoes_the_transaction_aloud(store: PostgresStore) -> None:
    called: list[int] = []

    def swallow() -> None:
        with store.transaction() as tx:
            store.enqueue([draft()], tx=tx, committed=lambda: called.append(1))
            refused(lambda: tx.execute("SELECT 1/0"), BadData)

    def go_on() -> None:
        with store.transaction() as tx:
            refused(lambda: tx.execute("SELECT 1/0"), BadData)
            store.enqueue([draft()], tx=tx)

    for call in (swallow, go_on):
        assert "an error in this transaction made PostgreSQL roll it back: nothing of it is stored" in refused(call)
    assert everything(store) == []
    assert called == []


def test_a_transaction_ended_by_hand_joins_no_more_jobs(store: PostgresStore) -> None:
    def commit() -> None:
        with store.transaction() as tx:
            tx.execute("COMMIT")
            store.enqueue([draft()], tx=tx)

    def only_commit() -> None:
        with store.transaction() as tx:
            kept.append(tx)
            tx.execute("COMMIT")

    kept: list[Any] = []
    for call in (commit, only_commit):
        assert "a COMMIT or ROLLBACK was executed in it" in refused(call)
    assert "has ended" in refused(lambda: kept[0].execute("SELECT 1"))
    assert everything(store) == []


def test_the_callers_own_errors_pass_as_they_are(store: PostgresStore, url: str) -> None:
    with psycopg.connect(url) as other, pytest.raises(psycopg.errors.DivisionByZero), store.transaction() as tx:
        store.enqueue([draft()], tx=tx)
        other.execute("SELECT 1/0")
    with pytest.raises(UnicodeEncodeError), store.transaction() as tx:
        store.enqueue([draft()], tx=tx)
        "é".encode("ascii")

    def miss() -> None:
        with store.transaction() as tx:
            tx.execute("SELECT FROM my_own_table")

    assert 'relation "my_own_table" does not exist' in (told := refused(miss))
    assert "migrate" not in told
    assert everything(store) == []


# ── Values ──

WEIRD = "\\N \\. \\ \\\\ \\x00 \t\n\r\v\f\b \x01\x7f \u2028 ' \" %s $1 :p @. @now {} é 漢字 😀 \n\\.\n"


@pytest.mark.parametrize("number", [1, 49, 50, 120], ids=lambda number: f"{number} drafts")
@pytest.mark.parametrize("value", [WEIRD, "\\N", "\\.", "\\", "", "\n", "é" * 200_000, "\\" * 300_000], ids=len)
def test_every_text_comes_back_letter_by_letter(value: str, number: int, store: PostgresStore) -> None:
    given = [draft(payload=value, task=value[:90], queue=value[:90] + str(n % 2), meta="{}") for n in range(number)]
    if len(value) > 1000:
        given = given[:1] + [draft() for _ in given[1:]]

    store.enqueue(given)

    for sent in (given[0], given[-1]):
        view = look(store, sent.id)
        assert (view.payload, view.task, view.queue) == (sent.payload, sent.task, sent.queue)


def test_copied_and_inserted_jobs_are_the_same(store: PostgresStore) -> None:
    far = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    options: list[dict[str, Any]] = [
        {},
        {"delay": 0.0},
        {"delay": -5.0},
        {"delay": 3_000_000_000.0},
        {"run_at": far},
        {"run_at": datetime(1, 1, 1, tzinfo=UTC)},
        {"run_at": datetime(2100, 6, 1, 12, tzinfo=UTC) + timedelta(microseconds=1)},
        {"delay": 60.0, "expires": 5.5},
        {"priority": -100},
        {"priority": 100},
        {"isolated": True, "timeout": 0.1, "stale_after": 1e-9, "retry_base": 1 / 3, "retry_cap": 1e6},
        {"max_failures": 1, "max_crashes": 1_000_000, "meta": '{"a":"\\\\ \\n \\u0007"}'},
    ]
    inserted = [draft(**each) for each in options]
    copied = [draft(**each) for each in options for _ in range(5)]
    for each in inserted:
        store.enqueue([each])
    store.enqueue(copied)

    def facts(job_id: str, wanted: dict[str, Any]) -> list[Any]:
        view = look(store, job_id)
        waits = (view.run_at - view.enqueued_at).total_seconds() if "run_at" not in wanted else view.run_at
        lives = None if view.expires_at is None else (view.expires_at - view.run_at).total_seconds()
        limits = (view.timeout, view.stale_after, view.max_failures, view.max_crashes)
        return [waits, lives, view.state, view.priority, view.isolated, view.solo, *limits, view.meta]

    for n, wanted in enumerate(options):
        assert facts(copied[n * 5].id, wanted) == facts(inserted[n].id, wanted)


@pytest.mark.parametrize(
    "bad",
    [
        {"priority": 101},
        {"priority": 10**9},
        {"priority": -101},
        {"payload": "a\x00b"},
        {"meta": "\ud800"},
        {"id": "no-uuid"},
        {"id": "\\N"},
        {"id": "\\."},
    ],
)
def test_one_bad_draft_in_a_great_batch_stores_nothing(
    bad: dict[str, Any], store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.Server.run, "__defaults__", (60.0,))  # a busy machine may take long for so many drafts
    batch = [draft() for _ in range(20_000 if "payload" in bad or bad == {"priority": 101} else 100)]
    batch.insert(len(batch) // 2, draft(**bad))

    refused(lambda: store.enqueue(batch), BadData)

    assert everything(store) == []
    put(store)


def test_the_same_id_twice_in_a_copied_batch_is_one_job(store: PostgresStore) -> None:
    batch = [draft() for _ in range(60)]
    twice = [*batch, batch[7]]

    answers = store.enqueue(twice)

    assert [answer.id for answer in answers] == [each.id for each in twice]
    assert [answer.created for answer in answers] == [True] * 60 + [False]
    assert len(everything(store)) == 60
    assert {answer.created for answer in store.enqueue(batch)} == {False}


def test_a_unique_key_too_long_for_an_index_is_bad_data(store: PostgresStore) -> None:
    key = "".join(secrets.token_hex(32) for _ in range(300))

    assert "refused a value: index row" in refused(lambda: store.enqueue([draft(unique=key)]), BadData)


# ── Threads and processes ──


def test_fifty_threads_share_twenty_connections(
    server: Postgres, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY_SECONDS", 60.0)  # the promise is that all get their turn, not how soon
    until(lambda: sessions(server, store.url) == 1, "whoever migrated to have left")

    answers = race(*[lambda: store.enqueue([draft()])[0].created for _ in range(50)])

    assert answers == [True] * 50
    assert sessions(server, store.url) <= module.MOST_CONNECTIONS


def test_when_all_connections_are_taken_the_next_is_told(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.05)
    with ExitStack() as stack:
        for _ in range(module.MOST_CONNECTIONS):
            stack.enter_context(store._server.connection())
        assert f"all {module.MOST_CONNECTIONS} connections" in refused(lambda: store.counts(), StoreAway)

    assert store.counts()[State.QUEUED] == 0


def test_callers_transactions_wait_for_each_other_and_no_verb_waits_for_them(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TURN_SECONDS", 0.05)

    def one_more() -> None:
        with store.transaction():
            pass

    with ExitStack() as stack:
        for _ in range(module.MOST_TRANSACTIONS):
            stack.enter_context(store.transaction())
        assert store.counts()[State.QUEUED] == 0
        told = refused(one_more, StoreAway)
        assert f"{module.MOST_TRANSACTIONS} transactions" in told
        assert "none ended within 0.05s" in told
        monkeypatch.setattr(module, "TURN_SECONDS", 60.0)
        with ThreadPoolExecutor(1) as thread:
            waits = thread.submit(one_more)
            stack.close()
            waits.result(60)


def test_transactions_in_turn_share_a_connection(server: Postgres, store: PostgresStore) -> None:
    backends = [transacted(store, "SELECT pg_backend_pid()") for _ in range(20)]

    assert len(set(backends)) == 1
    until(lambda: sessions(server, store.url) == 2, "only theirs and that of the verbs to be left")


#: What a transaction may leave in its session, and a query that tells whether it is there.
LEFT = {
    "SET work_mem = '77MB'": "SELECT current_setting('work_mem') = '77MB'",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY": "SELECT current_setting('transaction_read_only') = 'on'",
    "SET ROLE pg_monitor": "SELECT current_user = 'pg_monitor'",
    "SET search_path = nowhere": "SELECT current_setting('search_path') = 'nowhere'",
    "CREATE TEMP TABLE mine ()": "SELECT to_regclass('mine') IS NOT NULL",
    "PREPARE mine AS SELECT 1": "SELECT EXISTS (SELECT FROM pg_prepared_statements)",
    "DECLARE mine CURSOR WITH HOLD FOR SELECT 1": "SELECT EXISTS (SELECT FROM pg_cursors WHERE name = 'mine')",
    "LISTEN mine": "SELECT EXISTS (SELECT FROM pg_listening_channels())",
    "SELECT pg_advisory_lock(1)": "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory')",
}


@pytest.mark.parametrize("leave", LEFT)
def test_nothing_of_a_transaction_is_there_in_the_next(leave: LiteralString, store: PostgresStore) -> None:
    query = cast(LiteralString, f"SELECT pg_backend_pid(), ({LEFT[leave]})")
    with store.transaction() as tx:
        tx.execute(leave)
        there = tx.execute(query).fetchone()
    with store.transaction() as tx:
        then = tx.execute(query).fetchone()

    assert there is not None
    assert there[1] or leave.startswith(("SET SESSION", "LISTEN"))  # these are there after the commit
    assert then == (there[0], False)


def test_whoever_keeps_a_cursor_or_a_connection_cannot_reach_the_next_transaction(store: PostgresStore) -> None:
    with store.transaction() as tx:
        cursor = tx.execute("SELECT pg_backend_pid()")
    mine = cursor.fetchone()
    with store.transaction() as tx:
        connection = tx.execute("SELECT 1").connection
        yours = tx.execute("SELECT pg_backend_pid()").fetchone()

    theirs = transacted(store, "SELECT pg_backend_pid()")
    assert len({mine, yours, theirs}) == 3
    for stale in (cursor, connection):
        with pytest.raises(psycopg.OperationalError, match="closed"):
            stale.execute("SELECT 1")


def transacted(store: PostgresStore, query: LiteralString) -> object:
    with store.transaction() as tx:
        return tx.execute(query).fetchone()


def test_a_forked_child_is_told_and_harms_its_parent_by_nothing(store: PostgresStore) -> None:
    def backends() -> set[int]:
        with ExitStack() as stack:
            found = [
                stack.enter_context(store._server.connection()).execute("SELECT pg_backend_pid()") for _ in range(3)
            ]
            return {cursor.fetchall()[0][0] for cursor in found}

    put(store)
    before = backends()
    reading, writing = os.pipe()
    with store.transaction() as tx:
        child = os.fork()
        if child == 0:
            told: list[str] = []
            try:
                for call in (store.counts, lambda: tx.execute("SELECT 1"), lambda: store.enqueue([draft()], tx=tx)):
                    try:
                        call()
                    except StoreError as error:
                        told.append(str(error))
                store.close()
                os.write(writing, "\n".join(told).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        store.enqueue([draft()], tx=tx)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        lines = pipe.read().splitlines()

    assert len(lines) == 3
    assert all("was opened before a fork()" in line for line in lines)
    assert backends() == before
    assert len(everything(store)) == 2


# ── No answer, and no thread ──


def no_more_threads(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_verb_without_an_answer_ends_in_time_although_the_store_is_closed_meanwhile(
    server: Postgres, store: PostgresStore
) -> None:
    with ThreadPoolExecutor() as threads:
        verb = threads.submit(store._server.fetch, "SELECT pg_sleep(30)", seconds=2.0)
        until(lambda: sessions(server, store.url, "query LIKE '%pg_sleep(30)%'") == 1, "the verb to be in flight")
        store.close()
        assert "no answer in 2s" in refused(verb.result, StoreAway)


def test_a_verb_has_its_time_limit_also_where_no_thread_can_be_started(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    monkeypatch.setattr(threading.Thread, "start", no_more_threads)
    store.open()
    assert "no answer in 0.5s" in refused(lambda: store._server.fetch("SELECT pg_sleep(30)", seconds=0.5), StoreAway)
    assert store.counts()[State.QUEUED] == 0


def test_a_look_at_awaited_jobs_has_the_time_limit_of_verbs_not_that_of_peoples_reads(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, connection = list[float](), store._server.connection

    def noted(seconds: float, **options: Any) -> Any:
        limits.append(seconds)
        return connection(seconds, **options)

    monkeypatch.setattr(store._server, "connection", noted)
    store.updates({draft().id: ""})

    assert limits == [module.ANSWER_SECONDS]


def test_what_came_of_a_commit_is_asked_as_soon_as_a_thread_can_be_started_again() -> None:
    watch = CommitWatch(lambda xids: dict.fromkeys(xids, "committed"))
    heard = [threading.Event(), threading.Event()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more_threads)
        watch.add("1", heard[0].set)
    watch.add("2", heard[1].set)
    assert all(each.wait(60) for each in heard)
    watch.close()


def test_a_store_that_is_not_open_says_so(url: str) -> None:
    store = PostgresStore(url)
    assert re.search("is not open$", refused(lambda: store.counts()))
    store.migrate()
    store.open()
    store.close()
    assert "is not open" in refused(lambda: store.counts())
    store.open()
    assert store.counts()[State.QUEUED] == 0
    store.close()


def test_a_crash_leaves_its_evidence_letter_by_letter(store: PostgresStore) -> None:
    lease = running(store)
    store.settle(lease.worker_id, {}, Crashed(WEIRD, evidence={WEIRD: WEIRD}))

    (attempt,) = store.attempts(lease.job_id)
    assert (attempt.error, dict(attempt.evidence)) == (WEIRD, {WEIRD: WEIRD})
    assert look(store, lease.job_id).message == f"Cleared: {WEIRD}, on {lease.worker_id}"


class SlowLine(Proxy):
    """The time limits of all connections count by what it has passed on: if this process stops, so does their time."""

    def __init__(self, port: int, rate: float, patch: pytest.MonkeyPatch) -> None:
        super().__init__("127.0.0.1", port)
        self._bytes_a_second, self._passed = rate, 0
        patch.setattr(deadlines, "time", SimpleNamespace(monotonic=self.seconds))

    def __enter__(self) -> Self:
        super().__enter__()
        self.usual(rate=self._bytes_a_second)
        return self

    def seconds(self) -> float:
        return self._passed / self._bytes_a_second

    async def _turn(self, direction: int, size: int) -> None:
        await super()._turn(direction, size)
        self._passed += size


def test_a_large_answer_on_a_slow_line_is_awaited_as_long_as_it_comes(
    server: Postgres, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit counts silence; a renewal, which is small, must be answered completely within it."""
    with SlowLine(server.port, 500_000, monkeypatch) as line:
        url = store._server.conninfo.replace(f"port={server.port}", f"port={line.port}")
        with Connection.connect(url, autocommit=True) as slow:
            since = line.seconds()
            with slow.within(1.0):
                (text,) = slow.execute("SELECT repeat('x', 1500000)").fetchall()[0]
            assert len(text) == 1_500_000
            assert line.seconds() - since > 2.0
            with (
                pytest.raises(psycopg.OperationalError, match="no answer in 1s"),
                slow.within(1.0, strict=True),
            ):
                slow.execute("SELECT repeat('x', 1500000)")


def test_a_large_statement_on_a_slow_line_has_the_time_that_it_takes(server: Postgres, store: PostgresStore) -> None:
    """The limit counts silence: a line on which the system is still sending, or has yet to send, is not silent.

    A line that accepts nothing any more is.
    """
    text = "x" * 2_500_000
    with pytest.MonkeyPatch.context() as patch, SlowLine(server.port, 600_000, patch) as line:
        url = store._server.conninfo.replace(f"port={server.port}", f"port={line.port}")
        with Connection.connect(url, autocommit=True) as slow:
            with slow.within(2.0):
                assert slow.execute("SELECT length(%s)", (text,)).fetchall() == [(len(text),)]
            patch.undo()  # a line that passes nothing on would have no time
            line.blackhole()
            with pytest.raises(psycopg.OperationalError, match="no answer in 2s"), slow.within(2.0):
                slow.execute("SELECT length(%s)", (text,))


@pytest.mark.thorough
def test_many_jobs_and_a_batch_of_large_results_land_on_a_line_that_is_slow_to_send(
    server: Postgres, url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes several times as long as an answer may take; that limit is a quarter of the usual one here."""
    within = Connection.within
    monkeypatch.setattr(Connection, "within", lambda each, seconds, **how: within(each, seconds / 4, **how))
    worker = start(store, slots=8)
    with SlowLine(server.port, 600_000, monkeypatch) as line, opened(with_port(url, line.port)) as far:
        since = line.seconds()
        far.enqueue([draft(payload=f'"{"x" * 1000}"') for _ in range(2400)])
        assert line.seconds() - since > 3.0
        leases = [Lease(each.id, each.attempt, worker) for each in claim(store, worker, 8)]
        since = line.seconds()
        answers = far.finish([(lease, Completed(f'"{"y" * 300_000}"')) for lease in leases])
        assert line.seconds() - since > 3.0
    assert answers == [Landed(State.COMPLETED)] * 8
    assert store.counts()[State.QUEUED] == 2392


def test_a_job_of_which_nobody_knows_when_it_last_did_anything_is_rescued_first(store: PostgresStore) -> None:
    """An operator's own statement may leave a job like that."""
    known, unknown = running(store), running(store)
    with store.transaction() as tx:
        tx.execute("UPDATE tenure.jobs SET last_activity_at = NULL WHERE id = %s", (unknown.job_id,))
    store.declare_dead([known.worker_id, unknown.worker_id])

    assert [[each.id for each in store.rescue(limit=1)] for _ in range(2)] == [[unknown.job_id], [known.job_id]]


def test_too_many_open_files_are_a_store_that_is_away(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """psycopg opens an epoll to wait for a connection, and lets its error through."""

    def no(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(module.Connection, "connect", no)
    with pytest.raises(StoreAway, match="Too many open files"):
        PostgresStore(url).open()


@pytest.mark.parametrize("undone", module.ROLLED_BACK, ids=lambda error: error.__name__)
def test_what_the_server_undid_for_a_loop_is_left_to_a_thread(
    store: PostgresStore, undone: type[psycopg.Error], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler, where a default of the database makes transactions serializable. The store is not away."""

    def undoing(*_: object, **__: object) -> Generator[Readable]:
        yield from ()
        raise undone

    worker = start(store)
    monkeypatch.setattr(Connection, "on_loop", undoing)
    for call in (store.claim_on_loop(worker, {"default": 1}, 1), store.enqueue_on_loop(draft())):
        store.counts()  # now a connection is idle
        with pytest.raises(StopIteration) as end:
            next(call)
        assert end.value.value is None
    assert claim(store, worker) == []
