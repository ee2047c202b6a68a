"""The dashboard and the alert rules in `ops`: current, complete, and without anything that is not measured."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tenure.operations.metrics import METRICS
from tenure.operations.sinks import KINDS
from tenure.worker.tally import BOUNDS

OPS = Path(__file__).parents[2] / "ops"
GRAFANA = json.loads((OPS / "grafana.json").read_text())
RULES = yaml.safe_load((OPS / "alerts.yml").read_text())["groups"][0]["rules"]
PANELS = [panel for panel in GRAFANA["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
EXPRS = [*QUERIES, *(rule["expr"] for rule in RULES)]
SCRAPED = {"job", "instance", "le"}  #: labels that Prometheus adds, and that of a histogram's buckets


@pytest.fixture(scope="module")
def generate() -> dict[str, Any]:
    return runpy.run_path(str(OPS / "generate.py"))


def parsed(query: str) -> promql_parser.Expr:
    """Raises ValueError if Prometheus would refuse it, even if only for its types."""
    return promql_parser.parse(query.replace("$__rate_interval", "1m"))


def nodes(query: str) -> list[promql_parser.Expr]:
    found: list[promql_parser.Expr] = []
    promql_parser.walk(parsed(query), found.append)
    return found


def metric(selector: Any) -> str:
    """The metric of `METRICS` that a selector reads."""
    name = str(selector.name)
    return name if name in METRICS else re.sub("_(bucket|sum|count)$", "", name)


def selectors(query: str) -> Iterator[Any]:
    for node in nodes(query):
        if isinstance(node, promql_parser.VectorSelector):
            yield node
        elif isinstance(node, promql_parser.MatrixSelector):
            yield node.vector_selector


def test_the_files_are_what_the_table_of_metrics_makes_them(
    generate: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate["run"](OPS, check=True) == 0, capsys.readouterr().out


def test_a_stale_file_is_named_and_left_alone(
    generate: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate["run"](tmp_path, check=False)
    (tmp_path / "alerts.yml").write_text("groups: []\n")

    assert generate["run"](tmp_path, check=True) == 1

    assert capsys.readouterr().out.startswith("alerts.yml is stale")
    assert (tmp_path / "alerts.yml").read_text() == "groups: []\n"


@pytest.mark.parametrize("query", EXPRS)
def test_a_query_parses_and_asks_each_metric_for_labels_and_buckets_that_it_has(query: str) -> None:
    for selector in selectors(query):
        declared = METRICS[metric(selector)]
        assert (declared.kind == "histogram") == str(selector.name).endswith("_bucket")
        assert {each.name for each in selector.matchers.matchers} <= {*declared.labels, *SCRAPED}
    kept = [
        label for node in nodes(query) if isinstance(node, promql_parser.AggregateExpr) and node.modifier
        for label in node.modifier.labels
    ]  # fmt: skip
    assert set(kept) <= {*SCRAPED, *(label for each in selectors(query) for label in METRICS[metric(each)].labels)}


@pytest.mark.parametrize("query", EXPRS)
def test_only_counters_have_a_rate_and_only_gauges_a_delta(query: str) -> None:
    for call in (node for node in nodes(query) if isinstance(node, promql_parser.Call)):
        for given in call.args:
            if isinstance(given, promql_parser.MatrixSelector):
                kind = METRICS[metric(given.vector_selector)].kind
                assert (kind == "gauge") == (call.func.name in ("delta", "min_over_time")), query


def test_every_metric_is_on_the_dashboard() -> None:
    assert {metric(each) for query in QUERIES for each in selectors(query)} == set(METRICS)


def test_every_panel_says_what_it_shows_in_which_unit_and_overlaps_no_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in GRAFANA["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    for panel in PANELS:
        (declared,) = {metric(each) for target in panel["targets"] for each in selectors(target["expr"])}
        assert panel["description"].startswith(METRICS[declared].help)
        assert len(panel["description"]) > len(METRICS[declared].help) + 10
        assert (panel["fieldConfig"]["defaults"]["unit"] == "s") == declared.endswith("_seconds")


def test_every_kind_of_incident_raises_an_alert() -> None:
    told = {
        kind
        for rule in RULES
        for selector in selectors(rule["expr"])
        for each in selector.matchers.matchers
        if each.name == "kind"
        for kind in each.value.split("|")
    }
    assert told == {*KINDS} - {"queue-age"}, "its limit is measured by TenureJobsLate itself"


def test_every_rule_says_what_to_do_and_why_its_limits_are_what_they_are() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert re.fullmatch(r"\d+[ms]", rule["for"])
        do, _, why = rule["annotations"]["description"].partition("\n\nThreshold: ")
        assert len(do) > 10 and len(why) > 40, rule["alert"]
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


def test_a_limit_on_the_stores_time_is_the_end_of_a_bucket() -> None:
    """Between the ends of a bucket, a quantile is only estimated."""
    (rule,) = [rule for rule in RULES if rule["alert"] == "TenureStoreSlow"]

    assert float(rule["expr"].rpartition(">")[2]) in BOUNDS["store"]
