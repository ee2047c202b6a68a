"""Runs a script as a user would write it: in a process and a folder of its own, under a time limit.

A script that hangs shows the stack of each of its Python processes, and nothing that it started outlives the test.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import apsw

import tenure
from tenure.app.backends import open_store
from tenure.config import Settings, load
from tenure.ports import Store

SOURCE = Path(tenure.__file__).parents[1]
LIMIT = 150.0  #: seconds for a script: up to four processes start, one after the other, on a busy machine
TOKEN = "PROGRAMS_TOKEN"
_STACKS_SECONDS = 1.0
# In the environment of every Python process of a script: a signal makes it print the stacks of its threads.
_STACKS = """
import faulthandler, signal, sys
if sys.stderr is not None:
    faulthandler.register(signal.SIGUSR2, all_threads=True)
"""


@dataclass(frozen=True)
class Ran:
    """What a script printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Programs:
    """The scripts of one test: they share a folder, a store and a runtime folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str], runtime: str) -> None:
        self.folder = folder
        self._token = secrets.token_hex(8)
        site = folder / ".site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(_STACKS)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TENURE_", "_TENURE"))}
        self.environment = {
            **clean,
            "PYTHONPATH": f"{site}{os.pathsep}{SOURCE}",
            "PYTHONWARNINGS": "ignore",
            "TENURE_RUNTIME_DIR": runtime,
            TOKEN: self._token,
            **environment,
        }

    def write(self, script: str, name: str = "program.py") -> Path:
        path = self.folder / name
        path.write_text(textwrap.dedent(script))
        return path

    def run(self, script: str, *arguments: str, limit: float = LIMIT, code: int | None = 0) -> Ran:
        """Run a script to its end. `code`: how it must end (None: in any way)."""
        with self.started(sys.executable, str(self.write(script)), *arguments) as process:
            return self.ended(process, limit, code)

    def work(self, script: str, *arguments: str, limit: float = LIMIT, code: int | None = 0) -> Ran:
        """Have `tenure worker` run all the queued jobs of the app in this script."""
        path = self.write(script, "app.py")
        command = (sys.executable, "-c", "from tenure.cli.main import run; run()", "worker", str(path), "--until-empty")
        with self.started(*command, *arguments) as process:
            return self.ended(process, limit, code)

    @contextmanager
    def started(self, *command: str) -> Generator[subprocess.Popen[str]]:
        """A process with the default signals; all that it started is killed at the end."""
        before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        try:
            yield process
        finally:
            self._end_all()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def ended(self, process: subprocess.Popen[str], limit: float = LIMIT, code: int | None = 0) -> Ran:
        """Wait for its end, and for that of everything that could still write to its output."""
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            for pid in self._living():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR2)
            time.sleep(_STACKS_SECONDS)
            self._end_all()
            out, err = process.communicate()
            raise AssertionError(f"it has not ended within {limit:g} s\n{out}\n{err}") from None
        if code is not None and process.returncode != code:
            raise AssertionError(f"it ended with {process.returncode}, expected {code}\n{out}\n{err}")
        return Ran(process.returncode, out, err)

    def _living(self) -> list[int]:
        return list(_carriers(f"{TOKEN}={self._token}".encode()))

    def _end_all(self) -> None:
        while left := self._living():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    # ── the store ──

    @property
    def settings(self) -> Settings:
        return load(environ=self.environment, folder=self.folder)

    @contextmanager
    def store(self) -> Iterator[Store]:
        """The store, opened by this process, after the scripts have ended."""
        store = open_store(self.settings)
        store.open()
        try:
            yield store
        finally:
            store.close()

    def stored(self) -> int:
        """How many jobs there are, of any state. A SQLite file must also be sound."""
        with self.store() as store:
            found = sum(store.counts().values())
            url = store.url
        if url.startswith("sqlite:"):
            connection = apsw.Connection(url.removeprefix("sqlite:///"))
            assert connection.pragma("integrity_check") == "ok"
            connection.close()
        return found


def _carriers(marker: bytes) -> Iterator[int]:
    """Every process with this in its environment, except zombies."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker in (entry / "environ").read_bytes().split(b"\0"):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    yield int(entry.name)
        except OSError:
            continue


def runtime_folder() -> str:
    return tempfile.mkdtemp(prefix="tn")
