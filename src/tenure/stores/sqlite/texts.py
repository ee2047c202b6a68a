"""Texts one by one, in SQLite."""

# pyright: reportUnknownMemberType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import apsw

from tenure.ports.texts import Field, Place, Text
from tenure.stores.inline import Inline
from tenure.stores.rules import check_text
from tenure.stores.sqlite.base import SqliteBase

_REWRITE: Mapping[Place, str] = {
    **{field: f"UPDATE jobs SET {field} = :new WHERE id = :owner AND {field} = :value" for field in get_args(Field)},
    "attempt": "UPDATE attempts SET error = :new "
    "WHERE job_id = :owner AND attempt = CAST(:key AS INTEGER) AND error = :value",
    "log": "UPDATE job_logs SET lines = :new "
    "WHERE job_id = :owner AND attempt = CAST(:key AS INTEGER) AND lines = :value",
    "once": "UPDATE once SET value = :new WHERE job_id = :owner AND key = :key AND value = :value",
    "signal": "UPDATE signals SET value = :new WHERE job_id IS nullif(:owner, '') AND key = :key AND value = :value",
    "note": "UPDATE notes SET value = :new WHERE key = :owner AND value = :value",
}


class SqliteTexts(Inline, SqliteBase):
    """The verbs of `TextStore`."""

    def records(self, job_id: str) -> Mapping[str, str]:
        return dict(self._fetch("SELECT key, value FROM once WHERE job_id = ? ORDER BY key", (job_id,)))

    def rewrite(self, changes: Sequence[tuple[Text, str]]) -> int:
        check_text(*(new for _, new in changes))

        def step(connection: apsw.Connection) -> int:
            return sum(_rewritten(connection, text, new) for text, new in changes)

        return self._file.write(step)


def _rewritten(connection: apsw.Connection, text: Text, new: str) -> int:
    connection.execute(_REWRITE[text.place], {**text._asdict(), "new": new})
    return connection.changes()
