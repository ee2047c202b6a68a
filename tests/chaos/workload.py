"""The app of a run: jobs whose arguments say what they do, step by step, and handlers that write down what they did.

A script is a list of steps: `["sleep", 0.2]`, `["effect"]`, `["raise", 2]`. It runs in worker processes as `workload`;
clients import it to enqueue. What a step writes into the history is described in history.py.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from tenure import Fail, Job, Limit, NewJob, Retry, Snooze, Tenure
from tenure.errors import JobStopped, LeaseLost, StoreError
from tenure.tasks.waits import Suspend

from .history import Phase, pen

Step = Sequence[Any]
Script = Sequence[Step]
Must = Literal["completed", "dead", "any"]

ALIVE_SECONDS = 0.05
THERE_SECONDS = 0.25
MAX_CRASHES = 500  # kills by the nemesis are charged to the jobs that ran there
WRITE_LOCK = 120  #: the byte of a file's shared memory that its writer locks (sqlite.org/walformat.html, section 2.3)
SOON = Retry(500, base="50ms", cap="500ms")

KEY = "TENURE_TEST_KEY"  #: of the environment: the key with which this run's values are encrypted


IN_A_ROW = "TENURE_TEST_IN_A_ROW"  #: of the environment: values of up to this many bytes stay out of this run's bucket


def keep_elsewhere(most: int) -> None:
    """Have this process keep what is larger in its bucket, if it has one. A setting allows no fewer than 1 KiB."""
    from tenure.app import backends

    known = backends.with_bucket
    backends.with_bucket = lambda store, settings: known(store, replace(settings, max_payload=most, max_result=most))


if IN_A_ROW in os.environ:
    keep_elsewhere(int(os.environ[IN_A_ROW]))


def _sealed() -> dict[str, Any]:
    if KEY not in os.environ:
        return {}  # the release before knows no codec
    from tenure.codecs import AesSiv

    return {"codec": AesSiv([os.environ[KEY]])}


jobs = Tenure(retry=SOON, **_sealed())


class Trouble(Exception):
    """What a script raises when it is told to."""


def note(job: Job[Any], key: str, op: str, phase: Phase = "ok", **data: Any) -> None:
    pen().note(op, phase, key=key, job=str(job.id), attempt=job.attempt, **data)


# ── Handlers ────────────────────────────────────────────────────────────────────────────────────────────────────


@jobs.task(max_crashes=MAX_CRASHES)
async def act(job: Job[Any], key: str, script: list[list[Any]]) -> str:
    """Plays its script on the loop."""
    note(job, key, "begin", checkpoint=job.checkpoint, pid=os.getpid())
    try:
        for name, *words in script:
            if name == "sleep":
                await _sleep(job, key, *words)
            elif name == "checkpoint":
                await _acheckpoint(job, key, *words)
            elif name == "once":
                await _aonce(job, key, *words)
            elif name == "spawn":
                await _aspawn(job, key)
            else:
                _plain(job, key, name, *words)
    except BaseException as error:
        note(job, key, "end", how=_how(error))
        raise
    value = f"{key}/{job.attempt}"
    note(job, key, "end", how="return", value=value)
    return value


@jobs.task(max_crashes=MAX_CRASHES)
def act_in_thread(job: Job[Any], key: str, script: list[list[Any]]) -> str:
    """The same in a thread; here a job can be handed in within a transaction."""
    note(job, key, "begin", checkpoint=job.checkpoint, pid=os.getpid())
    value = f"{key}/{job.attempt}"
    try:
        for name, *words in script:
            if name == "sleep":
                _doze(job, key, *words)
            elif name == "checkpoint":
                _checkpoint(job, key, *words)
            elif name == "once":
                _once(job, key, *words)
            elif name == "hand_in":
                _hand_in(job, key, value)
            else:
                _plain(job, key, name, *words)
    except BaseException as error:
        note(job, key, "end", how=_how(error))
        raise
    note(job, key, "end", how="return", value=value)
    return value


@jobs.task(max_crashes=1)
async def poison(job: Job[Any], key: str, script: list[list[Any]]) -> None:
    """Takes its whole process down, every time."""
    note(job, key, "begin", checkpoint=None, pid=os.getpid())
    os._exit(9)


@jobs.task(retry=Retry(3, base="50ms", cap="200ms"), max_crashes=MAX_CRASHES)
async def fail(job: Job[Any], key: str, script: list[list[Any]]) -> None:
    """Raises, every time, until it is dead."""
    note(job, key, "begin", checkpoint=None, pid=os.getpid())
    note(job, key, "end", how="raise")
    raise Trouble(key)


@jobs.task(max_crashes=MAX_CRASHES)
async def brief(job: Job[Any], key: str, seconds: float = 0.0, size: int = 0, ballast: str = "") -> Any:
    """What loads are made of. Its result has `size` bytes, which don't compress."""
    note(job, key, "begin", pid=os.getpid())
    value = f"{key}/{job.attempt}"
    try:
        await asyncio.sleep(seconds)
    except BaseException as error:
        note(job, key, "end", how=_how(error))
        raise
    note(job, key, "end", how="return", value=value)
    return {"value": value, "ballast": random.Random(value).randbytes(size // 2).hex()} if size else value


@jobs.task(max_crashes=MAX_CRASHES)
async def combine(job: Job[Any], key: str, parts: list[str]) -> str:
    """The end of a fan-in, and each link of a chain."""
    note(job, key, "begin", pid=os.getpid())
    note(job, key, "given", of="parts", values=parts)
    value = f"{key}/{job.attempt}"
    note(job, key, "end", how="return", value=value)
    return value


@jobs.task(max_crashes=MAX_CRASHES)
async def gatherer(job: Job[Any], key: str, number: int, seconds: float) -> str:
    """Its children have the keys KEY.NAME.ATTEMPT-N, by the attempt that listed them."""
    note(job, key, "begin", pid=os.getpid())
    value = f"{key}/{job.attempt}"

    def listed() -> list[Any]:
        keys = [f"{key}.{job.attempt}-{n}" for n in range(number)]
        pen().note("waits", key=key, of=keys[0], parents=keys, gathered=True)
        pen().note_each("enqueue", "invoke", keys, must="completed", script=[], due=0.0, unique="")
        return [brief.using(queue=job.queue).bind(each, seconds) for each in keys]

    try:
        values = await job.agather("parts", listed)
        note(job, key, "given", of=values[0].rpartition("/")[0], values=values)
        await asyncio.sleep(seconds)
    except BaseException as error:
        note(job, key, "end", how=_how(error))
        raise
    note(job, key, "end", how="return", value=value)
    return value


@jobs.task(max_crashes=MAX_CRASHES, signals={"go": str})
async def listener(job: Job[Any], key: str, seconds: float) -> str:
    """Waits for a signal: for this many seconds, or without a time-out (0)."""
    note(job, key, "begin", pid=os.getpid())
    value = f"{key}/{job.attempt}"

    async def now() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    try:
        since = await job.aonce("since", now)
        timeout = f"{int(seconds * 1000)}ms" if seconds else None
        word = await job.aexpect("go", str, timeout=timeout, default=None)
        note(job, key, "heard", value=word, since=since)
    except BaseException as error:
        note(job, key, "end", how=_how(error))
        raise
    note(job, key, "end", how="return", value=value)
    return value


# ── Limits ──────────────────────────────────────────────────────────────────────────────────────────────────────

How = Literal["", "raise", "snooze", "pause", "exit"]
HOWS: tuple[How, ...] = ("", "raise", "snooze", "pause", "exit")
SHOPS = 8

_one = jobs.limit("one:{shop}", concurrency=1)
_three = jobs.limit("three:{shop}", concurrency=3)
_ten = jobs.limit("ten", concurrency=10)
_pace = jobs.limit("pace", rate="20/20s", burst=5)


@jobs.task(max_crashes=MAX_CRASHES, limit=_one)
async def one_of_a_shop(job: Job[Any], key: str, shop: int, seconds: float, how: How) -> str:
    return await _within(job, key, seconds, how, _one, places={f"one:{shop}": 1})


@jobs.task(max_crashes=MAX_CRASHES, limit=(_three, _ten))
async def three_of_a_shop(job: Job[Any], key: str, shop: int, seconds: float, how: How) -> str:
    return await _within(job, key, seconds, how, _three, places={f"three:{shop}": 3, "ten": 10})


@jobs.task(max_crashes=MAX_CRASHES, limit=_ten)
async def ten_in_all(job: Job[Any], key: str, shop: int, seconds: float, how: How) -> str:
    return await _within(job, key, seconds, how, _ten, places={"ten": 10})


@jobs.task(max_crashes=MAX_CRASHES, limit=_pace)
async def at_a_pace(job: Job[Any], key: str, shop: int, seconds: float, how: How) -> str:
    return await _within(job, key, seconds, how, _pace, pace={"pace": (20, 20.0)})


async def _within(job: Job[Any], key: str, seconds: float, how: How, limit: Limit, **limits: Any) -> str:
    """`how`: what becomes of its first attempt."""
    note(job, key, "begin", pid=os.getpid(), **limits)
    value = f"{key}/{job.attempt}"
    try:
        await _sleep(job, key, seconds)
        match how if job.attempt == 1 else "":
            case "raise":
                raise Trouble(key)
            case "snooze":
                raise Snooze("300ms")
            case "pause":
                raise Snooze("300ms", limit=limit)
            case "exit":
                os._exit(9)
            case _:
                pass
    except BaseException as error:
        note(job, key, "end", how=_how(error))
        raise
    note(job, key, "end", how="return", value=value)
    return value


def limited(draw: random.Random, key: str, *, queue: str = "default") -> NewJob[str]:
    """A job with a limit. Most end as they should, at once."""
    task = draw.choice((one_of_a_shop, three_of_a_shop, ten_in_all))
    return _drawn(task, draw, key, queue)


def paced(draw: random.Random, key: str, *, queue: str = "default") -> NewJob[str]:
    """A job whose limit has a rate: ask for fewer than one in 1.25 s."""
    return _drawn(at_a_pace, draw, key, queue)


def _drawn(task: Any, draw: random.Random, key: str, queue: str) -> Any:
    how = draw.choices(HOWS, (90, 4, 3, 2, 1))[0]
    return task.using(queue=queue).bind(key, draw.randrange(SHOPS), round(draw.uniform(0, 0.15), 3), how)


def short(result: Any) -> Any:
    """A result as the history has it: without its ballast, if that is whole."""
    if not (isinstance(result, dict) and "ballast" in result):
        return result
    value, ballast = result["value"], result["ballast"]
    whole = random.Random(value).randbytes(len(ballast) // 2).hex() == ballast != ""
    return value if whole else f"{value}, and its ballast is not whole"


@jobs.schedule(every="1s", name="every-second", overlap="allow", catch_up="all", catch_up_max=10_000)
@jobs.schedule(every="3s", name="every-three-seconds", overlap="allow", catch_up="all", catch_up_max=10_000)
@jobs.task(max_crashes=MAX_CRASHES)
def record(job: Job) -> None:
    """Which tick it was given."""
    pen().note("tick", job=str(job.id), attempt=job.attempt, schedule=job.meta["schedule"], tick=job.meta["tick"])


EVERY = {"every-second": 1.0, "every-three-seconds": 3.0}


def _how(error: BaseException) -> str:
    match error:
        case asyncio.CancelledError() | JobStopped():
            return "cancelled"
        case Snooze():
            return "snooze"
        case Fail():
            return "final"
        case Suspend():
            return "suspend"
        case _:
            return "raise"


# ── Steps ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _plain(job: Job[Any], key: str, name: str, *words: Any) -> None:
    match name, words:
        case "effect", ():
            note(job, key, "effect")
        case "progress", (fraction,):
            job.progress(fraction, stage="under way")
        case "raise", (times,) if job.failures < times:
            raise Trouble(f"{key}, attempt {job.attempt}")
        case "final", ():
            raise Fail(f"{key} is told to", final=True)
        case "snooze", (seconds,) if job.attempt == 1:
            raise Snooze(f"{int(seconds * 1000)}ms")
        case "exit", () if job.attempt == 1:
            os._exit(9)
        case "block", (seconds,):
            time.sleep(seconds)
        case "hold_the_gil", (seconds,):
            note(job, key, "hold", "invoke", seconds=seconds)
            note(job, key, "hold", locked=hold_the_gil(seconds))
        case _, _ if name in {"raise", "snooze", "exit"}:
            return  # not this time
        case _:
            raise AssertionError(f"no script has {name!r} {words}")


def hold_the_gil(seconds: float) -> bool:
    """Returns whether this process had the write lock of a SQLite file, as the kernel tells at the end of that time."""
    mine = f"^[0-9]*: POSIX *ADVISORY *WRITE {os.getpid()} .* {WRITE_LOCK} {WRITE_LOCK}$"
    command = f"sleep {seconds}; grep -c '{mine}' /proc/locks"
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE) as child:
        ctypes.PyDLL(None).waitpid(child.pid, None, 0)
        child.returncode = 0
        assert child.stdout is not None
        return child.stdout.read() not in (b"", b"0\n")


async def _sleep(job: Job[Any], key: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left, ALIVE_SECONDS))
        note(job, key, "alive")


def _doze(job: Job[Any], key: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, ALIVE_SECONDS))
        note(job, key, "alive")
        job.progress()  # where a thread is told to stop


def _phase_of(error: BaseException) -> Phase:
    return "fail" if isinstance(error, LeaseLost) else "info"


async def _acheckpoint(job: Job[Any], key: str, value: int) -> None:
    mine = [job.attempt, value]
    note(job, key, "checkpoint", "invoke", value=mine)
    try:
        job.progress(checkpoint=mine)
        await job.aflush()
    except (Exception, JobStopped, asyncio.CancelledError) as error:
        note(job, key, "checkpoint", _phase_of(error), value=mine, error=repr(error)[:200])
        if not isinstance(error, StoreError):
            raise
    else:
        note(job, key, "checkpoint", "ok", value=mine)


def _checkpoint(job: Job[Any], key: str, value: int) -> None:
    mine = [job.attempt, value]
    note(job, key, "checkpoint", "invoke", value=mine)
    try:
        job.progress(checkpoint=mine)
        job.flush()
    except (Exception, JobStopped) as error:
        note(job, key, "checkpoint", _phase_of(error), value=mine, error=repr(error)[:200])
        if not isinstance(error, StoreError):
            raise
    else:
        note(job, key, "checkpoint", "ok", value=mine)


async def _aonce(job: Job[Any], key: str, name: str) -> None:
    made: list[str] = []

    async def make() -> str:
        made.append(f"{key}/{name}/{job.attempt}")
        note(job, key, "made", name=name, value=made[0])
        return made[0]

    note(job, key, "once", "invoke", name=name)
    try:
        value = await job.aonce(name, make)
    except (Exception, JobStopped, asyncio.CancelledError) as error:
        note(job, key, "once", _phase_of(error), name=name, error=repr(error)[:200])
        raise
    note(job, key, "once", "ok", name=name, value=value, made=bool(made))


def _once(job: Job[Any], key: str, name: str) -> None:
    made: list[str] = []

    def make() -> str:
        made.append(f"{key}/{name}/{job.attempt}")
        note(job, key, "made", name=name, value=made[0])
        return made[0]

    note(job, key, "once", "invoke", name=name)
    try:
        value = job.once(name, make)
    except (Exception, JobStopped) as error:
        note(job, key, "once", _phase_of(error), name=name, error=repr(error)[:200])
        raise
    note(job, key, "once", "ok", name=name, value=value, made=bool(made))


async def _aspawn(job: Job[Any], key: str) -> None:
    """A child of each attempt: a client whose answers get lost as those of others do."""
    child = f"{key}.{job.attempt}"
    script = [["effect"]]
    pen().note("enqueue", "invoke", key=child, must="completed", script=script, unique="", due=0)
    try:
        handle = await act.bind(child, script).aenqueue()
    except (Exception, asyncio.CancelledError) as error:
        pen().note("enqueue", "info", key=child, error=repr(error)[:200])
        raise
    pen().note("enqueue", "ok", key=child, id=str(handle.id), created=handle.created)


def _hand_in(job: Job[Any], key: str, value: str) -> None:
    """The row and the outcome commit together, or neither does."""
    note(job, key, "hand_in", "invoke", value=value)
    try:
        with jobs.transaction() as tx:
            tx.execute(f"INSERT INTO {table('handed_in')} VALUES ('{key}', {job.attempt})")
            job.finish(value, tx=tx)
    except (Exception, JobStopped) as error:
        note(job, key, "hand_in", _phase_of(error), value=value, error=repr(error)[:200])
        raise
    note(job, key, "hand_in", "ok", value=value)


# ── Tables beside the store's own ───────────────────────────────────────────────────────────────────────────────


def table(name: str) -> str:
    """In PostgreSQL tables are in the namespace's schema; in SQLite they are in the store's file."""
    schema = f'"{jobs.settings.namespace}".' if jobs.settings.url.startswith("postgres") else ""
    return f"{schema}chaos_{name}"


def make_tables() -> None:
    with jobs.transaction() as tx:
        tx.execute(f"CREATE TABLE IF NOT EXISTS {table('rows')} (key text)")
        tx.execute(f"CREATE TABLE IF NOT EXISTS {table('handed_in')} (key text, attempt integer)")


def read_table(name: str) -> list[tuple[Any, ...]]:
    with jobs.transaction() as tx:
        return [tuple(row) for row in tx.execute(f"SELECT * FROM {table(name)}")]


# ── Scripts ─────────────────────────────────────────────────────────────────────────────────────────────────────

Kind = Literal["act", "act_in_thread", "poison", "fail"]


def draw_script(draw: random.Random, *, transactions: bool, lease: float) -> tuple[Kind, Script, Must]:
    """What one job shall do: most are short and ordinary, some are odd, few are harmful."""
    sleep = ["sleep", round(draw.choice((0.02, 0.1, 0.3, 0.3, 1.0)) * draw.uniform(0.5, 1.5), 3)]
    place: Kind = draw.choice(("act", "act_in_thread"))
    match draw.choices(range(14), (24, 10, 14, 12, 8, 6, 5, 4, 0.4, 2, 1.5, 0.8, 0.5, 2))[0]:
        case 0 | 1:
            return place, [sleep, ["effect"]], "completed"
        case 2:
            steps: Script = [["checkpoint", 1], sleep, ["checkpoint", 2], ["progress", 0.5], sleep, ["effect"]]
            return place, steps, "completed"
        case 3:
            return place, [["once", "mail"], sleep, ["effect"], ["once", "bill"]], "completed"
        case 4:
            return place, [sleep, ["effect"], ["raise", draw.randint(1, 3)]], "completed"
        case 5:
            return place, [["snooze", 0.3], sleep, ["effect"]], "completed"
        case 6:
            return "act", [["spawn"], sleep], "completed"
        case 7 if transactions:
            return "act_in_thread", [sleep, ["hand_in"]], "completed"
        case 8:
            return "poison", [], "dead"
        case 9:
            return "fail", [], "dead"
        case 10:
            return place, [sleep, ["effect"], ["final"]], "dead"
        case 11:
            return place, [["exit"], ["effect"]], "completed"
        case 12:
            harm = draw.choice(("block", "hold_the_gil"))
            return "act", [["effect"], [harm, round(lease * draw.choice((0.5, 2.0)), 2)]], "completed"
        case 13:  # long enough to be found alive when its lease is over
            long = ["sleep", round(lease * draw.choice((1.5, 3.0)), 2)]
            return place, [["effect"], ["checkpoint", 1], long, ["checkpoint", 2]], "completed"
        case _:
            return place, [sleep, ["effect"]], "completed"


def _show_that_it_is_there() -> None:
    """While this worker lives, and nobody has stopped it, there are slots in the lane (bounds.py)."""
    while True:
        pen().note("there")
        time.sleep(THERE_SECONDS)


if os.environ.get("TENURE_TEST_ACTOR", "").startswith("host-lane"):
    threading.Thread(target=_show_that_it_is_there, daemon=True).start()

TASKS = {"act": act, "act_in_thread": act_in_thread, "poison": poison, "fail": fail}
