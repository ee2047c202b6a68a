"""What binds first, by the formulas of docs/scale.md and the costs that were measured."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

CORES = (8, 64, 1000)
SHARE = 0.25  #: of the cores run the server
SERVER = 64.0  #: the cores of the largest usual server
DISK = 500e6  #: bytes a second that the server can write to its log
SYNCS = 2000.0  #: fsyncs a second of a disk behind a network; a local NVMe drive has more


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one job, measured."""

    worker_us: float
    server_us: float
    log: float  #: bytes
    syncs: float

    def bounds(self, cores: float, *, one_core: bool) -> dict[str, float]:
        """Jobs a second that each resource of one server and its workers allows. `one_core`: the server uses one."""
        serving = 1.0 if one_core else min(cores * SHARE, SERVER)
        return {
            "worker CPU": (cores - serving) * 1e6 / self.worker_us,
            "server CPU": serving * 1e6 / self.server_us,
            "log": DISK / self.log,
            "fsyncs": SYNCS / self.syncs if self.syncs else inf,
        }


def limits(cost: Cost, *, one_core: bool) -> list[str]:
    """A table: what each resource allows, and which binds first."""
    serving = "one core runs" if one_core else f"{SHARE:.0%} of the cores, at most {SERVER:.0f}, run"
    lines = [
        f"On paper, from these costs, the no-op jobs a second that each resource allows; {serving} the server:",
        "",
        f"| cores | worker CPU | server CPU | log at {DISK / 1e6:,.0f} MB/s | {SYNCS:,.0f} fsyncs/s | binds first |",
        "| ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for cores in CORES:
        bounds = cost.bounds(cores, one_core=one_core)
        cells = ["–" if each == inf else f"{each:,.0f}" for each in bounds.values()]
        lines.append(f"| {cores:,} | {' | '.join(cells)} | {min(bounds, key=lambda name: bounds[name])} |")
    return lines
