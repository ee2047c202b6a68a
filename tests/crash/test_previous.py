"""The release before this code beside it on one store: what its workers, callers and commands do with waiting jobs.

What they do with all others under faults is in tests/chaos/test_upgrade.py. docs/deploying.md has the table.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from previous import NO_HISTORY, has_history, previous
from tenure.config import load
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.tasks.handle import JobHandle

from . import shop
from .harness import Site, Supervised

LEASE = "12s"  # a worker that is held up has it all the while: an older one must not be gone for a moment
COMMAND = "import sys; from tenure.cli.main import run; run()"
ASK = """
import json, sys
import shop
from tenure.errors import TenureError

def told(call):
    try:
        return str(call())
    except Exception as error:
        return [type(error).__name__, str(error)]

waiting, other = (shop.jobs.handle(id) for id in sys.argv[1:])
shop.jobs.__enter__()
print(json.dumps({
    "enqueue": told(lambda: shop.effect.using(unique="one").enqueue(0.0).id),
    "status": told(waiting.status),
    "result": told(lambda: waiting.result(timeout="5s")),
    "cancel": told(waiting.cancel),
    "status of another": told(lambda: other.status().state),
    "cancel of another": told(other.cancel),
}))
shop.jobs.__exit__(None, None, None)
"""


pytestmark = pytest.mark.skipif(not has_history(), reason=NO_HISTORY)


@pytest.fixture(autouse=True)
def knows_no_waiting() -> None:
    if (previous().tests.parent / "src/tenure/ports/waiting.py").exists():
        pytest.skip("the release before knows waiting jobs: delete this file, and what docs/deploying.md says of it")


def older_env(site: Site) -> dict[str, str]:
    return {"PYTHONPATH": str(previous().tests / "crash"), "TENURE_RELEASE": previous().name}


def older(site: Site, **order: Any) -> Supervised:
    """A supervisor of the release before, with its shop."""
    supervisor = site.supervisor(python=previous().python, env=older_env(site), lease=LEASE, **order)
    site.until(lambda: {view.identity.pid for view in site.store.workers()} & {*supervisor.workers()}, "its worker")
    return supervisor


def run_older(site: Site, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [previous().python, "-c", program, *words],
        env=site.env(LEASE, {}, older_env(site)),
        cwd=site.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def step(*after: JobHandle[Any], **options: Any) -> JobHandle[int]:
    return shop.effect.using(after=[*after], **options).enqueue(0.0)


def verdict(site: Site, job: JobHandle[Any]) -> str:
    explained = Admin(site.store, PollNotifier(), load(environ={})).jobs.explain(str(job.id))
    return explained.verdict


@pytest.mark.everywhere
def test_while_an_older_worker_lives_no_waiting_job_is_admitted_and_all_others_run(site: Site) -> None:
    before = older(site)
    today = site.supervisor(lease=LEASE)
    first = shop.effect.enqueue(0.0)
    child = step(first)

    site.ended(first)
    held = "nothing that waits goes on while a worker of an older release lives"
    site.until(lambda: held in verdict(site, child), "the verdict")
    views = site.ended(*shop.jobs.enqueue_many([shop.effect.bind(0.0) for _ in range(20)]))
    assert {(view.state, view.attempt) for view in views} == {("completed", 1)}
    assert site.job(child).state == "waiting"

    assert before.stop() == 0
    (view,) = site.ended(child)
    assert (view.state, view.attempt, view.failures, view.crashes_total) == ("completed", 1, 0, 0)
    assert site.seen(child, "begin").at > site.seen(first, "end").at
    assert today.stop() == 0


@pytest.mark.everywhere
def test_what_an_older_worker_ended_lets_a_waiting_job_go_on_once_today_s_code_runs(site: Site) -> None:
    first = shop.effect.enqueue(0.0)
    child = step(first)
    before = older(site)
    site.ended(first)
    assert before.stop() == 0
    assert site.job(child).state == "waiting"

    site.supervisor(lease=LEASE)

    (view,) = site.ended(child)
    assert (view.state, view.attempt) == ("completed", 1)


@pytest.mark.everywhere
def test_an_older_caller_fails_on_a_waiting_job_and_changes_nothing(site: Site) -> None:
    first, other = shop.effect.enqueue(0.0), shop.effect.using(delay="1h").enqueue(0.0)
    child = step(first, unique="one")

    run = run_older(site, ASK, str(child.id), str(other.id))

    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert {name for name, said in told.items() if isinstance(said, list)} == {"enqueue", "status", "result", "cancel"}
    assert told["status of another"] == "scheduled"
    assert site.job(other).state == "cancelled"
    assert site.job(child).state == "waiting"
    site.supervisor(lease=LEASE)
    assert [view.state for view in site.ended(first, child)] == ["completed", "completed"]


@pytest.mark.everywhere
def test_an_older_command_fails_on_a_list_with_a_waiting_job_and_shows_others(site: Site) -> None:
    first = shop.effect.using(delay="1h").enqueue(0.0)
    child = step(first)

    listed = run_older(site, COMMAND, "jobs", "list", "--json")
    scheduled = run_older(site, COMMAND, "jobs", "list", "--state", "scheduled", "--json")

    assert listed.returncode != 0
    assert "waiting" in listed.stderr
    assert str(first.id) in scheduled.stdout
    assert str(child.id) not in scheduled.stdout


@pytest.mark.everywhere
def test_after_flows_have_ended_an_older_release_replays_and_deletes_their_jobs(site: Site) -> None:
    today = site.supervisor(lease=LEASE)
    first = shop.effect.enqueue(0.0)
    child = step(first)
    site.ended(first, child)
    assert today.stop() == 0

    before = older(site)
    assert run_older(site, COMMAND, "jobs", "replay", str(first.id)).returncode == 0
    site.until(lambda: site.job(first).attempt == 2 and site.job(first).state == "completed", "its second end")
    assert run_older(site, COMMAND, "jobs", "delete", str(child.id), "--yes").returncode == 0
    assert site.store.get(str(child.id)) is None
    assert before.stop() == 0
