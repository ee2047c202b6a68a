"""Value types of the API, as documented in OpenAPI. Times are UTC, ISO 8601; durations are in seconds unless stated
otherwise.

Arguments, results, checkpoints, logs, edits and output are null for users without the right to see payloads: `payloads`
says so.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from math import isfinite
from typing import Annotated, Any, Literal, Self, cast

import msgspec
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from tenure.core.durations import YEARS
from tenure.core.offloaded import elsewhere, is_offloaded
from tenure.ports import RESERVED

MOST_DEEP = 100  #: levels of JSON inside JSON
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
_UNPRINTABLE = re.compile("[\x00\ud800-\udfff]")


def _instant(value: object) -> datetime:
    if isinstance(value, str) and _INSTANT.fullmatch(value):
        try:
            found = datetime.fromisoformat(value.upper())
            if found.year in YEARS:
                return found.astimezone(UTC)
        except ValueError:
            pass
    raise ValueError(
        f"expected a time with its zone like 2030-01-31T06:00:00Z, in a year from {YEARS[0]} to {YEARS[-1]}"
    )


def _given(value: object) -> object:
    """JSON that every store can keep and return unchanged."""
    if flaw := _flaw(value, 0):
        raise ValueError(flaw)
    return value


def _flaw(value: object, depth: int) -> str:
    if depth > MOST_DEEP:
        return f"expected JSON of at most {MOST_DEEP} levels"
    match value:
        case str():
            return "expected text without NUL and lone surrogates" if _UNPRINTABLE.search(value) else ""
        case float():
            return "" if isfinite(value) else f"expected a finite number, got {value}"
        case dict():
            both = [each for pair in cast("dict[str, object]", value).items() for each in pair]
            return next(filter(None, (_flaw(each, depth + 1) for each in both)), "")
        case list():
            return next(filter(None, (_flaw(each, depth + 1) for each in cast("list[object]", value))), "")
        case _:
            return ""


def ours(meta: dict[str, str]) -> dict[str, str]:
    if taken := [name for name in meta if name.startswith(RESERVED)]:
        raise ValueError(f"expected names of your own, got {taken[0]!r}: names with tenure. are reserved")
    return meta


Json = Annotated[Any, AfterValidator(_given)]
Stored = Any  #: JSON from the store, shown whatever it is
At = Annotated[datetime, Field(examples=["2030-01-31T06:00:00Z"])]
AskedAt = Annotated[At, BeforeValidator(_instant)]
NAME = r"^[A-Za-z_][A-Za-z0-9_.\-]{0,99}$"
Name = Annotated[str, StringConstraints(pattern=NAME), Field(examples=["default"])]
Text = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Words = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00]*$")]
Search = Annotated[str, StringConstraints(max_length=1_000, pattern=r"^[^\x00]*$")]
Length = Annotated[
    str,
    StringConstraints(max_length=50, pattern=r"^([0-9]+(\.[0-9]+)?(w|d|h|ms|m|s))+$"),
    Field(description="A duration: 500ms 90s 5m 1h30m 7d 2w.", examples=["1h30m"]),
]
Cursor = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200),
    Field(description="`next` of the previous page; an opaque value."),
]
Payloads = Annotated[
    Literal["shown", "hidden"],
    Field(
        description="hidden: you may not see arguments, results, checkpoints, logs, edits and output; they are null."
    ),
]


def read(text: str | None, shown: bool) -> Any:
    """A stored JSON text as a value; as text if it is not JSON, or nested too deeply to return."""
    if text is None or not shown:
        return None
    if is_offloaded(text):
        return elsewhere(text)
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    deep = text.count("[") + text.count("{") > MOST_DEEP
    return text if deep and _flaw(value, 0) else value


def shown(payloads: bool) -> Literal["shown", "hidden"]:
    return "shown" if payloads else "hidden"


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def like(cls, value: object, **others: Any) -> Self:
        """A model from the attributes of the same names, and from `others`."""
        return cls(**{name: getattr(value, name) for name in cls.model_fields if name not in others}, **others)


class Changed(Model):
    changed: bool = Field(description="false: it was already so.")
    says: str


class Mistake(BaseModel):
    field: str = Field(examples=["limit", "body.args"])
    expected: str


class ProblemDetails(BaseModel):
    """What went wrong (RFC 9457)."""

    type: str = Field(description="The same for each kind of problem.", examples=["/problems/no-such-job"])
    title: str
    status: int
    detail: str = Field(description="What was expected, what came, what to do.")
    errors: list[Mistake] | None = Field(None, description="Of an invalid request: which field, what was expected.")
