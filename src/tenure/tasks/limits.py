"""Limits as an app declares them, and the keys that the arguments of a job give.

    per_shop = jobs.limit("shop:{shop}", concurrency=2)

    @jobs.task(limit=per_shop)
    def render(shop: int, n: int) -> Page: ...

A job of `render.enqueue(42, 1)` needs a place under the key `shop:42`. Keys are made from the payload, as JSON has it,
and nothing else: a job that is enqueued by name, or by a schedule, has those that a call in Python gives it, if this
process has the code of its task.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from uuid import UUID

import msgspec

from tenure.core.durations import seconds, spell
from tenure.core.limits import Bounds, Key, Rate, stem
from tenure.core.text import a
from tenure.errors import InvalidArguments, InvalidOption
from tenure.ports import MOST_KEYS, LimitRow
from tenure.tasks.arguments import Arguments, dump
from tenure.tasks.placeholders import Placeholder

MOST_CHARACTERS = 200  #: of a template, and of a key
_FIELD = re.compile(r"\{([^{}]*)\}")
_PLAIN = re.compile(r"[A-Za-z0-9_.:/@-]*")
_WITHOUT = "; to enqueue it without this limit: task.using(limit=…) with the others, or ()"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_RATE = re.compile(r"\s*(\d{1,9})\s*/\s*(\S.*?)\s*", re.ASCII)
_SCALARS = (str, int, UUID, date, time, Decimal, Enum)
_decode = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True, repr=False)
class Limit:
    """How many jobs of a key run at a time, and how many begin in a period. From `jobs.limit(…)`."""

    template: str  #: the key, with the names of arguments in braces
    bounds: Bounds  #: as the code declares them; `jobs.limits.status(…)` says what holds now
    app: object = field(compare=False)

    def __repr__(self) -> str:
        return f"Limit({self.template!r}, {spelled(self.bounds)})"

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments of which its keys are made."""
        return tuple(_FIELD.findall(self.template))

    def key(self, **arguments: object) -> str:
        """The key that these arguments give. Example: `per_shop.key(shop=42)`, which is "shop:42".

        Raises InvalidArguments.
        """
        return self.key_of(dump(arguments, f"limit {self.template!r}", 64 * 1024).decode()).key

    def key_of(self, payload: str) -> Key:
        """The key of a job with this payload, JSON. Raises InvalidArguments."""
        return key_of(self.template, _decode(payload) if self.names else {}, "")


Limits = Limit | Iterable[Limit]


def name_of(limit: str | Limit) -> str:
    """Its template, or the name that was given. Example: `name_of(jobs.limit("github", concurrency=2))`, "github"."""
    return limit.template if isinstance(limit, Limit) else limit


# ── Declaring ───────────────────────────────────────────────────────────────────────────────────────────────────


class DeclaredLimits:
    """The limits of one app, by template."""

    def __init__(self) -> None:
        self._declared: dict[str, Limit] = {}

    def __iter__(self) -> Iterator[Limit]:
        return iter(self._declared.values())

    def rows(self) -> list[LimitRow]:
        """Each as a store keeps it, in order of name."""
        return [LimitRow(name=name, declared=self._declared[name].bounds) for name in sorted(self._declared)]

    def add(self, limit: Limit) -> Limit:
        """Raises InvalidOption if its template is declared differently, or if another one may give the same key."""
        stands = self._declared.setdefault(limit.template, limit)
        if stands != limit:
            raise InvalidOption(
                f"jobs.limit: {limit.template!r} is declared twice, with {spelled(stands.bounds)} and with "
                f"{spelled(limit.bounds)}: declare it once, and pass that object on"
            )
        for other in self._declared:
            if other != limit.template and _meet(other, limit.template):
                del self._declared[limit.template]
                raise InvalidOption(
                    f"jobs.limit: {other!r} and {limit.template!r} may give the same key: let them begin differently"
                )
        return stands


def declared_limit(app: object, template: object, concurrency: object, rate: object, burst: object) -> Limit:
    """The limit that these options make. Raises InvalidOption."""
    text = _template(template)
    bounds = bounds_of(f"limit {text!r}", concurrency, rate, burst)
    if bounds == Bounds():
        raise InvalidOption(
            f'limit {text!r}: expected what it allows, got nothing: give concurrency=3, or rate="100/1m", or both'
        )
    return Limit(text, bounds, app)


def _template(given: object) -> str:
    if not isinstance(given, str) or not given:
        raise InvalidOption(f"jobs.limit: expected a template like 'shop:{{shop}}' or 'github', got {given!r:.80}")
    if len(given) > MOST_CHARACTERS:
        raise InvalidOption(
            f"jobs.limit: expected at most {MOST_CHARACTERS} characters, got {len(given)}: {given!r:.40}"
        )
    for name in _FIELD.findall(given):
        if not name.isidentifier():
            raise InvalidOption(
                f"jobs.limit: {given!r}: expected the name of an argument in braces, like {{shop}}, got {{{name}}}"
            )
    rest = _FIELD.sub("", given)
    if not _PLAIN.fullmatch(rest):
        bad = next(each for each in rest if not _PLAIN.fullmatch(each))
        raise InvalidOption(
            f"jobs.limit: {given!r}: expected letters, digits, any of _ . : / @ - and arguments in braces, got {bad!r}"
        )
    if "}{" in given:
        raise InvalidOption(
            f"jobs.limit: {given!r}: two arguments side by side may give one key for different jobs; write a "
            "character between them, like '{shop}:{region}'"
        )
    return given


def bounds_of(what: str, concurrency: object, rate: object, burst: object) -> Bounds:
    """What these options allow; None: any number. Raises InvalidOption."""
    if burst is not None and rate is None:
        raise InvalidOption(f'{what}: burst is a part of a rate: give rate="100/1m" too')
    pauses = "; to stop a key, pause it" if concurrency == 0 else ""
    return Bounds(
        None if concurrency is None else _count(concurrency, f"{what}: concurrency", 1_000_000, advice=pauses),
        None if rate is None else _rate(what, rate, burst),
    )


def _rate(what: str, given: object, burst: object) -> Rate:
    found = _RATE.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise InvalidOption(f'{what}: rate: expected a number and a duration like "100/1m", got {given!r:.80}')
    most, period = int(found[1]), seconds(found[2], f"{what}: rate {given!r}: its duration")
    if most < 1 or period < 0.001:
        raise InvalidOption(f'{what}: rate: expected at least "1/1ms", got {given!r}; to stop a key, pause it')
    return Rate(most, period, max(1, most // 10) if burst is None else burst_of(what, burst, most))


def burst_of(what: str, given: object, most: int) -> int:
    """How many of a rate may begin at once. Raises InvalidOption."""
    return _count(given, f"{what}: burst", most, of=", the number of its rate")


def _count(given: object, what: str, most: int, *, of: str = "", advice: str = "") -> int:
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= most:
        return given
    raise InvalidOption(f"{what}: expected a whole number from 1 to {most:,}{of}, got {given!r}{advice}")


def spelled(bounds: Bounds) -> str:
    """Bounds as people write them.

    >>> spelled(Bounds(2, Rate(100, 60.0, 10)))
    "concurrency=2, rate='100/1m', burst=10"
    """
    parts = [] if bounds.concurrency is None else [f"concurrency={bounds.concurrency}"]
    if bounds.rate is not None:
        parts += [f"rate={spelled_rate(bounds.rate)!r}", f"burst={bounds.rate.burst}"]
    return ", ".join(parts) or "no bounds"


def spelled_rate(rate: Rate) -> str:
    """Example: `spelled_rate(Rate(100, 60.0, 10))`, which is "100/1m"."""
    return f"{rate.most}/{spell(rate.period)}"


# ── Templates and keys ──────────────────────────────────────────────────────────────────────────────────────────


def is_key(text: str) -> bool:
    """May a key be this text? Its arguments have no control characters, and it is not longer than a key may be."""
    return 0 < len(text) <= MOST_CHARACTERS and not _CONTROL.search(text)


def gives(template: str, key: str) -> bool:
    """Can a template give this key?

    >>> gives("shop:{shop}", "shop:42"), gives("shop:{shop}", "shop:"), gives("github", "github")
    (True, False, True)
    """
    return _pattern(template).fullmatch(key) is not None


@cache
def _pattern(template: str) -> re.Pattern[str]:
    parts = _FIELD.split(template)  # what stands between the names, and the names
    return re.compile(".+".join(map(re.escape, parts[::2])), re.DOTALL)


def _meet(one: str, other: str) -> bool:
    """Is there a key that both templates give?"""
    mine, theirs = stem(one), stem(other)
    if not (mine.startswith(theirs) or theirs.startswith(mine)):
        return False
    left, right = _FIELD.sub("?*", one), _FIELD.sub("?*", other)  # an argument: one character of any kind, and more

    @cache
    def meet(i: int, j: int) -> bool:
        here, there = left[i : i + 1], right[j : j + 1]
        if here == "*":
            return meet(i + 1, j) or (there != "" and meet(i, j + 1))
        if there == "*":
            return meet(i, j + 1) or (here != "" and meet(i + 1, j))
        if not (here and there):
            return here == there
        return (here == there or "?" in (here, there)) and meet(i + 1, j + 1)

    return meet(0, 0)


def key_of(template: str, values: Mapping[str, Any], task: str) -> Key:
    """The key that these arguments give, as JSON has them. `task`: for errors. Raises InvalidArguments."""

    def text(found: re.Match[str]) -> str:
        name = found[1]
        if name not in values:
            raise InvalidArguments(
                f"{task or 'key'}: expected the argument {name!r}, of which its limit {template!r} makes the key, got "
                f"{', '.join(map(repr, values)) or 'none'}"
            )
        return _text(values[name], f"{task}.{name}" if task else name, template, _WITHOUT if task else "")

    key = _FIELD.sub(text, template)
    if len(key) > MOST_CHARACTERS:
        raise InvalidArguments(
            f"{task or 'key'}: the key of its limit {template!r} would have {len(key)} characters, at most "
            f"{MOST_CHARACTERS} are allowed; take an id, or a hash"
        )
    return Key(key, template)


def _text(value: Any, what: str, template: str, advice: str) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str() if value and not _CONTROL.search(value):
            return value
        case str():
            got = "one with a control character" if value else "an empty one"
            raise InvalidArguments(
                f"{what}: the limit {template!r} makes a key of it: expected a text, got {got}{advice}"
            )
        case _:
            raise InvalidArguments(
                f"{what}: the limit {template!r} makes a key of it: expected a text or a whole number, got "
                f"{_kind(value)}{advice}"
            )


def _kind(value: object) -> str:
    match value:
        case None:
            return "None"
        case dict() if "$secret" in value:
            return "a Secret, which no key may show"
        case _:
            return a("object" if isinstance(value, dict) else type(value).__name__)


def keys_of(task: str, limits: Collection[Limit], payload: str, holes: Mapping[str, Placeholder]) -> tuple[Key, ...]:
    """The keys of a job with this payload. Raises InvalidArguments.

    `holes`: the arguments that other steps of a flow will return.
    """
    for limit in limits:
        for name in limit.names:
            if name in holes:
                raise InvalidArguments(
                    f"{task}.{name}: {holes[name]!r} does not exist before the flow runs, but the limit "
                    f"{limit.template!r} makes a key of it now: give the value itself, or {task}.using(limit=())"
                )
    values = _decode(payload) if any(limit.names for limit in limits) else {}
    return tuple(key_of(limit.template, values, task) for limit in limits)


# ── The limits of a task ────────────────────────────────────────────────────────────────────────────────────────


def limits_of(what: str, app: object, given: object) -> tuple[Limit, ...]:
    """Those that `limit=` names. Raises InvalidOption."""
    listed: tuple[Any, ...] = (given,) if isinstance(given, Limit | str) else tuple(_listed(what, given))
    for each in listed:
        if not isinstance(each, Limit):
            raise InvalidOption(f"{what}: limit: expected jobs.limit(…), or several, got {each!r:.80}")
        if each.app is not app:
            raise InvalidOption(
                f"{what}: limit: {each!r} belongs to another app, which alone declares it: declare one with this "
                "app's jobs.limit(…)"
            )
    if len(set(listed)) < len(listed):
        raise InvalidOption(f"{what}: limit: one is given twice: {', '.join(each.template for each in listed)}")
    if len(listed) > MOST_KEYS:
        raise InvalidOption(f"{what}: limit: expected at most {MOST_KEYS}, got {len(listed)}")
    return listed


def _listed(what: str, given: object) -> Iterable[Any]:
    if isinstance(given, Iterable):
        return given  # pyright: ignore[reportUnknownVariableType]
    raise InvalidOption(f"{what}: limit: expected jobs.limit(…), or several, got {given!r:.80}")


def check_limits(task: str, limits: Iterable[Limit], arguments: Arguments) -> None:
    """Raise InvalidOption if one of these limits makes no key of the task's arguments."""
    for limit in limits:
        for name in limit.names:
            if name not in arguments.names:
                raise InvalidOption(
                    f"{task}: limit {limit.template!r}: no argument is named {name!r}; it takes {arguments}"
                )
            if not any(map(_keyed, _parts(arguments.kind_of(name)))):
                raise InvalidOption(
                    f"{task}: limit {limit.template!r}: a key can't be made of {name!r}: expected an argument that is "
                    "a text, a whole number, a Decimal, a UUID, a date, a time, an Enum or a Literal; it takes "
                    f"{arguments}"
                )


def _parts(kind: Any) -> Iterator[Any]:
    """The types of a union, without None, NewType and Annotated."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _parts(get_args(kind)[0])
    elif origin in (Union, UnionType):
        for each in get_args(kind):
            yield from _parts(each)
    elif hasattr(kind, "__supertype__"):
        yield from _parts(kind.__supertype__)
    elif kind is not NoneType:
        yield kind


def _keyed(kind: Any) -> bool:
    """May a value of this type become a part of a key?"""
    if isinstance(kind, type) and get_origin(kind) is None:
        return kind in (Any, object) or issubclass(kind, _SCALARS)
    return get_origin(kind) is Literal or get_origin(kind) is None  # only the value will tell
