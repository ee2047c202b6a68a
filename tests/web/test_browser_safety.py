"""Whatever is in a store is shown as text, and nobody sees or does what they may not: in a real browser."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from crash.backends import Place
from tenure.config import load

from .browser import PATIENCE_SECONDS, System, Visits, sign_in, system, visits_of
from .stock import Stock, stock

pytestmark = pytest.mark.timeout(300)

ADA, BOB = "0123456789-secret-of-ada", "0123456789-secret-of-bob"
TOKENS = f"ada:admin:{ADA},bob:read:{BOB}"
RUNS = "alert('it ran')"
EVIL = (
    f'<script>{RUNS}</script>"><img src=x onerror="{RUNS}">\'><svg/onload={RUNS}> javascript:{RUNS} '
    "{{7*7}} ${7*7} &lt;i&gt; %3Cb%3E ?#/.. \u202etfel\u202c \x1b[31mred\x1b[0m"
)


def say(field: str) -> str:
    return f"{field} {EVIL}"


@pytest.fixture(scope="module")
def live(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A dashboard without workers, for Ada and Bob."""
    folder = tmp_path_factory.mktemp("dashboard")
    with system(place.url, folder, "dashboard", namespace=place.namespace, TENURE_TOKENS=TOKENS) as live:
        yield live


@pytest.fixture(scope="module")
def evil(live: System, place: Place) -> Stock:
    """Every field of every row is a script."""
    return stock(live.store, load({"url": place.url, "namespace": place.namespace}), say)


def forms(field: str) -> list[str]:
    """How a text may stand on a page: as it is, in JSON, and as a log keeps it, without escapes of a terminal."""
    text = say(field)
    return [text, json.dumps(text, ensure_ascii=False)[1:-1], text.replace("\x1b[31m", "").replace("\x1b[0m", "")]


def shows(page: Page, *fields: str) -> None:
    """Each of these as it is, letter by letter, or as JSON has it; and nothing to click that is a script."""
    text = page.locator("main").text_content() or ""
    missing = [field for field in fields if not any(form in text for form in forms(field))]
    assert not missing, f"{page.url} does not show {missing} as text\n{text}"
    schemes = page.evaluate(
        "[...document.querySelectorAll('a[href], form')].map(each => new URL("
        "each.href?.baseVal ?? each.href ?? each.action, location).protocol)"  # a link of a picture has its own kind
    )
    assert set(schemes) == {"http:"}
    assert page.evaluate("!document.querySelector('main img, main script, main [onerror], main [onload]')")


def follow(page: Page, name: str) -> None:
    with page.expect_navigation():
        page.locator("main").get_by_role("link", name=name).first.click()


def test_no_text_of_a_job_a_worker_or_a_schedule_runs_and_each_is_shown_as_it_is(
    live: System, evil: Stock, visits: Visits
) -> None:
    page = visits(live.url)
    sign_in(page, ADA)
    page.goto("/")
    shows(page, "queue", "stage", "message")

    page.goto("/jobs")
    shows(page, "task", "queue")
    page.goto("/jobs?state=dead&state=processing&state=cancelled")
    shows(page, "cancel reason", "stage")
    follow(page, say("queue"))
    expect(page.locator("main tbody tr")).to_have_count(len(evil.jobs))
    page.get_by_label("all that match").check()
    page.get_by_role("button", name="Delete…").click()
    expect(page.get_by_role("heading", name=re.compile(r"^Delete \d+ jobs\?$"))).to_be_visible()
    shows(page, "queue")
    for kind, fields in {
        "processing": ("stage", "message", "checkpoint", "log line", "worker", "meta", "argument", "unique key"),
        "completed": ("result", "inner argument"),
        "dead": ("error", "file", "refusal"),
        "crashed": ("reason", "signal", "lost worker"),
        "cancelled": ("cancel reason",),
        "edited": ("who", "new argument", "argument"),
        "waiting": ("flow", "error"),
        "signalled": ("wait", "signal value"),
        "parked": ("key",),
    }.items():
        page.goto(f"/jobs/{evil.jobs[kind]}")
        expect(page.locator("#live")).to_have_text("live")  # and what is streamed is in place, too
        shows(page, "task", "queue", *fields)
    page.goto(f"/jobs/{evil.jobs['dead']}/edit")
    shows(page, "argument name")
    expect(page.locator('[name="value:name"]')).to_have_value(json.dumps(say("argument"), ensure_ascii=False))

    page.goto("/flows")
    shows(page, "flow")
    follow(page, say("flow"))
    expect(page.locator("#live")).to_have_text("live")
    shows(page, "flow", "task")
    expect(page.locator("main .graph a")).to_have_count(3)
    page.goto("/queues")
    shows(page, "queue")
    page.goto("/limits")
    shows(page, "limit", "key", "limit pause")
    follow(page, say("key"))
    shows(page, "limit", "key", "limit pause", "app", "task")
    page.goto("/workers")
    shows(page, "worker", "host", "note", "lost worker", "message")
    page.goto("/dead")
    shows(page, "task", "error")
    follow(page, say("task"))
    shows(page, "task", "error")
    page.goto("/schedules")
    shows(page, "schedule", "pause reason")
    for name, why in (("schedule", "why"), ("paused schedule", "pause reason")):
        page.goto("/schedules")
        page.locator("main").get_by_role("link", name=say(name), exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(say(name))
        shows(page, why, "error", "argument", "task")
    page.goto("/audit")
    shows(page, "who", "action", "subject", "detail name", "detail", "outcome")
    assert not live.complaints(), "a browser reported what it kept a page from"


def test_a_token_signs_in_and_out_and_who_only_reads_has_no_buttons_and_sees_no_payloads(
    live: System, evil: Stock, visits: Visits
) -> None:
    page = visits(live.url)
    visits.excuse(page, "403")
    page.goto(f"/jobs/{evil.jobs['dead']}")
    page.get_by_label("Token").fill("guessed-guessed-guessed")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not a token")
    page.get_by_label("Token").fill(BOB)
    page.get_by_role("button", name="Log in").click()

    expect(page.locator(".user")).to_contain_text("bob")
    assert page.url.endswith(evil.jobs["dead"]), "on to where they wanted to go"
    payloads = ("argument", "inner argument", "result", "checkpoint", "log line", "new argument", "signal value")
    secrets = [form for field in payloads for form in forms(field)]
    paths = [
        *(f"/jobs/{job}" for job in evil.jobs.values()),
        "/",
        "/jobs",
        "/flows",
        f"/flows/{evil.flow}",
        "/queues",
        "/workers",
        "/dead",
        f"/schedules/{quote(evil.schedules[0], safe='')}",
    ]
    for path in paths:
        page.goto(path)
        seen = page.content() + (page.locator("main").text_content() or "")
        assert not [secret for secret in secrets if secret in seen], path
        assert set(page.locator('main form[method="post"] button').all_inner_texts()) <= {"Open"}, path
    page.goto(f"/jobs/{evil.jobs['dead']}/edit")
    expect(page.get_by_role("heading", name="Not allowed")).to_be_visible()
    page.goto("/audit")
    expect(page.get_by_role("heading", name="Not allowed")).to_be_visible()

    page.goto("/")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    page.goto("/jobs")
    expect(page.get_by_role("button", name="Log in")).to_be_visible()


def test_what_the_policy_forbids_is_kept_from_running_and_told_by_browser_and_server(
    browser: Browser, tmp_path: Path
) -> None:
    """So the silence of the tests above means something."""
    store = f"sqlite:///{tmp_path / 'tenure.db'}"
    with system(store, tmp_path, "demo", "--web", by_way_of=store) as live, visits_of(browser) as visits:
        page = visits(live.url)
        page.goto("/queues")
        page.evaluate(
            """() => {
                const script = document.body.appendChild(document.createElement('script'));
                script.textContent = 'window.ran = 1';
                document.body.appendChild(new Image()).src = 'http://other.example/';
                setTimeout(() => { throw new Error('of a page'); });
            }"""
        )
        deadline = time.monotonic() + PATIENCE_SECONDS

        def until(text: str, told: Callable[[], str]) -> None:
            """Each complaint comes a little later than what it is about."""
            while text not in told():
                assert time.monotonic() < deadline, f"nobody told {text!r}\n{told()}"
                page.wait_for_timeout(50)

        def by_browser() -> str:
            return "\n".join(visits.found())

        until("policy: script-src-elem forbids inline", by_browser)
        until("policy: img-src forbids http://other.example/", by_browser)
        until(": of a page", by_browser)
        until("a browser blocked a violation of the content security policy", live.complaints)
        assert page.evaluate("window.ran") is None
        page.goto("/queues")
        visits.forgive()
