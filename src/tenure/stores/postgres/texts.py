"""Texts one by one, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from tenure.ports.texts import Field, Place, Text
from tenure.stores.inline import Inline
from tenure.stores.postgres.base import PostgresBase
from tenure.stores.postgres.server import Connection
from tenure.stores.rules import check_text, is_id

_UNLOCKED = "FOR NO KEY UPDATE SKIP LOCKED"  # a row that another session has locked is left for the next round
_REWRITE: Mapping[Place, str] = {
    **{
        field: f"UPDATE @.jobs SET {field} = %(new)s WHERE id = (SELECT id FROM @.jobs "
        f"WHERE id = %(owner)s::uuid AND {field} = %(value)s {_UNLOCKED})"
        for field in get_args(Field)
    },
    "attempt": "UPDATE @.attempts SET error = %(new)s "
    "WHERE job_id = %(owner)s::uuid AND attempt = %(key)s::text::integer AND error = %(value)s",
    "log": "UPDATE @.job_logs SET lines = %(new)s "
    "WHERE job_id = %(owner)s::uuid AND attempt = %(key)s::text::integer AND lines = %(value)s",
    "once": "UPDATE @.once SET value = %(new)s WHERE job_id = %(owner)s::uuid AND key = %(key)s AND value = %(value)s",
    "signal": "UPDATE @.signals SET value = %(new)s "
    "WHERE job_id = %(owner)s::uuid AND key = %(key)s AND value = %(value)s",
    "note": "UPDATE @.notes SET value = %(new)s WHERE key = %(owner)s AND value = %(value)s",
}
_SHARED = "UPDATE @.shared_signals SET value = %(new)s WHERE key = %(key)s AND value = %(value)s"


class PostgresTexts(Inline, PostgresBase):
    """The verbs of `TextStore`."""

    def records(self, job_id: str) -> Mapping[str, str]:
        if not is_id(job_id):
            return {}
        sql = 'SELECT key, value FROM @.once WHERE job_id = %s ORDER BY key COLLATE "C"'
        return dict(self._server.read(sql, job_id))

    def rewrite(self, changes: Sequence[tuple[Text, str]]) -> int:
        check_text(*(new for _, new in changes))
        return self._locking(
            lambda connection: sum(self._rewrite(connection, *change) for change in changes),
            sent=sum(len(text.value) + len(new) for text, new in changes),
        )

    def _rewrite(self, connection: Connection, text: Text, new: str) -> int:
        sql = _SHARED if text.place == "signal" and not text.owner else _REWRITE[text.place]
        if text.owner and text.place != "note" and not is_id(text.owner):
            return 0
        return connection.execute(self._sql(sql), {**text._asdict(), "new": new}).rowcount
