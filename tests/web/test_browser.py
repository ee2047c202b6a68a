"""The dashboard in a real browser: each button and form, pages that move, and a worker that is killed.

The tests of a store share one demo, and each keeps to its own jobs; the store has the last word on what is shown.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from crash.backends import Place
from tenure.core.ids import new_id
from tenure.core.lifecycle import LIVE, State
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Draft, Filter
from tenure.schedules.declarations import schedule
from tenure.schedules.timetable import Timetable

from .browser import PATIENCE_SECONDS, System, Visits, system

pytestmark = pytest.mark.timeout(300)  # many pages one after another, on a machine that may be busy


@pytest.fixture(scope="module")
def live(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("demo")
    with system(place.url, folder, "demo", "--web", namespace=place.namespace) as live:
        yield live


# ── Words for what a person does ────────────────────────────────────────────────────────────────────────────────


def press(page: Page, name: str, says: str) -> None:
    """Press a button, and wait for the sentence that it is answered with."""
    page.locator("main").get_by_role("button", name=name, exact=True).click()
    expect(page.locator("#flash")).to_contain_text(says)


def tried(page: Page, button: str) -> str:
    """The id of the job that a button of Try it has enqueued."""
    page.goto("/try")
    press(page, button, f"{button}: job ")
    short = page.locator("#flash").inner_text().split()[button.count(" ") + 2]
    href = page.locator("main tbody a", has_text=short).get_attribute("href")
    assert href
    return href.removeprefix("/jobs/")


def standing(page: Page) -> Locator:
    return page.locator(".stands .state").first


def step(page: Page, number: int) -> Locator:
    return page.locator(f'.timeline > [data-key="attempt-{number}"]')


def rows(page: Page) -> Locator:
    return page.locator("main form tbody tr")


def shelve(live: System, count: int, queue: str, task: str = "greet", **options: Any) -> list[str]:
    """Jobs in a queue that no worker serves, oldest first."""
    drafts = [Draft(id=new_id(), task=task, payload='{"name":"Ada"}', queue=queue, **options) for _ in range(count)]
    live.store.enqueue(drafts)
    return [draft.id for draft in drafts]


def quiet(live: System, page: Page) -> None:
    """The demo has nothing more to do, and gets nothing by itself: its schedule enqueues a job every 20 seconds."""
    Timetable(live.store, PollNotifier()).pause("demo-every-20s")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while live.store.search(Filter(queue="demo", states=LIVE)).jobs:
        assert time.monotonic() < deadline, "the demo's jobs do not end"
        page.wait_for_timeout(100)


# ── Try it ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_button_of_the_demo_does_what_it_says_and_counters_move_without_a_reload(
    live: System, visits: Visits
) -> None:
    page = visits(live.url)
    delayed = tried(page, "Delayed")
    ids = {name: tried(page, name) for name in ("Success", "Fails once", "Fails permanently")}

    overview = page.context.new_page()
    overview.goto("/")
    overview.evaluate("window.marker = 1")
    completed = overview.locator(".figures a", has_text="completed").locator(".big")
    before = int(completed.inner_text().replace(",", ""))
    press(page, "Burst of 100", "100 jobs enqueued")
    overview.wait_for_function(
        "least => Number(document.querySelector('.figures .completed').closest('a').querySelector('.big')"
        ".textContent.replaceAll(',', '')) >= least",
        arg=before + 100,
    )
    assert overview.evaluate("window.marker") == 1, "it was loaded again"

    for name, state in {"Success": "completed", "Fails once": "completed", "Fails permanently": "dead"}.items():
        page.goto(f"/jobs/{ids[name]}")
        expect(standing(page)).to_have_text(state)
    page.goto(f"/jobs/{ids['Fails once']}")
    expect(step(page, 1)).to_contain_text("the network was down for a moment")
    expect(step(page, 2)).to_contain_text("completed")
    page.goto(f"/jobs/{delayed}")
    expect(standing(page)).to_have_text("completed")

    quiet(live, page)
    kept = shelve(live, 1, "kept")
    visits.excuse(page, "422")
    page.goto("/try")
    confirm = page.get_by_label("to confirm")
    confirm.fill("dem")
    page.get_by_role("button", name="Reset the demo").click()
    expect(page.get_by_role("heading", name="Not confirmed")).to_be_visible()
    page.goto("/try")
    confirm.fill("demo")
    press(page, "Reset the demo", "The demo is reset")
    expect(page.get_by_text("No job yet")).to_be_visible()
    assert live.store.get(delayed) is None
    assert live.store.get(kept[0]) is not None, "a job of another queue is gone, too"


# ── A worker is killed ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.everyday
def test_a_killed_workers_job_tells_its_story_and_runs_again_with_other_arguments(live: System, visits: Visits) -> None:
    page = visits(live.url)
    visits.excuse(page, "422")
    job = tried(page, "Crash a worker")
    page.goto(f"/jobs/{job}")
    page.evaluate("window.marker = 1")
    expect(step(page, 1)).to_contain_text("crashed")
    expect(step(page, 1)).to_contain_text("Rescued:")
    expect(step(page, 1).locator(".evidence")).to_contain_text("SIGKILL")
    expect(standing(page)).to_have_text("completed")
    expect(step(page, 2)).to_contain_text("completed")
    dead = step(page, 1).locator("a.mono").inner_text()
    assert page.evaluate("window.marker") == 1, "it was loaded again"
    page.goto("/workers")
    expect(page.locator('[data-live="live_gone"] tr', has_text=dead)).to_be_visible()

    page.goto(f"/jobs/{job}")
    page.get_by_role("link", name="Edit and replay").click()
    steps = page.locator('[name="value:steps"]')
    for typed, problem in {"60O": "expected JSON", '"many"': "expected int"}.items():
        steps.fill(typed)
        page.get_by_role("button", name="Replay with these arguments").click()
        expect(page.get_by_role("alert")).to_contain_text(problem)
        expect(steps).to_have_value(typed)
    steps.fill("6000")
    press(page, "Replay with these arguments", "queued again")
    edited = page.locator(".edits")
    expect(edited).to_contain_text("local changed them")
    expect(edited.locator("pre")).to_contain_text('"steps": 20')
    expect(page.get_by_role("region", name="arguments", exact=True)).to_contain_text('"steps": 6000')

    expect(standing(page)).to_have_text("processing")
    page.evaluate("window.marker = 2")
    bar = page.get_by_role("progressbar", name="progress")
    first = bar.get_attribute("value")  # it moves for ten minutes now, and moved for a second before
    expect(bar).not_to_have_attribute("value", first or "")
    expect(page.get_by_text(re.compile(r"^step \d+ of 6000$"))).to_be_visible()
    assert page.evaluate("window.marker") == 2, "it was loaded again"
    owner = step(page, 3).locator("a.mono").inner_text()
    (victim,) = [row.identity.pid for row in live.store.workers() if row.identity.id == owner]
    assert victim in live.workers(), "that is a process of somebody else"
    os.kill(victim, signal.SIGKILL)
    expect(step(page, 3).locator(".evidence")).to_contain_text("SIGKILL")
    expect(step(page, 4)).to_contain_text("processing")
    expect(step(page, 4).locator("a.mono")).not_to_have_text(owner)
    owner = step(page, 4).locator("a.mono").inner_text()

    page.locator("main").get_by_role("button", name="Show where it is").click()
    where = page.locator("#stack")
    expect(where).to_contain_text("Seen")
    expect(where.locator("pre").first).to_contain_text("in crash_once")
    step(page, 4).locator("a.mono").click()
    row = page.locator(f"[id='worker-{owner}']")
    expect(row).to_contain_text("crash_once")
    gone = page.locator('[data-live="live_gone"] tr', has_text=dead)
    page.goto("/workers?state=ended")
    expect(gone).to_contain_text("its process ended: signal 9 (SIGKILL)")
    expect(gone).to_contain_text("it ran crash_once")
    page.goto(f"/workers?q={owner}")
    row.get_by_role("button", name="Drain").click()  # a solo worker, as the job is a suspect
    page.locator("dialog[open]").get_by_role("button", name="Confirm").click()
    expect(page.locator("#flash")).to_contain_text("drain: it finishes 1 job; nothing takes its place.")
    expect(row).to_contain_text("drain ordered by local")
    page.goto(f"/jobs/{job}")

    page.get_by_label("Reason (optional)").fill("seen enough")
    press(page, "Cancel", "stop")
    expect(standing(page)).to_have_text("cancelled")
    expect(page.locator(".facts").first).to_contain_text("seen enough")


# ── Jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_jobs_are_found_and_acted_on_one_by_one_and_all_that_match(live: System, visits: Visits) -> None:
    oldest, *_, newest = shelve(live, 60, "shelf")
    (waiting,) = shelve(live, 1, "shelf", task="rare", delay=3600.0)
    page = visits(live.url)

    page.goto("/jobs")
    page.get_by_label("Queue", exact=True).fill("shelf")
    page.get_by_role("button", name="Search").click()
    expect(page).to_have_url(re.compile(r"queue=shelf"))
    expect(rows(page)).to_have_count(25)
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_role("link", name="Newest")).to_be_visible()
    page.get_by_role("link", name="Older").click()
    expect(rows(page)).to_have_count(11)
    expect(rows(page).last).to_have_attribute("data-key", oldest)
    for query, found in {
        "queue=shelf&state=scheduled": [waiting],
        "task=rare": [waiting],
        f"text={newest}": [newest],
        "queue=shelf&state=dead": [],
    }.items():
        page.goto(f"/jobs?{query}")
        expect(rows(page)).to_have_count(len(found))
        assert [row.get_attribute("data-key") for row in rows(page).all()] == found
    page.get_by_label("Job id, or its beginning or end").fill(waiting[-8:])
    page.get_by_role("button", name="Open").click()
    expect(page).to_have_url(re.compile(f"/jobs/{waiting}$"))

    press(page, "Run it now", "queued")
    expect(standing(page)).to_have_text("queued")
    page.get_by_label("Reason (optional)").fill("not needed")
    press(page, "Cancel", "cancelled")
    expect(standing(page)).to_have_text("cancelled")
    press(page, "Replay", "queued again")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    copy = page.get_by_role("button", name="Copy id")
    # It says so for a second and a half, which an occasional look may miss.
    copy.evaluate(
        "each => new MutationObserver(() => { window.said ??= each.textContent; }).observe(each, { childList: true })"
    )
    copy.click()
    page.wait_for_function("() => window.said === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == waiting
    page.get_by_text("Delete", exact=True).first.click()
    page.get_by_label("to confirm").fill(waiting[-8:])
    press(page, "Delete", "deleted")
    assert live.store.get(waiting) is None

    page.goto("/jobs?queue=shelf")
    for box in page.get_by_role("checkbox", name=re.compile("^Select greet")).all()[:3]:
        box.check()
    expect(page.locator("[data-chosen]")).to_have_text("3")
    page.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_role("heading", name="Cancel 3 jobs?")).to_be_visible()
    press(page, "Cancel 3 jobs", "3 jobs cancelled")
    expect(page).to_have_url(re.compile(r"/jobs\?queue=shelf$"))

    page.goto("/jobs?queue=shelf&state=queued")
    gone = page.locator("tbody tr").nth(0)
    gone_id, stays = gone.get_attribute("data-key"), page.locator("tbody tr").nth(1).get_attribute("data-key")
    for each in (gone_id, stays):
        page.locator(f'tr[data-key="{each}"]').get_by_role("checkbox").check()
    live.store.cancel([str(gone_id)], "meanwhile")
    expect(page.locator(f'tr.left[data-key="{gone_id}"]')).to_be_visible()
    expect(page.locator("[data-chosen]")).to_have_text("2")
    live.store.delete([str(gone_id)])
    page.locator(f'tr[data-key="{gone_id}"]').get_by_role("checkbox").uncheck()
    shelve(live, 1, "shelf")
    expect(page.locator(f'tr[data-key="{gone_id}"]')).to_have_count(0)
    expect(page.locator("[data-chosen]")).to_have_text("1")

    page.goto("/jobs?queue=shelf&state=queued")
    page.get_by_label("all that match").check()
    page.get_by_role("button", name="Delete…").click()
    expect(page.get_by_role("heading", name="Delete 57 jobs?")).to_be_visible()
    late = shelve(live, 1, "shelf")
    page.get_by_label("to confirm").fill("delete 57")
    press(page, "Delete 57 jobs", "57 jobs deleted")
    left = live.store.search(Filter(queue="shelf", states=frozenset({State.QUEUED}))).jobs
    assert [job.id for job in left] == late, "what came after the counting is deleted, too"


# ── Queues, schedules, dead letters, audit ──────────────────────────────────────────────────────────────────────


def test_queues_schedules_and_dead_letters_are_acted_on_and_the_audit_trail_has_it_all(
    live: System, visits: Visits
) -> None:
    page = visits(live.url)
    shelve(live, 1, "crates")

    page.goto("/queues")
    crates = page.locator("#queue-crates")
    crates.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Confirm").click()
    expect(page.locator("#flash")).to_contain_text("Queue crates is paused")
    expect(crates).to_contain_text("paused")
    assert "crates" in live.store.paused()
    crates.get_by_role("button", name="Resume").click()
    expect(page.locator("#flash")).to_contain_text("Queue crates is resumed")
    assert "crates" not in live.store.paused()

    name = "nightly.report"
    timetable = Timetable(live.store, PollNotifier())
    job = Draft(id="", task="greet", payload='{"name":"Ada"}', queue="crates")
    timetable.put(schedule(name, "0 3 * * *", tz="Europe/Paris").but(job=job))
    page.goto("/schedules")
    page.get_by_role("link", name=name).click()
    press(page, "Trigger now", "is triggered")
    expect(page.locator('[data-live="live_history"]')).to_contain_text("by hand")
    expect(page.locator('[data-live="live_coming"] tbody tr')).to_have_count(10)
    page.get_by_label("Reason").fill("a holiday")
    press(page, "Pause", "is paused")
    expect(page.locator('[data-live="live_health"]')).to_contain_text("a holiday")
    press(page, "Resume", "is resumed")
    today = live.store.now()
    page.get_by_label("From").fill(f"{today - timedelta(days=3):%Y-%m-%d}T12:00")
    page.get_by_label("Until (default: now)").fill(f"{today - timedelta(days=1):%Y-%m-%d}T12:00")
    page.get_by_role("button", name="Count ticks").click()
    expect(page.get_by_text("2 ticks:")).to_be_visible()
    press(page, "Run these 2", "2 jobs stored")
    expect(page.locator('[data-live="live_history"]').get_by_text("backfill")).to_have_count(2)
    page.get_by_text("Remove", exact=True).first.click()
    page.get_by_label("to confirm").fill(name)
    press(page, "Remove", f"schedule {name} is removed")

    doomed = [tried(page, "Fails permanently") for _ in range(4)]
    for each in doomed:
        page.goto(f"/jobs/{each}")
        expect(standing(page)).to_have_text("dead")
    page.goto(f"/dead?task=doomed&text={doomed[0]}")
    page.get_by_role("link", name="Edit").click()
    page.locator('[name="value:order"]').fill("-1")
    press(page, "Replay with these arguments", "queued again")
    expect(standing(page)).to_have_text("dead")
    expect(page.get_by_role("region", name="arguments", exact=True)).to_contain_text("-1")
    page.goto("/dead?task=doomed")
    for each in doomed[1:3]:
        page.locator(f'[data-key="{each}"]').get_by_role("checkbox").check()
    page.get_by_role("button", name="Replay…", exact=True).click()
    press(page, "Replay 2 jobs", "2 jobs queued again")
    page.goto(f"/jobs/{doomed[2]}")
    expect(step(page, 2)).to_contain_text("failed")
    expect(standing(page)).to_have_text("dead")
    page.goto(f"/dead?task=doomed&text={doomed[3]}")
    page.get_by_label("all that match").check()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_label("to confirm").fill("delete 1")
    press(page, "Delete 1 job", "1 job deleted")
    assert live.store.get(doomed[3]) is None

    page.goto("/audit")
    trail = page.locator('[data-live="live_trail"]')
    for action in ("queue.pause", "queue.resume", "schedule.trigger", "schedule.backfill", "schedule.remove"):
        expect(trail.locator("tr", has_text=action).first).to_contain_text("local")
    for action in ("jobs.enqueue", "jobs.replay", "jobs.delete"):
        expect(trail.locator("tr", has_text=action).first).to_be_visible()
    expect(trail.locator("tr", has_text="schedule.pause").first).to_contain_text("a holiday")
