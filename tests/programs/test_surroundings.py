"""Programs that change their surroundings, or are started in odd ones: folder, umask, closed files, signals, locale."""

from __future__ import annotations

import shlex
import sys

import pytest

from tenure.ports import Filter

from .harness import Programs

APP = """
import contextlib, os, sys
from tenure import Tenure

jobs = Tenure()

@jobs.task
def child() -> str:
    return os.getcwd()

@jobs.task
def moves() -> bool:
    os.makedirs("build", exist_ok=True)
    with contextlib.chdir("build"):
        return child.enqueue().created
"""
ENQUEUE = "import os, app; app.moves.enqueue()"


@pytest.fixture
def by_default(programs: Programs) -> Programs:
    """The default URL: a file in the folder of the program."""
    del programs.environment["TENURE_URL"]
    programs.write(APP, "app.py")
    return programs


def test_a_handler_that_changes_the_folder_enqueues_where_its_worker_looks(by_default: Programs) -> None:
    by_default.run(ENQUEUE)
    by_default.work(APP)
    with by_default.store() as store:
        counts = store.counts()
    assert (counts["completed"], sum(counts.values())) == (2, 2)
    assert not (by_default.folder / "build" / "tenure.db").exists()


def test_a_program_that_changes_its_folder_before_first_use_keeps_its_store_and_its_dotenv(
    by_default: Programs,
) -> None:
    (by_default.folder / ".env").write_text("TENURE_URL=sqlite:///other.db\nTENURE_RUNTIME_DIR=run\n")
    del by_default.environment["TENURE_RUNTIME_DIR"]
    by_default.run("import os, app; os.mkdir('b'); os.chdir('b'); app.child.enqueue()")
    assert (by_default.folder / "other.db").exists()
    assert sorted(path.name for path in (by_default.folder / "b").iterdir()) == []


DEAF_TO_EXITS = (
    "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
)
PYTHON = shlex.quote(sys.executable)
SURROUNDINGS = {
    "umask 077": "umask 077; exec {}",
    "umask 0": "umask 0; exec {}",
    "stdin closed": "exec {} <&-",
    "all closed": "exec {} <&- >&- 2>&-",
    "SIGINT ignored": "trap '' INT; exec {}",
    "SIGTERM ignored": "trap '' TERM; exec {}",
    "SIGCHLD ignored": f"exec {PYTHON} -c '{DEAF_TO_EXITS}' {{}}",  # a shell would reset it
    "LANG=C": "LC_ALL=C LANG=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 exec {}",
    "no HOME": "unset HOME; exec {}",
}
TENURE = f"{PYTHON} -c 'from tenure.cli.main import run; run()'"


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_a_client_a_worker_and_a_guard_in_odd_surroundings(by_default: Programs, surroundings: str) -> None:
    commands = (
        f"{PYTHON} -c '{ENQUEUE}'",
        f"{TENURE} worker app.py --until-empty",
        # from cron's folder a relative path would be another file, so a guard requires the whole path
        f"{TENURE} guard nightly --every 1d --url sqlite:///{by_default.folder}/tenure.db -- touch guarded",
    )
    for command in commands:
        with by_default.started("sh", "-c", SURROUNDINGS[surroundings].format(command)) as process:
            by_default.ended(process)
    assert (by_default.folder / "guarded").exists()
    with by_default.store() as store:
        counts = store.counts()
    assert counts["completed"] == sum(counts.values()) >= 2


COLLECTED = """
import gc, weakref
from tenure import Retry, Tenure

jobs = Tenure(retry=Retry(1))

class Ring:
    def __init__(self) -> None:
        self.next = self

loaded = Ring()
dropped = weakref.ref(Ring())

@jobs.task
def looks() -> list[bool]:
    left = weakref.ref(Ring())
    gc.collect()
    return [left() is None, dropped() is None, any(each is loaded for each in gc.get_objects())]
"""


def test_a_worker_looks_for_garbage_among_what_came_after_its_app_was_loaded(by_default: Programs) -> None:
    by_default.write(COLLECTED, "app.py")
    by_default.run("import app; print(app.looks.enqueue().id)")
    by_default.work(COLLECTED)
    with by_default.store() as store:
        (job,) = store.search(Filter()).jobs
    assert job.result == "[true,true,false]"


LATE = """
import asyncio, atexit, sys, threading, time
from tenure import Tenure

jobs = Tenure()

@jobs.task(retry=1)
def plain(n: int) -> int:
    time.sleep(0.5)
    return n

@jobs.task(retry=1)
async def awaited(n: int) -> int:
    await asyncio.sleep(0.5)
    return n
"""
THREADS = f"""{LATE}
ended = threading.Event()

def serve():
    with jobs.worker(concurrency=2):
        ended.wait(60)

def use():
    threading.main_thread().join()
    print([task.enqueue(n).result("60s") for n in range(2) for task in (plain, awaited)])
    ended.set()

threading.Thread(target=serve).start()
threading.Thread(target=use).start()
print(plain.enqueue(9).result("60s"))
"""
AT_EXIT = f"""{LATE}
worker = jobs.worker(concurrency=2)
worker.__enter__()
atexit.register(worker.__exit__, None, None, None)
began = [task.enqueue(1) for task in (plain, awaited)]
while any(each.status().state != "processing" for each in began):
    time.sleep(0.01)
"""


def test_an_embedded_worker_goes_on_when_the_main_thread_has_ended(programs: Programs) -> None:
    """Python shuts down its thread pools then, although other threads run on."""
    ran = programs.run(THREADS)

    assert (ran.lines, ran.err) == (["9", "[0, 0, 1, 1]"], "")


def test_a_worker_that_ends_at_exit_stores_what_its_handlers_returned(programs: Programs) -> None:
    """Their code had run, and no outcome was stored: it ran again."""
    ran = programs.run(AT_EXIT)

    assert ran.err == ""
    with programs.store() as store:
        jobs = store.search(Filter()).jobs
        assert sorted((job.task, job.state, job.attempt) for job in jobs) == [
            ("awaited", "completed", 1),
            ("plain", "completed", 1),
        ]
