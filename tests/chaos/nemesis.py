"""Carries out the faults of a plan, one after the other, and writes down what it did and when."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from crash.harness import alive, boot, children, filled, send, until
from previous import Release
from proxy import Proxy
from servers import Postgres, flipped
from tenure.app.backends import open_notifier
from tenure.core.lifecycle import Completed, Lease
from tenure.errors import StoreError
from tenure.ports import AttemptView, Filter, JobView, Landed, Progress, Ring, Store

from . import workload
from .faults import Fault
from .stage import PUBLISHED, Host, Stage, read

HOUR = 3600.0
GHOSTS = 20
GHOST_SECONDS = 30.0  #: of looking for a job that has lost an owner
BUSY_SECONDS = 3.0  #: how long to wait for a worker that runs something
START_SECONDS = 240.0  #: for a supervisor to have workers, on the busiest machine
SLOW_BYTES = 8000  #: a second: a line of 64 kbit/s


class Nemesis:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._draw = random.Random(stage.seed + 1)
        self._ways: dict[str, Callable[[Fault], None]] = {
            "kill worker": self._kill_worker,
            "kill supervisor": self._kill_supervisor,
            "kill client": self._kill_client,
            "pause worker": lambda fault: self._pause(fault, [self._busy(fault)]),
            "pause supervisor": lambda fault: self._pause(fault, [self._host(fault).supervisor.pid]),
            "pause host": lambda fault: self._pause(fault, self._host(fault).pids()),
            "deploy supervisor": self._deploy,
            "clock host": self._step_the_clock,
            "ghost writes": self._write_as_ghosts,
            "false hints": self._false_hints,
            "blackhole line": lambda fault: self._on_line(fault, self._line(fault).blackhole),
            "refuse line": lambda fault: self._on_line(fault, self._line(fault).refuse),
            "reset line": lambda fault: self._on_line(fault, self._line(fault).cut),
            "half-close line": lambda fault: self._on_line(fault, self._line(fault).half_close),
            "latency line": lambda fault: self._on_line(fault, lambda: self._line(fault).latency(0.25, 0.25)),
            "throttle line": lambda fault: self._on_line(fault, lambda: self._line(fault).throttle(SLOW_BYTES)),
            "lost reply line": self._lose_replies,
            "kill server": lambda fault: self._away(fault, lambda: self._server.process.kill(), self._start_server),
            "stop server": lambda fault: self._away(fault, lambda: self._server.stop(), self._start_server),
            "freeze server": self._freeze_server,
            "disconnect server": self._disconnect,
            "forget scripts server": self._forget_scripts,
            "kill node": self._kill_node,
            "long transaction": self._hold_a_transaction,
            "kill queue": lambda fault: self._away(fault, self._nats.kill, self._nats.start),
            "wipe queue": lambda fault: self._away(fault, self._nats.wipe, lambda: None),
            "spoil queue": lambda fault: self._away(fault, self._spoil_the_queue, lambda: None),
            "rewind queue": self._rewind_the_queue,
            "blackhole queue": lambda fault: self._away(fault, self._queue_line.blackhole, self._queue_line.heal),
            "reset queue": lambda fault: self._away(fault, self._queue_line.cut, lambda: None),
            "lost reply queue": self._lose_acks,
            "latency queue": lambda f: self._away(
                f, lambda: self._queue_line.latency(0.25, 0.25), self._queue_line.heal
            ),
            "throttle queue": lambda f: self._away(
                f, lambda: self._queue_line.throttle(SLOW_BYTES), self._queue_line.heal
            ),
            "full disk": self._fill_the_disk,
            "full memory server": self._fill_the_memory,
        }

    def strike(self, fault: Fault) -> None:
        """Returns when it is over."""
        time.sleep(fault.after)
        self.keep_all_running()
        self._ways[fault.name](fault)
        self.keep_all_running()

    def keep_all_running(self) -> None:
        """As a service manager does: restart every process that ended by itself, and record it."""
        for host in self._stage.supervised():
            if host.supervisor.process.poll() is not None:
                code = host.supervisor.process.returncode
                self._stage.pen.note("ended", pid=host.supervisor.pid, code=code, log=host.supervisor.log()[-2000:])
                host.restart()

    def wait_until_all_serve(self) -> None:
        """A supervisor that started during the last fault may end only now, having found no store: restart it, too."""

        def all_serve() -> bool:
            self.keep_all_running()
            with suppress(StoreError):
                registered = {view.identity.pid for view in self._stage.site.store.workers()}
                return all(registered & set(host.supervisor.workers()) for host in self._stage.supervised())
            return False

        until(all_serve, "a registered worker of each supervisor", START_SECONDS, self._stage.site.logs)

    @contextmanager
    def _noted(self, fault: Fault, **more: Any) -> Generator[None]:
        about = {"kind": fault.name, "seconds": fault.seconds, **more}
        self._stage.pen.note("fault", "invoke", **about)
        yield
        self._stage.pen.note("fault", "ok", **about)

    # ── targets ──

    def _host(self, fault: Fault) -> Host:
        return self._stage.hosts[fault.place % len(self._stage.hosts)]

    def _busy(self, fault: Fault) -> int:
        """A worker that runs something, on this host if there is one; else any."""
        order = sorted(self._stage.hosts, key=lambda host: host is not self._host(fault))

        def find() -> int:
            with suppress(StoreError):
                busy = {view.identity.pid for view in self._stage.site.store.workers() if view.processing}
                return next((pid for host in order for pid in host.supervisor.workers() if pid in busy), 0)
            return 0

        deadline = boot() + BUSY_SECONDS
        while boot() < deadline:
            if pid := find():
                return pid
            time.sleep(0.02)

        def some() -> int:
            return next((pid for host in order for pid in host.supervisor.workers()), 0)

        return until(some, "a worker", START_SECONDS, self._stage.site.logs)

    def _line(self, fault: Fault) -> Proxy:
        return self._stage.lines[fault.place % len(self._stage.lines)]

    def _kill_pid(self, pid: int) -> None:
        self._stage.pen.note("kill", pid=pid)
        send(pid, signal.SIGKILL)

    # ── processes ──

    def _kill_worker(self, fault: Fault) -> None:
        pid = self._busy(fault)
        with self._noted(fault, pids=[pid]):
            self._kill_pid(pid)

    def _kill_supervisor(self, fault: Fault) -> None:
        host = self._host(fault)
        pids = host.pids()
        with self._noted(fault, pids=pids):
            for pid in pids[1:]:
                self._stage.pen.note("kill", pid=pid)  # the kernel sends it, when the supervisor dies
            self._kill_pid(pids[0])
            host.supervisor.process.wait()
            until(lambda: not any(map(alive, pids)), "workers to die with their supervisor")
            host.restart()

    def _kill_client(self, fault: Fault) -> None:
        client = self._stage.clients.pop(0)
        with self._noted(fault, pids=[client.process.pid]):
            self._kill_pid(client.process.pid)
            client.process.wait()
            self._stage.start_client(client.release)

    def _pause(self, fault: Fault, pids: Sequence[int]) -> None:
        with self._noted(fault, pids=pids):
            self._stage.pen.note("pause", "invoke", pids=pids)
            for pid in pids:
                send(pid, signal.SIGSTOP)
            time.sleep(fault.seconds)
            for pid in pids:
                send(pid, signal.SIGCONT)
            self._stage.pen.note("pause", "ok", pids=pids)

    def _deploy(self, fault: Fault) -> None:
        host = self._host(fault)
        with self._noted(fault, pids=host.pids()):
            self.deploy(host, host.release)

    def deploy(self, host: Host, release: Release) -> None:
        """Drain this host, and start this release there."""
        supervisor = host.supervisor
        until(
            lambda: supervisor.workers() or supervisor.process.poll() is not None,
            "its workers to be there: a SIGTERM before it listens for one ends it",
            START_SECONDS,
            supervisor.log,
        )
        code = supervisor.stop()
        if code:
            self._stage.pen.note("ended", pid=supervisor.pid, code=code, log=supervisor.log()[-2000:])
        host.release = release
        host.restart()

    def _step_the_clock(self, fault: Fault) -> None:
        host = self._host(fault)
        step = HOUR if fault.place % 4 < 2 else -HOUR
        with self._noted(fault, step=step):
            host.set_clock(step)
            time.sleep(fault.seconds)
            host.set_clock(0.0)

    # ── former owners ──

    def _write_as_ghosts(self, fault: Fault) -> None:
        """What a former owner had sent arrives only now: checkpoints and outcomes under leases that are lost."""
        store = self._stage.site.store
        with self._noted(fault):
            last = time.monotonic() + GHOST_SECONDS
            while time.monotonic() < last:
                with suppress(StoreError):  # our own connections may have been closed since we used them last
                    if views := self._begun_again(store, last):
                        for view in self._draw.sample(views, min(len(views), GHOSTS)):
                            for ended in store.attempts(view.id):
                                self._haunt(store, read(store, view, "payload").get("key", ""), view.id, ended)
                        return
                time.sleep(0.1)

    @staticmethod
    def _begun_again(store: Store, last: float) -> list[JobView]:
        """Jobs that have lost an owner. Soon after the first kill there may be none yet, on a machine under load."""
        found: list[JobView] = []
        page = store.search(Filter(), limit=200)
        while True:
            found += [view for view in page.jobs if view.crashes or view.attempt > 1]
            if len(found) >= GHOSTS or page.cursor is None or time.monotonic() > last:
                return found
            page = store.search(Filter(), limit=200, cursor=page.cursor)

    def _haunt(self, store: Store, key: str, job: str, ended: AttemptView) -> None:
        lease = Lease(job, ended.attempt, ended.worker_id)
        ways: dict[str, Callable[[], bool]] = {
            "checkpoint": lambda: store.progress([Progress(lease=lease, checkpoint='"ghost"')])[0],
            "finish": lambda: isinstance(store.finish([(lease, Completed('"ghost"'))])[0], Landed),
        }
        for name, write in ways.items():
            about: dict[str, Any] = {"key": key, "job": job, "attempt": ended.attempt, "name": name}
            self._stage.pen.note("ghost", "invoke", **about)
            self._stage.pen.note("ghost", "ok" if write() else "fail", **about)

    # ── doorbells ──

    def _false_hints(self, fault: Fault) -> None:
        """Rings for jobs that run, have ended, or never were; many times."""
        store = self._stage.site.store
        notifier = open_notifier(workload.jobs.settings, store)
        with self._noted(fault), suppress(StoreError):
            ids = [view.id for view in store.search(Filter(), limit=20).jobs]
            for kind in ("queued", "due", "cancel"):
                notifier.announce([Ring(kind, "default", (each,)) for each in (*ids, *ids)])
            notifier.close()

    # ── lines ──

    def _on_line(self, fault: Fault, strike: Callable[[], None]) -> None:
        line = self._line(fault)
        with self._noted(fault, line=fault.place % len(self._stage.lines)):
            strike()
            time.sleep(fault.seconds)
            line.heal()

    def _lose_replies(self, fault: Fault) -> None:
        line, replies = self._line(fault), self._stage.replies
        reply = replies[fault.place % len(replies)]
        before = line.cuts
        with self._noted(fault, pattern=reply.pattern.decode()):
            line.cut_reply_to(reply.pattern, 1 + fault.place % 5, answered=reply.answered)
            time.sleep(fault.seconds)
            line.heal()
        self._stage.pen.note("lost", replies=line.cuts - before)

    def _lose_acks(self, fault: Fault) -> None:
        line = self._queue_line
        before = line.cuts
        with self._noted(fault, pattern=PUBLISHED.pattern.decode()):
            line.cut_reply_to(PUBLISHED.pattern, 1 + fault.place % 5, answered=PUBLISHED.answered)
            time.sleep(fault.seconds)
            line.heal()
        self._stage.pen.note("lost", replies=line.cuts - before)

    # ── servers ──

    @property
    def _server(self) -> Any:
        return self._stage.server

    @property
    def _nats(self) -> Any:
        return self._stage.nats

    @property
    def _queue_line(self) -> Any:
        return self._stage.queue_line

    def _start_server(self) -> None:
        self._server.process.start()

    def _away(self, fault: Fault, go: Callable[[], None], come_back: Callable[[], None]) -> None:
        with self._noted(fault):
            go()
            time.sleep(fault.seconds)
            come_back()

    def _spoil_the_queue(self) -> None:
        """A file in three is cut, or has a bit flipped in every KiB."""

        def spoilt(content: bytes) -> bytes:
            match self._draw.randrange(6):
                case 0:
                    return content[: self._draw.randrange(len(content) + 1)]
                case 1:
                    return flipped(content, self._draw)
                case _:
                    return content

        self._nats.spoil(spoilt)

    def _rewind_the_queue(self, fault: Fault) -> None:
        """What it acknowledged in these seconds is gone, and what was acknowledged to it is there again."""
        with self._noted(fault):
            copy = self._nats.copy()
            time.sleep(fault.seconds)
            self._nats.restore(copy)

    def _freeze_server(self, fault: Fault) -> None:
        """It keeps its connections, and its port, and does nothing."""
        process = self._server.process
        pids = [process.pid, *children(process.pid)]
        with self._noted(fault):
            for pid in pids:
                send(pid, signal.SIGSTOP)
            time.sleep(fault.seconds)
            for pid in pids:
                send(pid, signal.SIGCONT)

    def _disconnect(self, fault: Fault) -> None:
        """The server itself ends every connection."""
        process = self._server.process
        with self._noted(fault):
            if isinstance(process, Postgres):
                process.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                )
            else:
                process.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def _forget_scripts(self, fault: Fault) -> None:
        with self._noted(fault):
            for server in self._stage.servers():
                if not isinstance(server, Postgres) and hasattr(server, "execute"):
                    server.execute("SCRIPT", "FLUSH")

    def _kill_node(self, fault: Fault) -> None:
        cluster = self._stage.cluster
        assert cluster is not None
        node = cluster.nodes[fault.place % len(cluster.nodes)]
        with self._noted(fault):
            node.kill()
            time.sleep(fault.seconds)
            node.start()
            cluster.wait()

    def _hold_a_transaction(self, fault: Fault) -> None:
        """A caller's own transaction, with a job in it and a unique key that others want; it is rolled back."""
        pen, key = self._stage.pen, f"held-{boot():.3f}"
        unique = f"only-{fault.place % 3}"
        job = workload.act.using(unique=unique).bind(key, [["effect"]])
        with self._noted(fault):
            pen.note("enqueue", "invoke", key=key, must="completed", script=[], due=0, unique=unique, tx="rollback")
            with suppress(_RolledBackError, StoreError), workload.jobs.transaction() as tx:
                workload.jobs.enqueue_many([job], tx=tx)
                time.sleep(fault.seconds)
                raise _RolledBackError
            pen.note("enqueue", "fail", key=key)

    # ── the machine ──

    def _fill_the_disk(self, fault: Fault) -> None:
        assert self._stage.disk is not None
        with self._noted(fault), filled(self._stage.disk):
            time.sleep(fault.seconds)

    def _fill_the_memory(self, fault: Fault) -> None:
        """Every write that needs more memory is refused."""
        process = self._server.process
        with self._noted(fault):
            process.execute("CONFIG SET", "maxmemory", max(1, process.execute("INFO", "memory")["used_memory"] // 2))
            time.sleep(fault.seconds)
            process.execute("CONFIG SET", "maxmemory", 0)


class _RolledBackError(Exception):
    pass
