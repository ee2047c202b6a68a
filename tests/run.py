"""`make test` and `make test-all`: pytest with a limit for the whole run, which ends red and leaves no process behind.

    python tests/run.py everyday [pytest's arguments]     the everyday tests: minutes
    python tests/run.py all [pytest's arguments]          everything
    python tests/run.py rest [pytest's arguments]         everything that has not just passed in `everyday`

When the limit has passed, it names the tests that were running, shows the stacks of the processes that ran them, and
kills every process that the run started. They are found by a variable in their environment, even those that have
left the process group. TESTS_MINUTES sets another limit; a SIGALRM signals that it has passed.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

RUN, FOLDER = "TESTS_RUN", "TESTS_RUN_FOLDER"
STACKS_SECONDS = 3.0
LEFT_SECONDS = float(
    os.environ.get("TESTS_LEFT_SECONDS") or 30.0
)  #: servers and browsers end with the run, and need a moment
KEEPERS_SECONDS = 30.0  #: how long a keeper of servers.py may take to stop its server, once its starter has gone
HERE = Path(__file__).parent
WAITING = [
    "tests/crash",
    "tests/chaos",
    *sorted(f"tests/web/{each.name}" for each in HERE.glob("web/test_browser*.py")),
]
MORE_THAN_CORES = str(max(4, (os.cpu_count() or 2) + 2))  # tests wait, too, and don't only compute
CORES = str(max(2, os.cpu_count() or 2))
EVERYTHING = (
    ("-n", CORES, "tests", *(f"--ignore={each}" for each in WAITING)),
    ("-n", MORE_THAN_CORES, "--dist", "loadgroup", *WAITING),
)


class Overdue(Exception):
    """The run has taken longer than it may."""


class Process(NamedTuple):
    pid: int
    cmdline: list[str]


class Kind(NamedTuple):
    minutes: float
    phases: tuple[tuple[str, ...], ...]  #: pytest's arguments, one run after the other
    left_out: str


KINDS = {
    "everyday": Kind(
        20,
        (("--everyday", "-n", MORE_THAN_CORES, "tests"),),
        "left to make test-all: every crash story on every backend, all of chaos, all browser tests, slow cases, and "
        "the tests of the test bench itself (CONTRIBUTING.md has the table)",
    ),
    "all": Kind(80, EVERYTHING, ""),
    "rest": Kind(80, tuple(("--rest", *phase) for phase in EVERYTHING), ""),
}


def main(name: str, arguments: list[str]) -> int:
    kind = KINDS[name]
    minutes = float(os.environ.get("TESTS_MINUTES") or kind.minutes)
    signal.signal(signal.SIGALRM, _raise_overdue)
    signal.setitimer(signal.ITIMER_REAL, minutes * 60)
    folder, token = Path(tempfile.mkdtemp(prefix="tenure-tests-")), secrets.token_hex(8)
    # A separate cache: nothing of this user's is read, and a read-only home does not matter.
    environment = {**os.environ, RUN: token, FOLDER: str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes would compile all that they import
    failed = 0
    try:
        _compile(environment)
        for phase in kind.phases:
            failed = _pytest([*phase, *arguments], environment) or failed
        if kind.left_out and not failed:
            print(kind.left_out, flush=True)
    except Overdue:
        failed = 1
        print(_where_it_was(folder, minutes), flush=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        left = _end_all(token, 0.0 if failed else LEFT_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
    if left and not failed:
        print("FAILED: these processes outlived the tests, and were killed:\n" + "\n".join(left), flush=True)
        return 1
    return failed


def _compile(environment: dict[str, str]) -> None:
    """In a new clone, compile the tests, on all cores: or each of pytest's workers would compile all of them."""
    if (HERE / "unit/__pycache__").exists():
        return
    parts = [HERE / "unit"], [each for each in HERE.iterdir() if each.is_dir() and each.name != "unit"]
    command = [sys.executable, "-m", "pytest", "-qq", "--everyday", "--collect-only", "-p", "no:cacheprovider"]
    nothing = subprocess.DEVNULL
    collecting = [
        subprocess.Popen([*command, *map(str, part)], cwd=HERE.parent, env=environment, stdin=nothing, stdout=nothing)
        for part in parts
    ]
    for each in collecting:
        each.wait()  # what it could not import, the tests themselves report


def _pytest(arguments: list[str], environment: dict[str, str]) -> int:
    """Its exit code. Raises Overdue."""
    # A process that was killed is replaced, but not forever: with groups, xdist hands out the same test again.
    command = [sys.executable, "-m", "pytest", "-q", "--max-worker-restart=2", *arguments]
    pytest = subprocess.Popen(command, cwd=HERE.parent, env=environment, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGINT, lambda number, frame: None)  # a terminal's Ctrl-C reaches pytest by itself
    signal.signal(signal.SIGTERM, lambda number, frame: pytest.terminate())
    return pytest.wait()


def _raise_overdue(number: int, frame: object) -> NoReturn:
    raise Overdue


def _where_it_was(folder: Path, minutes: float) -> str:
    """Which tests were running, and the stacks of their processes."""
    running: list[str] = []
    for file in sorted(folder.glob("*.test")):
        if test := file.read_text():
            running.append(test)
            with suppress(ProcessLookupError):
                os.kill(int(file.stem.rpartition("-")[2]), signal.SIGUSR1)  # watchdog.py writes its stacks
    time.sleep(STACKS_SECONDS)
    stacks = [text for file in sorted(folder.glob("*.stacks")) if (text := file.read_text())]
    verdict = f"FAILED: the run took more than {minutes:g} minutes and was ended. It was running:"
    return "\n".join(["", *stacks, verdict, *(running or ["no test"])])


def _end_all(token: str, patience: float) -> list[str]:
    """Wait for the processes to end, then kill the rest; returns the commands of those that were killed."""
    until = time.monotonic() + patience
    while (left := _carriers(token)) and time.monotonic() < until:
        time.sleep(0.2)
    commands = [f"{process.pid} {shlex.join(process.cmdline)}" for process in left]
    until = time.monotonic() + KEEPERS_SECONDS
    while left := _carriers(token):
        late = time.monotonic() > until
        for process in left:
            # Keepers are spared: only they stop a server that has overwritten its environment with its title.
            if late or "servers.py" not in (Path(word).name for word in process.cmdline):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.05)
    return commands


def _carriers(token: str) -> list[Process]:
    """Every process with this token in its environment, except this one and zombies."""
    found: list[Process] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{RUN}={token}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    words = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                    found.append(Process(int(entry.name), [word.decode(errors="replace") for word in words]))
        except OSError:
            continue
    return found


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in KINDS:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
