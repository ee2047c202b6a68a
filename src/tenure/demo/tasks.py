"""The tasks of `tenure demo`: one that succeeds, one for later, one that fails once, one that fails permanently.

Another kills its worker. The last is real work: the analysis of a git repository from `tenure.demo`, whose app the
demo shares.
"""

from __future__ import annotations

import logging
import os
import signal
import time

from tenure import Job, Retry
from tenure.demo.code_evolution import code_evolution, jobs

__all__ = ["code_evolution", "crash_once", "doomed", "flaky", "greet", "jobs", "later"]

_log = logging.getLogger("demo")


@jobs.task
def greet(name: str) -> str:
    """Succeeds."""
    return f"hello {name}"


@jobs.task
def later(name: str) -> str:
    """Succeeds too; enqueue it with a delay: `later.using(delay="3s").enqueue("Ada")`."""
    return f"hello {name}, a little later"


@jobs.task(retry=Retry(3, base="1s", cap="2s"))
def flaky(job: Job) -> str:
    """Fails once, then succeeds. The job itself knows how often it has failed, in any process."""
    if job.failures == 0:
        raise ConnectionError("the network was down for a moment")
    return f"worked after {job.failures} failure"


@jobs.task(retry=Retry(3, base="100ms", cap="500ms"))
def doomed(order: int) -> None:
    """Fails at every attempt until its retries are used up, and becomes a dead letter."""
    raise LookupError(f"order {order} does not exist")


@jobs.task
def crash_once(job: Job, steps: int = 20) -> str:
    """Kills its own worker half-way, at the first attempt only; the next one completes."""
    for step in range(1, steps + 1):
        time.sleep(0.1)
        job.progress(step / steps, stage="counting", message=f"step {step} of {steps}")
        if step == steps // 2:
            _log.info("half-way, in attempt %d", job.attempt)
            if job.attempt == 1:
                job.flush()
                os.kill(os.getpid(), signal.SIGKILL)
    return f"done at attempt {job.attempt}"
