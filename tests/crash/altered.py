"""A supervisor that differs in one thing: in how long a number is, or in when a signal reaches it."""

from __future__ import annotations

import sys

_GO_ON = """
import runpy, sys
del sys.argv[: sys.argv.index("-m") + 1]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def altered(change: str) -> tuple[str, ...]:
    """The words before its command that make it run this code first."""
    return (sys.executable, "-c", f"{change}\n{_GO_ON}")
