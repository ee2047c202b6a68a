"""The API keeps the contract that it publishes, whatever it is asked: on every store, with something in it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from conformance.factories import World, begin, bring, draft, identity, made, put, running, tick
from conformance.test_limits import SHOP
from tenure import Tenure
from tenure.config import load
from tenure.core.lifecycle import Crashed, State
from tenure.core.limits import Bounds, Rate
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.ports import Filter, LimitRow, Progress, Store
from tenure.ports.schedules import Change
from tenure.web.dashboard import create
from tenure.web.server import Server, listen_at, url_of
from tenure.web.site import Demo
from tenure.worker.job_log import LogLine, encode

EXAMPLES = 100 if os.environ.get("TENURE_TEST_FULL") else 2  #: of each operation, good ones and bad ones, on each store
SECRET = "root-secret-0123456789"
QUEUES, TASKS = ("default", "demo", "letters"), ("work", "greet")
#: What a schema can't say: which cursors there are, years, arguments of a task, which options exclude each other.
BEYOND_SCHEMA = frozenset(
    {"get_jobs", "get_dead", "get_errors", "act_on_jobs", "count_jobs", "enqueue_job", "enqueue_plain"}
) | {
    "replay_job",
    "preview_rule",
    "preview_schedule",
    "get_history",
    "get_audit",
    "backfill_schedule",
    "get_flows",
    "send_signal",
    "send_shared_signal",
    "set_limit",
    "pause_limit",
    "get_key",
}

pytestmark = pytest.mark.usefixtures("unhurried")


def fill(world: World, store: Store) -> None:
    """Jobs in every state with all that they can have, schedules with a past, workers alive and dead."""
    for priority, state in enumerate(State):  # so that each is claimed before those that came back
        bring(store, state, priority=priority, payload='{"n":1,"token":"t0p"}', meta='{"from":"test"}')
    lease = running(store, queue="default", unique="mine", priority=9)
    line = LogLine(store.now(), "warning", "half-way \N{SNOWMAN}")
    store.progress([Progress(lease=lease, fraction=0.5, stage="s", message="m", checkpoint="[1]", log=encode([line]))])
    store.finish([(lease, Crashed("killed", evidence={"signal": "SIGKILL"}))])
    store.refused([(lease, "too late")])
    for queue in QUEUES:
        put(store, queue=queue, delay=60)
        put(store, queue=queue, task="greet", payload='{"name":"Ada"}')
    store.pause("letters", paused=True)
    store.change_limits([LimitRow(name=SHOP.limit, declared=Bounds(1, Rate(9, 60.0, 3)))])
    store.enqueue([draft(limits=(SHOP,), queue="default") for _ in range(2)])
    gone = identity()
    store.register(gone)
    store.declare_dead([gone.id])
    now = store.now()
    plan = made(store, name="nightly", rule="0 6 * * *", tz="Europe/Paris", next_tick=now - timedelta(hours=1))
    past = tick(plan, now - timedelta(days=1), status="failure", why="boom", started_at=now, ended_at=now, output="o")
    assert store.change([Change(schedule=plan, ticks=(past,))]) == [True]
    begin(store, "nightly")
    made(store, name="often", rule="every 1m", paused_at=now, paused_why="until Monday")
    made(store, name="declared", source="shop")
    made(store, name="lost", rule="0 6 * * *", tz="Mars/Base")
    made(store, name="guarded", kind="guard", job=None)
    world.advance(1)


def tasks_of(folder: Path) -> Any:
    app = Tenure(f"sqlite:///{folder}/elsewhere.db")

    @app.task
    def work(n: int = 0, token: str = "") -> int:
        return n

    @app.task(unique="to:{name}")
    def greet(name: str) -> str:
        return name

    return app.tasks


@contextmanager
def serving(app: Any) -> Iterator[str]:
    ready, listening = threading.Event(), listen_at("127.0.0.1:0")
    server = Server(app, ready.set)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    try:
        assert ready.wait(60)
        yield url_of(listening)
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()


@pytest.fixture
def url(world: World, store: Store, tmp_path: Path) -> Iterator[str]:
    fill(world, store)
    chosen = load(code={"tokens": f"root:admin:{SECRET}"}, environ={}, folder=tmp_path)
    site = create(lambda: Admin(store, PollNotifier(), chosen), chosen, tasks=tasks_of(tmp_path), demo=Demo("demo"))
    with serving(site) as url:
        yield url


def there(store: Store) -> dict[str, list[str]]:
    """What really exists, by the parameter that names it."""
    ids = [job.id for job in store.search(Filter(), limit=200).jobs]
    return {"id": ids, "name": [*(each.schedule.name for each in store.schedules()), *QUEUES]}


def ask(operation: Any, mode: GenerationMode, url: str, names: dict[str, list[str]]) -> None:
    """Ask for many things that are there or not; raises at the first answer that breaks the contract."""
    label = operation.definition.raw["operationId"]
    beyond = [positive_data_acceptance] if label in BEYOND_SCHEMA else []
    headers = {"Authorization": f"Bearer {SECRET}"}

    def keeps_its_contract(case: Any, real: dict[str, str] | None) -> None:
        for name in case.path_parameters if real else ():
            case.path_parameters[name] = real[name] if real else ""
        response = case.call(base_url=url, headers=headers)
        excluded = [*beyond, negative_data_rejection] if real else beyond  # a bad path may be a good one now
        case.validate_response(response, headers=headers, excluded_checks=excluded)

    real = st.none() | st.fixed_dictionaries({name: st.sampled_from(values) for name, values in names.items()})
    asking = given(case=operation.as_strategy(generation_mode=mode), real=real)(keeps_its_contract)
    quick = settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    seed(1)(quick(asking))()


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_the_api_keeps_its_contract_whatever_it_is_asked(url: str, store: Store) -> None:
    headers = {"Authorization": f"Bearer {SECRET}"}
    schema: Any = schemathesis.openapi.from_url(f"{url}/api/openapi.json", headers=headers)
    operations = [found.ok() for found in schema.get_all_operations()]
    names, broken = there(store), list[str]()

    for operation in operations:
        if operation.path.endswith("/events"):  # it has no end
            continue
        for mode in GenerationMode:
            try:
                ask(operation, mode, url, names)
            except Unsatisfiable:
                assert mode is GenerationMode.NEGATIVE, operation.label  # it takes nothing, so nothing can be wrong
            except (Exception, FailureGroup) as error:
                broken.append(f"{operation.label}, {mode.value}: {error}")

    assert not broken, "\n\n".join(broken)
    assert len(operations) == 59
