"""What an attempt gathers, and the keys of it. A second gather under one key would return the first one's results."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

from tenure.errors import InvalidOption
from tenure.tasks.handle import JobHandle
from tenure.tasks.task import NewJob


def new_jobs(what: str, jobs: object) -> list[NewJob[Any]]:
    """The jobs that a handler wants to gather. Raises InvalidOption."""
    if not isinstance(jobs, Iterable) or isinstance(jobs, str):
        raise InvalidOption(f"{what}: expected a list of jobs like render.bind(1), got {jobs!r:.80}")
    found: list[Any] = [*jobs]  # pyright: ignore[reportUnknownVariableType]
    for job in found:
        if not isinstance(job, NewJob):
            hint = "; bind makes a job, enqueue stores it" if isinstance(job, JobHandle) else ""
            raise InvalidOption(f"{what}: expected jobs like render.bind(1), got {job!r:.80}{hint}")
    return found


class Gathered:
    """The keys of one attempt."""

    def __init__(self) -> None:
        self._keys = set[str]()

    @contextmanager
    def once(self, key: str) -> Generator[None]:
        """Around a gather: the key counts as used once it has returned results. Raises InvalidOption."""
        if key in self._keys:
            raise InvalidOption(
                f"job.gather({key!r}): this attempt has gathered under this key; keep its results, or give each gather "
                "a key of its own, like f'pages:{shop}'"
            )
        yield
        self._keys.add(key)
