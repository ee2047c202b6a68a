"""Texts one by one, in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from tenure.ports.texts import Field, Text
from tenure.stores.inline import Inline
from tenure.stores.memory.base import MemoryBase, atomic
from tenure.stores.memory.rows import Row
from tenure.stores.rules import check_text, json_of

_FIELDS = frozenset(get_args(Field))


class MemoryTexts(Inline, MemoryBase):
    """The verbs of `TextStore`."""

    @atomic
    def records(self, job_id: str) -> Mapping[str, str]:
        row = self._jobs.get(job_id)
        return dict(sorted(row.once.items())) if row else {}

    @atomic
    def rewrite(self, changes: Sequence[tuple[Text, str]]) -> int:
        check_text(*(new for _, new in changes))
        return sum(self._rewrite(text, new) for text, new in changes)

    def _rewrite(self, text: Text, new: str) -> bool:
        if text.place == "note":
            value, ends = self._notes.get(text.owner, (None, None))
            if value == text.value:
                self._notes[text.owner] = new, ends
            return value == text.value
        if text.place == "signal":
            sent = self._known.signals.get((text.owner, text.key))
            if sent is not None and sent[0] == text.value:
                self._known.signals[text.owner, text.key] = new, sent[1]
            return sent is not None and sent[0] == text.value
        row = self._jobs.get(text.owner)
        changed = None if row is None else _changed(row, text, new)
        if changed is not None:
            self._jobs[text.owner] = changed
        return changed is not None


def _changed(row: Row, text: Text, new: str) -> Row | None:
    """The row with `new` in the place of this text; None: the row does not have it."""
    match text.place:
        case "attempt":
            past = tuple(
                replace(each, error=new) if (str(each.attempt), each.error) == (text.key, text.value) else each
                for each in row.attempts
            )
            return replace(row, attempts=past) if past != row.attempts else None
        case "log":
            number = int(text.key)
            return replace(row, logs={**row.logs, number: new}) if row.logs.get(number) == text.value else None
        case "once":
            return replace(row, once={**row.once, text.key: new}) if row.once.get(text.key) == text.value else None
        case "meta" if json_of(row.view.meta) == text.value:
            return replace(row, view=replace(row.view, meta=json.loads(new)), draft=row.draft.but(meta=new))
        case field if field in _FIELDS and getattr(row.view, field) == text.value:
            change: dict[str, Any] = {field: new}
            draft = row.draft.but(payload=new) if field == "payload" else row.draft
            return replace(row, draft=draft, view=replace(row.view, **change))
        case _:
            return None
