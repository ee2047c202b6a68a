"""What never changes of a job, as one text that jobs of one kind share; and times as the store keeps them."""

from __future__ import annotations

from functools import lru_cache
from math import ceil

import msgspec

from tenure.errors import BadData
from tenure.ports import Draft

LONGEST = 1e11  #: seconds; some 3,000 years


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a `Draft` that running and charging it takes, without what is at its default."""

    task: str
    queue: str = "default"
    priority: int = 0
    isolated: bool = False
    timeout: float | None = None
    stale_after: float | None = None
    max_failures: int = 10
    max_crashes: int = 3
    retry_base: float = 1.0
    retry_cap: float = 30.0
    meta: str = "{}"


_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder(Facts)


def encode_facts(draft: Draft) -> str:
    return _encoded(
        draft.task,
        draft.queue,
        draft.priority,
        draft.isolated,
        draft.timeout,
        draft.stale_after,
        draft.max_failures,
        draft.max_crashes,
        draft.retry_base,
        draft.retry_cap,
        draft.meta,
    )


@lru_cache(1000)
def _encoded(*values: object) -> str:
    return _encoder.encode(Facts(*values)).decode()  # type: ignore[arg-type]


@lru_cache(1000)
def decode_facts(text: str) -> Facts:
    return _decoder.decode(text)


def with_meta(text: str, meta: str) -> str:
    return _encoder.encode(msgspec.structs.replace(decode_facts(text), meta=meta)).decode()


def task_in(task: str) -> str:
    """How the facts of its jobs begin."""
    return _encoder.encode(Facts(task)).decode().removesuffix("}")


def millis(seconds: float) -> int:
    """Whole milliseconds, never fewer: nothing is due too early."""
    if not abs(seconds) <= LONGEST:
        raise BadData(f"a duration of at most {LONGEST:g} seconds was expected, got {seconds!r}")
    return ceil(round(seconds * 1000, 3))
