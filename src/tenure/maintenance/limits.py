"""Puts the limits of an app into the store. As with schedules, an older release overwrites nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256

import msgspec

from tenure.core.logs import logger
from tenure.ports import LimitRow, Store
from tenure.schedules.releases import release_of, tries
from tenure.schedules.timetable import Declared

_log = logger("tenure.limits")
_encode = msgspec.json.Encoder(order="deterministic").encode


def declare_limits(
    store: Store, source: str, release: str, limits: Sequence[LimitRow], *, force: bool = False
) -> Declared:
    """Store an app's declared limits and retire those it no longer declares. An older release changes nothing.

    Bounds that an operator has set stay in force. Releases are told apart as for schedules.
    """
    note = f"limits:{source}"
    if not limits and not store.notes(note):
        return Declared()  # an app without limits, which never had any
    key = release or sha256(_encode(limits)).hexdigest()[:12]
    released_at, newest = release_of(store, note, key, force=force)
    if key != newest:
        return Declared(older=newest)
    before = known = {row.name: row for row in store.limits()}
    for _ in tries("a limit"):
        rows = [
            *_declared(known, source, key, released_at, limits),
            *_retired(known, source, released_at, limits, store),
        ]
        if not rows or all(store.change_limits(rows)):
            break
        known = {row.name: row for row in store.limits()}
    bounds = {new.name: new.declared for new in limits}
    stood = {name: row for name, row in before.items() if row.declared is not None}
    return Declared(
        made=tuple(name for name in bounds if name not in stood),
        changed=tuple(name for name in bounds if name in stood and stood[name].declared != bounds[name]),
        retired=tuple(row.name for row in _retired(before, source, released_at, limits, store)),
    )


def _declared(
    known: Mapping[str, LimitRow], source: str, release: str, released_at: datetime, limits: Sequence[LimitRow]
) -> list[LimitRow]:
    """The rows to write of those that the app declares."""
    rows: list[LimitRow] = []
    for new in limits:
        old = known.get(new.name) or LimitRow(name=new.name)
        dropped = old.retired_at is not None and old.source != source  # by another app: this one still declares it
        if old.released_at is not None and old.released_at > released_at and not dropped:
            continue  # a newer release has declared it
        if old.source not in ("", source):
            _log.warning("limit %s of app %s is now declared by app %s", old.name, old.source, source)
        row = old.but(declared=new.declared, source=source, release=release, released_at=released_at, retired_at=None)
        rows += [row] if row != old else []
    return rows


def _retired(
    known: Mapping[str, LimitRow], source: str, released_at: datetime, limits: Sequence[LimitRow], store: Store
) -> list[LimitRow]:
    """The rows to write of those that the app no longer declares."""
    names = {new.name for new in limits}
    mine = [row for row in known.values() if row.source == source and row.retired_at is None and row.name not in names]
    left = [row for row in mine if row.released_at is None or row.released_at <= released_at]
    return [row.but(retired_at=store.now()) for row in left]
