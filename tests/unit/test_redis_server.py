"""A Redis or Valkey that refuses, goes away, comes back, or has ways of its own: what a store makes of it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (redis-py leaves most of its types open)
from __future__ import annotations

import logging
import os
import re
import secrets
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from redis.exceptions import RedisError

from conformance.factories import (
    assert_sound,
    begin,
    claim,
    claim_one,
    draft,
    everything,
    finish,
    look,
    made,
    put,
    race,
    running,
    standing,
    start,
)
from servers import Sentinel, Valkey, ValkeyCluster, free_port
from tenure.app.app import Tenure
from tenure.app.backends import open_notifier, open_store
from tenure.cli.main import main
from tenure.config import load, redact
from tenure.core.conditions import Condition
from tenure.core.lifecycle import Completed, Edge, Failed, Lease, Released, Snoozed, State, Suspended
from tenure.core.limits import Bounds, Key, Rate
from tenure.errors import InvalidOption, StoreAway, StoreError
from tenure.notifiers.redis import RedisNotifier
from tenure.ports import Draft, Edit, Filter, Landed, LimitRow, Links, NotLanded, Progress, Ring
from tenure.ports.schedules import Change
from tenure.stores.redis import SCHEMA, RedisStore, drafts, fitness, reads, scripts
from tenure.stores.redis import server as module
from tenure.stores.redis.sentinels import Sentinels
from waiting import until

WRONG = "Wr0ng-w0rd"
LUA = (Path(module.__file__).parent / "lua").glob("*.lua")
COMMANDS = {
    *(name.lower() for file in LUA for name in re.findall(r"redis\.call\('([A-Z]+)'", file.read_text())),
    *(
        "client|setname",
        "info",
        "evalsha",
        "eval",
        "time",
        "role",
    ),  # role: with several hosts; in a cluster: cluster|slots
    *("get", "setnx", "exists", "hget", "hkeys", "hgetall", "zrange", "zrevrangebylex"),
    *("xadd", "xread", "xrevrange"),  # the doorbell
}  #: all that a store and a doorbell ask for

_passwords = {WRONG}


# ── Servers, and what must never be told ──


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with Valkey({"enable-debug-command": "local"}) as server:
        _passwords.add(server.password)
        yield server


@pytest.fixture
def namespace() -> str:
    return f"t_{secrets.token_hex(6)}"


@pytest.fixture
def store(server: Valkey, namespace: str) -> Iterator[RedisStore]:
    with opened(server.url, namespace=namespace) as store:
        yield store


@pytest.fixture(autouse=True)
def no_log_tells_a_password(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    assert not leaks(caplog.text)


def leaks(*texts: str) -> list[str]:
    return [text for text in texts for password in _passwords if password in text]


@contextmanager
def opened(url: str, **options: Any) -> Generator[RedisStore]:
    store = RedisStore(url, **options)
    try:
        store.open()
        yield store
    finally:
        store.close()


def look_in(url: str, **options: Any) -> None:
    with opened(url, **options):
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
    assert not leaks(told)
    return str(caught.value)


def until_it_works(call: Callable[[], object], what: str, *, seconds: float = 30.0) -> list[str]:
    """The errors until then, all of which say that the store is away."""
    told: list[str] = []

    def works() -> bool:
        try:
            call()
        except StoreAway as error:
            told.append(str(error))
            return False
        return True

    until(works, what, seconds=seconds)
    return told


def with_login(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{quote(user)}:{quote(password, safe='')}@{parts.hostname}:{parts.port}").geturl()


def with_host(url: str, host: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@{host}").geturl()


@pytest.fixture
def nobodys_port() -> Iterator[int]:
    """It refuses every client, and no server can be started on it meanwhile: a socket that does not listen has it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextmanager
def a_user(server: Valkey, *rules: str) -> Generator[str]:
    """The URL of a fresh user; `rules`: what ACL SETUSER says of it."""
    name, password = f"user_{secrets.token_hex(4)}", secrets.token_hex(8)
    _passwords.add(password)
    server.execute("ACL", "SETUSER", name, "on", f">{password}", *rules)
    try:
        yield with_login(server.url, name, password)
    finally:
        server.execute("ACL", "DELUSER", name)


@contextmanager
def set_to(server: Valkey, **settings: str | int) -> Generator[None]:
    """With another configuration for a while."""
    names = {name: name.replace("_", "-") for name in settings}
    before = {name: server.execute("CONFIG GET", names[name])[names[name]] for name in settings}
    for name, value in settings.items():
        server.execute("CONFIG", "SET", names[name], value)
    try:
        yield
    finally:
        for name, value in before.items():
            server.execute("CONFIG", "SET", names[name], value)


def clients(server: Valkey) -> list[str]:
    """The connections of stores that this server sees, by its own numbers."""
    with server.client() as client:
        return sorted(each["id"] for each in client.client_list() if each["name"] == "tenure")


def warm(store: RedisStore, connections: int) -> None:
    """Leave this many idle connections in the store's stack."""
    with ExitStack() as stack:
        for _ in range(connections):
            stack.enter_context(store.server._lent())


def use_every_verb(store: RedisStore) -> None:
    store.enqueue([draft() for _ in range(20)])
    worker = start(store)
    leases = [Lease(each.id, each.attempt, worker) for each in claim(store, worker, 10)]
    assert store.progress([Progress(lease=leases[0], fraction=0.5, checkpoint="1", log="a line")]) == [True]
    assert store.logs(leases[0].job_id) == {1: "a line"}
    assert store.once(leases[0], "key", "1") is not None
    store.finish([(leases[0], Completed("1")), (leases[1], Failed("no", final=True)), (leases[2], Snoozed(0))])
    store.refused([(leases[1], "too late")])
    assert [each.evidence for each in store.attempts(leases[1].job_id)] == [{"refused": "too late"}]
    ended = store.ended(store.now() - timedelta(minutes=1), store.now() + timedelta(minutes=1))
    assert (sum(ended.counts.values()), len(ended.completed)) == (2, 1)
    put(store, unique="k", stale_after=5, expires=60)
    put(store, delay=60)
    assert store.renew([worker], memory={worker: 1}) == {worker}
    until(lambda: store.promote().jobs.get("default"), "the snoozed one to be due")
    edits = {leases[1].job_id: Edit("[]", "{}")}
    assert store.replay([leases[1].job_id], edits=edits) == {leases[1].job_id: Landed(State.QUEUED)}
    assert store.cancel([leases[1].job_id], "no") == {leases[1].job_id: State.CANCELLED}
    assert store.delete([leases[1].job_id]) == {leases[1].job_id: Landed(State.CANCELLED)}
    assert store.hung([worker]) == []
    assert len(store.owned(worker)) == 7
    assert len(store.settle(worker, {}, Released("drained"))) == 7
    lost = claim_one(store, start(store))
    assert store.declare_dead([lost.worker_id]) == {lost.worker_id}
    assert [each.id for each in store.rescue()] == [lost.job_id]
    assert store.redelivered(lost.job_id, declare=True) is State.QUEUED
    assert store.pause("default", paused=True)
    assert store.paused() == {"default"}
    until(lambda: store.prune(keep=0, keep_dead=0) == 1, "the completed one to be old")
    assert store.declare_expired() == frozenset()
    assert store.solo_waiting(["default"]) == 0
    assert store.search(Filter(text="nowhere"), within=5).cursor
    assert len(store.search(Filter()).jobs) == len(store.search(Filter(states=frozenset(State))).jobs) == 20
    assert store.search(Filter(worker_id=worker)).jobs == ()
    assert store.promote_now(["no-id"]) == {"no-id": None}
    assert sum(store.counts().values()) == 20
    assert store.queues()
    assert len(store.workers(dead=True)) == 2
    assert_sound(store)
    use_schedules_and_notes(store)
    use_waits(store)
    use_limits(store)


def use_waits(store: RedisStore) -> None:
    parents = [draft(links=Links(flow="0190a0a0-0000-7000-8000-000000000001")) for _ in range(200)]
    child = draft(links=Links(after=tuple(Edge(each.id) for each in parents)))
    answers = store.enqueue([*parents, child])
    assert [each.state for each in answers] == [State.QUEUED] * 200 + [State.WAITING]
    assert store.signal(child.id, "own:go", "1") == Landed(State.WAITING)
    assert store.signal(None, "shared:go", "1") == Landed(State.WAITING)
    assert len(store.signals(None)) == len(store.signals(child.id)) == 1
    assert len(store.inputs(child.id)) == 200
    assert [each for each, _ in store.dependents(parents[0].id)] == [child.id]
    store.cancel([parents[0].id], "no")
    assert isinstance(store.skip([parents[0].id])[parents[0].id], Landed)
    store.cancel([each.id for each in parents[1:]], "no")
    start(store)
    assert store.outdated() == []
    until(lambda: store.admit().cancelled, "the child to be cancelled")
    until(lambda: not store.admit().more, "all asks to be answered")
    assert [(each.total, each.name) for each in store.flows()] == [(200, "")]
    assert isinstance(store.replay([child.id])[child.id], NotLanded)
    assert store.delete([child.id]) == {child.id: Landed(State.CANCELLED)}
    until(lambda: not store.admit().more, "its edges to be dropped")
    until(lambda: store.prune(keep=0, keep_dead=0) == 0 and store.flows() == [], "all to be old")
    until(lambda: store.prune(keep=0, keep_dead=0) == 0 and store.signals(None) == [], "the signal to be old")


def use_limits(store: RedisStore) -> None:
    shop = Key("shop:7", "shop:{shop}")
    row = LimitRow(name=shop.limit, declared=Bounds(1, Rate(5, 60.0, 2)))
    assert store.change_limits([row]) == [True]
    (idle, _) = store.enqueue([draft(limits=(shop,), queue="idle") for _ in range(2)])
    assert store.admit().jobs == {}
    worker = start(store, queues=("idle",))
    assert store.withdraw().asked
    assert store.admit().jobs == {"idle": [idle.id]}
    assert store.pause("idle", paused=True)
    assert store.withdraw().jobs == 1
    assert store.pause("idle", paused=False)
    store.withdraw()
    assert store.admit().jobs == {"idle": [idle.id]}
    assert [each.id for each in store.claim(worker, {"idle": 1}, 1)] == [idle.id]
    assert store.finish([(Lease(idle.id, 1, worker), Snoozed(60, pause=shop))]) == [Landed(State.SCHEDULED)]
    store.admit()
    assert [each.paused_until is None for each in store.keys(limit=50)] == [False]
    assert len(store.parked(shop.key)) == 1
    assert (store.holders(shop.key), len(store.limits(keys=True))) == ([], 1)


def use_schedules_and_notes(store: RedisStore) -> None:
    made(store, name="hourly")
    store.cancel([begin(store, "hourly")], "no")
    assert [each.schedule.name for each in store.due().standings] == ["hourly"]
    assert len(store.ticks("hourly")) == 1
    assert store.change([Change(schedule=standing(store, "hourly").schedule, delete=True)]) == [True]
    assert store.schedules() == []
    assert store.swap("key", None, "1", ttl=60).landed
    assert store.notes("k") == {"key": "1"}
    assert store.forget(keep=60) == 0


def ring_the_bell(store: RedisStore, namespace: str) -> None:
    notifier = RedisNotifier(store.server, namespace)
    listener = notifier.listen()
    try:
        until(lambda: not listener.drain() or listener.problem, "the listener to hear")
        notifier.announce([Ring("due", "mail")])
        until(lambda: Ring("due", "mail") in listener.drain() or notifier.problem(), "the ring")
        assert not notifier.problem()
    finally:
        listener.close()
        notifier.close()


# ── URLs ──


def test_a_unix_socket_is_a_way_in(tmp_path: Path) -> None:
    socket = tmp_path / "redis.sock"
    with Valkey({"unixsocket": socket, "unixsocketperm": 777}) as server:
        url = f"unix://:{server.password}@{socket}?db=2"
        store = RedisStore(url)
        store.open()
        try:
            assert finish(store, running(store), Completed()) is State.COMPLETED
            notifier = open_notifier(load({"url": url}, environ={}, folder=tmp_path), store)
            until(lambda: not notifier.problem(), "the doorbell")
            notifier.close()
        finally:
            store.close()
    assert store.url == f"unix://{socket}?db=2"


@pytest.mark.parametrize(
    ("url", "hosts", "secure", "service", "database", "shown"),
    [
        ("redis://h", [("h", 6379)], False, "", 0, "redis://h"),
        ("valkey://h:7000/3", [("h", 7000)], False, "", 3, "valkey://h:7000/3"),
        ("rediss://h/", [("h", 6379)], True, "", 0, "rediss://h/"),
        ("valkeys://u:x@h/0", [("h", 6379)], True, "", 0, "valkeys://u@h/0"),
        ("redis://:x@a:1,b,c:3/2", [("a", 1), ("b", 6379), ("c", 3)], False, "", 2, "redis://a:1,b,c:3/2"),
        ("redis://[::1]:7/15", [("::1", 7)], False, "", 15, "redis://[::1]:7/15"),
        ("redis://[fe80::1],h:1", [("fe80::1", 6379), ("h", 1)], False, "", 0, "redis://[fe80::1],h:1"),
        ("redis://me:x@h,[::1]:3/1", [("h", 6379), ("::1", 3)], False, "", 1, "redis://me@h,[::1]:3/1"),
        (" Redis://h/1\n", [("h", 6379)], False, "", 1, "redis://h/1"),
        ("redis://a%40b:x@h", [("h", 6379)], False, "", 0, "redis://a%40b@h"),
        ("redis+sentinel://a,b:7/main", [("a", 26379), ("b", 7)], False, "main", 0, "redis+sentinel://a,b:7/main"),
        ("unix:///run/redis.sock", [("/run/redis.sock", 0)], False, "", 0, "unix:///run/redis.sock"),
        ("unix://me:x@/my%20run/r.sock?db=3", [("/my run/r.sock", 0)], False, "", 3, "unix://me@/my%20run/r.sock?db=3"),
        ("valkeys+sentinel://a/m/4?sentinel_password=x", [("a", 26379)], True, "m", 4, "valkeys+sentinel://a/m/4"),
    ],
)
def test_a_url_says_where_it_is_and_is_shown_without_its_password(
    url: str, hosts: list[tuple[str, int]], secure: bool, service: str, database: int, shown: str
) -> None:
    place, told = module.read(url, None)

    assert (list(place.hosts), place.secure, place.service, told) == (hosts, secure, service, shown)
    assert place.login["db"] == database


@pytest.mark.parametrize(
    ("url", "given", "user", "password"),
    [
        ("redis://h", None, None, None),
        ("redis://me@h", None, "me", None),
        ("redis://:a%40b%2Fc%3Ad%25@h", None, None, "a@b/c:d%"),
        ("redis://m%40e:x:y@z@h", None, "m@e", "x:y@z"),
        ("redis://me:x@h", "y", "me", "y"),
        ("redis://me@h", "%40", "me", "%40"),
    ],
)
def test_user_and_password_are_what_was_meant(
    url: str, given: str | None, user: str | None, password: str | None
) -> None:
    place, _ = module.read(url, given)

    assert (place.login["username"], place.login["password"]) == (user, password)


BAD = [
    "redis://",
    "redis:///0",
    "http://h",
    "redis:h",
    "redis://h/zero",
    "redis://h/-1",
    "redis://h/1_0",
    "redis://h/0/1",
    "redis://h:port",
    "redis://h:1:2",
    "redis://h:99999",
    "redis://h,,i",
    "redis://[::1/0",
    "redis://::1/0",
    "redis://redis..internal/0",
    "rediss://.h/0",
    f"redis://h,{'a' * 64}.example/0",
    "redis+sentinel://s1..x,s2/main",
    "redis+sentinel://h",
    "redis+sentinel://h/main/0/1",
    "unix://",
    "unix:///",
    "unix://run/redis.sock",
    "unix:///run/redis.sock?db=one",
    f"redis://:pa/{WRONG}@h/0",
    f"redis://:pa?{WRONG}@h/0",
    f"redis://:pa#{WRONG}@h/0",
    f"redis://me:12#{WRONG}@h/0",
    f"redis://me:{WRONG}@h/0#{WRONG}",
    f"redis://:{WRONG}@h:{WRONG}/0",
    f"redis://:{WRONG}@h/{WRONG}",
    f"redis://h/0?{WRONG}",
]


@pytest.mark.parametrize("bad", BAD)
def test_a_url_that_cannot_be_read_is_refused_untold(bad: str) -> None:
    told = refused(lambda: RedisStore(bad), InvalidOption)

    assert "expected redis://[USER:PASSWORD@]HOST[:PORT]" in told
    assert "write %40 for @" in told


def test_an_unknown_option_is_named_without_its_value() -> None:
    told = refused(lambda: RedisStore(f"redis://h/0?sentinel_pasword={WRONG}"), InvalidOption)

    assert "expected only the options ssl_ca_certs" in told
    assert "got 'sentinel_pasword'" in told


@pytest.mark.parametrize("login", ["me:pa%ffss", "m%ff:x", ":%c3%28"])
def test_a_login_of_a_url_that_is_not_utf_8_is_refused_and_not_changed(login: str) -> None:
    assert "expected a user and a password" in refused(lambda: RedisStore(f"redis://{login}@h"), InvalidOption)


def test_a_tls_option_that_does_not_exist_is_found_when_the_url_is_read() -> None:
    told = refused(lambda: RedisStore("rediss://h/0?ssl_cert_reqs=bogus"), InvalidOption)

    assert told == "url: ssl_cert_reqs: expected required, optional, none, got 'bogus'"


@pytest.mark.parametrize("odd", ["\udcff", "\0\udfff"])
def test_a_password_that_cannot_be_sent_is_refused_untold(server: Valkey, odd: str) -> None:
    told = refused(lambda: look_in(f"redis://127.0.0.1:{server.port}", password=WRONG + odd), InvalidOption)

    assert "TENURE_PASSWORD" in told


@pytest.mark.parametrize("name", ["", "a{b", "a}b", "a*", "a:b", "a b", "1a", "é", "x" * 64])
def test_a_namespace_that_cannot_be_a_hash_tag_is_refused(name: str) -> None:
    assert "namespace: expected letters" in refused(lambda: RedisStore("redis://h", namespace=name), InvalidOption)


def test_a_database_of_its_own_holds_jobs_of_its_own(server: Valkey, namespace: str) -> None:
    with (
        opened(server.url, namespace=namespace) as first,
        opened(server.url.removesuffix("/0") + "/7", namespace=namespace) as second,
    ):
        put(first)
        assert (first.counts()[State.QUEUED], second.counts()[State.QUEUED]) == (1, 0)


def test_a_database_that_is_not_there_is_no_matter_of_waiting(server: Valkey) -> None:
    assert "DB index is out of range" in refused(lambda: look_in(server.url.removesuffix("/0") + "/99"))


def test_of_several_hosts_the_first_that_answers_is_used(server: Valkey, namespace: str, nobodys_port: int) -> None:
    hosts = f"127.0.0.1:{nobodys_port},nowhere.invalid,127.0.0.1:{server.port}"
    with opened(with_host(server.url, hosts), namespace=namespace) as store:
        put(store)
        assert store.url == f"redis://{hosts}/0"


# ── Passwords, wherever they come from ──


def test_every_way_to_give_a_password_works_and_none_shows_it(
    server: Valkey, namespace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = f"p@s/s:w?o#r%d é {secrets.token_hex(4)}"
    _passwords.update({odd, quote(odd, safe=""), odd[-8:]})
    with a_user(server, "~*", "+@all", "resetpass", f">{odd}") as user_url:
        user = urlsplit(user_url).username
        forms: dict[str, str | None] = {
            f"redis://{user}:{quote(odd, safe='')}@127.0.0.1:{server.port}/0": None,
            f"valkey://{user}@127.0.0.1:{server.port}": odd,
            f"redis://{user}:{WRONG}@127.0.0.1:{server.port}/0": odd,
        }
        for form, password in forms.items():
            environ = {"TENURE_URL": form, "TENURE_NAMESPACE": namespace}
            environ |= {} if password is None else {"TENURE_PASSWORD": password}
            settings = load(environ=environ)
            store = open_store(settings)
            assert isinstance(store, RedisStore)
            store.open()
            put(store)
            store.close()
            shown = [store.url, repr(store), repr(store.server), repr(vars(store.server)), repr(settings)]
            assert not leaks(*shown, repr(Tenure(form)))
            for name in ("TENURE_URL", "TENURE_PASSWORD"):
                monkeypatch.delenv(name, raising=False)
            for name, value in environ.items():
                monkeypatch.setenv(name, value)
            assert main(["check", "--config"]) == main(["check", "--config", "--json"]) == 0
            said = capsys.readouterr()
            assert not leaks(said.out, said.err)


def test_a_sentinels_password_is_redacted_too() -> None:
    url = f"redis+sentinel://:{WRONG}@h/main?sentinel_username=me&sentinel_password={WRONG}"

    assert not leaks(redact(url), repr(load(environ={"TENURE_URL": url})), RedisStore(url).url)


# ── TLS: this server has none built in, so a proxy in front of it has ──


class Terminator:
    """Ends TLS in front of a server. `mutual`: it requires a certificate from its client."""

    def __init__(self, server: Valkey, folder: Path, *, mutual: bool = False) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "server.pem", folder / "server.key")
        if mutual:
            self._context.load_verify_locations(folder / "ca.pem")
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._target = ("127.0.0.1", server.port)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def __enter__(self) -> Terminator:
        return self

    def __exit__(self, *_: object) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._door.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._pass_on, args=(client,)))
            self._threads[-1].start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, suppress(OSError), self._context.wrap_socket(client, server_side=True) as inside:
            with socket.create_connection(self._target) as outside:
                while True:
                    ready = [inside] if inside.pending() else select.select([inside, outside], [], [])[0]
                    for each in ready:
                        chunk = each.recv(65536)
                        if not chunk:
                            return
                        (outside if each is inside else inside).sendall(chunk)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority of our own, and what it signed: a server and a client."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("the program openssl is not installed, which makes the certificates")
    folder = tmp_path_factory.mktemp("certificates")
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-batch"]

    def run(*words: str) -> None:
        subprocess.run([program, *words], cwd=folder, check=True, capture_output=True)

    run(
        *("req", "-x509", *new, "-subj", "/CN=authority", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem"),
        *("-addext", "keyUsage=critical,keyCertSign"),  # Python 3.13 wants it
    )
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    for name in ("server", "client"):
        run("req", *new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        run(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", "2", "-extfile", "names", "-out", f"{name}.pem"),
        )
    return folder


def secure(url: str, port: int, host: str = "127.0.0.1", /, **options: object) -> str:
    asked = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in options.items())
    return with_host(url, f"{host}:{port}").replace("redis://", "rediss://") + f"?{asked}" * bool(asked)


def test_tls_works_with_an_authority_of_ones_own_and_not_without(
    server: Valkey, namespace: str, certificates: Path
) -> None:
    ca = certificates / "ca.pem"
    with Terminator(server, certificates) as tls:
        with opened(secure(server.url, tls.port, ssl_ca_certs=ca), namespace=namespace) as store:
            use_every_verb(store)
            ring_the_bell(store, namespace)

        told = refused(lambda: look_in(secure(server.url, tls.port)))
        assert f"rediss://127.0.0.1:{tls.port}/0 has a certificate that can't be trusted" in told
        assert "give ssl_ca_certs=FILE" in told

        elsewhere = secure(server.url, tls.port, "localhost", ssl_ca_certs=ca)
        assert "can't be trusted" in refused(lambda: look_in(elsewhere))
        look_in(elsewhere + "&ssl_check_hostname=no")
        look_in(secure(server.url, tls.port, ssl_cert_reqs="none", ssl_check_hostname="false"))


def test_tls_shows_a_certificate_of_its_own_when_asked(server: Valkey, namespace: str, certificates: Path) -> None:
    mine = {"ssl_certfile": certificates / "client.pem", "ssl_keyfile": certificates / "client.key"}
    ca = certificates / "ca.pem"
    with Terminator(server, certificates, mutual=True) as tls:
        with opened(secure(server.url, tls.port, "127.0.0.1", ssl_ca_certs=ca, **mine), namespace=namespace) as store:
            put(store)
        refused(lambda: look_in(secure(server.url, tls.port, ssl_ca_certs=ca)), StoreAway)


def test_tls_options_without_tls_are_refused() -> None:
    told = refused(lambda: RedisStore("redis://h/0?ssl_ca_certs=/etc/hosts"), InvalidOption)

    assert "rediss://" in told


def test_tls_options_that_cannot_work_are_no_matter_of_waiting(server: Valkey) -> None:
    for option in ("ssl_cert_reqs=bogus", "ssl_ca_certs=/no/such/file", "ssl_check_hostname=maybe"):
        with pytest.raises((StoreError, InvalidOption)) as caught:
            look_in(secure(server.url, server.port) + f"?{option}")
        assert not isinstance(caught.value, StoreAway)


# ── Who is refused, and how it is said ──


def test_a_wrong_a_missing_and_a_strangers_password_are_said(server: Valkey) -> None:
    host = f"127.0.0.1:{server.port}"
    cases = {
        f"redis://:{WRONG}@{host}/0": "invalid username-password pair",
        f"redis://{host}/0": "Authentication required",
        f"redis://stranger:{server.password}@{host}/0": "invalid username-password pair",
        f"redis://stranger@{host}/0": "invalid username-password pair",
    }
    for url, words in cases.items():
        told = refused(lambda url=url: look_in(url))  # type: ignore[misc]
        assert words in told
        assert f"{host}/0 can't be used: " in told
        assert "correct TENURE_URL (or TENURE_PASSWORD)" in told


@pytest.mark.parametrize("rules", ["what the error names", "only the commands in use"])
def test_a_user_of_one_namespace_needs_no_more_rights_than_these(
    server: Valkey, namespace: str, rules: str, nobodys_port: int
) -> None:
    server.execute("CONFIG", "RESETSTAT")
    with a_user(server) as url:
        told = refused(lambda: look_in(url, namespace=namespace))
        named = re.search(r"its rights: (~\S+) ([^(]+)", told)
        assert named is not None, told
        assert named[1] == f"~{{{namespace}}}:*"
        words = named[2].split() if rules == "what the error names" else [f"+{each}" for each in COMMANDS]
        user = urlsplit(url).username or ""
        server.execute("ACL", "SETUSER", user, named[1], *words)
        with opened(url, namespace=namespace) as store:
            use_every_verb(store)
            server.execute("SCRIPT", "FLUSH")
            ring_the_bell(store, namespace)
        look_in(with_host(url, f"127.0.0.1:{nobodys_port},127.0.0.1:{server.port}"), namespace=namespace)

        assert "can't be used" in refused(lambda: look_in(url, namespace=f"{namespace}_other"))
    seen = {name.removeprefix("cmdstat_") for name in server.execute("INFO", "commandstats")}
    assert COMMANDS - seen == set()  # each of them is needed


@pytest.mark.parametrize("missing", ["-@scripting", "-zadd", "-time"])
def test_a_user_who_lacks_what_a_script_takes_is_told_before_a_step_is_half_done(
    server: Valkey, namespace: str, missing: str
) -> None:
    with a_user(server, f"~{{{namespace}}}:*", "+@all", missing) as url:
        told = refused(lambda: look_in(url, namespace=namespace))
        assert "can't be used" in told
        assert "its rights: " in told


def test_a_right_taken_away_in_the_middle_is_told_with_what_is_needed(server: Valkey, namespace: str) -> None:
    with a_user(server, f"~{{{namespace}}}:*", "+@all") as url, opened(url, namespace=namespace) as store:
        put(store)
        server.execute("ACL", "SETUSER", urlsplit(url).username or "", "-evalsha")
        assert "its rights: " in refused(lambda: store.counts())
        server.execute("ACL", "SETUSER", urlsplit(url).username or "", "+evalsha", "-hget", "-hmget")
        assert "its rights: " in refused(lambda: claim_one(store, start(store)))


# ── What people look for ──


def commands(server: Valkey) -> dict[str, int]:
    """How often each command was run since the last look, also by scripts."""
    stats = server.execute("INFO", "commandstats")
    server.execute("CONFIG", "RESETSTAT")
    return {name.removeprefix("cmdstat_"): told["calls"] for name, told in stats.items()}


def test_what_is_looked_for_takes_few_round_trips_and_reads_only_what_can_match(
    server: Valkey, store: RedisStore
) -> None:
    jobs = [put(store, task="rare"), *(each.id for each in store.enqueue([draft() for _ in range(999)]))]
    wanted = Filter(task="rare", enqueued_since=store.now() - timedelta(minutes=5))
    assert [view.id for view in store.search(wanted).jobs] == jobs[:1]
    commands(server)

    assert [view.id for view in store.search(wanted).jobs] == jobs[:1]

    seen = commands(server)
    assert seen["hgetall"] == 1
    assert seen["evalsha"] + seen["zrevrangebylex"] <= 2 * 1000 / 200 + 2


def test_no_more_jobs_are_looked_at_than_one_asks_for(server: Valkey, store: RedisStore) -> None:
    store.enqueue([draft() for _ in range(1000)])
    store.search(Filter(task="rare"), within=10)
    commands(server)

    assert store.search(Filter(task="rare"), within=310).jobs == ()

    assert commands(server)["hmget"] == 310


def test_no_script_compares_much_more_than_a_mebibyte_of_text(server: Valkey, store: RedisStore) -> None:
    size = reads.SIFTED // 4
    ids = [put(store, payload=f'{{"a":"{"x" * size}{number}y"}}') for number in range(10)]
    nowhere, last = (Filter(conditions=(Condition("payload", "a", False, text),)) for text in ("nowhere", "x9Y"))
    store.search(nowhere)
    commands(server)

    assert store.search(nowhere).jobs == ()
    seen = commands(server)
    assert seen["hmget"] == 10
    assert seen["evalsha"] == 3
    assert [view.id for view in store.search(last).jobs] == ids[9:]


@pytest.mark.parametrize("states", [{State.QUEUED}, {State.DEAD, State.QUEUED}])
def test_an_index_that_holds_too_many_is_not_read(
    states: set[State], server: Valkey, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "FEW", 50)
    newest = [each.id for each in store.enqueue([draft() for _ in range(60)])][::-1]
    where = Filter(states=frozenset(states))
    store.search(where)
    commands(server)

    assert [view.id for view in store.search(where).jobs] == newest[:50]

    assert "zrange" not in commands(server)


def test_a_rescued_job_has_no_owner_for_those_who_read_the_keys_either(
    server: Valkey, store: RedisStore, namespace: str
) -> None:
    lease = running(store)
    store.declare_dead([lease.worker_id])
    assert [each.id for each in store.rescue()] == [lease.job_id]

    key = f"{{{namespace}}}:job:{lease.job_id}"
    assert server.execute("HMGET", key, "state", "worker_id", "started_at") == ["queued", None, None]


def test_an_edit_of_a_job_that_has_been_edited_and_run_meanwhile_is_of_what_it_is_now(
    store: RedisStore, server: Valkey, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = running(store, meta='{"by": "first"}', timeout=1.5)
    finish(store, lease, Failed("no", final=True))
    ask, job_id = store.server.run, lease.job_id

    def run_meanwhile(*command: Any) -> Any:
        """Between the reading of the job and the writing of its edit."""
        facts = ask(*command)
        monkeypatch.undo()
        with opened(server.url, namespace=namespace) as other:
            assert other.replay([job_id], edits={job_id: Edit("[2]", '{"by": "second"}')})[job_id]
            finish(other, claim_one(other, start(other)), Failed("no", final=True))
        return facts

    monkeypatch.setattr(store.server, "run", run_meanwhile)

    assert store.replay([job_id], edits={job_id: Edit("[3]", '{"by": "third"}')}) == {job_id: Landed(State.QUEUED)}

    view = look(store, job_id)
    assert (view.payload, view.meta, view.timeout, view.state) == ("[3]", {"by": "third"}, 1.5, State.QUEUED)


# ── Away, and back ──


def test_a_host_that_is_down_is_away_and_one_that_has_no_name_too(nobodys_port: int) -> None:
    port = nobodys_port
    assert f"127.0.0.1:{port}/0 is out of reach" in refused(lambda: look_in(f"redis://127.0.0.1:{port}/0"), StoreAway)
    assert "is out of reach" in refused(lambda: look_in("redis://nowhere.invalid"), StoreAway)


def test_an_outage_is_told_and_ends_with_it(server: Valkey, store: RedisStore) -> None:
    job = put(store)
    server.stop()

    assert "is out of reach" in refused(lambda: store.counts(), StoreAway)
    assert "is out of reach" in refused(lambda: store.enqueue([draft()]), StoreAway)

    server.start()
    assert [view.id for view in everything(store)] == [job]


def test_a_server_cut_off_in_mid_use_is_away_once_and_takes_its_idle_connections_with_it(
    server: Valkey, store: RedisStore
) -> None:
    warm(store, 4)
    assert len(clients(server)) == 4

    with pytest.raises(RedisError), store.server._lent() as connection:
        server.execute("CLIENT", "KILL", "ID", module._ask(connection, "CLIENT", "ID"))
        module._ask(connection, "PING")

    until(lambda: not clients(server), "the idle ones to be closed")
    assert store.counts()[State.QUEUED] == 0


def test_connections_that_the_server_closed_meanwhile_are_not_used(server: Valkey, store: RedisStore) -> None:
    warm(store, 3)
    for client in clients(server):
        server.execute("CLIENT", "KILL", "ID", client)

    put(store)
    assert store.counts()[State.QUEUED] == 1


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_restart_while_nobody_asks_is_not_noticed_though_it_forgets_every_script(
    server: Valkey, store: RedisStore, how: str
) -> None:
    lease = running(store)
    warm(store, 5)
    with server.client() as client:
        client.set("written", 1)  # WAITAOF waits for what its own connection wrote, and so for all before it
        assert client.execute_command("WAITAOF", 1, 0, 30_000)[0] == 1
    if how == "kill":
        server.kill()
        server.start()
    else:
        server.restart()

    assert server.execute("INFO", "memory")["number_of_cached_scripts"] == 0
    assert finish(store, lease, Completed()) is State.COMPLETED


def test_restarts_in_the_middle_of_work_lose_nothing_and_double_nothing(server: Valkey, store: RedisStore) -> None:
    over = threading.Event()
    sent: list[str] = []
    away: list[str] = []

    def work() -> None:
        while not over.is_set():
            job = draft()
            sent.append(job.id)
            away.extend(until_it_works(partial(store.enqueue, [job]), "the server to be back"))

    def enough() -> None:
        done = len(sent)
        until(lambda: len(sent) > done + 40, "some work")

    with ThreadPoolExecutor(4) as threads:
        workers = [threads.submit(work) for _ in range(4)]
        for _ in range(2):
            enough()
            server.restart()
        enough()
        over.set()
        for worker in workers:
            worker.result()

    assert away
    ids = server.execute("ZRANGE", f"{store.server.prefix}jobs", 0, -1)
    assert ids == sorted(sent)
    assert store.counts()[State.QUEUED] == len(sent)


# ── Scripts ──


def test_scripts_forgotten_between_two_calls_are_sent_again(server: Valkey, store: RedisStore) -> None:
    for _ in range(2):
        server.execute("SCRIPT", "FLUSH")
        use_every_verb(store)
        store.pause("default", paused=False)
        store.delete([view.id for view in everything(store)])
        until(lambda: store.server.run("DEL", *store.server.run("KEYS", f"{store.server.prefix}*")), "no trace")


def test_scripts_forgotten_within_a_pipeline_are_sent_again_and_answers_keep_their_order(
    server: Valkey, store: RedisStore
) -> None:
    over = threading.Event()

    def evals() -> int:
        return int(server.execute("INFO", "commandstats").get("cmdstat_eval", {}).get("calls", 0))

    def forget() -> None:
        with server.client() as client:
            while not over.is_set():
                client.execute_command("SCRIPT", "FLUSH")

    with ThreadPoolExecutor(1) as threads:
        forgetting = threads.submit(forget)
        before, batches = evals(), list[list[Draft]]()
        try:
            while evals() < before + 5 or len(batches) < 3:
                assert len(batches) < 200
                batches.append([draft(payload=f'{{"n":{number}}}') for number in range(2000)])
                answers = store.enqueue(batches[-1])
                assert [answer.id for answer in answers] == [each.id for each in batches[-1]]
                assert {answer.created for answer in answers} == {True}
        finally:
            over.set()
        forgetting.result()

    assert store.counts()[State.QUEUED] == 2000 * len(batches)
    assert {store.server.run("ZCARD", f"{store.server.prefix}jobs")} == {2000 * len(batches)}


def test_a_server_as_old_as_scripts_without_a_shebang_does_everything(
    server: Valkey, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "SHEBANG_SINCE", (99, 0))
    with opened(server.url, namespace=namespace) as store:
        use_every_verb(store)


# ── Short of memory ──


@pytest.mark.parametrize("shebang_since", [(7, 0), (99, 0)], ids=["now", "before Redis 7"])
def test_without_memory_nothing_comes_in_and_all_that_is_there_can_end(
    server: Valkey, namespace: str, shebang_since: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "SHEBANG_SINCE", shebang_since)
    with opened(server.url, namespace=namespace) as store:
        run_short_of_memory(server, store)


@pytest.mark.parametrize("shebang_since", [(7, 0), (99, 0)], ids=["now", "before Redis 7"])
def test_without_memory_a_job_may_wait_for_very_many_and_holds_up_no_other_outcome(
    server: Valkey, namespace: str, shebang_since: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "SHEBANG_SINCE", shebang_since)
    with opened(server.url, namespace=namespace) as store:
        parents = store.enqueue([draft(delay=60.0) for _ in range(drafts.MOST)])
        waits, done = running(store), running(store)
        edges = tuple(Edge(each.id, "ended") for each in parents)
        with set_to(server, maxmemory=1):
            answers = store.finish([(waits, Suspended("for many", after=edges)), (done, Completed())])

        assert answers == [Landed(State.WAITING), Landed(State.COMPLETED)]
        assert_sound(store)


def test_without_memory_for_all_of_many_jobs_it_is_told_how_many_are_stored() -> None:
    many = [draft(payload=f'"{"x" * 3000}"') for _ in range(2000)]
    with Valkey({"maxmemory": "6mb"}) as small, opened(small.url) as store:
        _passwords.add(small.password)
        stored = 0
        for _ in range(2):  # a client tries again, and then nothing at all is stored
            told = refused(lambda: store.enqueue(many), StoreAway)
            stored = store.counts()[State.QUEUED]

            assert 0 < stored < 2000
            assert f"{stored:,} of these 2,000 jobs are stored: enqueue all of them again" in told
            assert "othing of this was stored" not in told
        small.execute("CONFIG SET", "maxmemory", 0)
        assert sum(each.created for each in store.enqueue(many)) == 2000 - stored
        assert store.counts()[State.QUEUED] == 2000


def run_short_of_memory(server: Valkey, store: RedisStore) -> None:
    worker, other = start(store), start(store)
    jobs = [put(store) for _ in range(12)]
    later = put(store, delay=0.01)
    once_more = put(store, delay=60)
    held, done = claim_one(store, worker), claim_one(store, worker)
    assert finish(store, done, Completed()) is State.COMPLETED
    lost = claim_one(store, other)

    with set_to(server, maxmemory=1):
        for number in (1, 1000):
            told = refused(lambda number=number: store.enqueue([draft() for _ in range(number)]), StoreAway)  # type: ignore[misc]
            assert "is out of memory" in told
            assert "Nothing of this was stored" in told
            assert "maxmemory" in told
        assert len(everything(store)) == 14

        assert store.renew([worker, other]) == {worker, other}
        assert store.progress([Progress(lease=held, message="on", checkpoint="1")]) == [True]
        assert store.once(held, "key", "1") is not None
        assert finish(store, claim_one(store, worker), Completed('"much"')) is State.COMPLETED
        assert finish(store, claim_one(store, worker), Failed("no")) is State.SCHEDULED
        assert finish(store, claim_one(store, worker), Failed("no", final=True)) is State.DEAD
        assert finish(store, held, Released("drained")) is State.QUEUED
        assert len(store.owned(other)) == 1
        assert store.declare_dead([other]) == {other}
        assert [each.id for each in store.rescue()] == [lost.job_id]
        assert store.cancel([jobs[-1]], "no") == {jobs[-1]: State.CANCELLED}
        assert store.delete([jobs[-2]]) == {jobs[-2]: Landed(State.QUEUED)}
        until(lambda: later in store.promote().jobs.get("default", ()), "one to be due")
        assert store.promote_now([once_more]) == {once_more: State.QUEUED}
        assert store.pause("mail", paused=True)
        assert store.pause("mail", paused=False)
        gone: list[int] = []

        def prune() -> bool:
            gone.append(store.prune(keep=0, keep_dead=0))
            return sum(gone) == 4

        until(prune, "the ended ones to be old")  # the last one may have ended in this very millisecond
        (settled,) = [claim_one(store, worker)]
        assert [each.id for each in store.settle(worker, {}, Released("drained"))] == [settled.job_id]
        assert_sound(store)

    views = everything(store)
    told_counts = store.counts()
    assert {state: sum(view.state is state for view in views) for state in State} == told_counts
    (queue,) = store.queues()
    assert all(told_counts[state] == number for state, number in queue.counts.items())
    assert len(views) == 9
    put(store)


def test_without_memory_a_worker_can_start_and_work_the_queues_down(
    server: Valkey, store: RedisStore, namespace: str
) -> None:
    put(store)
    with set_to(server, maxmemory=1), opened(server.url, namespace=namespace) as anew:
        assert finish(anew, claim_one(anew, start(anew)), Completed()) is State.COMPLETED


# ── It can't answer yet ──


@pytest.mark.thorough
def test_a_server_that_loads_its_keys_is_away(server: Valkey, store: RedisStore) -> None:
    store.enqueue([draft() for _ in range(50)])
    told: list[str] = []
    with (  # a tenth of a second a key: loading takes longer than any delay of this machine
        set_to(server, key_load_delay=100_000, loading_process_events_interval_bytes=1024),
        ThreadPoolExecutor(1) as threads,
    ):
        loading = threads.submit(server.execute, "DEBUG", "RELOAD")
        while not loading.done():
            for call in (store.counts, lambda: look_in(server.url)):
                try:
                    call()
                except StoreAway as error:
                    told.append(str(error))
                    if "is loading" in told[-1]:
                        server.execute("CONFIG", "SET", "key-load-delay", 0)
        loading.result()

    assert any("is loading the dataset in memory" in each for each in told)
    assert store.counts()[State.QUEUED] == 50


def test_a_server_busy_with_somebodys_script_is_away(server: Valkey, store: RedisStore) -> None:
    def endless() -> None:
        with pytest.raises(RedisError, match="killed by user"):
            server.execute("EVAL", "while true do end", 0)

    def told() -> str:
        try:
            store.counts()
        except StoreAway as error:
            return str(error)
        return ""

    with set_to(server, busy_reply_threshold=5), ThreadPoolExecutor(1) as threads:
        running_on = threads.submit(endless)
        until(lambda: "can't do this now: BUSY" in told(), "it to be busy")
        assert "BUSY" in refused(lambda: look_in(server.url), StoreAway)
        server.execute("SCRIPT", "KILL")
        running_on.result()

    assert store.counts()[State.QUEUED] == 0


def test_a_server_that_cannot_write_its_file_or_lacks_its_replicas_is_away(server: Valkey, store: RedisStore) -> None:
    in_its_way = server.folder / "dump.rdb"
    in_its_way.unlink(missing_ok=True)
    in_its_way.mkdir()
    with set_to(server, save="3600 100000"):
        server.execute("BGSAVE", "SCHEDULE")  # its append-only file may be being rewritten
        until(lambda: server.execute("INFO", "persistence")["rdb_last_bgsave_status"] == "err", "a failed save")
        assert "can't do this now: MISCONF" in refused(lambda: store.enqueue([draft()]), StoreAway)
    in_its_way.rmdir()
    with set_to(server, min_replicas_to_write=1):
        assert "can't do this now: NOREPLICAS" in refused(lambda: store.enqueue([draft()]), StoreAway)

    assert everything(store) == []
    put(store)


def test_a_full_server_is_away_until_somebody_leaves(server: Valkey, store: RedisStore) -> None:
    store.counts()
    with server.client() as admin, ExitStack() as others:
        before = admin.config_get("maxclients")["maxclients"]
        admin.config_set("maxclients", 20)
        try:
            while True:
                client = others.enter_context(server.client())
                others.callback(client.connection_pool.get_connection().disconnect)
        except RedisError:
            pass
        assert store.counts()[State.QUEUED] == 0  # its own connection is still there
        with store.server._lent():
            assert "max number of clients" in refused(lambda: store.counts(), StoreAway)
            others.close()
            until_it_works(lambda: store.counts(), "somebody to have left")
        admin.config_set("maxclients", str(before))


# ── Is it fit to be a store? ──


def test_a_server_that_may_throw_out_jobs_is_refused(server: Valkey) -> None:
    with set_to(server, maxmemory_policy="allkeys-lru"):
        told = refused(lambda: look_in(server.url))
    assert "maxmemory-policy allkeys-lru" in told
    assert "CONFIG SET maxmemory-policy noeviction" in told


def test_a_server_without_an_append_only_file_is_warned_of_once(
    server: Valkey, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    fitness._warn_once.cache_clear()
    with set_to(server, appendonly="no"):
        for _ in range(3):
            look_in(server.url, namespace=namespace)
    until(lambda: server.execute("INFO", "persistence")["aof_rewrite_in_progress"] == 0, "its file to be back")
    look_in(server.url, namespace=namespace)

    said = [record for record in caplog.records if record.name == "tenure.store"]
    (warning,) = [record.getMessage() for record in said if record.levelno == logging.WARNING]
    assert f"127.0.0.1:{server.port}/0 keeps no append-only file" in warning
    assert "CONFIG SET appendonly yes" in warning


def test_a_guard_leaves_the_warning_to_workers_and_cron_without_mail(
    server: Valkey, namespace: str, tmp_path: Path
) -> None:
    code = "from tenure.cli.main import run; run()"
    settings = {"TENURE_URL": server.url, "TENURE_NAMESPACE": namespace, "TENURE_RUNTIME_DIR": str(tmp_path)}

    def said(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            env={**os.environ, **settings},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stderr

    with set_to(server, appendonly="no"):
        assert said("guard", "backup", "--every", "1d", "--", "true") == ""
        assert said("guard", "report", "--every", "1d", "--quiet", "--", "true") == ""
        assert "keeps no append-only file" in said("schedules", "list"), "it is said to people"


def test_an_old_server_is_refused_by_its_number() -> None:
    def answer(door: socket.socket) -> None:
        connection, _ = door.accept()
        with connection:
            while asked := connection.recv(65536):
                info = b"redis_version:5.0.14\r\nrole:master\r\n"
                said = b"$%d\r\n%s\r\n" % (len(info), info) if b"INFO\r\n" in asked.replace(b"SETINFO", b"") else b""
                connection.sendall(said or b"+OK\r\n" * asked.count(b"*"))

    with socket.create_server(("127.0.0.1", 0)) as door, ThreadPoolExecutor(1) as threads:
        answering = threads.submit(answer, door)
        told = refused(lambda: look_in(f"redis://127.0.0.1:{door.getsockname()[1]}/0"))
        answering.result()

    assert "is Redis 5.0.14: Tenure needs 6.2 or newer, or Valkey" in told


def test_one_version_of_the_schema_ahead_is_accepted_two_are_not(server: Valkey, namespace: str) -> None:
    def version(number: object) -> None:
        server.execute("SET", f"{{{namespace}}}:schema", str(number))

    look_in(server.url, namespace=namespace)
    assert server.execute("GET", f"{{{namespace}}}:schema") == str(SCHEMA)
    version(SCHEMA + 1)
    look_in(server.url, namespace=namespace)
    version(SCHEMA + 2)
    told = refused(lambda: look_in(server.url, namespace=namespace))
    assert f"has version {SCHEMA + 2} of the schema, this Tenure knows {SCHEMA}" in told
    assert "upgrade Tenure" in told


def test_a_namespace_that_is_somebody_elses_is_refused(server: Valkey, namespace: str) -> None:
    server.execute("SET", f"{{{namespace}}}:schema", "theirs")
    assert "namespace" in refused(lambda: look_in(server.url, namespace=namespace))


# ── Replicas, and Sentinels ──


@pytest.mark.parametrize("how", ["the Sentinels name another", "another call fails"])
def test_a_connection_in_use_during_a_failover_is_not_used_again(
    how: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Valkey() as former, Valkey(replica_of=former) as primary:
        _passwords.add(former.password)
        primary.execute("REPLICAOF", "NO", "ONE")
        named = [former.port]

        def primaries(_: Sentinels) -> Iterator[tuple[str, int]]:
            yield "127.0.0.1", named[-1]

        monkeypatch.setattr(Sentinels, "primaries", primaries)
        with opened(f"redis+sentinel://:{former.password}@127.0.0.1:1/tenure/0", namespace=namespace) as store:
            with store.server._lent() as in_use:
                if how == "another call fails":
                    with pytest.raises(ConnectionError), store.server._lent():
                        raise ConnectionError
                named.append(primary.port)
                store.server._sentinels._due_at = 0.0
                first = put(store)
            store.server._sentinels._due_at = 0.0
            second = put(store)

            assert in_use not in store.server._idle
        with opened(primary.url, namespace=namespace) as plain:
            assert {each.id for each in everything(plain)} == {first, second}


@pytest.mark.thorough
def test_a_replica_is_told_and_used_once_the_sentinels_name_it(namespace: str, nobodys_port: int) -> None:
    with Valkey() as primary, Valkey(replica_of=primary) as replica, Sentinel(primary) as sentinel:
        _passwords.add(primary.password)
        patience = ("SENTINEL", "SET", "tenure", "down-after-milliseconds")
        sentinel.execute(*patience, 60_000)  # a primary that is only slow is not replaced
        told = refused(lambda: look_in(replica.url))
        assert f"127.0.0.1:{replica.port}/0 is a replica of 127.0.0.1:{primary.port}: give its URL" in told

        def url(hosts: str, service: str = "tenure", password: str = primary.password) -> str:
            return f"redis+sentinel://:{primary.password}@{hosts}/{service}/0?sentinel_password={password}"

        hosts = f"127.0.0.1:{nobodys_port},127.0.0.1:{sentinel.port}"
        assert "know no 'other'" in refused(lambda: look_in(url(hosts, "other")), StoreAway)
        assert "name no primary: invalid username" in refused(lambda: look_in(url(hosts, password=WRONG)))
        with opened(url(hosts), namespace=namespace) as store, opened(primary.url, namespace=namespace) as plain:
            assert store.url == f"redis+sentinel://{hosts}/tenure/0"
            warm(store, 3)
            lease = running(store)
            assert look(plain, lease.job_id).state is State.PROCESSING
            written = primary.execute("INFO", "replication")["master_repl_offset"]  # WAIT counts its own writes only
            until(
                lambda: replica.execute("INFO", "replication")["slave_repl_offset"] >= written, "the replica to have it"
            )

            primary.kill()
            refused(lambda: store.counts(), StoreAway)
            sentinel.execute(*patience, 1_000)
            # A Sentinel that was itself held up for two seconds trusts what it sees again only after thirty.
            away = until_it_works(lambda: put(store), "the failover", seconds=80.0)

            assert all("is out of reach" in each or "read-only replica" in each for each in away)
            assert sentinel.master_port() == replica.port
            assert finish(store, lease, Completed()) is State.COMPLETED
            use_the_bell = RedisNotifier(store.server, namespace)
            use_the_bell.announce([Ring("due", "mail")])
            use_the_bell.close()
            assert use_the_bell.problem() == ""
            sentinel.kill()
            assert store.counts()[State.QUEUED] == 1  # a connection that is there needs no Sentinel
            with store.server._lent():
                assert "name no primary" in refused(lambda: store.counts(), StoreAway)


def test_a_primary_that_becomes_a_replica_is_left_until_it_turns_back(server: Valkey, store: RedisStore) -> None:
    warm(store, 2)
    with set_to(server, repl_diskless_load="disabled"):
        server.execute("REPLICAOF", "127.0.0.1", free_port())
        try:
            for _ in range(2):
                told = refused(lambda: store.enqueue([draft()]), StoreAway)
                assert "is a read-only replica" in told
        finally:
            server.execute("REPLICAOF", "NO", "ONE")
    put(store)


def test_a_replica_that_has_lost_its_primary_and_shows_nothing_old_is_away(server: Valkey, store: RedisStore) -> None:
    with set_to(server, replica_serve_stale_data="no"):
        server.execute("REPLICAOF", "127.0.0.1", free_port())
        try:
            refused(lambda: store.counts(), StoreAway)
        finally:
            server.execute("REPLICAOF", "NO", "ONE")
    assert store.counts()[State.QUEUED] == 0


# ── A cluster ──


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster({"cluster-node-timeout": 15_000}) as cluster:  # a node that is only slow is not missed
        _passwords.add(cluster.nodes[0].password)
        yield cluster


def masters(cluster: ValkeyCluster) -> list[Valkey]:
    return [node for node in cluster.nodes if node.execute("INFO", "replication")["role"] == "master"]


def home(cluster: ValkeyCluster, owner: Valkey) -> str:
    """A fresh namespace whose keys this node has."""
    while True:
        name = f"t_{secrets.token_hex(6)}"
        if cluster.owner(f"{{{name}}}") is owner:
            return name


def test_any_node_leads_to_the_one_that_has_the_namespace(cluster: ValkeyCluster) -> None:
    for owner in masters(cluster):
        name = home(cluster, owner)
        with ExitStack() as stack:
            stores = [stack.enter_context(opened(url, namespace=name)) for url in cluster.urls]
            jobs = [put(store) for store in stores]
            for store in stores:
                assert [view.id for view in everything(store)] == jobs[::-1]
            assert len(clients(owner)) == len(stores)
            for url in cluster.urls:
                ring_the_bell(RedisStore(url, namespace=name), name)
            assert owner.execute("EXISTS", f"{{{name}}}:bell") == 1
            stores[0].delete(jobs)
            use_every_verb(stores[-1])


def test_a_cluster_has_one_database(cluster: ValkeyCluster) -> None:
    refused(lambda: look_in(cluster.url.removesuffix("/0") + "/1"))


@pytest.mark.thorough
def test_an_owner_that_is_down_is_away_and_found_again(cluster: ValkeyCluster) -> None:
    alone = next(each for each in masters(cluster) if not each.execute("INFO", "replication")["connected_slaves"])
    other = next(each for each in masters(cluster) if each is not alone)
    name = home(cluster, alone)
    with opened(other.url, namespace=name) as store:
        job = put(store)
        alone.stop()
        try:
            told = refused(lambda: store.counts(), StoreAway)
            assert "out of reach" in told
            assert str(alone.port) in told  # and not only the one in the URL, which is up
            for node in cluster.nodes:
                if node is not alone:
                    node.execute("CONFIG", "SET", "cluster-node-timeout", 2000)

            def missed() -> bool:
                refused(lambda: store.counts(), StoreAway)
                return bool(other.execute("CLUSTER INFO")["cluster_state"] == "fail")

            until(missed, "the cluster to miss it")
            assert "cluster is down" in refused(lambda: look_in(other.url, namespace=name), StoreAway)
        finally:
            alone.start()
            cluster.wait()
            for node in cluster.nodes:
                node.execute("CONFIG", "SET", "cluster-node-timeout", 15_000)
        assert [view.id for view in everything(store)] == [job]


@contextmanager
def moving(cluster: ValkeyCluster, name: str, source: Valkey, target: Valkey) -> Generator[Callable[[int], None]]:
    """Begin to move the slot of a namespace; what this yields moves this many keys. In the end, all have moved."""
    slot = source.execute("CLUSTER", "KEYSLOT", f"{{{name}}}")
    mine, theirs = source.execute("CLUSTER", "MYID"), target.execute("CLUSTER", "MYID")

    def move(keys: int) -> None:
        found = source.execute("CLUSTER", "GETKEYSINSLOT", slot, keys)
        if found:
            host = ("127.0.0.1", target.port)
            source.execute("MIGRATE", *host, "", 0, 5000, "AUTH", target.password, "KEYS", *found)

    target.execute("CLUSTER", "SETSLOT", slot, "IMPORTING", mine)
    source.execute("CLUSTER", "SETSLOT", slot, "MIGRATING", theirs)
    yield move
    move(1000)
    for node in (target, source):
        node.execute("CLUSTER", "SETSLOT", slot, "NODE", theirs)
    until(lambda: cluster.owner(f"{{{name}}}") is target, "all to know")


@pytest.mark.parametrize("part", ["none", "half", "all"])
def test_while_its_slot_moves_every_verb_is_refused_and_nothing_is_half_applied(
    cluster: ValkeyCluster, part: str
) -> None:
    source, target, *_ = masters(cluster)
    name = home(cluster, source)
    with opened(target.url, namespace=name) as store:
        lease, other, dead = running(store, unique="k"), running(store), running(store)
        queued, later = put(store), put(store, delay=60)
        finish(store, dead, Failed("no", final=True))
        before = everything(store)
        workers = store.workers()

        with moving(cluster, name, source, target) as move:
            keys = source.execute("KEYS", f"{{{name}}}:*")
            move({"none": 0, "half": len(keys) // 2, "all": len(keys)}[part])
            calls: list[Callable[[], object]] = [
                lambda: store.enqueue([draft() for _ in range(500)]),
                lambda: claim(store, lease.worker_id),
                lambda: store.renew([lease.worker_id]),
                lambda: store.finish([(lease, Completed())]),
                lambda: store.finish([(lease, Failed("no"))]),
                lambda: store.progress([Progress(lease=lease, fraction=0.5)]),
                lambda: store.once(lease, "key", "1"),
                lambda: store.owned(lease.worker_id),
                lambda: store.cancel([queued], "no"),
                lambda: store.promote_now([later]),
                lambda: store.promote(),
                lambda: store.replay([dead.job_id]),
                lambda: store.delete([dead.job_id]),
                lambda: store.prune(keep=0, keep_dead=0),
                lambda: store.register(workers[0].identity),
                lambda: store.declare_dead([lease.worker_id]),
                lambda: store.declare_expired(),
                lambda: store.settle(lease.worker_id, {}, Released("drained")),
                lambda: store.rescue(),
                lambda: store.redelivered(lease.job_id, declare=True),
                lambda: store.hung([lease.worker_id]),
                lambda: store.solo_waiting(["default"]),
                lambda: store.pause("default", paused=True),
                lambda: store.get(queued),
                lambda: store.search(Filter()),
                lambda: store.counts(),
                lambda: store.workers(),
                lambda: store.queues(),
                lambda: store.now(),
                lambda: look_in(target.url, namespace=name),
            ]
            for call in calls:
                assert f"is moving the slot of {{{name}}}:" in refused(call, StoreAway)

        assert everything(store) == before
        assert store.workers() == workers
        assert not source.execute("KEYS", f"{{{name}}}:*")
        assert [finish(store, each, Completed()) for each in (lease, other)] == [State.COMPLETED] * 2
        put(store, unique="k")
        assert len(clients(target)) == 1
        store.delete([view.id for view in everything(store)])


@pytest.mark.thorough
def test_a_failover_within_the_cluster_is_followed(cluster: ValkeyCluster) -> None:
    first, second, *_ = masters(cluster)
    name = home(cluster, first)
    settings = {"cluster-enabled": "yes", "cluster-port": free_port(), "cluster-node-timeout": 15_000}
    login = {"requirepass": first.password, "masterauth": first.password}
    replica = Valkey({**settings, **login})
    cluster.nodes.append(replica)
    bus = replica.execute("CONFIG GET", "cluster-port")["cluster-port"]
    first.execute("CLUSTER", "MEET", "127.0.0.1", replica.port, bus)
    mine = first.execute("CLUSTER", "MYID")
    until(lambda: mine in str(replica.execute("CLUSTER NODES")), "them to meet")
    with opened(second.url, namespace=name) as store:
        lease = running(store)
        replica.execute("CLUSTER", "REPLICATE", mine)
        until(lambda: replica.execute("INFO", "replication").get("master_link_status") == "up", "the replica's copy")
        until_it_works(lambda: look_in(replica.url, namespace=name), "the replica to know who has what")
        its = replica.execute("CLUSTER", "MYID")
        until(lambda: all(knows(node, its, mine) for node in cluster.nodes), "all who vote to know whose replica it is")

        replica.execute("CLUSTER", "FAILOVER")
        until(lambda: replica.execute("INFO", "replication")["role"] == "master", "the failover")

        until_it_works(lambda: store.counts(), "the nodes to agree")
        assert finish(store, lease, Completed()) is State.COMPLETED
        until(lambda: cluster.owner(f"{{{name}}}") is replica, "all to know")


def knows(node: Valkey, replica: str, master: str) -> bool:
    """Whether this node of a cluster is connected with all others, and knows `replica` as a replica of `master`."""
    nodes = {each["node_id"]: each for each in node.execute("CLUSTER NODES").values()}
    return (
        replica in nodes and nodes[replica]["master_id"] == master and all(each["connected"] for each in nodes.values())
    )


# ── Threads and processes ──


def test_fifty_threads_share_twenty_connections(
    server: Valkey, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY_SECONDS", 60.0)  # the promise is that all get their turn, not how soon

    answers = race(*[lambda: store.enqueue([draft()])[0].created for _ in range(50)])

    assert answers == [True] * 50
    assert len(clients(server)) <= module.MOST_CONNECTIONS


def test_when_all_connections_are_taken_the_next_is_told(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.05)
    with ExitStack() as stack:
        for _ in range(module.MOST_CONNECTIONS):
            stack.enter_context(store.server._lent())
        assert f"all {module.MOST_CONNECTIONS} connections" in refused(lambda: store.counts(), StoreAway)

    assert store.counts()[State.QUEUED] == 0


def test_a_forked_child_is_told_and_harms_its_parent_by_nothing(server: Valkey, store: RedisStore) -> None:
    put(store)
    warm(store, 3)
    before = clients(server)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        told: list[str] = []
        try:
            for call in (store.counts, lambda: store.enqueue([draft()]), store.open):
                try:
                    call()
                except StoreError as error:
                    told.append(str(error))
            store.close()
            os.write(writing, "\n".join(told).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        lines = pipe.read().splitlines()

    assert len(lines) == 3
    assert all("was opened before a fork()" in line for line in lines)
    assert len(everything(store)) == 1
    assert clients(server) == before


def test_a_store_that_is_not_open_says_so(server: Valkey, namespace: str) -> None:
    store = RedisStore(server.url, namespace=namespace)
    assert re.search("is not open$", refused(lambda: store.counts()))
    store.open()
    store.close()
    assert "is not open" in refused(lambda: store.counts())
    store.open()
    assert store.counts()[State.QUEUED] == 0
    store.close()


def test_nothing_is_left_open_at_the_end_not_even_what_was_in_use(server: Valkey, namespace: str) -> None:
    with opened(server.url, namespace=namespace) as store:
        warm(store, 5)
        assert len(clients(server)) == 5
        with store.server._lent():
            store.close()
            assert len(clients(server)) >= 1
        until(lambda: not clients(server), "them to be closed")


def test_a_claim_on_a_loop_does_not_block_it_while_the_server_hangs(server: Valkey, store: RedisStore) -> None:
    """It used to: a worker at rest was taken for one whose code blocks its loop."""
    worker = start(store)
    assert claim(store, worker) == []  # the script is loaded, and a connection idle
    job_id = put(store)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        call = store.claim_on_loop(worker, {"default": 1}, 1)
        wanted = next(call)  # it says what to wait for, while nothing answers
        assert select.select([wanted.fileno], [], [], 0)[0] == []
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert select.select([wanted.fileno], [], [], wanted.seconds)[0]
    with pytest.raises(StopIteration) as ended:
        next(call)
    assert [each.id for each in ended.value.value] == [job_id]
