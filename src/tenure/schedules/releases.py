"""Releases of an app, in the order in which a store first saw them. The newest one's declarations hold."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from random import random
from time import sleep

import msgspec

from tenure.errors import StoreError
from tenure.ports import Store

_TRIES = 20
_RELEASES_KEPT = 1_000  #: of an app: some 80 KB. One that is forgotten would count as new when it starts again
_MOMENT = timedelta(milliseconds=1)
_decode_seen = msgspec.json.Decoder(dict[str, datetime]).decode


def tries(what: str) -> Iterator[int]:
    """Attempts to write what other processes also write. Raises StoreError after twenty."""
    for attempt in range(_TRIES):
        yield attempt
        sleep(0.01 * random() * (attempt + 1))
    raise StoreError(f"{what} was changed by other processes {_TRIES} times in a row; retry later")


def release_of(store: Store, note: str, key: str, *, force: bool) -> tuple[datetime, str]:
    """The time when this release was first seen, and the newest release. `force`: this one is the newest."""
    for _ in tries("a declaration"):
        old = store.notes(note).get(note)
        seen = _decode_seen(old) if old else dict[str, datetime]()
        if key not in seen or force:  # later than all others, even if the store's clock was set back
            seen[key] = max([store.now(), *(each + _MOMENT for each in seen.values())])
        newest = dict(sorted(seen.items(), key=lambda each: each[1])[-_RELEASES_KEPT:])
        new = msgspec.json.encode(newest).decode()
        if old == new or store.swap(note, old, new).landed:
            return seen[key], max(newest, key=lambda each: newest[each])
    raise AssertionError("the tries end with an error")
