"""The log that a killed attempt and a former owner leave for a later analysis."""

from __future__ import annotations

import signal
from contextlib import nullcontext

import pytest

from tenure.tasks.handle import JobHandle
from tenure.worker.job_log import Log, decode

from . import shop
from .harness import Site, send


def logs(site: Site, job: JobHandle[None]) -> dict[int, Log]:
    """By attempt."""
    return {attempt: decode(text) for attempt, text in site.store.logs(str(job.id)).items()}


@pytest.mark.everyday
def test_the_lines_of_a_killed_attempt_stay_beside_those_of_the_next(site: Site) -> None:
    site.supervisor(lease="9s")  # a beat, which brings the memory, comes soon, and one that is late costs no attempt
    job = shop.talk.enqueue()

    victim = site.seen(job, "begin").pid
    site.until(lambda: logs(site, job), "lines of a job that still runs")
    memory = site.until(lambda: site.worker(job).memory, "the memory of its worker")
    send(victim, signal.SIGKILL)
    site.seen(job, "begin", attempt=2)
    site.go()

    (view,) = site.ended(job)
    assert (view.state, view.attempt) == ("completed", 2)
    assert memory > 10 << 20
    first, second = logs(site, job)[1], logs(site, job)[2]
    assert [line.text for line in first.lines] == [f"line {first.dropped + n + 1}" for n in range(len(first.lines))]
    assert (second.lines[-1].level, second.lines[-1].text) == ("warning", "told")
    assert first.lines[0].at < second.lines[-1].at


def test_the_refused_outcome_of_a_former_owner_is_kept_with_its_attempt(site: Site) -> None:
    site.supervisor(lease="4m")  # its supervisor must not learn that it is dead, and end it, before it has written
    job = shop.talk.enqueue()
    worker = site.seen(job, "begin").pid
    site.until(lambda: len(logs(site, job).get(1, Log()).lines) > 50, "a worker that has long since begun")
    owner = site.worker(job).identity.id

    # So that it is not stopped in the middle of a write, holding a file's one lock.
    with site.store.transaction() if site.store.capabilities.transactions else nullcontext():
        send(worker, signal.SIGSTOP)
    site.store.declare_dead([owner])
    site.store.rescue()
    site.go()
    send(worker, signal.SIGCONT)
    site.until(lambda: "refused" in site.attempts(job)[0].evidence, "what its outcome was told")

    (crashed,) = site.attempts(job)
    assert (crashed.attempt, crashed.worker_id, crashed.outcome) == (1, owner, "crashed")
    assert crashed.evidence["refused"].startswith("completed refused: "), crashed.evidence


@pytest.mark.parametrize("wanted", ["yes", "no"])
def test_a_worker_says_which_jobs_it_has_completed_if_that_is_wanted(site: Site, wanted: str) -> None:
    """A line for each job costs about as much as the job, so it is not the default."""
    supervisor = site.supervisor(env={"TENURE_LOG_JOBS": "yes"} if wanted == "yes" else None)
    job = shop.effect.enqueue(0.0)
    site.ended(job)

    assert supervisor.stop() == 0
    said = f"effect {job.id} has completed, attempt 1" in supervisor.log()
    assert said == (wanted == "yes")
