"""`python unscanned.py COMMAND`: the supervisor of this command, but one that takes back no job by looking for it."""

from __future__ import annotations

import runpy
import sys

from tenure.maintenance.maintenance import Maintenance


def look_away(self: Maintenance) -> None:
    """Nobody is declared dead, nothing is rescued."""


Maintenance.scan = look_away  # type: ignore[method-assign]

if __name__ == "__main__":
    del sys.argv[: sys.argv.index("-m") + 1]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
