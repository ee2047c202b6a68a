"""Real supervisors and workers in a folder of their own, and a ledger of what their handlers did.

The ledger knows nothing of the engine: handlers append a line (boot time, job, attempt, pid, event) with one write,
and `overlaps` reads it. Processes are ended by their pid, and only those that carry this site's ledger in their
environment.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import tenure
from tenure.app.backends import open_store
from tenure.config import load
from tenure.core.clock import system_clock
from tenure.core.lifecycle import ENDED, LIVE
from tenure.ports import AttemptView, Filter, JobView, WorkerView
from tenure.tasks.handle import JobHandle

from . import shop
from .backends import Place

T = TypeVar("T")

FULL = os.environ.get("TENURE_TEST_FULL") == "1"
HERE = Path(__file__).parent
SOURCE = Path(tenure.__file__).parents[1]
boot = system_clock().boot
#: Seconds for what takes one on a quiet machine: among four whole runs of the tests, a worker needed more than 30 to
#: start. A test as a whole has 120.
PATIENCE = 90.0


class Line(NamedTuple):
    """One line of the ledger; `at` is boot-clock seconds."""

    at: float
    job: str
    attempt: int
    pid: int
    event: str


def alive(pid: int) -> bool:
    """Is it there, and not only its zombie?"""
    return state(pid) not in ("", "Z", "X")


def state(pid: int) -> str:
    """As the kernel says: R, S, D, T, Z …; '' if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    except OSError:
        return []


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def until(condition: Callable[[], T | None], what: str, seconds: float = PATIENCE, told: Callable[[], str] = str) -> T:
    """The first true answer. If none comes in time, an AssertionError with all that is known."""
    deadline = boot() + seconds
    while True:
        found = condition()
        if found:
            return found
        if boot() > deadline:
            raise AssertionError(f"waited {seconds:g} s for: {what}\n{told()}")
        time.sleep(0.005)


class Supervised:
    """A supervisor process of this site."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: Path, log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, env=env, cwd=folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL, process_group=0
            )
        self.pid = self.process.pid

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def workers(self) -> list[int]:
        return [pid for pid in children(self.pid) if alive(pid)]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def exit_code(self, seconds: float = PATIENCE) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the supervisor has not ended in {seconds:g} s\n{self.log()[-4000:]}") from None

    def stop(self) -> int:
        """Send one SIGTERM, and wait for the end."""
        self.signal(signal.SIGTERM)
        return self.exit_code()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Site:
    """A store, a folder with a ledger, and the supervisors of one test. `ready`: the store has its schema."""

    def __init__(self, folder: Path, place: Place, *, ready: bool = True) -> None:
        self.folder = folder
        self.place = place
        self._ready = ready
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self._runtime = tempfile.mkdtemp(prefix="tn")
        self._supervisors: list[Supervised] = []
        self.store = open_store(load(asdict(place)))
        self.url = self.store.url  #: without its password

    def __enter__(self) -> Self:
        if self._ready:  # otherwise it is opened later
            self.store.open()
        self.configure()
        return self

    def configure(self, **flags: object) -> None:
        """The settings of `shop.jobs` in this process. Only before its first use."""
        shop.jobs.configure({**asdict(self.place), "runtime_dir": self._runtime, **flags})

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shop.jobs.__exit__(None, None, None)
        self.store.close()
        self.clear()
        shutil.rmtree(self._runtime)

    def clear(self) -> None:
        """End everything that was started here."""
        for supervisor in self._supervisors:
            supervisor.kill()
        until(lambda: not _kill_all(self.living()), "all leftovers to end")

    def living(self) -> list[int]:
        """Every process that was started here, or by one that was."""
        return _carriers(f"TENURE_TEST_LEDGER={self.ledger}".encode())

    # ── processes ──

    def supervisor(
        self,
        *,
        before: Sequence[str] = (),
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
        faults: Mapping[str, object] | None = None,
        lease: str = "30s",
        spares: int = 0,
        **order: Any,
    ) -> Supervised:
        """Start one. `before`: words before its command; `python`: what runs it; `order`: as in `tenure worker`.

        Without spares, unlike `tenure worker`: then each child that it has is one of its workers.
        """
        given = {"app": "shop", **order}
        command = [*before, python, "-m", "tenure.cli.supervise", json.dumps(given)]
        log = self.folder / f"supervisor-{len(self._supervisors)}.log"
        more = {"TENURE_SPARES": str(spares), **(env or {})}
        supervisor = Supervised(command, self.env(lease, faults or {}, more), self.folder, log)
        self._supervisors.append(supervisor)
        return supervisor

    def env(self, lease: str, faults: Mapping[str, object], more: Mapping[str, str]) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TENURE_", "_TENURE"))}
        return {
            **clean,
            "PYTHONPATH": f"{SOURCE}{os.pathsep}{HERE}",
            "TENURE_URL": self.place.url,
            "TENURE_NAMESPACE": self.place.namespace,
            "TENURE_NOTIFIER": self.place.notifier,
            "TENURE_LEASE": lease,
            "TENURE_RUNTIME_DIR": self._runtime,
            "TENURE_TEST_LEDGER": str(self.ledger),
            "TENURE_TEST_FAULTS": json.dumps(dict(faults)),
            **more,
        }

    def logs(self) -> str:
        return "\n".join(f"── {each._log.name}\n{each.log()[-3000:]}" for each in self._supervisors)

    def log_of(self, word: str) -> str:
        """What the supervisors have logged about `word`, such as a worker's id."""
        lines = (line for each in self._supervisors for line in each.log().splitlines() if word in line)
        return "\n".join(lines)[:3000]

    def go(self, word: str = "go") -> None:
        """Tell the handlers that wait for this word."""
        (self.folder / word).touch()

    def hold(self) -> None:
        """Later arrivals wait again."""
        (self.folder / "go").unlink()

    # ── the ledger ──

    def lines(self, job: JobHandle[Any] | None = None, event: str = "", attempt: int = 0) -> list[Line]:
        """The lines of this job with an event that starts so."""
        return [
            line
            for line in read_ledger(self.ledger)
            if (job is None or line.job == str(job.id))
            and line.event.startswith(event)
            and (not attempt or line.attempt == attempt)
        ]

    # ── waiting ──

    def until(self, condition: Callable[[], T | None], what: str, seconds: float = PATIENCE) -> T:
        return until(condition, what, seconds, lambda: f"{self._told()}\n{self.logs()}")

    def seen(self, job: JobHandle[Any], event: str, *, attempt: int = 0, seconds: float = PATIENCE) -> Line:
        """Wait for the first such line of the ledger."""
        what = f"{event!r} of {job.id}, attempt {attempt or 'any'}"
        return self.until(lambda: self.lines(job, event, attempt), what, seconds)[0]

    def ended(self, *jobs: JobHandle[Any], seconds: float = PATIENCE) -> list[JobView]:
        """Wait until these jobs have ended."""
        return [
            self.until(lambda handle=handle: self._ended(handle), f"the end of {handle.id}", seconds)  # type: ignore[misc]
            for handle in jobs
        ]

    def _ended(self, handle: JobHandle[Any]) -> JobView | None:
        view = self.job(handle)
        return view if view.ended_at is not None else None

    # ── the store ──

    def job(self, handle: JobHandle[Any]) -> JobView:
        found = self.store.get(str(handle.id))
        assert found is not None, f"job {handle.id} is lost"
        return found

    def attempts(self, handle: JobHandle[Any]) -> list[AttemptView]:
        return sorted(self.store.attempts(str(handle.id)), key=lambda each: each.attempt)

    def outcomes(self, handle: JobHandle[Any]) -> list[str]:
        """How those of its attempts ended that did not complete."""
        return [each.outcome for each in self.attempts(handle)]

    def worker(self, handle: JobHandle[Any]) -> WorkerView:
        """The worker that runs this job."""
        return next(each for each in self.store.workers() if each.identity.id == self.job(handle).worker_id)

    def _told(self) -> str:
        jobs = [job for states in (LIVE, ENDED) for job in self.store.search(Filter(states=states), limit=40).jobs]
        rows = (
            f"{job.id} {job.task} {job.state} attempt {job.attempt} crashes {job.crashes} {job.error}" for job in jobs
        )
        return "\n".join([*rows, "── ledger", *self.ledger.read_text().splitlines()[-20:]])


def _kill_all(pids: Sequence[int]) -> Sequence[int]:
    for pid in pids:
        send(pid, signal.SIGKILL)
    return pids


def _carriers(mark: bytes) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if alive(pid)]


# ── A disk that can be full ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def small_disk(folder: Path, mebibytes: int = 32) -> Generator[Path | None]:
    """A file system of its own, or None where we may not mount one."""
    disk = folder / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(disk)], capture_output=True, check=False
    )
    if made.returncode != 0:
        yield None
        return
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@contextmanager
def filled(disk: Path) -> Generator[None]:
    """No process can write a byte to it meanwhile."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 512):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    yield
    filler.unlink()


# ── Judging the ledger ──────────────────────────────────────────────────────────────────────────────────────────


def read_ledger(path: Path) -> list[Line]:
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
    words = [line.split(" ", 4) for line in whole.splitlines()]
    return [Line(int(at) / 1e9, job, int(attempt), int(pid), event) for at, job, attempt, pid, event in words]


@dataclass(frozen=True)
class Run:
    """One attempt as the ledger has it. `end`: it said so, or its process was killed then; None: unknown."""

    job: str
    attempt: int
    pid: int
    begin: float
    last: float
    end: float | None


def runs_of(lines: Iterable[Line], killed: Mapping[int, float] | None = None) -> dict[str, list[Run]]:
    """The attempts of each job in order of their begin. `killed`: pids, and when we sent the signal."""
    found: dict[tuple[str, int, int], list[Line]] = defaultdict(list)
    for line in lines:
        if line.job != "-":
            found[line.job, line.attempt, line.pid].append(line)
    runs: dict[str, list[Run]] = defaultdict(list)
    for (job, attempt, pid), mine in found.items():
        end = next((line.at for line in mine if line.event == "end"), None)
        last = max(line.at for line in mine)
        if end is None and killed is not None and pid in killed:
            end = max(killed[pid], last)
        runs[job].append(Run(job, attempt, pid, min(line.at for line in mine), last, end))
    for mine_runs in runs.values():
        mine_runs.sort(key=lambda run: run.begin)
    return runs


def overlaps(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """Attempts of one job that ran at once, began out of order, or twice; as sentences."""
    found: list[str] = []
    for job, mine in runs.items():
        for before, after in pairwise(mine):
            end = max(before.last, before.end or 0.0)
            if after.attempt <= before.attempt:
                found.append(f"{job}: attempt {after.attempt} began after attempt {before.attempt}")
            if after.begin < end:
                found.append(f"{job}: attempt {after.attempt} began {end - after.begin:.3f} s too early")
    return found


def most_at_once(runs: Iterable[Run]) -> int:
    """How many of these ran at the same time, at most."""
    edges = [edge for run in runs for edge in ((run.begin, 1), (max(run.last, run.end or 0.0), -1))]
    return max(accumulate(step for _, step in sorted(edges)), default=0)


# ── Figures ─────────────────────────────────────────────────────────────────────────────────────────────────────


def spread(values: Sequence[float]) -> str:
    """p50, p95 and the most, in milliseconds."""
    if not values:
        return "none"
    ordered = sorted(values)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    p50 = statistics.median(ordered)
    return f"p50 {p50 * 1000:.0f} ms, p95 {p95 * 1000:.0f} ms, most {ordered[-1] * 1000:.0f} ms (n={len(ordered)})"
