"""Programs with event loops of their own around the engine: whose loop handlers run on, and how they end with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import tenure

from .harness import LIMIT

SOURCE = Path(tenure.__file__).parents[1]
APP = """
import asyncio, contextvars, json, os, sys, threading, time
from tenure import Fail, Job, Retry, Snooze, Tenure
from tenure.ports import Filter

jobs = Tenure()

async def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.01)

def tell(**found):
    print(json.dumps(found), flush=True)

def ends(handle):
    view = jobs.client().store.get(str(handle.id))
    attempts = jobs.client().store.attempts(str(handle.id))
    return {"state": str(view.state), "failures": view.failures, "crashes": view.crashes_total,
            "outcomes": [each.outcome for each in attempts], "error": view.error}
"""
RELEASED = {"state": "queued", "failures": 0, "crashes": 0, "outcomes": ["released"]}


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def told(self) -> dict[str, Any]:
        """What the program told, merged."""
        found: dict[str, Any] = {}
        for line in self.out.splitlines():
            found |= json.loads(line)
        return found


def run(folder: Path, script: str, *, seconds: float = LIMIT, **env: str) -> Ran:
    """Run the script as a program in a folder of its own."""
    file = folder / "program.py"
    file.write_text(APP + textwrap.dedent(script))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(SOURCE), **env},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def of(ended: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    return {name: ended[name] for name in wanted}


# ── whose loop ──


@pytest.mark.everyday
def test_async_handlers_run_on_the_loop_of_the_block_and_share_what_belongs_to_it(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        """
        user = contextvars.ContextVar("user", default="nobody")
        engine = None

        @jobs.resource
        async def pool():
            loops.append(asyncio.get_running_loop())
            yield engine
            loops.append(asyncio.get_running_loop())

        @jobs.task(retry=1)
        async def pay(job: Job) -> int:
            loops.append(asyncio.get_running_loop())
            users.append(user.get())
            names.append(asyncio.current_task().get_name())
            job.progress(0.5, message="paying")
            async with job.resource(asyncio.Lock):
                await asyncio.sleep(0.01)
            return 1

        @jobs.task(retry=1)
        def plain(job: Job) -> int:
            threads.append(threading.current_thread())
            job.progress(0.5)
            return 2

        async def main():
            global engine, loops, users, threads, names
            engine = asyncio.Lock()  # like an engine, a client or a session: it belongs to one loop
            loops, users, threads, names = [], [], [], []
            user.set("ada")
            async with jobs.worker(concurrency=8):
                paid = [await pay.aenqueue() for _ in range(20)]
                other = await plain.aenqueue()
                async with engine:  # they wait for it, as for a connection
                    await until(lambda: len(users) >= 7)
                got = [await each.aresult("60s") for each in (*paid, other)]
            here = asyncio.get_running_loop()
            tell(got=sum(got), here=all(each is here for each in loops), loops=len(loops), users=sorted(set(users)),
                 main=threads[0] is threading.main_thread(), named=all(name.startswith("pay ") for name in names))

        asyncio.run(main())
        asyncio.run(main())  # a second loop in one process
        """,
    )
    assert ran.code == 0, ran.err
    expected = {"got": 22, "here": True, "loops": 22, "users": ["nobody"], "main": False, "named": True}
    assert [json.loads(line) for line in ran.out.splitlines()] == [expected] * 2


def test_a_web_app_shares_its_engine_with_the_worker_in_its_lifespan(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    ran = run(
        tmp_path,
        """
        from contextlib import asynccontextmanager
        import httpx, uvicorn
        from fastapi import FastAPI

        engine = None

        @jobs.task(retry=1)
        async def ship(order: int) -> int:
            async with engine:
                await asyncio.sleep(0.005)
            return order

        @asynccontextmanager
        async def lifespan(app):
            global engine
            engine = asyncio.Semaphore(1)
            async with jobs.worker():
                yield

        app = FastAPI(lifespan=lifespan)

        @app.post("/orders/{order}")
        async def take(order: int):
            async with engine:
                handle = await ship.aenqueue(order)
                await asyncio.sleep(0.005)
            return {"job": str(handle.id)}

        async def main():
            server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
            serving = asyncio.create_task(server.serve())
            await until(lambda: server.started)
            port = server.servers[0].sockets[0].getsockname()[1]
            async with httpx.AsyncClient(timeout=60) as client:
                answers = await asyncio.gather(*(client.post(f"http://127.0.0.1:{port}/orders/{n}") for n in range(8)))
            got = [await ship.handle(each.json()["job"]).aresult("60s") for each in answers]
            server.should_exit = True
            await serving
            tell(got=got, alive=len(jobs.client().store.workers()))

        asyncio.run(main())
        """,
    )
    assert ran.code == 0, ran.err
    assert ran.told == {"got": list(range(8)), "alive": 0}


# ── how it ends ──

HOLDS = """
begun, cleaned = [], []

@jobs.task(retry=1)
async def hold() -> None:
    begun.append(1)
    try:
        await asyncio.sleep(1000)
    finally:
        cleaned.append(1)
"""


@pytest.mark.parametrize("style", ["asyncio", "anyio"])
def test_a_block_whose_task_is_cancelled_hands_its_jobs_back_first(tmp_path: Path, style: str) -> None:
    cancels = {
        "asyncio": """
            task = asyncio.create_task(serve())
            await until(lambda: begun)
            task.cancel()
            try:
                await task
                how = "swallowed"
            except asyncio.CancelledError:
                how = "cancelled"
        """,
        "anyio": """
            import anyio
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(serve)
                    await until(lambda: begun)
                    group.cancel_scope.cancel()
            how = "cancelled"
        """,
    }
    body = HOLDS + textwrap.dedent(
        """
        async def serve():
            async with jobs.worker():
                await asyncio.sleep(1000)

        async def main():
            handle = await hold.aenqueue()
        BODY
            tell(how=how, cleaned=len(cleaned), alive=len(jobs.client().store.workers()), job=ends(handle))

        asyncio.run(main())
        """
    ).replace("BODY", textwrap.indent(textwrap.dedent(cancels[style]), "    "))
    ran = run(tmp_path, body)
    assert ran.code == 0, ran.err
    assert (ran.told["how"], ran.told["cleaned"], ran.told["alive"]) == ("cancelled", 1, 0)
    assert of(ran.told["job"], RELEASED) == RELEASED


@pytest.mark.parametrize(
    "way", ["a task left behind", "a block never left", "a loop that is busy as it ends", "a loop that was closed"]
)
def test_a_loop_that_ends_before_the_block_hands_its_jobs_back_uncharged(tmp_path: Path, way: str) -> None:
    never_left = """
            async def main():
                global handle
                handle = await hold.aenqueue()
                await jobs.worker().__aenter__()
                await until(lambda: begun)

            asyncio.run(main())
        """
    ways = {
        "a task left behind": """
            async def serve():
                async with jobs.worker():
                    await asyncio.sleep(1000)

            async def main():
                global handle, task
                handle = await hold.aenqueue()
                task = asyncio.create_task(serve())
                await until(lambda: begun)

            asyncio.run(main())
        """,
        "a block never left": never_left,
        "a loop that is busy as it ends": """
            from tenure.worker.executor import Attempt

            def end_slowly(attempt, outcome, end=Attempt._end):
                end(attempt, outcome)
                time.sleep(1)

            Attempt._end = end_slowly
        """
        + never_left,
        "a loop that was closed": """
            from tenure.worker import caller

            caller.LOOK_SECONDS = 1.0  # the jobs are handed back before the worker is told to end
            loop = asyncio.new_event_loop()

            async def main():
                global handle
                handle = await hold.aenqueue()
                await worker.__aenter__()
                await until(lambda: begun)

            worker = jobs.worker()
            loop.run_until_complete(main())
            loop.close()
        """,
    }
    ran = run(
        tmp_path,
        HOLDS
        + textwrap.dedent(ways[way])
        + textwrap.dedent("""
        end = time.monotonic() + 30
        while ends(handle)["outcomes"] != ["released"] and time.monotonic() < end:
            time.sleep(0.02)
        tell(job=ends(handle))
        """),
    )
    assert ran.code == 0, ran.err
    assert of(ran.told["job"], RELEASED) == RELEASED


@pytest.mark.parametrize("way", ["raises", "is judged"])
def test_cleanup_that_fails_while_the_loop_ends_is_not_charged(tmp_path: Path, way: str) -> None:
    handlers = {
        "raises": """
            try:
                begun.append(1)
                await asyncio.sleep(1000)
            finally:
                raise RuntimeError("the pool is closed")
        """,
        "is judged": """
            raise StoreAway("out of reach")  # the worker counts, in a thread, how often that was so
        """,
    }
    ran = run(
        tmp_path,
        """
        from tenure.errors import StoreAway

        begun, ended = [], threading.Event()
        kept = type(jobs.client().store)
        read = kept.attempts

        def attempts(store, job_id):
            begun.append(1)
            ended.wait(30)
            return read(store, job_id)

        kept.attempts = attempts

        @jobs.task(retry=1)
        async def hold() -> None:
            HANDLER

        async def main():  # without a task that leaves the block, and asks the handler to stop before it is cancelled
            global handle
            handle = await hold.aenqueue()
            await jobs.worker().__aenter__()
            await until(lambda: begun)

        asyncio.run(main())
        ended.set()
        tell(job=ends(handle))
        """.replace("HANDLER", textwrap.indent(textwrap.dedent(handlers[way]).strip(), " " * 12).strip()),
    )
    assert ran.code == 0, ran.err
    assert of(ran.told["job"], RELEASED) == RELEASED


def test_code_that_does_not_stop_keeps_its_job_when_the_block_is_cancelled(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        """
        import tenure.worker.caller as caller
        caller.SETTLE_SECONDS = 0.5
        begun, go = [], threading.Event()

        @jobs.task(retry=1)
        def deaf() -> int:
            begun.append(1)
            go.wait(60)
            return 7

        async def serve():
            async with jobs.worker():
                await asyncio.sleep(1000)

        async def main():
            handle = await deaf.aenqueue()
            task = asyncio.create_task(serve())
            await until(lambda: begun)
            task.cancel()
            await asyncio.wait([task])
            tell(cancelled=task.cancelled(), meanwhile=ends(handle)["state"])
            go.set()
            await until(lambda: ends(handle)["state"] != "processing")
            tell(job=ends(handle))

        asyncio.run(main())
        """,
    )
    assert ran.code == 0, ran.err
    assert (ran.told["cancelled"], ran.told["meanwhile"]) == (True, "processing")
    assert (ran.told["job"]["state"], ran.told["job"]["outcomes"]) == ("completed", [])


def test_no_handler_ends_the_programs_loop(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        """
        @jobs.task(retry=1)
        async def exits() -> None:
            sys.exit(3)

        @jobs.task(retry=1)
        async def swallows(job: Job) -> str:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                return "kept"

        async def main():
            async with jobs.worker():
                gone = await exits.aenqueue()
                kept = await swallows.using(timeout="200ms").aenqueue()
                await until(lambda: ends(gone)["state"] == "dead" and ends(kept)["state"] == "dead")
                tell(gone=ends(gone), kept=ends(kept), executor=asyncio.get_running_loop()._default_executor is None)
            tell(left=True)

        asyncio.run(main())
        """,
    )
    assert ran.code == 0, ran.err
    assert ran.told["left"]
    assert ran.told["gone"]["error"].startswith("SystemExit: 3")
    assert ran.told["kept"]["error"] == "timed out after 200ms"


def test_a_failed_duty_ends_the_worker_and_not_the_loop(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        HOLDS
        + textwrap.dedent("""
        from tenure.stores.sqlite import SqliteStore

        def broken(*_, **__):
            raise TypeError("a mistake in the store")

        async def main():
            worker = jobs.worker()
            try:
                async with worker:
                    handle = await hold.aenqueue()
                    await until(lambda: begun)
                    SqliteStore.renew = broken
                    await until(lambda: worker.failed)
                    await until(lambda: ends(handle)["state"] == "queued")
                    await asyncio.sleep(0.1)  # the loop goes on
                    tell(job=ends(handle))
            except Exception as error:
                tell(error=str(error), cause=repr(error.__cause__))

        asyncio.run(main())
        """),
        TENURE_LEASE="9s",
    )
    assert ran.code == 0, ran.err
    assert of(ran.told["job"], RELEASED) == RELEASED
    assert "failed while the block ran" in ran.told["error"]
    assert ran.told["cause"] == "TypeError('a mistake in the store')"


def test_a_loop_blocked_for_longer_than_a_lease_loses_its_jobs_and_begins_anew(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        HOLDS
        + textwrap.dedent("""
        async def main():
            store = jobs.client().store
            async with jobs.worker(queues=["default"]):
                handle = await hold.aenqueue()
                await until(lambda: begun)
                (before,) = store.workers()
                renewed = before.renewed_at
                time.sleep(6)  # the program's own mistake
                seen = [each for each in store.workers() if each.identity.id == before.identity.id]
                late = (seen[0].renewed_at - renewed).total_seconds() if seen else 0.0
                await until(lambda: len(begun) > 1)
                after = store.workers()
                tell(late=late, new=after[-1].identity.id != before.identity.id, job=ends(handle))

        asyncio.run(main())
        """),
        TENURE_LEASE="3s",
    )
    assert ran.code == 0, ran.err
    assert ran.told["late"] < 5.0
    assert ran.told["new"]
    assert ran.told["job"]["failures"] == ran.told["job"]["crashes"] == 0


# ── exceptions ──


@pytest.mark.everyday
def test_cleanup_that_fails_while_its_job_is_handed_back_is_not_charged(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        """
        begun = []

        @jobs.task(retry=1)
        async def in_finally() -> None:
            begun.append(1)
            try:
                await asyncio.sleep(1000)
            finally:
                raise ConnectionError("the pool is closed")

        @jobs.task(retry=1)
        async def in_group() -> None:
            async def part():
                try:
                    await asyncio.sleep(1000)
                finally:
                    raise ConnectionError("the pool is closed")

            begun.append(1)
            async with asyncio.TaskGroup() as group:
                group.create_task(part())

        @jobs.task(retry=1)
        async def wrapped() -> None:
            begun.append(1)
            try:
                await asyncio.sleep(1000)
            except BaseException as error:
                raise RuntimeError("the report was not written") from error

        @jobs.task(retry=1)
        def in_thread(job: Job) -> None:
            begun.append(1)
            try:
                while True:
                    job.progress(0.1)
                    time.sleep(0.01)
            finally:
                raise ConnectionError("the pool is closed")

        @jobs.task(retry=1)
        async def unrelated() -> None:
            begun.append(1)
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                pass
            raise ValueError("a mistake of its own")

        tasks = [in_finally, in_group, wrapped, in_thread, unrelated]
        with jobs.worker(concurrency=8):
            handles = [task.enqueue() for task in tasks]
            while len(begun) < len(tasks):
                time.sleep(0.01)
        tell(begun=len(begun), **{task.name: ends(handle) for task, handle in zip(tasks, handles)})
        """,
        TENURE_GRACE="0s",
    )
    assert ran.code == 0, ran.err
    told = ran.told
    assert told.pop("begun") == 5, "no code began while the worker ended"
    unrelated = told.pop("unrelated")
    for job in told.values():  # a claim in flight may take what was just handed back, and hands it back, too
        job["outcomes"] = list(dict.fromkeys(job["outcomes"]))
    assert {name: of(job, RELEASED) for name, job in told.items()} == dict.fromkeys(told, RELEASED)
    assert (unrelated["state"], unrelated["failures"]) == ("dead", 1)


@pytest.mark.everyday
def test_a_signal_raised_in_a_group_means_what_it_means_alone(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        """
        async def raises(error):
            raise error

        async def together(*errors):
            async with asyncio.TaskGroup() as group:
                for error in errors:
                    group.create_task(raises(error))

        @jobs.task(retry=5)
        async def snoozes() -> None:
            await together(Snooze("1h", "closed"))

        @jobs.task(retry=5)
        async def snoozes_deep() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(together(Snooze("1h", "closed")))

        @jobs.task(retry=5)
        async def snoozes_twice() -> None:
            await together(Snooze("1m", "busy"), Snooze("1h", "closed"))

        @jobs.task(retry=5)
        async def gives_up() -> None:
            await together(Fail("no such card", final=True))

        @jobs.task(retry=5)
        async def gives_up_beside_an_error() -> None:
            await together(ValueError("a mistake"), Fail("no such card", final=True))

        @jobs.task(retry=1)
        async def snoozes_beside_an_error() -> None:
            await together(ValueError("a mistake"), Snooze("1h", "closed"))

        @jobs.task(retry=5)
        def plain() -> None:
            raise ExceptionGroup("both", [Snooze("1h", "closed")])

        tasks = [snoozes, snoozes_deep, snoozes_twice, plain]
        tasks += [gives_up, gives_up_beside_an_error, snoozes_beside_an_error]
        with jobs.worker(concurrency=8):
            handles = [task.enqueue() for task in tasks]
            while any(not ends(handle)["outcomes"] for handle in handles):
                time.sleep(0.01)
        views = [jobs.client().store.get(str(handle.id)) for handle in handles]
        waits = [(view.run_at - view.enqueued_at).total_seconds() > 3000 for view in views]
        tell(**{task.name: ends(handle) | {"hour": wait} for task, handle, wait in zip(tasks, handles, waits)})
        """,
    )
    assert ran.code == 0, ran.err
    found = {name: (job["state"], job["failures"], job["hour"]) for name, job in ran.told.items()}
    snoozed, dead = ("scheduled", 0, True), ("dead", 1, False)
    assert found == {
        "snoozes": snoozed,
        "snoozes_deep": snoozed,
        "snoozes_twice": snoozed,
        "plain": snoozed,
        "gives_up": dead,
        "gives_up_beside_an_error": dead,
        "snoozes_beside_an_error": dead,
    }
    assert ran.told["gives_up"]["error"] == "no such card"
    assert "a mistake" in ran.told["gives_up_beside_an_error"]["error"]


# ── a neighbour that blocks the loop ──


@pytest.mark.parametrize("way", ["with", "async with"])
def test_a_job_that_reports_is_not_hung_because_its_neighbour_blocks_the_loop(tmp_path: Path, way: str) -> None:
    ran = run(
        tmp_path,
        """
        @jobs.task(stale_after="1s", max_crashes=0)
        async def reports(job: Job) -> str:
            for _ in range(36):
                job.progress(0.5)
                await asyncio.sleep(0.1)
            return "done"

        @jobs.task
        async def blocks() -> None:
            await asyncio.sleep(0.2)
            time.sleep(2.5)

        @jobs.task(stale_after="1s", max_crashes=0)
        async def hangs(job: Job) -> None:
            job.progress(0.5)
            await asyncio.sleep(1000)
        """
        + {
            "with": """
        with jobs.worker(concurrency=8):
            hung, told = hangs.enqueue(), [reports.enqueue() for _ in range(6)]
            blocks.enqueue()
            while {ends(each)["state"] for each in (hung, *told)} & {"queued", "processing"}:
                time.sleep(0.05)
        """,
            "async with": """
        async def main():
            global hung, told
            async with jobs.worker(concurrency=8):
                hung, told = await hangs.aenqueue(), [await reports.aenqueue() for _ in range(6)]
                await blocks.aenqueue()
                while {ends(each)["state"] for each in (hung, *told)} & {"queued", "processing"}:
                    await asyncio.sleep(0.05)

        asyncio.run(main())
        """,
        }[way]
        + """
        tell(hung=ends(hung), told=[ends(each) for each in told])
        """,
    )
    assert ran.code == 0, ran.err
    assert [(each["state"], each["crashes"]) for each in ran.told["told"]] == [("completed", 0)] * 6
    assert (ran.told["hung"]["state"], ran.told["hung"]["crashes"]) == ("dead", 1)


# ── threads and slots ──


MEETING = """
    together = threading.Barrier(60)

    @jobs.task(retry=1)
    async def meets() -> None:
        await asyncio.to_thread(together.wait, 20)  # all of them at once, or none
"""


@pytest.mark.parametrize("way", ["with", "async with", "tenure worker"])
def test_threads_of_handlers_do_not_wait_for_each_other(tmp_path: Path, way: str) -> None:
    """On a loop of the worker's own, and on the program's own if that has a thread for each slot."""
    ran = run(
        tmp_path,
        MEETING
        + {
            "with": """
    with jobs.worker(concurrency=60):
        for handle in jobs.enqueue_many(meets.bind() for _ in range(60)):
            handle.result("30s")
""",
            "async with": """
    from concurrent.futures import ThreadPoolExecutor

    async def main():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(60))
        async with jobs.worker(concurrency=60):
            for handle in await jobs.aenqueue_many(meets.bind() for _ in range(60)):
                await handle.aresult("30s")

    asyncio.run(main())
""",
            "tenure worker": """
    if __name__ == "__main__":
        import subprocess

        handles = jobs.enqueue_many(meets.bind() for _ in range(60))
        command = "from tenure.cli.main import main; main(['worker', 'program', '-c', '60', '--until-empty'])"
        subprocess.run([sys.executable, "-c", command], check=True)
        for handle in handles:
            handle.result("0s")
""",
        }[way]
        + """
    if __name__ == "__main__":
        tell(met=True)
""",
    )
    assert ran.code == 0, ran.err
    assert ran.told == {"met": True}


def test_an_awaited_child_is_warned_about_as_a_waited_for_one(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        """
        @jobs.task
        async def child() -> int:
            return 1

        @jobs.task
        async def parent() -> int:
            return await (await child.aenqueue()).aresult("60s")

        with jobs.worker(concurrency=2):
            assert parent.enqueue().result("60s") == 1
        """,
    )
    assert ran.code == 0, ran.err
    assert "program.py:" in ran.err
    assert "RuntimeWarning: parent waits for job" in ran.err


@pytest.mark.parametrize("where", ["embedded", "tenure worker"])
def test_an_async_around_beside_a_plain_task_is_refused_at_the_start(tmp_path: Path, where: str) -> None:
    starts = {
        "embedded": "with jobs.worker():\n    pass\n",
        "tenure worker": "import subprocess\n"
        "os.environ['TENURE_APP'] = 'program'\n"
        "if __name__ == '__main__':\n"
        '    command = \'from tenure.cli.main import main; main(["worker", "--until-empty"])\'\n'
        "    sys.exit(subprocess.run([sys.executable, '-c', command]).returncode)\n",
    }
    app = """
        @jobs.around
        async def session(job):
            yield

        @jobs.task
        def plain() -> None: ...
    """
    ran = run(tmp_path, textwrap.dedent(app) + starts[where])
    assert ran.code != 0
    assert "@jobs.around session is async, but the task plain is a plain function" in ran.err


# ── a deploy that changes arguments ──

RELEASES = """
import tenure.worker.misfits as misfits
from datetime import timedelta
from tenure.operations.explain import explain

misfits.SHORTEST_SECONDS, misfits.LONGEST_SECONDS = 0.1, 0.3
old, new = Tenure(), Tenure()

@old.task(name="pay", retry=1)
async def pay_before(order: int) -> int:
    return order

@new.task(name="pay", retry=1)
async def pay_now(order: int, note: str) -> int:
    return order

@old.task(name="ship", retry=1)
def ship_before(order: int, note: str) -> int:
    return order

@new.task(name="ship", retry=1)
def ship_now(order: int) -> int:
    return order

calls = {"old": [pay_before.bind(1), ship_before.bind(2, "x")], "new": [pay_now.bind(1, "x"), ship_now.bind(2)]}
"""


@pytest.mark.parametrize("caller", ["old", "new"])
def test_a_job_waits_uncharged_for_the_release_that_its_arguments_fit(tmp_path: Path, caller: str) -> None:
    worker = {"old": "new", "new": "old"}[caller]
    ran = run(
        tmp_path,
        RELEASES
        + textwrap.dedent(f"""
        caller, worker = {caller}, {worker}
        handles = caller.enqueue_many([each for each in calls["{caller}"] for _ in range(3)])
        store = jobs.client().store

        def snoozed(handle):
            return ends(handle)["outcomes"].count("snoozed")

        with worker.worker(concurrency=3):
            while any(snoozed(each) < 2 for each in handles):
                time.sleep(0.02)
            explained = explain(store, store.get(str(handles[0].id)))
            with caller.worker():  # the old release and the new one, side by side
                got = [each.result("30s") for each in handles]
        tell(got=sorted(got), charged=[ends(each)["failures"] + ends(each)["crashes"] for each in handles],
             verdict=explained.verdict, do=explained.what_to_do)
        """),
    )
    assert ran.code == 0, ran.err
    assert ran.told["got"] == [1, 1, 1, 2, 2, 2]
    assert set(ran.told["charged"]) == {0}
    expected = "missing argument 'note'" if caller == "old" else "unexpected argument 'note'"
    assert f"its arguments fit no worker's code: pay: {expected}" in ran.told["verdict"]
    assert ran.told["do"].startswith("deploy the code that takes them")
    assert ran.err.count("jobs of pay wait for a worker whose code their arguments fit") == 1
    assert ran.err.count("jobs of ship wait for a worker whose code their arguments fit") == 1


def test_a_job_that_no_release_fits_is_dead_in_the_end_and_says_why(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        RELEASES
        + textwrap.dedent("""
        misfits.PATIENCE = timedelta(seconds=2)

        @old.task(retry=1)
        def child(n: int) -> None: ...

        @old.task(retry=1)
        def calls_wrongly() -> None:
            child.enqueue("x")

        with old.worker():
            handle, wrong = pay_now.enqueue(1, "x"), calls_wrongly.enqueue()
            while {ends(handle)["state"], ends(wrong)["state"]} != {"dead"}:
                time.sleep(0.02)
        tell(job=ends(handle), wrong=ends(wrong))
        """),
    )
    assert ran.code == 0, ran.err
    outcomes = ran.told["job"]["outcomes"]
    assert set(outcomes[:-1]) == {"snoozed"}
    assert outcomes[-1] == "failed"
    assert ran.told["job"]["error"].startswith("arguments fit no worker's code since 20")
    assert "unexpected argument 'note'; it takes (order: int)" in ran.told["job"]["error"]
    assert ran.told["wrong"]["outcomes"] == ["failed"]  # its own mistake is charged
