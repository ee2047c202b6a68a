"""`tenure demo`: jobs that succeed, run later, fail once and fail permanently, and a long one whose worker is killed.

The supervisor, the workers and the SIGKILL are real. Each expected result is checked and listed by name.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING
from uuid import uuid4

from tenure.cli.demo_screen import Check, Kill, Report, Screen, Takeover
from tenure.cli.demo_supervisor import running_supervisor
from tenure.cli.output import print_error, show_json
from tenure.cli.shared import Shared, admin_of, signals_end_it
from tenure.config import redact
from tenure.core.durations import spell
from tenure.core.lifecycle import ENDED, State
from tenure.demo.history import History, find_history
from tenure.errors import InvalidOption, TenureError
from tenure.ports import Filter

if TYPE_CHECKING:
    from tenure.demo.code_evolution import Summary
    from tenure.operations.admin import Admin
    from tenure.ports import JobView, WorkerIdentity

SHARED = Shared()
GRACE = "1s"
LATER = "3s"
ANALYSIS_SECONDS = 9.0
KILL_AT = 0.4
PATIENCE_SECONDS = 120.0
_LOOK_SECONDS = 0.1
_LAST_LINES = 15
_PICTURE = Path(".demo") / "code-evolution.svg"
_ANALYSIS = "code_evolution"


def demo(
    *,
    repo: str | None = None,
    notifier: str | None = None,
    keep: bool = False,
    web: bool = False,
    listen: str | None = None,
    shared: Shared = SHARED,
) -> int:
    """Run jobs of every kind, and a long one whose worker is killed half-way and that completes nevertheless.

    It takes about 15 seconds, on a fresh SQLite file unless --url names a store. Nothing is left running.
    With --web it serves the dashboard over such a store, with buttons to try, until Ctrl-C.

    Parameters
    ----------
    repo
        Path or URL of the git repository to analyse. Default: that of this folder.
    notifier
        The doorbell: auto (the store's own), poll, or nats://host:port.
    keep
        Keep the demo's folder, with its store and its log.
    web
        Serve the dashboard, with workers, jobs of every kind, and a page of buttons.
    listen
        HOST:PORT of the dashboard. Default: TENURE_LISTEN, else 127.0.0.1:3000.
    """
    if shared.app is not None:
        raise InvalidOption("demo: it has an app of its own; to use your app's store, write --url")
    if web:
        return _serve(shared.url, notifier, listen, keep=keep)
    if listen is not None:
        raise InvalidOption("demo: --listen is the address of the dashboard; it needs --web")
    screen = Screen(quiet=shared.json)
    try:
        with signals_end_it(), _folder(keep=keep) as folder:
            report = _run(folder, repo, screen, keep=keep, url=shared.url, notifier=notifier)
    except KeyboardInterrupt:
        print_error("stopped; the supervisor and workers of this demo have stopped too")
        raise
    except OSError as error:
        raise TenureError(f"the demo can't continue: {error}") from error
    if shared.json:
        show_json(report)
    screen.end(report)
    return 0 if report.ok else 1


def _serve(url: str | None, notifier: str | None, listen: str | None, *, keep: bool) -> int:
    from tenure.cli.demo_web import serve

    with signals_end_it(), _folder(keep=keep) as folder:
        serve(folder, {"url": url or f"sqlite:///{folder / 'demo.db'}", "notifier": notifier}, listen)
    return 0


@contextmanager
def _folder(*, keep: bool) -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tenure-demo-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _run(
    folder: Path, repo: str | None, screen: Screen, *, keep: bool, url: str | None, notifier: str | None
) -> Report:
    screen.title()
    store = url or f"sqlite:///{folder / 'demo.db'}"
    kept = f"kept in {folder}" if keep else "deleted at the end; --keep keeps it"
    rung = f", its notifier {redact(notifier)}" if notifier else ""
    where = f"the store is {redact(store)}{rung}, the log is" if url else f"the store is a fresh SQLite file{rung},"
    screen.event(f"{where} {kept}")
    history = find_history(repo, folder)
    _tell_history(screen, history)
    queue = f"demo-{uuid4().hex[:8]}"
    place = {"url": store, "notifier": notifier}
    names = _enqueue(place, queue, history, folder)
    screen.event(f"{len(names)} jobs are enqueued; a supervisor starts a worker for them")
    order = {**place, "app": "tenure.demo.tasks", "queues": [queue], "concurrency": 5, "workers": 1}
    log = folder / "supervisor.log"
    with admin_of(Shared(url=store)) as admin:
        with running_supervisor({**order, "grace": GRACE}, log) as supervisor:
            watch = Watch(admin, queue, names, history, screen)
            problem = watch.until_all_have_ended(supervisor)
        pids = {supervisor.pid, *(worker.pid for worker in _workers(admin, queue))}
        analysis = _analysis(watch.jobs)
        picture = _saved(folder, analysis)
        checks = [*_checks(watch, history, analysis, picture), Check("nothing is left running", _all_gone(pids))]
        ok = not problem and all(check.ok for check in checks)
        return Report(
            ok=ok,
            seconds=round(screen.elapsed, 1),
            store=redact(store),
            folder=folder if keep else None,
            history=history,
            killed=watch.kill,
            takeover=watch.takeover,
            jobs=watch.jobs,
            dead_letters=[job for job in watch.jobs.values() if job.state is State.DEAD],
            analysis=replace(analysis, picture=str(picture or "")) if analysis else None,
            picture=picture,
            checks=checks,
            problem=problem,
            log=() if ok else _tail(log),
            next=_next(redact(store) if keep or url else None),
        )


def _tell_history(screen: Screen, history: History | None) -> None:
    if history is None:
        screen.event("git is missing: the long job, an analysis of a git history, is skipped", "yellow", "!")
        screen.event("to include it, install git (apt install git, dnf install git, brew install git)", "yellow", "!")
    elif history.made_up:
        screen.event(f"{history.made_up}: the long job analyses a made-up history of {history.commits} commits")
    else:
        newest = "the newest " if history.max_commits else ""
        screen.event(f"the long job analyses {newest}{history.commits} commits of {history.name}")


def _enqueue(place: Mapping[str, str | None], queue: str, history: History | None, folder: Path) -> dict[str, str]:
    """The names of the jobs by their ids, in the order in which they are shown."""
    from tenure.demo.tasks import code_evolution, doomed, flaky, greet, jobs, later

    new = {
        "greet Ada": greet.using(queue=queue).bind("Ada"),
        "greet Grace": greet.using(queue=queue).bind("Grace"),
        "later": later.using(queue=queue, delay=LATER).bind("Edsger"),
        "flaky": flaky.using(queue=queue).bind(),
        "doomed": doomed.using(queue=queue).bind(4711),
    }
    jobs.configure(place)
    with jobs:
        ids = [handle.id for handle in jobs.enqueue_many(new.values())]
        names = {str(job_id): name for job_id, name in zip(ids, new, strict=True)}
        if history is None:
            return names
        analysis = code_evolution.using(queue=queue).enqueue(
            history.repo,
            out=str(folder / _PICTURE.name),
            max_commits=history.max_commits,
            cache=str(folder / "cache"),
            pace=f"{ANALYSIS_SECONDS / history.commits * 1000:.1f}ms",
        )
    return {**names, str(analysis.id): _ANALYSIS}


# ── Watching ────────────────────────────────────────────────────────────────────────────────────────────────────


class Watch:
    """Follows the jobs through the store alone, and kills a worker meanwhile."""

    def __init__(
        self, admin: Admin, queue: str, names: Mapping[str, str], history: History | None, screen: Screen
    ) -> None:
        self._admin, self._queue, self._names = admin, queue, names
        self._commits = history.commits if history else 0
        self._screen = screen
        self.jobs: dict[str, JobView] = {}
        self.pids: dict[str, int] = {}
        self.kill: Kill | None = None
        self.takeover: Takeover | None = None

    def until_all_have_ended(self, supervisor: subprocess.Popen[bytes]) -> str:
        """Returns what is wrong, or an empty text."""
        with self._screen.moving():
            while True:
                self._look()
                if all(job.state in ENDED for job in self.jobs.values()):
                    return ""
                if supervisor.poll() is not None:
                    return f"The supervisor ended too early, with exit code {supervisor.returncode}."
                if self._screen.elapsed > PATIENCE_SECONDS:
                    return f"Not all jobs had ended after {spell(PATIENCE_SECONDS)}."
                time.sleep(_LOOK_SECONDS)

    def _look(self) -> None:
        found = {job.id: job for job in self._admin.jobs.search(Filter(queue=self._queue)).jobs}
        self.jobs = {name: found[job_id] for job_id, name in self._names.items()}
        for worker in _workers(self._admin, self._queue):
            if worker.id not in self.pids:
                self.pids[worker.id] = worker.pid
                purpose = ", with one slot, for the job whose worker died" if worker.runner == "solo" else ""
                self._screen.event(f"worker {worker.id} is up{purpose}")
        if _ANALYSIS in self.jobs:
            self._kill_its_worker(self.jobs[_ANALYSIS])
            self._notice_takeover(self.jobs[_ANALYSIS])
        self._screen.draw(self.jobs, self.pids)

    def _kill_its_worker(self, job: JobView) -> None:
        done = job.progress or 0.0
        others = any(other.state not in ENDED for other in self.jobs.values() if other is not job)
        ripe = done >= KILL_AT and not (others and done < 0.7) and job.checkpoint is not None
        if self.kill or not ripe or job.state is not State.PROCESSING or job.worker_id not in self.pids:
            return
        kill = Kill(job.worker_id, self.pids[job.worker_id], round(done * self._commits), self._admin.now())
        with suppress(ProcessLookupError):  # it just ended by itself: the next poll shows more
            os.kill(kill.pid, signal.SIGKILL)
            self.kill = kill
            words = (
                f"killed worker {kill.worker} (pid {kill.pid}) with SIGKILL at commit {kill.commit} of {self._commits}"
            )
            self._screen.event(words, "bold red", "✗")

    def _notice_takeover(self, job: JobView) -> None:
        if not self.kill or self.takeover or job.attempt < 2 or job.state is not State.PROCESSING:
            return
        if job.worker_id not in self.pids or job.started_at is None:
            return
        seconds = (job.started_at - self.kill.at).total_seconds()
        commit = json.loads(job.checkpoint or "{}").get("commits", 0)
        self.takeover = Takeover(job.worker_id, self.pids[job.worker_id], commit, round(seconds, 3))
        words = (
            f"worker {job.worker_id} took over {spell(seconds)} after the kill, from the checkpoint at commit {commit}"
        )
        self._screen.event(words, "bold green", "✓")


def _workers(admin: Admin, queue: str) -> list[WorkerIdentity]:
    """The workers of this demo, including dead ones."""
    return [row.identity for row in admin.workers.all(dead=True) if queue in row.identity.queues]


# ── Results ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _analysis(jobs: Mapping[str, JobView]) -> Summary | None:
    from tenure.demo.tasks import code_evolution

    job = jobs.get(_ANALYSIS)
    return code_evolution.decode_result(job.result) if job and job.result else None


def _saved(folder: Path, analysis: Summary | None) -> Path | None:
    """Saves the picture outside the temporary folder."""
    if analysis is None:
        return None
    drawn = folder / _PICTURE.name
    try:
        _PICTURE.parent.mkdir(exist_ok=True)
        return Path(shutil.copyfile(drawn, _PICTURE))
    except OSError:  # this folder is not writable
        handle, elsewhere = tempfile.mkstemp(prefix=f"{drawn.stem}-", suffix=drawn.suffix)
        os.close(handle)
        return Path(shutil.copyfile(drawn, elsewhere))


def _checks(watch: Watch, history: History | None, analysis: Summary | None, picture: Path | None) -> list[Check]:
    jobs, later, flaky, doomed = watch.jobs, watch.jobs["later"], watch.jobs["flaky"], watch.jobs["doomed"]
    greeted = all(jobs[name].state is State.COMPLETED for name in ("greet Ada", "greet Grace"))
    waited = (later.ended_at - later.enqueued_at).total_seconds() if later.ended_at else 0.0
    told = "4711" in doomed.payload and "4711" in (doomed.error or "")
    rejected = doomed.state is State.DEAD and doomed.failures == doomed.max_failures > 1 and told
    checks = [
        Check("greet: both succeeded", greeted),
        Check(f"later: ran {LATER} later, not earlier", later.state is State.COMPLETED and waited >= float(LATER[:-1])),
        Check("flaky: failed once, then succeeded", flaky.state is State.COMPLETED and flaky.failures == 1),
        Check("doomed: is a dead letter after its last retry, with its payload and its error", rejected),
    ]
    if history is None:
        return checks
    job, kill, taken = jobs[_ANALYSIS], watch.kill, watch.takeover
    return [
        *checks,
        Check("code_evolution: its worker was killed in the middle of it", kill is not None),
        Check(
            "code_evolution: another worker took over",
            kill is not None and taken is not None and taken.pid != kill.pid,
        ),
        Check(
            "code_evolution: continued from its checkpoint, not from the start",
            analysis is not None and analysis.resumed_from > 0,
        ),
        Check("code_evolution: was charged one crash and no failure", (job.crashes_total, job.failures) == (1, 0)),
        Check(
            "code_evolution: counted every commit exactly once",
            analysis is not None and analysis.main_line == history.commits,
        ),
        Check(
            "code_evolution: drew its picture", picture is not None and "<svg" in picture.read_text(encoding="utf-8")
        ),
    ]


def _all_gone(pids: set[int]) -> bool:
    deadline = time.monotonic() + 5.0
    while any(_runs(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _tail(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]


def _next(store: str | None) -> dict[str, str]:
    tenure = _program()
    if store is not None:
        return {
            f"{tenure} jobs list --url {quote(store)}": "all its jobs",
            f"{tenure} dead list --url {quote(store)}": "its dead letters; tenure dead replay ID runs one again",
            f"{tenure} demo --repo PATH-OR-URL": "analyse another repository",
        }
    return {
        f"{tenure} demo --keep": "keep the store, to inspect it with tenure jobs, dead",
        f"{tenure} demo --repo PATH-OR-URL": "the history of another repository",
        f"{tenure} worker tenure.demo.tasks": "a worker of your own, for these tasks",
    }


def _program() -> str:
    """What a shell here finds this program by: its path, if that environment is not activated, as after `make demo`."""
    mine, found = Path(sys.executable).with_name("tenure"), shutil.which("tenure")
    if not mine.exists() or (found is not None and mine.samefile(found)):
        return "tenure"
    return quote(os.path.relpath(mine))
