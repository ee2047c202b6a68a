"""What to write instead of names from other job queues."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from tenure.errors import InvalidOption

#: Options of Celery, RQ, Dramatiq, Huey and arq, and what does the same here.
_OPTIONS = {
    "countdown": 'delay="5s"',
    "delay_seconds": 'delay="5s"',
    "eta": "run_at=",
    "schedule": "run_at=",
    "max_retries": "retry=Retry(…), which counts failures: one more than retries",
    "retries": "retry=Retry(…), which counts failures: one more than retries",
    "max_tries": "retry=Retry(…)",
    "attempts": "retry=Retry(…)",
    "autoretry_for": "retry=Retry(on=…)",
    "retry_on": "retry=Retry(on=…)",
    "retry_backoff": "retry=Retry(base=…)",
    "retry_backoff_max": "retry=Retry(cap=…)",
    "default_retry_delay": "retry=Retry(base=…)",
    "min_backoff": "retry=Retry(base=…)",
    "max_backoff": "retry=Retry(cap=…)",
    "time_limit": "timeout=",
    "soft_time_limit": "timeout=",
    "job_timeout": "timeout=",
    "task_id": "id=",
    "job_id": "id=",
    "queue_name": "queue=",
    "headers": "meta=",
    "bind": "a first parameter job: Job",
}
#: Methods of tasks there, and what does the same here.
_METHODS = {
    "delay": "{name}.enqueue(…)",
    "apply_async": "{name}.enqueue(…), with options: {name}.using(…).enqueue(…)",
    "send": "{name}.enqueue(…)",
    "send_with_options": "{name}.using(…).enqueue(…)",
    "enqueue_in": '{name}.using(delay="5s").enqueue(…)',
    "enqueue_at": "{name}.using(run_at=…).enqueue(…)",
    "defer": "{name}.enqueue(…)",
    "configure": "{name}.using(…)",
    "apply": "{name}.call(…)",
    "run": "{name}.call(…)",
    "s": "{name}.bind(…)",
    "signature": "{name}.bind(…)",
    "delay_on_commit": "{name}.using(tx=…).enqueue(…)",
}


def unknown_option(place: str, name: str, known: Collection[str]) -> InvalidOption:
    """The error for an option that does not exist. `place` is like "add.using"."""
    near = difflib.get_close_matches(name, known, n=1)
    instead = _OPTIONS.get(name) or (f"{near[0]}=" if near else "")
    advice = f"write {instead}" if name in _OPTIONS else f"did you mean {instead}?" if instead else ""
    return InvalidOption(f"{place}: there is no option {name!r}; {advice or 'the options are ' + ', '.join(known)}")


def unknown_method(task: str, name: str) -> AttributeError:
    """The error for an attribute that a task does not have."""
    instead = _METHODS.get(name)
    advice = f"; write {instead.format(name=task)}" if instead else ""
    return AttributeError(f"the task {task} has no {name!r}{advice}", name=name)
