"""An app that has only schedules, to see each tick become one job. Its handler writes down which tick it was given."""

from __future__ import annotations

import os

from tenure import Job, Tenure

from .shop import note

jobs = Tenure()


@jobs.task(retry=20, max_crashes=20)
def record(job: Job) -> None:
    note(job, f"tick {job.meta['schedule']} {job.meta['tick']}")


for number in range(int(os.environ.get("TENURE_TEST_SCHEDULES", "0"))):
    jobs.schedule(every="1s", name=f"every-second-{number}", overlap="allow", catch_up="all", catch_up_max=10_000)(
        record
    )
