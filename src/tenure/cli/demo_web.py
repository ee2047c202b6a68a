"""`tenure demo --web`: the dashboard over a store with its own workers, and buttons to try, until it is stopped."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tenure.cli.demo_supervisor import running_supervisor
from tenure.cli.output import print_line
from tenure.config import Settings, redact
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.schedules.timetable import Timetable

QUEUE = "demo"
_EVERY = "demo-every-20s"
_PLACE = "127.0.0.1:3000"


def serve(folder: Path, place: Mapping[str, str | None], listen: str | None) -> None:
    """Enqueues jobs of every kind and a schedule, starts workers for them, and serves the dashboard."""
    from tenure.app.backends import extra, open_notifier, open_store

    with extra("web"):
        from tenure.web.dashboard import create
        from tenure.web.server import Server, listen_at, url_of
        from tenure.web.site import Demo

    from tenure.demo.tasks import jobs
    from tenure.operations.admin import Admin
    from tenure.schedules.timetable import Timetable

    jobs.configure({**place, "listen": listen})
    settings = jobs.settings
    order = {**place, "app": "tenure.demo.tasks", "queues": [QUEUE], "concurrency": 5, "workers": 2}
    log = folder / "supervisor.log"
    with listen_at(settings.listen or _PLACE) as listening, jobs, running_supervisor(order, log):
        store = open_store(settings)
        store.open()
        notifier = open_notifier(settings, store)
        admin = Admin(store, notifier, settings, who="demo")
        try:
            _enqueue()
            with _scheduled(Timetable(store, notifier)):
                security = create(lambda: admin, settings, tasks=jobs.tasks, demo=Demo(QUEUE))
                url = url_of(listening)
                Server(security, lambda: _told(url, settings, log)).run([listening])
        finally:
            notifier.close()
            store.close()


def _told(url: str, settings: Settings, log: Path) -> None:
    print_line(f"dashboard at {url}, the buttons are at {url}/try; Ctrl-C ends it")
    print_line(f"the store is {redact(settings.url)}, its workers' log is {log}")


def _enqueue() -> None:
    from tenure.demo.tasks import crash_once, doomed, flaky, greet, jobs, later

    names = ["Ada", "Grace", "Edsger", "Barbara", "Donald", "Frances", "Tony", "Margaret"]
    jobs.enqueue_many(greet.using(queue=QUEUE).bind(name) for name in names)
    later.using(queue=QUEUE, delay="30s").enqueue("Alan")
    flaky.using(queue=QUEUE).enqueue()
    doomed.using(queue=QUEUE).enqueue(4711)
    crash_once.using(queue=QUEUE).enqueue()


@contextmanager
def _scheduled(timetable: Timetable) -> Generator[None]:
    """A schedule with one tick every 20 s, removed when the demo ends."""
    from tenure.demo.tasks import greet
    from tenure.schedules.declarations import schedule

    draft = greet.using(queue=QUEUE).bind("the schedule").draft()
    new = schedule(_EVERY, None, every="20s")
    timetable.put(new.but(job=draft.but(id="", expires=None)))
    try:
        yield
    finally:
        with suppress(TenureError):  # the store is unavailable: the next demo finds the schedule and takes it over
            timetable.remove(_EVERY)
