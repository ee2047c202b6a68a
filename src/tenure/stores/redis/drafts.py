"""Jobs not yet stored, as the scripts that make them are given them; and how much is put into one script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import Any, TypeVar

from tenure.ports import Draft
from tenure.stores.redis.facts import encode_facts, millis

T = TypeVar("T")

MOST = 200  #: ids of one script: the server does nothing else meanwhile
MOST_BYTES = 1 << 20  #: texts of one script


def batches(
    items: Sequence[T], size: Callable[[T], int] = lambda _: 0, things: Callable[[T], int] = lambda _: 1
) -> Iterator[list[T]]:
    """So many that a script is done with them in a few milliseconds."""
    batch: list[T] = []
    number = total = 0
    for item in items:
        more, length = things(item), size(item)
        if batch and (number + more > MOST or total + length > MOST_BYTES):
            yield batch
            batch, number, total = [], 0, 0
        batch.append(item)
        number += more
        total += length
    if batch:
        yield batch


def values(drafts: Sequence[Draft]) -> list[Any]:
    """What `enqueue` in common.lua takes of them."""
    groups: dict[tuple[str, str], int] = {}
    heads: list[Any] = []
    jobs: list[Any] = []
    for draft in drafts:
        facts = encode_facts(draft)
        group = groups.get((facts, draft.queue))
        if group is None:
            group = groups[facts, draft.queue] = len(groups) + 1
            stale = "" if draft.stale_after is None else millis(draft.stale_after)
            heads += (facts, draft.queue, 100 - draft.priority, int(draft.isolated), stale)
        if draft.delay is not None:
            when: Any = f"+{millis(draft.delay)}"
        else:
            when = "" if draft.run_at is None else ceil(draft.run_at.timestamp() * 1000)
        unique = "" if draft.unique is None else f"{draft.task}\0{draft.unique}"
        jobs += (draft.id, group, draft.payload, when, unique, "" if draft.expires is None else millis(draft.expires))
    return [len(groups), *heads, *jobs]


def blocks(drafts: Sequence[Draft]) -> list[Any]:
    """What `enqueue_all` in common.lua takes of them: any number, all in one step."""
    told = [values(batch) for batch in batches(drafts)]
    return [len(told), *(text for block in told for text in (len(block), *block))]
