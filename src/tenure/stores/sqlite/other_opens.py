"""Refuses that this process opens a store's file in another way while it is open here: see `file.py` for why."""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any

from tenure.errors import StoreError

_open: dict[int, str] = {}  #: the paths, by the id of what has them open; it may be dropped without being closed
_hooked = False


def refuse(file: object, path: str) -> None:
    """From now on, until `allow`, or until `file` is garbage."""
    global _hooked
    _open[id(file)] = path
    weakref.finalize(file, _open.pop, id(file), None).atexit = False
    if not _hooked:
        sys.addaudithook(_check)
        _hooked = True


def allow(file: object) -> None:
    _open.pop(id(file), None)


def allow_all() -> None:
    """In a forked child, which has none of its parent's files open."""
    _open.clear()


def _check(event: str, args: tuple[Any, ...]) -> None:
    if event not in {"open", "sqlite3.connect"} or not _open or not args:
        return
    name = args[0]
    if not isinstance(name, str | bytes | os.PathLike):
        return
    text = os.fsdecode(name)  # pyright: ignore[reportUnknownArgumentType]
    text = text.removeprefix("file:").partition("?")[0]
    base = text.removesuffix("-wal").removesuffix("-shm")
    if os.path.realpath(base) in list(_open.values()):
        raise StoreError(
            f"{text} is open in Tenure in this process: opening it in any other way drops its locks and can lose "
            "committed jobs. Use jobs.transaction() for your own SQL, `tenure backup` for a copy."
        )
