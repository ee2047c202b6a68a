"""The client of a Django project: what is enqueued inside `transaction.atomic()` belongs to that transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.db import connections, transaction

from tenure.config import Settings
from tenure.core.lifecycle import State
from tenure.core.logs import logger
from tenure.errors import FlowMade, OtherDatabase
from tenure.ports import Draft, Enqueued, Notifier, Store
from tenure.tasks.client import Client
from tenure.tasks.tracing import Tracing

_log = logger("tenure.django")


class DjangoClient(Client):
    """Joins the open transaction where the jobs are in its database; elsewhere it enqueues when that has committed."""

    def __init__(
        self,
        store: Store,
        notifier: Notifier,
        settings: Settings,
        tracing: Callable[[], Tracing | None],
        alias: str | None,
    ) -> None:
        super().__init__(store, notifier, settings, tracing)
        self._alias = alias
        kind = store.url.partition(":")[0]
        self._joins = kind == "postgresql" and alias is not None and connections[alias].vendor == "postgresql"
        self._testing = kind == "memory"

    def joins(self) -> bool:
        """Is a transaction open?"""
        return self._open_transaction() is not None

    def enqueue(
        self, drafts: Sequence[Draft], *, tx: object = None, shared: bool = False, again: bool = False
    ) -> list[Enqueued]:
        """Store all of them or none, with the open transaction if there is one."""
        open_one = self._open_transaction() if tx is None else None
        if self._joins or self._testing:  # the queue of a test waits for the commit itself
            try:
                return super().enqueue(drafts, tx=tx or open_one, shared=shared, again=again)
            except OtherDatabase:  # with a URL of its own the store may be in another PostgreSQL database
                if open_one is None:
                    raise
                self._joins = False
        if open_one is None:
            return super().enqueue(drafts, tx=tx, shared=shared, again=again)
        transaction.on_commit(partial(self._enqueue_late, drafts), using=self._alias)
        return [Enqueued(each.id, True, State.SCHEDULED if _is_later(each) else State.QUEUED) for each in drafts]

    def _enqueue_late(self, drafts: Sequence[Draft]) -> None:
        try:
            super().enqueue(drafts)
        except FlowMade as error:  # no error, as where the answer is known at once; others wait for their turn, too
            _log.info("%s", error)

    def _open_transaction(self) -> object | None:
        if self._alias is None:
            return None
        connection: Any = connections[self._alias]
        by_hand = self._joins and connection.connection is not None and not connection.autocommit
        in_block = connection.in_atomic_block
        if self._testing:  # the blocks that a TestCase puts around each test never commit, and a worker has none
            in_block = not all(each._from_testcase for each in connection.atomic_blocks)
        return connection if in_block or by_hand else None


def _is_later(draft: Draft) -> bool:
    return bool(draft.delay) or draft.run_at is not None
