"""A store as a busy company has it, and every list page of it in pictures, with its height in screens.

    python -m tests.web.big FOLDER [NAME…]

200 workers on 20 hosts, 100 queues, 1,000 keys of limits, 60 schedules with a past, 20,000 jobs over seven days with
their roll-ups.
"""

from __future__ import annotations

import json
import random
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import ViewportSize, expect

from tenure.core.clock import Clock, system_clock
from tenure.core.ids import new_id
from tenure.core.lifecycle import Completed, Failed, Lease, Outcome
from tenure.core.limits import Bounds, Key, Rate
from tenure.maintenance.rollups import RollUps
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.ports import Draft, LimitRow, Store, WorkerIdentity
from tenure.ports.schedules import Change, Tick
from tenure.schedules.declarations import schedule
from tenure.stores.sqlite import SqliteStore

from .browser import chromium, system, visits_of

WIDE, PHONE = ViewportSize(width=1440, height=900), ViewportSize(width=390, height=844)
WORKERS, HOSTS, QUEUES, SCHEDULES, JOBS, HOURS = 200, 20, 100, 60, 20_000, 168
PAGES = {
    "overview": "/",
    "jobs": "/jobs",
    "jobs-processing": "/jobs?state=processing&sort=started",
    "tasks": "/tasks",
    "tasks-6h": "/tasks?span=6h",
    "tasks-7d": "/tasks?span=7d&sort=-failure_rate",
    "queues": "/queues",
    "limits": "/limits",
    "limit": f"/limits/show?name={quote('shop:{shop}')}",
    "limit-key": f"/limits/show?name={quote('shop:0007')}",
    "workers": "/workers",
    "workers-sorted": "/workers?sort=-memory",
    "schedules": "/schedules",
    "schedule": "/schedules/schedule-07",
    "ticks": "/ticks",
    "ticks-wrong": "/ticks?last=7d&only=wrong",
    "dead": "/dead",
    "audit": "/audit",
}
_TASKS = [
    f"{verb}_{noun}" for verb in ("send", "render", "sync", "charge", "index") for noun in ("mail", "page", "order")
]
SCHEMES = ("light", "dark")
_LEASE = 86_400.0 * 30


class Past:
    """A clock that begins a week ago."""

    def __init__(self) -> None:
        self.real = system_clock()
        self.back = HOURS * 3600.0
        self.clock = Clock(lambda: self.real.unix() - self.back, self.real.boot, self.real.boot_id)


def _worker(n: int) -> WorkerIdentity:
    host = f"web-{n % HOSTS:02}.eu.example"
    own = (f"queue-{n % QUEUES:02}", f"queue-{(n * 7 + 1) % QUEUES:02}")
    queues = tuple(dict.fromkeys(own))
    return WorkerIdentity(
        id=f"web-{n % HOSTS:02}-{4000 + n}-{n:04x}",
        host=host,
        pid=2**22 + n,
        started="1",
        boot_id=system_clock().boot_id,
        pid_namespace="another",
        runner="worker",
        queues=queues,
        tasks=tuple(_TASKS),
        slots=10,
        lease=_LEASE,
    )


def _drafts(chance: random.Random, count: int) -> Iterator[Draft]:
    for n in range(count):
        task = _TASKS[int(chance.triangular(0, len(_TASKS), 0)) % len(_TASKS)]
        payload = {"user": chance.randrange(5000), "to": "ada@example.com", "pages": n}
        yield Draft(id=new_id(), task=task, queue=f"queue-{chance.randrange(QUEUES):02}", payload=json.dumps(payload))


def _outcome(chance: random.Random, task: str) -> Outcome:
    if chance.random() < (0.2 if task.startswith("charge") else 0.01):
        return Failed(f"ValueError: order {chance.randrange(1000)} has no address", final=True)
    return Completed('"done"')


def fill(store: Store, past: Past, seed: int = 1) -> None:
    chance = random.Random(seed)
    workers = [_worker(n) for n in range(WORKERS)]
    for worker in workers:
        store.register(worker)
    store.renew([each.id for each in workers], memory={each.id: chance.randrange(40, 900) << 20 for each in workers})
    rollups = RollUps(store)
    for hour in range(HOURS):
        busy = 1.0 + 0.8 * (8 <= (hour + 3) % 24 <= 18)
        for slot in range(12):
            past.back = (HOURS - hour) * 3600.0 - slot * 300 - 150
            _work(store, chance, workers, past, int(JOBS / HOURS / 12 / 1.4 * busy + chance.random()))
            past.back = (HOURS - hour) * 3600.0 - (slot + 1) * 300
            while rollups.turn().more:
                pass
    for worker in workers[:60]:
        wants = dict.fromkeys(worker.queues, 8)
        store.enqueue([Draft(id=new_id(), task=_TASKS[0], queue=worker.queues[0], payload="{}") for _ in range(4)])
        store.claim(worker.id, wants, chance.randrange(1, 6))
    store.enqueue(list(_drafts(chance, 900)))
    for n in range(0, QUEUES, 17):
        store.pause(f"queue-{n:02}", paused=True)
    _limits(store, chance)
    _schedules(store, chance)


def _limits(store: Store, chance: random.Random) -> None:
    """A thousand keys of a limit, and a dozen limits with one key."""
    rate = Rate(100, 60.0, 10)
    rows = [LimitRow(name="shop:{shop}", declared=Bounds(2, rate), source="shop.tasks", release="2026-11-20")]
    rows += [LimitRow(name=f"api-{name}", declared=Bounds(None, rate), source="shop.tasks") for name in "abcdefghijkl"]
    assert all(store.change_limits(rows))
    keys = [Key(f"shop:{n:04}", "shop:{shop}") for n in range(1_000)] + [Key(row.name, row.name) for row in rows[1:]]
    for key in keys:
        number = int(chance.paretovariate(0.9)) % 300
        drafts = [
            Draft(id=new_id(), task=_TASKS[0], queue="queue-01", payload="{}", limits=(key,)) for _ in range(number)
        ]
        store.enqueue(drafts)
    while store.admit().more:
        pass
    admin = Admin(store, PollNotifier(), who="ada")
    admin.limits.pause("shop:0007", "2h", "the shop moves to another server tonight")
    admin.limits.pause("api-c", why="too many 429")
    admin.limits.set("shop:0003", concurrency=20)


def _work(store: Store, chance: random.Random, workers: list[WorkerIdentity], past: Past, count: int) -> None:
    drafts = [
        Draft(id=each.id, task=each.task, queue="queue-00", payload=each.payload) for each in _drafts(chance, count)
    ]
    store.enqueue(drafts)
    past.back -= chance.random() * 4
    claimed = store.claim(workers[0].id, {"queue-00": count}, count)
    past.back -= chance.random() * 20
    ends = [(Lease(each.id, each.attempt, workers[0].id), _outcome(chance, each.task)) for each in claimed]
    store.finish(ends)


def _schedules(store: Store, chance: random.Random) -> None:
    now = store.now()
    for n in range(SCHEDULES):
        name, guard = f"schedule-{n:02}", n % 5 == 4
        rule = (f"{n} {n % 24} * * *", "0 * * * MON-FRI", "*/10 * * * *")[n % 3]
        new = schedule(name, rule, tz=("UTC", "Europe/Paris", "Asia/Tokyo")[n % 3])
        job = None if guard else Draft(id="", task=_TASKS[n % len(_TASKS)], payload="{}", queue=f"queue-{n:02}")
        new = new.but(
            job=job, kind="guard" if guard else "task", next_tick=now + timedelta(minutes=n + 1), last_run_at=now
        )
        ticks = []
        for back in range(60):
            at = now - timedelta(minutes=10 * back + n % 7)
            draw = chance.random()
            status = "failure" if draw < 0.04 else "missed" if draw < 0.06 else "skipped" if draw < 0.1 else "success"
            why = {"failure": "exit code 3: no space left on device", "skipped": "overlap: still running"}.get(
                status, ""
            )
            ran = status in ("success", "failure")
            ticks.append(
                Tick(
                    schedule=name,
                    tick=at,
                    status=status,  # type: ignore[arg-type]
                    why=why or ("no supervisor fired it" if status == "missed" else ""),
                    decided_at=at + timedelta(seconds=1),
                    started_at=at + timedelta(seconds=1) if ran else None,
                    ended_at=at + timedelta(seconds=chance.randrange(2, 200)) if ran else None,
                )
            )
        changed = new.but(
            failure_count=n % 9 // 7 * 3, last_status="success", last_duration_ms=chance.randrange(90_000)
        )
        store.change([Change(schedule=changed, ticks=tuple(ticks))])


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tenure-big-") as here:
        url, past = f"sqlite:///{here}/big.db", Past()
        store = SqliteStore(f"{here}/big.db", clock=past.clock)
        store.open()
        fill(store, past)
        store.close()
        wanted = {name: path for name, path in PAGES.items() if not names or any(each in name for each in names)}
        with system(url, Path(here), "dashboard") as live, chromium() as browser, visits_of(browser) as visits:
            for scheme in SCHEMES:
                for width, size in (("wide", WIDE), ("phone", PHONE)):
                    page = visits(live.url, color_scheme=scheme, viewport=size, reduced_motion="reduce")
                    for name, path in wanted.items():
                        page.goto(path)
                        expect(page.locator('#live[data-state="connecting"]')).to_have_count(0)
                        tall = page.evaluate("document.documentElement.scrollHeight") / size["height"]
                        over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                        wide = f"  TOO WIDE by {over}" if over > 0 else ""
                        print(f"{name:16} {width:6} {scheme:5} {tall:5.1f} screens{wide}")
                        page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)


if __name__ == "__main__":
    parser = ArgumentParser(prog="python -m tests.web.big", description="Pictures of a big store.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    main(**vars(parser.parse_args()))
