"""The queries of `ops` against the metrics of a live run, and, where it is installed, in a real Prometheus."""

from __future__ import annotations

import re
import signal
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from prometheus import RULES, installed, prometheus
from tenure.core.lifecycle import Released
from tenure.operations.metrics import METRICS
from unit.test_ops import EXPRS, QUERIES, metric, selectors

from . import shop
from .harness import Site, send
from .test_metrics import ANYWHERE, base


def live(site: Site) -> str:
    """A supervisor that has seen a job completed, a worker die, a rescue, a refused write, a limit: its address."""
    supervisor = site.supervisor(metrics_listen=ANYWHERE, lease="4m")  # no beat ends the worker with a blocked loop
    url = base(site, supervisor)
    climbing = shop.climb.enqueue()
    send(site.seen(climbing, "half").pid, signal.SIGKILL)
    site.ended(climbing)
    blocking = shop.block_the_loop.enqueue()
    site.seen(blocking, "begin")
    site.store.settle(site.worker(blocking).identity.id, {}, Released("taken away"))
    site.go()
    site.until(lambda: "tenure_refused_writes_total{" in exposed(url), "the refused write to be counted")
    shop.climb.using(limit=shop.door, queue="closed").enqueue()
    site.until(lambda: "tenure_key_waiting{" in exposed(url), "the job that waits for a place to be counted")
    site.until(lambda: 'verb="renew"' in exposed(url), "a renewal to be counted")
    return url


def exposed(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


@pytest.mark.everyday
def test_every_query_finds_series_of_its_kind_in_a_live_run(site: Site) -> None:
    text = exposed(live(site))
    families = list(text_string_to_metric_families(text))
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    samples = [sample for family in families for sample in family.samples]

    for query in EXPRS:
        for selector in selectors(query):
            wanted = [each for each in selector.matchers.matchers if each.name != "job"]
            found = [
                sample
                for sample in samples
                if sample.name == selector.name
                and all(re.fullmatch(each.value, sample.labels[each.name]) for each in wanted)
            ]
            assert found, f"{selector.name} {[(each.name, each.value) for each in wanted]} of {query}"
            assert kinds[metric(selector)] == METRICS[metric(selector)].kind


@installed
def test_prometheus_answers_every_query_and_evaluates_every_rule(site: Site, tmp_path: Path) -> None:
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "tenure", "static_configs": [{"targets": [urlsplit(live(site)).netloc]}]}],
    }
    with prometheus(tmp_path, config) as ask:
        site.until(lambda: ask("query", query="count_over_time(tenure_store_up[1m]) > 3")["result"], "a few scrapes")
        for query in QUERIES:
            asked = query.replace("$__rate_interval", "1m").replace("$job", "tenure")
            assert ask("query", query=asked)["result"], asked
        rules = site.until(lambda: evaluated(ask("rules")["groups"][0]["rules"]), "the rules to be evaluated")
    assert {rule["name"]: rule["health"] for rule in rules} == dict.fromkeys([rule["name"] for rule in rules], "ok")
    firing = {rule["name"] for rule in rules if rule["state"] != "inactive"}
    assert {"TenureRefusedWrites"} <= firing <= {"TenureRefusedWrites", "TenureLoopBlocked"}


def evaluated(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rules, once each was evaluated after the scrapes that the queries found."""
    return rules if all(rule["health"] != "unknown" for rule in rules) else []
