"""examples/fastapi_sqlalchemy, flask_app, litestar_app: the real apps, served as their READMEs say."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from docs.test_pages import ROOT, _environment
from servers import free_port, shared_postgres
from waiting import until

pytestmark = pytest.mark.thorough

EXAMPLES = ROOT / "examples"
APPS = {"fastapi_sqlalchemy": "shop", "flask_app": "shop", "litestar_app": "report"}
TENURE = [sys.executable, "-c", "from tenure.cli.main import run; run()"]


@contextmanager
def running(command: list[str], folder: Path, environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Until the end, which SIGINT brings about, as Ctrl-C does, and no harder way is needed."""
    process = subprocess.Popen(command, cwd=folder, env=environ, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[httpx.Client]:
    """The example of this name as a server on the loopback, with its worker."""
    name, module = request.param, APPS[request.param]
    folder = shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=shutil.ignore_patterns("*.db*", "__pycache__"))
    environ = _environment(folder)
    port = free_port()
    serve = ["-m", "uvicorn", f"{module}:app", "--port", str(port), "--timeout-graceful-shutdown", "5"]
    with ExitStack() as opened:
        if name == "fastapi_sqlalchemy":
            server = shared_postgres()
            environ["DATABASE_URL"] = server.create_database()
            opened.callback(server.drop_database, environ["DATABASE_URL"])
            migrate = [*TENURE, "migrate", "--app", module]
            subprocess.run(migrate, cwd=folder, env=environ, check=True, timeout=60)
        if name == "flask_app":
            serve = ["-m", "flask", "--app", module, "run", "--port", str(port)]
            opened.enter_context(running([*TENURE, "worker", module], folder, environ))
        process = opened.enter_context(running([sys.executable, *serve], folder, environ))
        client = opened.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30))

        def answers() -> bool:
            assert process.poll() is None, "the server has ended"
            try:
                return client.get("/").status_code == 404
            except httpx.TransportError:
                return False

        until(answers, "the server")
        yield client


def example(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("served", [name], indirect=True)


def counted(client: httpx.Client, path: str) -> list[str]:
    """What the event stream of a job says, until it ends by itself."""
    with client.stream("GET", path) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(answer.iter_lines())


@example("fastapi_sqlalchemy")
def test_an_order_and_its_job_commit_together_or_not_at_all(served: httpx.Client) -> None:
    bought = served.post("/orders/lamp").json()

    said = [
        json.loads(line.removeprefix("data: ")) for line in counted(served, f"/jobs/{bought['job']}/events") if line
    ]

    assert said[-1] == {"state": "completed", "progress": 1.0}
    assert served.get(f"/orders/{bought['order']}").json() == {"item": "lamp", "state": "packed"}

    assert served.post("/orders/unicorn").status_code == 409
    refused = int(bought["order"]) + 1  # the sequence has given it away
    assert served.get(f"/orders/{refused}").status_code == 404
    again = served.post("/orders/chair").json()
    assert int(again["order"]) == refused + 1
    assert served.get("/jobs/01a20563-b655-7000-a3c9-4604273b155f/events").status_code == 404
    counted(served, f"/jobs/{again['job']}/events")


@example("flask_app")
def test_a_worker_beside_flask_pays_and_a_refused_order_has_no_job(served: httpx.Client, tmp_path: Path) -> None:
    assert served.post("/orders/8/-1").status_code == 422
    answer = served.post("/orders/7/995")
    assert answer.status_code == 202

    status = answer.json()["status"]
    paid = until(lambda: (found := served.get(status).json())["state"] == "completed" and found, "the payment")

    assert paid == {"state": "completed", "error": None, "result": "order 7: 995 cents are paid"}
    assert served.get(status.replace("0", "1")).status_code == 404
    folder = tmp_path / "flask_app"
    listed = subprocess.check_output([*TENURE, "jobs", "list", "--json"], cwd=folder, env=_environment(folder))
    jobs = json.loads(listed)["jobs"]
    assert sorted(job["task"] for job in jobs) == ["pay", "receipt"]  # nothing of order 8


@example("litestar_app")
def test_a_report_is_followed_to_its_end_on_the_app_s_own_loop(served: httpx.Client) -> None:
    asked = served.post("/reports/3")
    assert asked.status_code == 201

    said = counted(served, f"/reports/{asked.json()['job']}")

    assert [line for line in said if line.startswith("event")][-1] == "event: completed"
    assert [line for line in said if line.startswith("data")][-1] == "data: 100%"
    assert served.get("/reports/01a20563-b655-7000-a3c9-4604273b155f").status_code == 404


@pytest.mark.parametrize("name", APPS)
def test_an_example_is_short_and_its_readme_has_two_commands(name: str) -> None:
    program = (EXAMPLES / name / f"{APPS[name]}.py").read_text().splitlines()
    (block,) = re.findall(r"```sh\n(.*?)```", (EXAMPLES / name / "README.md").read_text(), re.DOTALL)

    assert len([line for line in program if line.strip()]) <= 80
    assert len(block.splitlines()) == 2
    assert all(shlex.split(line, comments=True) for line in block.splitlines())
