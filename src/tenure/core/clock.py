"""The two clocks of a machine, as a value that tests can replace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from uuid import uuid4


@dataclass(frozen=True, slots=True)
class Clock:
    """`unix` seconds for people and due times; `boot` seconds for leases.

    `boot` is CLOCK_BOOTTIME: it never steps, and unlike CLOCK_MONOTONIC it keeps running while the machine is
    suspended, so a lease can end during a suspend (clock_gettime(2)). `boot_id` names the boot it counts from.
    """

    unix: Callable[[], float]
    boot: Callable[[], float]
    boot_id: str


HOST_ENV = "TENURE_HOST_ID"  #: for tests only: makes processes of one machine look like those of several


@cache
def system_clock() -> Clock:
    """This machine's clocks. Outside Linux, where there is no boot id, every process generates its own."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    try:
        boot_id = os.environ.get(HOST_ENV) or Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        boot_id = uuid4().hex
    if boottime is None:
        return Clock(time.time, time.monotonic, boot_id)
    return Clock(time.time, lambda: time.clock_gettime(boottime), boot_id)
