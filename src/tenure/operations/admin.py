"""Operator queries and actions: the single entry point of the CLI, the API and the pages.

Query results have their secrets redacted. Every action is recorded in the audit trail with the operator's name, and
notifies workers afterwards. Each noun has its own file, with queries before actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tenure.core.lifecycle import ENDED, State
from tenure.operations.access import Access
from tenure.operations.audit import Entries
from tenure.operations.causes import Problem
from tenure.operations.flows import Flows
from tenure.operations.job_actions import Jobs
from tenure.operations.limits import Limits
from tenure.operations.neighbours import NeighbourReads
from tenure.operations.problems import problems
from tenure.operations.queues import Queues
from tenure.operations.schedules import Schedules
from tenure.operations.signals import SignalActions
from tenure.operations.trends import Trends
from tenure.operations.workers import Workers
from tenure.ports import Notifier, QueueView, Store, WorkerView

if TYPE_CHECKING:
    from tenure.config import Settings


@dataclass(frozen=True, slots=True)
class Overview:
    """One snapshot of all live figures. `rates` are jobs ended per second since the previous snapshot."""

    at: datetime
    counts: Mapping[State, int]
    queues: tuple[QueueView, ...]
    workers: tuple[WorkerView, ...]
    rates: Mapping[State, float]


class Admin:
    """What an operator can query and do on a store. `who` is the operator's name in the audit trail.

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
        self.trends = Trends(self._access)
        self.flows = Flows(self._access)
        self.limits = Limits(self._access)
        self.signals = SignalActions(self._access)
        self.neighbours = NeighbourReads(self._access)

    def by(self, who: str) -> Admin:
        """The same store, for another operator."""
        return Admin(self._access.store, self._access.notifier, self._access.settings, who=who)

    @property
    def url(self) -> str:
        """The store's URL, without its password."""
        return self._access.store.url

    def now(self) -> datetime:
        """The time on the store's clock."""
        return self._access.store.now()

    def ping(self) -> None:
        """Run a small query on the store. Raises StoreError."""
        self._access.store.paused()

    def counts(self) -> Mapping[State, int]:
        """Jobs by state."""
        return self._access.store.counts()

    def overview(self, since: Overview | None = None) -> Overview:
        """Counts, queues and workers now; given the previous snapshot, also the rates since then."""
        at, counts = self._access.store.now(), self._access.store.counts()
        elapsed = (at - since.at).total_seconds() if since else 0.0
        rates: dict[State, float] = {}
        if since and elapsed > 0:
            # Pruning and deleting lower a count; a rate is never negative.
            rates = {state: max(counts.get(state, 0) - since.counts.get(state, 0), 0) / elapsed for state in ENDED}
        return Overview(at, counts, tuple(self._access.store.queues()), tuple(self._access.store.workers()), rates)

    def problems(self, queues: Sequence[QueueView] | None = None) -> list[Problem]:
        """What is wrong right now. Needs settings. Pass `queues` if they have just been read."""
        return problems(self._access.store, self._access.needed_settings(), queues)

    def audit(self, *, limit: int = 100, cursor: str | None = None) -> Entries:
        """Audit entries, newest first."""
        return self._access.trail.entries(limit=limit, cursor=cursor)

    def metrics(self) -> str:
        """The metrics of the whole store in Prometheus's text format."""
        return metrics_text(self._access.store)


def metrics_text(store: Store) -> str:
    """The metrics of a whole store in Prometheus's text format, as `tenure worker --listen` also serves them."""
    from tenure.operations import metrics

    return metrics.text(metrics.store_families(store)).decode()


def metrics_samples(store: Store) -> list[dict[str, Any]]:
    """The same samples, each with its name and labels."""
    from tenure.operations.metrics import store_families

    return [
        {"metric": sample.name, "labels": sample.labels, "value": sample.value}
        for family in store_families(store)
        for sample in family.samples
    ]
