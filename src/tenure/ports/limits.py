"""Limits: how many jobs of a key run at a time, and how many begin in a period, in the whole installation.

A job with keys (`Draft.limits`) is never queued by anything but `admit`: it is waiting, *parked* under one of its keys
until each of them has room. Then it is queued, and holds a *place* of each until it is no longer queued or processing,
for whatever reason. Places are kept with the rows, by the same write: a process that dies leaves none behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from tenure.core.limits import Bounds

if TYPE_CHECKING:
    from tenure.ports.reads import JobView

MOST_KEYS = 8  #: of one job
UNBEGUN_SECONDS = 30.0  #: a place that no worker has begun to use for this long goes to another queue that waits for it
SUSPECT_SECONDS = 5.0  #: the same for the place of a suspect, which goes to any job but a suspect of its queue
FOREVER = 9_999_999_999.0  #: the `paused_until` of a key that is paused until it is resumed


class LimitRow(msgspec.Struct, frozen=True, kw_only=True):
    """A limit, or what an operator has set for one key of it. `rev` rises with every write; 0: not stored yet."""

    name: str  #: the template, or the key
    key: bool = False  #: it is about one key
    limit: str = ""  #: of a key: its limit
    declared: Bounds | None = None  #: by the app
    source: str = ""  #: the module that declares it
    release: str = ""
    released_at: datetime | None = None  #: when this release was first seen: the newer release wins
    retired_at: datetime | None = None  #: no longer declared: it limits nothing
    set: Bounds | None = None  #: by an operator: it takes the place of what is declared
    paused_until: float | None = None  #: Unix time; FOREVER: until it is resumed
    why: str = ""  #: of the pause
    rev: int = 0

    def but(self, **changes: Any) -> LimitRow:
        """A copy with these changes."""
        return msgspec.structs.replace(self, **changes)

    @property
    def blank(self) -> bool:
        """Nothing is left in it that would have to be kept."""
        return self.declared is None and self.set is None and self.paused_until is None

    @property
    def rated(self) -> bool:
        """It has a rate: what begins under it is counted."""
        return any(each is not None and each.rate is not None for each in (self.declared, self.set))

    @property
    def fades(self) -> float | None:
        """The Unix time from which it is as good as blank; None: something is declared or set."""
        return self.paused_until if self.declared is None and self.set is None else None


class KeyView(NamedTuple):
    """A key as people see it. Times are Unix times by the store's clock."""

    key: str
    limit: str
    bounds: Bounds
    held: int  #: places: jobs that are queued or processing
    unbegun: int  #: of these, queued
    waiting: int  #: parked under it, counted up to `most`
    tokens: float | None  #: None: it has no rate
    #: Seconds until its rate allows one more to begin; 0: now. None: it has no rate, is paused, or no place is free.
    next_token: float | None
    paused_until: float | None
    why: str  #: of the pause


class Withdrawn(NamedTuple):
    """`jobs`: how many wait again; `asked`: `admit` has something to do; `more`: call again."""

    jobs: int
    asked: bool = False
    more: bool = False


class LimitReads(Protocol):
    """The reads of limits, for people and their tools."""

    def limits(self, names: Iterable[str] | None = None, *, keys: bool = False) -> list[LimitRow]:
        """The rows of limits by name, or of `keys`: those of `names`, or the first 10,000."""
        ...

    def keys(
        self,
        names: Iterable[str] | None = None,
        *,
        limited_by: str | None = None,
        start: str = "",
        limit: int = 50,
        most: int = 10_000,
    ) -> list[KeyView]:
        """Keys in order of their names, after `start`: those of `names` or of one limit, if given.

        A key is known while it is in use, paused or set, and for a short while after a job has begun under it.
        `waiting` is counted up to `most`.
        """
        ...

    def holders(self, key: str, *, limit: int = 50) -> list[JobView]:
        """The jobs that have a place of this key, the first admitted first."""
        ...

    def parked(self, key: str, *, limit: int = 50) -> list[JobView]:
        """The jobs that are parked under this key, in the order in which they get a place."""
        ...


class LimitStore(LimitReads, Protocol):
    """The verbs of limits. `admit` (`WaitStore`) gives places; whatever frees one stores an ask for its key."""

    def change_limits(self, rows: Sequence[LimitRow]) -> list[bool]:
        """Write each row if the stored one still has its `rev` (0: if there is none), with the next rev.

        A blank row is deleted. The next `admit` looks at what the row limits. False: another process wrote first: read
        again.
        """
        ...

    def withdraw(self, *, limit: int = 200) -> Withdrawn:
        """queued → waiting: takes back unused places, at most `limit`.

        They are those of jobs whose queue is paused or has no live worker, and those that have not begun for 30 s
        while a job of another queue, which a worker serves, is parked under the same key; for suspects and isolated
        jobs it is 5 s, and any other job of their own queue counts too. Such jobs come last under that key for a
        while. Also stores asks for the keys under which jobs of a queue that is served again are
        parked, and forgets at most `limit` unused keys, once no begin and no pause of them counts any more.
        """
        ...


decode_limit = msgspec.json.Decoder(LimitRow).decode
