"""Models of limits and their keys."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Self
from uuid import UUID

from pydantic import Field, StringConstraints

from tenure.core.lifecycle import State
from tenure.core.limits import Bounds
from tenure.operations import keys, limits
from tenure.ports import FOREVER, JobView, KeyView
from tenure.web.models.values import At, Length, Model, Words

LimitName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$"),
    Field(description="A key, or a limit, which is its template.", examples=["shop:42"]),
]


class Rate(Model):
    """At most `most` begin in any `period`, at most `burst` of them at once."""

    most: int
    period: float = Field(description="Seconds.")
    burst: int


class Allowed(Model):
    """What a limit allows. Null: any number."""

    concurrency: int | None = Field(description="At most this many at a time.")
    rate: Rate | None

    @classmethod
    def of(cls, bounds: Bounds) -> Self:
        return cls(concurrency=bounds.concurrency, rate=None if bounds.rate is None else Rate.like(bounds.rate))


class By(Model):
    """Who changed it last."""

    who: str
    at: At


class Pause(Model):
    name: str = Field(description="What is paused, and to be resumed: the key, or its whole limit.")
    until: At | None = Field(description="Null: until somebody resumes it.")
    why: str
    by: By | None = Field(description="Null: one of its jobs snoozed it, or it is not on record.")

    @classmethod
    def of(cls, pause: keys.Paused) -> Self:
        return cls(name=pause.name, until=pause.until_at, why=pause.why, by=_by(pause.by))


class Sum(Model):
    """The keys of one limit, together."""

    keys: int
    held: int
    waiting: int
    paused: int = Field(description="How many keys are paused.")


class Limit(Model):
    name: str = Field(description="Its template.")
    bounds: Allowed = Field(description="What holds for each of its keys, unless something else is set for that key.")
    declared: Allowed | None = Field(description="By an app. Null: none has declared it.")
    set: Allowed | None = Field(description="Instead of what is declared.")
    set_by: By | None
    pause: Pause | None
    source: str = Field(description="The module of the app that declares it.")
    release: str
    retired_at: At | None = Field(description="When an app stopped declaring it: it limits nothing.")
    sum: Sum

    @classmethod
    def of(cls, status: limits.LimitStatus, sums: Mapping[str, keys.Sum]) -> Self:
        until = status.paused_until
        pause = None if until is None else keys.Paused(status.name, until, status.why, status.paused_by)
        return cls.like(
            status,
            bounds=Allowed.of(status.bounds),
            declared=_allowed(status.declared),
            set=_allowed(status.set),
            set_by=_by(status.set_by),
            pause=None if pause is None else Pause.of(pause),
            sum=Sum.like(sums.get(status.name, keys.Sum())),
        )


class Limits(Model):
    limits: list[Limit]
    complete: bool = Field(
        description="false: there are many keys. Only the first 2,000 by name, and those of the jobs that have "
        "waited longest, are counted."
    )


class Key(Model):
    key: str
    limit: str
    bounds: Allowed
    held: int = Field(description="Places: jobs that are queued or processing.")
    unbegun: int = Field(description="Of these, how many are queued.")
    waiting: int = Field(description="Jobs that wait for a place of it; counted up to 10,000.")
    tokens: float | None = Field(description="Null: it has no rate.")
    next_token: float | None = Field(
        description="Seconds until its rate allows one more to begin; null: it has no rate, is paused, or no place "
        "is free."
    )
    paused: bool
    paused_until: At | None = Field(description="Null: it is not paused, or until somebody resumes it.")
    why: str = Field(description="Of the pause.")

    @classmethod
    def of(cls, key: KeyView) -> Self:
        until = key.paused_until
        at = None if until is None or until >= FOREVER else datetime.fromtimestamp(until, UTC)
        return cls.like(key, bounds=Allowed.of(key.bounds), paused=until is not None, paused_until=at)


class Keys(Model):
    """A page of keys, in order of their names."""

    keys: list[Key]
    next: str | None = Field(description="`start` of the next page; null: this is the last.")


class MostWaited(Model):
    keys: list[Key] = Field(description="The most waited-for first.")
    complete: bool = Field(description="false: others exist. See `GET /limits`.")


class Holder(Model):
    """A job that has a place, or that waits for one."""

    id: UUID
    task: str
    queue: str
    state: State

    @classmethod
    def of(cls, job: JobView) -> Self:
        return cls.like(job)


class KeyDetail(Model):
    key: Key
    set: Allowed | None = Field(description="For this key alone; of a limit without braces, for the limit.")
    set_by: By | None
    pause: Pause | None = Field(description="Its own, or that of its whole limit.")
    holders: list[Holder] = Field(description="The jobs that have its places, the first admitted first; at most 20.")
    parked: list[Holder] = Field(description="Those that come next; at most 20.")

    @classmethod
    def of(cls, found: limits.KeyStatus) -> Self:
        return cls(
            key=Key.of(found.key),
            set=_allowed(found.set),
            set_by=_by(found.set_by),
            pause=None if found.pause is None else Pause.of(found.pause),
            holders=[Holder.of(each) for each in found.holders],
            parked=[Holder.of(each) for each in found.parked],
        )


class Named(Model):
    name: LimitName


class SetLimit(Named):
    """Bounds that are not given stay; a new rate without a burst gets the default one, a tenth."""

    concurrency: int | None = Field(None, ge=1, le=1_000_000, strict=True)
    rate: str | None = Field(None, description="At most n begin in a period.", examples=["100/1m"], max_length=50)
    burst: int | None = Field(
        None, ge=1, le=1_000_000_000, strict=True, description="At most this many of the rate at once."
    )


class PauseLimit(Named):
    length: Length | None = Field(None, alias="for", description="For this long; default: until it is resumed.")
    why: Words = Field("", description="The reason, shown while it is paused.")


class Holds(Model):
    changed: bool = Field(description="false: it was already so.")
    bounds: Allowed = Field(description="What holds now.")


def _allowed(bounds: Bounds | None) -> Allowed | None:
    return None if bounds is None else Allowed.of(bounds)


def _by(by: keys.By | None) -> By | None:
    return None if by is None else By.like(by)
