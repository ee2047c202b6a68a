"""What every query and action of an operator uses: the store, the operator's name, the audit trail, redaction."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tenure.config import KEY_NAMES
from tenure.operations.audit import Trail
from tenure.ports import EDITS, JobView, Notifier, Store
from tenure.tasks.arguments import Stars

if TYPE_CHECKING:
    from tenure.config import Settings


@dataclass(frozen=True, slots=True)
class Access:
    """A store as one operator, `who`, accesses it."""

    store: Store
    notifier: Notifier
    settings: Settings | None
    who: str
    trail: Trail
    stars: Stars

    @classmethod
    def of(cls, store: Store, notifier: Notifier, settings: Settings | None, who: str) -> Access:
        return cls(store, notifier, settings, who, Trail(store), Stars(settings.redact if settings else KEY_NAMES))

    def needed_settings(self) -> Settings:
        assert self.settings is not None, "this needs settings: Admin(store, notifier, settings)"
        return self.settings

    def recorded(self, action: str, subject: str, **detail: str) -> AbstractContextManager[list[str]]:
        """Run the block under the operator's name: an audit entry is written before it, and again with its outcome.

        Example: `with access.recorded("queue.pause", name) as outcome: outcome.append("paused")`
        """
        return self.trail.recorded(self.who, action, subject, **detail)

    def redacted(self, job: JobView) -> JobView:
        """The job with its secrets redacted."""
        hide = self.stars.hide
        meta = {name: text for name, text in job.meta.items() if name != EDITS}
        return replace(
            job,
            payload=hide(job.payload),
            result=None if job.result is None else hide(job.result),
            checkpoint=None if job.checkpoint is None else hide(job.checkpoint),
            meta=self.stars.hide_texts(meta),
        )
