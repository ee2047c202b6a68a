"""The recipe for KEDA, against a live store: its queries count what they say, and nothing keeps its pods for ever."""

from __future__ import annotations

import re

import psycopg
import yaml
from prometheus_client.parser import text_string_to_metric_families

from conformance.factories import bring, claim_one, finish, made, put, start
from docs.test_pages import ROOT, blocks
from tenure.core.lifecycle import Completed, State, Suspended
from tenure.operations.metrics import store_families, text
from tenure.stores.postgres import PostgresStore
from tenure.web.models.overview import Counts
from unit.fresh_postgres import store as store
from unit.fresh_postgres import url as url
from unit.test_ops import selectors

PAGE = (ROOT / "docs" / "deploying.md").read_text().partition("## Workers by the backlog")[2]
ON_POSTGRES, ON_PROMETHEUS, ON_REST = blocks(PAGE, "yaml")


def counted(url: str) -> int:
    """What KEDA reads, by the query as it stands on the page."""
    scaled, _ = yaml.safe_load_all(ON_POSTGRES)
    (trigger,) = scaled["spec"]["triggers"]
    with psycopg.connect(url) as connection:
        row = connection.execute(trigger["metadata"]["query"]).fetchone()
    assert row is not None
    return int(row[0])


def test_the_query_counts_what_is_queued_and_what_runs_and_not_what_has_ended(store: PostgresStore, url: str) -> None:
    for ended in (State.COMPLETED, State.DEAD, State.CANCELLED):
        bring(store, ended)
    put(store, queue="of other pods")
    assert counted(url) == 0

    put(store), put(store)
    worker = start(store)
    assert counted(url) == 2

    lease = claim_one(store, worker)
    assert counted(url) == 2, "a claim takes no pod away"
    finish(store, lease, Completed("1"))
    assert counted(url) == 1


def test_the_query_counts_what_only_a_supervisor_can_do_once_it_is_due(store: PostgresStore, url: str) -> None:
    put(store, delay=3600.0)
    made(store)
    waiting = start(store)
    put(store)
    finish(store, claim_one(store, waiting), Suspended("for a word", signal="own:go", timeout=3600.0))
    assert counted(url) == 1, "the ask of a new wait"
    store.admit(limit=10)
    assert counted(url) == 0

    with psycopg.connect(url, autocommit=True) as connection:  # an hour later
        connection.execute("UPDATE tenure.jobs SET run_at = now() WHERE state = 'scheduled'")
        assert counted(url) == 1, "a job that fell due"
        connection.execute("UPDATE tenure.jobs SET wait_until = now() WHERE state = 'waiting'")
        assert counted(url) == 2, "a wait that timed out"
        connection.execute("UPDATE tenure.schedule_rows SET due_at = now()")
        assert counted(url) == 3, "a tick of a schedule"


def test_the_query_of_prometheus_and_the_places_in_the_api_are_of_numbers_that_there_are(store: PostgresStore) -> None:
    put(store), put(store)
    claim_one(store, start(store))
    (trigger,) = yaml.safe_load(ON_PROMETHEUS)["triggers"]
    (selector,) = selectors(trigger["metadata"]["query"])
    families = text_string_to_metric_families(text(store_families(store)).decode())
    found = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == selector.name
        and all(re.fullmatch(each.value, sample.labels[each.name]) for each in selector.matchers.matchers)
    ]
    assert found == [1, 1]

    counts = {"counts": Counts.of(store.counts()).model_dump()}
    for each in yaml.safe_load(ON_REST)["triggers"]:
        path, name = each["metadata"]["valueLocation"].split(".")
        assert (counts[path][name], each["name"]) == (1, name)


def test_the_pods_have_time_to_hand_back_what_runs() -> None:
    """The grace, and the 13 s that docs/operations.md asks for beside it."""
    grace = [
        int(number.replace(",", "")) for number in re.findall(r": ([\d,]+) for the default, and ([\d,]+)", PAGE)[0]
    ]

    assert grace[0] >= 25 + 13 and grace[1] >= 3600 + 13
