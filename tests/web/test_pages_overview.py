"""Overview, queues, workers, Try it and audit: what they say, what their forms do, and what the script keeps."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from playwright.sync_api import Page as Tab
from playwright.sync_api import Route, expect
from starlette.datastructures import QueryParams
from starlette.routing import compile_path

import tenure
from conformance.factories import World, draft, identity, put, running, start
from conformance.scene import paused_and_late
from servers import free_port
from tenure import Tenure
from tenure.config import Settings, load
from tenure.core.lifecycle import Completed, Crashed, Failed, Lease, State
from tenure.core.spread import add
from tenure.maintenance import orders
from tenure.maintenance.rollups import SLOT, Figures, RollUp, RollUps
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.operations.audit import Trail
from tenure.operations.causes import Problem, Remedy
from tenure.operations.pulse import SLICE
from tenure.operations.sinks import Kind
from tenure.operations.trends import Trend
from tenure.ports import Filter, Progress, Store
from tenure.ports.schedules import Schedule
from tenure.schedules.timetable import Timetable
from tenure.stores.sqlite import SqliteStore
from tenure.web.access import LOCAL
from tenure.web.charts import charts
from tenure.web.dashboard import create
from tenure.web.pages import Renderer, View, match
from tenure.web.server import Server, listen_at, url_of
from tenure.web.site import Demo, Site
from tenure.web.views import ACTIONS, PAGES
from tenure.web.views.advice import advice
from waiting import until

from .browser import Visits

SECRETS = {"root": "admin", "ada": "operate", "bob": "read"}
DEMO = Demo("demo")
MINE = ("/", "/queues", "/workers", "/try", "/audit")

pytestmark = pytest.mark.usefixtures("unhurried")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(lambda clock: SqliteStore(str(tmp_path / "tenure.db"), clock=clock))
    yield world
    world.close()


@pytest.fixture
def store(world: World) -> Store:
    return world.store()


@pytest.fixture
def jobs(tmp_path: Path) -> Tenure:
    app = Tenure(f"sqlite:///{tmp_path}/elsewhere.db")

    @app.task
    def greet(name: str) -> str:
        return name

    @app.task
    def later(name: str) -> str:
        return name

    @app.task
    def flaky() -> None: ...

    @app.task
    def doomed(order: int) -> None: ...

    @app.task
    def crash_once(steps: int = 20) -> None: ...

    return app


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    tokens = ",".join(f"{name}:{role}:{name}-secret-0123456789" for name, role in SECRETS.items())
    return load(code={"tokens": tokens}, environ={}, folder=tmp_path)


class Dashboard:
    """Pages, as somebody sees them."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def get(self, path: str, who: str = "root", *, status: int = 200) -> str:
        return self._call("GET", path, who, status).text

    def post(self, path: str, who: str = "root", *, status: int = 303, **form: str) -> str:
        return str(self._call("POST", path, who, status, data=form).headers.get("location", ""))

    def _call(self, method: str, path: str, who: str, status: int, **more: Any) -> httpx.Response:
        async def call() -> httpx.Response:
            headers = {"Authorization": f"Bearer {who}-secret-0123456789"}
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
                return await client.request(method, path, **more)

        with ThreadPoolExecutor(1) as thread:  # an open browser has this one's event loop running
            response = thread.submit(lambda: asyncio.run(call())).result()
        assert response.status_code == status, response.text
        return response


Make = Callable[..., Dashboard]


@pytest.fixture
def make(store: Store, settings: Settings, jobs: Tenure) -> Make:
    def made(demo: Demo | None = DEMO) -> Dashboard:
        return Dashboard(create(lambda: Admin(store, PollNotifier(), settings), settings, tasks=jobs.tasks, demo=demo))

    return made


@pytest.fixture
def pages(make: Make) -> Dashboard:
    return make()


def words(html: str) -> str:
    """What a person reads."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


# ── Every page ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_page_needs_what_the_policy_forbids(pages: Dashboard, store: Store) -> None:
    running(store)
    for path in MINE:
        html = pages.get(path)
        assert not re.search(r"\sstyle=|\son[a-z]+=|javascript:|<style|<script(?! src=)", html), path
        assert not re.search(r'(?:src|href|action)="(?:https?:)?//', html), path


def test_a_page_on_which_only_time_passes_sends_nothing(world: World, store: Store, settings: Settings) -> None:
    world.advance(SLICE + 1 - store.now().timestamp() % SLICE)
    running(store, task="long")
    put(store)
    site = Site(lambda: Admin(store, PollNotifier(), settings), settings, demo=DEMO)
    renderer = Renderer(site, PAGES)
    while not all(each.known for each in site.slices()[:-1]):  # the charts' past is read bit by bit
        site.acted()

    def blocks() -> dict[str, dict[str, str]]:
        site.acted()
        views = {path: View(site, LOCAL, path, {}, QueryParams(), {}) for path in MINE}
        return {page.path: renderer.blocks(page, views[page.path], "") for page in PAGES if page.path in MINE}

    before = blocks()
    world.advance(0.3)

    assert blocks() == before


#: What pages once said, and now say better.
ODD = ("It is a dead letter", " goes on.", "None here", "May be empty.", "the chosen", "are allowed", "cause is mended")


def test_no_text_is_one_of_those_that_were_odd() -> None:
    home = Path(tenure.__file__).parent
    files = [*home.glob("web/templates/*.html"), *home.glob("web/views/*.py"), *home.glob("operations/*.py")]
    assert len(files) > 30
    texts = {path.name: path.read_text() for path in files}
    heads = [head for text in texts.values() for head in re.findall(r"<th[^>]*>([^<{]+)</th>", text)]

    assert not [(name, odd) for name, text in texts.items() for odd in ODD if odd in text]
    assert heads and not {"Says", "Doing"} & set(heads)


# ── Overview ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_empty_store_is_met_with_first_steps(pages: Dashboard) -> None:
    html = pages.get("/")

    assert "First steps" in html
    assert "tenure worker" in html
    assert "<figure" not in html


def test_when_all_is_well_it_says_so_and_what_it_looked_at(pages: Dashboard, store: Store) -> None:
    """That includes an empty queue, since the page lists it, too."""
    store.finish([(running(store), Completed("1"))])

    said = words(pages.get("/"))

    assert "No problems." in said
    assert "1 queue, 1 worker, 0 schedules and the dead letters of the last hour" in said


def test_what_is_wrong_comes_with_what_to_do_and_where(pages: Dashboard, store: Store) -> None:
    lease = running(store, task="charge")
    store.finish([(lease, Failed("the card is <b>gone</b>", final=True))])
    store.renew([lease.worker_id], notes={lease.worker_id: "its loop is blocked by spin() at a.py:3"})

    html = pages.get("/")

    assert "New dead letters" in html
    assert "the card is &lt;b&gt;gone&lt;/b&gt;" in html
    assert 'href="/dead?task=charge"' in html
    assert "its loop is blocked by spin() at a.py:3" in html


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("subject", ["a", "task a", "queue a", "*"])
def test_advice_on_every_kind_of_problem_leads_to_a_page(settings: Settings, kind: Any, subject: str) -> None:
    remedies = get_args(Remedy)
    for problem in (
        Problem(kind, subject, "it says so", remedy=each, queue="q", task="t", jobs=("1",)) for each in remedies
    ):
        said = advice(problem)

        assert said.title
        assert said.do.endswith(".")
        assert "tenure " not in said.do, "a page has buttons, and no commands"
        site = Site(lambda: pytest.fail("nobody looks"), settings)
        assert match(PAGES, site, LOCAL, said.link.path) is not None, said.link.path
        assert (said.button is None) == (problem.remedy == "")
        paths = [compile_path(action.path)[0] for action in ACTIONS]
        assert said.button is None or any(path.match(said.button.path) for path in paths), said.button


def test_a_cause_stands_before_its_symptoms_with_the_button_that_mends_it(
    pages: Dashboard, world: World, store: Store
) -> None:
    paused_and_late(world, store, Timetable(store, PollNotifier()))
    html = pages.get("/", "ada")
    said = words(html)

    assert said.index("A queue is paused, and its jobs are late") < said.index("It causes 1 queue that is behind")
    assert html.count('class="note') == 1, "symptoms are folded"
    assert 'action="/queues/reports/resume"' in html
    assert 'action="/queues/reports/resume"' not in pages.get("/", "bob")
    assert "tenure queues" not in said
    assert pages.post("/queues/reports/resume", "ada", back="/") == "/"
    assert not store.paused()


def test_what_hangs_is_cancelled_from_the_overview(pages: Dashboard, world: World, store: Store) -> None:
    lease = running(store, start(store, slots=1, lease=9e5))
    world.advance(3700)

    html = pages.get("/", "ada")

    assert "Silent jobs hold every slot" in words(html)
    assert "Cancel its job…" in words(html)
    fields = dict(re.findall(r'name="(verb|id)" value="([^"]*)"', html.partition('action="/jobs/bulk/ask"')[2]))
    assert fields == {"verb": "cancel", "id": lease.job_id}
    to = pages.post("/jobs/bulk/ask", "ada", **fields, back="/")
    assert "Cancel 1 job?" in words(pages.get(to, "ada"))


def test_sixty_late_schedules_and_a_hundred_queues_are_folded(
    pages: Dashboard, world: World, store: Store, settings: Settings
) -> None:
    start(store, lease=9e5, slots=500, queues=())
    timetable = Timetable(store, PollNotifier())
    for number in range(60):
        timetable.put(Schedule(name=f"s{number:02}", rule="every 1h", job=draft(id="", queue=f"q{number % 50}")))
    for number in range(100):
        put(store, queue=f"q{number}")
    world.advance(3600)
    timetable.fire_due()
    world.advance(400)

    html = pages.get("/")

    assert html.count('class="note') == 4
    assert "58 more late schedules" in words(html)
    assert "98 more queues that are behind" in words(html)
    assert "All 100 queues" in words(html)
    assert html.partition("live_queues")[2].partition("live_running")[0].count("<tr data-key=") == 10


def test_figures_and_lists_show_what_runs_and_what_has_ended(pages: Dashboard, store: Store) -> None:
    lease = running(store, task="render")
    store.progress([Progress(lease=lease, fraction=0.4, stage="pages", message="4 of 10")])
    ended = running(store, task="send")
    store.finish([(ended, Completed())])

    html = pages.get("/")

    assert "pages : 4 of 10" in words(html) or "pages: 4 of 10" in words(html)
    assert 'value="40.0"' in html
    assert f'href="/jobs/{ended.job_id}"' in html
    assert re.search(r"processing\s+1\s+of 10 slots", words(html))


def sliced(*known: bool, completed: int = 10) -> Trend:
    start = round(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp())
    figures = Figures(completed=completed)
    for wait in (0.02, 0.02, 4.0) if completed else ():
        add(figures.waits, wait)
    tasks = {"mail": figures}
    return Trend("15m", [RollUp(start + SLICE * at, SLICE, tasks if each else None) for at, each in enumerate(known)])


def test_a_chart_shows_what_nobody_has_read_as_a_gap() -> None:
    slices = sliced(True, True, False, False, True, True, True)
    for chart in charts(slices):
        line = chart.lines[0]
        assert line.path.count("M") == 2, line.path
        assert len(chart.unknown) == 1
        left, right = chart.unknown[0]
        assert 0 < left < right < chart.width


def test_a_chart_stays_inside_its_frame_and_says_in_words_what_it_shows() -> None:
    for slices in (sliced(*[True] * 180), sliced(*[True] * 180, completed=0), sliced(*[False] * 180)):
        for chart in charts(slices):
            places = [float(y) for line in chart.lines for y in re.findall(r"[ML][\d.]+ ([\d.]+)", line.path)]
            assert all(0 <= y <= chart.height for y in places)
            assert chart.says
    throughput, latency = charts(sliced(*[True] * 180))
    assert "1,800 completed, 0 dead, 0 cancelled; at most 2 completed per second" in throughput.says
    assert throughput.rows[0][1] == ["2", "0", "0"]
    assert latency.lines[1].now == "4s"
    assert latency.ticks == ["10s", "1s", "100 ms", "10 ms"]
    assert not any(line.path for line in throughput.lines[1:]), "a line of nothing hides the one above it"


def test_single_samples_are_connected_to_those_near_them_and_else_a_dash_that_is_seen() -> None:
    trend = sliced(*[True] * 181)
    empty = sliced(True, completed=0).points[0].tasks
    for at, each in enumerate(trend.points):
        if at not in (10, 14, 18, 90, 179):
            each.tasks = empty
    _, latency = charts(trend)
    near, alone, last = re.split(r" (?=M)", latency.lines[0].path)
    assert near.count("L") == 2, "each within a minute of the one before"
    for dash in (alone, last):
        start, length = (float(text) for text in re.fullmatch(r"M([\d.]+) [\d.]+ h([\d.]+)", dash).groups())  # type: ignore[union-attr]
        assert length > 5, "a dash, not a dot"
        assert start + length <= latency.width


# ── Tasks ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_tasks_of_six_hours_show_how_often_they_fail_and_how_long_they_take(
    pages: Dashboard, world: World, store: Store
) -> None:
    world.advance(SLOT - store.now().timestamp() % SLOT)
    for task, outcome in (("mail", Completed()), ("mail", Completed()), ("mail", Failed("no", final=True))):
        lease = running(store, task=task)
        world.advance(2)
        store.finish([(lease, outcome)])
    store.finish([(running(store, task="<b>bold</b>"), Completed())])
    world.advance(SLOT)
    RollUps(store).turn()

    html = pages.get("/tasks?span=6h", "bob")

    said = words(html)
    assert re.search(r"mail 2 1 0 33% 1 ", said), said
    assert "<b>bold</b>" not in html
    assert 'aria-label="Jobs that ended in the last six hours: 3 completed, 1 dead, 0 cancelled' in html
    assert "2s" in said
    alone = pages.get("/tasks?span=6h&task=mail")
    assert "the last six hours: 2 completed, 1 dead, 0 cancelled" in alone
    assert "No job ended" in pages.get("/tasks?span=6h&task=nobody")
    assert "expected one of 15m, 6h, 7d" in pages.get("/tasks?span=9y", status=422)
    assert "mail" in pages.get("/tasks?span=7d")
    until(lambda: "mail" in pages.get("/tasks?span=15m"), "slices of five minutes ago, read a few at a time")


# ── Queues ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_columns_of_queues_are_sorted_by_a_click(pages: Dashboard, store: Store) -> None:
    for queue, count in (("a", 1), ("b", 3), ("c", 2)):
        for _ in range(count):
            put(store, queue=queue)
    assert re.findall(r'id="queue-(\w)"', pages.get("/queues")) == ["a", "b", "c"]
    assert re.findall(r'id="queue-(\w)"', pages.get("/queues?sort=-queued")) == ["b", "c", "a"]
    assert re.findall(r'id="queue-(\w)"', pages.get("/queues?sort=-oldest"))[0] == "a"


def test_the_columns_of_workers_are_sorted_by_a_click(pages: Dashboard, store: Store) -> None:
    for host, memory in (("h1", 5), ("h2", 7), ("h1", 6)):
        me = identity(id=f"w{memory}", host=host)
        store.register(me)
        store.renew([me.id], memory={me.id: memory << 20})
    assert re.findall(r'id="worker-(\w+)"', pages.get("/workers?sort=-memory")) == ["w7", "w6", "w5"]
    assert "All hosts" in pages.get("/workers?sort=memory")


def test_a_queue_is_paused_and_resumed_by_whoever_may(pages: Dashboard, store: Store) -> None:
    put(store, queue="reports")
    assert "Pause" in pages.get("/queues", "ada")
    assert 'action="/queues/' not in pages.get("/queues", "bob")

    pages.post("/queues/reports/pause", "bob", status=403)
    assert not store.paused()
    assert pages.post("/queues/reports/pause", "ada", back="/queues?x=1", why="no paper") == "/queues?x=1"
    assert store.paused() == {"reports"}
    assert re.search(r"reports paused for .* by ada: no paper", words(pages.get("/queues")))
    assert "Resume" in pages.get("/queues", "ada")
    assert pages.post("/queues/reports/resume", "ada", back="//elsewhere.example") == "/queues"
    assert not store.paused()
    pages.post("/queues/no good/pause", "ada", status=422)


def test_a_queue_says_who_serves_it_or_that_nobody_does(make: Make, store: Store) -> None:
    put(store, queue="reports")
    assert "no live worker" in words(make().get("/queues"))

    store.register(identity(id="vm-1-aa", queues=("reports", "mail"), slots=3))

    said = words(make().get("/queues"))
    assert "no live worker" not in said
    assert said.count("1 worker with 3 slots") == 2, "an empty queue that is served is shown, too"


def test_a_hundred_queues_are_folded_and_those_that_need_care_stand_first(
    pages: Dashboard, world: World, store: Store
) -> None:
    start(store, queues=tuple(f"queue{number:03}" for number in range(100)), lease=3600.0)
    for number in range(0, 100, 2):
        put(store, queue=f"queue{number:03}")
    store.pause("queue077", paused=True)
    put(store, queue="unserved")

    html = pages.get("/queues")

    assert re.findall(r'<tr id="queue-(\w+)"', html) == [
        "unserved",
        "queue077",
        *(f"queue{number:03}" for number in range(0, 16, 2)),
    ]
    assert len(re.findall(r'<tr data-key="queue\d+"', html)) == 91
    assert "91 more queues of 101; 2 of all need care" in words(html)
    one = pages.get("/queues?q=QUEUE042", "ada")
    assert re.findall(r'<tr id="queue-(\w+)"', one) == ["queue042"]
    assert 'name="why"' in one
    assert "No queue matches" in words(pages.get("/queues?q=nothing"))


def test_a_queue_says_when_it_is_empty_and_how_long_its_jobs_waited(
    world: World, store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.web.site.STEP_SECONDS", 0.0)
    pages = Dashboard(create(lambda: Admin(store, PollNotifier(), settings), settings))
    worker = start(store, lease=3600.0)
    for _ in range(40):
        put(store)
    assert "being measured" in words(pages.get("/queues"))

    world.advance(20)
    for claimed in store.claim(worker, {"default": 10}, 10):
        store.finish([(Lease(claimed.id, claimed.attempt, worker), Completed("1"))])

    until(lambda: "empty in about 1m over the last 20s" in words(pages.get("/queues")), "the outlook")
    until(lambda: re.search(r"20s 95%: 20s", words(pages.get("/queues"))), "the latency", 30.0)
    world.advance(30)
    store.enqueue([draft() for _ in range(400)])
    until(lambda: "grows by" in words(pages.get("/queues")), "the outlook")


# ── Workers ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_shows_its_lease_its_jobs_and_what_is_wrong_with_it(pages: Dashboard, store: Store) -> None:
    lease = running(store, task="render")
    store.renew([lease.worker_id], notes={lease.worker_id: "its loop is blocked"}, memory={lease.worker_id: 61 << 20})

    html = pages.get("/workers")

    assert f'href="/jobs/{lease.job_id}"' in html
    assert "61 MiB" in html
    assert re.search(r"stalled\s+its loop is blocked", words(html))
    assert re.search(r"1\s+of\s+5\s+busy", words(html))


def test_the_dead_of_the_last_hour_are_shown_with_why(pages: Dashboard, world: World, store: Store) -> None:
    settled, silent, killed = running(store).worker_id, running(store).worker_id, running(store, task="render")
    store.settle(settled, {}, Crashed("killed by SIGKILL", process_died=True))
    store.settle(killed.worker_id, {}, Crashed("killed"), how="its process ended: signal 9 (SIGKILL)")
    world.advance(100)
    store.declare_expired()

    said = words(pages.get("/workers"))

    assert "No worker is alive" in said
    assert re.search(rf"{settled}.*its process ended", said)
    assert re.search(rf"{silent}.*its lease expired", said)
    assert re.search(rf"{killed.worker_id}.*signal 9 \(SIGKILL\)\s+it ran render {killed.job_id[-8:]}", said)


def crew(store: Store, hosts: int, each: int, **options: Any) -> list[str]:
    """Live workers on this many hosts; their ids."""
    found = [
        identity(id=f"host{host:03}-{number}-abc", host=f"host{host:03}", slots=10, queues=(f"queue{host}",), **options)
        for host in range(hosts)
        for number in range(each)
    ]
    for worker in found:
        store.register(worker)
    return [worker.id for worker in found]


def test_two_hundred_workers_are_folded_by_host_and_paged(pages: Dashboard, store: Store) -> None:
    ids = crew(store, 20, 10)
    store.renew([ids[0]], notes={ids[0]: "its loop is blocked"}, memory={ids[0]: 61 << 20})
    running(store, ids[0])

    first, second = pages.get("/workers"), pages.get("/workers?page=2")
    assert re.findall(r'href="/workers\?host=(host\d+)"', first) == [f"host{number:03}" for number in range(15)]
    assert re.findall(r'href="/workers\?host=(host\d+)"', second) == [f"host{number:03}" for number in range(15, 20)]
    assert re.search(r"host000 1 stalled 10 1 of 100 busy 61 MiB", words(first))
    assert "1 to 15 of 20 hosts" in words(first)
    assert re.search(r"Alive 200 Busy 1 Idle 199 Stalled 1 Draining 0 Ended 0", words(first))

    one = pages.get("/workers?host=host003")
    assert set(re.findall(r'id="worker-([^"]*)"', one)) == set(ids[30:37])
    stalled = pages.get("/workers?state=stalled")
    assert re.findall(r'id="worker-([^"]*)"', stalled) == [ids[0]]
    for text in ("host003-7-abc", "HOST003-7"):
        assert re.findall(r'id="worker-([^"]*)"', pages.get(f"/workers?q={text}")) == ["host003-7-abc"]
    assert len(re.findall(r'id="worker-', pages.get("/workers?q=queue19"))) == 7
    assert "No worker matches" in words(pages.get("/workers?q=nobody"))


def test_a_hundred_workers_of_one_host_are_paged(pages: Dashboard, store: Store) -> None:
    ids = crew(store, 1, 25)

    found = [re.findall(r'id="worker-([^"]*)"', pages.get(f"/workers?page={number}")) for number in (1, 2, 3, 4)]

    assert [len(each) for each in found] == [7, 7, 7, 4]
    assert {worker for each in found for worker in each} == set(ids)
    assert 'page=2"' in pages.get("/workers")


def test_of_many_that_ended_the_last_are_shown_and_all_are_a_click_away(pages: Dashboard, store: Store) -> None:
    ids = crew(store, 1, 14)
    store.declare_dead(ids)

    def listed(path: str) -> int:
        return len(re.findall(r'<tr data-key="host000', pages.get(path)))

    assert listed("/workers") == 3
    assert "All 14" in words(pages.get("/workers"))
    assert [listed("/workers?state=ended"), listed("/workers?state=ended&page=2")] == [7, 7]


def test_an_operator_drains_or_restarts_a_worker_or_cancels_its_jobs(pages: Dashboard, store: Store) -> None:
    lease = running(store)
    worker = lease.worker_id
    embedded = start(store, runner="embedded")
    html = pages.get("/workers", "ada")
    assert f'action="/workers/{worker}/drain"' in html
    assert f'action="/workers/{worker}/restart"' in html
    assert f'action="/workers/{embedded}/drain"' not in html
    assert "/drain" not in pages.get("/workers", "bob")
    pages.post(f"/workers/{worker}/drain", "bob", status=403)

    to = pages.post("/jobs/bulk/ask", "ada", verb="cancel", all="yes", worker=worker, back="/workers")
    assert "Cancel 1 job?" in words(pages.get(to, "ada"))
    assert pages.post(f"/workers/{worker}/restart", "ada", back="/workers?q=host") == "/workers?q=host"
    assert pages.post(f"/workers/{worker}/drain", "root") == "/workers"
    assert pages.post(f"/workers/{embedded}/restart", "ada") == "/workers"

    said = words(pages.get("/workers", "ada"))
    assert re.search(rf"{worker}.* draining restart ordered by ada, not begun yet", said)
    assert f'action="/workers/{worker}/drain"' not in pages.get("/workers", "ada")
    assert re.search(r"Draining 1", said)
    assert [order.verb for order in orders.open_orders(store)] == ["restart"]
    trail = [(each.who, each.action, each.subject) for each in Trail(store).entries().entries]
    assert trail == [("root", "workers.drain", worker), ("ada", "workers.restart", worker)]


# ── Try it ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("button", "task", "state", "count"),
    [
        ("success", "greet", State.QUEUED, 1),
        ("delayed", "later", State.SCHEDULED, 1),
        ("fails-once", "flaky", State.QUEUED, 1),
        ("fails-for-good", "doomed", State.QUEUED, 1),
        ("crash", "crash_once", State.QUEUED, 1),
        ("burst", "greet", State.QUEUED, 100),
    ],
)
def test_a_button_of_the_demo_enqueues_its_task(
    pages: Dashboard, store: Store, button: str, task: str, state: State, count: int
) -> None:
    assert pages.post(f"/try/{button}", "ada") == "/try"

    found = store.search(Filter(queue="demo"), limit=200).jobs
    assert [(job.task, job.state) for job in found] == [(task, state)] * count
    assert "ada" in pages.get("/audit")


def test_a_reset_takes_the_demos_jobs_and_no_other(pages: Dashboard, store: Store) -> None:
    put(store, queue="demo")
    kept = put(store, queue="mail")

    pages.post("/try/reset", "ada", status=422, confirm="mail")
    assert len(store.search(Filter(queue="demo")).jobs) == 1
    pages.post("/try/reset", "bob", status=403, confirm="demo")
    pages.post("/try/reset", "ada", confirm="demo")

    assert [job.id for job in store.search(Filter()).jobs] == [kept]


def test_without_a_demo_there_are_no_buttons(make: Make, store: Store) -> None:
    pages = make(demo=None)

    assert "/try" not in pages.get("/")
    pages.get("/try", status=404)
    pages.post("/try/success", status=404)
    assert not store.search(Filter()).jobs


# ── Audit ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_trail_is_for_admins_and_goes_on_page_by_page(pages: Dashboard, world: World, store: Store) -> None:
    for number in range(60):
        with Trail(store).recorded("ada@example.com", "queue.pause", f"q{number}"):
            world.advance(0.01)

    pages.get("/audit", "ada", status=403)
    assert 'href="/audit"' not in pages.get("/", "ada")
    first = pages.get("/audit")
    assert "ada@example.com" in first
    older = re.search(r'href="(/audit\?cursor=[^"]+)"', first)
    assert older
    second = pages.get(older[1])
    shown = [set(re.findall(r">(q\d+)<", html)) for html in (first, second)]
    assert len(shown[0]) == 50
    assert shown[0] | shown[1] == {f"q{number}" for number in range(60)}
    pages.get("/audit?cursor=yesterday", status=422)
    pages.get("/audit?cursor=2026-03-01", status=422)


# ── In a browser ────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def served(app: Any, at: str = "127.0.0.1:0") -> Generator[str]:
    ready = threading.Event()
    listening = listen_at(at)
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
def url(store: Store, jobs: Tenure, tmp_path: Path) -> Iterator[str]:
    """A dashboard where every visitor is `local`."""
    settings = load(environ={}, folder=tmp_path)
    with served(create(lambda: Admin(store, PollNotifier(), settings), settings, tasks=jobs.tasks, demo=DEMO)) as url:
        yield url


def live(tab: Tab) -> Tab:
    expect(tab.locator("#live")).to_have_text("live")
    return tab


def test_what_a_person_has_in_hand_survives_what_moves(url: str, store: Store, visits: Visits) -> None:
    put(store, queue="alpha")
    put(store, queue="omega")
    tab = visits(url)
    tab.goto("/")
    live(tab)
    tab.locator(".chart summary").first.click()
    row = tab.locator('[data-live="live_queues"] [data-key="omega"]')
    row.locator("a").focus()
    row.evaluate("row => { window.row = row }")

    put(store, queue="middle")

    expect(tab.locator('[data-key="middle"]')).to_be_visible()
    assert row.evaluate("row => row === window.row"), "the row was made anew"
    expect(row.locator("a")).to_be_focused()
    assert tab.locator(".chart details").first.evaluate("each => each.open")
    tab.goto("/try")
    live(tab).get_by_label("to confirm").fill("dem")
    put(store, queue="demo")
    expect(tab.locator('[data-live="live_demo"] tbody tr')).to_have_count(1)
    expect(tab.get_by_label("to confirm")).to_have_value("dem")


def test_a_paused_page_stands_still_and_catches_up(url: str, store: Store, visits: Visits) -> None:
    tab = visits(url)
    tab.goto("/try")
    live(tab).get_by_role("button", name="Pause").click()
    expect(tab.locator("#live")).to_have_text("paused")
    before = tab.locator("main").inner_html()
    put(store, queue="demo")
    with tab.expect_request("**/live?*"):
        tab.wait_for_function("() => new Promise(done => setTimeout(() => done(true), 700))")
        assert tab.locator("main").inner_html() == before
        tab.locator("#pause").click()
    expect(tab.locator('[data-live="live_demo"] tbody tr')).to_have_count(1)


def test_a_question_is_asked_first_and_no_means_no(url: str, store: Store, visits: Visits) -> None:
    put(store, queue="reports")
    tab = visits(url)
    tab.goto("/queues")
    pause = tab.locator("#queue-reports").get_by_role("button", name="Pause")
    pause.click()
    expect(tab.get_by_role("dialog")).to_contain_text("Pause queue reports?")
    tab.get_by_role("button", name="Cancel").click()
    assert not store.paused()
    pause.click()
    tab.get_by_role("button", name="Confirm").click()
    expect(tab.locator("#flash")).to_contain_text("Queue reports is paused")
    assert store.paused() == {"reports"}


def test_every_form_works_without_the_script(url: str, store: Store, visits: Visits) -> None:
    put(store, queue="reports")
    tab = visits(url, java_script_enabled=False)
    tab.goto("/queues")
    tab.locator("#queue-reports").get_by_role("button", name="Pause").click()
    expect(tab.locator("#flash")).to_contain_text("Queue reports is paused")
    tab.goto("/try")
    expect(tab.locator("main time").first).to_have_count(0)
    tab.get_by_role("button", name="Burst of 100").click()
    expect(tab.locator("#flash")).to_contain_text("100 jobs enqueued")
    expect(tab.locator("main time").first).to_contain_text("UTC")
    expect(tab.locator("#live")).to_be_hidden()


def test_times_are_the_readers_own_with_utc_on_hover(url: str, store: Store, visits: Visits) -> None:
    with Trail(store).recorded("operator", "queue.pause", "a"):
        pass
    at = store.now()
    tab = visits(url, timezone_id="Asia/Tokyo")
    tab.goto("/audit")
    time = tab.locator("main time").first
    expect(time).to_contain_text(f"{at + timedelta(hours=9):%H:%M}")
    assert f"{at:%H:%M}" in (time.get_attribute("title") or "")
    assert (time.get_attribute("title") or "").endswith("UTC")


@pytest.mark.parametrize(
    ("status", "event", "sign", "says"),
    [
        (200, '{"away": "connection refused"}', "store away", "The store can't be read: connection refused"),
        (200, '{"gone": "no job 1"}', "not live", "no job 1"),
        (401, "", "signed out", "You are signed out"),
    ],
)
def test_old_values_stay_and_are_marked(
    url: str, store: Store, visits: Visits, status: int, event: str, sign: str, says: str
) -> None:
    put(store, queue="reports")
    tab = visits(url)
    visits.excuse(tab, "401")

    def answer(route: Route) -> None:
        body = f"retry: 60000\n\ndata: {event}\n\n"
        route.fulfill(status=status, content_type="text/event-stream", body=body)

    tab.route("**/live?*", answer)
    tab.goto("/queues")
    expect(tab.locator("#live")).to_have_text(sign)
    expect(tab.locator("#trouble")).to_contain_text(says)
    expect(tab.locator("#queue-reports")).to_be_visible()
    assert tab.locator("html").evaluate("html => html.classList.contains('stale')")
    tab.unroute_all(behavior="wait")  # the page goes on asking, and an answer after it is closed is an error


def test_a_dashboard_that_goes_away_is_told_and_found_again(
    store: Store, jobs: Tenure, tmp_path: Path, visits: Visits
) -> None:
    settings = load(environ={}, folder=tmp_path)
    app = create(lambda: Admin(store, PollNotifier(), settings), settings, tasks=jobs.tasks, demo=DEMO)
    # Twice at the same port: one that no client gets for its own end of a connection meanwhile.
    with served(app, f"127.0.0.1:{free_port()}") as url:
        tab = visits(url)
        visits.excuse(tab, "net::ERR_")
        tab.goto("/try")
        live(tab)
    expect(tab.locator("#live")).to_have_text("reconnecting…")
    expect(tab.locator("#trouble")).to_contain_text("does not answer")
    put(store, queue="demo")
    with served(app, url.removeprefix("http://")):
        live(tab)
        expect(tab.locator("#trouble")).to_be_empty()
        expect(tab.locator('[data-live="live_demo"] tbody tr')).to_have_count(1)
