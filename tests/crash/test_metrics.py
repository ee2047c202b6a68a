"""The metrics of real processes: what a scrape finds after work, after a kill, and while workers can't answer."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tenure.core.lifecycle import Released
from tenure.maintenance.maintenance import Maintenance
from tenure.maintenance.roster import Turn

from . import shop
from .harness import Site, Supervised, send

ANYWHERE = "127.0.0.1:0"


def base(site: Site, supervisor: Supervised) -> str:
    """The address that it logs."""
    found = site.until(lambda: re.search(r"metrics at (http://\S+)/metrics", supervisor.log()), "the address")
    return found[1]


def scrape(url: str) -> dict[str, float]:
    """`name{label="value",…}` → value."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        exposed = answer.read().decode()
    return {
        f"{sample.name}{{{','.join(f'{label}={each}' for label, each in sorted(sample.labels.items()))}}}": sample.value
        for family in text_string_to_metric_families(exposed)
        for sample in family.samples
    }


def rescues(url: str) -> dict[str, float]:
    """How often each cause was counted, without those at zero."""
    found = re.compile(r"tenure_rescues_total\{cause=(\w+)}")
    return {said[1]: number for key, number in scrape(url).items() if number and (said := found.fullmatch(key))}


def health(url: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_fifty_jobs_are_counted_from_claim_to_outcome(site: Site) -> None:
    jobs = [shop.effect.enqueue(0.0) for _ in range(50)]
    supervisor = site.supervisor(metrics_listen=ANYWHERE, workers=2)
    url = base(site, supervisor)
    site.ended(*jobs)

    completed = "tenure_outcomes_total{outcome=completed,task=effect}"
    site.until(lambda: scrape(url).get(completed) == 50, "the counts of the workers")
    site.until(lambda: scrape(url).get("tenure_workers{}") == 2, "the second worker, which may come too late for any")
    # What the store holds is read at most once a second, and a new worker is renewed at the next beat.
    site.until(lambda: scrape(url).get("tenure_jobs{state=completed}") == 50, "all of them to be seen in the store")
    site.until(lambda: scrape(url).get("tenure_store_seconds_count{verb=renew}"), "a renewal to be counted")

    found = scrape(url)
    assert found["tenure_claims_total{queue=default}"] == 50
    assert found["tenure_attempt_seconds_count{task=effect}"] == 50
    assert found["tenure_jobs{state=completed}"] == 50
    assert found["tenure_queue_jobs{queue=default,state=queued}"] == 0
    assert found["tenure_slots{state=busy}"] + found["tenure_slots{state=free}"] == 10
    assert found["tenure_store_seconds_count{verb=claim}"] > 0
    assert found["tenure_store_seconds_count{verb=renew}"] > 0
    assert found["tenure_store_up{}"] == found["tenure_notifier_up{}"] == 1
    status, body = health(url)
    assert (status, body["status"], body["store"]) == (200, "ok", site.url)
    assert supervisor.stop() == 0


@pytest.mark.needs("transactions")
def test_an_attempt_that_finished_in_its_own_transaction_is_counted_as_completed(site: Site) -> None:
    url = base(site, site.supervisor(metrics_listen=ANYWHERE))
    jobs = [shop.hand_in.enqueue("raise"), shop.hand_in.enqueue("roll back")]
    site.ended(*jobs)

    site.until(lambda: scrape(url).get("tenure_outcomes_total{outcome=completed,task=hand_in}") == 2, "both")
    assert scrape(url)["tenure_outcomes_total{outcome=failed,task=hand_in}"] == 1
    assert scrape(url)["tenure_attempt_seconds_count{task=hand_in}"] == 3


@pytest.mark.everyday
def test_a_killed_worker_is_a_death_and_its_job_a_rescue_after_a_crash(site: Site) -> None:
    url = base(site, site.supervisor(metrics_listen=ANYWHERE))
    job = shop.climb.enqueue()
    send(site.seen(job, "half").pid, signal.SIGKILL)
    site.ended(job)

    completed = "tenure_outcomes_total{outcome=completed,task=climb}"
    site.until(lambda: scrape(url).get(completed) == 1, "the count of its second attempt")

    found = scrape(url)
    assert found["tenure_worker_deaths_total{}"] == 1
    assert found["tenure_outcomes_total{outcome=crashed,task=climb}"] == 1
    assert rescues(url) == {"crash": 1}
    assert found["tenure_workers{}"] >= 1


@pytest.mark.everywhere
@pytest.mark.parametrize(
    ("task", "outcome"), [("hang", "crashed"), ("hang_in_thread", "crashed"), ("deaf_in_thread", "failed")]
)
def test_code_that_hangs_is_a_stale_rescue_whether_it_stops_when_asked_or_its_process_is_killed(
    site: Site, task: str, outcome: str
) -> None:
    supervisor = site.supervisor(metrics_listen=ANYWHERE, grace="500ms", faults={"stop_seconds": 0.5})
    url = base(site, supervisor)
    job = getattr(shop, task).enqueue()

    assert site.ended(job)[0].state == "dead"

    site.until(lambda: rescues(url), "the rescue to be counted")
    assert rescues(url) == {"stale": 1}
    assert scrape(url)[f"tenure_outcomes_total{{outcome={outcome},task={task}}}"] == 1
    assert f"{task} {job.id} was rescued from" in supervisor.log()


@pytest.mark.everywhere
def test_a_job_that_hangs_where_no_process_can_be_killed_is_a_stale_rescue_by_another_supervisor(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Maintenance, "rescue", lambda self, limit: Turn())  # this process does not do it itself
    monkeypatch.setenv("TENURE_TEST_LEDGER", str(site.ledger))
    shop._ledger.cache_clear()
    site.configure(lease="6s", grace="1s")  # a process that is held up renews in time all the same
    with shop.jobs.worker():
        job = shop.linger.enqueue()
        site.seen(job, "begin")
        supervisor = site.supervisor(metrics_listen=ANYWHERE, lease="6s")
        url = base(site, supervisor)

        assert site.ended(job)[0].state == "dead"

        site.until(lambda: rescues(url), "the rescue to be counted")
        site.go()
    assert rescues(url) == {"stale": 1}
    assert "it hung, and its old code may still run" in supervisor.log()


@pytest.mark.timeout(300)
@pytest.mark.everywhere
@pytest.mark.needs("server")
def test_the_jobs_of_a_lost_host_are_rescues_by_its_lease(site: Site) -> None:
    lease = "9s"  # shorter, and a far host that is held up hands its jobs back before it is lost
    far = site.supervisor(lease=lease, env={"TENURE_HOST_ID": "far"})
    jobs = [shop.wait.enqueue() for _ in range(2)]
    for job in jobs:
        site.seen(job, "begin")
    url = base(site, site.supervisor(lease=lease, metrics_listen=ANYWHERE, env={"TENURE_HOST_ID": "near"}))

    for pid in [far.pid, *far.workers()]:
        send(pid, signal.SIGKILL)

    site.until(lambda: sum(rescues(url).values()) == len(jobs), "both to be rescued", seconds=90)
    assert rescues(url) == {"host": 2}


def test_the_refused_write_of_a_former_owner_is_counted(site: Site) -> None:
    url = base(site, site.supervisor(metrics_listen=ANYWHERE, lease="4m"))  # no beat of its supervisor ends it before
    job = shop.block_the_loop.enqueue()  # its worker learns of nothing before the job has ended
    site.seen(job, "begin")

    site.store.settle(site.worker(job).identity.id, {}, Released("taken away"))
    site.go()

    site.until(lambda: scrape(url).get("tenure_refused_writes_total{task=block_the_loop}") == 1, "the refused outcome")


def test_workers_that_cannot_answer_hold_no_scrape_up(site: Site) -> None:
    supervisor = site.supervisor(metrics_listen=ANYWHERE)
    url = base(site, supervisor)
    job = shop.wait.enqueue()
    site.seen(job, "begin")
    site.until(lambda: scrape(url).get("tenure_slots{state=busy}") == 1, "the busy slot to be told")

    (worker,) = supervisor.workers()
    send(worker, signal.SIGSTOP)

    assert scrape(url)["tenure_queue_jobs{queue=default,state=processing}"] == 1
    assert health(url)[0] == 200
    send(worker, signal.SIGCONT)


def test_without_a_ready_worker_it_is_not_well_and_says_why(site: Site) -> None:
    site.go()
    supervisor = site.supervisor(metrics_listen=ANYWHERE, faults={"start_when_told": True})
    url = base(site, supervisor)
    site.until(lambda: health(url)[0] == 200, "the first worker to be ready")

    site.hold()  # the next one is not ready before the probe has failed
    (worker,) = supervisor.workers()
    send(worker, signal.SIGKILL)

    unwell = site.until(lambda: found if (found := health(url))[0] == 503 else None, "the probe to fail")
    assert unwell[1]["reason"] == "no worker is ready"
    site.go()
    site.until(lambda: health(url)[0] == 200, "the next worker to be ready")


@pytest.mark.needs("file")  # a transaction holds its one write lock
def test_a_store_that_does_not_answer_is_told_without_being_asked(site: Site) -> None:
    url = base(site, site.supervisor(metrics_listen=ANYWHERE, lease="3s"))
    site.until(lambda: health(url)[0] == 200, "the first worker to be ready")

    with site.store.transaction() as tx:
        tx.execute("UPDATE workers SET note = note")
        site.until(lambda: "no renewal has reached the store" in str(health(url)), "the probe to fail")

    site.until(lambda: health(url)[0] == 200, "the store to be back")
