"""The faults of a run, as data: made from a seed, kept beside the run's history, and read again to repeat it.

Faults come one after the other, with time after each for its consequences, because the promise is about single
faults: under any one of them no former owner runs beside its successor. Two at once are in `tests/model`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What can go wrong.

    `needs`: what the stage must have for it (`Stage.has`); `leases`: how long it
    lasts, drawn from these, in leases (for a line that is cut or slow: in seconds); `rest`: leases until the next one;
    `target`: what it hits; `often`: how often it is drawn compared with the others; `away`: on what kind of stage the
    store does not answer meanwhile ("server", "file"; "bell": it answers, but no ring is heard).
    """

    name: str
    target: str = ""
    needs: frozenset[str] = frozenset()
    leases: tuple[float, ...] = (0.0,)
    rest: float = 0.4
    often: float = 1.0
    away: frozenset[str] = frozenset()

    @property
    def full_name(self) -> str:
        return f"{self.name} {self.target}".strip()


def _kind(name: str, target: str = "", needs: str = "", away: str = "", **more: object) -> Kind:
    words = {"needs": frozenset(needs.split()), "away": frozenset(away.split())}
    return Kind(name=name, target=target, **words, **more)  # type: ignore[arg-type]


VITAL = 5.0
LONG = (0.25, 0.9, 2.0)  # under a third nothing happens; near or above one, code is stopped and its job taken back

KINDS: tuple[Kind, ...] = (
    # processes
    _kind("kill", "worker", often=VITAL + 1),
    _kind("kill", "supervisor", often=2.0, rest=0.6),
    _kind("kill", "client"),
    _kind("pause", "worker", away="file", leases=(0.5, 1.0, 3.0), rest=1.0, often=2.0),
    _kind("pause", "supervisor", away="file", leases=(0.5, 1.0, 3.0), rest=1.5, often=2.0),
    _kind("pause", "host", away="file", leases=(0.5, 1.0, 3.0), rest=1.5, often=2.0),
    _kind("deploy", "supervisor", often=2.0, rest=0.6),
    _kind("clock", "host", "clock", leases=(1.0,)),
    # former owners
    _kind("ghost writes", rest=0.1, often=VITAL),
    # doorbells
    _kind("false hints", rest=0.1),
    # lines: between a host, or the clients, and the server
    _kind("blackhole", "line", "server", leases=LONG, rest=1.5, often=2.0),
    _kind("refuse", "line", "server", leases=LONG, rest=1.5),
    _kind("reset", "line", "server", often=2.0),
    _kind("half-close", "line", "server"),
    _kind("latency", "line", "server", leases=(1.0,)),
    _kind("throttle", "line", "server", leases=(1.0,), rest=1.0),
    _kind("lost reply", "line", "server", leases=(0.5,), often=4.0),
    # servers
    _kind("kill", "server", "server", "server", leases=(0.0, 0.5, 2.0), rest=1.5, often=2.0),
    _kind("stop", "server", "server", "server", leases=(0.0, 0.5), rest=1.5),
    _kind("freeze", "server", "server", "server", leases=LONG, rest=1.5),
    _kind("kill", "node", "cluster", "cluster", leases=(0.0, 0.5, 2.0), rest=1.5, often=3.0),
    _kind("disconnect", "server", "server", "server"),
    _kind("forget scripts", "server", "scripts", rest=0.1),
    _kind("long transaction", "", "transactions", "file", leases=(0.5, 1.5), rest=1.0),
    # the queue that delivers
    _kind("kill", "queue", "nats", "bell", leases=(0.0, 1.0), rest=1.0, often=2.0),
    _kind("wipe", "queue", "nats", "bell", rest=1.0),
    _kind("spoil", "queue", "nats", "bell", rest=1.0),
    _kind("rewind", "queue", "nats", "bell", leases=(0.3, 1.0), rest=1.0),
    _kind("blackhole", "queue", "nats", "bell", leases=(1.0, 3.0), rest=1.0),
    _kind("reset", "queue", "nats", "bell"),
    _kind("lost reply", "queue", "nats", "bell", leases=(0.5,)),
    _kind("latency", "queue", "nats", "bell", leases=(1.0,)),
    _kind("throttle", "queue", "nats", "bell", leases=(1.0,)),
    # the machine
    _kind("full disk", "", "small-disk", "file", leases=(0.25, 1.0, 2.0), rest=1.5),
    _kind("full memory", "server", "memory", "server", leases=(0.25, 1.0, 2.0), rest=1.5),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: after `after` seconds of peace it lasts `seconds`, and hits the `place`-th of its targets (modulo).

    `phase`: in which part of a rolling upgrade it comes (upgrade.py).
    """

    after: float
    kind: str
    target: str
    seconds: float = 0.0
    place: int = 0
    phase: int = 0

    @property
    def name(self) -> str:
        return f"{self.kind} {self.target}".strip()


def away(has: Collection[str]) -> frozenset[str]:
    """The faults in which a store of this kind ("file", "server") does not answer; for "bell": no ring is heard."""
    return frozenset(kind.full_name for kind in KINDS if kind.away & set(has))


def possible(has: Collection[str], only: Collection[str] = ()) -> list[Kind]:
    """The kinds that a backend can be tried with; if `only` names any, just those."""
    found = [kind for kind in KINDS if kind.needs <= set(has)]
    if not only:
        return found
    named = [kind for kind in found if kind.full_name in only]
    if not named:
        known = ", ".join(sorted(kind.full_name for kind in found))
        raise SystemExit(f"no fault here is called {', '.join(only)}; there are: {known}")
    return named


def plan(seed: int, seconds: float, lease: float, kinds: Sequence[Kind], phase: int = 0) -> list[Fault]:
    """The faults of a run, or of a part of one, of this many seconds. The same seed gives the same faults."""
    draw = random.Random(seed + phase)
    found: list[Fault] = []
    queue: list[Kind] = []
    rest = lease  # a supervisor that has just started may not declare workers dead yet
    spent = 0.0
    while True:
        if not queue and not found:  # each kind comes once, first those without which a short run proves nothing
            queue = sorted(draw.sample(kinds, len(kinds)), key=lambda kind: max(kind.often, VITAL - 1))
        elif not queue:
            queue = draw.choices(kinds, [kind.often for kind in kinds], k=20)
        kind = queue.pop()
        lasts = draw.choice(kind.leases) * lease
        spent += rest + lasts
        if spent > seconds:
            return found
        fault = Fault(
            after=round(rest, 3),
            kind=kind.name,
            target=kind.target,
            seconds=round(lasts, 3),
            place=draw.randrange(1000),
            phase=phase,
        )
        found.append(fault)
        rest = kind.rest * lease * draw.uniform(0.8, 1.4)


def write(path: Path, faults: Iterable[Fault]) -> None:
    path.write_text(json.dumps([asdict(fault) for fault in faults], indent=1), encoding="utf-8")


def read(path: Path) -> list[Fault]:
    return [Fault(**each) for each in json.loads(path.read_text(encoding="utf-8"))]
