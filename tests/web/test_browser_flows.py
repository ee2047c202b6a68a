"""Flows and signals in a real browser: the graph moves, keys reach its boxes, and each button and form does its work.

No worker runs: each step is played here, on the store.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from conformance.factories import claim, draft, finish, look, put, start
from conformance.test_waiting import after, settle_waits
from crash.backends import Place
from tenure.core.clock import system_clock
from tenure.core.ids import new_id
from tenure.core.lifecycle import Completed, Failed, Lease, Outcome, State, Suspended
from tenure.ports import Draft, Store

from .browser import System, Visits, system

pytestmark = pytest.mark.timeout(300)
DEAD = Failed("OSError: no space left on device", final=True)


@pytest.fixture(scope="module")
def live(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("dashboard")
    with system(place.url, folder, "dashboard", namespace=place.namespace) as live:
        yield live


def report(store: Store, name: str, pages: int = 20) -> tuple[str, list[Draft]]:
    """A flow in a queue of its own: its pages, what combines them, and a mail."""
    flow = new_id()
    parts = [draft(id=new_id(), task="render", queue=name, links=after(flow=flow, name=name)) for _ in range(pages)]
    links = after(*(each.id for each in parts), flow=flow, name=name)
    whole = draft(id=new_id(), task="combine", queue=name, links=links)
    mail = draft(id=new_id(), task="mail", queue=name, links=after(whole.id, flow=flow, name=name))
    store.enqueue([*parts, whole, mail])
    settle_waits(store)
    return flow, [*parts, whole, mail]


def work(store: Store, queue: str, *outcomes: Outcome) -> list[str]:
    """The oldest jobs of this queue end with these outcomes, in order."""
    worker = start(store, queues=(queue,), boot_id=system_clock().boot_id)
    claimed = claim(store, worker, len(outcomes), queue=queue)
    assert len(claimed) == len(outcomes)
    for each, outcome in zip(claimed, outcomes, strict=True):
        finish(store, Lease(each.id, each.attempt, worker), outcome)
    settle_waits(store)
    return [each.id for each in claimed]


def box(page: Page, task: str) -> Locator:
    return page.locator(".graph a.box", has_text=task)


def confirm(page: Page, button: str, says: str) -> None:
    page.locator("main").get_by_role("button", name=button).first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    dialog.get_by_role("button", name="Confirm").click()
    expect(page.locator("#flash")).to_contain_text(says)


def test_the_graph_moves_with_the_flow_and_its_dead_job_is_left_behind(live: System, visits: Visits) -> None:
    store, page = live.store, visits(live.url)
    flow, _ = report(store, "monthly")
    page.goto("/flows")
    page.get_by_role("link", name="monthly").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("monthly")
    page.evaluate("window.marker = 1")
    expect(box(page, "render")).to_contain_text("0 of 20")
    expect(box(page, "combine")).to_contain_text("waiting")

    dead = work(store, "monthly", DEAD, *[Completed("1")] * 9)[0]

    expect(box(page, "render")).to_contain_text("9 of 20 · 1 dead")
    expect(page.locator(".graph .arrow.held")).to_have_count(1)
    expect(page.locator("#step-0")).to_contain_text("dead 1")
    work(store, "monthly", *[Completed("1")] * 10)
    expect(page.locator(".stands .state").first).to_have_text("held")
    assert page.evaluate("window.marker") == 1, "it was loaded again"

    confirm(page, f"Go on without it {dead[-8:]}", "skipped: what waited for it goes on")
    settle_waits(store)
    expect(box(page, "combine")).to_contain_text("queued")
    expect(page.locator(".graph .arrow.held")).to_have_count(0)
    assert page.url.endswith(f"/flows/{flow}")


def test_a_keyboard_reaches_the_boxes_and_they_lead_to_their_jobs(live: System, visits: Visits) -> None:
    store, page = live.store, visits(live.url)
    flow, drafts = report(store, "keys", pages=3)
    page.goto(f"/flows/{flow}")
    page.get_by_role("region", name="Graph of the steps").focus()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="render: 3 jobs, 3 queued")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="combine: 1 job, 1 waiting")).to_be_focused()
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert page.url.endswith(f"/jobs/{drafts[3].id}")
    expect(page.locator("main")).to_contain_text("0 of 3 have ended; it waits for 3.")
    page.go_back()
    with page.expect_navigation():
        box(page, "render").click()
    expect(page.locator("main form tbody tr")).to_have_count(3)
    expect(page.get_by_label("Flow", exact=True)).to_have_value(flow)


def test_what_is_dead_is_replayed_and_a_flow_is_cancelled_once_it_is_confirmed(live: System, visits: Visits) -> None:
    store, page = live.store, visits(live.url)
    flow, drafts = report(store, "again", pages=3)
    dead = work(store, "again", DEAD, DEAD, Completed("1"))[:2]
    page.goto(f"/flows/{flow}")

    confirm(page, "Replay all", "2 jobs queued again")
    assert {look(store, each).state for each in dead} == {State.QUEUED}
    expect(page.get_by_role("heading", name="dead job")).to_have_count(0)

    page.get_by_label("Reason (optional)").fill("not wanted")
    page.get_by_role("button", name="Cancel its jobs").click()
    page.keyboard.press("Escape")
    assert look(store, drafts[-1].id).state is State.WAITING, "it was not confirmed"
    confirm(page, "Cancel its jobs", "4 jobs cancelled")
    expect(page.locator(".stands .state").first).to_have_text("cancelled")
    assert look(store, drafts[-1].id).cancel_reason == "not wanted"


def test_a_signal_is_sent_by_its_form_and_what_was_typed_outlives_a_mistake(live: System, visits: Visits) -> None:
    store, page = live.store, visits(live.url)
    visits.excuse(page, "422")
    job_id = put(store, id=new_id(), task="approve", queue="desk")
    work(store, "desk", Suspended("for a signal", signal="own:approved", timeout=3600.0))
    page.goto(f"/jobs/{job_id}")
    expect(page.locator(".stands .state").first).to_have_text("waiting")

    page.get_by_label("Its value, JSON").fill('{"by": ')
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#live")).to_have_text("live")  # and what is streamed leaves the field and the alert alone
    store.signal(job_id, "own:other", "1")
    expect(page.locator("main")).to_contain_text("other sent")
    expect(page.get_by_role("alert")).to_contain_text("expected JSON")
    expect(page.get_by_label("Its value, JSON")).to_have_value('{"by": ')
    page.get_by_label("Its value, JSON").fill('{"by": "ada"}')
    page.get_by_role("button", name="Send").click()

    expect(page.locator("#flash")).to_contain_text("approved is sent")
    settle_waits(store)
    expect(page.locator(".stands .state").first).to_have_text("queued")
    expect(page.get_by_role("button", name="Send")).to_have_count(0)
    expect(page.locator("main")).to_contain_text('"by": "ada"')
