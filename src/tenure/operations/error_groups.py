"""Jobs grouped by the pattern of their error: one cause that has killed many is one group."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tenure.core.fingerprint import fingerprint, pattern
from tenure.ports import JobView


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Jobs whose errors have one pattern. `fingerprint` finds them: `tenure dead list --where fingerprint=3f9a2c11`."""

    fingerprint: str
    says: str  #: the pattern
    jobs: int
    tasks: Sequence[tuple[str, int]]  #: how many of the jobs are of which task, the most first
    last_id: str  #: the job that ended last
    last_at: datetime | None


@dataclass(frozen=True, slots=True)
class ErrorGroups:
    """The largest group first. `jobs` were read, the newest; `more`: there are older ones, which are not counted."""

    groups: Sequence[ErrorGroup]
    jobs: int
    more: bool

    @property
    def tasks(self) -> list[tuple[str, int]]:
        """How many of these jobs are of which task, the most first."""
        counts = Counter[str]()
        for group in self.groups:
            counts.update(dict(group.tasks))
        return counts.most_common()


def grouped(jobs: Iterable[JobView], *, more: bool) -> ErrorGroups:
    by_pattern: defaultdict[str, list[JobView]] = defaultdict(list)
    for job in jobs:
        by_pattern[pattern(job.error or "")].append(job)
    groups = [_group(says, some) for says, some in by_pattern.items()]
    groups.sort(key=lambda group: (-group.jobs, group.says))
    return ErrorGroups(groups, sum(group.jobs for group in groups), more)


def _group(says: str, jobs: Sequence[JobView]) -> ErrorGroup:
    last = max(jobs, key=lambda job: job.ended_at or job.enqueued_at)
    tasks = Counter(job.task for job in jobs).most_common()
    return ErrorGroup(fingerprint(last.error or ""), says, len(jobs), tasks, last.id, last.ended_at)
