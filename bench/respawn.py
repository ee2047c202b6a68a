"""From `kill -9` of a worker to its job's next start, step by step.

    python -m bench.respawn sqlite postgres redis --kills 10 [--against OTHER/src] [--import-seconds 1] [--thread]

Each kill has a supervisor of its own with one worker of one slot, so that it is always the first crash of the job. With
`--against` the two source trees take turns: compare their ratio, as the speed of a machine drifts. The steps are those
of the process that runs the job again, in ms after the signal: `settled`, the job is queued again; `started`,
the process began, which may be before the signal; `app`, Tenure is imported and the import of the app begins;
`running`, the handler has begun. `cpu` is the processor time that this process has used by then.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from servers import shared_postgres, shared_valkey
from tenure.app.backends import open_store
from tenure.config import load
from tenure.core.ids import new_id
from tenure.ports import Draft
from tenure.supervisor.processes import FIRST_SPARE_SECONDS

SOURCE = Path(__file__).parent.parent / "src"
STORES = ("sqlite", "postgres", "redis")
STEPS = ("settled", "started", "app", "running", "cpu")
PATIENCE_SECONDS = 60.0
APP = """
import json, os, time
AT = time.clock_gettime(time.CLOCK_BOOTTIME)
from tenure import Job, Tenure
time.sleep(float(os.environ["IMPORT_SECONDS"]))
jobs = Tenure()

def begin(job):
    with open(f"/proc/{os.getpid()}/stat") as stat:
        started = int(stat.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    line = {"pid": os.getpid(), "started": started, "app": AT, "running": time.clock_gettime(time.CLOCK_BOOTTIME),
            "cpu": time.process_time()}
    with open("begun", "a") as file:
        file.write(json.dumps(line) + "\\n")
    time.sleep(60)

@jobs.task
async def on_the_loop(job: Job) -> None:
    begin(job)

@jobs.task
def in_a_thread(job: Job) -> None:
    begin(job)
"""


def boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def url_of(kind: str, folder: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{folder / 'tenure.db'}"
    return shared_postgres().create_database() if kind == "postgres" else shared_valkey().url


def begun(folder: Path, number: int) -> dict[str, float]:
    """What the job wrote at this start."""
    deadline = boot() + PATIENCE_SECONDS
    while boot() < deadline:
        with suppress(FileNotFoundError):
            lines = (folder / "begun").read_text().splitlines()
            if len(lines) >= number:
                found: dict[str, float] = json.loads(lines[number - 1])
                return found
        time.sleep(0.001)
    raise SystemExit(
        f"start {number} of the job did not come in {PATIENCE_SECONDS:g} s\n{(folder / 'log').read_text()}"
    )


def one_kill(kind: str, task: str, source: Path, import_seconds: float) -> dict[str, float]:
    """The steps of one kill, in seconds after the signal."""
    with tempfile.TemporaryDirectory(prefix="tn") as name:
        folder = Path(name)
        (folder / "respawned.py").write_text(APP)
        url = url_of(kind, folder)
        space = f"r{new_id()[-8:]}"
        store = open_store(load({"url": url, "namespace": space}))
        store.migrate()
        store.open()
        job = Draft(id=new_id(), task=task, payload="{}")
        store.enqueue([job])
        places = {"TENURE_URL": url, "TENURE_NAMESPACE": space, "TENURE_RUNTIME_DIR": name}
        paths = {"PYTHONPATH": os.pathsep.join((str(source), name)), "IMPORT_SECONDS": str(import_seconds)}
        command = [sys.executable, "-m", "tenure.cli.supervise", json.dumps({"app": "respawned", "concurrency": 1})]
        with (folder / "log").open("wb") as log:
            supervisor = subprocess.Popen(
                command, cwd=folder, env={**os.environ, **places, **paths}, stdout=log, stderr=log
            )
        try:
            victim = int(begun(folder, 1)["pid"])
            time.sleep(FIRST_SPARE_SECONDS + 1.5)  # until the spare has loaded what it can
            at = boot()
            os.kill(victim, signal.SIGKILL)
            while (row := store.get(job.id)) is not None and row.crashes == 0:
                time.sleep(0.001)
            settled = boot()
            again = begun(folder, 2)
        finally:
            supervisor.kill()
            supervisor.wait()
            store.close()
        times = {step: again[step] - at for step in ("started", "app", "running")}
        return {"settled": settled - at, **times, "cpu": again["cpu"]}


def main() -> None:
    parser = ArgumentParser(prog="python -m bench.respawn")
    parser.add_argument("stores", nargs="+", choices=STORES)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--against", type=Path, help="the `src` of another tree, which takes turns with this one")
    parser.add_argument("--import-seconds", type=float, default=0.0, help="how long the app's own imports take")
    parser.add_argument("--thread", action="store_true", help="the handler is a plain function")
    asked = parser.parse_args()
    task = "in_a_thread" if asked.thread else "on_the_loop"
    sources = {"this": SOURCE} | ({"other": asked.against.resolve()} if asked.against else {})
    for kind in asked.stores:
        seen: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
        for _ in range(asked.kills):
            for name, source in sources.items():
                seen[name].append(one_kill(kind, task, source, asked.import_seconds))
        for name, kills in seen.items():
            middle = {step: statistics.median(kill[step] for kill in kills) * 1000 for step in STEPS}
            said = ", ".join(f"{step} {value:.0f}" for step, value in middle.items())
            most = max(kill["running"] for kill in kills) * 1000
            print(f"{kind}, {task}, {name}: {said}; running at most {most:.0f} ms (n={len(kills)})", flush=True)


if __name__ == "__main__":
    main()
