"""Three in the morning: from the overview to each cause and to its cure, by buttons, in few clicks.

Two handlers hang in all slots of the workers, so the queue behind them is late; a job has killed its process;
somebody has paused a queue, and its nightly schedule is late. `TENURE_TEST_PICTURES=FOLDER` keeps a picture of
each step, wide and on a phone, light and dark.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from conformance.factories import World, claim, draft, finish, put, start
from tenure.config import load
from tenure.core.ids import new_id
from tenure.core.lifecycle import Cancelled, Completed, Crashed, Failed, Lease, State
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.ports import Filter, Progress, Store
from tenure.ports.schedules import Schedule
from tenure.schedules.timetable import Timetable
from tenure.stores.sqlite import SqliteStore
from tenure.web.dashboard import create
from tenure.web.server import Server, listen_at, url_of

from .browser import Visits

WIDE, PHONE = ViewportSize(width=1440, height=900), ViewportSize(width=390, height=844)
PICTURES = os.environ.get("TENURE_TEST_PICTURES", "")
NIGHT = 3600.0 + 1080.0  #: seconds that have passed when somebody looks

pytestmark = pytest.mark.usefixtures("unhurried")


@dataclass
class Night:
    """A store in trouble, its workers' hands, and the jobs that hang."""

    world: World
    store: Store
    url: str
    worker: str = ""
    hung: list[Lease] = field(default_factory=list[Lease])
    poison: str = ""

    def work(self) -> None:
        """The workers run all that they may, and end what was cancelled."""
        for lease in self.hung:
            job = self.store.get(lease.job_id)
            if job is not None and job.state is State.PROCESSING and job.cancel_reason is not None:
                finish(self.store, lease, Cancelled(job.cancel_reason))
        if any(
            job.state is State.PROCESSING for job in map(self.store.get, (each.job_id for each in self.hung)) if job
        ):
            return
        for queue in ("default", "reports"):
            for claimed in claim(self.store, self.worker, 50, queue=queue):
                finish(self.store, Lease(claimed.id, claimed.attempt, self.worker), Completed())


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    world = World(lambda clock: SqliteStore(str(tmp_path / "tenure.db"), clock=clock))
    world._unix = time.time() - NIGHT  # pages show ages by the browser's clock
    store, settings = world.store(), load(environ={}, folder=tmp_path)
    with served(store, settings) as url:
        night = Night(world, store, url)
        trouble(night)
        yield night
    world.close()


@contextmanager
def served(store: Store, settings: object) -> Generator[str]:
    ready, listening = threading.Event(), listen_at("127.0.0.1:0")
    server = Server(create(lambda: Admin(store, PollNotifier(), settings), settings), ready.set)  # type: ignore[arg-type]
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    try:
        assert ready.wait(60)
        yield url_of(listening)
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()


def trouble(night: Night) -> None:
    world, store = night.world, night.store
    options = {"slots": 2, "lease": 86_400.0, "tasks": ("render", "thumbnail", "send", "digest")}
    night.worker = start(store, id="shop-1-4711-8f3a", host="shop-1", queues=("default", "reports"), **options)
    timetable = Timetable(store, PollNotifier())
    job = draft(id="", task="digest", queue="reports")
    timetable.put(Schedule(name="nightly-digest", rule="every 1h", job=job))
    for _ in range(8):
        lived(night, put(store, id=new_id(), task="render"), 2.0)
    world.advance(NIGHT - 1080 - 16)
    night.poison = put(store, id=new_id(), task="thumbnail", max_crashes=0, payload='{"picture": 4711}')
    (claimed,) = claim(store, night.worker)
    killed = Crashed("its process was killed by SIGKILL", at_fault=True, evidence={"signal": "SIGKILL"})
    assert finish(store, Lease(claimed.id, claimed.attempt, night.worker), killed) is State.DEAD
    store.pause("reports", paused=True)
    for _ in range(2):
        put(store, id=new_id(), task="render", payload='{"page": 7}')
    for claimed in claim(store, night.worker, 2):
        night.hung.append(Lease(claimed.id, claimed.attempt, night.worker))
    store.progress([Progress(lease=night.hung[0], stage="render", message="page 7 of 12")])
    for number in range(14):
        put(store, id=new_id(), task="send", payload=f'{{"order": {number}}}')
    timetable.fire_due()
    world.advance(1080)
    timetable.fire_due()


def lived(night: Night, job_id: str, seconds: float) -> None:
    (claimed,) = claim(night.store, night.worker)
    night.world.advance(seconds)
    finish(night.store, Lease(claimed.id, claimed.attempt, night.worker), Completed())
    assert claimed.id == job_id


class Hands:
    """Somebody who clicks, with a count of the clicks."""

    def __init__(self, page: Page) -> None:
        self.page, self.clicks, self.steps = page, 0, 0

    def click(self, name: str, role: str = "button") -> None:
        self.page.locator("main").get_by_role(role, name=name).first.click()  # type: ignore[arg-type]
        self.clicks += 1

    def look(self, name: str) -> None:
        """A picture of this step, if anybody wants one."""
        self.steps += 1
        if PICTURES:
            Path(PICTURES).mkdir(parents=True, exist_ok=True)
            for size, device in ((WIDE, "wide"), (PHONE, "phone")):
                for scheme in ("light", "dark"):
                    self.page.set_viewport_size(size)
                    self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
                    at = Path(PICTURES) / f"{self.steps}-{name}-{device}-{scheme}.png"
                    self.page.screenshot(path=at, full_page=True)
            self.page.set_viewport_size(WIDE)


def test_from_the_overview_to_each_cause_and_its_cure_in_six_clicks(night: Night, visits: Visits) -> None:
    page = visits(night.url, viewport=WIDE)
    hands = Hands(page)
    page.goto("/")
    notes = page.locator(".note")

    expect(notes).to_have_count(3)
    paused, held, dead = (notes.nth(number) for number in range(3))
    expect(paused).to_contain_text("queue reports has been paused for 18m")
    expect(paused.locator("summary")).to_have_text("It causes 1 queue that is behind, 1 late schedule")
    expect(held).to_contain_text(
        "2 jobs of render have reported nothing for 18m, and hold all 2 slots of shop-1-4711-8f3a: nothing else can "
        "start there; 14 queued jobs can't start"
    )
    expect(held.locator("summary")).to_have_text("It causes 1 task with jobs that hang, 1 queue that is behind")
    expect(dead).to_contain_text("its process was killed by SIGKILL")
    hands.look("overview")

    hands.click("Resume queue reports")
    expect(page.locator("#flash")).to_contain_text("Queue reports is resumed")
    expect(notes.first).to_contain_text("Silent jobs hold every slot")
    hands.look("resumed")

    hands.click("Cancel 2 jobs…")
    hands.look("cancel")
    hands.click("Cancel 2 jobs")
    expect(page.locator("#flash")).to_contain_text("2 jobs cancelled or asked to stop")
    night.work()
    hands.look("cancelled")

    expect(notes).to_have_count(1)
    hands.click("Dead letters", "link")
    expect(page.locator("main")).to_contain_text("its process was killed by SIGKILL")
    hands.look("dead-letters")
    hands.click("Replay…")
    hands.look("replay")
    hands.click("Replay 1 job")
    expect(page.locator("#flash")).to_contain_text("1 job queued again, 60 a minute")
    (job,) = night.store.search(Filter(task="thumbnail")).jobs
    assert (job.id, job.state) == (night.poison, State.QUEUED)
    night.work()

    page.goto("/")
    expect(page.locator("main")).to_contain_text("No problems.")
    hands.look("well")
    assert hands.clicks <= 6, hands.clicks


def test_in_trouble_of_every_size_the_overview_is_at_most_three_screens(night: Night, visits: Visits) -> None:
    store, timetable = night.store, Timetable(night.store, PollNotifier())
    night.world._unix -= 4300  # pages show ages by the browser's clock
    start(store, id="shop-2-1-aa", lease=86_400.0, queues=())
    for number in range(60):
        job = draft(id="", task=f"task{number}", queue=f"queue-{number}")
        timetable.put(Schedule(name=f"schedule-{number:02}", rule="every 1h", job=job))
    for number in range(100):
        put(store, id=new_id(), queue=f"queue-{number}", task=f"task{number}")
    night.world.advance(3600)
    timetable.fire_due()
    night.world.advance(700)
    timetable.fire_due()
    page = visits(night.url, viewport=WIDE)
    page.goto("/")
    expect(page.locator(".problems")).to_contain_text("more late schedules")
    Hands(page).look("big")
    for size in (WIDE, PHONE):
        page.set_viewport_size(size)
        height = page.evaluate("document.querySelector('[data-live=live_problems]').getBoundingClientRect().bottom")
        assert height <= 3 * size["height"], (size, height)
    page.set_viewport_size(WIDE)
    assert page.evaluate("document.documentElement.scrollHeight") <= 3 * WIDE["height"]


def test_on_a_phone_the_overview_with_three_problems_is_at_most_three_screens(night: Night, visits: Visits) -> None:
    beside(night)
    page = visits(night.url, viewport=PHONE)
    page.goto("/")
    expect(page.locator(".note")).to_have_count(3)
    expect(page.get_by_role("table", name="Queues").locator("tbody tr:visible")).to_have_count(3)
    completed = page.get_by_role("table", name="Jobs that completed last", include_hidden=True).locator("tbody tr")
    expect(completed).to_have_count(10)
    expect(completed.locator("visible=true")).to_have_count(0)
    Hands(page).look("busy")
    page.set_viewport_size(PHONE)
    height = page.evaluate("document.documentElement.scrollHeight")
    assert height <= 3 * PHONE["height"], height / PHONE["height"]

    page.get_by_label("Show all 10 jobs that completed last").check()
    expect(completed.locator("visible=true")).to_have_count(10)
    page.set_viewport_size(WIDE)
    expect(completed.locator("visible=true")).to_have_count(10)


def beside(night: Night) -> None:
    """Other queues, whose worker is busy, and from which jobs have completed just now."""
    store = night.store
    queues = tuple(f"queue-{number}" for number in range(5))
    worker = start(store, id="shop-2-1-aa", lease=86_400.0, slots=30, queues=queues, tasks=("send",))
    for queue in queues:
        for _ in range(4):
            put(store, id=new_id(), queue=queue, task="send")
        for done in claim(store, worker, 3, queue=queue)[:2]:
            finish(store, Lease(done.id, done.attempt, worker), Completed())
    night.world.advance(1)


def test_on_a_phone_a_long_list_is_folded_until_all_of_it_is_asked_for(night: Night, visits: Visits) -> None:
    store, timetable = night.store, Timetable(night.store, PollNotifier())
    worker = start(store, id="shop-2-1-aa", lease=86_400.0, slots=60, queues=("many",))
    for ends in ("dies", "runs", "waits"):
        for number in range(30):
            put(store, id=new_id(), queue="many", task=f"{ends}_{number}", payload='{"user": 4711}')
        for claimed in claim(store, worker, 30, queue="many") if ends != "waits" else ():
            lease = Lease(claimed.id, claimed.attempt, worker)
            assert ends == "runs" or finish(store, lease, Failed(f"order {claimed.id}", final=True)) is State.DEAD
    for number in range(30):
        put(store, id=new_id(), queue=f"queue-{number}")
        job = draft(id="", task=f"task{number}", queue="many")
        timetable.put(Schedule(name=f"schedule-{number:02}", rule="every 1h", job=job))
    for _ in range(12):
        night.world.advance(3600)
        timetable.fire_due()
    page = visits(night.url, viewport=PHONE)
    heights = dict[str, float]()
    for path in ("/jobs", "/dead", "/queues", "/workers", "/schedules", "/schedules/schedule-07", "/ticks", "/tasks"):
        page.goto(path)
        heights[path] = page.evaluate("document.documentElement.scrollHeight") / PHONE["height"]
    assert max(heights.values()) <= 3, heights

    page.goto("/dead")
    letters = page.get_by_role("table", name="Dead letters").locator("tbody tr:visible")
    expect(letters).to_have_count(5)
    page.get_by_label("Show all 25 rows").check()
    expect(letters).to_have_count(25)
    (claimed,) = claim(store, worker, 1, queue="many")
    finish(store, Lease(claimed.id, claimed.attempt, worker), Failed("the last one", final=True))
    expect(letters.first).to_contain_text("the last one")  # an update folds nothing
    expect(letters).to_have_count(25)


#: Times that overflow their card, and what overlaps in a card: a time of another day is long.
LEAVES = """() => [...document.querySelectorAll('main time')].filter(each => {
        const box = each.getBoundingClientRect(), card = each.closest('dd, td, li, p, .panel') || document.body
        const around = card.getBoundingClientRect()
        return box.width && box.right > around.right + 1 })
    .map(each => 'leaves its card: ' + each.parentElement.outerHTML.slice(0, 200))"""
OVERLAPS = """() => [...document.querySelectorAll('.cards tbody tr')].flatMap(row => {
        const parts = [...row.querySelectorAll('a, button, time, small, .pick input, .says .clip')]
            .filter(each => each.getBoundingClientRect().width && !each.closest('.vh'))
        return parts.flatMap((one, at) => parts.slice(at + 1).filter(other => {
            if (one.contains(other) || other.contains(one)) return false
            const a = one.getBoundingClientRect(), b = other.getBoundingClientRect()
            return Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
                && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1
        }).map(other => 'overlap: ' + one.outerHTML.slice(0, 120) + ' and ' + other.outerHTML.slice(0, 120))) })"""


def test_on_a_phone_nothing_overlaps_and_no_time_leaves_its_card_days_later(night: Night, visits: Visits) -> None:
    long = "a-task-with-quite-a-long-name.of_a_module_deep_inside.the_package"
    put(night.store, id=new_id(), task=long, queue=long[:60], payload='{"user": 4711, "note": "%s"}' % (9 * "long "))
    page = visits(night.url, viewport=PHONE)
    page.clock.set_fixed_time(time.time() + 3 * 86_400)
    wrong = list[str]()
    paths = ["/", "/jobs", "/dead", "/queues", "/workers", "/schedules", "/schedules/nightly-digest", "/audit"]
    for path in [*paths, f"/jobs/{night.poison}", f"/jobs/{night.hung[0].job_id}"]:
        for size in (PHONE, ViewportSize(width=1024, height=800), WIDE):
            page.set_viewport_size(size)
            page.goto(path)
            found = page.evaluate(LEAVES) + (page.evaluate(OVERLAPS) if size is PHONE else [])
            wrong += [f"{path} at {size['width']} px: {each}" for each in found]
        Hands(page).look(f"later{path.replace('/', '-')[:20]}")
    assert not wrong, "\n".join(wrong)
