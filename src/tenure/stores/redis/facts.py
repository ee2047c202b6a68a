"""The constant properties of a job, as one text that similar jobs share; and times as the store keeps them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import ceil
from operator import attrgetter

import msgspec

from tenure.core.limits import Key
from tenure.errors import BadData
from tenure.ports import Draft

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONGEST = 1e11  #: seconds; some 3,000 years


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a `Draft` that is needed to run and charge the job, without default values."""

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
_keys = msgspec.json.Decoder(tuple[Key, ...]).decode


_of = attrgetter(*Facts.__struct_fields__)


def encode_facts(draft: Draft) -> str:
    return _encoded(*_of(draft))


@lru_cache(1000)
def _encoded(*values: object) -> str:
    return _encoder.encode(Facts(*values)).decode()  # type: ignore[arg-type]


@lru_cache(1000)
def decode_facts(text: str) -> Facts:
    return _decoder.decode(text)


def with_meta(text: str, meta: str) -> str:
    return _encoder.encode(msgspec.structs.replace(decode_facts(text), meta=meta)).decode()


def task_in(task: str) -> str:
    """The prefix of the facts of this task's jobs."""
    return _encoder.encode(Facts(task)).decode().removesuffix("}")


def keys_of(text: str | None) -> tuple[Key, ...]:
    """The keys of a job, from `limits_text`."""
    return () if text is None else _keys(text)


def millis(seconds: float) -> int:
    """Whole milliseconds, rounded up: nothing is due too early."""
    if not abs(seconds) <= LONGEST:
        raise BadData(f"a duration of at most {LONGEST:g} seconds was expected, got {seconds!r}")
    return ceil(round(seconds * 1000, 3))


def instant(milliseconds: float | str) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=float(milliseconds))
    except OverflowError:  # later than the last year that datetime supports
        return datetime.max.replace(tzinfo=UTC)


def maybe_instant(milliseconds: str | None) -> datetime | None:
    return None if milliseconds is None else instant(milliseconds)
