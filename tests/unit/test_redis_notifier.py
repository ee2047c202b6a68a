"""The doorbell in Redis: heard at once while it works, and never silent about not working."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from proxy import Proxy
from servers import Valkey
from tenure.notifiers import redis
from tenure.notifiers.redis import RedisListener, RedisNotifier
from tenure.ports import ANY, Ring
from tenure.stores.redis.server import ANSWER_SECONDS, Server
from waiting import until

QUEUED = Ring("queued", "mail")
BELL = "{tenure}:bell"
LIMIT = 30.0

NewNotifier = Callable[..., RedisNotifier]


@pytest.fixture(scope="module")
def running() -> Generator[Valkey]:
    with Valkey() as server:
        yield server


@pytest.fixture
def server(running: Valkey) -> Iterator[Valkey]:
    yield running
    running.execute("FLUSHALL")


@pytest.fixture
def new_notifier(server: Valkey, monkeypatch: pytest.MonkeyPatch) -> Iterator[NewNotifier]:
    """Notifiers of one server. At the end none of their threads and descriptors may be left.

    However busy this machine is, no answer counts as late, and the last messages are sent.
    """
    for name in ("_ANSWER_SECONDS", "_CLOSE_SECONDS"):
        monkeypatch.setattr(redis, name, LIMIT)
    threads, descriptors = set(threading.enumerate()), open_descriptors()
    made: list[RedisNotifier] = []

    def make(url: str = "", namespace: str = "tenure") -> RedisNotifier:
        made.append(RedisNotifier(Server(url or server.url, namespace, None), namespace))
        return made[-1]

    yield make
    for notifier in made:
        for listener in list(notifier._listeners):
            listener.close()
        notifier.close()
    left = {thread for thread in threading.enumerate() if thread.name.startswith("tenure-")} - threads
    assert not left, f"closing left threads alive: {left}"
    assert open_descriptors() <= descriptors


def open_descriptors() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def hearing(notifier: RedisNotifier) -> RedisListener:
    """A listener that hears, with nothing left to hear."""
    ear = notifier.listen()
    until(lambda: ear.drain() == [] and not ear.problem, "a listener that hears")
    return ear


def connected(notifier: RedisNotifier) -> RedisNotifier:
    """A notifier that has rung, and now rings without a thread."""
    notifier.announce([Ring("due", "connected")])
    until(lambda: notifier._announcer._connection, "a connection to ring with")
    return notifier


def heard(ear: RedisListener, wanted: set[Ring]) -> bool:
    """Whether all of these rings come, woken by the descriptor alone."""
    deadline = time.monotonic() + LIMIT
    missing = set(wanted)
    while missing and (left := deadline - time.monotonic()) > 0:
        fileno = ear.fileno()
        assert fileno is not None
        select.select([fileno], [], [], left)
        missing -= set(ear.drain())
    return not missing


def connections(server: Valkey, name: str) -> list[str]:
    with server.client() as client:
        return [each["id"] for each in client.client_list() if each["name"] == name]


def kill(server: Valkey, name: str) -> None:
    ids = connections(server, name)
    assert ids
    for each in ids:
        server.execute("CLIENT", "KILL", "ID", each)


# ── hearing ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_everyone_hears_a_ring_and_who_rang_too(new_notifier: NewNotifier) -> None:
    one, other = new_notifier(), new_notifier()
    ears = [hearing(one), hearing(one), hearing(other)]

    one.announce([QUEUED, Ring("due", "mail"), Ring("cancel", "mail", ("some-id",), "why"), QUEUED])

    for ear in ears:
        assert heard(ear, {QUEUED, Ring("due", "mail"), Ring("cancel", "mail")})
        assert ear.permits is None


def test_each_of_many_rings_is_heard_whether_said_by_a_thread_or_not(new_notifier: NewNotifier) -> None:
    ear, notifier = hearing(new_notifier()), new_notifier()
    wanted = {Ring("queued", f"q{number}") for number in range(100)}
    for ring in wanted:
        notifier.announce([ring])
    assert heard(ear, wanted)


def test_namespaces_do_not_hear_each_other(new_notifier: NewNotifier) -> None:
    names = ("a", "a-b", "x" * 63)
    ears = {name: hearing(new_notifier(namespace=name)) for name in names}
    for name in names:
        new_notifier(namespace=name).announce([Ring("queued", f"of-{name}")])
    for name, ear in ears.items():
        until(lambda ear=ear: ear._inbox._rings, "a ring")  # type: ignore[misc]
        assert ear.drain() == [Ring("queued", f"of-{name}")]


def test_hundreds_of_queues_with_the_longest_names_are_heard_from_one_announce(new_notifier: NewNotifier) -> None:
    ear, notifier = hearing(new_notifier()), connected(new_notifier())
    names = [f"{number:03}-".ljust(100, "ä" if number % 2 else "q") for number in range(300)]
    notifier.announce(Ring("queued", name) for name in names)
    assert heard(ear, {Ring("queued", name) for name in names})


def test_a_listener_starts_with_a_look_because_rings_may_have_been_missed(new_notifier: NewNotifier) -> None:
    assert heard(new_notifier().listen(), {ANY})


def test_what_others_put_into_the_stream_is_ignored(new_notifier: NewNotifier, server: Valkey) -> None:
    notifier = new_notifier()
    ear = hearing(notifier)
    with server.client() as client:
        for words in ({"": ""}, {"newer": "x"}, {b"\xff": b"\xff"}, {"queued": b"\xff\xfe"}, {"due": b"\xed\xa0\x80"}):
            client.xadd(BELL, words)
    notifier.announce([QUEUED])
    until(lambda: ear._inbox._rings, "a ring")
    assert ear.drain() == [QUEUED]


def test_a_listener_that_fell_too_far_behind_looks_for_itself(new_notifier: NewNotifier, server: Valkey) -> None:
    ear = hearing(new_notifier())
    with server.client() as client, client.pipeline() as together:
        for number in range(3 * redis.KEPT):
            together.xadd(BELL, {"queued": f"q{number}"}, maxlen=redis.KEPT)
        together.execute()
    assert heard(ear, {ANY, Ring("queued", f"q{3 * redis.KEPT - 1}")})


def test_a_stream_that_was_lost_and_begins_with_lower_ids_is_heard(
    new_notifier: NewNotifier, server: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis, "_BLOCK_SECONDS", 0.1)
    notifier = new_notifier()
    server.execute("XADD", BELL, f"{time.time_ns() // 1_000_000 + 10**9}-0", "queued", "of-a-clock-that-was-ahead")
    ear = hearing(notifier)

    server.execute("FLUSHALL")
    notifier.announce([Ring("queued", "unheard")])

    assert heard(ear, {ANY})
    assert ear.problem == ""
    notifier.announce([QUEUED])
    assert heard(ear, {QUEUED})


def test_quiet_is_not_taken_for_trouble(new_notifier: NewNotifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "_BLOCK_SECONDS", 0.01)
    looks: list[bool] = []
    look = RedisListener._find_place

    def counted(ear: RedisListener, connection: redis.Connection) -> bool:
        looks.append(look(ear, connection))
        return looks[-1]

    monkeypatch.setattr(RedisListener, "_find_place", counted)
    notifier = new_notifier()
    ear = hearing(notifier)
    notifier.announce([QUEUED])
    assert heard(ear, {QUEUED})
    before = len(looks)
    until(lambda: len(looks) > before + 5, "some looks at the stream")
    assert (ear.drain(), notifier.problem()) == ([], "")


# ── announcing ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_ring_is_sent_by_who_announces_it_and_no_thread(new_notifier: NewNotifier) -> None:
    ear, notifier = hearing(new_notifier()), connected(new_notifier())
    until(lambda: notifier._announcer._thread is None, "no thread")
    notifier.announce([QUEUED])
    assert notifier._announcer._thread is None
    assert heard(ear, {QUEUED})


def test_the_stream_stays_short(new_notifier: NewNotifier, server: Valkey) -> None:
    notifier = connected(new_notifier())
    announcer = notifier._announcer
    for number in range(3000):
        notifier.announce([Ring("queued", f"q{number % 7}")])
        if number % 300 == 0:  # more unanswered rings would be merged, and sent again as a few
            until(lambda: not notifier.problem() and not announcer._unanswered, "the answers")
    notifier.close()
    assert redis.KEPT <= server.execute("XLEN", BELL) <= 2 * redis.KEPT


def test_what_was_announced_leaves_before_the_process_ends(new_notifier: NewNotifier, server: Valkey) -> None:
    ear = hearing(new_notifier())
    run_python("notifier.announce([Ring('queued', 'mail')])  # and the end", server.url)
    assert heard(ear, {QUEUED})


def test_closing_sends_what_waits_and_nothing_after_it(new_notifier: NewNotifier, server: Valkey) -> None:
    ear, fresh, old = hearing(new_notifier()), new_notifier(), connected(new_notifier())
    fresh.announce([QUEUED])
    fresh.announce([Ring("due", "fresh")])
    old.announce([Ring("due", "old")])
    for notifier in (fresh, old):
        notifier.close()
        notifier.announce([Ring("cancel", "mail")])
    assert heard(ear, {QUEUED, Ring("due", "fresh"), Ring("due", "old")})
    assert ear.drain() == []
    until(lambda: not connections(server, "tenure-announce"), "no connection left")


def test_threads_that_announce_together_are_all_heard(new_notifier: NewNotifier) -> None:
    ear, notifier = hearing(new_notifier()), new_notifier()
    together = threading.Barrier(8)

    def announce(name: str) -> None:
        together.wait()
        for number in range(20):
            notifier.announce([Ring("queued", f"{name}-{number}")])

    threads = [threading.Thread(target=announce, args=(f"t{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard(ear, {Ring("queued", f"t{thread}-{number}") for thread in range(8) for number in range(20)})


def test_a_fork_forgets_and_leaves_its_parent_alone(new_notifier: NewNotifier, server: Valkey) -> None:
    ear = hearing(new_notifier())
    run_python(
        """
        ear = notifier.listen()
        while ear.drain(): time.sleep(0.01)
        notifier.announce([Ring("queued", "parent")])
        while notifier._announcer._connection is None: time.sleep(0.01)
        mine = notifier._announcer._connection
        child = os.fork()
        if child == 0:
            ear.close()
            notifier.announce([Ring("queued", "child")])
            assert notifier._announcer._connection is not mine
            sys.exit(0)  # an orderly end, which sends what waits
        assert os.waitpid(child, 0)[1] == 0
        notifier.announce([Ring("queued", "later")])
        assert notifier._announcer._connection is mine
        wanted = {"parent", "child", "later"}
        while wanted: wanted -= {ring.queue for ring in ear.drain()}
        assert notifier.problem() == ""
        ear.close()
        """,
        server.url,
    )
    assert heard(ear, {Ring("queued", name) for name in ("parent", "child", "later")})


FORKS = "ignore:This process:DeprecationWarning"  #: Python 3.12 says that it is multi-threaded


def run_python(code: str, url: str) -> None:
    lines = "\n".join(line.removeprefix(" " * 8) for line in code.splitlines())
    head = (
        "import os, sys, time\nfrom tenure.notifiers import redis\nfrom tenure.notifiers.redis import *\n"
        "from tenure.stores.redis.server import Server\n"
        "redis._ANSWER_SECONDS = redis._CLOSE_SECONDS = 60.0\n"  # a busy machine may need more than a second to connect
        "notifier = RedisNotifier(Server(os.environ['DOORBELL'], 'tenure', None), 'tenure')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", head + lines],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DOORBELL": url, "PYTHONWARNINGS": FORKS},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_listener_whose_connection_was_killed_hears_what_was_said_meanwhile(
    new_notifier: NewNotifier, server: Valkey
) -> None:
    ear, notifier = hearing(new_notifier()), connected(new_notifier())
    kill(server, "tenure-listen")
    notifier.announce([Ring("cancel", "mail")])
    assert heard(ear, {ANY, Ring("cancel", "mail")})
    until(lambda: ear.drain() == [], "a listener that hears again")
    notifier.announce([QUEUED])
    assert heard(ear, {QUEUED})


def test_a_killed_connection_of_who_announces_costs_no_ring(new_notifier: NewNotifier, server: Valkey) -> None:
    ear, notifier = hearing(new_notifier()), connected(new_notifier())
    kill(server, "tenure-announce")
    notifier.announce([QUEUED])
    assert heard(ear, {QUEUED})
    assert notifier.problem() == ""


def test_a_ring_that_the_server_refused_is_sent_again(
    new_notifier: NewNotifier, server: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tenure.notifier")
    ear, notifier = hearing(new_notifier()), connected(new_notifier())

    server.execute("CONFIG", "SET", "maxmemory", 1)
    try:
        notifier.announce([QUEUED])
        until(notifier.problem, "a problem")
        assert "memory" in notifier.problem()
        assert "polling every second" in notifier.problem()
    finally:
        server.execute("CONFIG", "SET", "maxmemory", 0)

    assert heard(ear, {QUEUED})
    until(lambda: not notifier.problem(), "no problem any more")
    assert len([record for record in caplog.records if record.name == "tenure.notifier"]) == 2


def test_it_hears_again_after_the_server_was_killed_and_started(
    new_notifier: NewNotifier, server: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tenure.notifier")
    notifier = connected(new_notifier())
    ear = hearing(notifier)

    server.kill()
    try:
        until(notifier.problem, "a problem")
        assert "polling every second" in notifier.problem()
        for _ in range(100):
            notifier.announce([Ring("cancel", "mail")])
            assert ear.drain() == [ANY]
        assert ear.interval == 1.0
    finally:
        server.start()

    assert heard(ear, {Ring("cancel", "mail")})
    until(lambda: not notifier.problem(), "no problem any more")
    until(lambda: ear.drain() == [], "a listener that hears again")
    notifier.announce([QUEUED])
    assert heard(ear, {QUEUED})
    assert len([record for record in caplog.records if record.name == "tenure.notifier"]) <= 2


def test_a_stopped_server_holds_up_nobody_who_announces(new_notifier: NewNotifier, server: Valkey) -> None:
    ear, notifier = hearing(new_notifier()), connected(new_notifier())
    rings = [Ring("queued", f"{number:03}-".ljust(100, "q")) for number in range(300)]
    slowest = 0.0
    os.kill(server.pid, signal.SIGSTOP)
    try:
        for _ in range(500):  # far more than the buffers between us hold
            started = time.monotonic()
            notifier.announce(rings)
            slowest = max(slowest, time.monotonic() - started)
        notifier.announce([QUEUED])
        assert notifier._announcer._connection is None
        assert slowest < ANSWER_SECONDS, "one that waited for an answer would have waited for so long"
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert heard(ear, {QUEUED})


def test_rings_that_a_server_took_with_it_when_it_died_are_sent_again(
    new_notifier: NewNotifier, server: Valkey
) -> None:
    ear, notifier = hearing(new_notifier()), connected(new_notifier())
    rings = {Ring("queued", f"q{number}") for number in range(5)}
    os.kill(server.pid, signal.SIGSTOP)
    for ring in rings:
        notifier.announce([ring])
    server.kill()
    server.start()
    until(lambda: notifier.problem() == "" == ear.problem, "no problem any more")
    assert heard(ear, rings)


def test_a_server_that_is_cut_off_without_a_word_is_noticed_from_both_sides(
    new_notifier: NewNotifier, server: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_BLOCK_SECONDS", "_ANSWER_SECONDS"):
        monkeypatch.setattr(redis, name, 0.2)
    with Proxy("127.0.0.1", server.port) as proxy:
        notifier = connected(new_notifier(through(proxy, server)))
        ear, near = hearing(notifier), hearing(new_notifier())

        proxy.blackhole()
        notifier.announce([QUEUED])
        until(lambda: "polling every second" in ear.problem and ANY in ear.drain(), "a problem of the listener")
        until(lambda: notifier.problem() and notifier._announcer._connection is None, "who announces has noticed")
        proxy.heal()

        assert heard(near, {QUEUED})
        until(lambda: not notifier.problem(), "no problem any more")
        until(lambda: ear.drain() == [], "a listener that hears again")
        ear.close()
        notifier.close()


def test_what_gathers_while_the_server_is_away_is_bounded_and_told_as_a_look_at_everything(
    new_notifier: NewNotifier, server: Valkey
) -> None:
    ear = hearing(new_notifier())
    with Proxy("127.0.0.1", server.port) as proxy:
        notifier = new_notifier(through(proxy, server))
        proxy.refuse()
        for number in range(3 * redis.MOST_WAITING):
            notifier.announce([Ring("due", f"q{number}")])
        assert len(notifier._announcer._waiting) <= redis.MOST_WAITING
        assert ear.drain() == []
        proxy.heal()
        assert heard(ear, {ANY})
        notifier.close()


def through(proxy: Proxy, server: Valkey) -> str:
    return server.url.replace(str(server.port), str(proxy.port))


def test_a_wrong_password_is_told_but_not_shown(
    new_notifier: NewNotifier, server: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.url.replace(server.password, "hunter2%21")
    notifier = new_notifier(url)

    notifier.announce([QUEUED])
    until(notifier.problem, "a problem of who announces")
    ear = notifier.listen()
    until(lambda: ear.problem, "a problem of the listener")

    assert ear.drain() == [ANY]
    for text in (notifier.problem(), ear.problem, caplog.text):
        assert "password" in text
        assert "polling every second" in text
        assert "hunter2" not in text
    assert "hunter2" not in repr((notifier, ear, notifier._server))


def test_a_host_that_cannot_be_looked_up_ends_no_thread(
    new_notifier: NewNotifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: object) -> redis.Connection:
        raise UnicodeError("label empty or too long")  # as `getaddrinfo` does

    notifier = new_notifier()
    with monkeypatch.context() as patch:
        patch.setattr(Server, "connect", connect)
        ear = notifier.listen()
        notifier.announce([QUEUED])
        until(lambda: notifier._announcer.problem and ear.problem, "both problems")
        assert "label empty or too long" in notifier.problem()
    until(lambda: not notifier.problem(), "both threads to go on")


def test_a_read_only_replica_is_named_as_such(new_notifier: NewNotifier, server: Valkey) -> None:
    with Valkey(replica_of=server) as replica:
        notifier = new_notifier(replica.url)
        notifier.announce([QUEUED])
        until(notifier.problem, "a problem")
        assert notifier.problem() == redis._REPLICA
        ear = hearing(new_notifier(replica.url))
        new_notifier().announce([QUEUED])
        assert heard(ear, {QUEUED})
        ear.close()


def test_a_key_of_somebody_else_is_told(new_notifier: NewNotifier, server: Valkey) -> None:
    server.execute("SET", BELL, "not a stream")
    notifier = new_notifier()
    ear = notifier.listen()
    notifier.announce([QUEUED])
    until(lambda: notifier._announcer.problem and ear.problem, "both problems")
    assert "WRONGTYPE" in notifier.problem()
    assert ear.drain() == [ANY]


def test_a_listener_that_may_not_read_the_stream_never_believes_that_it_hears(
    new_notifier: NewNotifier, server: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.execute("ACL", "SETUSER", "deaf", "on", ">secret", "~*", "+@all", "-xread")
    tries: list[int] = []
    backoff = redis._backoff

    def counted(failures: int) -> float:
        tries.append(failures)
        return backoff(failures) / 10

    monkeypatch.setattr(redis, "_backoff", counted)

    ear = new_notifier(server.url.replace(f":{server.password}@", "deaf:secret@")).listen()

    until(lambda: len(tries) > 3, "some tries")
    assert tries[:4] == [1, 2, 3, 4]
    assert "xread" in ear.problem
    assert ear.drain() == [ANY]
    server.execute("ACL", "SETUSER", "deaf", "+xread")
    until(lambda: not ear.problem and ear.drain() == [], "a listener that hears")
