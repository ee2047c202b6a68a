"""Transactions of other libraries in a test: a job is in the queue once they commit, and is gone if they roll back.

Each is mirrored by a transaction of the test's own store, which ends as the other one does. SQLAlchemy reports it by
events, Django by `on_commit`; for a plain driver's connection to PostgreSQL the server is asked, at each look at the
queue. Libraries are recognized by the classes they have loaded; none is imported here.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from tenure.core.imports import is_a
from tenure.core.lifecycle import State
from tenure.errors import FlowMade, StoreError
from tenure.ports import Awaited, Draft, Enqueued, Store


class Mark(Protocol):
    """A place in the transaction of a driver's connection, with the ids that the server knows it by."""

    @property
    def connection(self) -> object: ...
    @property
    def transaction(self) -> str: ...
    @property
    def savepoint(self) -> str: ...


class Fates(Protocol):
    """Asks the server of a driver's connection how a transaction has ended."""

    def mark(self, tx: object) -> Mark: ...
    def of(self, xid: str) -> bool | None: ...
    def close(self) -> None: ...


class _Span(NamedTuple):
    """The steps of a mirror from here on, up to the next span, were done in this savepoint."""

    savepoint: str
    since: int


class _RolledBack(Exception):
    """Ends the mirror of a transaction that was rolled back."""


class _Mirror:
    """A transaction of the test's store that ends as another library's does."""

    def __init__(self, store: Store, tx: object) -> None:
        self.of = tx  # kept, so that its id is not used again
        self.jobs: list[str] = []
        self.marks: dict[object, int] = {}
        self.committing = False
        self.xid = ""  #: of a driver's connection: what its server calls the transaction
        self.spans: list[_Span] = []
        self._block = store.transaction()
        self.tx: Any = self._block.__enter__()

    def mark(self, savepoint: object) -> None:
        """A savepoint begins here, unless it has begun before."""
        self.marks.setdefault(savepoint, len(self.tx.steps))

    def back_to(self, savepoint: object) -> None:
        """Undo what was done since this savepoint; one that began before the first job undoes everything."""
        since = self.marks.get(savepoint, 0)
        del self.tx.steps[since:]

    def forget_savepoints(self, fate: Callable[[str], bool | None]) -> None:
        """Undo what was done in savepoints that were rolled back."""
        spans, steps = self.spans, list[object](self.tx.steps)
        kept: list[object] = []
        self.spans = []
        for span, following in zip(spans, [*(each.since for each in spans[1:]), len(steps)], strict=True):
            if fate(span.savepoint) is not False:
                self.spans.append(_Span(span.savepoint, len(kept)))
                kept += steps[span.since : following]
        self.tx.steps[:] = kept

    def end(self, *, committed: bool) -> None:
        if committed:
            self._block.__exit__(None, None, None)
        else:
            with suppress(_RolledBack):
                self._block.__exit__(_RolledBack, _RolledBack(), None)


def _named(drafts: Sequence[Draft]) -> list[str]:
    return [f"{draft.task} {draft.id}" for draft in drafts]


class Transactions:
    """The open transactions of other libraries that have jobs."""

    def __init__(self, store: Store, new_fates: Callable[[], Fates]) -> None:
        self._store = store
        self._new_fates = new_fates
        self._fates: Fates | None = None
        self._finding_fates = threading.Lock()  #: a test may enqueue from several threads
        self._open: dict[int, _Mirror] = {}
        self._listening: list[tuple[object, str, Callable[..., None]]] = []
        self._late: list[Late] = []

    def late(self, drafts: Sequence[Draft], tx: object, enqueue: Callable[[], object]) -> list[Enqueued] | None:
        """Call `enqueue` when Django's transaction commits. None: `tx` is not Django's. Raises StoreError."""
        connection = djangos(tx)
        if connection is None:
            return None
        self._late.append(Late(connection, drafts, enqueue))
        return as_if_stored(drafts)

    def joined(self, tx: object, drafts: Sequence[Draft] = ()) -> object:
        """The store's transaction for a `tx=`. Raises StoreError for a connection in no transaction."""
        inner: Any = tx.tx if isinstance(tx, Awaited) else tx
        if is_a(inner, "sqlalchemy.orm:scoped_session", "sqlalchemy.ext.asyncio:async_scoped_session"):
            inner = inner.registry()
        if is_a(inner, "sqlalchemy.ext.asyncio:AsyncSession"):
            inner = inner.sync_session
        if is_a(inner, "sqlalchemy.orm:Session"):
            mirror = self._session(inner)
        elif is_a(inner, "sqlalchemy:Connection", "sqlalchemy.ext.asyncio:AsyncConnection"):
            mirror = self._connection(getattr(inner, "sync_connection", inner))
        elif type(inner).__module__.partition(".")[0] in ("psycopg", "psycopg2", "asyncpg"):
            mirror = self._driver(tx)
        else:
            return tx
        mirror.jobs += _named(drafts)
        return mirror.tx

    def settle(self) -> None:
        """End the mirrors of connections whose transaction has ended since."""
        for key, mirror in list(self._open.items()):
            if mirror.committing:
                self._end(key, committed=True)
            elif self._fates is not None and mirror.xid:
                mirror.forget_savepoints(self._fates.of)
                if (committed := self._fates.of(mirror.xid)) is not None:
                    self._end(key, committed=committed)

    def close(self) -> None:
        """Stop listening, and warn of jobs whose transaction is still open."""
        self.settle()
        event: Any = getattr(sys.modules.get("sqlalchemy"), "event", None)
        for target, name, listener in self._listening:
            event.remove(target, name, listener)
        self._listening.clear()
        left = [job for mirror in self._open.values() for job in mirror.jobs]
        left += [job for late in self._late if late.waits for job in _named(late.drafts)]
        for key in list(self._open):
            self._end(key, committed=False)
        if self._fates is not None:
            self._fates.close()
        if left:
            warnings.warn(
                "these jobs were enqueued in a transaction that the test neither committed nor rolled back inside "
                f"`with jobs.testing()`, so they were never in the queue: {', '.join(left)}",
                RuntimeWarning,
                stacklevel=5,
            )

    def _end(self, key: int, *, committed: bool) -> None:
        mirror = self._open.pop(key, None)
        if mirror is not None:
            mirror.end(committed=committed)

    def _mirror(self, tx: object, listeners: dict[str, Callable[..., None]]) -> _Mirror:
        found = self._open.get(id(tx))
        if found is None:
            found = self._open[id(tx)] = _Mirror(self._store, tx)
        if not any(target is tx for target, _, _ in self._listening):
            for name, listener in listeners.items():
                self._listen(tx, name, listener)
        return found

    def _listen(self, target: object, name: str, listener: Callable[..., None]) -> None:
        event: Any = sys.modules["sqlalchemy"].event
        event.listen(target, name, listener)
        self._listening.append((target, name, listener))

    # ── drivers ──

    def _driver(self, tx: object) -> _Mirror:
        with self._finding_fates:
            fates = self._fates = self._fates or self._new_fates()
        mark = fates.mark(tx)
        self.settle()  # an earlier transaction of this connection, and savepoints that were rolled back
        mirror = self._open.get(id(mark.connection))
        if mirror is None:
            mirror = self._open[id(mark.connection)] = _Mirror(self._store, mark.connection)
        mirror.xid = mark.transaction
        mirror.spans.append(_Span(mark.savepoint, len(mirror.tx.steps)))
        return mirror

    # ── SQLAlchemy ──

    def _session(self, session: Any) -> _Mirror:
        """The session's own commit counts, even one that only releases the savepoint that a test has put around it."""
        if not session.in_transaction():
            session.begin()
        key, committed = id(session), set[object]()

        def after_commit(session: Any) -> None:
            ending = session.get_nested_transaction() or session.get_transaction()
            committed.add(ending)
            if not ending.nested:
                self._end(key, committed=True)

        def after_transaction_end(session: Any, ended: Any) -> None:
            mirror = self._open.get(key)
            if mirror is None or ended in committed:
                committed.discard(ended)
            elif ended.nested:
                if ended in mirror.marks:
                    mirror.back_to(ended)
            elif ended.parent is None:
                self._end(key, committed=False)

        mirror = self._mirror(session, {"after_commit": after_commit, "after_transaction_end": after_transaction_end})
        around = session.get_nested_transaction()
        while around is not None:
            if around.nested:
                mirror.mark(around)
            around = around.parent
        return mirror

    def _connection(self, connection: Any) -> _Mirror:
        """The events come before the driver's own call, so a commit counts once no error has followed it."""
        if connection is None or not connection.in_transaction():
            raise StoreError("tx is a Connection in no transaction: use it inside `with engine.begin() as tx:`")
        self.settle()
        key = id(connection)

        def committing(_: Any) -> None:
            if (mirror := self._open.get(key)) is not None:
                mirror.committing = True

        def beginning(_: Any) -> None:  # another transaction: the commit has succeeded
            if (mirror := self._open.get(key)) is not None and mirror.committing:
                self._end(key, committed=True)

        def failed(context: Any) -> None:
            mirror = self._open.get(key)
            if mirror is not None and mirror.committing and context.connection is connection:
                self._end(key, committed=False)

        def rolled_back(_: Any) -> None:
            self._end(key, committed=False)

        def savepoint(_: Any, __: object) -> None:  # its name is not known yet; savepoints end in the reverse order
            if (mirror := self._open.get(key)) is not None:
                mirror.mark(len(mirror.marks))

        def released(_: Any, __: object, ___: object) -> None:
            if (mirror := self._open.get(key)) is not None and mirror.marks:
                mirror.marks.popitem()

        def back_to(_: Any, __: object, ___: object) -> None:
            if (mirror := self._open.get(key)) is not None:
                mirror.back_to(len(mirror.marks) - 1)
                if mirror.marks:
                    mirror.marks.popitem()

        new = not any(target is connection for target, _, _ in self._listening)
        mirror = self._mirror(
            connection,
            {
                "begin": beginning,
                "commit": committing,
                "rollback": rolled_back,
                "savepoint": savepoint,
                "release_savepoint": released,
                "rollback_savepoint": back_to,
            },
        )
        if new:
            self._listen(connection.engine, "handle_error", failed)
        return mirror


# ── Django ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Late:
    """Enqueues jobs when Django's transaction commits: a callback of `on_commit`, which knows of savepoints."""

    def __init__(self, connection: Any, drafts: Sequence[Draft], enqueue: Callable[[], object]) -> None:
        self.drafts = drafts
        self._enqueue = enqueue
        self._called = False
        connection.on_commit(self)
        self._connection: Any = connection.on_commit.__self__  # not a proxy, which is another one in another thread

    def __call__(self) -> None:
        self._called = True
        with suppress(FlowMade):  # no error, as where the answer is known at once
            self._enqueue()

    @property
    def waits(self) -> bool:
        """Was its transaction neither committed nor rolled back?"""
        return not self._called and any(each[1] is self for each in self._connection.run_on_commit)


def djangos(tx: object) -> Any:
    """Django's connection, if this is one; else None. Raises StoreError for one in no transaction."""
    inner: Any = tx.tx if isinstance(tx, Awaited) else tx
    if not is_a(inner, "django.utils.connection:ConnectionProxy", "django.db.backends.base.base:BaseDatabaseWrapper"):
        return None
    if not inner.in_atomic_block:
        raise StoreError("tx is Django's connection, but in no transaction: use it inside `with transaction.atomic():`")
    return inner


def as_if_stored(drafts: Sequence[Draft]) -> list[Enqueued]:
    """What the store will answer, unless another job holds a unique key by then."""
    later = [draft.delay is not None or draft.run_at is not None for draft in drafts]
    states = [
        State.WAITING if draft.links and draft.links.after else State.SCHEDULED if wait else State.QUEUED
        for draft, wait in zip(drafts, later, strict=True)
    ]
    return [Enqueued(draft.id, True, state) for draft, state in zip(drafts, states, strict=True)]
