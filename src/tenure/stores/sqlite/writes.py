"""Writes that wait for their turn, and their commit: all that wait share one transaction."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, final

import apsw


class Write(ABC):
    """One write that waits for its turn, and then its result."""

    __slots__ = ("committed", "error", "result")

    def __init__(self) -> None:
        self.committed: Sequence[object] = ()  #: shared by a group; non-empty once its COMMIT has returned
        self.result: Any = None
        self.error: Exception | None = None

    @abstractmethod
    def execute(self, connection: apsw.Connection) -> Any:
        """Do it, in a transaction. Returns its result."""


class Call(Write):
    """Any number of statements."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[apsw.Connection], Any]) -> None:
        super().__init__()
        self._call = call

    def execute(self, connection: apsw.Connection) -> Any:
        return self._call(connection)


@final
class Change(Write):
    """One statement. Its result is how many rows it has changed."""

    __slots__ = ("bindings", "sql")

    def __init__(self, sql: str, bindings: Any) -> None:
        super().__init__()
        self.sql, self.bindings = sql, bindings

    def execute(self, connection: apsw.Connection) -> int:
        connection.execute(self.sql, self.bindings)
        return connection.changes()


def commit(connection: apsw.Connection, group: Sequence[Write]) -> None:
    """All of them or, if one raises, none."""
    committed: list[apsw.Cursor] = []
    execute: Callable[..., apsw.Cursor] = connection.execute
    try:
        # A commit and its record are one step of the interpreter: no signal's exception can come between them.
        if len(group) == 1 and type(change := group[0]) is Change:  # isinstance asks an abstract class in Python
            change.committed = committed
            committed.extend(map(execute, (change.sql,), (change.bindings,)))
            change.result = connection.changes()
            return
        execute("BEGIN IMMEDIATE")
        for write in group:
            write.committed = committed
            write.result = write.execute(connection)
        committed.extend(map(execute, ("COMMIT",)))
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
