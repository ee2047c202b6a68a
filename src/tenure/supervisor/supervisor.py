"""The supervisor: starts workers, renews their leases, detects their deaths, and settles their jobs. No user code.

It has five threads, so that none of its duties delays another:

1. *main* starts and stops workers. It is notified of an exit at once (pidfd), kills what is left of the process group,
   and only then settles each lease the worker held: guilty jobs by their verdict, the others by the cause of the exit.
2. *fence* kills workers whose leases could not be renewed in time. It waits for nothing, not even the store.
3. *renew* extends the leases of living workers every lease/3, on a connection of its own.
4. *urgent* rescues, promotes and fires ticks, 5. *maintain* does the rest, both on another connection.

`Supervisor` coordinates its parts: processes.py (the table of workers), spares.py, starts.py (those that take long),
fence.py, watch.py (checks from outside), settler.py, renewer.py, upkeep.py (its own duties in the maintenance),
reports.py (for metrics), traces.py, outage.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from tenure import errors
from tenure.config import Settings
from tenure.core.clock import system_clock
from tenure.core.durations import spell
from tenure.core.host import cause_of
from tenure.core.lifecycle import Crashed
from tenure.core.logs import logger
from tenure.events import Events, NotifierDegraded, WorkerDied, WorkerReplaced, WorkerStarted
from tenure.maintenance.duty import Duty
from tenure.maintenance.holder import LeaseHolder, identity
from tenure.maintenance.maintenance import Alarm, Declaration, Maintenance, NewAlarm
from tenure.ports import Notifier, Store
from tenure.supervisor.fence import Fence
from tenure.supervisor.mainloop import MainLoop
from tenure.supervisor.orders import Orders
from tenure.supervisor.outage import Outage
from tenure.supervisor.process import WorkerProcess
from tenure.supervisor.processes import ProcessTable
from tenure.supervisor.renewer import Renewer
from tenure.supervisor.reports import Reports
from tenure.supervisor.settler import Settler, Unsettled, how_ended, rest_of
from tenure.supervisor.shared import Shared, solo_slots
from tenure.supervisor.starts import Starts
from tenure.supervisor.traces import TraceRelay
from tenure.supervisor.upkeep import Upkeep
from tenure.supervisor.watch import Watch
from tenure.worker.link import read_verdicts
from tenure.worker.tally import Tally, Vitals, timed

TICK_SECONDS = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `tenure worker`."""

    command: tuple[str, ...]  #: starts one worker; the handles are appended as arguments
    workers: int = 1
    until_empty: bool = False
    reload: bool = False
    counts: bool = False  #: metrics are served: request the workers' counters


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that exist once the first worker has reported the settings, and so the store."""

    shared: Shared
    renewals: Store
    notifier: Notifier
    alarm: Alarm
    settler: Settler
    watch: Watch
    renewer: Renewer
    renewing: Duty
    fencing: Duty
    orders: Orders

    def start(self) -> None:
        self.alarm.start()
        self.fencing.start()
        self.renewing.start()

    def close(self) -> None:
        for part in (self.renewing, self.fencing, self.shared.maintenance, self.alarm):
            part.stop()
        self.shared.store.close()
        self.renewals.close()
        self.notifier.close()  # it sends what the last rescues rang


class Supervisor:
    def __init__(
        self,
        options: Options,
        open_store: Callable[[Settings], Store],
        open_notifier: Callable[[Settings, Store], Notifier],
        new_alarm: NewAlarm,
        echo: Callable[[str], None],
    ) -> None:
        self._options = options
        self._open_store, self._open_notifier = open_store, open_notifier
        self._new_alarm, self._echo = new_alarm, echo
        self._events = Events()
        self.tally = Tally()
        self.tally.follow(self._events)
        self._traces = TraceRelay(self._events)
        self._clock = system_clock()
        self._loop = MainLoop()
        self._processes = ProcessTable(
            options.command,
            self._loop,
            self._clock.boot,
            on_message=self._on_message,
            on_exit=self._on_exit,
            stopping=lambda: self._stopping > 0,
            echo=echo,
        )
        self._starts = Starts(self._processes, self._events, self._clock.boot)
        self._outage = Outage(self._events, self._clock.boot, lambda: self._loop.call(self._processes.start_now))
        self._reports = Reports(self.tally)
        self._found: Parts | None = None
        self._stopping = 0  # the number of stop signals received
        self._exit_code = 0

    # ── the main loop ──

    def run(self) -> int:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if a parent left it ignored, exits would go unnoticed
        self._loop.on_stop_signal(self._stop)
        for _ in range(self._options.workers):
            self._processes.start("worker")
        try:
            while self._running:
                self._turn()
        finally:
            self._processes.kill_all()
            self._outage.close()
            if self._found is not None:
                self._found.close()
        return self._exit_code

    @property
    def _running(self) -> bool:
        if self._processes or (self._found is not None and self._found.settler.pending):
            return True
        return self._processes.waits_to_start and not self._stopping

    def _turn(self) -> None:
        self._loop.turn(TICK_SECONDS)
        self._processes.notice_exits()
        if self._found is not None:
            self._found.watch.turn()
            self._retry_unsettled(self._found.settler)
        self._processes.start_due()
        self._starts.turn()
        if self._options.counts:
            self._reports.request(self._processes, self._clock.boot())
        self._traces.turn(self._processes)
        if os.getpid() == 1:
            self._processes.reap_orphans()

    def _stop(self) -> None:
        """First signal: drain. Second: drain without grace. Third: kill."""
        self._stopping += 1
        for worker in self._processes:
            if self._stopping >= 3:
                worker.kill("the supervisor was told to stop three times")
            elif not worker.registered:
                # It holds no jobs, and may hang in an import.
                worker.kill("the supervisor was stopped before it was ready")
            else:
                self._drain(worker, self._grace if self._stopping == 1 else 0.0)

    def _stop_when_empty(self, left: str) -> None:
        if not self._stopping:
            if left:
                self._echo(f"nothing is left to do, but these jobs are left: {left}; tenure jobs explain ID says why")
            self._stop()

    def _restart_workers(self, changed: str) -> None:
        self._echo(f"{changed} changed: restarting the workers")
        for worker in self._processes:
            self._drain(worker, self._grace)

    @property
    def _parts(self) -> Parts:
        assert self._found is not None, "no worker is registered before the store is open"
        return self._found

    @property
    def _grace(self) -> float:
        return self._parts.shared.settings.grace

    def _drain(self, worker: WorkerProcess, grace: float) -> None:
        worker.drain(grace, self._parts.watch.end_by(grace))

    def _drain_on_order(self, worker: WorkerProcess, grace: float | None) -> None:
        if worker in self._processes and not worker.draining:
            self._echo(f"worker {worker.id} drains, by an operator's order{'' if worker.retired else ', and restarts'}")
            self._drain(worker, self._grace if grace is None else grace)

    # ── messages of workers ──

    def _on_message(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "hello":
                self._on_hello(worker, message)
            case "refused":
                self._refused(worker, message["error"])
            case "opening":
                worker.opening = message["resource"]
            case "ready":
                self._processes.started(worker)
            case "due":
                self._parts.shared.maintenance.look_again()
            case "stuck":
                worker.verdicts.update(read_verdicts(message["verdicts"]))
                worker.kill("code that was asked to stop did not")
            case "stack":
                self._parts.orders.answered(message)
            case "counts":
                self._reports.receive(worker.id, message)
            case "draining":  # by its own decision: it gets a deadline, too
                if not worker.draining:
                    self._drain(worker, message["grace"])
            case "drained":
                worker.drained = True
            case other:
                self._echo(f"worker {worker.id} sent {other!r}, a message unknown to this supervisor")

    def _refused(self, worker: WorkerProcess, error: str) -> None:
        worker.draining = True
        if self._found is None:  # at the first start it is the caller's mistake; later, a broken deploy: retry
            self._give_up(error, 2)
        else:
            self._echo(f"a new worker can't start: {error}")

    def _give_up(self, error: str, exit_code: int) -> None:
        if not self._exit_code:
            self._echo(error)
            self._exit_code = exit_code
        self._stopping = max(self._stopping, 1)

    def _on_hello(self, worker: WorkerProcess, hello: Mapping[str, Any]) -> None:
        worker.hello = hello
        self._traces.wanted |= hello.get("traces", False)
        try:
            parts = self._found = self._found or self._open(_settings(hello))
            # In development releases go back and forth: the current code always wins.
            declares = replace(msgspec.convert(hello["declares"], Declaration), force=self._options.reload)
            parts.shared.maintenance.declare_limits(declares)
            slots = self._register(worker, parts.shared)
        except errors.TenureError as error:
            if self._found is None:
                self._give_up(str(error), 75 if isinstance(error, errors.StoreAway) else 2)
            else:
                self._outage.begin(error)
            worker.drain(0.0, 0.0)  # it was never registered, so `Watch` does not check it
            return
        if self._stopping:
            self._drain(worker, 0.0)
            return
        queues = hello["queues"]
        parts.shared.maintenance.declare(declares)
        self._processes.served = frozenset(queues)
        # These queues may have jobs that must run alone, or that are parked because no worker served them.
        parts.shared.maintenance.hurry("solo", "withdraw")
        worker.link.send("start", worker_id=worker.id, runner=worker.runner, queues=queues, slots=slots)
        pid, replaces = worker.process.pid, worker.replaces
        if replaces:
            self._events.emit(WorkerReplaced(worker_id=worker.id, pid=pid, replaces=replaces))
        self._events.emit(
            WorkerStarted(worker_id=worker.id, pid=pid, slots=slots, queues=tuple(queues), runner=worker.runner)
        )

    def _register(self, worker: WorkerProcess, shared: Shared) -> int:
        """Register its row in the store; return its number of slots."""
        tasks, queues, lease = worker.hello["tasks"], worker.hello["queues"], shared.settings.lease
        slots = worker.slots = solo_slots(shared.settings) if worker.runner == "solo" else shared.settings.concurrency
        row = identity(worker.runner, queues, tasks, slots, lease, pid=worker.process.pid, token=worker.token)
        holder = LeaseHolder(shared.store, row, self._clock)
        holder.register()
        worker.lifeline.quiet_until = shared.maintenance.judge.quiet_until
        worker.lifeline.renewed(holder.landed)
        worker.registered = True
        if not self._processes.served:
            self._echo(f"tenure: {shared.store.url}")
            self._echo(f"        tasks {', '.join(tasks)}; queues {', '.join(queues)}; lease {spell(lease)}")
        return slots

    def _open(self, settings: Settings) -> Parts:
        with ExitStack() as opened:
            renewals = timed(self._open_store(settings), self.tally)
            opened.callback(renewals.close)
            store = timed(self._open_store(settings), self.tally)
            opened.callback(store.close)
            notifier = self._open_notifier(settings, store)
            opened.pop_all()
        if notifier.problem():
            self._events.emit(NotifierDegraded(problem=notifier.problem()))
        processes, outage = self._processes, self._outage
        maintenance = Maintenance(store, notifier, self._events, settings, mine=processes.mine)
        shared = Shared(settings, store, maintenance, self._events, self._clock.boot, self._loop, processes, outage)
        upkeep = Upkeep(
            shared,
            empty=self._stop_when_empty if self._options.until_empty else None,
            changed=self._restart_workers if self._options.reload else None,
        )
        renewer, failed, away = Renewer(shared, renewals), self._duty_failed, outage.begin
        renewing = Duty("tenure-renew", renewer.step, failed=failed, unavailable=away)
        fencing = Duty("tenure-fence", Fence(shared).step, failed=failed)
        orders = Orders(shared, self._drain_on_order)
        for row in (*upkeep.rows(), orders.row):
            maintenance.rest.add(row)
        alarm = self._new_alarm(settings, store, notifier, maintenance.lags)
        settler, watch = Settler(shared, maintenance.look_again), Watch(shared, renewing.wake)
        if not (self._options.until_empty or self._options.reload):  # these end soon, or on purpose
            processes.spares.wanted = settings.spares
        maintenance.scan()
        parts = Parts(shared, renewals, notifier, alarm, settler, watch, renewer, renewing, fencing, orders)
        parts.start()
        maintenance.start(failed=failed, unavailable=away)
        return parts

    # ── exits of workers ──

    def _on_exit(self, worker: WorkerProcess) -> None:
        ended = worker.wait()
        if ended is None:
            return
        self._processes.remove(worker)
        self._reports.forget(worker.id)
        stopped = worker.drained or (worker.draining and ended.code == 0)
        rest, how = rest_of(worker, ended), how_ended(worker, ended)
        if not stopped and (worker.registered or not self._stopping):
            cause = worker.kill_reason or cause_of(ended.code)
            evidence = dict(rest.evidence) if isinstance(rest, Crashed) else {}
            self._events.emit(WorkerDied(worker_id=worker.id, pid=worker.process.pid, cause=cause, evidence=evidence))
        worker.close()
        if worker.registered:
            self._parts.settler.settle(Unsettled(worker.id, how, worker.verdicts, rest))
        self._processes.replace(worker)

    def _retry_unsettled(self, settler: Settler) -> None:
        left = settler.retry(stopping=self._stopping)
        if left:
            self._exit_code = self._exit_code or 75
            self._echo(
                f"stopped while the store was unavailable: the jobs of {left} worker{'s' * (left > 1)} are rescued at "
                "the next start, or when their leases end"
            )

    def _duty_failed(self, error: BaseException) -> None:
        """Called in the thread of a duty, as it ends."""
        self._loop.call(self._fail)  # before the log, whose handlers are the program's and may raise
        logger("tenure.supervisor").critical("a background thread has failed; exiting", exc_info=error)

    def _fail(self) -> None:
        self._exit_code, self._stopping = 1, 2
        self._stop()

    # ── for metrics and health ──

    def vitals(self) -> Vitals:
        """The current state. From any thread; queries neither the store nor the workers."""
        found, processes = self._found, self._processes
        landed = found.renewer.landed if found else None
        up = [worker for worker in processes if worker.ready and not worker.drained]
        reports = self._reports.of(up)
        problems = [found.notifier.problem() if found else "", *(each.notifier for each in reports)]
        return Vitals(
            settings=found.shared.settings if found else None,
            store=found.shared.store.url if found else "",
            renewed_ago=None if landed is None else self._clock.boot() - landed.sent,
            away=self._outage.describe(),
            notifier=next(filter(None, problems), ""),
            queues=processes.served,
            workers=self._options.workers - processes.retired,
            ready=sum(not worker.draining for worker in up),
            slots=sum(worker.slots for worker in up),
            busy=sum(each.busy for each in reports),
            stopping=self._stopping > 0,
            lags={lag.duty: lag.seconds for lag in found.shared.maintenance.lags()} if found else {},
        )


def _settings(hello: Mapping[str, Any]) -> Settings:
    return msgspec.convert(hello["settings"], Settings, dec_hook=lambda kind, value: kind(value))
