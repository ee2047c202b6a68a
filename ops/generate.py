"""Writes `ops/grafana.json` and `ops/alerts.yml` from the table of metrics; with `--check` only says what is stale.

    python ops/generate.py          # `make docs` does it, too

A panel or a rule names its metrics as `tenure.operations.metrics.METRICS` does. Descriptions, labels and the shape of
most queries come from there; written here is what a reader should conclude, and when it is a problem.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from tenure.operations.metrics import METRICS

QUANTILES = (0.5, 0.95, 0.99)
WIDTH, HEIGHT = 24, 8  #: of Grafana's grid
TITLE = "Tenure"


# ── Panels ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: one metric, folded over the instances that report it.

    `fold`: of a gauge. What the store holds is the same on all instances (`max`), slots add up (`sum`), and of what
    is up the worst counts (`min`). `per`: of a counter, its rate, or for what is rare its number in each interval.
    """

    metric: str
    title: str
    reading: str
    unit: str = "short"
    fold: Literal["max", "sum", "min", "count"] = "max"
    per: Literal["second", "interval"] = "second"
    stat: bool = False
    where: str = ""  #: another matcher
    total: bool = False  #: over all its labels
    by: tuple[str, ...] | None = None  #: the labels to keep; None: all of the metric's

    def queries(self) -> list[tuple[str, str]]:
        """Each query with its legend."""
        metric = METRICS[self.metric]
        labels = metric.labels if self.by is None else self.by
        legend = " ".join(f"{{{{{label}}}}}" for label in labels) or self.title
        chosen = "{" + ",".join(['job="$job"', *([self.where] if self.where else [])]) + "}"
        kept = f" by ({', '.join(labels)})" if labels else ""
        if metric.kind == "histogram":
            within = f"sum by ({', '.join(('le', *labels))}) (rate({metric.name}_bucket{chosen}[$__rate_interval]))"
            return [(f"histogram_quantile({q}, {within})", f"p{q * 100:.0f} {legend}") for q in QUANTILES]
        if metric.kind == "counter":
            function = "rate" if self.per == "second" else "increase"
            return [(f"sum{kept} ({function}({metric.name}{chosen}[$__rate_interval]))", legend)]
        folded = f"{self.fold}{kept} ({metric.name}{chosen})"
        return [(f"sum ({folded})", self.title)] if self.total else [(folded, legend)]


ROWS: dict[str, tuple[Panel, ...]] = {
    "Now": (
        Panel(
            "tenure_store_up",
            "Store available",
            "0: at least one supervisor gets no answer. Workers keep their jobs until their leases end.",
            fold="min",
            stat=True,
        ),
        Panel("tenure_workers", "Live workers", "0 while jobs are queued means that nothing runs.", stat=True),
        Panel(
            "tenure_jobs",
            "Running",
            "A worker owns each of them.",
            stat=True,
            where='state="processing"',
        ),
        Panel(
            "tenure_jobs",
            "Dead letters",
            "They are kept until an operator decides: tenure dead list --by-error.",
            stat=True,
            where='state="dead"',
        ),
        Panel("tenure_incidents", "Open incidents", "What each says: tenure check.", stat=True, total=True),
        Panel(
            "tenure_build_info", "Supervisors by version", "More than one version: a deploy.", fold="count", stat=True
        ),
    ),
    "Queues": (
        Panel(
            "tenure_queue_jobs",
            "Jobs by queue and state",
            "A queued line that only rises has too few workers; a waiting or scheduled one is no backlog.",
        ),
        Panel(
            "tenure_queue_oldest_queued_seconds",
            "Oldest queued job",
            "This is what users wait for. A pause and a missing worker show here first.",
            unit="s",
        ),
        Panel("tenure_queue_paused", "Paused queues", "Jobs of a paused queue wait until somebody resumes it."),
        Panel("tenure_jobs", "Jobs by state", "Ended ones are pruned after their time; the dead ones are not."),
    ),
    "Work": (
        Panel("tenure_claims_total", "Claims", "What the workers take from each queue.", unit="ops"),
        Panel(
            "tenure_outcomes_total",
            "Outcomes",
            "Failed and crashed are charged to the job; released, snoozed and suspended are not.",
            unit="ops",
        ),
        Panel(
            "tenure_attempt_seconds",
            "Time of an attempt",
            "Its code alone, without the wait in the queue. The highest bucket ends at an hour.",
            unit="s",
        ),
        Panel(
            "tenure_slots",
            "Slots",
            "All busy for long, with jobs queued: more workers, or a higher concurrency.",
            fold="sum",
        ),
    ),
    "Jobs that wait for others": (
        Panel(
            "tenure_asks",
            "Asks left",
            "0 except for moments. A line that stays up: supervisors don't keep up with them.",
        ),
        Panel("tenure_flows_open", "Open flows", "Flows that never end hold their jobs: tenure flows list."),
    ),
    "Limits": (
        Panel(
            "tenure_limit_waiting",
            "Waiting, by limit",
            "A backlog by design, until its line only rises: then the limit is too low for what comes in.",
        ),
        Panel("tenure_limit_places_held", "Places held, by limit", "A line at its top while jobs wait: it is used up."),
        Panel(
            "tenure_limit_keys",
            "Paused keys, by limit",
            "By a 429, or by an operator: tenure limits list says for how long and why.",
            where='state="paused"',
            by=("limit",),
        ),
        Panel("tenure_key_waiting", "Waiting, by key", "The twenty keys that are waited for most."),
        Panel(
            "tenure_key_oldest_waiting_seconds",
            "Oldest wait, by key",
            "What users of this key wait for: tenure limits show KEY names the jobs that have the places.",
            unit="s",
        ),
        Panel("tenure_key_places_held", "Places held, by key", "Of the keys in the panel next to this one."),
        Panel("tenure_key_places", "Places, by key", "As it is declared, or set by an operator."),
        Panel("tenure_key_paused", "Paused keys", "Of the twenty that are waited for most."),
    ),
    "Faults": (
        Panel("tenure_incidents", "Open incidents by kind", "The same problems as in tenure check and its alerts."),
        Panel(
            "tenure_rescues_total",
            "Rescues",
            "crash: a process died; host and queue: a whole machine or its supervisor did; stale: a job hung.",
            per="interval",
        ),
        Panel(
            "tenure_worker_deaths_total",
            "Deaths of workers",
            "How each ended: tenure workers list --dead.",
            per="interval",
            by=("instance",),
        ),
        Panel(
            "tenure_refused_writes_total",
            "Refused writes",
            "Each is an attempt that went on after it had lost its job: its effects may have happened twice.",
            per="interval",
        ),
        Panel(
            "tenure_stalls_total",
            "Blocked event loops",
            "Synchronous code in an async handler. The log has the line of code.",
            per="interval",
            by=("instance",),
        ),
    ),
    "Store and maintenance": (
        Panel(
            "tenure_store_seconds",
            "Time of a call of the store",
            "Whole batches. A renewal must be stored within two thirds of the lease.",
            unit="s",
        ),
        Panel(
            "tenure_store_up",
            "Store available, by instance",
            "One instance alone at 0: its network, not the store.",
            fold="min",
            by=("instance",),
        ),
        Panel(
            "tenure_notifier_up",
            "Notifier available, by instance",
            "0: its workers poll, so jobs start later. None is lost.",
            fold="min",
            by=("instance",),
        ),
        Panel(
            "tenure_duty_lag_seconds",
            "Lag of duties",
            "A second or two: a busy store. A line that rises: the duty fails, and the log says why.",
            unit="s",
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """Grafana's JSON model of the dashboard, for its 10th version and newer."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": _place(0, top, WIDTH, 1)})
        top += 1
        width, height = (WIDTH // len(row), 4) if row[0].stat else (WIDTH // 2, HEIGHT)
        for number, panel in enumerate(row):
            line, column = divmod(number, WIDTH // width)
            panels.append(_panel(panel, _place(column * width, top + line * height, width, height)))
        top += -(-len(row) * width // WIDTH) * height
    for number, each in enumerate(panels, 1):
        each["id"] = number
    return {
        "title": TITLE,
        "uid": "tenure",
        "description": "One store of Tenure: the Prometheus job that scrapes its supervisors.",
        "tags": ["tenure"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "schemaVersion": 38,
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"},
                {
                    "type": "query",
                    "name": "job",
                    "label": "Prometheus job",
                    "datasource": _DATASOURCE,
                    "query": {"query": f"label_values({{{_SCRAPED}}}, job)", "refId": "job"},
                    "refresh": 2,
                },
            ]
        },
        "panels": panels,
    }


_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
#: A dashboard has only the former; a supervisor whose store is unavailable has only the latter.
_SCRAPED = '__name__=~"tenure_jobs|tenure_build_info"'


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": f"{METRICS[panel.metric].help} {panel.reading}",
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _DATASOURCE, "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(panel.queries())
        ],
    }


# ── Rules ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert. `why`: the reason for its threshold and its time; `do`: where to look first."""

    name: str
    expr: str
    lasting: str
    severity: Literal["critical", "warning"]
    summary: str
    why: str
    do: str


def _of(*kinds: str) -> str:
    return f'max by (job, kind) (tenure_incidents{{kind=~"{"|".join(kinds)}"}}) > 0'


RULES = (
    Rule(
        "TenureNotScraped",
        "absent(tenure_build_info)\n"
        "or (group by (job) (tenure_build_info offset 1h) unless group by (job) (tenure_build_info))",
        "5m",
        "critical",
        "No supervisor {{ if $labels.job }}of {{ $labels.job }} {{ end }}reports metrics.",
        "Without one nothing runs, no schedule fires, and no incident is opened. A deploy replaces the last supervisor "
        "within five minutes. Leave this rule out where workers scale to zero.",
        "Is a tenure worker running, with --listen? Is it in Prometheus's targets?",
    ),
    Rule(
        "TenureStoreAway",
        "min by (job, instance) (tenure_store_up) == 0",
        "2m",
        "critical",
        "{{ $labels.instance }} gets no answer from its store.",
        "A restart or a failover of a server takes up to two minutes, and nothing is lost by it. After a lease (30 s) "
        "without a renewal the workers stop their jobs, which begin again later.",
        "tenure check; curl http://INSTANCE/healthz names the error.",
    ),
    Rule(
        "TenureStoreSlow",
        'histogram_quantile(0.99, sum by (job, le) (rate(tenure_store_seconds_bucket{verb="renew"}[10m]))) > 5',
        "10m",
        "warning",
        "One renewal in a hundred takes {{ $value | humanizeDuration }}.",
        "A renewal must be stored within 20 s, two thirds of the default lease; 5 s is a quarter of that. With a "
        "shorter TENURE_LEASE lower it.",
        "The panel 'Time of a call of the store'; then the store's own figures: locks, disk, memory.",
    ),
    Rule(
        "TenureNoWorker",
        'max by (job) (tenure_incidents{kind="no-worker"}) > 0\n'
        'or (sum by (job) (max by (job, queue) (tenure_queue_jobs{state="queued"})) > 0\n'
        "  and max by (job) (tenure_workers) == 0)",
        "3m",
        "critical",
        "Jobs of {{ $labels.job }} are due, and no live worker serves their queue or knows their task.",
        "The incident opens after two leases (a minute), which replacing a worker may take; the second half also holds "
        "if only a dashboard is left to be scraped. Three minutes let a deploy pass.",
        "tenure check names queue or task; tenure workers list, tenure queues list.",
    ),
    Rule(
        "TenureJobsLate",
        "max by (job, queue) (tenure_queue_oldest_queued_seconds) > 600\n"
        "unless max by (job, queue) (tenure_queue_paused) == 1",
        "5m",
        "critical",
        "The oldest job of queue {{ $labels.queue }} has been due for {{ $value | humanizeDuration }}.",
        "Ten minutes is also the default of TENURE_ALERT_QUEUE_AGE; five more tell a backlog from a burst. Set both to "
        "what the users of the queue accept.",
        "tenure queues list says when it will be empty; more workers, or a higher concurrency.",
    ),
    Rule(
        "TenureScheduleMissed",
        _of("scheduler-silent", "overdue", "late"),
        "1m",
        "critical",
        "A schedule should have run and has not ({{ $labels.kind }}).",
        "The incident itself has waited already: for the schedule's grace (5 min by default) and two leases.",
        "tenure schedules overdue",
    ),
    Rule(
        "TenureDeadLetters",
        f'max by (job) (delta(tenure_jobs{{state="dead"}}[1h])) > 0\nor {_of("dead-letters")}',
        "0m",
        "warning",
        "Jobs of {{ $labels.job }} have failed for good within the last hour.",
        "Each one is work that is not done unless an operator decides, so one is enough. The rule looks at the growth: "
        "old ones that are kept on purpose do not keep it firing.",
        "tenure dead list --by-error; tenure dead replay",
    ),
    Rule(
        "TenureJobsFail",
        _of("failures", "arguments-misfit", "key-missing", "value-missing"),
        "1m",
        "warning",
        "Runs of a schedule fail, or jobs fit no worker: its code, its keys, or its bucket ({{ $labels.kind }}).",
        "The incident itself has waited already: for two failed runs in a row, or a misfit for two leases.",
        "tenure check names task and error.",
    ),
    Rule(
        "TenureTaskFails",
        'sum by (job, task) (rate(tenure_outcomes_total{outcome=~"failed|crashed"}[15m]))\n'
        '  / sum by (job, task) (rate(tenure_outcomes_total{outcome=~"completed|failed|crashed"}[15m])) > 0.5\n'
        "and sum by (job, task) (increase(tenure_outcomes_total[15m])) > 10",
        "10m",
        "warning",
        "{{ $value | humanizePercentage }} of the attempts of {{ $labels.task }} fail.",
        "Retries repair single failures; when more than half of more than ten attempts fail, what the task depends on "
        "is broken. It warns before the budgets are spent and the dead letters come.",
        "tenure jobs list --task TASK; the log has each failure.",
    ),
    Rule(
        "TenureJobsStuck",
        _of("slots-held", "stuck-jobs", "too-long", "queue-paused", "limit-paused"),
        "5m",
        "warning",
        "Jobs run or wait for much longer than they should ({{ $labels.kind }}).",
        "The incidents have limits of their own (ten times a task's p95, TENURE_ALERT_QUEUE_AGE); five minutes let "
        "what was just resumed get through.",
        "tenure check; tenure jobs stack ID shows where the code of a running job is.",
    ),
    Rule(
        "TenureWaitsHeld",
        _of("admission-held", "flow-held", "limit-behind", "waits-long"),
        "5m",
        "warning",
        "Jobs that wait for others, for a signal or for a place do not go on ({{ $labels.kind }}).",
        "These waits last for hours or days by design; the incident opens only for those that can't end by themselves, "
        "or have passed TENURE_ALERT_WAIT_AGE.",
        "tenure jobs explain ID; tenure flows list; tenure limits list",
    ),
    Rule(
        "TenureWaitLost",
        _of("wait-lost"),
        "0m",
        "warning",
        "Jobs were found waiting for what had already happened, with no ask left for them.",
        "Each of them is a fault of Tenure, or of a program of an older release. New asks were stored for them, so "
        "they go on; the incident stays for a day.",
        "tenure check names them; report it, with the logs of the supervisors.",
    ),
    Rule(
        "TenureAsksLeft",
        "min by (job) (min_over_time(tenure_asks[10m])) > 200",
        "5m",
        "warning",
        "{{ $value }} looks at waiting jobs are left to do.",
        "A supervisor answers up to 200 asks a turn, several turns a second. Never fewer than that for ten minutes "
        "means that asks come faster than they are answered, or that no supervisor answers them.",
        "The panel 'Lag of duties' (admit); tenure check; more supervisors, or a faster store.",
    ),
    Rule(
        "TenureDutyLate",
        f"max by (job, instance, duty) (tenure_duty_lag_seconds) > 30\nor {_of('duty-late')}",
        "2m",
        "warning",
        "A duty of the maintenance is late{{ with $labels.duty }}: {{ . }}{{ end }}.",
        "Duties are due every second to every five minutes, and a busy store delays them by seconds; from 30 s on "
        "Tenure itself opens the incident duty-late, also for processes that are not scraped.",
        "tenure check names process and host; its log has the error.",
    ),
    Rule(
        "TenureWorkersDie",
        "sum by (job) (increase(tenure_worker_deaths_total[15m])) > 3",
        "0m",
        "critical",
        "{{ $value | humanize }} workers of {{ $labels.job }} have died within 15 minutes.",
        "One death is a bad job or the kernel's choice when memory is short, and is repaired by itself; three jobs' "
        "crash budgets are spent after more than three.",
        "tenure workers list --dead says how each ended, and what it ran.",
    ),
    Rule(
        "TenureHostLost",
        'sum by (job) (increase(tenure_rescues_total{cause=~"host|queue"}[15m])) > 0',
        "0m",
        "warning",
        "Jobs were taken back from a machine or a supervisor that is gone.",
        "In a healthy system this never happens: a worker's death alone is noticed as a crash, by its own supervisor.",
        "tenure workers list --dead names the host.",
    ),
    Rule(
        "TenureRefusedWrites",
        "sum by (job, task) (increase(tenure_refused_writes_total[1h])) > 0\n"
        "or sum by (job, task) (tenure_refused_writes_total unless tenure_refused_writes_total offset 1h) > 0",
        "0m",
        "warning",
        "An attempt of {{ $labels.task }} went on after it had lost its job.",
        "The store refused its result, but what its code did elsewhere may have happened twice. The second half is "
        "there because a counter that appears with its first event has not increased yet.",
        "docs/delivery.md; job.once and a fence of your own for what must not happen twice.",
    ),
    Rule(
        "TenureLoopBlocked",
        "sum by (job, instance) (increase(tenure_stalls_total[15m])) > 5",
        "0m",
        "warning",
        "Event loops of {{ $labels.instance }} are blocked again and again.",
        "A blocked loop starts no job and answers no cancel; after a lease its jobs are rescued. One in three minutes "
        "is a habit, not an accident.",
        "The supervisor's log has the line of code: make that handler a plain def.",
    ),
    Rule(
        "TenureNotifierAway",
        "min by (job, instance) (tenure_notifier_up) == 0",
        "10m",
        "warning",
        "Workers of {{ $labels.instance }} poll instead of listening.",
        "Polling is the plan while a notifier is unavailable: jobs start later, none is lost. A restart does not take "
        "ten minutes.",
        "curl http://INSTANCE/healthz says why.",
    ),
)


def rules() -> dict[str, Any]:
    """Prometheus's rule file."""
    return {
        "groups": [
            {
                "name": "tenure",
                "rules": [
                    {
                        "alert": rule.name,
                        "expr": rule.expr,
                        "for": rule.lasting,
                        "labels": {"severity": rule.severity},
                        "annotations": {
                            "summary": rule.summary,
                            "description": f"{rule.do}\n\nThreshold: {rule.why}",
                        },
                    }
                    for rule in RULES
                ],
            }
        ]
    }


# ── Files ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _Folded(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Folded.add_representer(str, _text)


def files() -> Iterator[tuple[str, str]]:
    """Each file's name and what should be in it."""
    yield "grafana.json", json.dumps(dashboard(), indent=2) + "\n"
    made = yaml.dump(rules(), Dumper=_Folded, sort_keys=False, allow_unicode=True, width=118)
    yield (
        "alerts.yml",
        f"# Made by ops/generate.py from the table of metrics. Each rule gives the reason for its limits.\n{made}",
    )


def run(folder: Path, *, check: bool) -> int:
    """Write what is stale, or with `check` name it and return 1."""
    stale = [(folder / name, text) for name, text in files() if _read(folder / name) != text]
    for path, text in stale:
        if check:
            sys.stdout.write(f"{path.name} is stale: run `python ops/generate.py`\n")
        else:
            path.write_text(text, encoding="utf-8")
    return int(check and bool(stale))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    raise SystemExit(run(Path(__file__).parent, check="--check" in sys.argv[1:]))
