"""Each alert rule, in a real Prometheus: it fires for its own trouble, and for no other."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from prometheus import installed, prometheus
from tenure.operations.sinks import KINDS
from unit.test_ops import RULES
from waiting import until

MINUTES = 120
Course = Callable[[int], float | None]  #: the value at a minute; None: there is none
Series = Mapping[str, Course]


def steady(value: float) -> Course:
    return lambda minute: value


def rising(a_minute: float) -> Course:
    return lambda minute: a_minute * minute


def late(value: float) -> Course:
    """A series that appears in the last half hour, with this value."""
    return lambda minute: value if minute > MINUTES - 30 else None


WELL: Series = {
    "tenure_build_info{}": steady(1),
    "tenure_store_up{}": steady(1),
    "tenure_notifier_up{}": steady(1),
    "tenure_workers{}": steady(2),
    "tenure_asks{}": lambda minute: 300 * (minute % 2),
    'tenure_jobs{state="dead"}': steady(4),
    'tenure_queue_jobs{queue="default",state="queued"}': steady(50),
    'tenure_queue_oldest_queued_seconds{queue="default"}': steady(20),
    'tenure_queue_paused{queue="default"}': steady(0),
    'tenure_outcomes_total{task="t",outcome="completed"}': rising(50),
    'tenure_outcomes_total{task="t",outcome="failed"}': rising(2),
    'tenure_duty_lag_seconds{duty="prune"}': steady(2),
    'tenure_store_seconds_bucket{verb="renew",le="5.0"}': rising(6),
    'tenure_store_seconds_bucket{verb="renew",le="10.0"}': rising(6),
    'tenure_store_seconds_bucket{verb="renew",le="+Inf"}': rising(6),
    "tenure_worker_deaths_total{}": steady(3),
    "tenure_stalls_total{}": steady(3),
    'tenure_rescues_total{cause="crash"}': rising(1),
    'tenure_rescues_total{cause="host"}': steady(1),
    'tenure_refused_writes_total{task="t"}': steady(1),
} | {f'tenure_incidents{{kind="{kind}"}}': steady(0) for kind in KINDS}

QUEUED_LONG = {'tenure_queue_oldest_queued_seconds{queue="default"}': steady(700)}


def incident(kind: str) -> Series:
    return {f'tenure_incidents{{kind="{kind}"}}': steady(1)}


#: What differs from WELL, by the rule that must fire then, or, for troubles without a rule, by their own names.
SCENES: Mapping[str, Series] = {
    "well": {},
    "paused on purpose": QUEUED_LONG | {'tenure_queue_paused{queue="default"}': steady(1)},
    "TenureNotScraped": {name: (lambda minute: 1.0 if minute < MINUTES - 30 else None) for name in WELL},
    "TenureStoreAway": {"tenure_store_up{}": steady(0)},
    "TenureStoreSlow": {'tenure_store_seconds_bucket{verb="renew",le="5.0"}': rising(5)},
    "TenureNoWorker": incident("no-worker"),
    "TenureNoWorker, seen by a dashboard": {"tenure_workers{}": steady(0)},
    "TenureJobsLate": QUEUED_LONG,
    "TenureScheduleMissed": incident("scheduler-silent"),
    "TenureScheduleMissed, one": incident("overdue"),
    "TenureDeadLetters": {'tenure_jobs{state="dead"}': lambda minute: 4 + (minute > MINUTES - 20)},
    "TenureJobsFail": incident("arguments-misfit"),
    "TenureTaskFails": {'tenure_outcomes_total{task="t",outcome="failed"}': rising(60)},
    "TenureJobsStuck": incident("slots-held"),
    "TenureWaitsHeld": incident("admission-held"),
    "TenureAsksLeft": {"tenure_asks{}": steady(300)},
    "TenureDutyLate": {'tenure_duty_lag_seconds{duty="prune"}': steady(40)},
    "TenureWorkersDie": {"tenure_worker_deaths_total{}": rising(0.5)},
    "TenureHostLost": {'tenure_rescues_total{cause="host"}': lambda minute: 1 + (minute > MINUTES - 5)},
    "TenureRefusedWrites": {'tenure_refused_writes_total{task="t"}': late(1)},
    "TenureRefusedWrites, one more": {
        'tenure_refused_writes_total{task="t"}': lambda minute: 1 + (minute > MINUTES - 20)
    },
    "TenureLoopBlocked": {"tenure_stalls_total{}": rising(0.5)},
    "TenureNotifierAway": {"tenure_notifier_up{}": steady(0)},
}


def exposed(ends: int) -> str:
    """Two hours of all scenes, each a job of Prometheus, until this Unix time."""
    lines: list[str] = []
    for job, changes in SCENES.items():
        for name, course in {**WELL, **changes}.items():
            labelled = name.replace("{", f'{{job="{job}",instance="a",').replace(",}", "}")
            values = ((minute, course(minute)) for minute in range(MINUTES + 1))
            lines += [f"{labelled} {value} {ends - 60 * (MINUTES - at)}" for at, value in values if value is not None]
    return "\n".join([*lines, "# EOF\n"])


@installed
@pytest.mark.thorough
def test_each_rule_holds_for_its_own_trouble_and_for_no_other(tmp_path: Path) -> None:
    ends = int(time.time()) - 600
    (tmp_path / "text").write_text(exposed(ends))
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(tmp_path / "text"), str(tmp_path / "data")]
    subprocess.run(made, check=True, capture_output=True)

    with prometheus(tmp_path, {"scrape_configs": []}) as ask:
        until(lambda: ask("query", query="tenure_jobs", time=str(ends))["result"], "Prometheus to have the scenes")
        for rule in RULES:
            found = ask("query", query=rule["expr"], time=str(ends))["result"]
            jobs = {each["metric"].get("job") for each in found}
            assert jobs == {job for job in SCENES if job.partition(",")[0] == rule["alert"]}, rule["alert"]

    assert {job.partition(",")[0] for job in SCENES} - {rule["alert"] for rule in RULES} == {
        "well",
        "paused on purpose",
    }
