"""`tenure demo`, run as its users run it. It kills a worker itself; here the demo and its supervisor are killed too."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import pytest

from tenure.demo.history import make_up

from .backends import Place
from .harness import until

CHECKS = [
    "greet: both succeeded",
    "later: ran 3s later, not earlier",
    "flaky: failed once, then succeeded",
    "doomed: is a dead letter after its last retry, with its payload and its error",
    "code_evolution: its worker was killed in the middle of it",
    "code_evolution: another worker took over",
    "code_evolution: continued from its checkpoint, not from the start",
    "code_evolution: was charged one crash and no failure",
    "code_evolution: counted every commit exactly once",
    "code_evolution: drew its picture",
    "nothing is left running",
]
SMALL = """
import sys
from tenure.cli import demo
from tenure.cli.main import main
from tenure.demo import history

history.MADE_UP, demo.ANALYSIS_SECONDS = 120, 9.0  # less, and it ends on a slow machine before it is killed
sys.exit(main(["demo", *sys.argv[1:]]))
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """The demo in a folder of its own, with a small history. Its files are below `tmp_path`, and so named."""
    (tmp_path / "tmp").mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}

    started: list[subprocess.Popen[str]] = []

    def start(*argv: str, **environment: str) -> subprocess.Popen[str]:
        env = {**clean, "TMPDIR": str(tmp_path / "tmp"), "PYTHONUNBUFFERED": "1", **environment}
        command, pipe = [sys.executable, "-c", SMALL, *argv], subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path, env=env))
        return started[-1]

    yield start
    for demo in started:
        demo.kill()
        demo.communicate()


def ended(demo: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = demo.communicate(timeout=100)
    return demo.returncode, out, err


def read_until(words: str, stream: IO[str] | None) -> None:
    assert stream is not None
    assert any(words in line for line in stream), f"{words!r} was never said"


def processes_of(folder: Path) -> dict[int, str]:
    """Processes with a file of this folder on their command line: the supervisor and its workers."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    found = (line.split(maxsplit=1) for line in listed.splitlines() if str(folder) in line)
    return {int(pid): args for pid, args in found}


def assert_nothing_is_left(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while left := processes_of(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_real_work_survives_a_killed_worker(start: Start, tmp_path: Path) -> None:
    code, out, err = ended(start())

    assert (code, err) == (0, ""), out
    assert re.findall(r"[✓✗] (\w+: .+|nothing .+)", out) == CHECKS
    assert "✗" not in out.partition("Checks")[2]
    assert re.search(r"killed worker \S+ \(pid \d+\) with SIGKILL at commit \d+ of 120", out)
    assert re.search(r"worker \S+ took over \S+ after the kill, from the checkpoint at commit (25|50|75|100)", out)
    words = (
        r"doomed  [0-9a-f-]{36}  3 of 3 failures  \d\d:\d\d:\d\d UTC\n +\{\W+order\W+4711\}  LookupError: order 4711"
    )
    assert re.search(words, out.partition("Dead letters")[2])
    assert "observatory  120 commits by 6 authors" in out
    assert (tmp_path / ".demo" / "code-evolution.svg").read_text().startswith("<svg")
    assert list((tmp_path / "tmp").iterdir()) == []
    assert processes_of(tmp_path) == {}


@pytest.mark.needs("server")
def test_it_is_the_same_on_a_server_with_any_doorbell(start: Start, place: Place) -> None:
    code, out, err = ended(start("--url", place.url, "--notifier", place.notifier, TENURE_NAMESPACE=place.namespace))

    assert (code, err) == (0, ""), out
    assert re.findall(r"[✓✗] (\w+: .+|nothing .+)", out) == CHECKS
    assert urlsplit(place.url).password not in out


def test_without_git_it_says_what_is_missing_and_runs_the_rest(start: Start, tmp_path: Path) -> None:
    code, out, err = ended(start("--json", PATH=str(tmp_path / "tmp")))

    report = json.loads(out)
    assert (code, err, report["ok"], report["history"]) == (0, "", True, None)
    assert [check["name"] for check in report["checks"]] == [*CHECKS[:4], CHECKS[-1]]
    assert [job["payload"] for job in report["dead_letters"]] == [{"order": 4711}]


def test_a_supervisor_that_ends_too_early_is_told_with_its_last_words(start: Start, tmp_path: Path) -> None:
    demo = start()
    read_until("code_evolution: processing", demo.stdout)

    supervisor = next(pid for pid, args in processes_of(tmp_path).items() if "tenure.cli.demo_supervisor " in args)
    os.kill(supervisor, signal.SIGKILL)
    code, out, err = ended(demo)

    assert (code, err) == (1, "")
    assert "✗ code_evolution: counted every commit exactly once" in out
    assert "The supervisor ended too early, with exit code -9." in out
    assert re.search(
        "started with 5 slots|LookupError: order|ConnectionError: the network", out.partition("last log lines")[2]
    )
    assert_nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)], ids=lambda it: str(it)
)
def test_nothing_is_left_of_a_demo_that_is_told_to_stop(
    start: Start, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    demo = start()
    read_until("code_evolution: processing", demo.stdout)
    until(lambda: len(processes_of(tmp_path)) >= 2, "a supervisor and its worker")

    demo.send_signal(number)
    returned, _, err = ended(demo)

    assert returned == code
    assert "Traceback" not in err
    assert_nothing_is_left(tmp_path)


def test_a_history_long_enough_is_taken_as_it_is(start: Start, tmp_path: Path) -> None:
    make_up(tmp_path / "tiny", 3)
    make_up(tmp_path / "long", 105)

    for repo, said in (("tiny", "tiny has too few commits for a demo (3)"), ("long", "analyses 105 commits of long")):
        demo = start("--repo", repo)
        read_until(said, demo.stdout)
        demo.terminate()
        assert ended(demo)[0] == 143


def test_what_is_no_repository_is_refused_in_a_sentence(start: Start) -> None:
    code, _, err = ended(start("--repo", "nowhere"))

    assert code == 2
    assert err.startswith("--repo: expected the path or URL of a git repository, but there is no folder ")
    assert err.count("\n") == 1
