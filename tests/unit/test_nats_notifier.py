"""NATS: the queue delivers permits, the store decides. Losing a message, or getting it twice, costs time only."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from servers import Nats
from tenure import Job, Tenure
from tenure.app.backends import check_timers
from tenure.config import load, redact
from tenure.core.clock import system_clock
from tenure.core.ids import new_id
from tenure.core.lifecycle import State
from tenure.errors import InvalidOption, StoreAway
from tenure.maintenance.maintenance import Maintenance
from tenure.maintenance.roster import Turn
from tenure.notifiers.nats import NatsListener, NatsNotifier, connection
from tenure.notifiers.nats.address import parse_url
from tenure.ports import Filter, Permit, Ring, WorkerIdentity
from tenure.stores.sqlite import SqliteStore
from tenure.tasks.handle import JobHandle
from waiting import until

STREAM = "tenure_tenure"
SECONDS = 60.0


# ── The server, and both ends of the wire ──


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is: the first answer is awaited, the last messages are sent, and nothing twice."""
    for module in ("connection", "thread"):
        monkeypatch.setattr(f"tenure.notifiers.nats.{module}.CLOSE_SECONDS", SECONDS)
    for repeats in ("publisher.CALL_SECONDS", "permits.SILENT_SECONDS"):
        monkeypatch.setattr(f"tenure.notifiers.nats.{repeats}", SECONDS / 2)


@pytest.fixture
def server() -> Generator[Nats]:
    with Nats() as running:
        yield running


class Wire:
    """Notifiers and listeners of one test, and an outsider's view of the server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._open: list[NatsListener | NatsNotifier] = []

    def notifier(self, query: str = "") -> NatsNotifier:
        notifier = NatsNotifier(self.url + query)
        self._open.append(notifier)
        return notifier

    def listener(self, query: str = "") -> NatsListener:
        listener = self.notifier(query).listen()
        self._open.append(listener)
        return listener

    def close(self) -> None:
        for each in reversed(self._open):
            each.close()

    def ask(self, subject: str, body: object = None, *, raw: bytes | None = None) -> dict[str, Any]:
        """What the server answers to a request; with `raw`, that is published and answered with nothing."""

        async def main() -> dict[str, Any]:
            client = Client()
            await client.connect(self.url)
            try:
                if raw is not None:
                    await client.publish(subject, raw)
                    await client.flush()
                    return {}
                payload = b"" if body is None else json.dumps(body).encode()
                return json.loads((await client.request(subject, payload, timeout=SECONDS)).data)
            finally:
                await client.close()

        return asyncio.run(main())

    def api(self, verb: str, body: object = None) -> dict[str, Any]:
        return self.ask(f"$JS.API.{verb}", body)

    def messages(self) -> int:
        return self.api(f"STREAM.INFO.{STREAM}").get("state", {}).get("messages", -1)

    def consumer(self, queue: str = "default") -> dict[str, Any]:
        return self.api(f"CONSUMER.INFO.{STREAM}.{queue}")


@pytest.fixture
def wire(server: Nats) -> Generator[Wire]:
    wire = Wire(server.url)
    yield wire
    wire.close()


def queued(*jobs: str, queue: str = "mail", reason: str = "") -> Ring:
    return Ring("queued", queue, jobs, reason)


def permits(listener: NatsListener, number: int) -> list[Permit]:
    """Wait until this many permits have come."""
    found: list[Permit] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < number:
        assert time.monotonic() < deadline, f"{len(found)} of {number} permits came"
        select.select([listener.fileno()], [], [], 0.5)
        listener.drain()
        found += listener.permits.take()
    return found


def heard(listener: NatsListener, wanted: Ring) -> None:
    def found() -> bool:
        select.select([listener.fileno()], [], [], 0.1)
        return wanted in listener.drain()

    until(found, f"the ring {wanted}")


def up(notifier: NatsNotifier) -> NatsNotifier:
    until(lambda: not notifier.problem(), "NATS to be there")
    return notifier


def ids(number: int) -> tuple[str, ...]:
    return tuple(new_id() for _ in range(number))


# ── Permits ──


def test_a_permit_names_its_job_and_is_gone_when_it_is_done_with(wire: Wire) -> None:
    jobs = ids(3)
    ear = wire.listener()
    ear.permits.want({"mail.out": 5})

    wire.notifier().announce([queued(*jobs, queue="mail.out")])

    came = permits(ear, 3)
    assert [(each.queue, each.job_id, each.again) for each in came] == [("mail.out", job, False) for job in jobs]
    ear.permits.settle(came)
    until(lambda: wire.messages() == 0, "the stream to be empty")


def test_no_more_come_than_are_wanted_and_none_of_a_queue_not_named(wire: Wire) -> None:
    ear = wire.listener()
    wire.notifier().announce([queued(*ids(5)), queued(*ids(5), queue="other")])
    ear.permits.want({"mail": 2})
    first = permits(ear, 2)
    assert wire.consumer("mail")["num_ack_pending"] == 2

    ear.permits.want({"mail": 1})
    permits(ear, 1)

    assert wire.consumer("mail")["delivered"]["consumer_seq"] == 3
    assert wire.consumer("other").get("error"), "nobody asked for it"
    ear.permits.settle(first)
    until(lambda: wire.consumer("mail")["num_ack_pending"] == 1, "two acknowledgements")


def test_slots_that_free_themselves_one_by_one_are_one_request_at_a_time(wire: Wire) -> None:
    """The server serves several requests in turn, and no one could tell which of them is used up."""
    listener = wire.listener()
    listener.permits.want({"mail": 1})
    until(lambda: wire.consumer("mail").get("num_waiting") == 1, "the first request")
    for slots in range(2, 6):
        listener.permits.want({"mail": slots})
    wire.notifier().announce([queued(*ids(1))])
    permits(listener, 1)
    until(lambda: wire.consumer("mail")["num_waiting"] == 1, "the next request")

    wire.notifier().announce([queued(*ids(4))])
    permits(listener, 4)

    until(lambda: wire.consumer("mail")["num_waiting"] == 0, "all to be served")


def test_what_comes_when_it_is_wanted_no_more_goes_back_to_another(wire: Wire) -> None:
    busy, idle = wire.listener(), wire.listener()
    busy.permits.want({"mail": 1})
    until(lambda: wire.consumer("mail").get("num_waiting"), "the request to wait at the server")
    busy.permits.want({})
    idle.permits.want({"mail": 1})

    wire.notifier().announce([queued(*(job := ids(1)))])

    assert permits(idle, 1)[0].job_id == job[0]
    assert busy.permits.take() == []


def test_one_given_back_comes_again_and_says_so(wire: Wire) -> None:
    ear = wire.listener()
    ear.permits.want({"mail": 1})
    wire.notifier().announce([queued(*ids(1))])
    (first,) = permits(ear, 1)

    ear.permits.settle([first], again_in=0.1)
    ear.permits.want({"mail": 1})

    (second,) = permits(ear, 1)
    assert (second.job_id, second.again) == (first.job_id, True)


@pytest.mark.thorough
def test_a_holder_that_dies_loses_it_after_ack_wait_and_one_that_lives_keeps_it(wire: Wire) -> None:
    wait = "?ack_wait=12s"  # a live holder says so every four seconds, unless this machine holds it up
    alive, dead = wire.listener(wait), wire.listener(wait)
    alive.permits.want({"mail": 1})
    wire.notifier(wait).announce([queued(*ids(1))])
    permits(alive, 1)
    dead.permits.want({"mail": 1})
    wire.notifier(wait).announce([queued(*(job := ids(1)))])
    permits(dead, 1)

    dead._thread._call(dead._thread._main.cancel)  # as a kill would: nothing is given back
    alive.permits.want({"mail": 9})

    (again,) = permits(alive, 1)
    assert (again.job_id, again.again) == (job[0], True)
    assert wire.consumer("mail")["delivered"]["consumer_seq"] == 3


def test_closing_gives_back_what_is_held(wire: Wire) -> None:
    leaver, stayer = wire.notifier().listen(), wire.listener()
    leaver.permits.want({"mail": 2})
    wire.notifier().announce([queued(*(jobs := ids(2)))])
    permits(leaver, 2)

    leaver.close()
    stayer.permits.want({"mail": 2})

    assert {each.job_id for each in permits(stayer, 2)} == set(jobs)


def test_a_rescue_says_so_in_its_message(wire: Wire) -> None:
    wire.notifier().announce([queued(job := new_id(), reason="Cleared: its worker died")])
    until(lambda: wire.messages() == 1, "the message")
    body = wire.api(f"STREAM.MSG.GET.{STREAM}", {"seq": 1})["message"]["data"]
    assert json.loads(base64.b64decode(body)) == {
        "job": job,
        "queue": "mail",
        "cleared": True,
        "reason": "Cleared: its worker died",
    }


# ── Rings ──


def test_everyone_hears_every_kind_of_ring(wire: Wire) -> None:
    ears = [wire.listener(), wire.listener()]
    for ear in ears:
        up_line(wire, ear)

    wire.notifier().announce([Ring("due", "mail"), Ring("cancel", "mail"), queued(*ids(1))])

    for ear in ears:
        for kind in ("due", "cancel", "queued"):
            wire.notifier().announce([Ring(kind, "mail")])  # type: ignore[arg-type]
            heard(ear, Ring(kind, "mail"))  # type: ignore[arg-type]


def up_line(wire: Wire, ear: NatsListener) -> None:
    bell, probe = wire.notifier(), Ring("due", "probe")

    def hears() -> bool:
        bell.announce([probe])
        return probe in ear.drain()

    until(hears, "the listener to listen")


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"{}", b'{"job": "x", "queue": "mail"}', b"[1]", b"null"])
def test_garbage_is_thrown_away_and_the_next_one_comes(
    wire: Wire, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    up(wire.notifier())
    wire.ask("tenure.tenure.queue.mail", raw=body)
    wire.ask("tenure.tenure.queue.mail", raw=json.dumps({"job": new_id(), "queue": "another"}).encode())
    wire.ask("tenure.tenure.ring", raw=body)
    ear = wire.listener()
    ear.permits.want({"mail": 5})

    wire.notifier().announce([queued(*(job := ids(1)))])

    (good,) = permits(ear, 1)
    assert good.job_id == job[0]
    ear.permits.settle([good])
    until(lambda: wire.messages() == 0, "the garbage to be gone")
    assert "can read is discarded" in caplog.text


# ── What may break ──


def test_a_deleted_stream_is_made_anew(wire: Wire) -> None:
    ear, bell = wire.listener(), wire.notifier()
    ear.permits.want({"mail": 5})
    until(lambda: wire.consumer("mail").get("num_waiting"), "the request to wait at the server")

    wire.api(f"STREAM.DELETE.{STREAM}")
    bell.announce([queued(*(job := ids(1)))])

    assert permits(ear, 1)[0].job_id == job[0]


def test_a_deleted_consumer_is_made_anew(wire: Wire) -> None:
    ear = wire.listener()
    ear.permits.want({"mail": 5})
    until(lambda: wire.consumer("mail").get("num_waiting"), "the request to wait at the server")

    wire.api(f"CONSUMER.DELETE.{STREAM}.mail")
    wire.notifier().announce([queued(*(job := ids(1)))])

    assert permits(ear, 1)[0].job_id == job[0]


def test_a_restart_amid_a_request_for_permits_loses_nothing(server: Nats, wire: Wire) -> None:
    ear, bell = wire.listener(), up(wire.notifier())
    ear.permits.want({"mail": 5})
    bell.announce([queued(*(before := ids(1)))])
    (held,) = permits(ear, 1)

    server.kill()
    for thread in (bell._opened(), ear._thread):  # an acknowledgement that goes into a dead connection would be lost
        until(lambda thread=thread: "can't be reached" in thread.problem(), "the loss to be seen")  # type: ignore[misc]
    bell.announce([queued(*(meanwhile := ids(1)))])
    ear.permits.settle([held])
    server.restart()

    up(bell)
    came = [held]
    while meanwhile[0] not in [each.job_id for each in came]:  # a server that was killed may deal one out twice
        came += permits(ear, 1)
    assert {each.job_id for each in came} == {*before, *meanwhile}
    ear.permits.settle(came)
    until(lambda: wire.messages() == 0, "the acknowledgement of both")


def test_a_server_that_lost_everything_is_set_up_anew(server: Nats, wire: Wire) -> None:
    ear, bell = wire.listener(), up(wire.notifier())
    ear.permits.want({"mail": 5})
    until(lambda: wire.consumer("mail").get("num_waiting"), "the request to wait at the server")

    server.wipe()
    bell.announce([queued(*(job := ids(1)))])

    assert permits(ear, 1)[0].job_id == job[0]


def test_a_server_that_comes_late_gets_what_was_announced(server: Nats, wire: Wire) -> None:
    server.kill()
    bell, ear = wire.notifier(), wire.listener()
    until(lambda: "can't be reached" in bell.problem(), "the first try to fail")
    ear.permits.want({"mail": 5})
    bell.announce([queued(*(job := ids(1)))])

    server.restart()

    assert permits(ear, 1)[0].job_id == job[0]


def test_while_it_is_down_no_more_is_kept_than_some_thousands(server: Nats, wire: Wire) -> None:
    server.kill()
    bell = wire.notifier()
    for _ in range(300):
        bell.announce([queued(*ids(100))])

    assert bell._opened()._publisher._waiting <= 5_000
    until(lambda: "can't be reached" in bell.problem(), "the first try to fail")


def test_a_stream_of_another_kind_is_told_and_left_alone(wire: Wire) -> None:
    config = {"name": STREAM, "subjects": ["tenure.tenure.queue.*"], "retention": "limits", "storage": "file"}
    wire.api(f"STREAM.CREATE.{STREAM}", config)

    bell = wire.notifier()

    until(lambda: f"JetStream refuses stream {STREAM}" in bell.problem(), "the refusal")
    assert wire.api(f"STREAM.INFO.{STREAM}")["config"]["retention"] == "limits"


def test_what_an_operator_set_beside_it_stays(wire: Wire) -> None:
    config = {"name": STREAM, "subjects": ["tenure.tenure.queue.*"], "retention": "workqueue", "max_bytes": 1_000_000}
    wire.api(f"STREAM.CREATE.{STREAM}", config)
    up(wire.notifier())
    assert wire.api(f"STREAM.INFO.{STREAM}")["config"]["max_bytes"] == 1_000_000


def test_a_consumer_with_other_timers_is_set_right(wire: Wire) -> None:
    for wait in ("5m", "7m"):
        ear = wire.listener(f"?ack_wait={wait}")
        ear.permits.want({"mail": 1})
        seconds = int(wait[0]) * 60
        until(
            lambda seconds=seconds: wire.consumer("mail").get("config", {}).get("ack_wait") == seconds * 10**9,  # type: ignore[misc]
            f"an ack_wait of {wait}",
        )
    config = wire.consumer("mail")["config"]
    assert (config["max_ack_pending"], config["max_deliver"]) == (-1, -1)


def test_a_wrong_password_is_told_without_it() -> None:
    with Nats(user="ada", password="s3cret") as server:
        good, bad = NatsNotifier(server.url), NatsNotifier(server.url.replace("s3cret", "guess"))
        up(good)
        until(lambda: "uthorization" in bad.problem(), "the refusal")
        for shown in (bad.problem(), repr(bad.address), str(bad.address), repr(good.address)):
            assert "guess" not in shown
            assert "s3cret" not in shown
        good.close()
        bad.close()


def test_a_forked_child_has_a_connection_of_its_own(wire: Wire) -> None:
    bell = up(wire.notifier())
    child = os.fork()
    if child == 0:
        try:
            bell.announce([queued(*ids(1))])
            until(lambda: wire.messages() == 1, "the child's message")
            bell.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    bell.announce([queued(*ids(1))])
    until(lambda: wire.messages() == 2, "the messages of both")


def test_what_is_announced_leaves_before_the_interpreter_ends(wire: Wire) -> None:
    script = (
        "import sys; from tenure.notifiers.nats import NatsNotifier, publisher, thread; "
        f"from tenure.ports import Ring; thread.CLOSE_SECONDS = publisher.CALL_SECONDS = {SECONDS}; "
        "NatsNotifier(sys.argv[1]).announce([Ring('queued', 'mail', (sys.argv[2],))])"
    )
    url = wire.url.replace("127.0.0.1", "localhost")
    subprocess.run([sys.executable, "-W", "error", "-c", script, url, new_id()], check=True, timeout=100)
    assert wire.messages() == 1


def test_a_thread_that_is_closed_just_when_an_answer_comes_ends(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Event()

    class Meanwhile(connection.TlsClient):
        async def _request_sub_callback(self, msg: Msg) -> None:
            await super()._request_sub_callback(msg)
            if closed.is_set():
                thread._main.cancel()  # as `close` does, in the very turn of the loop in which the answer comes

    monkeypatch.setattr(connection, "TlsClient", Meanwhile)
    thread = up(wire.notifier())._opened()
    closed.set()
    thread._call(thread._connection.check.set)

    thread._thread.join(SECONDS / 2)
    assert not thread._thread.is_alive()


# ── URLs ──


def test_a_url_says_where_who_and_how_long() -> None:
    address = parse_url("nats://ada:p%40ss@a.example,[::1]:4223?ack_wait=20m")
    assert address.servers == ("nats://a.example:4222", "nats://[::1]:4223")
    assert address.ack_wait == 1200
    assert address.options == {"user": "ada", "password": "p@ss"}
    assert parse_url("nats://host?token=abc").options == {"token": "abc"}
    assert parse_url("nats://ada@host", "secret").options == {"user": "ada", "password": "secret"}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nats://", "expected nats://"),
        ("http://host", "expected nats://"),
        ("nats://s3cret@host", "write nats://host\\?token="),
        ("nats://host:s3cret", "expected host or host:port"),
        ("nats://host?ack_wait=3", "ack_wait"),
        ("nats://host?ack_wait=10ms", "1s to 1d"),
        ("nats://host?wait=s3cret", "wait: unknown"),
        ("nats://host?creds=/no/such/file", "no file"),
    ],
)
def test_a_url_that_cannot_be_is_refused(url: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        parse_url(url)


def test_no_password_is_shown() -> None:
    url = "nats://ada:s3cret@a,b:4223?token=s3cret"
    assert "s3cret" not in redact(url)
    assert "s3cret" not in str(load(code={"notifier": url}, environ={}).shown())


# ── Workers ──


class Shop:
    """An app on SQLite whose bell is NATS. Polls are so rare that a job that runs soon was announced by a message."""

    def __init__(self, folder: Path, url: str) -> None:
        self.path = folder / "tenure.db"
        self.jobs = Tenure(f"sqlite:///{self.path}", notifier=url)
        self.ran: list[int] = []
        self.go = folder / "go"

        @self.jobs.task
        async def note(number: int) -> int:
            self.ran.append(number)
            return number

        @self.jobs.task
        async def wait(job: Job) -> int:
            while not self.go.exists():
                await asyncio.sleep(0.01)
            return job.attempt

        self.note, self.wait = note, wait

    def store(self) -> SqliteStore:
        client = self.jobs.client()
        assert isinstance(client.store, SqliteStore)
        return client.store

    def ended(self, handles: Iterable[JobHandle[Any]]) -> list[Any]:
        return [handle.result(f"{SECONDS:g}s") for handle in handles]


@pytest.fixture
def shop(wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Shop]:
    monkeypatch.setenv("TENURE_POLL_INTERVAL", "1h")
    shop = Shop(tmp_path, wire.url)
    with shop.jobs:
        yield shop


@pytest.fixture
def quiet_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the queue finds dead owners here."""
    monkeypatch.setattr(Maintenance, "scan", lambda self: None)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(Maintenance, "rescue", lambda self, limit: Turn())  # pyright: ignore[reportUnknownLambdaType]


def empty(wire: Wire) -> None:
    until(lambda: wire.messages() == 0, "every message to be acknowledged")


def test_jobs_run_by_their_messages_and_each_is_acknowledged(
    shop: Shop, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    for timer in ("claims.HOLD_SECONDS", "slots.MAX_UNFLUSHED_SECONDS"):  # a slow commit would send permits back
        monkeypatch.setattr(f"tenure.worker.{timer}", SECONDS)
    with shop.jobs.worker(concurrency=3):
        until(lambda: wire.consumer().get("num_waiting"), "the worker to ask for permits")
        handles = shop.jobs.enqueue_many(shop.note.bind(n) for n in range(50))
        assert shop.ended(handles) == list(range(50))
        empty(wire)
    assert wire.consumer()["delivered"]["consumer_seq"] == 50


def test_every_message_twice_is_one_outcome_each(shop: Shop, wire: Wire) -> None:
    handles = shop.jobs.enqueue_many(shop.note.bind(n) for n in range(20))
    shop.jobs.client().notifier.announce([queued(*(str(each.id) for each in handles), queue="default")])
    until(lambda: wire.messages() == 40, "all messages twice")

    with shop.jobs.worker(concurrency=3):
        shop.ended(handles)
        empty(wire)

    assert sorted(shop.ran) == list(range(20))
    assert {job.attempt for job in shop.store().search(Filter()).jobs} == {1}


def test_a_message_opens_the_door_to_the_most_urgent_job(shop: Shop, wire: Wire) -> None:
    shop.jobs.enqueue_many(shop.note.bind(n) for n in range(20))
    urgent = shop.note.using(priority=10).enqueue(99)
    until(lambda: wire.messages() == 21, "all messages")

    with shop.jobs.worker(concurrency=1):
        shop.ended([urgent])
        empty(wire)

    assert shop.ran[0] == 99


def test_a_paused_queue_makes_no_traffic_and_goes_on_when_resumed(shop: Shop, wire: Wire) -> None:
    store = shop.store()
    store.pause("default", paused=True)
    handle = shop.note.enqueue(1)
    until(lambda: wire.messages() == 1, "the message")

    with shop.jobs.worker():
        other = shop.note.using(queue="default").enqueue(2)
        until(lambda: wire.messages() == 2, "the second message")
        assert wire.consumer().get("delivered", {"consumer_seq": 0})["consumer_seq"] == 0
        store.pause("default", paused=False)
        shop.ended([handle, other])
        empty(wire)


@pytest.mark.thorough
def test_a_pause_amid_the_work_gives_permits_back_for_later(
    shop: Shop, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused, amid, looking, dealt = SqliteStore.paused, Event(), Event(), Event()

    def look(self: SqliteStore) -> frozenset[str]:
        if amid.is_set():
            looking.set()
            assert dealt.wait(SECONDS)
        return paused(self)

    monkeypatch.setattr(SqliteStore, "paused", look)
    with shop.jobs.worker():
        until(lambda: wire.consumer().get("num_waiting"), "the worker to ask for permits")
        amid.set()  # a worker that knows of no pause yet would acknowledge a permit that finds no job
        assert looking.wait(SECONDS)
        shop.store().pause("default", paused=True)
        handle = shop.note.enqueue(1)
        until(lambda: wire.messages() == 1, "the message")
        until(lambda: wire.consumer()["num_ack_pending"] == 1, "the worker to have it")
        dealt.set()
        until(lambda: not wire.consumer()["num_ack_pending"] or wire.consumer()["num_redelivered"], "it to come back")
        shop.store().pause("default", paused=False)
        shop.ended([handle])
        empty(wire)


@pytest.mark.thorough
def test_the_store_being_away_costs_no_message(
    shop: Shop, wire: Wire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    claim, refusals = SqliteStore.claim, [2]

    def away(self: SqliteStore, worker_id: str, wants: Any, limit: int, *, solo: bool = False) -> Any:
        if shop.go.exists() and refusals[0]:
            refusals[0] -= 1
            raise StoreAway("pulled the plug")
        return claim(self, worker_id, wants, limit, solo=solo)

    monkeypatch.setattr(SqliteStore, "claim", away)
    with shop.jobs.worker():
        until(lambda: wire.consumer().get("num_waiting"), "the worker to ask for permits")
        shop.go.touch()
        handle = shop.note.enqueue(1)
        shop.ended([handle])
        empty(wire)
    assert refusals == [0]


def test_a_drain_gives_back_what_it_will_not_run_and_tells_of_what_it_hands_back(shop: Shop, wire: Wire) -> None:
    shop.jobs.configure({"grace": "0s"})
    store = shop.store()
    with shop.jobs.worker(concurrency=2):
        until(lambda: wire.consumer().get("num_waiting"), "the worker to ask for permits")
        for _ in range(5):
            shop.wait.enqueue()
        until(lambda: store.counts()[State.PROCESSING] == 2, "two jobs to run")
        until(lambda: wire.messages() == 5, "all messages")

    assert store.counts()[State.QUEUED] == 5
    until(lambda: wire.consumer()["num_ack_pending"] == 0, "what was dealt out to be given back")
    until(lambda: wire.messages() == 5, "a message for each job that is queued")


def test_what_is_promoted_or_tried_again_is_told_too(shop: Shop, wire: Wire) -> None:
    tries: list[int] = []

    @shop.jobs.task(retry=3)
    async def stumble(job: Job) -> int:
        tries.append(job.attempt)
        if len(tries) == 1:
            raise ValueError("the first time")
        return job.attempt

    with shop.jobs.worker():
        later = shop.note.using(delay="200ms").enqueue(1)
        shop.ended([stumble.enqueue(), later])
        empty(wire)
    assert tries == [1, 2]


def test_the_queue_finds_a_dead_owner_by_itself(
    shop: Shop, wire: Wire, quiet_store: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.maintenance.holder.ASK_AFTER", 1e9)  # a worker held up for a second keeps its jobs
    shop.jobs.configure({"lease": "1s"})
    ear, handle = wire.listener(), shop.note.enqueue(1)
    ear.permits.want({"default": 1})
    (permit,) = permits(ear, 1)
    store = shop.store()
    store.register(dead_worker())
    assert len(store.claim(dead_worker().id, {"default": 1}, 1)) == 1
    ear.permits.settle([permit], again_in=0)
    ear.close()

    with shop.jobs.worker():
        shop.ended([handle])
        empty(wire)

    assert [vars(record)["cause"] for record in caplog.records if record.name == "tenure.rescue"] == ["queue"]
    assert shop.ran == [1]


def dead_worker() -> WorkerIdentity:
    return WorkerIdentity(
        id="elsewhere-1-dead",
        host="elsewhere",
        pid=1,
        started="1",
        boot_id=system_clock().boot_id,
        pid_namespace="another",
        runner="worker",
        queues=("default",),
        tasks=("note",),
        slots=1,
        lease=1.0,
    )


@pytest.mark.thorough
def test_without_nats_a_worker_polls_every_second_and_says_so(
    server: Nats, shop: Shop, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tenure.notifier")
    with shop.jobs.worker():
        until(lambda: wire.consumer().get("num_waiting"), "the worker to ask for permits")
        deaf, back = "polling instead of listening", "listening again"
        until(lambda: caplog.text.count(deaf) == caplog.text.count(back), "the worker to hear, if it did not at first")
        caplog.clear()
        server.kill()
        until(lambda: "polling instead of listening" in caplog.text, "the worker to notice")
        shop.ended([shop.note.enqueue(n) for n in range(20)])
        server.restart()
        until(lambda: "listening again" in caplog.text, "the worker to hear again")
        until(lambda: wire.consumer().get("num_waiting"), "it to ask again")
        shop.ended([shop.note.enqueue(20)])
        empty(wire)
    assert caplog.text.count("polling instead of listening") == 1


# ── Timers ──


def with_silent_task(url: str, stale_after: str) -> Tenure:
    jobs = Tenure("sqlite:///tenure.db", notifier=url)

    @jobs.task(queue="analysis", stale_after=stale_after)
    async def analyse(job: Job) -> None: ...

    return jobs


def test_an_ack_wait_shorter_than_a_hang_may_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = with_silent_task("nats://127.0.0.1:1?ack_wait=6m", "5m")
    with pytest.raises(InvalidOption, match=r"ack_wait is 6m, but task analyse of queue analysis .* more than 6m"):
        jobs.worker()
    check_timers(jobs.program, jobs.settings, ["default"])
    with_silent_task("nats://127.0.0.1:1?ack_wait=6m", "4m").worker()
    with_silent_task("poll", "5m").worker()


def test_tenure_worker_ends_with_2_for_such_timers(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from tenure import Job, Tenure\n"
        "jobs = Tenure('sqlite:///tenure.db', notifier='nats://ada:s3cret@127.0.0.1:1?ack_wait=10m')\n"
        "@jobs.task(stale_after='6h')\n"
        "async def slow(job: Job) -> None: ...\n"
    )
    run = subprocess.run(
        worker_command("shop"), cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 2
    assert "ack_wait is 10m, but task slow of queue default" in run.stderr
    assert "s3cret" not in run.stdout + run.stderr


def worker_command(app: str) -> Sequence[str]:
    return [sys.executable, "-m", "tenure.cli.supervise", json.dumps({"app": app})]


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    return {**kept, "PYTHONPATH": os.pathsep.join([*sys.path, str(folder)])}


def test_a_server_without_tls_hears_no_password_from_a_tls_url(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tenure.notifier")
    said: list[bytes] = []

    def serve(plain: socket.socket) -> None:
        with suppress(OSError):  # because of `shutdown`
            while True:
                connection, _ = plain.accept()
                with connection, suppress(OSError):  # a client that did not wait for the greeting tries again
                    connection.sendall(b'INFO {"server_id":"x","version":"2.12.0","max_payload":1048576}\r\n')
                    connection.settimeout(SECONDS)
                    said.append(connection.recv(4096))

    with socket.create_server(("127.0.0.1", 0)) as plain:
        thread = Thread(target=serve, args=(plain,))
        thread.start()
        notifier = NatsNotifier(f"tls://bob:sekret@127.0.0.1:{plain.getsockname()[1]}")
        try:
            until(lambda: notifier.problem() and "does not request TLS" in caplog.text, "the notifier's problem")
            until(lambda: said, "the end of its connection")
            assert "sekret" not in notifier.problem() + caplog.text
        finally:
            notifier.close()
            plain.shutdown(socket.SHUT_RDWR)
            thread.join(SECONDS)
    assert set(said) == {b""}


def test_many_queues_share_few_slots_without_giving_back_what_they_soon_use(
    wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.worker.claims.HOLD_SECONDS", 10.0)  # a slow commit would send permits back
    queues = [f"q{number}" for number in range(30)]
    jobs = Tenure(f"sqlite:///{tmp_path / 'tenure.db'}", notifier=wire.url)

    @jobs.task
    def work() -> None:
        time.sleep(0.01)

    with jobs:
        handles = [work.using(queue=queue).enqueue() for queue in queues for _ in range(5)]
        with jobs.worker(queues=queues, concurrency=2):
            for handle in handles:
                handle.result("60s")

    consumers = [wire.consumer(queue) for queue in queues]  # none where a poll was faster than the first request
    delivered = sum(each.get("delivered", {"consumer_seq": 0})["consumer_seq"] for each in consumers)
    assert delivered < 3 * len(handles)
