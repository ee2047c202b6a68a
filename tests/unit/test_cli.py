"""The command line, run as its users run it: what it prints, what it changes, and how it ends."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Timer
from typing import Any
from unittest.mock import ANY
from uuid import UUID

import psutil  # type: ignore[import-untyped]
import pytest
from rich.console import Console

from conformance.factories import World, bring, claim, claim_one, draft, finish, look, put, running, start
from tenure.cli import bench, demo, top
from tenure.cli.check import _rows
from tenure.cli.logs import JsonFormatter, TextFormatter, add_job
from tenure.core.clock import system_clock
from tenure.core.lifecycle import Completed, Failed, Lease, Outcome, State
from tenure.errors import StoreAway
from tenure.events import Running, current
from tenure.maintenance import orders
from tenure.maintenance.orders import Frame, Stack, Trace
from tenure.operations.backlogs import Backlogs
from tenure.operations.checkup import Finding
from tenure.ports import Filter, Progress, Store
from tenure.stores.sqlite import SqliteStore
from waiting import until

APP = """
from datetime import datetime
from tenure import Tenure

jobs = Tenure()

@jobs.task(queue="sums", retry=3, timeout="5m")
def add(a: int, b: int = 1, note: str = "", exact: bool = False, at: datetime | None = None) -> int:
    return a + b

@jobs.task
def tag(names: list[str]) -> None: ...
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(folder: Path) -> Iterable[Store]:
    store = SqliteStore(str(folder / "tenure.db"))
    store.open()
    yield store
    store.close()


def alive(store: Store, **options: Any) -> str:
    """A worker of this very machine, alive for an hour."""
    return start(store, boot_id=system_clock().boot_id, lease=3600.0, **options)


def ended(store: Store, state: State, **options: Any) -> str:
    """A job that a living worker brought to this end; its id."""
    return bring(store, state, worker_id=alive(store), **options).job_id


def process(*argv: str, **options: Any) -> subprocess.Popen[str]:
    """One command as a process of its own."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    code = "from tenure.cli.main import run; run()"
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code, *argv], text=True, env=environ, **{**pipes, **options})


def rows(out: str) -> list[list[str]]:
    return [line.split("\t") for line in out.splitlines()]


# ── How a command ends ──


@pytest.mark.thorough
def test_a_whole_round_as_real_processes(folder: Path) -> None:
    with process("enqueue", "add", "a=2") as stored:
        job_id = stored.communicate()[0].strip()
    with process("jobs", "list") as listed:
        lines = rows(listed.communicate()[0])
    with process("jobs", "explain", job_id) as explained:
        told = explained.communicate()[0]

    assert str(UUID(job_id)) == job_id
    assert [line[:4] for line in lines] == [["id", "state", "task", "queue"], [job_id, "queued", "add", "sums"]]
    assert f"no worker has opened sqlite:///{folder / 'tenure.db'}" in told
    assert (stored.returncode, listed.returncode, explained.returncode) == (0, 0, 0)


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["jobs", "lst"], 2, 'Did you mean "list"?'),
        (["jobs", "list", "--stat", "dead"], 2, "Did you mean --state?"),
        (["jobs", "list", "--state", "dad"], 2, "expected some of waiting, scheduled, queued"),
        (["jobs", "list", "--limit", "0"], 2, "expected 1 to 10000"),
        (["jobs", "list", "--cursor", "x"], 2, "cursor: expected"),
        (["jobs", "show", "nowhere"], 1, "no job nowhere in sqlite:///"),
        (["jobs", "cancel"], 2, "got neither"),
        (["jobs", "cancel", "x", "--task", "add"], 2, "got both"),
        (["dead", "replay"], 2, "or --every"),
        (["queues", "pause", "no good"], 2, "queue: expected letters"),
        (["enqueue", "ad", "a=1"], 2, "no task is named 'ad'; known: add, tag"),
        (["enqueue", "add", "a"], 2, "expected name=text or name:=JSON, got 'a'"),
        (["enqueue", "add", "a=1", "a=2"], 2, "'a' is given twice"),
        (["enqueue", "add", "a=one"], 2, "add.a: expected int, got str"),
        (["enqueue", "add", "a:=[1"], 2, "expected JSON after :="),
        (["enqueue", "add", "a=1", "c=1"], 2, "unexpected argument 'c'; it takes (a: int"),
        (["enqueue", "add", "a=1", "--at", "2030-01-01T00:00:00"], 2, "a time with its zone"),
        (["enqueue", "add", "a=1", "--delay", "5"], 2, 'write "5s"'),
        (["enqueue", "add", "a=1", "--timeout", "5s"], 2, "--wait"),
        (["enqueue", "add", "a=1", "--app", "nowhere"], 2, "there is no module 'nowhere'"),
        (["worker", "-c", "0"], 2, "--concurrency: expected a whole number from 1"),
        (["worker", "-q", "a=0"], 2, "--queue: a: expected a whole number from 1"),
        (["worker", "--grace", "soon"], 2, "--grace: expected a duration"),
        (["worker", "empty"], 2, "empty has no tasks"),
        (["worker", "broken"], 2, "ZeroDivisionError: division by zero (at "),
        (["worker", "wrong"], 2, "SyntaxError"),
        (["check", "--url", "mysql://u:hunter2@h/d"], 2, "unknown store 'mysql'"),
        (["top"], 2, "--once"),
        (["jobs", "list", "-n", "1.5"], 2, "expected a whole number, got '1.5'"),
        (["limits", "set", "shop", "--concurrency", "1.5"], 2, "expected a whole number, got '1.5'"),
        *(
            ([*command.split(), "\udcff"], 2, "expected text in UTF-8, got b'\\xff'")
            for command in ("limits show", "limits pause", "schedules trigger", "flows show")
        ),
        (["backup", "nowhere/copy.db"], 2, "is not a folder"),
        (["backup", "."], 2, "is a folder: name a file in it"),
        (["jobs", "list", "--since", '2h" state="dead'], 2, "--since: expected 2h, or a time like"),
        (["jobs", "list", "--since", "tomorrow"], 2, "--since: expected 2h, or a time like"),
        (["jobs", "cancel", "--until", "2030-01-32", "--yes"], 2, "in UTC; got '2030-01-32'"),
        (["jobs", "list", "--since", ""], 2, "--since: expected 2h, or a time like"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_an_exit_code(
    run: Run, store: Store, folder: Path, argv: list[str], code: int, words: str
) -> None:
    (folder / "empty.py").write_text("from tenure import Tenure\njobs = Tenure()\n")
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "wrong.py").write_text("def :\n")

    ended, out, err = run(*argv)

    assert words in err
    assert ended == code
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "hunter2" not in err


class TestWithoutTheApp:
    """`tenure enqueue` where no app is named: the store knows what workers have registered."""

    @pytest.fixture(autouse=True)
    def nowhere(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TENURE_APP", raising=False)
        (folder / "pyproject.toml").write_text("")

    def test_a_task_that_a_worker_has_registered_is_enqueued(self, run: Run, store: Store) -> None:
        alive(store, tasks=("charge",), queues=("billing",))

        code, out, _ = run("enqueue", "charge", "order:=7", "note=x", "-q", "billing", "--unique", "order:7")

        job = store.get(out.strip())
        assert code == 0
        assert job is not None
        assert (job.task, job.queue, job.unique, json.loads(job.payload)) == (
            "charge",
            "billing",
            "order:7",
            {"order": 7, "note": "x"},
        )

    @pytest.mark.parametrize(
        ("argv", "words"),
        [(["chrage"], "did you mean 'charge'"), (["charge"], "serve billing, not the queue 'default'")],
    )
    def test_what_no_worker_would_run_is_stored_only_unchecked(
        self, run: Run, store: Store, argv: list[str], words: str
    ) -> None:
        alive(store, tasks=("charge",), queues=("billing",))

        code, out, err = run("enqueue", *argv)
        assert (code, out) == (2, "")
        assert words in err
        assert store.search(Filter()).jobs == ()

        code, out, _ = run("enqueue", *argv, "--unchecked")
        assert code == 0
        assert store.get(out.strip()) is not None

    def test_no_store_is_made_for_a_check(self, run: Run, folder: Path) -> None:
        code, _, err = run("enqueue", "charge")

        assert code == 1
        assert f"there is no {folder / 'tenure.db'} yet" in err
        assert not (folder / "tenure.db").exists()


def test_a_task_that_the_app_does_not_have_can_be_enqueued_unchecked(run: Run, store: Store) -> None:
    code, out, _ = run("enqueue", "ad", "a:=1", "--unchecked")

    job = store.get(out.strip())
    assert code == 0
    assert job is not None
    assert (job.task, job.payload) == ("ad", '{"a":1}')


def test_looking_into_a_folder_without_a_store_makes_none(run: Run, folder: Path) -> None:
    code, _, err = run("jobs", "list")

    assert code == 1
    assert f"there is no {folder / 'tenure.db'} yet" in err
    assert not (folder / "tenure.db").exists()


def test_a_store_out_of_reach_is_said_with_75(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(self: SqliteStore) -> None:
        raise StoreAway("it is locked")

    monkeypatch.setattr(SqliteStore, "open", away)

    assert run("jobs", "list") == (75, "", "it is locked\n")
    assert run("check") == (75, "", "it is locked\n")


def test_a_reader_that_has_left_hears_no_complaint(store: Store) -> None:
    ours, theirs = os.pipe()
    os.close(ours)

    with process("queues", "list", stdout=theirs) as listing:
        os.close(theirs)
        _, err = listing.communicate()

    assert (listing.returncode, err) == (141, "")


@pytest.mark.parametrize("command", [("--help",), ("--version",), ("jobs",), ("top", "--once")], ids=" ".join)
def test_so_it_is_where_a_library_prints(store: Store, command: tuple[str, ...]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)

    with process(*command, stdout=theirs) as printing:
        os.close(theirs)
        _, err = printing.communicate()

    assert (printing.returncode, err) == (141, "")


def test_ctrl_c_ends_without_a_traceback(folder: Path) -> None:
    terminal = Terminal()
    with process("enqueue", "add", "a=1", "--wait", stderr=terminal.theirs) as waiting:
        terminal.read_until("waiting for it")
        waiting.send_signal(signal.SIGINT)
        rest = terminal.read_to_end()

    assert waiting.returncode == 130
    assert "Traceback" not in rest


class Terminal:
    """A terminal for a process, and what is seen on it."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()

    def read_until(self, words: str) -> None:
        seen = b""
        while words.encode() not in seen:
            seen += os.read(self._ours, 65536)

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def read_to_end(self) -> str:
        os.close(self.theirs)
        seen = b""
        try:
            while read := os.read(self._ours, 65536):
                seen += read
        except OSError:
            pass  # how Linux reports that the other end was closed
        os.close(self._ours)
        return seen.decode()


def test_options_for_every_command_may_stand_before_it(run: Run, store: Store, folder: Path) -> None:
    put(store)

    before = run("--json", "--url", f"sqlite:///{folder / 'tenure.db'}", "jobs", "list")

    assert before == run("jobs", "list", "--json", f"--url=sqlite:///{folder / 'tenure.db'}")
    assert len(json.loads(before[1])["jobs"]) == 1


# ── enqueue, tasks, worker ──


def test_arguments_are_read_as_the_task_asks_for_them(run: Run, folder: Path) -> None:
    code, out, _ = run(
        "enqueue", "add", "a=2", "b:=3", "note=5", "exact=true", "at=2030-01-01T00:00:00Z", "--priority", "7", "--json"
    )

    assert code == 0
    stored = json.loads(out)
    _, shown, _ = run("jobs", "show", stored["id"], "--json")
    job = json.loads(shown)["job"]
    assert stored["created"]
    assert job["payload"] == {"a": 2, "b": 3, "note": "5", "exact": True, "at": "2030-01-01T00:00:00Z"}
    assert job["priority"] == 7


def test_a_second_job_under_a_key_is_the_first_one(run: Run) -> None:
    first = run("enqueue", "add", "a=1", "--unique", "k", "--json")[1]
    second = run("enqueue", "add", "a=1", "--unique", "k", "--json")[1]

    assert json.loads(second) == {**json.loads(first), "created": False}


@pytest.mark.parametrize(
    ("outcome", "code", "out", "err"),
    [(Completed("2"), 0, "2\n", ""), (Failed("ValueError: no", final=True), 1, "", "ValueError: no")],
)
def test_waiting_prints_the_result_or_why_there_is_none(
    store: Store, outcome: Outcome, code: int, out: str, err: str
) -> None:
    terminal = Terminal()
    with process("enqueue", "add", "a=1", "--wait", stderr=terminal.theirs) as waiting:
        terminal.read_until("waiting for it")
        worker = alive(store, queues=("sums",), tasks=("add",))
        (claimed,) = claim(store, worker, queue="sums")
        finish(store, Lease(claimed.id, claimed.attempt, worker), outcome)
        complained = terminal.read_to_end()
        told = waiting.communicate()[0]

    assert (waiting.returncode, told) == (code, out)
    assert err in complained


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_waiting_prints_no_secret_of_the_result(store: Store, options: list[str]) -> None:
    with process("enqueue", "add", "a=1", "--wait", *options) as waiting:
        assert waiting.stderr is not None
        waiting.stderr.readline()
        worker = alive(store, queues=("sums",), tasks=("add",))
        (claimed,) = claim(store, worker, queue="sums")
        result = '{"password":"hunter2","t":{"$secret":"hunter2"},"n":2}'
        finish(store, Lease(claimed.id, claimed.attempt, worker), Completed(result))
        told = json.loads(waiting.communicate()[0])

    assert (told["result"] if options else told) == {"password": "***", "t": "***", "n": 2}


def test_waiting_says_the_id_at_once_and_soon_that_no_worker_serves_the_queue(run: Run, store: Store) -> None:
    with process("enqueue", "add", "a=1", "--wait") as waiting:
        assert waiting.stderr is not None
        first, second = waiting.stderr.readline(), waiting.stderr.readline()
        worker = alive(store, queues=("sums",), tasks=("add",))
        (claimed,) = claim(store, worker, queue="sums")
        finish(store, Lease(claimed.id, claimed.attempt, worker), Completed("2"))
        told, rest = waiting.communicate()

    assert first == f"job {claimed.id} is stored; waiting for it\n"
    assert f"add {claimed.id} is still queued after 3s; no live worker of this store (sqlite:///" in second
    assert second.endswith(" serves the queue 'sums'; still waiting\n")
    assert (told, rest) == ("2\n", "")


def test_waiting_too_long_says_so(run: Run) -> None:
    code, out, err = run("enqueue", "add", "a=1", "--wait", "--timeout", "10ms")

    assert (code, out) == (1, "")
    assert "10ms" in err


def test_waiting_prints_as_json_how_it_failed(run: Run, store: Store) -> None:
    with process("enqueue", "add", "a=1", "--wait", "--json") as waiting:
        assert waiting.stderr is not None
        waiting.stderr.readline()
        worker = alive(store, queues=("sums",), tasks=("add",))
        (claimed,) = claim(store, worker, queue="sums")
        finish(store, Lease(claimed.id, claimed.attempt, worker), Failed("no disk", final=True))
        told, complained = waiting.communicate()

    assert waiting.returncode == 1
    assert json.loads(told) == {"id": claimed.id, "created": True, "state": "dead", "error": "no disk"}
    assert f"job {claimed.id} is dead: no disk" in complained

    _, out, _ = run("enqueue", "add", "a=1", "--wait", "--timeout", "10ms", "--json")
    assert json.loads(out)["created"] is True


def test_tasks_are_listed_with_what_they_take(run: Run) -> None:
    code, out, _ = run("tasks")

    assert code == 0
    heads, add, tag = rows(out)
    assert heads == ["task", "queue", "takes", "retry", "timeout", "where"]
    assert add[:2] == ["add", "sums"]
    assert "a: int" in add[2]
    assert (add[4], add[5]) == ("5m", "shop.py:7")
    assert tag[0] == "tag"
    assert [task["name"] for task in json.loads(run("tasks", "shop", "--json")[1])] == ["add", "tag"]
    assert run("tasks", "--app", "shop") == run("tasks", "shop")


@pytest.mark.parametrize(
    "argv",
    [
        ["jobs", "list"],
        ["dead", "list"],
        ["queues"],
        ["queues", "list"],
        ["workers"],
        ["schedules", "list"],
        ["schedules", "declare"],
        ["check"],
        ["top", "--once"],
        ["migrate"],
        ["backup", "copy.db"],
        ["tasks"],
    ],
    ids=" ".join,
)
def test_every_command_takes_the_store_of_an_app(argv: list[str], folder: Path, run: Run) -> None:
    (folder / "far.py").write_text(
        "from tenure import Tenure\njobs = Tenure('sqlite:///far.db')\n@jobs.task\ndef distant() -> None: ...\n"
    )
    assert run("enqueue", "distant", "--app", "far")[0] == 0

    code, out, said = run(*argv, "--app", "far", "--json")

    assert (code, said) == (1 if argv == ["check"] else 0, "")  # it says that no worker is alive
    json.loads(out)
    assert run("--app", "far", *argv, "--json")[0] == code if argv[0] != "backup" else True
    assert not (folder / "tenure.db").exists()


def test_an_app_without_tasks_has_a_store_too(folder: Path, run: Run) -> None:
    (folder / "bare.py").write_text("from tenure import Tenure\njobs = Tenure('sqlite:///bare.db')\n")

    assert run("migrate", "--app", "bare")[0] == 0
    assert run("jobs", "list", "--app", "bare")[0] == 0
    assert "bare has no tasks" in run("tasks", "--app", "bare")[2]


def test_a_job_for_a_queue_that_nobody_serves_is_stored_with_a_warning(folder: Path, run: Run) -> None:
    (folder / "shop.py").write_text(APP)

    code, out, said = run("enqueue", "add", "a=1", "--app", "shop", "-q", "nope")
    assert (code, UUID(out.strip()).version) == (0, 7)
    assert said == (
        "no task names the queue nope, and no live worker serves it: the job waits until one does. "
        "The tasks name default, sums\n"
    )
    assert run("enqueue", "add", "a=1", "--app", "shop", "-q", "default")[2] == ""


def test_the_shell_completes_commands_and_options(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    code, _, _ = run("--install-completion", "--shell", "bash")

    (script,) = (tmp_path / ".local" / "share" / "bash-completion").rglob("tenure")
    assert (code, "--until-empty" in script.read_text()) == (0, True)
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=60)


def test_worker_becomes_the_supervisor_with_only_what_was_given(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def execv(program: str, argv: list[str]) -> None:
        started.append([program, *argv])

    monkeypatch.setattr(os, "execv", execv)
    run("worker", "shop:jobs", "-q", "sums=2", "-q", "default", "-c", "3", "--until-empty")
    run("worker")

    program, *argv, order = started[0]
    assert [program, *argv] == [sys.executable, sys.executable, "-m", "tenure.cli.supervise"]
    assert json.loads(order) == {
        "app": "shop:jobs",
        "url": None,
        "queues": ["sums=2", "default"],
        "concurrency": 3,
        "until_empty": True,
        "reload": False,
    }
    assert json.loads(started[1][-1]) == {"app": "shop", "url": None, "until_empty": False, "reload": False}


# ── jobs, dead ──


def test_jobs_are_found_by_every_filter(run: Run, store: Store) -> None:
    dead = ended(store, State.DEAD)
    mail, _ = put(store, task="mail", queue="post"), put(store)

    def found(*argv: str) -> set[str]:
        return {job["id"] for job in json.loads(run("jobs", "list", "--json", *argv)[1])["jobs"]}

    assert found("--task", "mail") == found("--queue", "post") == {mail}
    assert found("--state", "dead") == found("--text", "for good") == {dead}
    assert len(found("--state", "dead,queued")) == len(found("-s", "dead", "-s", "queued")) == 3


def test_jobs_are_found_by_what_is_in_them(run: Run, store: Store) -> None:
    dead = ended(store, State.DEAD, payload='{"user":17}')
    mail = put(store, payload='{"user":4711,"city":"New York"}', meta='{"request":"Ab"}')

    def found(*argv: str) -> set[str]:
        return {job["id"] for job in json.loads(run("jobs", "list", "--json", *argv)[1])["jobs"]}

    for argv in (
        ["args.user=4711"],
        ["args.user=4711 meta.request=ab"],
        ["args.user=4711", "enqueued<1h"],
        ['args.city="new york"'],
        ["--args", "user=4711", "--args", "city=New York"],
        ["--where", "args.user=4711"],
        ["--args", "user=4711", "--since", "1h"],
        ["state=queued", "--until", "2100-01-01"],
        ["state=queued", "--until", "2100-01-01T06:00", "--since", "2000-01-01T06:00"],
        ["state=queued", "--until", "2100-01-01 06:00", "--since", "2000-01-01 06:00"],
    ):
        assert found(*argv) == {mail}, argv
    assert found("error~GOOD") == {dead}
    assert found("--since", "1h") == {mail, dead}
    assert found("--until", "1h") == found("--since", "2100-01-01") == found("ended>1h") == set()
    assert "expected args.NAME" in run("jobs", "list", "user=4711")[2]
    assert "--args: expected NAME=VALUE" in run("jobs", "list", "--args", "user")[2]

    for nothing in (" ", "", "args.user~", "args.user=", 'args~""'):
        code, _, error = run("jobs", "cancel", "--where", nothing, "--yes")
        assert (code, "expected a" in error) == (2, True), nothing
        assert run("dead", "delete", "--where", nothing, "--yes")[0] == 2
    for nothing in ("", " "):
        assert run("jobs", "cancel", "--state", "queued", "--text", nothing, "--yes")[0] == 2
    assert found() >= {mail, dead}
    assert run("jobs", "cancel", "--where", "args.user=4711", "--yes")[0] == 0
    assert found("--state", "cancelled") == {mail}
    assert run("dead", "delete", "--args", "user=17", "--yes")[0] == 0
    assert store.get(dead) is None


def test_the_statistics_of_tasks_say_how_often_they_fail(store: Store, run: Run) -> None:
    ended(store, State.COMPLETED, task="mail")
    ended(store, State.DEAD, task="mail")
    ended(store, State.COMPLETED, task="bill")

    code, out, _ = run("jobs", "stats")
    heads, *found = rows(out)
    assert (code, heads[:5]) == (0, ["task", "completed", "dead", "cancelled", "dead of these"])
    assert [row[:6] for row in found] == [["mail", "1", "1", "0", "50.0%", "1"], ["bill", "1", "0", "0", "0.0%", "0"]]
    (bill,) = json.loads(run("jobs", "stats", "--span", "6h", "--task", "bill", "--json")[1])
    assert (bill["completed"], bill["failure_rate"]) == (1, 0.0)
    assert run("jobs", "stats", "--task", "nobody")[2] == "no job ended within 15m\n"
    assert "expected one of 15m, 6h, 7d" in run("jobs", "stats", "--span", "9y")[2]


def test_a_long_search_says_how_far_it_looked(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.cli.jobs._LOOK_SECONDS", 0.0)
    oldest = put(store, payload='{"user":4711}')
    store.enqueue([draft() for _ in range(1_500)])

    _, out, err = run("jobs", "list", "args.user=4711")
    assert rows(out)[1:] == []
    assert "looked at 1,000 jobs, back to " in err
    _, out, err = run("jobs", "list", "args.user=4711", "--cursor", err.split()[-1])
    assert [row[0] for row in rows(out)[1:]] == [oldest]
    assert err == ""


def test_a_long_list_goes_on_at_its_cursor(run: Run, store: Store) -> None:
    ids = [put(store) for _ in range(5)]

    _, first, err = run("jobs", "list", "-n", "3")
    _, second, rest = run("jobs", "list", "-n", "3", "--cursor", err.split()[-1])

    assert [row[0] for row in (*rows(first)[1:], *rows(second)[1:])] == ids[::-1]
    assert "there are more: --cursor" in err
    assert rest == ""


def test_an_empty_list_of_a_task_that_nobody_has_names_the_nearest(run: Run, store: Store) -> None:
    start(store, tasks=("nightly_report", "work"))
    put(store, task="removed")

    code, out, err = run("jobs", "list", "--task", "nigthly_report")
    assert (code, rows(out)[1:]) == (0, [])
    assert err == (
        "no worker of the last day and no job of this store has a task named 'nigthly_report'; "
        "did you mean nightly_report?\n"
    )
    for task in ("work", "removed"):
        assert run("jobs", "list", "--task", task, "--state", "dead")[2] == ""
    assert "; known: nightly_report, work" in run("dead", "list", "--task", "zz")[2]


def test_a_command_takes_an_id_as_pages_show_it(run: Run, store: Store) -> None:
    dead = ended(store, State.DEAD)
    one = put(store, id="0199aaaa-0000-7000-8000-0000deadbeef")
    other = put(store, id="0199aaab-0000-7000-8000-0000deadf00d")

    assert json.loads(run("jobs", "show", "deadbeef", "--json")[1])["job"]["id"] == one
    assert f"work {other} (queued)" in run("jobs", "explain", "deadf00d")[1]
    assert f"job {one} is queued" in run("jobs", "stack", "deadbeef")[2]
    assert json.loads(run("dead", "show", dead[-8:], "--json")[1])["job"]["id"] == dead
    code, _, said = run("jobs", "cancel", "deadbeef", "0199aaa")
    assert (code, look(store, one).state) == (2, State.QUEUED)
    assert f"0199aaa begins or ends those of several jobs; write more of it: {other} (work, queued), {one}" in said
    assert run("jobs", "cancel", "deadbeef", one, "deadf00d")[1] == "2 of 2 jobs cancelled or asked to stop\n"
    assert run("dead", "replay", dead[-8:])[0] == 0
    assert [look(store, each).state for each in (one, other, dead)] == ["cancelled", "cancelled", "queued"]
    assert "has an id that begins or ends with cafecafe" in run("jobs", "delete", "cafecafe")[2]


def test_show_tells_everything_but_secrets(run: Run, store: Store) -> None:
    job_id = ended(store, State.DEAD, payload='{"token":{"$secret":"hunter2"}}', meta='{"tenant":"a"}')

    _, out, _ = run("jobs", "show", job_id)

    assert "hunter2" not in out
    assert '{"token":"***"}' in out
    assert "tenant=a" in out
    assert "for good" in out
    assert store.attempts(job_id)[0].worker_id in out


def test_a_bulk_change_tells_the_count_and_asks(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.enqueue([draft(task="mail") for _ in range(1200)])
    put(store, task="mail", delay=60)

    refused = run("jobs", "cancel", "--task", "mail")
    assert refused[0] == 2
    assert "cancel 1,201 jobs (1 scheduled, 1,200 queued)?" in refused[2]
    assert store.counts()[State.CANCELLED] == 0

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdin, "readline", lambda: "n\n")
    assert run("jobs", "cancel", "--task", "mail")[0] == 1
    assert store.counts()[State.CANCELLED] == 0

    code, out, _ = run("jobs", "cancel", "--task", "mail", "--yes", "--reason", "spam")
    assert (code, out) == (0, "1,201 of 1,201 jobs cancelled or asked to stop\n")
    assert {job.error for job in store.search(Filter(task="mail"), limit=2).jobs} == {"spam"}


@pytest.mark.parametrize(
    ("command", "before", "after"),
    [
        (("jobs", "cancel", "--state", "queued"), State.QUEUED, State.PROCESSING),
        (("jobs", "replay", "--task", "work"), State.DEAD, State.COMPLETED),
        (("jobs", "delete", "--state", "dead"), State.DEAD, State.COMPLETED),
        (("dead", "replay", "--every"), State.DEAD, State.COMPLETED),
        (("dead", "delete", "--task", "work"), State.DEAD, State.COMPLETED),
    ],
    ids=["cancel", "replay", "delete", "dead replay", "dead delete"],
)
def test_a_bulk_change_leaves_jobs_alone_that_have_moved_since_it_asked(
    run: Run, store: Store, monkeypatch: pytest.MonkeyPatch, command: Sequence[str], before: State, after: State
) -> None:
    moved = put(store) if before is State.QUEUED else ended(store, before)
    stayed = put(store) if before is State.QUEUED else ended(store, before)

    def answer() -> str:  # another operator, or a worker, was faster
        store.replay([moved])
        lease = claim_one(store, alive(store))
        assert lease.job_id == moved
        if after is State.COMPLETED:
            assert finish(store, lease, Completed()) is after
        return "y\n"

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdin, "readline", answer)
    code, out, _ = run(*command)

    assert code == 1
    assert f"{moved}: nothing done: it is {after} by now" in out
    assert "1 of 2 jobs" in out
    assert look(store, moved).state is after
    assert look(store, moved).cancel_reason is None
    left = store.get(stayed)
    assert left is None or left.state is not before


def test_one_job_says_what_became_of_it(run: Run, store: Store) -> None:
    waiting, busy = put(store, delay=60), running(store, alive(store)).job_id

    assert run("jobs", "promote", waiting) == (0, f"{waiting}: queued\n", "")
    assert run("jobs", "cancel", waiting) == (0, f"{waiting}: cancelled\n", "")
    code, out, _ = run("jobs", "delete", busy)
    assert code == 1
    assert "it is processing" in out
    assert json.loads(run("jobs", "replay", waiting, "--json")[1]) == [
        {"id": waiting, "landed": True, "says": "queued again"}
    ]


def test_replay_by_filter_leaves_completed_jobs_alone(run: Run, store: Store) -> None:
    done, dead = (
        ended(store, State.COMPLETED),
        ended(store, State.DEAD),
    )

    assert run("jobs", "replay", "--task", "work", "--yes")[0] == 0

    assert (look(store, done).state, look(store, dead).state) == (State.COMPLETED, State.QUEUED)


def test_dead_letters_are_listed_replayed_and_deleted(run: Run, store: Store) -> None:
    first, second = (
        ended(store, State.DEAD),
        ended(store, State.DEAD),
    )
    queued = put(store)

    assert {row[0] for row in rows(run("dead", "list")[1])[1:]} == {first, second}
    code, _, err = run("dead", "replay", queued)
    assert code == 1
    assert "is queued, not dead" in err
    assert run("dead", "replay", first)[0] == 0
    assert run("dead", "delete", "--every", "--yes")[0] == 0
    assert store.get(second) is None
    assert look(store, first).state is State.QUEUED
    assert run("dead", "replay", "--every") == (0, "no job matches\n", "")


def test_dead_letters_are_counted_by_error_and_replayed_at_so_many_a_minute(run: Run, store: Store) -> None:
    for number in range(3):
        for task, error in (("mail", f"no user {number}"), ("pdf", f"cannot open '/srv/{number}'")):
            finish(store, running(store, alive(store), task=task), Failed(error, final=True))
    last = ended(store, State.DEAD, task="mail", priority=9)

    code, out, err = run("dead", "list", "--by-error", "--task", "mail")
    heads, users, others = rows(out)
    assert (code, heads[:4]) == (0, ["jobs", "fingerprint", "last", "tasks"])
    assert (users[0], users[3], users[4]) == ("3", "mail", "no user …")
    assert (others[0], others[4]) == ("1", "for good")
    assert f"tenure dead replay --where fingerprint={users[1]} --per-minute 60" in err
    assert json.loads(run("dead", "list", "--by-error", "--task", "mail", "--json")[1])["groups"][0] == {
        "fingerprint": users[1],
        "says": "no user …",
        "jobs": 3,
        "tasks": [["mail", 3]],
        "last_id": store.search(Filter(task="mail", text="no user 2")).jobs[0].id,
        "last_at": ANY,
    }

    code, out, _ = run("dead", "replay", "--where", f"fingerprint={users[1]}", "--per-minute", "60", "--yes")

    assert code == 0
    assert out.startswith("3 of 3 jobs queued again, 60 a minute, the last at ")
    counts = store.counts()
    assert (counts[State.QUEUED], counts[State.SCHEDULED], counts[State.DEAD]) == (1, 2, 4)
    assert run("dead", "replay", last, "--per-minute", "0")[0] == 2
    assert run("jobs", "replay", last, "--per-minute", "6") == (0, f"{last}: queued again\n", "")


def test_a_replay_that_is_interrupted_says_how_far_it_is_and_the_same_command_continues(
    run: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = alive(store, slots=1200)
    store.enqueue([draft(max_failures=1) for _ in range(1_100)])
    store.finish([(Lease(job.id, 1, worker), Failed("no user")) for job in claim(store, worker, 1_100)])
    replay, calls = SqliteStore.replay, list[int]()

    def interrupted(self: SqliteStore, ids: Iterable[str], **options: Any) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return replay(self, ids, **options)

    monkeypatch.setattr(SqliteStore, "replay", interrupted)
    command = ("dead", "replay", "--where", "error~user", "--per-minute", "60", "--yes")

    assert run(*command) == (130, "", "1,000 of 1,100 are done; the same command continues with the others\n")
    assert store.counts()[State.DEAD] == 100
    code, out, _ = run(*command)

    assert (code, store.counts()[State.DEAD]) == (0, 0)
    assert out.startswith("100 of 100 jobs queued again, 60 a minute, the last at ")
    due = sorted(job.run_at for job in store.search(Filter(), limit=2_000).jobs)
    assert (due[-1] - due[0]).total_seconds() >= 1_099


# ── queues, workers, check, migrate, backup ──


def test_queues_are_paused_and_resumed(run: Run, store: Store) -> None:
    put(store)

    assert run("queues", "pause", "default", "--why", "no paper") == (0, "queue default is paused\n", "")
    assert run("queues", "pause", "default")[1] == "queue default was already paused\n"
    assert rows(run("queues", "list")[1])[1][:2] == ["default", "1"]
    assert re.search(r"paused for \d+s by \S+@\S+: no paper", run("queues", "list")[1])
    (queue,) = json.loads(run("queues", "list", "--json")[1])
    assert queue["pause"]["why"] == "no paper"
    assert run("queues", "resume", "default")[1] == "queue default is running\n"


def test_to_resume_a_queue_of_a_wrong_name_says_so(run: Run, store: Store) -> None:
    put(store, queue="letters")
    run("queues", "pause", "letters")

    code, out, err = run("queues", "resume", "leters")

    assert (code, out) == (0, "queue leters was already running\n")
    assert "did you mean letters?" in err


def test_a_file_in_a_folder_that_is_not_ours_to_enter_is_told(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = Path.stat

    def refused(path: Path, **options: Any) -> os.stat_result:
        if "private" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refused)

    code, _, err = run("jobs", "list", "--url", f"sqlite:///{folder}/private/tenure.db")

    assert (code, err) == (1, f"{folder}/private/tenure.db can't be reached: Permission denied\n")


@pytest.mark.parametrize("name", [".env", "pyproject.toml"])
def test_settings_in_a_folder_that_is_not_ours_to_enter_are_none(
    run: Run, store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    is_file = Path.is_file

    def refused(path: Path) -> bool:
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refused)
    monkeypatch.delenv("TENURE_APP")

    assert run("jobs", "list")[0] == 0
    assert run("tasks")[2].startswith("no app: name its module")


def test_a_queue_that_nothing_has_is_not_paused(run: Run, store: Store) -> None:
    put(store, queue="letters")

    code, _, err = run("queues", "pause", "leters")
    assert (code, "did you mean letters?" in err, store.paused()) == (2, True, frozenset())
    assert run("queues", "pause", "leters", "--unchecked")[0] == 0
    assert store.paused() == {"leters"}


def test_a_queue_is_known_by_its_past_jobs_and_by_those_who_will_need_it(run: Run, store: Store) -> None:
    store.cancel([put(store, queue="once")], "")
    start(store, queues=("served",))

    for name in ("default", "once", "served"):
        assert run("queues", "pause", name)[0] == 0, name


def test_workers_are_listed_dead_ones_on_request(run: Run, store: Store) -> None:
    living, dead = alive(store), alive(store)
    job_id = running(store, dead).job_id
    store.settle(dead, {}, Failed("gone", final=True), how="its process ended: signal 9 (SIGKILL)")

    assert [row[0] for row in rows(run("workers", "list")[1])[1:]] == [living]
    assert run("workers") == run("workers", "list")
    assert [row["identity"]["id"] for row in json.loads(run("workers", "--json")[1])] == [living]
    assert run("queues", "--json") == run("queues", "list", "--json")
    shown = {row[0]: row[-1] for row in rows(run("workers", "list", "--dead")[1])[1:]}
    assert shown[dead] == f"dead for 0s: its process ended: signal 9 (SIGKILL); it ran work {job_id}"
    told = {row["identity"]["id"]: row["ended"] for row in json.loads(run("workers", "--dead", "--json")[1])}
    how = {"how": "its process ended: signal 9 (SIGKILL)", "ran": [{"id": job_id, "task": "work"}], "more": 0}
    assert told == {living: None, dead: how}


def test_a_worker_is_drained_once_asked_and_the_order_is_void_where_nobody_takes_it(
    run: Run, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, host = alive(store), alive(store, runner="embedded")
    monkeypatch.setattr("tenure.cli.workers.TAKEN_SECONDS", 0.1)

    code, _, said = run("workers", "restart", worker)
    assert (code, said.partition("?")[0]) == (2, f"restart worker {worker} on host, with 0 running jobs")
    code, _, said = run("workers", "restart", worker, "--grace", "5m", "--yes")
    assert (code, said.partition(":")[0]) == (
        1,
        f"the supervisor of worker {worker} has not taken the order within 100ms",
    )
    assert rows(run("workers", "list")[1])[2][-1].startswith("restart ordered by ")
    (order,) = store.notes("order:").values()
    assert json.loads(order)["grace"] == 300.0
    code, _, said = run("workers", "drain", host, "-y")
    assert (code, "is embedded in a program" in said) == (1, True)
    code, _, said = run("workers", "drain", "nobody", "-y")
    assert (code, said) == (
        2,
        "no worker of the last day is 'nobody': see tenure workers list --dead for those that are known\n",
    )


def test_a_stack_is_shown_as_python_shows_one(run: Run, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.operations.stacks.PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("tenure.cli.jobs.PATIENCE_SECONDS", -1.0)
    lease = running(store, alive(store))
    job_id, worker = lease.job_id, lease.worker_id
    code, out, _ = run("jobs", "stack", job_id)
    assert (code, "has not answered for" in out, "its supervisor hangs" in out) == (1, True, True)

    frames = tuple(Frame("/srv/shop.py", line, "recurse") for line in range(300))
    (order,) = orders.open_orders(store)
    stack = Stack(job_id, worker, "ada", order.at, store.now(), "", (Trace("its thread", frames),))
    monkeypatch.setattr("tenure.operations.stacks.ask", lambda *_: orders.answer(store, stack))
    orders.done(store, order)
    code, out, _ = run("jobs", "stack", job_id)
    head, name, *lines = out.splitlines()
    assert (code, name, head.partition(", seen at")[0]) == (0, "its thread:", f"job {job_id} on worker {worker}")
    assert lines[0] == '  File "/srv/shop.py", line 0, in recurse'
    assert lines[-1] == '  File "/srv/shop.py", line 299, in recurse'
    assert "  … 100 frames are left out …" in lines
    assert json.loads(run("jobs", "stack", job_id, "--json")[1])["traces"][0]["left_out"] == 100


def test_all_jobs_of_a_worker_are_cancelled_after_a_question(run: Run, store: Store) -> None:
    lease, other = running(store, alive(store)), running(store, alive(store))
    queued = put(store)

    code, _, said = run("jobs", "cancel", "--worker", lease.worker_id)
    assert (code, said.partition("?")[0]) == (2, "cancel 1 job (1 processing)")
    assert run("jobs", "cancel", "--worker", lease.worker_id, "--yes")[0] == 0

    asked = {each: look(store, each).cancel_reason for each in (lease.job_id, other.job_id, queued)}
    assert asked == {lease.job_id: "", other.job_id: None, queued: None}


def test_only_a_running_job_has_a_stack(run: Run, store: Store) -> None:
    job_id = put(store)
    assert run("jobs", "stack", job_id)[::2] == (1, f"job {job_id} is queued: only a running job has a stack\n")


def test_check_is_content_with_a_healthy_store_only(run: Run, store: Store) -> None:
    alive(store)
    assert run("check", "shop")[0] == 0

    ended(store, State.DEAD)
    code, out, _ = run("check", "--json")

    findings = {finding["what"]: finding for finding in json.loads(out)}
    assert code == 1
    assert not findings["dead letters"]["ok"]
    assert findings["workers"]["ok"]


@pytest.mark.parametrize("lost", [False, True])
def test_check_names_jobs_that_nobody_works_on(lost: bool, run: Run, store: Store) -> None:
    put(store)
    if lost:  # nothing has declared it dead
        start(store, boot_id="before")

    code, out, _ = run("check")

    assert code == 1
    assert "WRONG\tworkers\tnone is alive, and jobs wait: start one with tenure worker" in out


def test_check_lists_causes_before_what_they_cause(run: Run, store: Store) -> None:
    alive(store, queues=("mail", "a", "b", "c", "d", "e", "f", "g"))
    store.pause("mail", paused=True)
    put(store, queue="mail", run_at=datetime.now(UTC) - timedelta(hours=1))

    code, out, _ = run("check")
    wrong = [row[1:] for row in rows(out) if row[0] == "WRONG"]
    assert code == 1
    assert [what for what, _ in wrong] == ["queue-paused", "↳ queue-age"]
    assert wrong[0][1].endswith("; tenure queues resume mail")
    found = [each for each in json.loads(run("check", "--json")[1]) if not each["ok"]]
    assert [(each["what"], each["cause"]) for each in found] == [
        ("queue-paused", ""),
        ("queue-age", "queue-paused:mail"),
    ]


def test_check_folds_the_many_that_one_cause_has() -> None:
    late = [Finding(False, "late", f"s{n} is late", "queue-paused:mail") for n in range(60)]

    shown = list(_rows([Finding(True, "store", "x"), Finding(False, "queue-paused", "mail"), *late]))

    assert [what for _, what, _ in shown] == ["store", "queue-paused", *["↳ late"] * 5, "↳ …"]
    assert shown[-1][-1] == "55 more: 55 late"


def test_check_says_what_is_wrong_with_the_file(run: Run, folder: Path) -> None:
    (folder / "tenure.db").write_text("this is no database, and long enough to have had a header of one " * 20)

    code, out, _ = run("check")

    assert code == 1
    assert "WRONG\tstore" in out


@pytest.mark.parametrize("options", [("--metrics", "--alert"), ("--config", "--metrics"), ("--config", "--alert")])
def test_check_does_one_thing_at_a_time(run: Run, options: tuple[str, ...]) -> None:
    code, out, err = run("check", *options)

    assert (code, out) == (2, "")
    assert err.startswith(f"{' and '.join(options)}: expected one of them at a time")


@pytest.mark.parametrize("command", ["tasks", "check", "dashboard", "worker"])
def test_two_apps_in_one_command_are_refused(run: Run, command: str) -> None:
    said = "expected one app, got shop and --app other\n"
    assert run(command, "shop", "--app", "other") == (2, "", said)


def test_check_config_shows_each_value_and_where_it_came_from(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".env").write_text("TENURE_LEASE=1m\n")
    monkeypatch.setenv("TENURE_PASSWORD", "hunter2")

    code, out, _ = run("check", "--config", "--url", "redis://:hunter3@h")

    shown = {name: (value, source) for name, value, source in rows(out)}
    assert code == 0
    assert shown["lease"] == ("1m", ".env")
    assert shown["url"] == ("redis://:***@h", "--url")
    assert shown["password"] == ("***", "TENURE_PASSWORD")
    assert shown["grace"] == ("25s", "default")


def test_migrate_says_the_version(run: Run, folder: Path) -> None:
    code, out, _ = run("migrate", "--json")

    assert code == 0
    assert json.loads(out)["version"] >= 1
    assert (folder / "tenure.db").exists()


def test_a_backup_is_a_whole_store_and_overwrites_only_when_told(run: Run, store: Store, folder: Path) -> None:
    job_id = put(store)

    assert run("backup", "copy.db")[0] == 0
    assert run("backup", "copy.db")[0] == 2
    assert run("backup", "copy.db", "--yes")[0] == 0
    assert run("backup", "tenure.db", "--yes")[0] == 2

    copy = SqliteStore(str(folder / "copy.db"))
    copy.open()
    assert look(copy, job_id).state is State.QUEUED
    copy.close()
    assert {path.name for path in folder.iterdir() if path.name.startswith("tenure-")} == set()


def test_two_backups_to_one_file_do_not_disturb_each_other(
    run: Run, store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store)
    backup, others = SqliteStore.backup, list[tuple[int, str, str]]()

    def while_another_copies(self: SqliteStore, path: str, progress: Callable[[int, int], None]) -> Any:
        def step(done: int, total: int) -> None:
            monkeypatch.setattr(SqliteStore, "backup", backup)
            if not others:
                others.append(run("backup", "copy.db", "--yes", "--json"))
            progress(done, total)

        return backup(self, path, step)

    monkeypatch.setattr(SqliteStore, "backup", while_another_copies)
    code, out, err = run("backup", "copy.db", "--json")

    assert [(each[0], each[2]) for each in others] == [(0, "")]
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(others[0][1])
    assert json.loads(out)["bytes"] == (folder / "copy.db").stat().st_size
    copy = SqliteStore(str(folder / "copy.db"))
    copy.open()
    assert copy.damage() == []
    copy.close()


def test_a_copy_that_cannot_be_written_is_named_and_nothing_is_left_of_it(run: Run, store: Store, folder: Path) -> None:
    put(store)
    before, limits = {path.name for path in folder.iterdir()}, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        full = run("backup", "copy.db")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (folder / "taken.db-wal").mkdir()
    (folder / "taken.db").write_bytes(b"")
    taken = run("backup", "taken.db", "--yes")

    check = "Check its folder's permissions and free space, or name another file"
    assert full == (1, "", f"{folder / 'copy.db'} could not be written: the disk returned an error. {check}\n")
    assert taken == (1, "", f"{folder / 'taken.db'} could not be written: Is a directory. {check}\n")
    assert {path.name for path in folder.iterdir()} - {"taken.db", "taken.db-wal"} == before


@pytest.mark.parametrize("older", [None, 0o644])
def test_a_copy_can_be_read_by_those_who_can_read_the_store(
    run: Run, store: Store, folder: Path, older: int | None
) -> None:
    (folder / "tenure.db").chmod(0o600)
    if older is not None:
        (folder / "copy.db").touch(older)
    before = os.umask(0o022)
    try:
        assert run("backup", "copy.db", "--yes")[0] == 0
    finally:
        os.umask(before)

    assert oct((folder / "copy.db").stat().st_mode & 0o777) == oct(0o600)


def test_a_backup_to_a_link_writes_the_file_that_it_names(run: Run, store: Store, folder: Path) -> None:
    put(store)
    (folder / "disk").mkdir()
    (folder / "latest.db").symlink_to("disk/monday.db")

    codes = [run("backup", "latest.db")[0], run("backup", "latest.db")[0], run("backup", "latest.db", "--yes")[0]]

    assert codes == [0, 2, 0]
    assert (folder / "latest.db").is_symlink()
    assert [path.name for path in (folder / "disk").iterdir()] == ["monday.db"]


@pytest.mark.parametrize("name", ["pipe", "link", "loop", "tenure.db-wal", "shop.py/copy.db"])
def test_a_backup_to_what_is_no_file_is_refused(run: Run, store: Store, folder: Path, name: str) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("pipe")
    (folder / "loop").symlink_to("loop")
    said = {
        "loop": "loop can't be reached: Too many levels of symbolic links. Name another file",
        "tenure.db-wal": "tenure.db-wal is the store itself: name another file",
        "shop.py/copy.db": f"{folder / 'shop.py'} is not a folder: create it first",
    }.get(name, f"{name} is a device, a pipe or a socket: expected the name of a file")

    assert run("backup", name, "--yes") == (2, "", f"{said}\n")
    assert stat.S_ISFIFO((folder / "pipe").stat().st_mode)


USES = """
import sqlite3, sys, time
copy = sqlite3.connect("copy.db")
copy.execute("PRAGMA wal_autocheckpoint = 0")
copy.execute("CREATE TABLE mine (n)")
copy.execute("INSERT INTO mine VALUES (1)")
copy.commit()
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def user_of_the_copy(run: Run, store: Store, folder: Path) -> Iterable[subprocess.Popen[str]]:
    """A process that has a copy of the store open, and has written to its log."""
    put(store)
    assert run("backup", "copy.db")[0] == 0
    with subprocess.Popen(
        [sys.executable, "-c", USES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
    ) as user:
        assert user.stdout
        assert user.stdout.readline() == "open\n"
        yield user
        user.kill()


def test_the_log_of_a_killed_process_is_not_played_into_the_new_copy(
    run: Run, store: Store, folder: Path, user_of_the_copy: subprocess.Popen[str]
) -> None:
    user_of_the_copy.kill()
    user_of_the_copy.wait()
    assert (folder / "copy.db-wal").stat().st_size > 0
    job_id = put(store)

    assert run("backup", "copy.db", "--yes")[0] == 0

    assert sorted(path.name for path in folder.glob("copy.db*")) == ["copy.db"]
    copy = SqliteStore(str(folder / "copy.db"))
    copy.open()
    assert copy.damage() == []
    assert look(copy, job_id).state is State.QUEUED
    copy.close()


def test_a_copy_that_a_process_has_open_is_not_replaced(
    run: Run, folder: Path, user_of_the_copy: subprocess.Popen[str]
) -> None:
    before = (folder / "copy.db").stat().st_ino

    code, out, err = run("backup", "copy.db", "--yes")

    assert (code, out) == (1, "")
    assert err == (
        f"{folder / 'copy.db'} is in use: another process has it open. Stop that process, or name another file\n"
    )
    assert (folder / "copy.db").stat().st_ino == before
    assert (folder / "copy.db-wal").stat().st_size > 0
    user_of_the_copy.communicate("")
    assert user_of_the_copy.returncode == 0
    assert run("backup", "copy.db", "--yes")[0] == 0


@pytest.mark.parametrize("content", [b"", b"no database\n" * 1000])
def test_a_file_that_is_no_database_is_replaced_too(run: Run, store: Store, folder: Path, content: bytes) -> None:
    (folder / "copy.db").write_bytes(content)

    assert run("backup", "copy.db", "--yes")[0] == 0

    copy = SqliteStore(str(folder / "copy.db"))
    copy.open()
    assert copy.damage() == []
    copy.close()


# ── top ──


@pytest.fixture
def busy(store: Store) -> Store:
    """A busy store, in which one worker stalls."""
    worker = alive(store, slots=40)
    for number in range(30):
        put(store, task=f"task_with_quite_a_long_name_{number}")
        lease = claim_one(store, worker)
        store.progress([Progress(lease=lease, fraction=number / 30, stage="clone", message="receiving objects " * 9)])
    for number in range(12):
        put(store, queue=f"queue_with_quite_a_long_name_{number}")
    store.renew([worker], notes={worker: "its loop is blocked for 3s by tag at shop.py:41"})
    return store


def test_the_picture_says_when_a_queue_will_be_empty(store: Store) -> None:
    from rich.console import Console

    from tenure.notifiers.poll import PollNotifier
    from tenure.operations.admin import Admin

    worker, admin, backlogs = alive(store), Admin(store, PollNotifier()), Backlogs()
    store.enqueue([draft() for _ in range(100)])
    store.enqueue([draft(queue="unserved")])
    before = top.read(admin, None)
    assert top._outlooks(before.overview, backlogs) == {"unserved": "no worker"}
    done = [(Lease(each.id, each.attempt, worker), Completed("1")) for each in claim(store, worker, 40)]
    store.finish(done)
    reading = top.read(admin, before)
    later = replace(reading.overview, at=before.overview.at + timedelta(seconds=20))

    outlooks = top._outlooks(later, backlogs)

    assert outlooks == {"default": "empty in about 30s", "unserved": "no worker"}
    screen = Console(width=100, record=True, file=io.StringIO())
    screen.print(top.frame(reading, 100, None, outlooks=outlooks))
    assert "empty in about 30s" in screen.export_text()


@pytest.mark.parametrize("width", [80, 200])
def test_the_picture_fits_its_screen_and_names_what_stalls(busy: Store, width: int) -> None:
    from tenure.notifiers.poll import PollNotifier
    from tenure.operations.admin import Admin

    reading = top.read(Admin(busy, PollNotifier()), None)
    screen = Console(width=width, height=40, record=True, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    screen.print(top.frame(reading, width, 40), soft_wrap=True)
    screen.file.close()
    lines = screen.export_text().splitlines()

    assert max(map(len, lines)) <= width
    assert len(lines) <= 40
    assert any("blocked for 3s by tag at shop.py:41" in line for line in lines)
    assert sum("more" in line for line in lines) == 2
    assert any("97%" in line for line in lines)


def test_the_picture_says_how_fast_each_task_was(tmp_path: Path) -> None:
    from tenure.notifiers.poll import PollNotifier
    from tenure.operations.admin import Admin

    world = World(lambda clock: SqliteStore(str(tmp_path / "tenure.db"), clock=clock))
    store = world.store()
    worker = start(store, lease=3600.0)
    for seconds, outcome in ((2, Completed()), (4, Failed("no address", final=True))):
        put(store, task="send")
        world.advance(1)
        lease = claim_one(store, worker)
        world.advance(seconds)
        finish(store, lease, outcome)
    admin = Admin(store, PollNotifier())
    first = top.read(admin, None)
    put(store, task="later")
    assert top.read(admin, first).tasks is first.tasks, "the figures cost much, and are read every 15 s"

    screen = Console(width=100, record=True, file=io.StringIO())
    screen.print(top.frame(first, 100, None))
    (line,) = [line for line in screen.export_text().splitlines() if line.startswith("send")]
    assert line.split() == ["send", "2", "1", "1s", "1s", "2s", "2s"]
    world.close()


def test_a_single_picture_needs_no_terminal(run: Run, busy: Store) -> None:
    code, out, _ = run("top", "--once")

    assert code == 0
    assert "task_with_quite_a_long_name_29" in out
    assert json.loads(run("top", "--once", "--json")[1])["overview"]["counts"]["processing"] == 30


@pytest.mark.parametrize("before", ["", "\x1b[B" * 3])  # nothing; one notch of a mouse wheel
def test_q_leaves_the_moving_picture_whatever_was_pressed_before(busy: Store, before: str) -> None:
    terminal = Terminal()
    with process("top", stdin=terminal.theirs, stdout=terminal.theirs, stderr=terminal.theirs) as watching:
        (too_long := Timer(60, watching.kill)).start()
        terminal.read_until("RUNNING")
        terminal.press(before + "q")
        terminal.read_to_end()
    too_long.cancel()

    assert watching.returncode == 0


def test_a_demo_names_its_program_as_a_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "my folder/.venv/bin"
    own.mkdir(parents=True)
    (own / "tenure").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert "'my folder/.venv/bin/tenure' demo --keep" in demo._next(None)

    monkeypatch.setenv("PATH", str(own))
    assert "tenure dead list --url 'sqlite:////a b'" in demo._next("sqlite:////a b")


# ── Logs ──


def record(**extra: object) -> logging.LogRecord:
    made = logging.getLogger("shop").makeRecord(
        "shop", logging.WARNING, "shop.py", 3, "paid %s", ("17",), None, extra=extra or None
    )
    made.created = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
    return made


def test_a_handlers_records_are_marked_with_its_job() -> None:
    made = record()
    token = current.set(Running("id-1", "add", "sums", 2, "host-1-a"))
    try:
        add_job(made)
    finally:
        current.reset(token)

    line = json.loads(JsonFormatter().format(made))
    assert line == {
        "time": "2030-01-01T00:00:00.000Z",
        "level": "warning",
        "logger": "shop",
        "message": "paid 17",
        "job_id": "id-1",
        "task": "add",
        "queue": "sums",
        "attempt": 2,
        "worker_id": "host-1-a",
    }
    assert (
        TextFormatter()
        .format(made)
        .endswith("WARNING shop: paid 17  job_id=id-1 task=add queue=sums attempt=2 worker_id=host-1-a")
    )


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError

    __str__ = __repr__


def test_no_record_is_lost_for_what_it_carries() -> None:
    made = record(level="high", by_place={(1, 2): "x"}, least=float("nan"), made_by=Unprintable())
    made.stack_info = "Stack (most recent call last):"

    line = json.loads(JsonFormatter().format(made), parse_constant=pytest.fail)
    assert (line["level"], line["level_"]) == ("warning", "high")
    assert (line["by_place"], line["least"]) == ("{(1, 2): 'x'}", "nan")
    assert "Unprintable object" in line["made_by"]
    assert line["stack"] == "Stack (most recent call last):"


def test_a_record_outside_of_jobs_is_left_alone() -> None:
    made = record(order=17)
    add_job(made)

    assert json.loads(JsonFormatter().format(made))["order"] == 17
    assert TextFormatter().format(made) == "2030-01-01T00:00:00.000Z WARNING shop: paid 17"


# ── bench ──


@pytest.mark.thorough
def test_a_bench_that_is_stopped_leaves_no_process() -> None:
    command = [str(Path(sys.executable).with_name("tenure")), "bench", "--jobs", "100000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        mine = psutil.Process(process.pid)
        its = until(lambda: mine.children(recursive=True), "its worker to have been started")
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    until(lambda: not any(each.is_running() for each in its), "its worker to have ended")


@pytest.mark.thorough
def test_a_bench_on_a_store_with_a_past_counts_its_own_jobs_and_leaves_none_behind(
    folder: Path, store: Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "STARTS", 3)
    monkeypatch.setattr(bench, "SINGLES", 3)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    ended(store, State.COMPLETED)

    for times in (1, 2):
        code, out, err = run("bench", "--url", f"sqlite:///{folder}/tenure.db", "--jobs", "20", "--json")
        assert (code, err) == (0, "")
        assert all(figure >= 0 for figure in json.loads(out).values())
        assert store.counts()[State.COMPLETED] == 1 + times * 23
        assert store.counts()[State.QUEUED] == 0

    for option in ("--jobs", "--slots"):
        code, out, err = run("bench", option, "0")
        assert (code, out) == (2, "")
        assert f"{option}: expected a whole number from 1, got 0" in err


def test_a_guard_is_declared_before_its_first_call(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "expected an absolute path" in run("guard", "declare", "nightly", "--every", "1d")[2]
    monkeypatch.setenv("TENURE_URL", f"sqlite:///{folder}/new.db")
    assert "expected either --every 1d or --cron" in run("guard", "declare", "nightly")[2]

    code, out, err = run("guard", "declare", "nightly", "--every", "1d")

    assert (code, err) == (0, "")
    assert "guard nightly is on record" in out


def test_what_failed_under_a_guard_is_run_again_there(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_URL", f"sqlite:///{folder}/new.db")
    assert run("guard", "nightly", "--every", "1d", "--", "false")[0] == 1
    (job,) = json.loads(run("jobs", "list", "--json")[1])["jobs"]

    assert "run its command again there: tenure guard … --force" in run("jobs", "explain", job["id"])[1]
