"""New jobs as arguments of the scripts that store them, and the limits of what one script gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import Any, TypeVar

from tenure.core.limits import Key
from tenure.ports import Draft
from tenure.stores.redis.facts import encode_facts, millis
from tenure.stores.rules import limits_text

T = TypeVar("T")

MOST = 200  #: ids per script: the server does nothing else while it runs
MOST_BYTES = 1 << 20  #: bytes of text per script


def batches(
    items: Sequence[T], size: Callable[[T], int] = lambda _: 0, things: Callable[[T], int] = lambda _: 1
) -> Iterator[list[T]]:
    """Batches of `items` that a script handles within a few milliseconds."""
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


def cost(end: str) -> int:
    """What an end adds to its batch: the script decodes and encodes its JSON, which costs eight times its bytes."""
    return 4096 + 8 * len(end)


def values(drafts: Sequence[Draft]) -> list[Any]:
    """The arguments of `enqueue` in common.lua."""
    groups: dict[tuple[str, str, tuple[Key, ...]], int] = {}
    heads: list[Any] = []
    jobs: list[Any] = []
    for draft in drafts:
        facts = encode_facts(draft)
        shared = facts, draft.queue, draft.limits
        group = groups.get(shared)
        if group is None:
            group = groups[shared] = len(groups) + 1
            stale = "" if draft.stale_after is None else millis(draft.stale_after)
            limits = limits_text(draft.limits) or ""
            heads += (facts, draft.queue, 100 - draft.priority, int(draft.isolated), stale, limits)
        if draft.delay is not None:
            when: Any = f"+{millis(draft.delay)}"
        else:
            when = "" if draft.run_at is None else ceil(draft.run_at.timestamp() * 1000)
        unique = "" if draft.unique is None else f"{draft.task}\0{draft.unique}"
        jobs += (draft.id, group, draft.payload, when, unique, "" if draft.expires is None else millis(draft.expires))
    return [len(groups), *heads, *jobs]


def blocks(drafts: Sequence[Draft]) -> list[Any]:
    """The arguments of `enqueue_all` in common.lua: any number of jobs, all in one step."""
    packed = [values(batch) for batch in batches(drafts)]
    return [len(packed), *(text for block in packed for text in (len(block), *block))]
