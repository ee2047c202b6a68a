"""A job by a part of its id: lists show its end, and people remember its beginning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from tenure.core.ids import canonical
from tenure.errors import InvalidOption, UnknownJob

if TYPE_CHECKING:
    from tenure.ports import Store

FEWEST = 4  #: characters: fewer name too many jobs
LOOK_SECONDS = 10.0
_LISTED = 5
_PART = re.compile(r"[0-9a-f-]+").fullmatch


def whole(store: Store, text: str, *, seconds: float = LOOK_SECONDS) -> str:
    """The id that this text is, begins or ends; a whole id is returned unchecked. Raises InvalidOption, UnknownJob.

    The beginning is looked up, and for the end all ids are compared, newest first, for as long as `seconds`.
    """
    with suppress(InvalidOption):
        return canonical(text.strip())
    part = text.strip().lower()
    if not _PART(part):
        raise UnknownJob(f"no job {text} in {store.url}: its id is a UUID, or a part of one as lists show it")
    if len(part) < FEWEST:
        raise InvalidOption(f"id: expected at least {FEWEST} characters, the beginning or end of one, got {text!r}")
    found = list[str]()
    for job_id in _looked(store, part, seconds):
        if job_id not in found:
            found.append(job_id)
        if len(found) > _LISTED:
            break
    if not found:
        raise UnknownJob(f"no job in {store.url} has an id that begins or ends with {part}")
    if len(found) > 1:
        raise InvalidOption(f"id: {part} begins or ends those of several jobs; write more of it: {_told(store, found)}")
    return found[0]


def _looked(store: Store, part: str, seconds: float) -> Iterator[str]:
    yield from store.ids(part, within=_LISTED + 1).ids
    cursor: str | None = None
    until = monotonic() + seconds
    while True:
        page = store.ids(end=part, cursor=cursor)
        yield from page.ids
        if (cursor := page.cursor) is None:
            return
        if monotonic() >= until:
            raise InvalidOption(f"id: {part} was not compared with all ids within {seconds:g} s; write the whole id")


def _told(store: Store, ids: list[str]) -> str:
    listed = [f"{each} ({job.task}, {job.state})" for each in ids[:_LISTED] if (job := store.get(each)) is not None]
    return ", ".join((*listed, *(["…"] if len(ids) > _LISTED else [])))
