"""The doorbell of PostgreSQL: heard at once while it works, and never silent about not working."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from servers import Postgres
from tenure.errors import InvalidOption
from tenure.notifiers import postgres
from tenure.notifiers.postgres import PostgresListener, PostgresNotifier
from tenure.ports import ANY, Ring
from waiting import until

QUEUED = Ring("queued", "mail")
LIMIT = 30.0


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def new_notifier(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PostgresNotifier]]:
    """Notifiers of one database. At the end none of their threads may be left, however long the last messages take."""
    monkeypatch.setattr(postgres, "_CLOSE_SECONDS", LIMIT)
    before = set(threading.enumerate())
    made: list[PostgresNotifier] = []

    def make(url: str = "", namespace: str = "tenure") -> PostgresNotifier:
        made.append(PostgresNotifier(url or server.url(), namespace))
        return made[-1]

    yield make
    for notifier in made:
        for listener in list(notifier._listeners):
            listener.close()
        notifier.close()
    left = {thread for thread in threading.enumerate() if thread.name.startswith("tenure-")} - before
    assert not left, f"closing left threads alive: {left}"


NewNotifier = Callable[..., PostgresNotifier]


def proven(notifier: PostgresNotifier) -> PostgresListener:
    """A listener that hears, with nothing left to hear."""
    ear = notifier.listen()
    until(lambda: ear.drain() == [], "a listener that hears")
    assert notifier.problem() == ""
    return ear


def heard(ear: PostgresListener, wanted: set[Ring]) -> bool:
    """Whether all of these rings come, woken by the descriptor alone."""
    deadline = time.monotonic() + LIMIT
    missing = set(wanted)
    while missing and (left := deadline - time.monotonic()) > 0:
        fileno = ear.fileno()
        assert fileno is not None
        select.select([fileno], [], [], left)
        missing -= set(ear.drain())
    return not missing


def sessions(server: Postgres, name: str) -> int:
    return int(server.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [name])[0][0])


def terminate(server: Postgres, name: str, number: int) -> None:
    until(lambda: sessions(server, name) == number, "the sessions of the test before to end")
    ended = server.execute(
        "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity WHERE application_name = %s", [name]
    )
    assert ended == [(True,)] * number


def count_batches(notifier: PostgresNotifier, monkeypatch: pytest.MonkeyPatch) -> list[set[tuple[str, str]]]:
    batches: list[set[tuple[str, str]]] = []
    send = notifier._announcer._send

    def counted(connection: object, words: set[tuple[str, str]], *, sent: bool) -> object:
        batches.append(words)
        return send(connection, words, sent=sent)  # type: ignore[arg-type]

    monkeypatch.setattr(notifier._announcer, "_send", counted)
    return batches


# ── hearing ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_everyone_hears_a_ring_and_who_rang_too(new_notifier: NewNotifier) -> None:
    one, other = new_notifier(), new_notifier()
    ears = [proven(one), proven(one), proven(other)]

    one.announce([QUEUED, Ring("due", "mail"), Ring("cancel", "mail", ("some-id",), "why"), QUEUED])

    for ear in ears:
        assert heard(ear, {QUEUED, Ring("due", "mail"), Ring("cancel", "mail")})
        assert ear.permits is None


def test_namespaces_do_not_hear_each_other(new_notifier: NewNotifier) -> None:
    long = "x" * 100
    ears = {name: proven(new_notifier(namespace=name)) for name in ("a", "a-b", long, long + "x")}
    for name in ears:
        new_notifier(namespace=name).announce([Ring("queued", f"of-{name[-3:]}-{len(name)}")])
    for name, ear in ears.items():
        assert until(ear.drain, "a ring") == [Ring("queued", f"of-{name[-3:]}-{len(name)}")]


def test_hundreds_of_queues_with_the_longest_names_are_heard_from_one_announce(new_notifier: NewNotifier) -> None:
    ear = proven(new_notifier())
    names = [f"{number:03}-".ljust(100, "ä" if number % 2 else "q") for number in range(300)]
    new_notifier().announce(Ring("queued", name) for name in names)
    assert heard(ear, {Ring("queued", name) for name in names})


def test_a_listener_starts_with_a_look_because_rings_may_have_been_missed(new_notifier: NewNotifier) -> None:
    assert heard(new_notifier().listen(), {ANY})


def test_what_others_say_on_the_channel_is_ignored(new_notifier: NewNotifier, server: Postgres) -> None:
    notifier = new_notifier()
    ear = proven(notifier)
    for payload in ("", "garbage", "{}", '{"queued": 1}', '{"newer": ["x"]}', "[" * 7000):
        server.execute("SELECT pg_notify('tenure:tenure', %s)", [payload])
    notifier.announce([QUEUED])
    assert until(ear.drain, "a ring") == [QUEUED]


def test_a_listener_goes_on_proving_itself_and_nobody_hears_the_proofs(
    new_notifier: NewNotifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_PROOF_EVERY", 0.05)
    notifier = new_notifier()
    batches = count_batches(notifier, monkeypatch)
    ear = proven(notifier)
    more: list[Ring] = []
    until(lambda: more.extend(ear.drain()) or len(batches) > 2, "more proofs")  # one in `_PROOF_WITHIN`: 5 s
    assert more == []
    assert notifier.problem() == ""


# ── announcing ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_flood_of_rings_is_few_notifications(new_notifier: NewNotifier, monkeypatch: pytest.MonkeyPatch) -> None:
    notifier = new_notifier()
    ear = proven(notifier)
    batches = count_batches(notifier, monkeypatch)

    started = time.monotonic()
    for number in range(10_000):
        notifier.announce([Ring("queued", f"q{number % 50}", (str(number),))])
        if number % 50 == 0:
            time.sleep(0.001)  # or it would have no turn before the end
    assert heard(ear, {Ring("queued", f"q{number}") for number in range(50)})

    assert len(batches) <= (time.monotonic() - started) / postgres._DEBOUNCE + postgres._BURST + 2


def test_a_ring_is_sent_by_its_caller_while_the_connection_is_idle(
    new_notifier: NewNotifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    ear, notifier = proven(new_notifier()), new_notifier()
    notifier.announce([QUEUED])
    assert heard(ear, {QUEUED})
    until(lambda: notifier._announcer._idle, "a connection at rest")
    send, go = notifier._announcer._send, threading.Event()

    def late(*given: Any, **options: Any) -> Any:
        assert go.wait(LIMIT)
        return send(*given, **options)

    monkeypatch.setattr(notifier._announcer, "_send", late)
    notifier.announce([QUEUED])
    assert heard(ear, {QUEUED}), "the thread has not sent it"
    notifier.announce([Ring("due", "mail")])
    assert ear.drain() == []
    go.set()
    assert heard(ear, {Ring("due", "mail")})


def test_where_there_is_no_epoll_the_thread_hears(new_notifier: NewNotifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "epoll", raising=False)
    notifier = new_notifier()
    ear = proven(notifier)
    notifier.announce([QUEUED])
    assert heard(ear, {QUEUED})


def test_what_was_announced_leaves_before_the_process_ends(new_notifier: NewNotifier, server: Postgres) -> None:
    ear = proven(new_notifier())
    run_python(
        "notifier.announce([Ring('queued', 'mail')])  # and the end",
        server.url(),
    )
    assert heard(ear, {QUEUED})


def test_closing_sends_what_waits_and_nothing_after_it(new_notifier: NewNotifier) -> None:
    ear, notifier = proven(new_notifier()), new_notifier()
    notifier.announce([QUEUED])
    notifier.announce([Ring("due", "mail")])
    notifier.close()
    assert notifier._announcer._thread is not None
    assert not notifier._announcer._thread.is_alive()
    notifier.announce([Ring("cancel", "mail")])
    assert heard(ear, {QUEUED, Ring("due", "mail")})
    assert ear.drain() == []


def test_the_side_connection_is_let_go_after_a_silence_and_comes_back(
    new_notifier: NewNotifier, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_SILENCE", 0.1)
    ear, notifier = proven(new_notifier()), new_notifier()
    notifier.announce([QUEUED])
    assert heard(ear, {QUEUED})
    until(lambda: sessions(server, "tenure-notify") == 0, "no session left")
    notifier.announce([QUEUED])
    assert heard(ear, {QUEUED})


def test_a_fork_forgets_and_leaves_its_parent_alone(new_notifier: NewNotifier, server: Postgres) -> None:
    ear = proven(new_notifier())
    run_python(
        """
        ear = notifier.listen()
        while ear.drain(): time.sleep(0.01)
        notifier.announce([Ring("queued", "parent")])
        child = os.fork()
        if child == 0:
            ear.close()
            notifier.announce([Ring("queued", "child")])
            sys.exit(0)  # an orderly end, which sends what waits
        assert os.waitpid(child, 0)[1] == 0
        notifier.announce([Ring("queued", "later")])
        wanted = {"parent", "child", "later"}
        while wanted: wanted -= {ring.queue for ring in ear.drain()}
        assert notifier.problem() == ""
        ear.close()
        """,
        server.url(),
    )
    assert heard(ear, {Ring("queued", name) for name in ("parent", "child", "later")})


FORKS = "ignore:This process:DeprecationWarning"  #: Python 3.12 says that it is multi-threaded


def run_python(code: str, url: str) -> None:
    lines = "\n".join(line.removeprefix(" " * 8) for line in code.splitlines())
    head = (
        "import os, sys, time\nfrom tenure.notifiers import postgres\nfrom tenure.notifiers.postgres import *\n"
        "postgres._CLOSE_SECONDS = 60.0\n"  # a busy machine may need more than a second to connect
    )
    run = subprocess.run(
        [sys.executable, "-c", f"{head}notifier = PostgresNotifier(os.environ['DOORBELL'], 'tenure')\n{lines}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DOORBELL": url, "PYTHONWARNINGS": FORKS},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_killed_session_of_the_listener_comes_back_with_a_look(new_notifier: NewNotifier, server: Postgres) -> None:
    ear, notifier = proven(new_notifier()), new_notifier()
    terminate(server, "tenure-listen", 1)
    assert heard(ear, {ANY})
    until(lambda: ear.drain() == [], "a listener that hears again")
    notifier.announce([QUEUED])
    assert heard(ear, {QUEUED})


def test_a_killed_session_of_who_announces_costs_no_ring(new_notifier: NewNotifier, server: Postgres) -> None:
    ear, notifier = proven(new_notifier()), new_notifier()
    notifier.announce([QUEUED])
    assert heard(ear, {QUEUED})
    terminate(server, "tenure-notify", 2)
    notifier.announce([QUEUED])
    assert heard(ear, {QUEUED})
    assert notifier.problem() == ""


def test_it_hears_again_after_the_server_was_stopped_and_started(
    new_notifier: NewNotifier, server: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = new_notifier()
    ear = proven(notifier)

    server.stop("immediate")
    try:
        until(lambda: ear.drain() and ear.problem, "a problem of the listener")  # a worker drains it as it is readable
        assert "polling every second" in notifier.problem()
        for _ in range(100):
            notifier.announce([QUEUED])
            assert ear.drain() == [ANY]
            time.sleep(0.002)
    finally:
        server.start()

    until(lambda: not notifier.problem(), "no problem any more")
    until(lambda: ear.drain() == [], "a listener that hears again")
    new_notifier().announce([QUEUED])
    assert heard(ear, {QUEUED})
    assert len([record for record in caplog.records if record.name == "tenure.notifier"]) <= 2


def test_a_wrong_password_is_told_but_not_shown(
    new_notifier: NewNotifier, server: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    good = urlsplit(server.url())
    url = good._replace(netloc=f"tenure:hunter2%21@{good.hostname}:{good.port}").geturl()
    notifier = new_notifier(url)

    notifier.announce([QUEUED])
    until(notifier.problem, "a problem of who announces")
    ear = notifier.listen()
    until(lambda: ear.problem, "a problem of the listener")

    assert ear.drain() == [ANY]
    for text in (notifier.problem(), ear.problem, caplog.text):
        assert "password authentication failed" in text
        assert "polling every second" in text
        assert "hunter2" not in text
    assert "hunter2" not in repr((notifier, ear, notifier._server))


def test_a_password_that_an_error_repeats_is_starred() -> None:
    server = postgres._Server("postgresql://me:hunter2@h/d", "tenure")
    assert "(what *** means)" in server.describe(psycopg.OperationalError("what hunter2\nmeans"))


@pytest.mark.parametrize(
    "url",
    [
        "postgres hunter2",
        "postgresql://me:hun@ter2@h/d",
        "postgresql://me:hun/ter2@h/d",
        "postgresql://me:hunter2@db..internal/d",
    ],
)
def test_an_address_that_can_not_be_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        PostgresNotifier(url, "tenure")
    assert not re.search("hun|ter2", str(refused.value))


def test_a_host_that_cannot_be_looked_up_ends_no_thread(
    new_notifier: NewNotifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: object) -> psycopg.Connection:
        raise UnicodeError("label empty or too long")  # as `getaddrinfo` does

    notifier = new_notifier()
    with monkeypatch.context() as patch:
        patch.setattr(postgres._Server, "connect", connect)
        ear = notifier.listen()
        notifier.announce([QUEUED])
        until(lambda: notifier._announcer.problem and ear.problem, "both problems")
        assert "label empty or too long" in notifier.problem()
    until(lambda: not notifier.problem(), "both threads to go on")


def test_a_standby_is_named_as_such(new_notifier: NewNotifier) -> None:
    with Postgres() as standby:
        standby.stop()
        (standby.folder / "data" / "standby.signal").touch()
        standby.start()
        notifier = new_notifier(standby.url())
        ear = notifier.listen()
        notifier.announce([QUEUED])
        until(lambda: ear.problem and notifier._announcer.problem, "both problems")
        assert {ear.problem, notifier.problem()} == {postgres._STANDBY}
        assert ear.drain() == [ANY]
        ear.close()
        notifier.close()


def test_behind_a_pooler_it_says_so_and_polls_until_it_hears(
    new_notifier: NewNotifier, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_PROOF_WITHIN", 0.3)
    monkeypatch.setattr(postgres, "_PROOF_EVERY", 0.2)
    with Pooler(server.port) as pooler:
        good = urlsplit(server.url())
        netloc = f"{good.username}:{good.password}@127.0.0.1:{pooler.port}"
        url = good._replace(netloc=netloc, query="sslmode=disable&gssencmode=disable").geturl()
        notifier = new_notifier(url)
        ear = notifier.listen()

        until(lambda: ANY not in ear.drain() or notifier.problem(), "a problem")
        assert notifier.problem() == postgres._NO_RINGS
        for _ in range(3):
            assert ANY in ear.drain()
        assert ear.interval == 1.0

        pooler.deaf = False
        until(lambda: not notifier.problem(), "no problem any more")
        until(lambda: ear.drain() == [], "a listener that hears")
        pooler.deaf = True
        until(lambda: notifier.problem() and ANY in ear.drain(), "a problem again, and a listener that knows")
        ear.close()
        notifier.close()


def test_a_server_that_lets_one_in_and_answers_nothing_is_told_and_left(
    new_notifier: NewNotifier, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_ANSWER", 0.5)
    with Pooler(server.port) as pooler:
        pooler.deaf, pooler.silent = False, True
        good = urlsplit(server.url())
        netloc = f"{good.username}:{good.password}@127.0.0.1:{pooler.port}"
        notifier = new_notifier(good._replace(netloc=netloc, query="sslmode=disable&gssencmode=disable").geturl())
        notifier.announce([QUEUED])
        until(lambda: "no answer in 0.5s" in notifier.problem(), "a problem of who announces")
        ear = notifier.listen()
        until(lambda: "no answer in 0.5s" in ear.problem, "a problem of the listener")

        monkeypatch.setattr(postgres, "_ANSWER", LIMIT)
        pooler.silent = False
        until(lambda: ear.drain() == [], "a listener that hears")
        until(lambda: not notifier.problem(), "no problem any more")
        ear.close()
        notifier.close()


def test_a_server_that_answers_no_more_is_not_taken_for_a_pooler(
    new_notifier: NewNotifier, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_PROOF_WITHIN", 0.3)
    monkeypatch.setattr(postgres, "_PROOF_EVERY", 0.2)
    with Pooler(server.port) as pooler:
        pooler.deaf = False
        good = urlsplit(server.url())
        netloc = f"{good.username}:{good.password}@127.0.0.1:{pooler.port}"
        notifier = new_notifier(good._replace(netloc=netloc, query="sslmode=disable&gssencmode=disable").geturl())
        ear = notifier.listen()
        until(lambda: ear.drain() == [], "a listener that hears")

        monkeypatch.setattr(postgres, "_ANSWER", 0.5)
        pooler.silent = True
        until(lambda: ear.problem, "a problem of the listener")
        assert "no answer in 0.5s" in ear.problem
        assert ANY in ear.drain()
        ear.close()
        notifier.close()


class Pooler:
    """Between clients and a server, losing notifications as a pooler in transaction mode does.

    Only what arrives while a statement runs gets through: a stray ring just after LISTEN. A silent pooler lets
    clients in, and passes on no answer after that.
    """

    def __init__(self, server_port: int) -> None:
        self.deaf = True
        self.silent = False
        self._server_port = server_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._sockets = [self._listening]
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Pooler:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._sockets += [client, server]
                for pump in (self._to_server, self._to_client):
                    self._threads.append(threading.Thread(target=pump, args=(client, server)))
                    self._threads[-1].start()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _to_client(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError), server.makefile("rb") as messages:
            listening = entered = False
            while head := messages.read(5):
                body = messages.read(int.from_bytes(head[1:], "big") - 4)
                if (self.deaf and head[:1] == b"A") or (self.silent and entered):
                    continue
                entered = entered or head[:1] == b"Z"
                client.sendall(head + body)
                listening = listening or (head[:1], body) == (b"C", b"LISTEN\0")
                if listening and self.deaf and head[:1] == b"Z":
                    time.sleep(0.02)  # as a message of its own, so that the listener's own reading finds it
                    stray = b'\0\0\0\1tenure:tenure\0{"queued":["mail"]}\0'
                    client.sendall(b"A" + (len(stray) + 4).to_bytes(4, "big") + stray)
            client.shutdown(socket.SHUT_WR)
