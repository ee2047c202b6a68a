"""DBOS's limit of a queue, in a process of its own: `python -m bench.limits_dbos URL JOBS everywhere|here`.

The same jobs of 5 ms, three at a time: in all its processes together (global_concurrency), like our key of three
places; or in this process alone (worker_concurrency), like our three slots. It polls its queue every 10 ms instead of
every second.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from dbos import DBOS

from bench.limits_app import SECONDS

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
    for handle in handles:
        handle.get_result()
    print(json.dumps((len(began) - 1) / (began[-1] - began[0])))
    DBOS.destroy()


if __name__ == "__main__":
    main()
