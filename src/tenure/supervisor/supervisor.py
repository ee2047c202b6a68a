"""The supervisor: starts workers, renews their leases, notices their deaths, and sweeps up. It runs no user code.

Three threads, three duties, so that none holds up another:

1. *main* starts and ends workers. It hears of an exit at once (pidfd), kills what is left of the process group,
   and only then settles each lease the worker held: the guilty by its verdict, the others as the cause demands.
2. *renew* extends the leases of living workers, on a connection of its own, every lease/3.
3. *maintain* rescues, promotes and prunes, on another.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import selectors
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any

import msgspec

from tenure import errors
from tenure.config import Settings
from tenure.core.clock import system_clock
from tenure.core.durations import spell
from tenure.core.lifecycle import Crashed, Lease, Outcome, Released, State, outcome_name
from tenure.errors import StoreError, TenureError
from tenure.events import (
    Events,
    NotifierDegraded,
    StallSeen,
    StoreAway,
    StoreBack,
    WorkerDied,
    WorkerReplaced,
    WorkerStarted,
)
from tenure.liveness.host import (
    cause_of,
    end_leftovers,
    host_name,
    is_stopped,
    kill_group,
    memories,
    pid_namespace,
    started,
)
from tenure.maintenance.maintenance import Alarm, Declaration, Maintenance, NewAlarm
from tenure.ports import Filter, Notifier, Runner, Store, WorkerIdentity
from tenure.supervisor import stalls
from tenure.supervisor.process import WorkerProcess
from tenure.worker.link import read_verdicts
from tenure.worker.tally import Tally, Vitals, timed

TICK_SECONDS = 0.25
STALL_SECONDS = 1.0
SOON_SECONDS = 60.0  #: --until-empty waits for a job that is due sooner
RETRY_SECONDS = 1.0
COUNT_SECONDS = 1.0
MOST_BACKOFF_SECONDS = 30.0
SETTLE_SECONDS = 5.0  #: told to stop and without workers: how long the store may still be away
HUNG_GRACE_SECONDS = 10.0  #: a hung job is its worker's business first
END_SECONDS = 13.0  #: past the grace: a worker names code that does not stop within 10 s; one that says nothing is deaf


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `tenure worker` was asked to do."""

    command: tuple[str, ...]  #: starts one worker; the handles are appended
    workers: int = 1
    until_empty: bool = False
    reload: bool = False
    counts: bool = False  #: someone looks at the metrics: ask the workers for theirs


@dataclass(frozen=True, slots=True)
class Ground:
    """What the supervisor stands on, once its first worker has said where the store is."""

    settings: Settings
    store: Store
    renewals: Store
    notifier: Notifier
    maintenance: Maintenance
    alarm: Alarm


@dataclass(frozen=True, slots=True)
class Words:
    """What a worker said last of itself."""

    busy: int
    notifier: str


class Supervisor:
    def __init__(
        self,
        options: Options,
        open_store: Callable[[Settings], Store],
        open_notifier: Callable[[Settings, Store], Notifier],
        new_alarm: NewAlarm,
        say: Callable[[str], None],
    ) -> None:
        self._options = options
        self._open_store, self._open_notifier = open_store, open_notifier
        self._new_alarm, self._say = new_alarm, say
        self._events = Events()
        self.tally = Tally()
        self.tally.follow(self._events)
        self._boot = system_clock().boot
        self._children: dict[int, WorkerProcess] = {}
        self._selector = selectors.DefaultSelector()
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_in, self._wake_out = os.pipe()
        self._found: Ground | None = None
        self._served: frozenset[str] = frozenset()
        self._maintain_wake = threading.Event()
        self._renew_wake = threading.Event()
        self._stopping = 0  # how many stop signals came
        self._turned = self._given = 0.0  # the last turn, and the time that workers had to end, by a clock of its own
        self._done = False
        self._exit_code = 0
        self._settling: frozenset[str] = frozenset()  #: gone, and not yet settled: ours, with what we know of them
        self._unsettled: list[Callable[[], None]] = []
        self._retry_at = 0.0
        self._leave_at = 0.0  # 0: not stopping, or with workers still
        self._failed_starts = 0
        self._start_at: list[float] = []
        self._solo_wanted = 0
        self._away_since: float | None = None
        self._away_why = ""
        self._renewed: float | None = None
        self._count_at = 0.0
        self._asked = set[str]()  #: for their counts, by worker id
        self._words: dict[str, Words] = {}
        self._hung_since: dict[str, float] = {}
        self._files: dict[str, int] = {}
        self._banner = False

    # ── life ──

    def run(self) -> int:
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        signal.set_wakeup_fd(self._wake_out, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop_by_signal)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        for _ in range(self._options.workers):
            self._start("worker")
        try:
            while self._children or self._unsettled or (self._start_at and not self._stopping):
                self._turn()
        finally:
            self._done = True
            self._maintain_wake.set()
            self._renew_wake.set()
            for child in self._children.values():
                kill_group(child.process.pid)
            if self._found is not None:
                self._found.alarm.stop()
                self._found.store.close()
                self._found.renewals.close()
        return self._exit_code

    def _turn(self) -> None:
        for key, _ in self._selector.select(TICK_SECONDS):
            if key.data is None:
                self._drain_wakes()
            else:
                key.data()
        while not self._orders.empty():
            self._orders.get()()
        now = self._boot()
        if self._away_since is None:  # without the store nobody ends well: then the lease is the limit
            self._given += min(now - self._turned, STALL_SECONDS)  # for longer the machine slept, or we were stopped
        self._turned = now
        for child in list(self._children.values()):
            self._look_after(child, now)
        self._retry_unsettled()
        self._start_what_is_due()
        if self._options.counts and now >= self._count_at:
            self._ask_for_counts(now)
        if os.getpid() == 1:
            self._reap_strangers()

    def _drain_wakes(self) -> None:
        try:
            while os.read(self._wake_in, 4096):
                pass
        except BlockingIOError:
            return

    def _ask_main(self, order: Callable[[], None]) -> None:
        """From another thread: have this done in the main one."""
        self._orders.put(order)
        try:
            os.write(self._wake_out, b"\0")
        except BlockingIOError:
            return  # it is awake already

    def _stop_by_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        """First signal: drain. Second: without grace. Third: kill."""
        self._stopping += 1
        for child in list(self._children.values()):
            if self._stopping >= 3:
                self._kill(child, "the supervisor was told to stop three times")
            elif not child.registered:
                self._kill(child, "told to stop before it had begun")  # it holds nothing, and may hang in an import
            else:
                self._tell_to_drain(child, self._grace() if self._stopping == 1 else 0.0)

    def _grace(self) -> float:
        return 0.0 if self._found is None else self._found.settings.grace

    @property
    def _ground(self) -> Ground:
        assert self._found is not None, "no worker is registered before the store is open"
        return self._found

    def _tell_to_drain(self, child: WorkerProcess, grace: float) -> None:
        child.draining = True
        child.end_by = min(child.end_by, self._given + grace + END_SECONDS)
        child.link.send("drain", grace=grace)

    # ── starting workers ──

    def _start(self, runner: Runner, replaces: str = "") -> None:
        if self._stopping:
            return
        try:
            child = WorkerProcess.start(self._options.command, runner, replaces)
        except OSError as error:
            self._say(f"a new worker can't be started: {error}")
            if runner == "worker":
                self._try_again_later()
            return
        self._children[child.process.pid] = child
        if child.pidfd >= 0:
            self._selector.register(child.pidfd, selectors.EVENT_READ, lambda: self._ended(child))
        self._selector.register(child.link, selectors.EVENT_READ, lambda: self._heard(child))
        if self._stopping:  # the signal came while nobody knew of this one
            self._kill(child, "told to stop before it had begun")

    def _heard(self, child: WorkerProcess) -> None:
        if child.link.closed:
            return  # it ended in this very turn, and both its exit and its closed link were in it
        for message in child.link.receive():
            match message["kind"]:
                case "hello":
                    self._introduce(child, message)
                case "refused":
                    self._refused(child, message["error"])
                case "ready":
                    child.ready = True
                    self._failed_starts = 0
                case "due":
                    self._maintain_wake.set()
                case "stuck":
                    child.verdicts.update(read_verdicts(message["verdicts"]))
                    self._kill(child, "code that was asked to stop did not")
                case "counts":
                    self._asked.discard(child.id)
                    self._words[child.id] = Words(message["busy"], message["notifier"])
                    self.tally.add(message["tally"])
                case "drained":
                    child.drained = True
                case other:
                    self._say(f"worker {child.id} said {other!r}, which this supervisor doesn't know")
        if child.link.closed:
            self._selector.unregister(child.link)
            if child.pidfd < 0:
                self._ended(child)

    def _refused(self, child: WorkerProcess, error: str) -> None:
        child.draining = True
        if self._found is None:  # at the first start it is the caller's mistake; later, a broken deploy: try again
            self._give_up(error, 2)
        else:
            self._say(f"a new worker can't start: {error}")

    def _give_up(self, error: str, exit_code: int) -> None:
        if not self._exit_code:
            self._say(error)
            self._exit_code = exit_code
        self._stopping = max(self._stopping, 1)

    def _introduce(self, child: WorkerProcess, hello: Mapping[str, Any]) -> None:
        child.hello = hello
        try:
            if self._found is None:
                self._open(_settings(hello))
            self._register(child)
        except errors.TenureError as error:
            if self._found is None:
                self._give_up(str(error), 75 if isinstance(error, errors.StoreAway) else 2)
            else:
                self._away(error)
            self._tell_to_drain(child, 0.0)
            return
        if self._stopping:
            self._tell_to_drain(child, 0.0)
            return
        queues = hello["queues"]
        declares = msgspec.convert(hello["declares"], Declaration)
        # Who develops goes back and forth, and means what the code says now.
        self._ground.maintenance.declare(replace(declares, force=self._options.reload))
        self._served = frozenset(queues)
        self._maintain_wake.set()  # jobs of these queues that must run alone may wait already
        slots = 1 if child.runner == "solo" else self._ground.settings.concurrency
        child.link.send("start", worker_id=child.id, runner=child.runner, queues=queues, slots=slots)
        if child.replaces:
            self._events.emit(WorkerReplaced(worker_id=child.id, pid=child.process.pid, replaces=child.replaces))
        self._events.emit(
            WorkerStarted(
                worker_id=child.id, pid=child.process.pid, slots=slots, queues=tuple(queues), runner=child.runner
            )
        )

    def _open(self, settings: Settings) -> None:
        renewals = timed(self._open_store(settings), self.tally)
        try:
            store = timed(self._open_store(settings), self.tally)
        except BaseException:
            renewals.close()
            raise
        notifier = self._open_notifier(settings, store)
        if notifier.problem():
            self._events.emit(NotifierDegraded(problem=notifier.problem()))
        maintenance = Maintenance(
            store,
            notifier,
            self._events,
            lease=settings.lease,
            keep=settings.keep,
            keep_dead=settings.keep_dead,
            keep_history=settings.keep_history,
            mine=lambda: self._settling.union(child.id for child in list(self._children.values())),
        )
        alarm = self._new_alarm(settings, store, notifier)
        maintenance.scan()
        ground = self._found = Ground(settings, store, renewals, notifier, maintenance, alarm)
        alarm.start()
        threading.Thread(target=self._duty, args=(self._renew, ground), name="tenure-renew", daemon=True).start()
        threading.Thread(target=self._duty, args=(self._maintain, ground), name="tenure-maintain", daemon=True).start()

    def _register(self, child: WorkerProcess) -> None:
        clock, settings, hello = system_clock(), self._ground.settings, child.hello
        sent = self._boot()
        self._ground.store.register(
            WorkerIdentity(
                id=child.id,
                host=host_name(),
                pid=child.process.pid,
                started=started(child.process.pid),
                boot_id=clock.boot_id,
                pid_namespace=pid_namespace(),
                runner=child.runner,
                queues=tuple(hello["queues"]),
                tasks=tuple(hello["tasks"]),
                slots=1 if child.runner == "solo" else settings.concurrency,
                lease=settings.lease,
            )
        )
        child.lifeline.quiet_until = self._ground.maintenance.quiet_until
        child.lifeline.renewed(sent, settings.lease)
        child.registered = True
        if not self._banner:
            self._banner = True
            tasks, queues = ", ".join(hello["tasks"]), ", ".join(hello["queues"])
            self._say(f"tenure: {self._ground.store.url}")
            self._say(f"        tasks {tasks}; queues {queues}; lease {spell(settings.lease)}")

    def _try_again_later(self) -> None:
        self._failed_starts += 1
        delay = min(2.0 ** (self._failed_starts - 1), MOST_BACKOFF_SECONDS)
        self._start_at.append(self._boot() + delay)

    def _start_what_is_due(self) -> None:
        now = self._boot()
        due = [at for at in self._start_at if at <= now]
        self._start_at = [at for at in self._start_at if at > now]
        for _ in due:
            self._start("worker")
        if self._solo_wanted:
            running = sum(child.runner == "solo" and not child.draining for child in self._children.values())
            for _ in range(min(self._solo_wanted, os.cpu_count() or 1) - running):
                self._start("solo")
        self._solo_wanted = 0

    # ── watching them ──

    def _look_after(self, child: WorkerProcess, now: float) -> None:
        if child.kill_reason or not child.registered:
            return
        if child.lifeline.kill_at and now > child.lifeline.kill_at:
            child.lifeline.fence()
            self._kill(child, "its lease could not be renewed in time")
        elif is_stopped(child.process.pid):
            child.stopped_since = child.stopped_since or now
            if now - child.stopped_since > self._ground.settings.lease / 3:
                self._kill(child, f"it was stopped (SIGSTOP) for {spell(now - child.stopped_since)}")
        else:
            child.stopped_since = None
            self._watch_for_stalls(child, now)
            if self._given > child.end_by:
                self._kill(child, "it was told to end, and did not")

    def _watch_for_stalls(self, child: WorkerProcess, now: float) -> None:
        silent = now - child.lifeline.tick
        if not child.ready or child.drained or not child.lifeline.tick or silent < STALL_SECONDS:
            child.stall, child.stall_told = "", 0.0
            return
        if child.stall_told and silent < child.stall_told * 2:
            return
        child.stall_told = silent
        functions = {(file, name): task for task, (file, name) in child.hello["functions"].items()}
        task, line = stalls.name(stalls.dump(child.process.pid, child.dump.fileno()), functions)
        jobs = self._running_jobs(child, task) if task else ()
        child.stall = f"its loop is blocked by {task or 'unknown code'} at {line or 'an unknown line'}"
        self._events.emit(StallSeen(worker_id=child.id, job_ids=jobs, task=task, line=line, seconds=silent))
        self._renew_wake.set()

    def _running_jobs(self, child: WorkerProcess, task: str) -> tuple[str, ...]:
        where = Filter(states=frozenset({State.PROCESSING}), worker_id=child.id, task=task)
        try:
            return tuple(job.id for job in self._ground.store.search(where, limit=10).jobs)
        except StoreError:
            return ()

    def _kill(self, child: WorkerProcess, reason: str) -> None:
        child.kill_reason = child.kill_reason or reason
        kill_group(child.process.pid)

    # ── when one has ended ──

    def _ended(self, child: WorkerProcess) -> None:
        pid = child.process.pid
        try:
            _, status, usage = os.wait4(pid, 0)
        except ChildProcessError:
            return
        code = child.process.returncode = os.waitstatus_to_exitcode(status)
        self._settling |= {child.id}
        del self._children[pid]
        if child.pidfd >= 0:
            self._selector.unregister(child.pidfd)
            os.close(child.pidfd)
        kill_group(pid)
        end_leftovers(child.token)  # first: what it forked may hold its end of the link open
        while not child.link.closed and select.select([child.link], [], [], 0)[0]:  # its last words
            self._heard(child)
        if not child.link.closed:
            self._selector.unregister(child.link)
        self._asked.discard(child.id)
        self._words.pop(child.id, None)
        expected = child.drained or (child.draining and code == 0) or (self._stopping > 0 and not child.registered)
        outcome = self._judge(child, code, usage.ru_maxrss)
        if not expected:
            cause = child.kill_reason or cause_of(code)
            evidence = dict(outcome.evidence) if isinstance(outcome, Crashed) else {}
            self._events.emit(WorkerDied(worker_id=child.id, pid=pid, cause=cause, evidence=evidence))
        child.close()
        if child.registered and self._unsettled:  # the store is away: others wait for it, and a try may take seconds
            self._unsettled.append(partial(self._settle, child.id, child.verdicts, outcome))
        elif child.registered:
            self._settle(child.id, child.verdicts, outcome)
        else:
            self._settling -= {child.id}
        self._replace(child)

    def _judge(self, child: WorkerProcess, code: int, peak: int) -> Outcome:
        """What the jobs in flight are told, but for those with a verdict of their own."""
        if child.drained:
            return Released("drained")
        if child.lifeline.fenced:
            return Released("its worker's lease could not be renewed")
        if child.verdicts:
            return Released("its worker was killed for a neighbour's sake")
        if child.kill_reason and child.stopped_since is None:
            return Released(child.kill_reason)
        evidence = {"exit": cause_of(code), "peak_memory": f"{peak / 1024:.0f} MiB", "worker": child.id}
        place = stalls.last_frame(child.dump.fileno())
        if place:
            evidence["line"] = place
        reason = child.kill_reason or f"its worker died: {cause_of(code)}"
        return Crashed(reason, process_died=True, evidence=evidence)

    def _settle(self, worker: str, verdicts: Mapping[str, Outcome], rest: Outcome) -> None:
        try:
            settled = self._ground.store.settle(worker, verdicts, rest)
            outcomes = {each.id: outcome_name(verdicts.get(each.id, rest)) for each in settled}
            self._ground.maintenance.tell(settled, outcomes)
            self._solo_wanted = self._ground.store.solo_waiting(self._queues())
        except StoreError as error:
            self._away(error)
            self._unsettled.append(lambda: self._settle(worker, verdicts, rest))
        else:
            self._settling -= {worker}
            self._maintain_wake.set()

    def _retry_unsettled(self) -> None:
        now = self._boot()
        if not self._unsettled or now < self._retry_at:
            return
        self._retry_at = now + RETRY_SECONDS
        if self._stopping and not self._children:
            self._leave_at = self._leave_at or now + SETTLE_SECONDS
        waiting, self._unsettled = self._unsettled, []
        while waiting and not self._unsettled:  # each may take as long as a server that does not answer
            waiting.pop(0)()
        self._unsettled[:0] = waiting
        if not self._unsettled:
            self._back()
        elif self._stopping > 1 or (self._leave_at and now >= self._leave_at):
            self._leave_unsettled()

    def _leave_unsettled(self) -> None:
        count = len(self._unsettled)
        self._unsettled.clear()
        self._exit_code = self._exit_code or 75
        self._say(
            f"stopped while the store was away: what {count} worker{'s' * (count > 1)} held is left to the next start, "
            "or to the end of the leases"
        )

    def _replace(self, child: WorkerProcess) -> None:
        if child.runner == "solo":
            return
        if child.ready:
            self._start_what_is_due()  # a job that must run alone comes first: it is the one that waits
            self._start("worker", replaces=child.id)
        else:
            self._try_again_later()

    def _reap_strangers(self) -> None:
        """As PID 1 we inherit orphans. Our own children are left to their pidfd."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid in self._children:
                return
            os.waitpid(found.si_pid, 0)

    def _duty(self, duty: Callable[[Ground], None], ground: Ground) -> None:
        """A thread that ended silently would leave workers without renewals, or jobs without rescue."""
        try:
            duty(ground)
        except BaseException:
            logging.getLogger("tenure.supervisor").critical(
                "a duty has failed; ending, to be started anew", exc_info=True
            )
            self._ask_main(self._fail)

    def _fail(self) -> None:
        self._exit_code, self._stopping = 1, 2
        self._stop()

    # ── the renewing thread ──

    def _renew(self, ground: Ground) -> None:
        lease = ground.settings.lease
        while not self._done:
            sent = self._boot()
            children = [child for child in list(self._children.values()) if child.registered]
            notes = {child.id: child.stall for child in children if child.stall}
            memory = memories({child.id: child.process.pid for child in children})
            try:
                alive = ground.renewals.renew([child.id for child in children], notes=notes, memory=memory)
            except StoreError as error:
                self._away(error)
                self._renew_wake.wait(RETRY_SECONDS)
                self._renew_wake.clear()
                continue
            self._renewed = sent
            if children or not self._settling:  # to renew nobody proves nothing
                ground.maintenance.renewed(sent, alive)
            self._back()
            for child in children:
                if child.id in alive:
                    with suppress(ValueError):  # it has ended meanwhile, and its memory is closed
                        child.lifeline.quiet_until = ground.maintenance.quiet_until  # first: it may judge from then on
                        child.lifeline.renewed(sent, lease)
                elif child.process.pid in self._children:
                    self._ask_main(partial(self._kill, child, "it was declared dead"))
            self._renew_wake.wait(lease / 3)
            self._renew_wake.clear()

    # ── the maintaining thread ──

    def _maintain(self, ground: Ground) -> None:
        while not self._done:
            try:
                next_due = ground.maintenance.promote()
                ground.maintenance.upkeep_if_due()
                self._ask_for_solo()
                if ground.maintenance.scan_if_due():
                    self._watch_hung()
                next_tick = ground.maintenance.fire()
                ground.maintenance.prune_if_due()
                wake = ground.maintenance.next_wake(next_due, next_tick)
                if self._options.until_empty or self._options.reload:
                    wake = min(wake, 0.5)
                    self._end_if_empty(next_due)
                    self._reload_if_changed()
            except StoreError as error:
                self._away(error)
                wake = RETRY_SECONDS
            self._maintain_wake.wait(wake)
            self._maintain_wake.clear()

    def _queues(self) -> list[str]:
        return sorted(self._served)

    def _watch_hung(self) -> None:
        hung = self._ground.store.hung([child.id for child in list(self._children.values()) if child.ready])
        now = self._boot()
        self._hung_since = {each.lease.job_id: self._hung_since.get(each.lease.job_id, now) for each in hung}
        for each in hung:
            if now - self._hung_since[each.lease.job_id] > HUNG_GRACE_SECONDS:
                verdict = Crashed(f"hung: silent for {spell(each.silent)}")
                self._ask_main(partial(self._kill_hung, each.lease, verdict))

    def _kill_hung(self, lease: Lease, verdict: Outcome) -> None:
        for child in self._children.values():
            if child.id == lease.worker_id:
                child.verdicts[lease.job_id] = verdict
                self._kill(child, "a job in it hung, and did not stop when asked")

    def _ask_for_solo(self) -> None:
        waiting = self._ground.store.solo_waiting(self._queues())
        if waiting:
            self._ask_main(lambda: setattr(self, "_solo_wanted", waiting))

    def _end_if_empty(self, next_due: float | None) -> None:
        """Nothing queued, nothing running, nothing due soon: a retry is waited for, tomorrow's job is not."""
        if not self._options.until_empty or self._stopping:
            return
        mine = [view.counts for view in self._ground.store.queues() if view.name in self._served]
        waiting = any(counts[State.QUEUED] or counts[State.PROCESSING] for counts in mine)
        soon = next_due is not None and next_due < SOON_SECONDS and any(counts[State.SCHEDULED] for counts in mine)
        if not waiting and not soon and any(child.ready for child in list(self._children.values())):
            self._ask_main(self._stop)

    def _reload_if_changed(self) -> None:
        if not self._options.reload:
            return
        files = {file for child in list(self._children.values()) for file in child.hello.get("files", ())}
        seen = {file: _changed_at(file) for file in files}
        changed = [file for file, at in seen.items() if self._files.get(file, at) != at]
        self._files = seen
        if changed:
            self._say(f"{changed[0]} changed: starting the workers anew")
            for child in list(self._children.values()):
                self._ask_main(partial(self._tell_to_drain, child, self._grace()))

    # ── metrics and health ──

    def _ask_for_counts(self, now: float) -> None:
        """Whoever has not answered yet is not asked again: a loop that is blocked must not find a heap of questions."""
        self._count_at = now + COUNT_SECONDS
        for child in self._children.values():
            if child.ready and child.id not in self._asked:
                self._asked.add(child.id)
                child.link.send("count")

    def vitals(self) -> Vitals:
        """What is known right now, from any thread and without asking anyone."""
        now, ground, away_since = self._boot(), self._found, self._away_since
        up = [child for child in list(self._children.values()) if child.ready and not child.drained]
        words = [said for child in up if (said := self._words.get(child.id))]
        problems = [ground.notifier.problem() if ground else "", *(each.notifier for each in words)]
        return Vitals(
            settings=ground.settings if ground else None,
            store=ground.store.url if ground else "",
            renewed_ago=None if self._renewed is None else now - self._renewed,
            away="" if away_since is None else f"away for {spell(now - away_since)}: {self._away_why}",
            notifier=next(filter(None, problems), ""),
            queues=self._served,
            workers=self._options.workers,
            ready=sum(not child.draining for child in up),
            slots=sum(1 if child.runner == "solo" else ground.settings.concurrency for child in up) if ground else 0,
            busy=sum(each.busy for each in words),
            stopping=self._stopping > 0,
        )

    # ── the store's absence ──

    def _away(self, error: TenureError) -> None:
        if self._away_since is None and not self._done:  # closing the store breaks off what a thread still asks it
            self._away_since, self._away_why = self._boot(), str(error)
            self._events.emit(StoreAway(error=str(error)))

    def _back(self) -> None:
        since, self._away_since = self._away_since, None
        if since is not None:
            self._events.emit(StoreBack(seconds=self._boot() - since))
            self._ask_main(self._hurry)

    def _hurry(self) -> None:
        """What would have failed without the store need not sit out its backoff."""
        self._failed_starts, self._start_at = 0, [0.0] * len(self._start_at)


def _changed_at(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0


def _settings(hello: Mapping[str, Any]) -> Settings:
    return msgspec.convert(hello["settings"], Settings, dec_hook=lambda kind, value: kind(value))
