"""The app of these tests: handlers that live, hang, die and leave things behind, and write down what they did.

It runs in the worker processes as `shop`; the tests import it only to enqueue. Faults come through the environment:
TENURE_TEST_FAULTS is a JSON object, TENURE_TEST_LEDGER the file of the ledger.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tenure.app.backends
import tenure.worker.stops
from tenure import Job, Retry, Tenure
from tenure.config import Settings
from tenure.core.lifecycle import Lease
from tenure.errors import StoreAway
from tenure.ports import NONE_KNOWN, Claimed, OnLoop, Owned, Store

FAULTS: dict[str, Any] = json.loads(os.environ.get("TENURE_TEST_FAULTS", "{}"))
SOON = Retry(10, base="50ms", cap="200ms")
FOREVER = 1000.0

jobs = Tenure(retry=SOON)
log = logging.getLogger(__name__)


door = jobs.limit("door", concurrency=1)  # for jobs that a test gives it


# ── The ledger ──────────────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def _ledger() -> int:
    return os.open(os.environ["TENURE_TEST_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)


def note(job: Job[Any], event: str) -> None:
    """One line, in one write: whole or not at all, and there even if we are killed the next moment."""
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    os.write(_ledger(), f"{now} {job.id} {job.attempt} {os.getpid()} {event}\n".encode())


def gone_ahead(word: str = "go") -> bool:
    """The test has said this word: Site.go."""
    return Path(os.environ["TENURE_TEST_LEDGER"]).with_name(word).exists()


async def until_told(word: str = "go") -> None:
    while not gone_ahead(word):
        await asyncio.sleep(0.01)


# ── Handlers ────────────────────────────────────────────────────────────────────────────────────────────────────


@jobs.task(max_crashes=20)
async def effect(job: Job, seconds: float) -> int:
    """A short job with an effect."""
    note(job, "begin")
    await asyncio.sleep(seconds)
    note(job, "end")
    return job.attempt


@jobs.task(max_crashes=20)
async def effect_once_told(job: Job, word: str, seconds: float) -> int:
    """The same, but its seconds begin when the test has said this word."""
    note(job, "begin")
    await until_told(word)
    await asyncio.sleep(seconds)
    note(job, "end")
    return job.attempt


@jobs.task
def effect_in_thread(job: Job, seconds: float) -> int:
    note(job, "begin")
    time.sleep(seconds)
    note(job, "end")
    return job.attempt


@jobs.task
async def climb(job: Job[int]) -> int:
    """Stores a checkpoint, leaves children behind and waits to be killed; then goes on from there to its end."""
    note(job, f"begin checkpoint={job.checkpoint} left={len(_carrying(f'OF_JOB={job.id}'))}")
    if job.checkpoint is not None:
        note(job, "end")
        return job.checkpoint
    env = {**os.environ, "OF_JOB": str(job.id)}
    subprocess.Popen(["sleep", "1000"], env=env)
    subprocess.Popen(["sleep", "1000"], env=env, start_new_session=True)
    job.progress(0.5, stage="half", checkpoint=7)
    await job.aflush()
    note(job, "half")
    await asyncio.sleep(FOREVER)
    return 0


def _carrying(mark: str) -> list[str]:
    """Living processes with this in their environment; a zombie has none."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(entry.name)
        except OSError:
            continue
    return found


@jobs.task
async def leak(job: Job) -> None:
    """A child made without exec: it inherits every descriptor of the worker, its pipe to the supervisor too."""
    note(job, "begin")
    if job.attempt == 1:
        if os.fork() == 0:
            time.sleep(FOREVER)
            os._exit(0)
        note(job, "forked")
        await asyncio.sleep(FOREVER)
    note(job, "end")


@jobs.task(max_crashes=20)
async def tick(job: Job) -> None:
    """A line every 50 ms until told."""
    note(job, "begin")
    while not gone_ahead():
        await asyncio.sleep(0.05)
        note(job, "tick")
    note(job, "end")


@jobs.task(max_crashes=20)
async def mark(job: Job[int]) -> None:
    """A line every 50 ms until told; the first attempt also stores what the others must find untouched."""
    note(job, "begin")
    marks = 0
    while not gone_ahead():
        await asyncio.sleep(0.05)
        note(job, "tick")
        marks += 1
        if job.attempt == 1:
            job.progress(stage=f"mark {marks}", checkpoint=marks)
    note(job, "end")


@jobs.task
async def talk(job: Job) -> None:
    """Logs a line every 10 ms until told."""
    note(job, "begin")
    said = 0
    while not gone_ahead():
        said += 1
        log.info("line %d", said)
        await asyncio.sleep(0.01)
    log.warning("told")


@jobs.task
async def wait(job: Job) -> str:
    """On the loop, until told."""
    note(job, "begin")
    try:
        await until_told()
    except asyncio.CancelledError:
        note(job, f"stopped {job.stopping}")
        raise
    note(job, "end")
    return "told"


@jobs.task
def wait_in_thread(job: Job) -> str:
    """In a thread, until told; it asks the job now and then."""
    note(job, "begin")
    try:
        while not gone_ahead():
            time.sleep(0.01)
            job.progress()
    except BaseException:
        note(job, f"stopped {job.stopping}")
        raise
    note(job, "end")
    return "told"


@jobs.task
async def block_the_loop(job: Job) -> None:
    """Until told."""
    note(job, "begin")
    while not gone_ahead():
        time.sleep(0.01)
    note(job, "end")


@jobs.task
async def hold_the_gil(job: Job) -> None:
    """waitpid(2) without letting the GIL go, on a child that sleeps until told: as a bad C extension would."""
    note(job, "begin")
    go = Path(os.environ["TENURE_TEST_LEDGER"]).with_name("go")
    child = subprocess.Popen(["sh", "-c", 'while [ ! -e "$0" ]; do sleep 0.02; done', str(go)])
    ctypes.PyDLL(None).waitpid(child.pid, None, 0)
    child.returncode = 0
    note(job, "end")


@jobs.task
async def abort(job: Job) -> None:
    note(job, "begin")
    await asyncio.sleep(0.3)  # let the neighbours begin
    os.abort()


@jobs.task
async def report(job: Job) -> int:
    """Says how far it is, and returns: its last report is stored together with its outcome."""
    note(job, "begin")
    for step in range(5):
        job.progress(step / 5, message=f"step {step}")
        await asyncio.sleep(0.05)
    note(job, "end")
    return job.attempt


@jobs.task
async def kill_itself(job: Job) -> None:
    note(job, "begin")
    os.kill(os.getpid(), signal.SIGKILL)


@jobs.task
async def leave(job: Job, code: int) -> None:
    note(job, "begin")
    os._exit(code)


@jobs.task(timeout="300ms")
async def late(job: Job) -> None:
    note(job, "begin")
    await asyncio.sleep(FOREVER)


@jobs.task(timeout="300ms")
def late_in_thread(job: Job) -> None:
    note(job, "begin")
    while True:
        time.sleep(0.01)
        job.progress()


@jobs.task(timeout="300ms", retry=1)
def deaf_in_thread(job: Job) -> None:
    """Ignores its timeout."""
    note(job, "begin")
    while True:
        time.sleep(0.02)
        note(job, "alive")


@jobs.task(retry=1)
async def deaf(job: Job) -> None:
    """Swallows every CancelledError."""
    note(job, "begin")
    while job.attempt == 1 or not gone_ahead():
        try:
            await asyncio.sleep(0.02)
            note(job, "alive")
        except asyncio.CancelledError:
            note(job, f"swallowed {job.stopping}")


@jobs.task
def stay(job: Job) -> None:
    """Stays in its thread for ever, the first time."""
    note(job, "begin")
    while job.attempt == 1:
        time.sleep(0.02)
    note(job, "end")


@jobs.task(max_crashes=0)
async def doomed(job: Job) -> None:
    note(job, "begin")
    await asyncio.sleep(FOREVER)


@jobs.task(stale_after="500ms", max_crashes=0)
async def hang(job: Job) -> None:
    note(job, "begin")
    await asyncio.sleep(FOREVER)


@jobs.task(stale_after="500ms", max_crashes=0)
def hang_in_thread(job: Job) -> None:
    note(job, "begin")
    time.sleep(FOREVER)


@jobs.task(stale_after="500ms", max_crashes=0)
def linger(job: Job) -> None:
    """Silent in its thread, and deaf, until told."""
    note(job, "begin")
    while not gone_ahead():
        time.sleep(0.01)


@jobs.task
def garble(job: Job) -> None:
    note(job, "begin")
    for stream in (1, 2):
        os.write(stream, b'\xff\xfe\x00 {"kind": "drained"}\n\x1b[2J' + bytes(range(256)) * 200)
    print("\ud800 lone", file=sys.__stdout__, flush=True) if sys.__stdout__ else None
    note(job, "end")


@jobs.task
async def litter(job: Job) -> None:
    """Ends well, and leaves a child and a thread that never ends."""
    note(job, "begin")
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    threading.Thread(target=time.sleep, args=(FOREVER,)).start()
    note(job, f"child {child.pid}")
    note(job, "end")


@jobs.task
async def orphan(job: Job) -> None:
    """Leaves a grandchild that ends at once, and belongs to nobody."""
    subprocess.run(["sh", "-c", "sleep 0.2 & sleep 0.2 & sleep 0.2 &"], check=True)
    note(job, "end")


@jobs.task(retry=1)
def peek(job: Job, path: str, how: str) -> None:
    """Opens the store's file in a way that is not allowed."""
    if how == "sqlite3":
        sqlite3.connect(path).close()
    else:
        Path(path).read_bytes()


@jobs.task
def hand_in(job: Job, then: str) -> None:
    """Finishes within a transaction, and then something else happens."""
    note(job, "begin")
    with jobs.transaction() as tx:
        job.finish("with it", tx=tx)
        if then == "roll back" and job.attempt == 1:
            raise RuntimeError("changed its mind")
    if then == "raise":
        raise RuntimeError("too late")


if FAULTS.get("without") != "seasonal":

    @jobs.task
    def seasonal(job: Job) -> None:
        note(job, "end")


# ── Faults, for worker processes ────────────────────────────────────────────────────────────────────────────────


def _drop_replies(store: Store, most: int) -> None:
    """The first claims that got something are committed, and then the store seems away."""
    claim, left = store.claim, [most]

    def unheard(worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False) -> list[Claimed]:
        claimed = claim(worker_id, wants, limit, solo=solo)
        if claimed and left[0] > 0:
            left[0] -= 1
            os.write(_ledger(), f"0 - 0 {os.getpid()} dropped {len(claimed)}\n".encode())
            raise StoreAway("the reply was lost")
        return claimed

    def not_now(*_: object, **__: object) -> OnLoop[list[Claimed]]:
        yield from ()
        return None

    store.claim, store.claim_on_loop = unheard, not_now  # type: ignore[method-assign]


def _break_the_beat(store: Store) -> None:
    """A mistake in the engine itself: what a worker owns can't be read any more."""
    owned = store.owned

    def broken(worker_id: str, known: Mapping[Lease, Claimed] = NONE_KNOWN) -> list[Owned]:
        if gone_ahead():
            return owned(worker_id, known)
        raise ZeroDivisionError("a bug in the beat")

    store.owned = broken  # type: ignore[method-assign]


def _open_faulty(settings: Settings) -> Store:
    store = _open_store(settings)
    if "drop_replies" in FAULTS:
        _drop_replies(store, FAULTS["drop_replies"])
    if FAULTS.get("break_the_beat"):
        _break_the_beat(store)
    return store


if FAULTS.get("start_when_told"):
    while not gone_ahead():
        time.sleep(0.01)
if "stop_seconds" in FAULTS:
    tenure.worker.stops.STOP_SECONDS = FAULTS["stop_seconds"]
if FAULTS:
    _open_store, tenure.app.backends.open_store = tenure.app.backends.open_store, _open_faulty
