"""Texts one by one, in Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tenure.ports.texts import Text
from tenure.stores.inline import Inline
from tenure.stores.redis.base import RedisBase
from tenure.stores.redis.drafts import batches
from tenure.stores.redis.facts import decode_facts, with_meta
from tenure.stores.rules import check_text, is_id


class RedisTexts(Inline, RedisBase):
    """The verbs of `TextStore`."""

    def records(self, job_id: str) -> Mapping[str, str]:
        if not is_id(job_id):
            return {}
        flat: list[str] = self._server.run("HGETALL", f"{self._server.prefix}once:{job_id}")
        return dict(sorted(zip(flat[::2], flat[1::2], strict=True)))

    def rewrite(self, changes: Sequence[tuple[Text, str]]) -> int:
        check_text(*(new for _, new in changes))
        rows = [self._in_facts(*change) if change[0].place == "meta" else (*change[0], change[1]) for change in changes]
        found = batches(rows, lambda row: sum(map(len, row)))
        return sum(self._server.call("rewrite", *(text for row in batch for text in row)) for batch in found)

    def _in_facts(self, text: Text, new: str) -> tuple[str, str, str, str, str]:
        """The change of a job's facts, which hold its meta."""
        facts: str | None = self._server.run("HGET", f"{self._server.prefix}job:{text.owner}", "facts")
        if facts is None or decode_facts(facts).meta != text.value:
            return "facts", text.owner, "", "", new
        return "facts", text.owner, "", facts, with_meta(facts, new)
