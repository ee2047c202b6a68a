"""Every page in pictures, wide and at 360 px, light and dark, of a demo with jobs of a shop.

    python -m tests.web.screenshots FOLDER [NAME…] [--minutes 10]

With names, only the pages whose names contain one of them. First the demo works for these minutes, for the charts.
"""

from __future__ import annotations

import json
import random
import tempfile
from argparse import ArgumentParser
from collections.abc import Generator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from time import monotonic
from urllib.parse import urlencode

from playwright.sync_api import Page, expect

from tenure.config import load
from tenure.core.ids import new_id
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.ports import Draft
from tenure.schedules.declarations import schedule

from .browser import NARROW, WIDE, System, chromium, system, visits_of
from .stock import Stock, stock

TEXTS = {
    "task": "send_invoice",
    "queue": "billing",
    "worker": "shop-2-4711-8f3a",
    "lost worker": "shop-1-4702-c09d",
    "host": "shop-2",
    "note": "",
    "argument": "ada@example.com",
    "argument name": "lines",
    "inner argument": "2 × lamp",
    "new argument": "ada.lovelace@example.com",
    "unique key": "invoice",
    "meta name": "request",
    "meta": "5c1f0a77",
    "stage": "render",
    "message": "page 4 of 10",
    "checkpoint": "page 3",
    "level": "info",
    "log line": "rendered page 4 in 180 ms",
    "result": "sent to ada@example.com",
    "cancel reason": "the order was withdrawn",
    "error": "no address for customer 4711",
    "file": '"billing/invoices.py"',
    "refusal": "the job is no longer owned by this worker",
    "reason": "its process was killed by SIGKILL",
    "signal": "SIGKILL",
    "who": "grace",
    "action": "jobs.promote",
    "subject": "01a1fe5f-2086-7000-bfd6-70a8e7a82d4a",
    "detail name": "why",
    "detail": "the customer waits",
    "outcome": "queued",
    "flow": "month-end",
    "signal name": "approved",
    "signal value": "grace",
    "wait": "it waits for the signal approved",
    "limit": "customer:{customer}",
    "key": "customer:4711",
    "app": "billing.tasks",
    "limit pause": "too many 429",
    "schedule": "nightly-invoices",
    "paused schedule": "nightly-digest",
    "pause reason": "holidays",
    "why": "the previous run was still in progress",
}


def pages(stocked: Stock) -> dict[str, str]:
    """Paths, by the names of their pictures."""
    jobs = stocked.jobs
    return {
        "overview": "/",
        "jobs": "/jobs",
        "job-processing": f"/jobs/{jobs['processing']}",
        "job-crashed": f"/jobs/{jobs['crashed']}",
        "job-dead": f"/jobs/{jobs['dead']}",
        "job-edited": f"/jobs/{jobs['edited']}",
        "job-edit": f"/jobs/{jobs['dead']}/edit",
        "bulk": f"/jobs/bulk?verb=delete&all=yes&queue={TEXTS['queue']}",
        "job-waiting": f"/jobs/{jobs['waiting']}",
        "job-signal": f"/jobs/{jobs['signalled']}",
        "job-parked": f"/jobs/{jobs['parked']}",
        "limits": "/limits",
        "limit": f"/limits/show?{urlencode({'name': stocked.key.limit})}",
        "limit-key": f"/limits/show?{urlencode({'name': stocked.key.key})}",
        "flows": "/flows",
        "flow": f"/flows/{stocked.flow}",
        "tasks": "/tasks",
        "tasks-7d": "/tasks?span=7d",
        "queues": "/queues",
        "workers": "/workers",
        "schedules": "/schedules",
        "schedule": f"/schedules/{stocked.schedules[0]}",
        "dead": "/dead",
        "audit": "/audit",
        "try": "/try",
        "problem": "/nowhere",
    }


@contextmanager
def shop(folder: Path) -> Generator[tuple[System, Stock]]:
    """A demo with workers, and more data than it comes with."""
    with system(f"sqlite:///{folder / 'shop.db'}", folder, "demo", "--web") as live:
        stocked = stock(live.store, load({"url": live.store.url}), TEXTS.__getitem__)
        live.store.pause(TEXTS["queue"], paused=False)
        admin = Admin(live.store, PollNotifier(), who="ada")
        for name, rule, tz in (("daily-report", "0 6 * * *", "Europe/Paris"), ("backup", "30 1 * * *", "UTC")):
            job = Draft(id="", task=name.replace("-", "_"), payload="{}", queue="reports")
            admin.schedules.put(schedule(name, rule, tz=tz).but(job=job))
        admin.schedules.trigger("daily-report")
        for number, delay in enumerate((0.0, 0.0, 0.0, 600.0, 3600.0), start=501):
            payload = json.dumps({"picture": number})
            admin.jobs.enqueue([Draft(id=new_id(), task="thumbnail", payload=payload, queue="media", delay=delay)])
        admin.queues.pause("media")
        yield live, stocked


def work(page: Page, minutes: float) -> None:
    """Bursts and failures of the demo, so that there is something to draw."""
    ends = monotonic() + max(15.0, minutes * 60)  # two slices of the charts at least
    for button in cycle(("Burst of 100", "Fails once", "Success", "Fails permanently", "Delayed", "Crash a worker")):
        page.goto("/try")
        page.get_by_role("button", name=button, exact=True).click()
        expect(page.locator("#flash")).to_contain_text(button)
        if monotonic() > ends:
            return
        page.wait_for_timeout(random.uniform(500, 6000))


def main(folder: Path, names: list[str], minutes: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="tenure-shop-") as here,
        shop(Path(here)) as (live, stocked),
        chromium() as browser,
        visits_of(browser) as visits,
    ):
        work(visits(live.url), minutes)
        wanted = {
            name: path for name, path in pages(stocked).items() if not names or any(each in name for each in names)
        }
        for scheme in ("light", "dark"):
            for width, size in (("wide", WIDE), ("360", NARROW)):
                page = visits(
                    live.url, color_scheme=scheme, viewport=size, device_scale_factor=2, reduced_motion="reduce"
                )
                visits.excuse(page, "404")
                for name, path in wanted.items():
                    page.goto(path)
                    expect(page.locator('#live[data-state="connecting"]')).to_have_count(0)
                    page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)


if __name__ == "__main__":
    parser = ArgumentParser(prog="python -m tests.web.screenshots", description="Pictures of every page.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--minutes", type=float, default=0.0)
    main(**vars(parser.parse_args()))
