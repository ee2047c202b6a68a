"""What everybody saw, one line an event: the only evidence that the checker uses.

Clients, handlers and the nemesis all append to one file per run, a JSON array a line, in one write: a line is whole or
absent, even if its writer is killed the next moment. None of them reads the store, and the engine writes nothing here.
A job is known by its `key`, which its client gave it; ids and attempts are noted as handlers see them.

A client's call is two events: `invoke`, then

    ok      the answer came: it has happened
    fail    it has not happened, and never will: refused, or rolled back on purpose
    info    unknown: the store was away, or the process was killed (then there is no second event at all)

    actor      op           data
    clients    enqueue      due (seconds of delay), unique (or ""), script, must (the state it is to end in, or "any");
                            tx: "commit" or "rollback" where it is inside a transaction with a row of the clients' own
                            table; innocent: nothing may hold it up, and a slot is free for it; ok: id, created
               cancel       ok: state (as answered, null: no such job)
               replay       ok: landed
               delete       ok: landed
               waits        of (a name), parents (keys of the jobs it waits for), gathered (by its handler): noted
                            before it is asked for
               signal       value: invoke; ok: taken (it was the first)
               read         ok: state, and the event's attempt (what the store answered to a read of this job)
    handlers   begin        checkpoint (as this attempt was given it), pid; of a limited job: places (how many at a
                            time, by key), pace (how many begins in how many seconds, by key)
               alive        still running, every 50 ms or so
               effect       something that can't be undone, in the world outside
               checkpoint   value: invoke, then ok, fail (refused: the lease is lost) or info
               once         name; ok: value (the first result, of any attempt), made (this call ran the function)
               made         name, value: inside of the function that `once` runs
               hand_in      job.finish(tx=) beside a row of the handlers' own table: invoke, then ok, fail or info
               given        of (as in waits), values (what those jobs left)
               heard        value (of the signal; null: it timed out), since (when its first attempt began)
               hold         the GIL, for seconds: invoke; ok: locked (its process had a SQLite file's write lock then)
               end          how: return, raise, final, snooze, suspend, cancelled, exit; value: what is returned
               there        a worker of the lane lives, every 250 ms
               tick         schedule, tick (as the job's meta tells): the run of a schedule
    nemesis    fault        kind, target, seconds, and what else describes it: invoke when it begins, ok when it is over
               kill         pid: SIGKILL is sent
               ended        pid, code, log: a supervisor has ended by itself, and is started again
               ghost        name: what a former owner writes, sent again by the nemesis: fail (refused), or ok
               pause        pids: SIGSTOP is sent (invoke), SIGCONT is sent (ok)
               phase        name: of a rolling upgrade: invoke when processes are replaced for it, ok when it begins
    load       load         profile, scale: invoke when its preparation begins, ok when the load is there
               wave         key (the prefix of its jobs' keys), due (Unix time, of all of them), jobs
               answer       a waiting result() has returned
    gauge      gauge        of the last second: late (the most that a sleep of 10 ms took too long), slow (the wall
                            time of a computation as a multiple of its processor time), store (the longest that an
                            unrelated write took), load (the machine's load average), unix (the time)
    runner     calm         all faults are over, all clients have stopped: from now on the jobs must end
               drained      nothing is live any more
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

Phase = Literal["invoke", "ok", "fail", "info"]


class Event(NamedTuple):
    """`at` is boot-clock seconds of this machine, the same clock for all processes; `actor` is unique to a process."""

    at: float
    actor: str
    op: str
    phase: Phase
    key: str = ""
    job: str = ""
    attempt: int = 0
    data: Mapping[str, Any] = MappingProxyType({})


class Pen:
    """Appends events to the file of a run."""

    def __init__(self, path: Path, actor: str) -> None:
        self.actor = actor
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def note(
        self, op: str, phase: Phase = "ok", *, key: str = "", job: str = "", attempt: int = 0, **data: Any
    ) -> None:
        at = time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e9
        line = json.dumps([at, self.actor, op, phase, key, job, attempt, data], separators=(",", ":"))
        os.write(self._file, f"{line}\n".encode())

    def note_each(self, op: str, phase: Phase, keys: Iterable[str], **data: Any) -> None:
        """The same for many jobs at once, in one write."""
        at = time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e9
        lines = (json.dumps([at, self.actor, op, phase, key, "", 0, data], separators=(",", ":")) for key in keys)
        os.write(self._file, "".join(f"{line}\n" for line in lines).encode())


def read(path: Path) -> list[Event]:
    """Every whole line, in order of time."""
    lines = path.read_bytes().rpartition(b"\n")[0].splitlines()
    return sorted((Event(*json.loads(line)) for line in lines), key=lambda event: event.at)


# ── What the store holds at the end ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A job as the store tells it when all is over."""

    key: str
    id: str
    task: str
    state: str
    attempt: int
    result: Any
    checkpoint: Any
    unique: str
    failures: int
    crashes: int  #: in all
    outcomes: Mapping[int, str]  #: by attempt, of those that did not complete
    ended: Mapping[int, float] = field(default_factory=dict[int, float])  #: when those did, by the store's Unix time
    refused: int = 0  #: attempts whose row keeps a refused write


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """What the store, and the tables that jobs and clients wrote beside it, hold when all is over."""

    jobs: tuple[Kept, ...]
    #: keys in the clients' table (`enqueue` with tx="commit"), as often as they are there
    rows: tuple[str, ...] = ()
    #: (key, attempt) in the handlers' table (`hand_in`)
    handed_in: tuple[tuple[str, int], ...] = ()
    #: by schedule: the instants (Unix seconds) of every tick that the store knows, with the ids of the jobs it became
    ticks: Mapping[str, Mapping[int, tuple[str, ...]]] = field(default_factory=dict[str, Mapping[int, tuple[str, ...]]])
    #: by schedule and tick: when it was fired, by the store's Unix time
    decided: Mapping[str, Mapping[int, float]] = field(default_factory=dict[str, Mapping[int, float]])
    #: of each key of a limit: its name, the places that are held, and how many jobs wait for one
    places: tuple[tuple[str, int, int], ...] = ()
    #: jobs that waited for what had already happened, with no ask left that would have ended the wait
    lost_waits: tuple[str, ...] = ()


def write_dump(path: Path, dump: Dump) -> None:
    path.write_text(json.dumps(asdict(dump)), encoding="utf-8")


def read_dump(path: Path) -> Dump:
    """The dump as it was written: JSON has no tuples, and no numbers as keys."""
    found = json.loads(path.read_text(encoding="utf-8"))
    jobs = [Kept(**{**job, **{name: _by_number(job[name]) for name in ("outcomes", "ended")}}) for job in found["jobs"]]
    return Dump(
        jobs=tuple(jobs),
        rows=tuple(found["rows"]),
        handed_in=tuple((key, attempt) for key, attempt in found["handed_in"]),
        ticks={name: {int(at): tuple(jobs) for at, jobs in ticks.items()} for name, ticks in found["ticks"].items()},
        decided={name: _by_number(ticks) for name, ticks in found["decided"].items()},
        places=tuple((key, held, waiting) for key, held, waiting in found.get("places", ())),
        lost_waits=tuple(found.get("lost_waits", ())),
    )


def _by_number(found: Mapping[str, Any]) -> dict[int, Any]:
    return {int(number): value for number, value in found.items()}


# ── The pen of a process ────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def pen() -> Pen:
    """The pen of this process, as its environment says."""
    return Pen(Path(os.environ["TENURE_TEST_HISTORY"]), f"{os.environ['TENURE_TEST_ACTOR']}-{os.getpid()}")
