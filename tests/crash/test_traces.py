"""Traces by OTLP from real processes, which are killed: one trace each, and no job waits for the collector."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx
import pytest

from otlp import Collector, Manner, Seen

from . import shop
from .harness import Site, send

pytestmark = pytest.mark.timeout(300)

SMALL = {"OTEL_BSP_MAX_QUEUE_SIZE": "8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8"}  #: what the SDK keeps: it overflows
STORY = {
    "POST /orders/{order}": "",
    "enqueue charge": "POST /orders/{order}",
    "attempt charge 1": "enqueue charge",
    "attempt charge 2": "enqueue charge",
    "pay": "attempt charge 2",
    "enqueue receipt": "attempt charge 2",
    "attempt receipt 1": "enqueue receipt",
}


def exporting(to: str, service: str, delay: str = "50") -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": to,
        "OTEL_EXPORTER_OTLP_TIMEOUT": "60",
        "OTEL_SERVICE_NAME": service,
        "OTEL_BSP_SCHEDULE_DELAY": delay,
    }


@contextmanager
def served(site: Site, environ: Mapping[str, str]) -> Iterator[str]:
    """The URL of the app's web server."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        number = listening.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "traced:web", "--fd", str(number), "--log-level", "warning"],
            env=site.env("30s", {}, environ),
            cwd=site.folder,
            pass_fds=[number],
        )
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            process.terminate()
            process.wait(60)


def tell_story(site: Site, collector: Collector, headers: Mapping[str, str] | None = None) -> list[Seen]:
    """A request enqueues a job, whose worker is killed; its second attempt enqueues another one."""
    with served(site, exporting(collector.url, "web")) as url:
        supervisor = site.supervisor(app="traced", env=exporting(collector.url, "worker", delay="3600000"))
        answer = httpx.post(f"{url}/orders/7", headers=headers, timeout=60)
        job = shop.jobs.handle(answer.json())
        send(site.seen(job, "begin", attempt=1).pid, signal.SIGKILL)
        site.seen(job, "begin", attempt=2)
        site.go()
        (view,) = site.ended(job)
        assert (view.state, view.attempt, view.crashes_total) == ("completed", 2, 1)
        site.ended(shop.jobs.handle((view.result or "").strip('"')))
        assert supervisor.stop() == 0, "and with its end a worker hands over what it has traced"
        return collector.until("POST /orders/{order}", "enqueue charge", "attempt charge", "attempt charge")


def named(spans: list[Seen]) -> dict[str, Seen]:
    """By name, and by the number of the attempt."""
    found = {f"{span.name} {span.attributes.get('tenure.attempt', '')}".strip(): span for span in spans}
    return {name: span for name, span in found.items() if name in STORY}


def parents(spans: list[Seen]) -> dict[str, str]:
    """The parent of each by name. FastAPI has spans of its own inside that of a request: these are skipped."""
    known, names = {span.id: span for span in spans}, {span.id: name for name, span in named(spans).items()}
    found: dict[str, str] = {}
    for each, name in names.items():
        above = known[each].parent
        while above and above not in names:
            above = known[above].parent
        found[name] = names.get(above, "")
    return found


@pytest.mark.everyday
@pytest.mark.everywhere
def test_request_crash_rescue_and_child_are_one_trace(site: Site) -> None:
    with Collector() as collector:
        spans = tell_story(site, collector)

    assert parents(spans) == STORY
    assert len({span.trace for span in spans}) == 1
    found = named(spans)
    died, again = found["attempt charge 1"], found["attempt charge 2"]
    assert (died.status, died.attributes["tenure.outcome"], died.attributes["tenure.state"]) == (
        "error",
        "crashed",
        "queued",
    )
    assert died.attributes["tenure.evidence.exit"] == "signal 9 (SIGKILL)"
    assert [(name, told["tenure.cause"], told["tenure.state"]) for name, told in died.events] == [
        ("tenure.rescue", "crash", "queued")
    ]
    assert died.attributes["tenure.worker_id"] != again.attributes["tenure.worker_id"]
    assert died.begin < died.end <= again.begin < again.end
    assert (again.status, again.attributes["tenure.outcome"], again.attributes["tenure.crashes"]) == (
        "unset",
        "completed",
        1,
    )


def test_the_last_attempt_of_a_dead_job_is_in_its_trace_too(site: Site) -> None:
    """No worker runs it again: a living one is told of it by its supervisor."""
    with Collector() as collector:
        supervisor = site.supervisor(app="traced", env=exporting(collector.url, "worker"))
        job = shop.doomed.enqueue()
        for attempt in (1, 2):  # the second time alone, and so it is to blame
            send(site.seen(job, "begin", attempt=attempt).pid, signal.SIGKILL)
            # the worker that was told of the first attempt may be the next to be killed
            spans = collector.until(*["attempt doomed"] * attempt)
        site.ended(job)
        supervisor.stop()

    found = [(span.status, span.attributes["tenure.outcome"], span.attributes["tenure.state"]) for span in spans]
    assert found == [("error", "crashed", "queued"), ("error", "crashed", "dead")]
    assert all("SIGKILL" in span.says for span in spans)


@pytest.mark.parametrize("manner", ["away", "refuses", "holds"])
def test_no_job_waits_for_the_collector(site: Site, manner: Manner | str) -> None:
    with Collector("refuses" if manner == "away" else manner) as collector:  # type: ignore[arg-type]
        to = "http://127.0.0.1:9" if manner == "away" else collector.url
        supervisor = site.supervisor(app="traced", env={**exporting(to, "worker"), **SMALL})
        first = shop.jobs.enqueue("plain", unchecked=True)
        site.ended(first)
        if manner != "away":
            site.until(lambda: collector.asked, "the first export")
        more = [shop.jobs.enqueue("plain", unchecked=True) for _ in range(30)]
        views = site.ended(*more)
        assert supervisor.stop() == 0

    assert {(view.state, view.attempt) for view in views} == {("completed", 1)}
    assert sorted(line.job for line in site.lines(event="ran")) == [str(job.id) for job in (first, *more)]
