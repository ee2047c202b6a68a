"""Crash points: where a process of the engine can die between two durable effects, by name.

Every durable effect is a verb of `Store`, `Notifier` or `Permits`, and within a verb one statement or script after
another. So these ports are wrapped in the processes of a test, and the engine carries no hooks. A point is armed by a
file of its name; the first process to reach it removes that file, so exactly one process dies there, by SIGKILL.

    python -m chaos.points                      prints the table
    python -m chaos.points ROLE tenure WORD…    runs that command, with the points of this role
    python -m chaos.points ROLE PYTHON -m MODULE WORD…
    python -m chaos.points ROLE WORD…           the client, and the embedded worker, of points_app.py
"""

from __future__ import annotations

import functools
import importlib
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import tenure.app.backends
import tenure.maintenance.maintenance
import tenure.tasks.once
from tenure.config import Settings
from tenure.core.lifecycle import Cancelled, Failed, Released, Snoozed, Suspended
from tenure.ports import Claimed, Draft, Enqueued, Landed, Notifier, OnLoop, Store
from tenure.worker.worker import Worker

# ── The table ───────────────────────────────────────────────────────────────────────────────────────────────────

#: Verbs that change nothing for any other process. Every other verb of the ports has points.
READS = frozenset(
    (
        *(
            "inputs",
            "dependents",
            "signals",
            "flows",
            "outdated",
            "members",
            "edges",
            "holding",
            "waited_longest",
            "waits",
            "lost_waits",
        ),
        *("limits", "keys", "holders", "parked"),
        *("fetch", "keep", "sweep"),  # of a bucket: they change nothing in the store
        *("open", "close", "capabilities", "url", "now", "owned", "hung", "solo_waiting", "paused", "due", "schedules"),
        *(
            "ticks",
            "decided",
            "notes",
            "get",
            "ids",
            "search",
            "ended",
            "latest_ended",
            "logs",
            "updates",
            "counts",
            "attempts",
            "records",
            "workers",
            "queues",
        ),
        *("listen", "problem", "permits", "fileno", "interval", "drain", "want", "take"),
    )
)
LEDGER = "TENURE_TEST_LEDGER"
TRANSACTIONS, PERMITS = "transactions", "permits"


class Spot(NamedTuple):
    """A durable effect of a role, which can die before and after it. `needs`: only where the backend has it."""

    what: str
    verb: str = ""  #: "": as `what`
    needs: str = ""

    @property
    def of(self) -> str:
        return self.verb or self.what


_FINISHES = (
    *(Spot("finish"), Spot("finish a failure", "finish"), Spot("finish a snooze", "finish")),
    *(Spot("finish a cancel", "finish"), Spot("finish a release", "finish"), Spot("finish a suspension", "finish")),
)
_JOINS = (Spot("commit", "transaction", TRANSACTIONS), Spot("enqueue in a transaction", "enqueue", TRANSACTIONS))

ROLES: Mapping[str, tuple[Spot, ...]] = {
    "worker": (
        *map(Spot, ("claim", "progress", "once")),
        Spot("claim on loop", "claim_on_loop"),
        *_FINISHES,
        Spot("finish in a transaction", "finish", TRANSACTIONS),
        Spot("commit", "transaction", TRANSACTIONS),
        Spot("enqueue alone", "enqueue_on_loop"),
        Spot("enqueue gathered jobs", "enqueue"),
        Spot("announce"),
        Spot("refused"),
        Spot("admit"),
        Spot("settle permits", "settle", PERMITS),
    ),
    "solo worker": tuple(map(Spot, ("claim", "progress", "finish"))),
    "supervisor": (
        *map(
            Spot,
            ("register", "renew", "settle", "promote", "admit", "upkeep", "rescue", "declare_dead", "declare_expired"),
        ),
        *map(Spot, ("change_limits", "withdraw")),
        Spot("change"),
        Spot("change with a job", "change"),
        *map(Spot, ("swap", "announce", "prune", "forget")),
    ),
    "client": (
        Spot("enqueue"),
        Spot("enqueue a batch", "enqueue"),
        Spot("enqueue a flow", "enqueue"),
        Spot("enqueue alone", "enqueue_on_loop"),
        Spot("rewrite"),
        Spot("change_limits"),
        *_JOINS,
        *map(Spot, ("announce", "cancel", "promote_now", "signal", "skip", "ask", "replay", "delete", "pause", "swap")),
    ),
    "embedded worker": tuple(map(Spot, ("register", "claim", "progress", "finish", "renew", "settle", "announce"))),
    "guard": (
        Spot("register"),
        Spot("change with a job", "change"),
        *map(Spot, ("renew", "finish", "change", "declare_dead", "redelivered")),
    ),
    "migration": (Spot("migrate"),),
}

#: Between two effects of a handler itself.
HANDLERS = (
    "a handler starts",
    "between an effect and its checkpoint",
    "between a checkpoint and the next effect",
    "after the function of once, before its record",
    "between two effects in a transaction",
    "after the function of a gather, before its list is stored",
)


def points(role: str, has: Iterable[str] = (TRANSACTIONS, PERMITS)) -> list[str]:
    """The names of this role's points on a backend that has all this."""
    spots = [spot for spot in ROLES[role] if not spot.needs or spot.needs in has]
    ports = [f"{role}: {when} {spot.what}" for spot in spots for when in ("before", "after")]
    own = [each for each in HANDLERS if "transaction" not in each or TRANSACTIONS in has] if role == "worker" else []
    return ports + [f"{role}: {each}" for each in own]


def table() -> str:
    return "\n".join(name for role in ROLES for name in points(role))


# ── Dying ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Folder(NamedTuple):
    """Where the points of one test are armed and taken."""

    path: Path

    def make(self) -> None:
        for name in ("armed", "taken", "seen"):
            (self.path / name).mkdir()

    def arm(self, name: str) -> None:
        (self.path / "armed" / name).touch()

    def disarm(self, name: str) -> None:
        (self.path / "armed" / name).unlink(missing_ok=True)

    def taken(self, name: str) -> bool:
        return (self.path / "taken" / name).exists()

    def take(self, name: str) -> bool:
        """Is it armed, and are we the first to take it? At most one process ever gets a yes."""
        with suppress(FileNotFoundError):
            os.rename(self.path / "armed" / name, self.path / "taken" / name)  # noqa: PTH104
            return True
        return False

    def see(self, name: str) -> None:
        """Record that one more process has reached it."""
        with (self.path / "seen" / name).open("ab", buffering=0) as file:
            file.write(b".")

    def seen(self) -> dict[str, int]:
        """The statements that were sent, and by how many processes."""
        return {each.name: each.stat().st_size for each in (self.path / "seen").iterdir()}


class Process:
    """What role this process plays, and which verb each of its threads is in."""

    role = "worker"
    _here = threading.local()

    def __init__(self) -> None:
        self._known = set[str]()
        self.ledger = Path(os.environ[LEDGER])
        self.folder = Folder(self.ledger.parent)
        self.statements = os.environ.get("TENURE_TEST_STATEMENTS") == "1"

    def reach(self, what: str, told: Callable[[], Iterable[str]] = tuple) -> None:
        """Die here, if that is asked for. `told`: lines for the ledger, each as `JOB ATTEMPT EVENT`."""
        name = f"{self.role}: {what}"
        if self.folder.take(name):
            self.write(*told(), f"- 0 killed {name}")
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, *lines: str) -> None:
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        file = os.open(self.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        for line in lines:
            job, attempt, event = line.split(" ", 2)
            os.write(file, f"{now} {job} {attempt} {os.getpid()} {event}\n".encode())
        os.close(file)

    @contextmanager
    def doing(self, verb: str) -> Generator[None]:
        """Statements of this thread belong to this verb."""
        before = getattr(self._here, "verb", ("", 0))
        self._here.verb = (verb, 0)
        try:
            yield
        finally:
            self._here.verb = before

    @contextmanager
    def statement(self) -> Generator[None]:
        """One statement, or script, that is sent to a store."""
        verb, count = getattr(self._here, "verb", ("", 0))
        if not verb:
            yield
            return
        self._here.verb = (verb, count + 1)
        name = f"statement {count + 1} of {verb}"
        if name not in self._known:
            self._known.add(name)
            self.folder.see(f"{self.role}: {name}")
        self.reach(f"before {name}")
        yield
        self.reach(f"after {name}")

    @contextmanager
    def unwatched(self) -> Generator[None]:
        """Statements that open a connection belong to no verb: they are sent only now and then."""
        with self.doing(""):
            yield


@functools.cache
def process() -> Process:
    return Process()


# ── What a call is, in the words of the table ───────────────────────────────────────────────────────────────────

_KINDS = (
    *((Failed, "failure"), (Snoozed, "snooze"), (Cancelled, "cancel"), (Released, "release")),
    (Suspended, "suspension"),
)


def _called(verb: str, args: Sequence[Any], options: Mapping[str, Any]) -> list[str]:
    """What this call does; nothing if it only reads."""
    given = args[0] if args else None
    joins = options.get("tx") is not None
    match verb:
        case "once":
            return ["once"] if args[2] is not None else []
        case "finish" if joins:
            return ["finish in a transaction"]
        case "finish":
            kinds: set[type] = {type(outcome) for _, outcome in args[0]}
            return ["finish", *(f"finish a {name}" for kind, name in _KINDS if kind in kinds)]
        case "enqueue" if joins:
            return ["enqueue in a transaction"]
        case "enqueue" if given and given[0].links is not None:
            return ["enqueue a flow" if given[0].links.flow else "enqueue gathered jobs"]
        case "enqueue":
            return ["enqueue a batch" if len(args[0]) > 1 else "enqueue"]
        case "change":
            jobs = any(change.drafts for change in args[0])
            return ["change with a job" if jobs else "change"]
        case "settle" if not isinstance(given, str):
            return ["settle permits"] if given else []
        case "announce" | "renew" | "progress" | "refused":
            return [verb] if given else []
        case _:
            return [verb]


def _did(verb: str, answer: Any) -> bool:
    """Has it changed anything?"""
    match verb:
        case "claim" | "rescue" | "declare_dead" | "declare_expired" | "renew":
            return bool(answer)
        case "promote" | "admit" | "withdraw":
            return bool(answer.jobs)
        case "signal":
            return isinstance(answer, Landed)
        case "change" | "progress" | "change_limits":
            return any(answer)
        case "finish":
            return any(isinstance(each, Landed) for each in answer)
        case "swap":
            return bool(answer.landed)
        case "replay" | "delete" | "skip":
            return any(isinstance(each, Landed) for each in answer.values())
        case _:
            return True


def _stored(what: str, args: Sequence[Any], answer: Any) -> Iterator[str]:
    """Outcomes that the store has: nothing changes them any more."""
    if what == "finish":
        for (lease, _), each in zip(args[0], answer, strict=True):
            if isinstance(each, Landed):
                yield f"{lease.job_id} {lease.attempt} outcome {each.state.value}"


# ── Wrapping ────────────────────────────────────────────────────────────────────────────────────────────────────


def _watch(port: Any, verb: str) -> None:
    call, here = getattr(port, verb), process()

    @functools.wraps(call)
    def watched(*args: Any, **options: Any) -> Any:
        if verb == "announce":  # it may be a generator, which can be read only once
            args = (list(args[0]),)
        does = _called(verb, args, options)
        if not does:
            return call(*args, **options)
        for each in does:
            here.reach(f"before {each}")
        with here.doing(does[0]):
            answer = call(*args, **options)
        if _did(verb, answer):
            for each in does:
                here.reach(f"after {each}", lambda: _stored(does[0], args, answer))
        return answer

    setattr(port, verb, watched)


def _watch_enqueues_on_loop(store: Store) -> None:
    call, here = store.enqueue_on_loop, process()

    def watched(draft: Draft) -> OnLoop[Enqueued]:
        here.reach("before enqueue alone")
        answer = yield from call(draft)
        here.reach("after enqueue alone")  # also if it is left to a thread
        return answer

    store.enqueue_on_loop = watched  # type: ignore[method-assign]


def _watch_claims_on_loop(store: Store) -> None:
    call, here = store.claim_on_loop, process()

    def watched(*args: Any, **options: Any) -> OnLoop[list[Claimed]]:
        here.reach("before claim on loop")
        claimed = yield from call(*args, **options)
        if claimed:
            here.reach("after claim on loop")
        return claimed

    store.claim_on_loop = watched  # type: ignore[method-assign]


def _watch_transactions(store: Store) -> None:
    begin, here = store.transaction, process()

    @contextmanager
    def transaction() -> Generator[Any]:
        with begin() as tx:
            yield tx
            here.reach("before commit")
        here.reach("after commit")

    store.transaction = transaction  # type: ignore[method-assign]


def changing(port: type) -> list[str]:
    """The verbs of a port that change something."""
    return [name for name in dir(port) if not name.startswith("_") and name not in READS]


def _open_store(settings: Settings) -> Store:
    store = _opens_store(settings)
    if "TENURE_TEST_PRUNE" in os.environ:  # an hour is the least that anybody may ask for
        prune, forget = store.prune, store.forget
        store.prune = lambda **_: prune(keep=0.0, keep_dead=0.0)  # type: ignore[method-assign]
        store.forget = lambda **_: forget(keep=0.0)  # type: ignore[method-assign]
    for verb in changing(Store):
        if verb == "transaction":
            _watch_transactions(store)
        elif verb == "enqueue_on_loop":
            _watch_enqueues_on_loop(store)
        elif verb == "claim_on_loop":
            _watch_claims_on_loop(store)
        else:
            _watch(store, verb)
    return store


def _open_notifier(settings: Settings, store: Store) -> Notifier:
    notifier = _opens_notifier(settings, store)
    _watch(notifier, "announce")
    listen = notifier.listen

    def heard() -> Any:
        listener = listen()
        if listener.permits is not None:
            _watch(listener.permits, "settle")
        return listener

    notifier.listen = heard  # type: ignore[method-assign]
    return notifier


def _start(worker: Worker) -> None:
    process().write(f"- 0 child of {os.getppid()}")
    if worker.plan.runner == "solo":
        Process.role = "solo worker"
    _starts(worker)


# ── One statement after another ─────────────────────────────────────────────────────────────────────────────────


def _around(owner: Any, name: str, block: Callable[[], Any]) -> None:
    call = getattr(owner, name)

    @functools.wraps(call)
    def watched(*args: Any, **options: Any) -> Any:
        with block():
            return call(*args, **options)

    setattr(owner, name, watched)


def _watch_statements() -> None:
    """Wrap the one function of each driver that sends all of its statements."""
    here = process()
    apsw: Any = importlib.import_module("apsw")
    plain: Any = apsw.Connection

    class Told(plain):  # type: ignore[misc]
        def execute(self, *args: Any, **options: Any) -> Any:
            with here.statement():
                return plain.execute(self, *args, **options)

        def executemany(self, *args: Any, **options: Any) -> Any:
            with here.statement():
                return plain.executemany(self, *args, **options)

    apsw.Connection = Told
    _around(importlib.import_module("psycopg").Connection, "wait", here.statement)
    _around(importlib.import_module("tenure.stores.postgres.server").Server, "connect", here.unwatched)
    redis = importlib.import_module("tenure.stores.redis.server")
    _around(redis, "_say", here.statement)
    _around(redis.Server, "connect", here.unwatched)


def install(role: str = "worker") -> None:
    """Watch the ports of this process, from now on. The first role stays."""
    if tenure.app.backends.open_store is _open_store:
        return
    Process.role = role
    tenure.app.backends.open_store, tenure.app.backends.open_notifier = _open_store, _open_notifier
    Worker.start = _start  # type: ignore[assignment, method-assign]
    tenure.maintenance.maintenance.PRUNE_SECONDS, tenure.tasks.once.HOLD_SECONDS = 0.5, 1.0
    if process().statements:
        _watch_statements()


_opens_store, _opens_notifier, _starts = tenure.app.backends.open_store, tenure.app.backends.open_notifier, Worker.start


def main(words: Sequence[str]) -> None:
    if not words:
        print(table())
        return
    role, *rest = words
    install(role)
    if rest[:1] == ["tenure"]:
        sys.exit(importlib.import_module("tenure.cli.main").main(rest[1:]))
    if "-m" in rest[:2]:
        sys.argv = rest[2:]
        runpy.run_module(rest[2], run_name="__main__", alter_sys=True)
    else:
        importlib.import_module("chaos.points_app").run(role, rest)


if __name__ == "__main__":
    from chaos import points as this  # the module that others import, not this one, which is called __main__

    this.main(sys.argv[1:])
