"""examples/nightly_report, trip, approval: their own tests pass, and what their READMEs say works with real workers."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from docs.test_pages import ROOT, _environment, blocks, tenure_command
from docs.test_web_examples import TENURE, running
from servers import free_port
from waiting import until

EXAMPLES = ROOT / "examples"
PROGRAMS = {"nightly_report": "report", "trip": "trip", "approval": "approval"}


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the example of this name."""
    return shutil.copytree(
        EXAMPLES / request.param, tmp_path / request.param, ignore=shutil.ignore_patterns("*.db*", "__pycache__")
    )


@pytest.fixture
def served(folder: Path) -> Iterator[Path]:
    """The example with its worker."""
    with running([*TENURE, "worker", PROGRAMS[folder.name], "-c", "20"], folder, _environment(folder)):
        yield folder


def example(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("folder", names, indirect=True)


def said(folder: Path, *words: str) -> str:
    answer = tenure_command(folder, *words)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def asked(folder: Path, *words: str) -> Any:
    return json.loads(said(folder, *words, "--json"))


@example(*PROGRAMS)
def test_its_own_tests_pass(folder: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)],
        cwd=folder,
        env=_environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert re.search(r"^\d+ passed", run.stdout, re.MULTILINE), run.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_is_short_and_its_readme_has_two_commands(name: str) -> None:
    program = (EXAMPLES / name / f"{PROGRAMS[name]}.py").read_text().splitlines()
    (block,) = blocks((EXAMPLES / name / "README.md").read_text(), "sh")

    assert len([line for line in program if line.strip()]) <= 80
    assert len(block.splitlines()) == 2
    assert all(shlex.split(line, comments=True) for line in block.splitlines())


@pytest.mark.parametrize("name", PROGRAMS)
def test_its_page_names_its_test(name: str) -> None:
    assert f"pytest test_{PROGRAMS[name]}.py" in (EXAMPLES / name / "README.md").read_text()


@pytest.mark.thorough
@example("nightly_report")
def test_a_triggered_report_is_one_run_of_its_schedule_and_one_flow(served: Path) -> None:
    (name,) = re.findall(r"tenure schedules trigger (\S+)`", (EXAMPLES / "nightly_report" / "README.md").read_text())
    until(lambda: name in tenure_command(served, "schedules", "list").stdout, "the schedule")
    said(served, "schedules", "trigger", name)

    def flow() -> Any:
        found = asked(served, "flows", "list")["flows"]
        return found[0] if found and found[0]["state"] == "completed" else None

    found = until(flow, "the flow", 60)
    assert found["total"] == 502
    steps = asked(served, "flows", "show", found["id"])["steps"]
    assert sorted((step["task"], step["total"]) for step in steps if not step["outside"]) == [
        ("combine", 1),
        ("sales", 500),
        ("send", 1),
    ]

    def runs() -> Any:
        ticks = asked(served, "schedules", "history", name)
        return ticks if ticks and ticks[0]["status"] == "success" else None

    assert len(until(runs, "the run", 60)) == 1


@pytest.mark.thorough
@example("trip")
def test_a_trip_to_the_moon_is_not_booked_in_part(served: Path) -> None:
    readme = (EXAMPLES / "trip" / "README.md").read_text()
    (line,) = re.findall(r"`(tenure enqueue .+?)`", readme)
    words = shlex.split(line)[1:]

    assert len(json.loads(said(served, *words))) == 3
    moon = tenure_command(served, *(word.replace('"car"', '"car to the moon"') for word in words))

    assert moon.returncode != 0
    assert "not booked: trip.SoldOut: car to the moon" in moon.stdout + moon.stderr
    cancelled = asked(served, "jobs", "list", "task=cancel")["jobs"]
    assert [job["state"] for job in cancelled] == ["completed"] * 3


@pytest.mark.thorough
@example("approval")
def test_an_order_is_approved_by_a_command_and_by_the_api(served: Path) -> None:
    readme = (EXAMPLES / "approval" / "README.md").read_text()
    (enqueue,) = re.findall(r"`(tenure enqueue .+?)`", readme)
    (send,) = re.findall(r"`(tenure signals send .+?)`", readme)
    (curl,) = re.findall(r"`(curl --json .+?)`", readme)
    port = free_port()

    def waits(job: str) -> bool:
        return bool(asked(served, "jobs", "show", job)["job"]["state"] == "waiting")

    def enqueued(number: int) -> str:
        job = str(asked(served, *shlex.split(enqueue.replace(":=1", f":={number}"))[1:])["id"])
        until(lambda: waits(job), "the order to wait")
        assert "the signal 'decision'" in said(served, "jobs", "explain", job)
        return job

    def ended(job: str) -> str:
        until(lambda: not waits(job), "the decision")
        return str(until(lambda: asked(served, "jobs", "show", job)["job"]["result"], "the end"))

    first = enqueued(1)
    unfit = tenure_command(served, "signals", "send", first, "decision", '"yes"', "--app", "approval")
    assert unfit.returncode != 0 and "decision" in unfit.stderr
    said(served, *shlex.split(send.replace("ID", first))[1:])
    assert "order 1 is sent, as ada has decided" in ended(first)

    second = enqueued(2)
    with ExitStack() as opened:
        listen = f"127.0.0.1:{port}"
        dashboard = [*TENURE, "dashboard", "approval", "--listen", listen]
        opened.enter_context(running(dashboard, served, _environment(served)))
        client = opened.enter_context(httpx.Client(base_url=f"http://{listen}", timeout=30))

        def answers() -> bool:
            try:
                return client.get("/healthz").is_success
            except httpx.TransportError:
                return False

        until(answers, "the dashboard")
        _, _, body, url = shlex.split(curl)
        path = url.replace("http://127.0.0.1:3000", "").replace("ID", second)
        assert client.post(path, json={"value": "yes"}).status_code == 422
        assert client.post(path, json=json.loads(body)).status_code == 200
        assert client.post(path, json=json.loads(body)).status_code == 409
    assert "order 2 is sent, as ada has decided" in ended(second)
