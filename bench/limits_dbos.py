"""DBOS's limit of a queue, in a process of its own: `python -m bench.limits_dbos URL JOBS everywhere|here`.

The same jobs of 5 ms, three at a time: in all its processes together (global_concurrency), like our key of three
places; or in this process alone (worker_concurrency), like our three slots. It polls its queue every 10 ms instead of
every second. The rate is that of the jobs that began after all were enqueued.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from dbos import DBOS

from bench.limits_app import SECONDS

LEAST = 50  #: jobs that a rate is made of
began: list[float] = []


@DBOS.workflow()
def five_ms(n: int) -> None:
    began.append(time.monotonic())
    time.sleep(SECONDS)


def main() -> None:
    url, number, where = sys.argv[1:]
    config: Any = {"name": "limits", "system_database_url": url, "log_level": "ERROR"}
    DBOS(config=config)
    DBOS.launch()
    most: dict[str, int] = {"global_concurrency" if where == "everywhere" else "worker_concurrency": 3}
    queue = DBOS.register_queue("three", polling_interval_sec=0.01, **most)
    handles = [queue.enqueue(five_ms, n) for n in range(int(number))]
    enqueued = time.monotonic()
    for handle in handles:
        handle.get_result()
    measured = [at for at in began if at > enqueued]
    if len(measured) < LEAST:
        raise SystemExit(f"only {len(measured)} of {number} jobs began after the last one was enqueued: too few")
    print(json.dumps((len(measured) - 1) / (measured[-1] - measured[0])))
    DBOS.destroy()


if __name__ == "__main__":
    main()
