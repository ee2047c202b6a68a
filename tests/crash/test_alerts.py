"""Alerts of real processes: every kind is sent once when it opens and once when it closes, by webhook and by mail."""

from __future__ import annotations

import base64
import hmac
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer, StreamRequestHandler, ThreadingTCPServer
from typing import Any

import pytest

from conformance.factories import identity
from tenure.config import load
from tenure.core.clock import system_clock
from tenure.core.host import pid_namespace, started
from tenure.core.ids import new_id
from tenure.core.lifecycle import Completed, Lease, State
from tenure.notifiers.poll import PollNotifier
from tenure.operations.problems import problems
from tenure.ports import Draft, Filter
from tenure.ports.schedules import Schedule
from tenure.schedules.guard_plan import Began, begin_guard
from tenure.schedules.plan import Plan
from tenure.schedules.timetable import Timetable

from .altered import altered
from .harness import Site, Supervised, until

APP = """
import pathlib, time
from tenure import Tenure

jobs = Tenure()

@jobs.task
def steady() -> None: ...

@jobs.task(retry=1)
def flaky() -> None:
    if pathlib.Path("broken").exists():
        raise ValueError("the disk is full")

@jobs.task
def slow() -> None:
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
"""
MORE = """
from tenure import Tenure

jobs = Tenure()

@jobs.task(queue="elsewhere")
def newcomer() -> None: ...
"""
KEY = secrets.token_bytes(32)
LEASE = "9s"  #: a worker that is held up keeps it; and where no worker is, that is a problem after two of them


# ── Receivers ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Inbox:
    """What came, by webhook and by mail. `refuse`: how many requests are answered 500 first."""

    refuse: int = 0
    requests: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])
    posts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    mails: list[str] = field(default_factory=list[str])  #: their subjects
    alerts: str = ""
    port: int = 0

    def told(self) -> Counter[tuple[str, str]]:
        return Counter((post["type"].partition(".")[2], post["data"]["key"]) for post in list(self.posts))

    def mailed(self) -> Counter[str]:
        return Counter(list(self.mails))

    def all_read(self) -> None:
        """Wait until every request that was sent before is answered: connections are accepted one after the other."""
        with socket.create_connection(("127.0.0.1", self.port)) as last:
            last.sendall(b"GET / HTTP/1.0\r\n\r\n")
            while last.recv(4096):
                pass
        until(lambda: "process_request_thread" not in str(threading.enumerate()), "the receivers to be done")


@contextmanager
def serving(server: BaseServer) -> Generator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    inbox = Inbox()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            name, at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
            digest = hmac.digest(KEY, f"{name}.{at}.".encode() + body, "sha256")
            signed = self.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
            inbox.requests.append((name, signed))
            refused = len(inbox.requests) <= inbox.refuse
            if not refused:
                inbox.posts.append(json.loads(body))
            self.send_response(500 if refused else 204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """To no log."""

    class Mail(StreamRequestHandler):
        """As much SMTP as a message needs."""

        def handle(self) -> None:
            self.say("220 here")
            while line := self.rfile.readline():
                match line[:4].upper().strip():
                    case b"DATA":
                        self.say("354 go on")
                        text = b"".join(iter(self.rfile.readline, b".\r\n")).decode()
                        subject = re.search(r"^Subject: (.*(?:\r\n .*)*)\r$", text, re.MULTILINE)
                        inbox.mails.append(re.sub(r"\r\n ", " ", subject[1]) if subject else "")
                    case b"QUIT":
                        self.say("221 bye")
                        return
                    case _:
                        pass
                self.say("250 well")

        def say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

    hook, mail = ThreadingHTTPServer(("127.0.0.1", 0), Hook), ThreadingTCPServer(("127.0.0.1", 0), Mail)
    inbox.port = hook.server_address[1]
    inbox.alerts = (
        f"log,http://127.0.0.1:{hook.server_address[1]}/hook?token=s3cret,"
        f"mailto://127.0.0.1:{mail.server_address[1]}/?from=tenure@example.com&to=ops@example.com&mode=insecure"
    )
    with serving(hook), serving(mail):
        yield inbox


# ── The site ────────────────────────────────────────────────────────────────────────────────────────────────────


def watched(site: Site, inbox: Inbox) -> dict[str, str]:
    """The environment of processes that check, and often."""
    (site.folder / "watched.py").write_text(APP)
    (site.folder / "more.py").write_text(MORE)
    return {
        "TENURE_ALERTS": inbox.alerts,
        "TENURE_ALERT_SECRET": f"whsec_{base64.b64encode(KEY).decode()}",
        "TENURE_ALERT_EVERY": "200ms",
        "TENURE_ALERT_QUEUE_AGE": "1s",
        "NO_PROXY": "127.0.0.1",
    }


def every_second(timetable: Timetable, name: str, **options: Any) -> None:
    """A task of its own name, each second. Late only when it says so: a slow machine alone makes none late."""
    queue = options.pop("queue", "default")
    job = Draft(id="", task=options.pop("task", name), payload="{}", queue=queue, max_failures=1)
    timetable.put(Schedule(name=name, **{"rule": "every 1s", "job": job, "grace": 60.0, **options}))


def call_guard(site: Site, name: str) -> None:
    """Somebody's crontab line runs it."""
    pid = os.getpid()
    row = identity(
        id=f"here-{pid}-{new_id()}",
        pid=pid,
        started=started(pid),
        boot_id=system_clock().boot_id,
        pid_namespace=pid_namespace(),
        runner="guard",
        queues=(),
        tasks=(),
    )
    site.store.register(row)
    (standing,) = site.store.schedules([name])
    now = site.store.now()
    plan = Plan(standing, now).close(site.store.attempts)
    began = begin_guard(plan, new_id(), row.id, "host", now=now, force=True)
    assert isinstance(began, Began)
    assert site.store.change([began.change]) == [True]
    site.store.finish([(Lease(began.job_id, 1, row.id), Completed())])
    site.store.declare_dead([row.id])


def enqueue(site: Site, task: str, queue: str) -> None:
    site.store.enqueue([Draft(id=new_id(), task=task, payload="{}", queue=queue)])


def running(site: Site, task: str) -> bool:
    return bool(site.store.search(Filter(states=frozenset({State.PROCESSING}), task=task)).jobs)


# ── Promises ────────────────────────────────────────────────────────────────────────────────────────────────────

KINDS = {
    "overdue:backup",
    "late:waiting",
    "too-long:slow",
    "failures:flaky",
    "dead-letters:flaky",
    "queue-paused:held",
    "no-worker:queue elsewhere",
    "no-worker:task newcomer",
}


@pytest.mark.timeout(300)
@pytest.mark.needs("file")
def test_every_kind_is_told_once_and_its_end_once_by_webhook_and_by_mail(site: Site, inbox: Inbox) -> None:
    env, timetable = watched(site, inbox), Timetable(site.store, PollNotifier())
    inbox.refuse = 2
    (site.folder / "broken").touch()
    site.store.migrate()
    supervisor = site.supervisor(
        app="watched", queues=["default", "busy=1", "held"], concurrency=4, lease=LEASE, env=env
    )
    every_second(timetable, "slow", queue="busy", too_long=0.5)
    site.until(lambda: running(site, "slow"), "the run that goes on too long, in the only slot of its queue")
    every_second(timetable, "waiting", task="steady", queue="busy", grace=0.7)
    every_second(timetable, "flaky")
    timetable.put(Schedule(name="backup", rule="every 1s", kind="guard", grace=0.5))
    call_guard(site, "backup")
    site.store.pause("held", paused=True)
    enqueue(site, "steady", "held")
    enqueue(site, "steady", "elsewhere")
    enqueue(site, "newcomer", "default")

    told(site, inbox, lambda: {key for what, key in inbox.told() if what == "opened"} >= KINDS, "all to be opened")
    assert len(inbox.requests) >= inbox.refuse + len(KINDS)

    (site.folder / "broken").unlink()
    # What runs or waits is still to end, but not to come again: on a slow machine it would be reported once more.
    every_second(timetable, "slow", queue="busy", rule="every 1h", too_long=0.5)
    every_second(timetable, "waiting", task="steady", queue="busy", rule="every 1h", grace=0.7)
    timetable.put(Schedule(name="backup", rule="every 1h", kind="guard"))
    site.go()
    call_guard(site, "backup")
    site.store.pause("held", paused=False)
    site.supervisor(app="more", queues=["elsewhere", "default"], lease=LEASE, env=env)
    for name in ("flaky", "waiting", "slow"):
        site.until(lambda name=name: succeeded(timetable, name), f"{name} to succeed")  # type: ignore[misc]
        timetable.pause(name)
    site.until(lambda: forgotten(site), "the dead letters to be deleted")

    told(site, inbox, lambda: not site.store.notes("incident") and delivered(site), "all to be closed and told")
    # A slow machine may cause several incidents of other kinds, such as a queue that was old for a moment.
    both = {(what, key): 1 for key in KINDS for what in ("opened", "closed")}
    assert {each: times for each, times in inbox.told().items() if each[1] in KINDS} == both
    assert all(inbox.told()["opened", key] == inbox.told()["closed", key] for _, key in inbox.told())
    mailed = [subject for subject in inbox.mails if subject.endswith(tuple(key.replace(":", ": ") for key in KINDS))]
    assert len(mailed) == len(set(mailed)) == len(both), inbox.mailed()
    assert len(inbox.mails) == len(inbox.posts)
    assert inbox.requests and all(signed for _, signed in inbox.requests)
    refused = {name for name, _ in inbox.requests[: inbox.refuse]}
    assert all(sum(name == each for each, _ in inbox.requests) > 1 for name in refused)
    assert all(row.queue == "tenure.alerts" for row in site.store.search(Filter(task="tenure.alert")).jobs)
    assert "s3cret" not in site.logs()
    assert supervisor.stop() == 0


def told(site: Site, inbox: Inbox, condition: Callable[[], bool], what: str) -> None:
    until(condition, what, 90.0, lambda: f"{sorted(inbox.told().items())}\n{site.store.notes('')}\n{site.logs()}")


def succeeded(timetable: Timetable, name: str) -> bool:
    s = timetable.get(name).schedule
    return s.last_status == "success" and not s.failure_count


def forgotten(site: Site) -> bool:
    dead = site.store.search(Filter(states=frozenset({State.DEAD}))).jobs
    site.store.delete([job.id for job in dead])
    return not dead


def delivered(site: Site) -> bool:
    return not [job for job in site.store.search(Filter(task="tenure.alert"), limit=1000).jobs if job.ended_at is None]


def check(site: Site, env: dict[str, str]) -> tuple[int, str]:
    """`tenure check --alert`, as a crontab of another machine runs it."""
    command = [sys.executable, "-c", "from tenure.cli.main import run; run()", "check", "--alert"]
    done = subprocess.run(
        command, env=site.env(LEASE, {}, env), cwd=site.folder, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(300)
@pytest.mark.needs("file")  # it is the same everywhere, and takes its time
def test_a_check_from_elsewhere_tells_that_nobody_fires_any_more(site: Site, inbox: Inbox) -> None:
    env, timetable = watched(site, inbox) | {"TENURE_ALERT_QUEUE_AGE": "1m"}, Timetable(site.store, PollNotifier())
    supervisor = site.supervisor(app="watched", lease=LEASE, env=env)
    site.until(site.store.workers, "a process that fires ticks, before any can be missed")
    every_second(timetable, "steady")
    site.until(lambda: succeeded(timetable, "steady"), "a first run")
    assert check(site, env)[0] == 0
    supervisor.kill()
    key = "scheduler-silent:all"

    settings = load({"lease": LEASE}, environ={})
    site.until(lambda: key in {each.key for each in problems(site.store, settings)}, "two leases of silence", 90)
    for _ in range(2):
        code, said = check(site, env)
        assert (code, "no supervisor fires the schedules: 1 due for up to" in said) == (1, True), said
    assert [inbox.told()[what, key] for what in ("opened", "closed")] == [1, 0]  # what was queued may be reported too

    again: Supervised = site.supervisor(app="watched", lease=LEASE, env=env)
    told(site, inbox, lambda: ("closed", key) in inbox.told() and delivered(site), "its end to be told")
    assert again.stop() == 0
    assert inbox.told()["opened", key] == inbox.told()["closed", key] == 1
    assert inbox.mailed()["tenure: scheduler-silent: all"] == 1


@pytest.mark.needs("file")
def test_what_was_noticed_is_told_though_its_supervisor_is_killed_before_it_could(site: Site, inbox: Inbox) -> None:
    # Nothing else is to be reported, however long a start takes.
    env, opened = watched(site, inbox) | {"TENURE_ALERT_QUEUE_AGE": "1m"}, ("opened", "dead-letters:flaky")
    (site.folder / "broken").touch()
    inbox.refuse = 1_000_000
    first = site.supervisor(app="watched", lease="2s", env=env)
    site.until(site.store.workers, "a worker")
    site.store.enqueue([Draft(id=new_id(), task="flaky", payload="{}", max_failures=1)])
    told(site, inbox, lambda: bool(inbox.requests), "the first try")
    first.kill()
    inbox.all_read()  # so that none of its requests is taken for one of the next supervisor
    inbox.refuse = 0
    assert not inbox.posts

    site.supervisor(app="watched", lease="2s", env=env)
    told(site, inbox, lambda: opened in inbox.told() and delivered(site), "the message")
    assert inbox.told() == {opened: 1}
    assert len({name for name, _ in inbox.requests}) == 1


@contextmanager
def dripping() -> Generator[tuple[str, threading.Event]]:
    """A receiver that answers a byte now and then, and never finishes. The event is set when a request has come."""
    came, closing = threading.Event(), threading.Event()

    class Drip(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.set()
            self.wfile.write(b"HTTP/1.0 204 No Content\r\nX-Drip: ")
            while not closing.wait(0.5):
                self.wfile.write(b".")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Drip)
    with serving(server):
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/hook", came
        finally:
            closing.set()


@pytest.mark.needs("file")
def test_a_receiver_that_never_has_said_it_all_does_not_hold_up_a_supervisor(site: Site, inbox: Inbox) -> None:
    impatient = altered("from tenure.operations import alerts; alerts.LAST_SECONDS = 0.5")
    (site.folder / "broken").touch()
    with dripping() as (url, came):
        env = watched(site, inbox) | {"TENURE_ALERTS": url}
        supervisor = site.supervisor(app="watched", grace="100ms", env=env, before=impatient)
        site.until(site.store.workers, "a worker")
        site.store.enqueue([Draft(id=new_id(), task="flaky", payload="{}", max_failures=1)])
        told(site, inbox, came.is_set, "the message to be on its way")

        supervisor.signal(signal.SIGTERM)

        assert supervisor.exit_code(60) == 0
        after = supervisor.log().rpartition("the disk is full")[2]  # the last line of the failed handler's traceback
        assert "Traceback" not in after
