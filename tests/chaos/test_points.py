"""Every crash point of every role, one after the other, in one living site: killed there, and nothing is lost.

The roles are walked side by side, as they live: two supervisors with their workers, a client that does its last round
again after each death, an embedded worker, the guards of a crontab, a migration. At the end the ledger and the store
are judged.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta
from itertools import count, pairwise
from pathlib import Path

import pytest

from crash.backends import BACKENDS, Backend, Place
from crash.conftest import Tell
from crash.harness import FULL, SOURCE, Line, Site, Supervised, boot, most_at_once, overlaps, runs_of, send
from tenure.app.backends import open_notifier, open_store
from tenure.config import load
from tenure.core.clock import system_clock
from tenure.core.host import new_token, pid_namespace
from tenure.core.ids import new_id
from tenure.core.lifecycle import ENDED, LIVE, State
from tenure.core.limits import Key
from tenure.ports import AttemptView, Draft, Filter, JobView, Listener, Notifier, Permits, Store, WorkerIdentity

from . import points
from .points import PERMITS, ROLES, TRANSACTIONS, Folder
from .points_app import BATCH, PARTS, ROWS, SINGLES, STEPS, STOP, id_of

LEASE = "3s"
TESTS = Path(__file__).parents[1]
MODULE = (sys.executable, "-m", "chaos.points")
PATIENCE = 240.0  #: seconds for a point to be reached, alongside three other tests like this one
EVERY = 1.0  #: seconds between two nudges towards it
SHARE = 0.1  #: of the points, in a short walk
SEED = int(os.environ.get("TENURE_TEST_SEED", 0)) or random.SystemRandom().randrange(1, 1 << 32)
OFTEN = 3  #: processes that send a statement: if fewer do, it is by chance
TWO = ("worker", "supervisor")  #: of these there are two processes: two points at once
SKIPPED = 7
GUARD = ("tenure", "guard", "nightly", "--every", "100ms", "--skip-exit", str(SKIPPED), "--", "sh", "-c")
SECOND = timedelta(seconds=1)
#: Walked when all the rest is judged: what has ended is gone then.
LAST = ("prune", "forget")


def test_every_verb_of_the_ports_only_reads_or_has_its_points() -> None:
    walked = {spot.of for spots in ROLES.values() for spot in spots}
    verbs = {name for port in (Store, Notifier, Listener, Permits) for name in dir(port) if not name.startswith("_")}

    assert verbs - points.READS == walked
    assert walked.isdisjoint(points.READS)


# ── Processes ───────────────────────────────────────────────────────────────────────────────────────────────────


class Other:
    """A process of the site that is not a supervisor."""

    def __init__(self, walk: Walk, role: str, *words: str, env: Mapping[str, str] | None = None) -> None:
        self._log = walk.site.folder / f"{role.replace(' ', '-')}.log"
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(
                [*MODULE, role, *words],
                env=walk.site.env(LEASE, {}, {**walk.env, **(env or {})}),
                cwd=walk.site.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        walk.others.append(self)

    @property
    def gone(self) -> bool:
        return self.process.poll() is not None

    def code(self) -> int:
        """Its exit code, once it has ended."""
        return self.process.wait(PATIENCE)

    def told(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


class Stopped(Exception):
    """The walk of another role has failed."""


class Walk:
    """A site whose processes die at points, and are started again."""

    def __init__(self, site: Site, has: frozenset[str], fresh: Place) -> None:
        self.site, self.has, self._fresh = site, has, fresh
        self.folder = Folder(site.folder)
        self.folder.make()
        self.env = {
            "PYTHONPATH": f"{SOURCE}:{TESTS}",
            "TENURE_GRACE": "100ms",
            "TENURE_LOG_LEVEL": "error",
            "TENURE_TEST_STATEMENTS": "1" if FULL else "0",
        }
        self._draw = random.Random(SEED)
        self.walked: list[str] = []
        self.others: list[Other] = []
        self.torn: list[str] = []  #: what a client's death has left half done
        self.left = ""  #: a job of a queue that no worker serves
        self._broken = threading.Event()
        self._releases, self._lost = count(1), count(10_000_000)
        self.supervisors = [self._supervisor() for _ in range(2)]
        self.client = Other(self, "client", "1")
        self.embedded = Other(self, "embedded worker")

    def run(self) -> None:
        """Through all points but the last ones."""
        self._side_by_side({role: self._names(role) for role in ROLES})

    def statements(self) -> None:
        """The same within verbs that take several statements: before and after each one."""
        often = [name for name, processes in self.folder.seen().items() if processes >= OFTEN]
        several = {re.sub(r"statement \d+", "statement 1", each) for each in often if "statement 1 " not in each}
        names: dict[str, list[str]] = {role: [] for role in ROLES}
        for each in sorted(often):
            role = each.partition(":")[0]
            if re.sub(r"statement \d+", "statement 1", each) in several and not each.endswith((*LAST, "migrate")):
                names[role] += [each.replace("statement", f"{when} statement") for when in ("before", "after")]
        self._side_by_side(names)

    def migration(self) -> None:
        """Statement by statement, until none is left: after each death the schema is old or new, never between."""
        for number in count(1):
            for when in ("before", "after"):
                name = f"migration: {when} statement {number} of migrate"
                self.folder.arm(name)
                self._migrate(name)
                if not self.folder.taken(name):
                    self.folder.disarm(name)
                    return
                self.walked.append(name)

    def _side_by_side(self, names: Mapping[str, Sequence[str]]) -> None:
        """The roles at once."""
        nudges: dict[str, Callable[[str], None]] = {
            "worker": self._nudge_worker,
            "solo worker": self._wait,
            "supervisor": self._nudge_supervisor,
            "client": self._wait,
            "embedded worker": self._nudge_embedded,
            "guard": self._call_guard,
            "migration": self._migrate,
        }
        assert nudges.keys() == ROLES.keys()
        with ThreadPoolExecutor(len(nudges) + len(TWO)) as pool:
            walks = [
                pool.submit(self._through, mine, nudges[role])
                for role in ROLES
                for mine in ([names[role][::2], names[role][1::2]] if role in TWO else [names[role]])
            ]
            while not all(each.done() for each in walks):
                self._start_again()
                time.sleep(0.01)
        failed = [error for each in walks if (error := each.exception()) and not isinstance(error, Stopped)]
        if failed:
            raise failed[0]

    def _start_again(self) -> None:
        """The processes that have died."""
        self._start_supervisors()
        if self.client.gone:
            self.torn += self._halves(number := self.round())
            self.client = Other(self, "client", str(number))
        if self.embedded.gone:
            self.embedded = Other(self, "embedded worker")

    def _start_supervisors(self) -> None:
        for place, each in enumerate(self.supervisors):
            if each.process.poll() is not None:
                self.supervisors[place] = self._supervisor()

    def round(self) -> int:
        """The client's last one."""
        begun = self.site.lines(event="round")
        return int(begun[-1].event.split()[1]) if begun else 1

    def _names(self, role: str) -> list[str]:
        """Some of them, others each time; with TENURE_TEST_FULL=1 all."""
        names = [name for name in points.points(role, self.has) if not name.endswith(LAST)]
        return names if FULL else [name for name in names if self._draw.random() < SHARE]

    # ── reaching a point ──

    def _through(self, names: Sequence[str], nudge: Callable[[str], None]) -> None:
        """Kill at each of these. `nudge` brings a process there."""
        try:
            for name in names:
                self._reach(name, nudge)
        except BaseException:
            self._broken.set()
            raise

    def _reach(self, name: str, nudge: Callable[[str], None]) -> None:
        if name.startswith(("client", "supervisor")) and not name.endswith(
            LAST
        ):  # work that needs them gets its turn: jobs that must run alone, say
            last = self.round()
            self._until(lambda: self.round() > last, f"a new round for {name}", self._wait)
        self.folder.arm(name)
        self._until(lambda: self.folder.taken(name), name, nudge)
        self.walked.append(name)

    def _until(self, condition: Callable[[], bool], name: str, nudge: Callable[[str], None]) -> None:
        deadline, nudge_at = boot() + PATIENCE, boot()
        while not condition():
            if self._broken.is_set():
                raise Stopped
            if boot() > deadline:
                raise AssertionError(f"never reached: {name}, after {self.walked}\n{self._told()}")
            if boot() >= nudge_at:
                nudge(name)
                nudge_at = boot() + EVERY
            time.sleep(0.02)

    def _told(self) -> str:
        return f"{self.client.told()}\n{self.embedded.told()}\n{self.site.logs()}"

    def _wait(self, name: str) -> None:
        """The work that goes on brings a process there."""

    def _kill(self, pid: int) -> None:
        self._say(pid, "killed by the test")
        send(pid, signal.SIGKILL)

    def _say(self, pid: int, event: str) -> None:
        with self.site.ledger.open("a") as ledger:
            ledger.write(f"{time.clock_gettime_ns(time.CLOCK_BOOTTIME)} - 0 {pid} {event}\n")

    # ── supervisors and their workers ──

    def _supervisor(self, **env: str) -> Supervised:
        return self.site.supervisor(
            before=(*MODULE, "supervisor"),
            app="chaos.points_app",
            concurrency=4,
            lease=LEASE,
            env={**self.env, "TENURE_RELEASE": f"release {next(self._releases)}", **env},
        )

    def _nudge_worker(self, name: str) -> None:
        if name.endswith("finish a release"):
            for each in self._at_work()[:1]:
                for pid in each.workers():
                    send(pid, signal.SIGTERM)

    def _nudge_supervisor(self, name: str) -> None:
        working = self._at_work()
        if name.endswith("declare_expired"):
            self._lose_a_host()
        elif name.endswith("withdraw"):
            self._leave_a_queue()
        elif working and name.endswith(("register", "settle")):
            for pid in working[0].workers()[:1]:
                self._kill(pid)
        elif len(working) == len(self.supervisors) and name.endswith(
            ("declare_dead", "rescue", "swap", "change_limits")
        ):  # one of them goes on: else the embedded worker would always be the first to see a death
            self._kill(working[0].pid)

    def _at_work(self) -> list[Supervised]:
        """Those with a worker that has begun: killed earlier, they would never get further."""
        begun = self._begun()
        working = [each for each in self.supervisors if begun.intersection(each.workers())]
        return random.sample(working, len(working))

    def _begun(self) -> set[int]:
        """Workers, by their pids."""
        return {line.pid for line in self.site.lines(event="child of")}

    def _lose_a_host(self) -> None:
        """A worker of another machine, that is never heard of again, and a job that it has."""
        store, worker = self.site.store, self._lost_worker("default")
        store.enqueue([Draft(id=new_id(), task="plain", payload='{"seconds":0}', max_crashes=20, retry_base=0.05)])
        store.claim(worker, {"default": 1}, 1)

    def _leave_a_queue(self) -> None:
        """A job that was given its place because a worker, never heard of again, served its queue."""
        store = self.site.store
        if self.left and (view := store.get(self.left)) is not None and view.state is State.QUEUED:
            return  # its place was not taken back yet
        self._forget_left()
        self._lost_worker("left")
        self.left = new_id()
        keys = (Key("left", "left"),)
        store.enqueue([Draft(id=self.left, task="plain", payload="{}", queue="left", limits=keys)])

    def _forget_left(self) -> None:
        """The client counts live jobs, and no worker would ever run this one."""
        self.site.store.cancel([self.left] if self.left else [], "nobody serves its queue")

    def _lost_worker(self, queue: str) -> str:
        pid = next(self._lost)
        self._say(pid, "killed by the test")
        identity = WorkerIdentity(
            id=f"lost-{pid}-{new_token()}",
            host="lost",
            pid=pid,
            started="then",
            boot_id=system_clock().boot_id,
            pid_namespace=f"not {pid_namespace()}",
            runner="worker",
            queues=(queue,),
            tasks=("plain",),
            slots=1,
            lease=1.0,
        )
        self.site.store.register(identity)
        return identity.id

    # ── the client, and the embedded worker ──

    def _halves(self, number: int) -> Iterator[str]:
        def there(name: str) -> bool:
            return self.site.store.get(str(id_of(number, name))) is not None

        for what in (BATCH, [*PARTS, "sum"]):
            stored = [name for name in what if there(name)]
            if len(stored) not in (0, len(what)):
                yield f"round {number}: of {what} there is only {stored}"
        if TRANSACTIONS in self.has and there("joined") != bool(self.rows(str(id_of(number, "joined")))):
            yield f"round {number}: of a job and its row there is only one"

    def rows(self, job: str) -> int:
        with self.site.store.transaction() as tx:
            return len(tx.execute(f"SELECT 1 FROM {rows_of(self.site)} WHERE job = '{job}'").fetchall())

    def _nudge_embedded(self, name: str) -> None:
        if name.endswith(("register", "settle")) and self.embedded.process.pid in self._begun():
            self.embedded.process.terminate()

    # ── guards ──

    def _call_guard(self, name: str) -> None:
        if name.endswith("redelivered"):
            self._call_beside(killed=True)
            if not self.folder.taken(name):  # a supervisor was faster to take it back
                self._call_beside(killed=False)
        else:
            self._guard("1.5" if name.endswith("renew") else "0.03").code()

    def _guard(self, seconds: str) -> Other:
        return Other(self, "guard", *GUARD, f"echo begin $$ >> guarded; sleep {seconds}; echo end $$ >> guarded")

    def _call_beside(self, *, killed: bool) -> None:
        """A call that finds one whose command runs, or ran until just now."""
        before = len(self.guarded())
        first = self._guard("30")
        self.site.until(lambda: first.gone or len(self.guarded()) > before, "its command to begin", PATIENCE)
        if killed:
            self._kill(first.process.pid)
        self._guard("0.03").code()
        self._kill(first.process.pid)
        first.code()

    def guarded(self) -> list[str]:
        path = self.site.folder / "guarded"
        return path.read_text().splitlines() if path.exists() else []

    def guard_is_free(self) -> None:
        """The next call that is due runs its command, whatever has died."""
        self.site.until(lambda: Other(self, "guard", *GUARD, "true").code() == 0, "a call that runs", PATIENCE)

    # ── a migration ──

    def _migrate(self, name: str) -> None:
        Other(self, "migration", "tenure", "migrate", env=_where(self._fresh)).code()

    # ── at the end ──

    def settle_down(self) -> None:
        """Ask for nothing more, and wait until all that was asked for has ended."""
        (self.site.folder / STOP).touch()
        while (code := self.client.code()) == -signal.SIGKILL:  # at its last point: the next one goes on from there
            self._start_again()
        assert code == 0, self.client.told()
        self.embedded.process.terminate()
        # One that has just been started again does not handle the signal yet.
        assert self.embedded.code() in (0, -signal.SIGKILL, -signal.SIGTERM), self.embedded.told()
        self.guard_is_free()
        assert Other(self, "migration", "tenure", "migrate", env=_where(self._fresh)).code() == 0
        self._forget_left()
        self.site.until(self._all_ended, "the end of all jobs", PATIENCE)
        self.site.until(lambda: all(each.workers() for each in self.supervisors), "supervisors that can hear a signal")
        assert [each.stop() for each in self.supervisors] == [0, 0]

    def _all_ended(self) -> bool:
        """But for the ticks, which go on. Supervisors that died at their last points are started again, to run jobs."""
        self._start_supervisors()
        live = self.site.store.search(Filter(states=LIVE), limit=1000).jobs
        return all(job.task == "each_second" for job in live)

    def prune(self) -> None:
        """It is killed while it deletes ended jobs; those that have not ended are all there."""
        far = [str(new_id()) for _ in range(5)]
        self.site.store.enqueue([Draft(id=each, task="plain", payload="{}", delay=3600.0) for each in far])
        supervisor = self._supervisor(TENURE_TEST_PRUNE="1")
        for name in points.points("supervisor", self.has):
            if name.endswith(LAST):
                self._reach(name, self._wait)
                supervisor.exit_code(PATIENCE)
                supervisor = self._supervisor(TENURE_TEST_PRUNE="1")
        self.site.until(lambda: self._begun().intersection(supervisor.workers()), "its worker to begin", PATIENCE)
        self.site.until(lambda: not self._ended(), "all to go that has ended", PATIENCE)
        assert supervisor.stop() == 0
        assert all(self.site.store.get(each) for each in far)

    def _ended(self) -> list[JobView]:
        return [job for job in self.site.store.search(Filter(states=ENDED), limit=10).jobs if job.task != "each_second"]


def _where(place: Place) -> dict[str, str]:
    return {"TENURE_URL": place.url, "TENURE_NAMESPACE": place.namespace}


# ── Judging ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Judge:
    """What the ledger and the store hold against each other when all is over, as sentences."""

    def __init__(self, walk: Walk) -> None:
        self.walk, self.site = walk, walk.site
        self.lines = self.site.lines()
        self.of: dict[str, list[Line]] = defaultdict(list)
        for line in self.lines:
            self.of[line.job].append(line)
        self.killed = _killed(self.of["-"])
        handlers = [line for line in self.lines if line.attempt and not line.event.startswith("outcome ")]
        self.runs = runs_of(handlers, self.killed)
        self.rounds = walk.round()
        self.kinds: Counter[str] = Counter()

    def wrong(self) -> list[str]:
        jobs = {view.id: view for view in _all(self.site.store)}
        expected = {str(id_of(number, name)): name for number in range(1, self.rounds + 1) for name in self._names()}
        expected |= {str(id_of(job, "child")): "child" for job, name in list(expected.items()) if name == "parent"}
        found = [*self.walk.torn, *overlaps(self.runs)]
        for job, name in expected.items():
            self.kinds[name] += 1
            view = jobs.pop(job, None)
            if view is not None:
                found += (f"{name} {job} {each}" for each in self._of_one(name, view))
            elif not self._said(job, "deleting"):
                found.append(f"{name} {job} is lost")
        strangers = Counter(view.task for view in jobs.values())
        for task in strangers.keys() - KNOWN:
            found.append(f"{strangers[task]} jobs of {task} that nobody asked for")
        found += self._of_places(expected)
        found += self._of_flows()
        return [*found, *self._of_ticks(), *self._of_guards(), *self._of_once(), *self._of_rows()]

    def _names(self) -> list[str]:
        joins = ["hands_in", "joined"] if TRANSACTIONS in self.walk.has else []
        return [*SINGLES, *BATCH, *joins, *PARTS, "sum", "early", "lone", "later", "keyed", "then", "far"]

    def _said(self, job: str, event: str) -> list[Line]:
        return [line for line in self.of[job] if line.event.startswith(event)]

    def _of_one(self, name: str, view: JobView) -> Iterator[str]:
        attempts = {each.attempt: each for each in self.site.store.attempts(view.id)}
        state = ENDS.get(name, "completed")
        if view.state != state:
            yield f"is {view.state}, and not {state}: {view.error}"
        if sorted(attempts) != list(range(1, view.attempt + (name in ENDS))) and name != "waits":
            yield f"has {view.attempt} attempts, and outcomes of {sorted(attempts)}"
        yield from self._of_result(view)
        for each in attempts.values():
            yield from self._of_attempt(each)
        for line in self._said(view.id, "outcome completed"):
            if (view.state, view.attempt) != ("completed", line.attempt):
                yield f"was completed by attempt {line.attempt}, and then had attempt {view.attempt}"
        counts = Counter(each.outcome for each in attempts.values())
        charged = (view.failures, view.crashes_total)
        if name != "fails" and charged != (counts["failed"], counts["crashed"]):  # a replay begins to count anew
            yield f"was charged {charged} failures and crashes for {dict(counts)}"
        if name == "fails" and not 1 <= counts["failed"] <= 1 + len(self._said(view.id, "replaying")):
            yield f"failed {counts['failed']} times, and was to run again {len(self._said(view.id, 'replaying'))} times"
        if name == "steps":
            yield from _of_steps(self.of[view.id])
        if name == "pays":
            yield from _of_receipts(self.of[view.id])
        if name == "gathers":
            yield from _of_list(
                self.of[view.id], [number for number, each in attempts.items() if each.outcome == "suspended"]
            )

    def _of_result(self, view: JobView) -> Iterator[str]:
        mine = self.runs.get(view.id, [])
        if len(mine) > view.attempt:
            yield f"ran {len(mine)} times in {view.attempt} attempts"
        if view.state == "completed" and (view.result != str(view.attempt) or mine[-1].attempt != view.attempt):
            yield f"attempt {view.attempt} is accepted with {view.result}; the ledger's last is {mine[-1:]}"

    def _of_attempt(self, each: AttemptView) -> Iterator[str]:
        said = {line.event for line in self.of[each.job_id] if line.attempt == each.attempt}
        pid = int(each.worker_id.split("-")[-2])
        if each.outcome == "crashed" and pid not in self.killed and not self._may_be_late(each.error):
            log = self.site.log_of(each.worker_id)
            yield f"attempt {each.attempt} has crashed, and nobody killed {each.worker_id}: {each.error}\n{log}"
        word = {"failed": "raised", "snoozed": "snoozed"}.get(each.outcome)
        if word is not None and word not in said:
            yield f"attempt {each.attempt} has {each.outcome}: {each.error}; the ledger says {sorted(said)}"
        if each.outcome == "crashed" and any(event.startswith("outcome ") for event in said):
            yield f"attempt {each.attempt} had another outcome before it crashed: {sorted(said)}"

    def _may_be_late(self, error: str) -> bool:
        """On a machine too busy to renew, leases end and their workers with them; that no two overlapped is seen above.

        Such a worker ends itself; the maintenance of another process may find it gone before its supervisor says why.
        """
        gone = error.startswith("the process of") and error.endswith("is gone")
        return error.startswith("the lease of") or (gone and self.site.log_of("its lease could not be renewed") != "")

    def _of_places(self, names: Mapping[str, str]) -> Iterator[str]:
        """`names`: of jobs, by their ids."""
        for limit, (places, tasks) in PLACES.items():
            runs = [run for job, name in names.items() if name in tasks for run in self.runs.get(job, ())]
            if (most := most_at_once(runs)) > places:
                yield f"{most} jobs of {limit} ran at once, and {places} may"
        for view in self.site.store.keys(limit=1000):
            if view.held or view.waiting:
                yield f"{view.held} places of {view.key} are held, {view.waiting} jobs wait for one, and no job is live"

    def _of_flows(self) -> Iterator[str]:
        """The last step begins after the ends of those whose results it is given, and a signal is the one sent."""
        for number in range(1, self.rounds + 1):
            for name in ("expects", "early"):
                heard = {line.event for line in self._said(str(id_of(number, name)), "heard")}
                if heard != {f"heard {number}"}:
                    yield f"round {number}: {name} {sorted(heard)}"
            ends = [max(run.last for run in self.runs.get(str(id_of(number, name)), ())) for name in PARTS]
            for run in self.runs.get(str(id_of(number, "sum")), ()):
                if run.begin < max(ends):
                    yield f"round {number}: a flow's last step began {max(ends) - run.begin:.3f} s too early"

    def _of_ticks(self) -> Iterator[str]:
        ticks = sorted(self.site.store.ticks("each_second", limit=100_000), key=lambda each: each.tick)
        gaps = {after.tick - before.tick for before, after in pairwise(ticks)}
        if gaps != {SECOND}:
            yield f"ticks are {sorted(map(str, gaps))} apart"
        for each in ticks:
            if each.status not in ("success", "open"):
                yield f"tick {each.tick} is {each.status}: {each.why}"
        jobs = Counter(each.job_id for each in ticks)
        yield from (f"{times} ticks are one job: {job}" for job, times in jobs.items() if times > 1)
        ran: dict[str, set[str]] = defaultdict(set)
        for line in self.lines:
            if line.event.startswith("tick "):
                ran[line.event].add(line.job)
        yield from (f"{tick} ran as {len(ids)} jobs" for tick, ids in ran.items() if len(ids) > 1)
        self.kinds["tick"] = len(ticks)

    def _of_guards(self) -> Iterator[str]:
        running = ""
        for line in self.walk.guarded():
            what, pid = line.split()
            if what == "begin":
                running = pid
                self.kinds["guarded run"] += 1
            elif pid != running:
                yield f"the guarded command {pid} went on while {running} ran"
        statuses = Counter(tick.status for tick in self.site.store.ticks("nightly", limit=1000))
        if statuses["open"]:
            yield f"runs of the guard are not written down: {statuses}"

    def _of_once(self) -> Iterator[str]:
        """An act is repeated only if its process died between the act and its record."""
        acted = Counter(line.event for line in self.of["-"] if line.event.startswith("acted "))
        deaths = [line.event for line in self.of["-"] if line.event.startswith("killed client")]
        excused = [event for event in deaths if "swap" in event]
        if sum(times - 1 for times in acted.values()) > len(excused):
            yield f"acts were repeated more often than deaths explain: {acted.most_common(5)}, {excused}"

    def _of_rows(self) -> Iterator[str]:
        if TRANSACTIONS not in self.walk.has:
            return
        with self.site.store.transaction() as tx:
            rows = Counter(job for (job,) in tx.execute(f"SELECT job FROM {rows_of(self.site)}").fetchall())
        asked = {str(id_of(number, name)) for number in range(1, self.rounds + 1) for name in ("hands_in", "joined")}
        if rows != Counter(dict.fromkeys(asked, 1)):
            more, less = rows - Counter(asked), asked - rows.keys()
            yield f"rows beside jobs: too many are {more.most_common(3)}, missing are {list(less)[:3]}"


ENDS = {"waits": "cancelled", "fails": "dead"}
#: Of each limit: its places, and the tasks that need one.
PLACES = {"one": (1, {"by_itself", "of_both"}), "two": (2, {"beside_one", "of_both"})}
#: Tasks of jobs that the site makes by itself: of ticks, guards and lost hosts.
KNOWN = {"each_second", "nightly", "plain"}


def _killed(lines: Sequence[Line]) -> dict[int, float]:
    """Pids of this site, and when they were killed: by themselves, by the test, or with their supervisor."""
    killed = {line.pid: line.at for line in lines if line.event.startswith("killed ")}
    parents = {line.pid: int(line.event.split()[-1]) for line in lines if line.event.startswith("child of ")}
    return {pid: killed[parent] for pid, parent in parents.items() if parent in killed} | killed


def _of_steps(lines: Sequence[Line]) -> Iterator[str]:
    """From the last checkpoint that was stored, or one whose answer its process did not live to hear."""
    stored = begun = 0
    for line in lines:
        what, _, number = line.event.partition(" ")
        if what == "begin":
            if not stored <= int(number) <= begun:
                yield f"attempt {line.attempt} was given checkpoint {number}; stored was {stored}, done {begun}"
            begun = int(number)
        elif what == "effect":
            if int(number) != begun + 1:
                yield f"attempt {line.attempt} did step {number} after step {begun}"
            begun = int(number)
        elif what == "stored" and number.isdigit():
            stored = int(number)
    if begun != STEPS:
        yield f"stopped after step {begun}"


def _of_receipts(lines: Sequence[Line]) -> Iterator[str]:
    receipts = {line.event for line in lines if line.event.startswith("receipt ")}
    if len(receipts) != 1:
        yield f"was given {len(receipts)} receipts"
    given = False
    for line in lines:
        given |= line.event.startswith("receipt ")
        if given and line.event.startswith("paid "):
            yield f"paid again in attempt {line.attempt}, after it had a receipt"


def _of_list(lines: Sequence[Line], suspended: Sequence[int]) -> Iterator[str]:
    """Jobs to gather are listed until the list is stored, and all of their results are given."""
    listed = [line.attempt for line in lines if line.event == "listed"]
    if suspended and (again := [attempt for attempt in listed if attempt > min(suspended)]):
        yield f"made its list again in attempts {again}, after it had waited for it in attempt {min(suspended)}"
    if {line.event for line in lines if line.event.startswith("gathered ")} != {f"gathered {STEPS}"}:
        yield f"has not gathered {STEPS} results"


def _all(store: Store) -> Iterator[JobView]:
    page = store.search(Filter(), limit=1000)
    yield from page.jobs
    while page.cursor is not None:
        page = store.search(Filter(), limit=1000, cursor=page.cursor)
        yield from page.jobs


# ── The walk ────────────────────────────────────────────────────────────────────────────────────────────────────


def rows_of(site: Site) -> str:
    return ROWS.format(site.place.namespace)


def _has(site: Site) -> frozenset[str]:
    """What this backend has, of what points need."""
    with ExitStack() as later:
        notifier = open_notifier(load(_asked(site.place)), site.store)
        later.callback(notifier.close)
        listener = later.enter_context(closing(notifier.listen()))
        has = {PERMITS} if listener.permits is not None else set[str]()
    return frozenset(has | ({TRANSACTIONS} if site.store.capabilities.transactions else set()))


def _asked(place: Place) -> dict[str, str]:
    return {"url": place.url, "namespace": place.namespace, "notifier": place.notifier}


@pytest.fixture(
    params=[each for each in BACKENDS if FULL or each.name in ("sqlite", "postgres", "redis")],
    ids=lambda backend: backend.name,
)
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.param
    return found


@pytest.fixture
def site(backend: Backend, tmp_path: Path) -> Iterator[Site]:
    with backend.place(tmp_path) as place, Site(tmp_path, place) as site:
        yield site


@pytest.fixture
def fresh(backend: Backend, tmp_path: Path) -> Iterator[Place]:
    """A place that has not been migrated yet."""
    folder = tmp_path / "fresh"
    folder.mkdir()
    with backend.place(folder) as place:
        if {"server", "transactions"} <= backend.has:
            with closing(open_store(load(_asked(place)))) as store:
                store.open()
                with store.transaction() as tx:
                    tx.execute(f"DROP SCHEMA {place.namespace} CASCADE")
        yield place


@pytest.fixture
def walk(site: Site, fresh: Place) -> Iterator[Walk]:
    has, table = _has(site), rows_of(site)
    if TRANSACTIONS in has:
        with site.store.transaction() as tx:
            tx.execute(f"CREATE TABLE {table} (job TEXT, attempt INTEGER)")
    walk = Walk(site, has, fresh)
    yield walk
    site.clear()
    for each in walk.others:  # a failure leaves some behind; Python would warn of them in the middle of another test
        each.code()
    if TRANSACTIONS in has:
        with site.store.transaction() as tx:
            tx.execute(f"DROP TABLE {table}")


@pytest.mark.timeout(3600 if FULL else 900)
def test_killed_at_every_point_nothing_is_lost_and_nothing_is_done_twice(walk: Walk, tell: Tell) -> None:
    began = boot()
    if FULL:
        walk.migration()
    walk.run()
    if FULL:
        walk.statements()
    walk.settle_down()
    judge = Judge(walk)
    wrong = judge.wrong()
    walk.prune()

    assert wrong == []
    assert len(set(walk.walked)) == len(walk.walked)
    tell(
        f"seed {SEED}, {len(walk.walked)} points in {boot() - began:.0f} s; "
        f"{len(judge.runs)} jobs of {judge.rounds} rounds, "
        f"{sum(map(len, judge.runs.values()))} attempts, {judge.kinds['tick']} ticks, "
        f"{judge.kinds['guarded run']} guarded runs; wrong: {len(wrong)}"
    )
