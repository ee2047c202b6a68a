"""Every page at every width and in both colour schemes, for keyboards and screen readers, and over a long time.

What is asked here does not depend on the store: one is enough, with something of everything in it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (axe-playwright-python and Chromium's own protocol leave their answers untyped)
from __future__ import annotations

import re
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import CDPSession, Page, ViewportSize, expect

from conformance.factories import put
from crash.backends import Place, by_way_of, postgres, redis
from crash.harness import FULL
from proxy import Proxy
from tenure.config import load
from tenure.core.lifecycle import Lease
from tenure.ports import Progress
from tenure.worker.job_log import LogLine, encode

from .browser import NARROW, PATIENCE_SECONDS, WIDE, System, Visits, sign_in, system
from .stock import Stock, stock

pytestmark = pytest.mark.timeout(300)

Scheme = Literal["light", "dark"]
ADA = "0123456789-secret-of-ada"
LONG = "-of-a-name-that-has-no-place-to-break" * 2
SIDEWAYS = """() => document.documentElement.scrollWidth <= innerWidth ? [] :
    [...document.querySelectorAll('body *')].filter(each => each.getBoundingClientRect().right > innerWidth + 1)
        .slice(-5).map(each => each.outerHTML.slice(0, 200))"""

CRAMPED = """() => [...document.querySelectorAll('.head > .grow')]
    .filter(each => each.scrollWidth > each.clientWidth + 1 || each.clientWidth < 160)
    .map(each => each.outerHTML.slice(0, 200))"""


def say(field: str) -> str:
    return f"{field.replace(' ', '-')}{LONG}"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("demo")
    with system(f"sqlite:///{folder / 'tenure.db'}", folder, "demo", "--web", TENURE_TOKENS=f"ada:admin:{ADA}") as live:
        yield live


@pytest.fixture(scope="module")
def stocked(live: System) -> Stock:
    return stock(live.store, load({"url": live.store.url}), say)


_KINDS = ("processing", "completed", "crashed", "edited", "cancelled", "scheduled", "waiting", "signalled", "parked")


def pages(stocked: Stock) -> list[str]:
    """One of each kind, and those that report an error."""
    jobs = stocked.jobs
    return [
        "/",
        "/jobs",
        "/jobs?state=cancelled&text=nowhere",
        "/jobs?last=soon",
        *(f"/jobs/{jobs[kind]}" for kind in _KINDS),
        f"/jobs/{jobs['dead']}",
        f"/jobs/{jobs['dead']}/edit",
        f"/jobs/bulk?verb=delete&all=yes&queue={say('queue')}",
        f"/jobs/bulk?verb=cancel&id={jobs['queued']}",
        "/flows",
        "/flows?stands=held&q=nowhere",
        f"/flows/{stocked.flow}",
        "/queues",
        "/limits",
        *(f"/limits/show?{urlencode({'name': name})}" for name in stocked.key),
        "/workers",
        "/schedules",
        f"/schedules/{stocked.schedules[0]}?since=2020-01-01T00:00&until=2020-01-03T00:00",
        "/dead",
        "/audit",
        "/try",
        "/nowhere",
    ]


def violations(page: Page, where: str) -> list[str]:
    found = Axe().run(page, options={"resultTypes": ["violations"], "preload": False}).response["violations"]
    return [
        f"{where}: {each['id']}: {node['html'][:200]} {node['failureSummary']}"
        for each in found
        for node in each["nodes"]
    ]


@pytest.mark.timeout(900)  # axe computes for seconds on each of sixty looks, and a limit that ends it ends Playwright
def test_no_page_scrolls_sideways_and_axe_finds_nothing_wide_and_narrow_light_and_dark(
    live: System, stocked: Stock, visits: Visits
) -> None:
    page = visits(
        live.url, bypass_csp=True, reduced_motion="reduce"
    )  # axe is a script, and colours that fade mislead it
    visits.excuse(page, "404", "422")
    page.goto("/login")
    wrong = violations(page, "/login")
    sign_in(page, ADA)
    looks: list[tuple[ViewportSize, Scheme]] = [(WIDE, "light"), (NARROW, "dark")]
    for path in pages(stocked):
        page.goto(path)
        for width, scheme in product((WIDE, NARROW), ("light", "dark")) if FULL else looks:
            page.set_viewport_size(width)
            page.emulate_media(color_scheme=scheme)
            where = f"{path} at {width['width']} px, {scheme}"
            wrong += [f"{where} scrolls sideways: {html}" for html in page.evaluate(SIDEWAYS)]
            wrong += [f"{where} is too narrow for its text: {html}" for html in page.evaluate(CRAMPED)]
            wrong += violations(page, where)
    page.goto("/queues")
    page.get_by_role("button", name="Pause queue demo").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    wrong += violations(page, "the dialog")
    assert not wrong, "\n".join(wrong)


def test_without_a_script_a_page_is_complete_and_its_forms_work(live: System, stocked: Stock, visits: Visits) -> None:
    page = visits(live.url, java_script_enabled=False)
    visits.excuse(page, "404", "422")
    sign_in(page, ADA)
    for path in pages(stocked):
        page.goto(path)
        assert page.locator("main").inner_text().strip()
        assert page.locator(".js-only:visible").count() == 0, path
    page.goto("/try")
    page.get_by_role("button", name="Success").click()
    expect(page.locator("#flash")).to_contain_text("Success: job ")
    page.goto(f"/jobs/{stocked.jobs['scheduled']}")
    expect(page.locator(".stands .state").first).to_have_text("scheduled")
    page.goto("/queues")
    page.get_by_role("button", name="Pause queue demo").click()
    expect(page.locator("#flash")).to_contain_text("Queue demo is paused")
    page.get_by_role("button", name="Resume queue demo").click()
    expect(page.locator("#flash")).to_contain_text("Queue demo is resumed")


def test_a_keyboard_goes_everywhere_and_what_a_person_has_in_hand_stays_while_the_page_moves(
    live: System, stocked: Stock, visits: Visits
) -> None:
    page = visits(live.url)
    sign_in(page, ADA)
    page.goto("/jobs")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("[data-search]")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("[data-search]")).not_to_be_focused()

    page.goto("/queues")
    button = page.get_by_role("button", name="Pause queue demo")
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    for _ in range(5):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement === document.body || !!document.activeElement.closest('dialog')")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(button).to_be_focused()
    assert "demo" not in live.store.paused()

    job = stocked.jobs["processing"]
    page.goto(f"/jobs?queue={say('queue')}")
    row = page.locator(f'[data-key="{job}"]')
    page.locator("details summary").first.click()
    page.get_by_label("Search", exact=True).fill("typed")
    row.get_by_role("checkbox").check()
    row.get_by_role("checkbox").focus()
    _move(live, stocked, page, times=8)
    expect(row.get_by_role("checkbox")).to_be_checked()
    expect(row.get_by_role("checkbox")).to_be_focused()
    expect(page.get_by_label("Search", exact=True)).to_have_value("typed")
    expect(page.locator("details").first).to_have_attribute("open", "")

    page.goto(f"/jobs/{job}")
    log = page.locator('.timeline > [data-key="attempt-1"] details', has_text="Log")
    log.locator("summary").click()
    page.get_by_label("Reason (optional)").fill("because")
    _move(live, stocked, page, times=8)
    expect(log).to_have_attribute("open", "")
    expect(page.get_by_label("Reason (optional)")).to_be_focused()
    expect(page.get_by_label("Reason (optional)")).to_have_value("because")


def test_what_a_person_confirms_is_done_or_nothing_is(live: System, visits: Visits) -> None:
    """While the question stands, somebody else pauses the queue: its button resumes it now."""
    page = visits(live.url)
    sign_in(page, ADA)
    page.goto("/queues")
    posts = list[str]()
    page.on("request", lambda request: posts.append(request.url) if request.method == "POST" else None)
    page.get_by_role("button", name="Pause queue demo").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    live.store.pause("demo", paused=True)
    try:
        expect(page.locator('form[action$="/queues/demo/resume"]')).to_have_count(1)
        dialog.locator("button[value=yes]").click()
        expect(dialog).to_be_hidden()
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        assert posts == []
        assert "demo" in live.store.paused()
    finally:
        live.store.pause("demo", paused=False)


def test_what_is_selected_stays_when_the_list_becomes_empty(live: System, visits: Visits) -> None:
    job = put(live.store, queue="emptied")
    page = visits(live.url)
    sign_in(page, ADA)
    page.goto("/jobs?queue=emptied&state=queued")
    row = page.locator(f'[data-key="{job}"]')
    row.get_by_role("checkbox").check()

    live.store.cancel([job], "not wanted")

    expect(page.get_by_text("No job matches")).to_be_visible()
    expect(row).to_have_class(re.compile("left"))
    expect(row.get_by_role("checkbox")).to_be_checked()
    expect(page.locator("[data-chosen]")).to_have_text("1")


def test_a_stream_that_says_nothing_for_long_is_opened_again(live: System, visits: Visits) -> None:
    page = visits(live.url)
    sign_in(page, ADA)
    page.clock.install()
    page.goto("/queues")
    expect(page.locator("#live")).to_have_text("live")

    with page.expect_request(lambda request: "/live?" in request.url):
        page.clock.fast_forward(41_000)

    expect(page.locator("#live")).to_have_text("live")


def _move(live: System, stocked: Stock, page: Page, *, times: int) -> None:
    """The job reports this many times, and the page shows it each time."""
    lease = Lease(stocked.jobs["processing"], 1, stocked.worker)
    for number in range(times):
        message = f"round {number}"
        log = encode([LogLine(live.store.now(), "info", message)])
        report = Progress(lease=lease, fraction=number / times, message=message, log=log)
        assert live.store.progress([report]) == [True]
        expect(page.locator("main")).to_contain_text(message)


def test_a_tab_left_open_grows_no_nodes_and_no_listeners(live: System, stocked: Stock, visits: Visits) -> None:
    """Hours of news, faster: what the stream told is told to the page's own handler two hundred times."""
    page = visits(live.url)
    sign_in(page, ADA)
    page.add_init_script(
        """window.told = [];
        window.EventSource = class extends EventSource {
            constructor(...all) {
                super(...all);
                window.stream = this;
                this.addEventListener('message', (event) => told.push(event.data));
            }
        }"""
    )
    for path in ("/", f"/jobs?queue={say('queue')}", f"/jobs/{stocked.jobs['processing']}"):
        page.goto(path)
        page.wait_for_function("() => told.length > 0")
        lease = Lease(stocked.jobs["processing"], 1, stocked.worker)
        live.store.progress([Progress(lease=lease, fraction=0.9, message=f"at {path}")])
        page.wait_for_function("() => told.length > 1")
        page.evaluate(
            """() => { window.first = told[0]; window.last = told.at(-1); stream.close();
            window.tell = async (times) => {
                for (let n = 0; n < times; n++) {
                    stream.onmessage({ data: n % 2 ? last : first });
                    await new Promise(requestAnimationFrame);
                }
            } }"""
        )
        memory = page.context.new_cdp_session(page)
        page.evaluate("tell(20)")
        before = _counted(memory)
        page.evaluate("tell(200)")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while grown := _grown(before, after := _counted(memory)):  # not all that is garbage goes at once
            assert time.monotonic() < deadline, f"{path}: {', '.join(grown)}: {before} → {after}"
            page.wait_for_timeout(200)


def _grown(before: dict[str, int], after: dict[str, int]) -> list[str]:
    most = {"nodes": 50, "jsEventListeners": 2, "documents": 0}
    return [what for what in most if after[what] - before[what] > most[what]]


def _counted(memory: CDPSession) -> dict[str, int]:
    memory.send("HeapProfiler.collectGarbage")
    return memory.send("Memory.getDOMCounters")


@pytest.fixture(params=[postgres, redis] if FULL else [postgres], ids=lambda place: place.__name__)
def far(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store that is a server, and so can be away."""
    with request.param(tmp_path) as place:
        yield place


def test_while_the_store_is_away_pages_say_so_keep_what_they_know_and_recover_by_themselves(
    far: Place, tmp_path: Path, visits: Visits
) -> None:
    server = urlsplit(far.url)
    with Proxy(server.hostname or "", server.port or 0) as proxy:
        away = by_way_of(far.url, proxy.port)
        with system(far.url, tmp_path, "demo", "--web", namespace=far.namespace, by_way_of=away) as live:
            page = visits(live.url)
            visits.excuse(page, "503")
            page.goto("/")
            page.evaluate("window.marker = 1")
            completed = page.locator(".figures a", has_text="completed").locator(".big")
            expect(completed).not_to_have_text("0")
            known = int(completed.inner_text())

            proxy.refuse()
            expect(page.locator("#trouble")).to_contain_text("The store can't be read")
            expect(page.locator("#live")).to_have_text("store away")
            assert int(completed.inner_text()) >= known  # the last that it was told: jobs went on ending till then
            other = page.context.new_page()
            other.goto("/audit")  # nobody has read it yet, so nothing of it is known
            expect(other.get_by_role("heading", name="The store is away")).to_be_visible()

            proxy.heal()
            expect(page.locator("#trouble")).to_be_empty()
            expect(page.locator("#live")).to_have_text("live")
            assert page.evaluate("window.marker") == 1
            other.get_by_role("link", name="Try again").click()
            expect(other.get_by_role("heading", name="Audit")).to_be_visible()
