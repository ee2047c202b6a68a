"""A report each night: 500 parts, a step that combines them, and one that sends it. Its schedule sees one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tenure import Fail, Job, Tenure, outputs

jobs = Tenure()  # sqlite:///tenure.db in this folder; TENURE_URL changes it
SHOPS = range(500)


@dataclass
class Sales:
    shop: int
    cents: int


class Tills:
    """What the shops have sold; a real one asks them over the network."""

    def sold(self, day: str, shop: int) -> int:
        return 100 * shop


@jobs.resource
def tills() -> Iterator[Tills]:
    yield Tills()


@jobs.task(priority=-10)  # 500 at once: what users wait for goes before them
def sales(job: Job, day: str, shop: int) -> Sales:
    return Sales(shop, job.resource(Tills).sold(day, shop))


@jobs.task
def combine(day: str, parts: Iterable[Sales]) -> str:  # read 200 at a time, while it iterates
    total, best = 0, Sales(-1, -1)
    for part in parts:
        total, best = total + part.cents, max(part, best, key=lambda each: each.cents)
    return f"{day}: {total / 100:.2f} in all, most in shop {best.shop}"


@jobs.task
def send(report: str) -> str:
    return f"sent {report}"


@jobs.schedule("0 3 * * *", tz="Europe/Paris")
@jobs.task
def nightly_report(job: Job) -> str:
    day = f"{job.enqueued_at:%Y-%m-%d}"  # of the job, not of today: after the wait this runs again from the top
    with job.flow("report") as flow:
        parts = [flow.add(sales.bind(day, shop)) for shop in SHOPS]
        report = flow.add(combine.bind(day, outputs(parts)))
        sent = flow.add(send.bind(report.output))
    job.progress(stage="waits for its parts", message=f"tenure flows show {flow.id}")
    end = job.join(sent)  # the slot is free meanwhile; the run ends when the flow has
    if not end.ok:
        raise Fail(f"not sent: {end.error}", final=True)  # retrying this job would not send it
    return end.value
