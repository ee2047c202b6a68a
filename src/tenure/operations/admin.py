"""Reading and acting, for people: the one way for the CLI, the API and the pages.

Whatever it shows has its secrets starred. Whatever it does is in the audit trail, with who did it, and rings the
doorbell after. Each noun has a file of its own, in which what reads stands before what acts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tenure.core.lifecycle import ENDED, State
from tenure.operations.access import Access
from tenure.operations.audit import Entries
from tenure.operations.job_actions import Jobs
from tenure.operations.problems import Problem, problems
from tenure.operations.queues import Queues
from tenure.operations.schedules import Schedules
from tenure.operations.workers import Workers
from tenure.ports import Notifier, QueueView, Store, WorkerView

if TYPE_CHECKING:
    from tenure.config import Settings


@dataclass(frozen=True, slots=True)
class Overview:
    """One reading of everything that moves. `rates` are ended jobs a second since the reading before it."""

    at: datetime
    counts: Mapping[State, int]
    queues: tuple[QueueView, ...]
    workers: tuple[WorkerView, ...]
    rates: Mapping[State, float]


class Admin:
    """An operator's hands and eyes on a store. `who` is the operator, for the audit trail.

    Example: `Admin(store, notifier, settings, who="ada").queues.pause("reports")`
    """

    def __init__(
        self, store: Store, notifier: Notifier, settings: Settings | None = None, *, who: str = "operator"
    ) -> None:
        self._access = Access.of(store, notifier, settings, who)
        self.jobs = Jobs(self._access)
        self.queues = Queues(self._access)
        self.workers = Workers(self._access)
        self.schedules = Schedules(self._access)

    def by(self, who: str) -> Admin:
        """The same, in another operator's hands."""
        return Admin(self._access.store, self._access.notifier, self._access.settings, who=who)

    @property
    def url(self) -> str:
        """The store's, without a password."""
        return self._access.store.url

    def now(self) -> datetime:
        """By the store's clock."""
        return self._access.store.now()

    def ping(self) -> None:
        """Ask the store something small. Raises StoreError."""
        self._access.store.paused()

    def counts(self) -> Mapping[State, int]:
        """Jobs by state."""
        return self._access.store.counts()

    def overview(self, since: Overview | None = None) -> Overview:
        """Counts, queues and workers now; with the reading before it, also the rates between the two."""
        at, counts = self._access.store.now(), self._access.store.counts()
        elapsed = (at - since.at).total_seconds() if since else 0.0
        rates: dict[State, float] = {}
        if since and elapsed > 0:
            # Pruning and deleting lower a count; they are no negative work.
            rates = {state: max(counts.get(state, 0) - since.counts.get(state, 0), 0) / elapsed for state in ENDED}
        return Overview(at, counts, tuple(self._access.store.queues()), tuple(self._access.store.workers()), rates)

    def problems(self, queues: Sequence[QueueView] | None = None) -> list[Problem]:
        """What is wrong right now, in words. Needs settings. `queues`: if they have just been read."""
        return problems(self._access.store, self._access.needed_settings(), queues)

    def audit(self, *, limit: int = 100, cursor: str | None = None) -> Entries:
        """Who did what, newest first."""
        return self._access.trail.entries(limit=limit, cursor=cursor)

    def metrics(self) -> str:
        """The metrics of the whole store in Prometheus's text format."""
        return metrics_text(self._access.store)


def metrics_text(store: Store) -> str:
    """The metrics of a whole store in Prometheus's text format, as `tenure worker --listen` shows them too."""
    from tenure.operations import metrics

    return metrics.text(metrics.store_families(store)).decode()


def metrics_samples(store: Store) -> list[dict[str, Any]]:
    """The same numbers, each with its name and labels."""
    from tenure.operations.metrics import store_families

    return [
        {"metric": sample.name, "labels": sample.labels, "value": sample.value}
        for family in store_families(store)
        for sample in family.samples
    ]
