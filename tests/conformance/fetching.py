"""A store with a bucket, as the shared suite sees it: every value is kept elsewhere, and every read fetches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tenure.core.offloaded import is_offloaded, offloaded
from tenure.ports import Claimed, Input, Store, Text, Update
from tenure.stores.offload import OffloadStore
from tenure.stores.offload.bucket import Folder
from tenure.stores.sealed import SealedStore
from tenure.stores.sealed.values import Seal


class _Fetching(Seal):
    """Where people read that a value is kept elsewhere, the suite gets the value itself."""

    def __init__(self, store: Store) -> None:
        super().__init__(None)
        self._store = store

    def _of(self, place: Any, owner: str, text: str) -> str:
        return self._store.fetch(Text(place, owner, "", text)) if is_offloaded(text) else text

    def _shown(self, text: str, kind: Any, owner: str, key: str = "") -> str:
        return self._of(kind, owner, text)

    def _compared(self, text: str, kind: Any, owner: str) -> str:
        return self._of(kind, owner, text)

    def claimed(self, claimed: Claimed) -> Claimed:
        checkpoint = claimed.checkpoint and self._of("checkpoint", claimed.id, claimed.checkpoint)
        return claimed._replace(payload=self._of("payload", claimed.id, claimed.payload), checkpoint=checkpoint)

    def update(self, update: Update) -> Update:
        return update._replace(result=update.result and self._of("result", update.id, update.result))

    def input(self, each: Input) -> Input:
        return each._replace(result=each.result and self._of("result", each.parent, each.result))


class _Store(SealedStore):
    def __init__(self, store: Store) -> None:
        super().__init__(store, None)
        self.seal = _Fetching(store)

    def records(self, job_id: str) -> Mapping[str, str]:
        found = self.beneath.records(job_id)
        return {key: self.beneath.fetch(Text("once", job_id, key, text)) for key, text in found.items()}

    def rewrite(self, changes: Sequence[tuple[Text, str]]) -> int:
        """The row has the value, or what stands for it."""
        changed = self.beneath.rewrite
        elsewhere = [(text._replace(value=offloaded(text.value.encode())), new) for text, new in changes]
        return sum(changed([each]) or changed([other]) for each, other in zip(changes, elsewhere, strict=True))


def fetching(store: Store, folder: Path) -> Store:
    largest: Any = dict.fromkeys(("payload", "result", "checkpoint", "once"), 0)
    return cast("Store", _Store(cast("Store", OffloadStore(store, Folder(folder / "values"), largest, 3600.0))))
