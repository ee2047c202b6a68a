"""A process with this on its path has another wall clock: off by the seconds that a file says at that moment."""

from __future__ import annotations

import os
import time
from pathlib import Path

_said = Path(os.environ["TENURE_TEST_CLOCK"])
_true = time.time


def _time() -> float:
    return _true() + float(_said.read_text(encoding="utf-8") or 0)


def _time_ns() -> int:
    return int(_time() * 1e9)


time.time, time.time_ns = _time, _time_ns
