"""The job of the fault bench. It imports little: a worker that replaces a killed one imports it again."""

from __future__ import annotations

import asyncio
import os
import time

JOB_SECONDS = 0.1
LEDGER = "FAULTS_LEDGER"  #: the variable that names the file
_file = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT) if LEDGER in os.environ else -1


async def effect(n: int) -> None:
    _note(n, "+")
    await asyncio.sleep(JOB_SECONDS)
    _note(n, "-")


def _note(n: int, what: str) -> None:
    """A line is whole or missing, even if its writer is killed the next moment."""
    os.write(_file, f"{time.monotonic():.6f} {os.getpid()} {n} {what}\n".encode())
