"""Limits and their keys: what holds, who set it, which jobs have the places; pause, resume, set and reset."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec

from tenure.core.durations import Duration, seconds, spell
from tenure.core.limits import Bounds, Rate
from tenure.core.text import clean
from tenure.errors import InvalidOption, UnknownLimit
from tenure.operations.access import Access
from tenure.operations.keys import (
    PAUSED,
    SET,
    By,
    Paused,
    Usage,
    about,
    command,
    note_of,
    notes_of,
    oldest_of,
    pause_of,
    usage,
)
from tenure.ports import FOREVER, JobView, KeyView, LimitRow, Ring
from tenure.schedules.releases import tries
from tenure.tasks.limits import bounds_of, burst_of, gives, is_key, spelled

SHOWN = 20  #: jobs that have a place of a key, or are the next to get one
_LONGEST_WHY = 500
_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatus:
    """A limit. `bounds` hold for each key of it, unless something else is set for that key; none, if it is retired."""

    name: str  #: its template
    bounds: Bounds
    declared: Bounds | None  #: None: no app has declared it
    set: Bounds | None  #: by an operator, or by code with `jobs.limits.set`
    set_by: By | None
    paused_until: float | None  #: Unix time; `tenure.ports.FOREVER`: until somebody resumes it; None: it is not paused
    why: str  #: of the pause
    paused_by: By | None
    source: str  #: the module of the app that declares it
    release: str
    retired_at: datetime | None  #: no longer declared: it limits nothing

    @property
    def keyed(self) -> bool:
        """Its keys are made of arguments; else its name is its only key."""
        return "{" in self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStatus:
    """A key, the first jobs that have a place of it, and the next that wait for one."""

    key: KeyView
    set: Bounds | None  #: for this key alone; of a limit without braces, for the limit
    set_by: By | None
    pause: Paused | None  #: its own, or that of its whole limit; None: it is not paused
    holders: tuple[JobView, ...]
    parked: tuple[JobView, ...]

    @property
    def paused_by(self) -> By | None:
        """None: it is not paused, or a job snoozed it."""
        return None if self.pause is None else self.pause.by


class LimitReads:
    """Queries on limits and keys. All results have their secrets redacted."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def all(self, *, retired: bool = False) -> tuple[LimitStatus, ...]:
        """The limits by name; with `retired` also those that no app declares any more."""
        rows = [row for row in self._access.store.limits() if retired or row.retired_at is None]
        sets, pauses = notes_of(self._access.store, SET), notes_of(self._access.store, PAUSED)
        return tuple(self._status(row, sets, pauses) for row in rows)

    def get(self, name: str) -> LimitStatus:
        """One limit, by its template. Raises UnknownLimit."""
        return self._status(self._stored(name), notes_of(self._access.store, SET), notes_of(self._access.store, PAUSED))

    def keys(self, limit: str | None = None, *, start: str = "", number: int = 50) -> list[KeyView]:
        """Keys in order of their names, after `start`: of this limit, or of all. Raises UnknownLimit.

        Known are the keys that are in use, paused or set, or of which a job began a short while ago.
        """
        if limit is not None:
            self._stored(limit)
        return self._access.store.keys(limited_by=limit, start=start, limit=number)

    def known(self, names: Iterable[str]) -> list[KeyView]:
        """Those of these keys that are known."""
        return self._access.store.keys(names)

    def holders(self, key: str, *, number: int = SHOWN) -> list[JobView]:
        """The jobs that have a place of a key, the first admitted first."""
        return [self._access.redacted(job) for job in self._access.store.holders(key, limit=number)]

    def usage(self, limit: str | None = None) -> Usage:
        """The keys of this limit, or of all, the most waited-for first. Raises UnknownLimit.

        With more than 2,000 keys these are the first by name, and those of the jobs that have waited longest.
        """
        if limit is not None:
            self._stored(limit)
        return usage(self._access.store, limit)

    def bounds(self, name: str) -> Bounds:
        """What holds for a key, or for the keys of a limit. Raises UnknownLimit."""
        limit = self.limit_of(name)
        row = self._row(limit, key=False)
        if row is None or row.retired_at is not None:
            return Bounds()
        key = self._row(name, key=True) if name != limit else None
        return effective(key.set if key else None, effective(row.set, row.declared))

    def oldest(self, found: Usage, keys: Iterable[KeyView]) -> dict[str, datetime]:
        """Since when a job waits for each of these keys, by the key."""
        return oldest_of(self._access.store, found, keys)

    def key(self, name: str) -> KeyStatus:
        """One key, with the jobs that have its places. Raises UnknownLimit."""
        limit = self.limit_of(name)
        if name == limit and "{" in name:
            raise InvalidOption(f"{name!r} is a limit with many keys: name one of them, like {_example(name)!r}")
        store = self._access.store
        rows, views = store.limits([name], keys=True), store.keys([name])
        if not views:  # nothing has used it yet
            views = [_unused(name, self.get(limit))]
        if name == limit and not (rows and rows[0].set):  # its only key: what is set for it is set for the limit
            rows = store.limits([limit])
        return KeyStatus(
            key=views[0],
            set=rows[0].set if rows else None,
            set_by=note_of(store, SET, name, key=rows[0].key) if rows and rows[0].set else None,
            pause=pause_of(store, views[0]),
            holders=tuple(self.holders(name)),
            parked=tuple(map(self._access.redacted, store.parked(name, limit=SHOWN))),
        )

    def besides(self, name: str) -> str:
        """What keeps a change of this key or limit from having its effect; empty: nothing does. Raises UnknownLimit.

        Example: `f"shop:42 is resumed{admin.limits.besides('shop:42')}"`
        """
        limit = self.limit_of(name)
        row, now = self._row(limit, key=False), self._access.store.now().timestamp()
        if row is None:
            return "; no app has declared its limit, so it has no bounds"
        if row.retired_at is not None:
            return "; no app declares the limit any more, so it limits nothing"
        if row.paused_until is not None and row.paused_until > now:
            return "" if name == limit else f"; its limit is paused: {command('resume', limit)}"
        keys = self._access.store.limits(keys=True) if name == limit and "{" in name else []
        paused = sum(each.limit == limit and (each.paused_until or 0) > now for each in keys)
        if not paused:
            return ""
        return f"; {paused:,} of its keys {'is' if paused == 1 else 'are'} paused: see {command('show', limit)}"

    def limit_of(self, name: str) -> str:
        """The limit that this is the name of, or that this is a key of. Raises UnknownLimit, InvalidOption."""
        store = self._access.store
        if store.limits([_text(name)]):
            return name
        used = store.keys([name], limit=1)
        if used:
            return used[0].limit
        rows = [row for row in store.limits() if is_key(name) and gives(row.name, name)]
        if not rows:
            raise self._unknown(name)
        return min(rows, key=lambda row: (row.retired_at is not None, -len(row.name.partition("{")[0]))).name

    def _row(self, name: str, *, key: bool) -> LimitRow | None:
        return next(iter(self._access.store.limits([name], keys=key)), None)

    def _stored(self, limit: str) -> LimitRow:
        found = self._access.store.limits([_text(limit)])
        if not found:
            raise self._unknown(limit)
        return found[0]

    def _unknown(self, name: str) -> UnknownLimit:
        known = [row.name for row in self._access.store.limits()]
        near = difflib.get_close_matches(name, known, n=3)
        which = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {_listed(known)}."
        return UnknownLimit(
            f"no limit of this store is named {name!r}, and none gives that key; {which} A limit is known once a "
            "worker of its app has started, or jobs.declare() was called"
        )

    def _status(self, row: LimitRow, sets: Mapping[str, By], pauses: Mapping[str, By]) -> LimitStatus:
        paused = row.paused_until is not None and row.paused_until > self._access.store.now().timestamp()
        return LimitStatus(
            name=row.name,
            bounds=effective(row.set, row.declared) if row.retired_at is None else Bounds(),
            declared=row.declared,
            set=row.set,
            set_by=None if row.set is None else sets.get(about(row.name, key=False)),
            paused_until=row.paused_until if paused else None,
            why=row.why if paused else "",
            paused_by=pauses.get(about(row.name, key=False)) if paused else None,
            source=row.source,
            release=row.release,
            retired_at=row.retired_at,
        )


class Limits(LimitReads):
    """Queries and actions on limits. Example: `admin.limits.pause("shop:42", "10m", "too many 429")`"""

    def pause(self, name: str, for_: Duration | None = None, why: str = "") -> float:
        """Give no place of this key, or of any key of this limit: for this long, or until `resume`.

        Returns the Unix time of its end. A current pause is replaced. Raises UnknownLimit, InvalidOption.
        """
        length = None if for_ is None else seconds(for_, "pause: for")
        if length == 0:
            raise InvalidOption(f"pause: for: expected how long, like 30s, got {for_!r}; to end a pause, resume it")
        why = clean(why.strip(), _LONGEST_WHY)
        limit = self.limit_of(name)
        detail = {"for": "until resumed" if length is None else spell(length), **({"why": why} if why else {})}
        until = FOREVER if length is None else self._access.store.now().timestamp() + length
        with self._access.recorded("limits.pause", name, **detail) as said:
            self._change(name, limit, paused_until=until, why=why)
            self._end_pause_of_its_key(name, limit)
            self._record(PAUSED, name, limit, by=True, ttl=length)
            said.append("paused")
        return until

    def resume(self, name: str) -> bool:
        """End the pause of a key or a limit. False: it was not paused. Raises UnknownLimit."""
        limit = self.limit_of(name)
        with self._access.recorded("limits.resume", name) as said:
            resumed = self._change(name, limit, paused_until=None, why="")
            resumed |= self._end_pause_of_its_key(name, limit)
            self._record(PAUSED, name, limit, by=False)
            said.append("resumed" if resumed else "it was not paused")
        return resumed

    def set(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
    ) -> Bounds:
        """Replace the declared bounds of a key, or a limit. Bounds that are not given stay.

        A new rate without a burst gets the default one, a tenth. Returns what holds now: no bounds, if no app declares
        the limit any more. Jobs that already run beyond it continue. Raises UnknownLimit, InvalidOption.
        """
        limit = self.limit_of(name)
        if concurrency is None and rate is None and burst is None:
            raise InvalidOption(f"limit {name!r}: expected concurrency, rate or burst, got nothing; to undo it: reset")
        given = bounds_of(f"limit {name!r}", concurrency, rate, None if rate is None else burst)
        if burst is not None and rate is None:
            given = given._replace(rate=self._with_burst(name, limit, burst))
        row = self._row(name, key=name != limit)
        stands = effective(given, row.set if row else None)
        with self._access.recorded("limits.set", name, to=spelled(stands)) as said:
            self._change(name, limit, set=stands)
            self._record(SET, name, limit, by=True)
            said.append(spelled(stands))
        return self.bounds(name)

    def _with_burst(self, name: str, limit: str, burst: int) -> Rate:
        row = self._row(name, key=True) if name != limit else None
        rate = effective(row.set if row else None, self._bounds(limit)).rate
        if rate is None:
            raise InvalidOption(f"limit {name!r}: burst: it has no rate; give a rate too, like 100/1m")
        return rate._replace(burst=burst_of(f"limit {name!r}", burst, rate.most))

    def reset(self, name: str) -> bool:
        """Restore the declared bounds. False: nothing was set. Raises UnknownLimit."""
        limit = self.limit_of(name)
        with self._access.recorded("limits.reset", name) as said:
            reset = self._change(name, limit, set=None)
            self._record(SET, name, limit, by=False)
            said.append("reset" if reset else "nothing was set")
        return reset

    # ── inside ──

    def _end_pause_of_its_key(self, name: str, limit: str) -> bool:
        """The only key of a limit without braces has a row of its own when a job has snoozed it."""
        one = name == limit and "{" not in name
        return one and self._change(name, limit, key=True, paused_until=None, why="")

    def _bounds(self, limit: str) -> Bounds:
        row = self._row(limit, key=False)
        return effective(row.set, row.declared) if row else Bounds()

    def _change(self, name: str, limit: str, *, key: bool | None = None, **changes: object) -> bool:
        """Write these changes to a row; False: there was nothing to change."""
        of_key = name != limit if key is None else key
        for _ in tries(f"limit {name!r}"):
            old = self._row(name, key=of_key) or LimitRow(name=name, key=of_key, limit=limit if of_key else "")
            new = old.but(**changes)
            if new == old:
                return False
            if self._access.store.change_limits([new])[0]:
                self._access.notifier.announce([Ring("due", "")])
                return True
        raise AssertionError("the tries end with an error")

    def _record(self, kind: str, name: str, limit: str, *, by: bool, ttl: float | None = None) -> None:
        """Record who changed it, for `ttl` seconds, or delete that record."""
        note, store = kind + about(name, key=name != limit), self._access.store
        old = store.notes(note).get(note)
        new = msgspec.json.encode(By(self._access.who, store.now())).decode() if by else None
        if old != new:
            store.swap(note, old, new, ttl=ttl)


def effective(first: Bounds | None, then: Bounds | None) -> Bounds:
    """The bounds that hold: from `first` what it gives, else from `then`."""
    known = [each for each in (first, then) if each is not None]
    return Bounds(
        next((each.concurrency for each in known if each.concurrency is not None), None),
        next((each.rate for each in known if each.rate is not None), None),
    )


def _unused(name: str, limit: LimitStatus) -> KeyView:
    """A key that no job has used yet."""
    rate, until = limit.bounds.rate, limit.paused_until if limit.retired_at is None else None
    next_token = None if rate is None or until is not None else 0.0
    why = "" if until is None else limit.why
    return KeyView(name, limit.name, limit.bounds, 0, 0, 0, rate and float(rate.burst), next_token, until, why)


def _text(name: object) -> str:
    if isinstance(name, str):
        return name
    raise InvalidOption(f"limit: expected its name, or that of a key, as a text, got {name!r:.80}")


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - _NAMED} more" if known[_NAMED:] else ""
    return ", ".join(map(repr, known[:_NAMED])) + more if known else "none"


def _example(template: str) -> str:
    head, _, rest = template.partition("{")
    return f"{head}42{rest.partition('}')[2]}" if "{" not in rest else f"{head}…"
