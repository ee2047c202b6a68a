"""`tenure guard` with real commands, real kills, and a store that goes away: one run at a time, each recorded."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, ClassVar

import pytest

from proxy import Proxy
from tenure.core.lifecycle import State
from tenure.ports import Filter, JobView
from tenure.ports.schedules import Change, Tick
from tenure.worker.job_log import decode

from .backends import Place, Server, by_way_of, there
from .harness import PATIENCE, Site, alive, send, until

OFTEN = "100ms"  #: the shortest there is: starting a process takes longer than half of it
TENURE = "from tenure.cli.main import run; run()"
IMPATIENT = f"from tenure.guards import run as guarded; guarded.PATIENCE = 0.3; {TENURE}"
LEASE = 9.0  #: enough time between two thirds of it, when a command is ended, and four fifths, when it must be gone

#: A command with a child; both end when they are told to.
_WAIT = "while [ ! -e go ]; do sleep 0.02; done"
WAITS = f"echo $$ >> pids; sh -c 'echo $$ >> pids; {_WAIT}' & {_WAIT}; wait; echo went"
#: The same, and both keep writing down the time.
_BEAT = "while :; do date +%s.%N >> beats; sleep 0.02; done"
BEATS = f"echo $$ >> pids; sh -c 'echo $$ >> pids; {_BEAT}' & {_BEAT}"
#: It does not end when asked, only when killed.
STUBBORN = "trap : TERM; echo $$ >> pids; while :; do sleep 0.02; done"


_AT_A_TERMINAL = (
    *(sys.executable, "-c"),
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))",
)
_calls: list[Call] = []


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    """A call that failed a test is not left behind."""
    yield
    while _calls:
        _calls.pop().kill()


class Call:
    """One `tenure guard …` of a crontab."""

    def __init__(
        self,
        site: Site,
        *words: str,
        command: Sequence[str],
        name: str = "report",
        host: str = "",
        lease: str = "30s",
        code: str = TENURE,
        before: Sequence[str] = (),
        given: int = subprocess.DEVNULL,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.words = [*before, sys.executable, "-c", code, "guard", name, *words, "--", *command]
        here = {**env, **({"TENURE_HOST_ID": host} if host else {})}
        self.process = subprocess.Popen(
            self.words,
            cwd=site.folder,
            env=site.env(lease, {}, here),
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.pid = self.process.pid
        _calls.append(self)

    def kill(self) -> None:
        with self.process:
            self.process.kill()

    def ended(self, code: int) -> tuple[bytes, str]:
        """Its output, once it has ended, which it must with this exit code."""
        out, err = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == code, (self.process.returncode, out, err)
        return out, err.decode()


def pids(site: Site, count: int) -> list[int]:
    """The processes of a command, once so many have said so."""
    path = site.folder / "pids"
    found = until(lambda: len(path.read_text().split()) >= count if path.exists() else None, f"{count} pids")
    assert found
    return [int(pid) for pid in path.read_text().split()]


def gone(processes: Sequence[int]) -> None:
    until(lambda: not any(map(alive, processes)), f"the end of {processes}")


def children_of(pid: int) -> list[int]:
    listed = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(text) for text in listed.split()]


def history(site: Site, name: str = "report") -> list[Tick]:
    """What ran, oldest first."""
    return [tick for tick in reversed(site.store.ticks(name, limit=10_000)) if tick.status not in ("missed", "skipped")]


def job_of(site: Site, tick: Tick) -> JobView:
    job = site.store.get(tick.job_id or "")
    assert job is not None
    return job


def run(site: Site, *words: str, command: Sequence[str], code: int = 0, **more: Any) -> tuple[bytes, str]:
    return Call(site, *words, command=command, **more).ended(code)


# ── What a crontab line sees: the same on every store, so the fastest will do ────────────────────────────────────


@pytest.mark.needs("file")
def test_exit_codes_are_those_of_a_shell_and_every_run_is_written_down(site: Site) -> None:
    (site.folder / "plain").write_text("no program")
    expected = [
        (["true"], 0, ""),
        (["sh", "-c", "echo no rows >&2; exit 3"], 3, "exit code 3: no rows"),
        (["sh", "-c", "kill -KILL $$"], 137, "signal 9 (SIGKILL)"),
        (["no-such-command"], 127, "exit code 127: No such file or directory"),
        (["./plain"], 126, "exit code 126: Permission denied"),
    ]

    for command, code, _ in expected:
        run(site, "--every", OFTEN, command=command, code=code)

    ran = history(site)
    assert [tick.why for tick in ran] == [why for _, _, why in expected]
    assert [tick.status for tick in ran] == ["success", *["failure"] * 4]
    assert job_of(site, ran[0]).result == '{"exit_code":0}'
    assert site.store.schedules(["report"])[0].schedule.failure_count == 4
    assert all("@" in tick.host and tick.started_at and tick.ended_at for tick in ran)
    assert site.store.workers() == []


@pytest.mark.needs("file")
def test_bytes_go_through_untouched_in_both_directions_and_the_tail_is_kept(site: Site) -> None:
    script = "import os, sys; d = sys.stdin.buffer.read(); os.write(2, d[::-1]); sys.stdout.buffer.write(d * 40)"
    data = bytes(range(256)) * 64
    call = Call(site, "--every", OFTEN, command=[sys.executable, "-c", script], given=subprocess.PIPE)

    out, err = call.process.communicate(data, timeout=PATIENCE)

    assert (out == data * 40, err == data[::-1], call.process.returncode) == (True, True, 0)
    (tick,) = history(site)
    assert 4096 < len(tick.output) <= 2 * 4096 + 2
    assert "\0" not in tick.output
    assert "@ABC" in tick.output


@pytest.mark.needs("file")
def test_quiet_shows_what_a_command_said_only_when_it_failed(site: Site) -> None:
    says = "echo out; echo err >&2; exit "

    assert run(site, "--every", "1d", "--quiet", command=["sh", "-c", says + "0"]) == (b"", "")
    assert run(site, "--every", "1d", "--quiet", command=["sh", "-c", says + "0"]) == (b"", "")  # skipped
    failed = run(site, "--every", OFTEN, "--quiet", name="other", command=["sh", "-c", says + "4"], code=4)

    assert failed == (b"out\n", "err\n")
    assert history(site)[0].output == history(site, "other")[0].output == "out\nerr\n"


@pytest.mark.needs("file")
def test_a_tick_that_has_run_is_skipped_and_force_runs_it_again(site: Site) -> None:
    assert run(site, "--every", "1d", command=["echo", "1"]) == (b"1\n", "")
    out, err = run(site, "--every", "1d", "--skip-exit", "9", command=["echo", "2"], code=9)
    forced = run(site, "--every", "1d", "--force", command=["echo", "3"])

    assert (out, err.startswith("report: skipped: the tick of "), forced[0]) == (b"", True, b"3\n")
    assert len(history(site)) == 2


@pytest.mark.needs("file")
def test_a_command_that_takes_too_long_is_ended_with_its_children(site: Site) -> None:
    # It may be killed before it has written its pid: look for processes with our environment instead.
    asked = Call(site, "--every", OFTEN, "--timeout", "200ms", command=["sh", "-c", WAITS])
    _, err = asked.ended(124)
    assert "timed out after 200ms" in err
    gone(site.living())

    run(site, "--every", OFTEN, "--timeout", "200ms", "--grace", "200ms", command=["sh", "-c", STUBBORN], code=124)
    gone(site.living())

    assert [tick.why for tick in history(site)] == ["timed out after 200ms"] * 2


@pytest.mark.needs("file")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_for_the_guard_is_the_commands_and_a_failure(site: Site, number: signal.Signals) -> None:
    trapped = f"trap 'echo trapped; exit 5' {number.name[3:]}; echo $$ >> pids; {_WAIT}"
    call = Call(site, "--every", OFTEN, command=["sh", "-c", trapped])
    pids(site, 1)

    call.process.send_signal(number)

    out, _ = call.ended(5)
    assert out == b"trapped\n"
    (tick,) = history(site)
    assert tick.why == f"ended by signal: {number.name} was sent to its guard; exit code 5"


@pytest.mark.needs("file")
def test_a_command_that_ends_well_after_a_signal_has_succeeded(site: Site) -> None:
    trapped = f"trap 'exit 0' TERM; echo $$ >> pids; {_WAIT}"
    call = Call(site, "--every", OFTEN, command=["sh", "-c", trapped])
    pids(site, 1)

    call.process.send_signal(signal.SIGTERM)

    call.ended(0)
    assert [tick.status for tick in history(site)] == ["success"]


@pytest.mark.needs("file")
@pytest.mark.parametrize("typo", [["--timout", "5m"], ["-x"], ["--quiet=maybe"]])
def test_an_option_that_does_not_exist_spends_no_tick(site: Site, typo: list[str]) -> None:
    out, err = run(site, "--every", "1d", *typo, command=["echo", "ran"], code=2)

    assert out == b""
    assert typo[0].partition("=")[0] in err
    assert site.store.schedules() == []


@pytest.mark.needs("file")
def test_the_secrets_of_a_command_reach_it_but_no_record_and_no_message(site: Site) -> None:
    out, _ = run(site, "--every", "1d", command=["echo", "--password=hunter2", "--token", "abc"])
    _, err = run(site, "--every", "1d", command=["true"], code=2)

    (standing,) = site.store.schedules()
    assert out == b"--password=hunter2 --token abc\n"
    assert "another command: echo --password=*** --token ***;" in err
    assert standing.schedule.command == "echo --password=*** --token ***"
    assert all("hunter2" not in run.job.payload for run in standing.runs if run.job)


@pytest.mark.needs("file")
def test_the_second_command_of_a_name_is_refused_and_both_are_on_record(site: Site) -> None:
    run(site, "--every", "1d", command=["sh", "-c", "echo 'a b'"])

    _, err = run(site, "--every", "1d", command=["echo", "other"], code=2)

    assert """another command: sh -c 'echo '"'"'a b'"'"''""" in err
    assert "echo" in site.store.schedules()[0].schedule.command


@pytest.mark.needs("file")
def test_the_environment_of_a_command_is_that_of_its_guard(site: Site) -> None:
    """Under cron there is no locale, and Python sets one for itself."""
    before = ["env", "-u", "LC_ALL", "-u", "LANG", "-u", "LC_CTYPE"]

    out, _ = run(site, "--every", OFTEN, before=before, command=["env"])

    assert b"PATH=" in out
    assert b"LC_CTYPE" not in out


@pytest.mark.needs("file")
@pytest.mark.parametrize("options", [[], ["--quiet"]])
def test_a_reader_that_is_gone_costs_no_run_and_no_exit_code(site: Site, options: list[str]) -> None:
    """The guard's own notes, and the output of a quiet guard that failed, have no reader."""
    gone_reader = ["sh", "-c", 'exec "$@" 2>&1 >/dev/full | exec 3<&- <&-', "sh"]
    run(site, "--cron", "0 0 1 1 *", command=["true"])  # it is late, and the next call would say so
    site.store.change([Change(schedule=site.store.schedules()[0].schedule, delete=True)])
    call = Call(site, "--cron", "0 0 1 1 *", *options, command=["sh", "-c", "echo out; exit 5"], before=gone_reader)
    call.process.communicate(timeout=PATIENCE)

    (tick,) = until(lambda: [each for each in history(site) if each.ended_at], "the end of its run") or []
    assert tick.why == "exit code 5: out"


class _Switch(BaseHTTPRequestHandler):
    """A dead-man's switch: it notes what it is told; under /hangs it answers when a test says so."""

    told: ClassVar[list[str]] = []
    go: ClassVar[threading.Event] = threading.Event()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0)).decode()
        self.told.append(f"{self.path} {body}".strip())
        if self.path.startswith("/hangs"):
            self.go.wait(60)
        self.send_response(500 if self.path.startswith("/broken") else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def switch() -> Iterator[str]:
    _Switch.told.clear()
    _Switch.go.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Switch) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        _Switch.go.set()
        server.shutdown()
        thread.join()


@pytest.mark.needs("file")
def test_a_dead_mans_switch_is_told_of_the_start_and_of_the_end(site: Site, switch: str) -> None:
    run(site, "--every", "1d", "--ping", f"{switch}/a/?k=1", command=["true"])
    run(site, "--every", "1d", "--ping", f"{switch}/a", command=["true"])  # skipped: it proves nothing
    run(site, "--every", "1d", "--ping", f"{switch}/b", name="b", command=["sh", "-c", "exit 3"], code=3)
    _, err = run(site, "--every", "1d", "--ping", f"{switch}/broken", name="c", command=["true"])
    _, quiet = run(site, "--every", "1d", "--ping", f"{switch}/broken", "--quiet", name="d", command=["true"])
    _, refused = run(site, "--every", "1d", "--ping", "ftp://x", name="e", command=["true"], code=2)

    assert _Switch.told[:4] == ["/a/start?k=1", "/a?k=1 exit code 0", "/b/start", "/b/fail exit code 3"]
    assert "c: ping: 127.0.0.1 answers 500 to start\nc: ping: 127.0.0.1 answers 500 to success\n" in err
    assert quiet == ""
    assert "--ping: expected a URL" in refused


@pytest.mark.needs("file")
@pytest.mark.parametrize("where", ["hangs", "nobody listens"])
def test_a_switch_that_does_not_answer_changes_nothing_for_the_command(site: Site, switch: str, where: str) -> None:
    url = f"{switch}/hangs" if where == "hangs" else "http://127.0.0.1:9"
    patient = f"from tenure.guards import ping; ping.REQUEST_SECONDS = ping.LAST_SECONDS = 600.0; {TENURE}"
    call = Call(site, "--every", "1d", "--ping", url, command=["sh", "-c", "echo out; exit 3"], code=patient)

    until(lambda: [tick for tick in history(site) if tick.status == "failure"], "its end on record")
    assert call.process.poll() is None or where != "hangs"
    if where != "hangs":
        assert call.ended(3)[0] == b"out\n"
        return
    hasty = f"from tenure.guards import ping; ping.LAST_SECONDS = 0.1; {TENURE}"
    out, err = Call(site, "--every", "1d", "--ping", url, name="other", command=["echo", "out"], code=hasty).ended(0)
    assert (out, err) == (b"out\n", "other: ping: no answer from 127.0.0.1 within 0.1s\n")


#: It fails until its third run.
THIRD = "echo try; echo $$ >> pids; test $(wc -l < pids) -ge 3 || { echo no disk >&2; exit 3; }"
RETRY = ("--every", "1d", "--retries", "2", "--retry-pause", "20ms")


@pytest.mark.needs("file")
def test_a_command_that_fails_is_run_again_and_each_try_is_on_record(site: Site) -> None:
    out, err = run(site, *RETRY, command=["sh", "-c", THIRD])

    assert out == b"try\n" * 3
    said = [f"try {n} of 3: exit code 3; again in 20ms" for n in (1, 2)]
    assert [line for line in err.splitlines() if line != "no disk"] == [f"report: {text}" for text in said]
    (tick,) = history(site)
    assert (tick.status, tick.tries, tick.output) == ("success", 3, "try\n")
    (log,) = site.store.logs(tick.job_id or "").values()
    assert [line.text for line in decode(log).lines] == said
    assert site.store.schedules()[0].schedule.failure_count == 0


@pytest.mark.needs("file")
def test_retries_that_all_fail_are_one_failure(site: Site) -> None:
    out, _ = run(site, *RETRY, "--quiet", command=["sh", "-c", "echo no disk; exit 3"], code=3)

    assert out == b"no disk\n" * 3, "the output that was held back, of all tries"
    (tick,) = history(site)
    assert (tick.status, tick.tries, tick.why) == ("failure", 3, "exit code 3 (the last of 3 tries): no disk")
    assert run(site, *RETRY, "--quiet", name="other", command=["sh", "-c", THIRD])[0] == b""


@pytest.mark.needs("file")
@pytest.mark.parametrize(
    ("words", "command", "code", "said"),
    [
        (("--every", "1d"), ["no-such-command"], 127, "command not found"),
        (("--every", "1d"), ["sh", "-c", "echo $$ >> pids; kill -TERM $PPID; sleep 600"], 143, ""),
        (("--every", "1d", "--timeout", "300ms"), ["sh", "-c", "echo $$ >> pids; sleep 600"], 124, "timed out"),
        (("--every", "1d", "--timeout", "4m"), ["false"], 1, "not again: the next tick, or its timeout, is near"),
        (("--every", "4m"), ["false"], 1, "not again: the next tick, or its timeout, is near"),
    ],
    ids=["not found", "a signal", "timeout", "no time", "the next tick"],
)
def test_what_a_retry_would_not_help_or_has_no_time_is_not_tried_again(
    site: Site, words: Sequence[str], command: list[str], code: int, said: str
) -> None:
    _, err = run(site, *words, "--retries", "3", "--retry-pause", "5m", command=command, code=code)

    assert said in err
    assert "again in" not in err
    assert [(tick.status, tick.tries) for tick in history(site)] == [("failure", 1)]


@pytest.mark.needs("file")
def test_the_lock_is_held_between_two_tries_and_a_signal_ends_them(site: Site) -> None:
    call = Call(site, "--every", OFTEN, "--retries", "2", "--retry-pause", "0s", command=["sh", "-c", "exit 3"])
    call.ended(3)
    words = ("--every", "1d", "--retries", "2", "--retry-pause", "1h")
    call = Call(site, *words, name="other", command=["sh", "-c", "exit 3"])
    waits = until(lambda: site.store.search(Filter(task="other")).jobs, "its job")
    assert waits
    until(lambda: (site.store.get(waits[0].id) or waits[0]).message, "the word of the first try")

    _, err = run(site, *words, name="other", command=["sh", "-c", "exit 3"])
    assert "still locked until" in err
    call.process.send_signal(signal.SIGTERM)

    call.ended(3)
    (tick,) = history(site, "other")
    assert (tick.tries, tick.why) == (1, "ended by signal: SIGTERM was sent to its guard; exit code 3")


def test_a_guard_that_is_killed_between_two_tries_leaves_nothing_and_the_next_call_runs(site: Site) -> None:
    words = ("--every", "1d", "--retries", "3", "--retry-pause", "1h")
    call = Call(site, *words, command=["sh", "-c", "exit 3"])
    (first,) = until(lambda: history(site), "its tick") or ()
    until(lambda: job_of(site, first).message, "the word of the first try")
    left = children_of(call.pid)
    assert len(left) >= 6, "three tries that wait, and their watchers"

    call.kill()

    gone(left)
    run(site, "--every", "1d", "--force", command=["sh", "-c", "exit 0"])
    assert [tick.status for tick in history(site)] == ["failure", "success"]


@pytest.mark.needs("file")
@pytest.mark.parametrize(
    ("words", "said"), [(["--retries", "11"], "0 to 10"), (["--retry-pause", "x"], "--retry-pause")]
)
def test_retries_are_checked_before_anything_runs(site: Site, words: list[str], said: str) -> None:
    assert said in run(site, "--every", "1d", *words, command=["echo", "ran"], code=2)[1]


@pytest.mark.needs("file")
def test_what_is_left_in_the_background_goes_on_and_the_lock_is_free(site: Site) -> None:
    call = Call(site, "--every", OFTEN, command=["sh", "-c", f"sh -c 'echo $$ >> pids; {_WAIT}; echo went' & exit 0"])
    left = pids(site, 1)
    until(lambda: history(site) and history(site)[0].status == "success", "the tick to be written down")

    assert all(map(alive, left))
    run(site, "--every", OFTEN, command=["true"])

    site.go()
    assert call.ended(0)[0] == b"went\n"


@pytest.mark.needs("file")
@pytest.mark.parametrize(("exits", "code"), [(0, 75), (3, 3)])
def test_a_disk_that_is_full_after_the_work_is_said_as_such(site: Site, exits: int, code: int) -> None:
    full = (
        "from tenure.errors import StoreAway; from tenure.stores.sqlite import SqliteStore\n"
        "def finish(*_): raise StoreAway('database or disk is full')\n"
        f"SqliteStore.finish = SqliteStore.renew = finish; {TENURE}"
    )

    call = Call(site, "--every", "1d", command=["sh", "-c", f"echo went; exit {exits}"], code=full, lease="6s")

    out, err = call.ended(code)
    assert out == b"went\n"
    assert f"ended by itself (exit code {exits}), but that could not be recorded: database or disk is full" in err
    assert "lock is lost" not in err
    assert "lock was lost" not in err


def test_a_cancel_ends_the_command(site: Site) -> None:
    call = Call(site, "--every", OFTEN, command=["sh", "-c", WAITS], lease="9s")
    left = pids(site, 2)

    site.store.cancel([history(site)[0].job_id or ""], "not today")

    _, err = call.ended(143)
    assert "cancelled: not today" in err
    gone(left)
    assert [(tick.status, tick.why) for tick in history(site)] == [("cancelled", "not today")]


@pytest.mark.needs("file")
def test_a_store_that_cannot_be_ends_with_2_and_a_sentence(site: Site) -> None:
    env = {"TENURE_URL": "sqlite:////nowhere/tenure.db"}

    out, err = run(site, "--every", "1d", "--if-unreachable", "run", command=["echo", "ran"], code=2, env=env)

    assert (out, "/nowhere" in err, "Traceback" in err) == (b"", True, False)


@pytest.mark.needs("file")
def test_at_a_terminal_the_command_has_it_and_its_ctrl_c(site: Site) -> None:
    script = f"test -t 0 && test -t 1 && test -t 2 && echo terminals; echo $$ >> pids; {_WAIT}"
    call = Call(site, "--every", OFTEN, command=["sh", "-c", script], before=_AT_A_TERMINAL, given=subprocess.PIPE)
    pids(site, 1)

    out, _ = call.process.communicate(b"\x03", timeout=PATIENCE)

    assert (b"terminals" in out, call.process.returncode) == (True, 130)
    assert [tick.why for tick in history(site)] == ["signal 2 (SIGINT)"]


@pytest.mark.needs("file")
@pytest.mark.parametrize("script", [_WAIT, f"trap 'exit 130' INT; {_WAIT}"], ids=["the signal", "its exit code"])
def test_a_command_that_ctrl_c_ended_at_a_terminal_is_not_tried_again(site: Site, script: str) -> None:
    words = ("--every", "1d", "--retries", "2", "--retry-pause", "20ms")
    command = ["sh", "-c", f"echo $$ >> pids; {script}"]
    call = Call(site, *words, command=command, before=_AT_A_TERMINAL, given=subprocess.PIPE)
    pids(site, 1)

    out, _ = call.process.communicate(b"\x03", timeout=PATIENCE)

    assert (call.process.returncode, b"again in" in out) == (130, False)
    assert [(tick.status, tick.tries) for tick in history(site)] == [("failure", 1)]


# ── One at a time ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.everyday
@pytest.mark.everywhere
def test_of_two_that_overlap_one_says_skipped_and_comes_next_time(site: Site) -> None:
    first = Call(site, "--every", OFTEN, command=["sh", "-c", WAITS])
    pids(site, 2)

    out, err = run(site, "--every", OFTEN, "--skip-exit", "7", command=["sh", "-c", WAITS], code=7)
    forced, _ = run(site, "--every", OFTEN, "--force", "--skip-exit", "7", command=["sh", "-c", WAITS], code=7)

    assert (out, forced) == (b"", b"")
    assert err.startswith("report: skipped: still locked until ")
    assert f"{history(site)[0].host}, running for " in err
    site.go()
    assert first.ended(0)[0] == b"went\n"
    ran, late = run(site, "--every", OFTEN, command=["sh", "-c", WAITS])
    assert (ran, late.startswith("report: late by ")) == (b"went\n", True)


@pytest.mark.timeout(300)
def test_of_ten_at_once_one_runs(site: Site) -> None:
    calls = [Call(site, "--every", "1d", "--skip-exit", "7", command=["echo", "ran"]) for _ in range(10)]

    answers = [call.process.communicate(timeout=200) for call in calls]

    assert sorted(call.process.returncode for call in calls) == [0, *[7] * 9], answers
    assert [out for out, _ in answers if out] == [b"ran\n"]
    assert len(history(site)) == 1


@pytest.mark.needs("server")
def test_a_tick_that_two_hosts_call_for_runs_once(site: Site) -> None:
    half_a_year_away = (datetime.now(UTC).month + 5) % 12 + 1  # no tick falls between the two calls
    words = ("--cron", f"0 6 15 {half_a_year_away} *", "--skip-exit", "7")
    calls = [Call(site, *words, command=["echo", "ran"], host=f"host-{n}") for n in (1, 2)]

    answers = [call.process.communicate(timeout=PATIENCE) for call in calls]

    assert sorted(call.process.returncode for call in calls) == [0, 7], answers
    assert len(history(site)) == 1


def test_a_run_longer_than_its_lease_keeps_its_lock(site: Site) -> None:
    first = Call(site, "--every", OFTEN, command=["sh", "-c", WAITS], lease=f"{LEASE}s")
    pids(site, 2)
    begun = history(site)[0].decided_at
    until(lambda: (site.store.now() - begun).total_seconds() > 1.1 * LEASE, "more than a lease to pass")

    run(site, "--every", OFTEN, "--skip-exit", "7", command=["sh", "-c", WAITS], code=7)

    site.go()
    first.ended(0)
    assert [tick.status for tick in history(site)] == ["success"]


# ── Kills ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.everyday
def test_a_killed_guard_takes_its_command_with_it_and_the_next_call_runs_at_once(site: Site) -> None:
    call = Call(site, "--every", OFTEN, command=["sh", "-c", WAITS])
    left = pids(site, 2)

    call.kill()

    gone(left)
    assert run(site, "--every", OFTEN, command=["echo", "next"])[0] == b"next\n"
    crashed, ran = history(site)
    assert (crashed.status, ran.status) == ("failure", "success")
    assert f"-{call.pid}-" in crashed.why
    assert job_of(site, crashed).state is State.DEAD
    assert [each.outcome for each in site.store.attempts(crashed.job_id or "")] == ["crashed"]
    assert site.store.counts().get(State.QUEUED, 0) == 0


def test_what_has_left_the_group_of_a_killed_guards_command_ends_too(site: Site) -> None:
    call = Call(site, "--every", OFTEN, command=["sh", "-c", f"setsid sh -c '{STUBBORN}' & wait"])
    left = pids(site, 1)

    call.kill()

    gone(left)


@pytest.mark.needs("server")
def test_the_lock_of_a_lost_host_holds_until_its_lease_ends_and_no_longer(site: Site) -> None:
    command = ["sh", "-c", f"[ -e lost ] || {{ {WAITS}; }}"]
    call = Call(site, "--every", OFTEN, command=command, host="host-1", lease=f"{LEASE}s")
    pids(site, 2)
    call.kill()
    (site.folder / "lost").touch()
    locked_until = site.store.schedules(["report"])[0].runs[0].locked_until
    assert locked_until is not None

    answers: list[int] = []
    called_at = locked_until
    while 0 not in answers:
        assert called_at <= locked_until, f"it had ended before the last of these calls: {answers}"
        called_at = site.store.now()
        second = Call(site, "--every", OFTEN, "--skip-exit", "7", command=command, host="host-2", lease=f"{LEASE}s")
        second.process.communicate(timeout=PATIENCE)
        answers.append(second.process.returncode)

    assert set(answers) <= {0, 7}
    assert history(site)[1].decided_at > locked_until
    assert "host-1-" in history(site)[0].why


def test_a_stopped_guard_loses_its_lock_after_its_command_is_killed(site: Site) -> None:
    call = Call(site, "--every", OFTEN, command=["sh", "-c", STUBBORN], lease=f"{LEASE}s")
    left = pids(site, 1)
    send(call.pid, signal.SIGSTOP)

    def second() -> bool:
        look = f"grep -qs 'State:.[RSDT]' /proc/{left[0]}/status && echo beside || echo alone"
        other = Call(site, "--every", OFTEN, "--skip-exit", "7", command=["sh", "-c", look])
        out, _ = other.process.communicate(timeout=PATIENCE)
        assert out in (b"", b"alone\n")
        return bool(out)

    until(second, "the lock to end")
    send(call.pid, signal.SIGCONT)

    _, err = call.ended(75)
    assert "the lock was lost" in err
    assert [tick.status for tick in history(site)] == ["failure", "success"]


# ── The store away ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.needs("server")
def test_a_store_out_of_reach_ends_with_75_or_runs_unguarded(site: Site) -> None:
    with Proxy("127.0.0.1", 1) as nowhere:
        env = {"TENURE_URL": by_way_of(site.place.url, nowhere.port)}
    out, err = Call(site, "--every", "1d", command=["echo", "ran"], code=IMPATIENT, env=env).ended(75)
    words = ("--every", "1d", "--if-unreachable", "run")
    ran, says = Call(site, *words, command=["sh", "-c", "echo ran; exit 3"], code=IMPATIENT, env=env).ended(3)

    assert (out, ran) == (b"", b"ran\n")
    assert err.startswith("report: not run: the store was out of reach for 300ms")
    assert says.startswith("report: running unguarded: the store was")


class TestAnOutage:
    """Of the line to the server, while a command runs."""

    pytestmark = pytest.mark.needs("server")

    @pytest.fixture
    def line(self, server: Server) -> Iterator[Proxy]:
        with Proxy("127.0.0.1", server.process.port) as line:
            yield line

    @pytest.fixture
    def place(self, place: Place, server: Server) -> Place:
        return there(place, server)

    def call(self, site: Site, line: Proxy, lease: str, command: str = WAITS) -> Call:
        env = {"TENURE_URL": by_way_of(site.place.url, line.port)}
        return Call(site, "--every", OFTEN, command=["sh", "-c", command], lease=lease, env=env)

    def test_shorter_than_the_lease_it_costs_nothing(self, site: Site, line: Proxy) -> None:
        call = self.call(site, line, "30s")
        pids(site, 2)

        line.refuse()
        site.go()
        until(lambda: not alive(pids(site, 2)[0]), "the command to end")
        assert history(site)[0].status == "open"
        line.heal()

        assert call.ended(0)[0] == b"went\n"
        assert [(tick.status, tick.output) for tick in history(site)] == [("success", "went\n")]

    def test_longer_than_that_the_command_is_ended_before_the_lock_does(self, site: Site, line: Proxy) -> None:
        call = self.call(site, line, f"{LEASE}s", BEATS)
        left = pids(site, 2)

        line.blackhole()
        locked_until = site.store.schedules(["report"])[0].runs[0].locked_until
        gone(left)

        assert locked_until is not None
        assert max(map(float, (site.folder / "beats").read_text().split())) < locked_until.timestamp()
        line.refuse()
        _, err = call.ended(75)
        assert "the lock was lost" in err
        run(site, "--every", OFTEN, command=["true"])
        assert [tick.status for tick in history(site)] == ["failure", "success"]
