"""Limits: what each allows, the keys that are most waited for, the jobs that have their places; set, pause, resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from tenure.errors import InvalidOption
from tenure.operations.keys import Paused, Sum, Usage, allowed
from tenure.operations.limits import KeyStatus, LimitStatus
from tenure.ports import JobView, KeyView
from tenure.web.pages import Action, Page, View, back, count, here
from tenure.web.site import light

SIZE = 10  #: limits, and keys, in full; the others are folded
FOLDED = 200  #: the most that are listed there
_HOLDERS = 3  #: of a key in the list
_COUNTED = 10_000  #: waiting jobs: beyond this their number is not known
_LONGEST = 200


class Row(NamedTuple):
    """A key in a list."""

    key: KeyView
    share: float | None  #: of its places that are held; None: their number is not limited
    holders: Sequence[JobView]
    oldest: datetime | None  #: since when the oldest waits for it
    token: Token | None
    pause: Paused | None


class Token(NamedTuple):
    """The tokens of a key. `soon`: the next one comes within a second; `at`: it comes later."""

    whole: int
    most: int
    soon: bool
    at: datetime | None


class Of(NamedTuple):
    """A limit in the list."""

    limit: LimitStatus
    sum: Sum
    pause: Paused | None


# ── The list ──


def look(view: View) -> Mapping[str, Any]:
    text = view.query.get("q", "").strip()[:_LONGEST]
    usage = view.site.usage()
    found, sums = _all(view), usage.sums
    limits = [Of(each, sums.get(each.name, Sum()), _pause_of(each)) for each in found if _matches(text, each.name)]
    limits.sort(key=lambda each: (each.pause is None, -each.sum.waiting, -each.sum.held, each.limit.name))
    keys = [key for key in usage.keys if _matches(text, key.key)]
    if text and not any(key.key == text for key in keys):
        keys = [*view.admin.limits.known([text]), *keys]
    return {
        **_keys(view, usage, keys),
        "limits": limits[:SIZE],
        "more_limits": limits[SIZE : SIZE + FOLDED],
        "declared": len(found),
        "text": text,
        "here": here(view),
        "allowed": allowed,
        "may": view.user.may("operate"),
    }


def _all(view: View) -> Sequence[LimitStatus]:
    return view.site.memo.get("limits", view.admin.limits.all, fresh=0.5)


def _matches(text: str, name: str) -> bool:
    return text.casefold() in name.casefold()


def _keys(view: View, usage: Usage, keys: Sequence[KeyView]) -> dict[str, Any]:
    """For the table of keys."""
    shown = tuple(key.key for key in keys[:SIZE])
    holders, oldest = view.site.memo.get(("holders", shown), partial(_more, view, usage, keys[:SIZE]), fresh=0.5)
    whole = {each.name: each.paused_until for each in _all(view) if each.paused_until is not None}
    return {
        "keys": [_row(key, usage.at, holders.get(key.key, ()), oldest, whole) for key in keys[:SIZE]],
        "folded": [_row(key, usage.at, (), {}, whole) for key in keys[SIZE : SIZE + FOLDED]],
        "left": max(0, len(keys) - SIZE - FOLDED),
        "total": len(keys),
        "complete": usage.complete,
        "counted": _COUNTED,
    }


def _more(
    view: View, usage: Usage, keys: Sequence[KeyView]
) -> tuple[Mapping[str, Sequence[JobView]], Mapping[str, datetime]]:
    """Some of the jobs that have their places, and since when the oldest waits."""
    of = view.admin.limits.holders
    holders = {key.key: [light(job) for job in of(key.key, number=_HOLDERS)] for key in keys if key.held}
    return holders, view.admin.limits.oldest(usage, keys)


def _row(
    key: KeyView,
    now: datetime,
    holders: Sequence[JobView],
    oldest: Mapping[str, datetime],
    whole: Mapping[str, float],
) -> Row:
    """`whole`: until when whole limits are paused."""
    places = key.bounds.concurrency
    share = None if places is None else key.held / places
    pause = None
    if key.paused_until is not None:
        name = key.limit if whole.get(key.limit, 0.0) >= key.paused_until else key.key
        pause = Paused(name, key.paused_until, key.why, None)
    return Row(key, share, holders, oldest.get(key.key), _token(key, now), pause)


def _token(key: KeyView, now: datetime) -> Token | None:
    if key.tokens is None or key.bounds.rate is None:
        return None
    left = key.next_token or 0.0
    at = (now + timedelta(seconds=left)).replace(microsecond=0) if left >= 1 else None  # the same at each read
    return Token(max(int(key.tokens), 0), key.bounds.rate.burst, 0 < left < 1, at)


def _pause_of(limit: LimitStatus) -> Paused | None:
    return None if limit.paused_until is None else Paused(limit.name, limit.paused_until, limit.why, limit.paused_by)


# ── One limit, or one key ──


def look_at_one(view: View) -> Mapping[str, Any]:
    """Raises UnknownLimit."""
    name = view.query.get("name", "")
    memo, reads = view.site.memo, view.admin.limits
    template = memo.get(("limit of", name), lambda: reads.limit_of(name), fresh=5.0)
    limit = memo.get(("limit", template), lambda: reads.get(template), fresh=0.3)
    shown: dict[str, Any] = {
        "name": name,
        "limit": limit,
        "pause": _pause_of(limit),
        "set": limit.set,
        "set_by": limit.set_by,
        "bounds": limit.bounds,
        "allowed": allowed,
        "one": None,
        "here": here(view),
        "may": view.user.may("operate"),
    }
    if name == template and limit.keyed:
        usage = view.site.usage(template)
        return {**shown, "sum": usage.sums.get(template, Sum()), **_keys(view, usage, usage.keys)}
    found: KeyStatus = memo.get(("key", name), lambda: reads.key(name), fresh=0.3)
    at = memo.get("now", view.admin.now, fresh=0.3)
    row = _row(found.key, at, found.holders, {}, {})
    changed = {"set": found.set, "set_by": found.set_by}
    return {**shown, **changed, "bounds": found.key.bounds, "pause": found.pause, "one": row, "next": found.parked}


# ── Acting ──


def _pause(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = form.get("name", "")
    view.admin.limits.pause(name, form.get("for", "").strip() or None, form.get("why", ""))
    says = f"{name} is paused: its jobs that have a place go on, no other gets one{view.admin.limits.besides(name)}."
    return says, back(form, "/limits")


def _resume(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = form.get("name", "")
    resumed = view.admin.limits.resume(name)
    says = f"{name} {'is resumed' if resumed else 'was not paused'}{view.admin.limits.besides(name)}."
    return says, back(form, "/limits")


def _set(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name, rate = form.get("name", ""), form.get("rate", "").strip() or None
    concurrency, burst = _number(form, "concurrency"), _number(form, "burst")
    bounds = view.admin.limits.set(name, concurrency=concurrency, rate=rate, burst=burst)
    return f"{name} allows {allowed(bounds)}{view.admin.limits.besides(name)}.", back(form, "/limits")


def _number(form: Mapping[str, str], name: str) -> int | None:
    text = form.get(name, "").strip()
    if not text:
        return None
    found = count(text, -1)
    if found < 0:
        raise InvalidOption(f"{name}: expected a whole number, got {text[:40]!r}: go back and try again")
    return found


def _reset(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = form.get("name", "")
    reset = view.admin.limits.reset(name)
    says = f"allows {allowed(view.admin.limits.bounds(name))} again" if reset else "is as declared: nothing was set"
    return f"{name} {says}.", back(form, "/limits")


_ACTS: Mapping[str, Callable[[View, Mapping[str, str], Sequence[tuple[str, str]]], tuple[str, str]]] = {
    "pause": _pause,
    "resume": _resume,
    "set": _set,
    "reset": _reset,
}
PAGES: list[Page] = [
    Page("/limits", "limits.html", look, every=0.5, title="Limits"),
    Page("/limits/show", "limit.html", look_at_one, every=0.5),
]
ACTIONS: list[Action] = [Action(f"/limits/{verb}", "operate", act) for verb, act in _ACTS.items()]
