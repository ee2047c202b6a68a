"""`python unscanned.py COMMAND`: the supervisor of this command, but it never scans for jobs to take back."""

from __future__ import annotations

import runpy
import sys

from tenure.maintenance.maintenance import Maintenance
from tenure.maintenance.roster import Turn


def look_away(self: Maintenance, _: int = 1) -> Turn:
    """Nobody is declared dead, nothing is rescued."""
    return Turn()


Maintenance.declare_the_dead = look_away  # type: ignore[method-assign]
Maintenance.rescue = look_away  # type: ignore[method-assign]

if __name__ == "__main__":
    del sys.argv[: sys.argv.index("-m") + 1]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
