"""What a handler would not get of its arguments, although each can be decoded.

A value of a subclass is stored with all its fields, and decoded as the class that the handler declares. A pydantic
model may be written under other names than it is read by. msgspec writes no private fields of attrs classes, and
decodes a TypedDict without the keys that it does not declare.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast, get_args, get_origin

from tenure.core.text import a
from tenure.errors import InvalidArguments

_PLAIN = frozenset((str, int, float, bool, bytes, type(None)))


def has_fields(kind: Any) -> bool:
    """Does the annotation name a class with fields, at any depth?"""
    plain = get_origin(kind) or kind
    return bool(_fields(plain)) or hasattr(plain, "__total__") or any(map(has_fields, get_args(kind)))


def refuse_loss(where: str, given: object, kept: object) -> None:
    """Raise InvalidArguments if `given` has fields that are not in `kept`, which was decoded from it."""
    if isinstance(given, type(kept)):
        _refuse_unread(where, given, kept)
    if type(given) is not type(kept) and isinstance(given, type(kept)):
        extra: Mapping[str, object] = getattr(kept, "__pydantic_extra__", None) or {}
        if lost := _fields(type(given)).difference(_fields(type(kept)), extra):
            theirs, ours = type(given).__name__, type(kept).__name__
            raise InvalidArguments(
                f"{where}: the handler takes {a(ours)}, so it would not get {', '.join(sorted(lost))} of "
                f"{a(theirs)}; declare {theirs} there, or pass {a(ours)}"
            )
    _refuse_lost_keys(where, given, kept)
    for one, other in _inside(given, kept):
        if type(other) not in _PLAIN:
            refuse_loss(where, one, other)


def _inside(given: object, kept: object) -> Iterator[tuple[object, object]]:
    """The values in both that stand for each other."""
    if isinstance(given, list | tuple) and isinstance(kept, list | tuple):
        yield from zip(cast("list[object]", given), cast("list[object]", kept), strict=False)
    elif isinstance(given, Mapping) and isinstance(kept, Mapping):
        theirs, ours = cast("Mapping[object, object]", given), cast("Mapping[object, object]", kept)
        for key, value in theirs.items():
            if key in ours:
                yield value, ours[key]
    else:
        mine: Any = given  # pyright: ignore[reportUnknownVariableType]
        for name in _fields(type(kept)):
            if hasattr(mine, name):
                yield getattr(mine, name), getattr(kept, name)


def _refuse_unread(where: str, given: object, kept: object) -> None:
    """Raise InvalidArguments for a field that was not read from the JSON, if its value is not the default."""
    kind = type(kept).__name__
    read: set[str] | None = getattr(kept, "__pydantic_fields_set__", None)
    if read is not None and (lost := _differing(given, kept, sorted(_fields(type(kept)) - read))):
        raise InvalidArguments(
            f"{where}: {kind} writes {lost} under a name that it does not read, so the handler would not get it; give "
            "the field one alias= for both"
        )
    attrs = [each.name for each in getattr(type(kept), "__attrs_attrs__", ()) if each.name.startswith("_")]
    if lost := _differing(given, kept, attrs):
        raise InvalidArguments(
            f"{where}: {lost} of {a(kind)} is private, and not written as JSON, so the handler would not get it; give "
            "it a name without the underscore"
        )


def _differing(given: object, kept: object, names: Iterable[str]) -> str:
    return ", ".join(name for name in names if getattr(given, name) != getattr(kept, name))


def _refuse_lost_keys(where: str, given: object, kept: object) -> None:
    if not isinstance(given, Mapping) or not isinstance(kept, Mapping):
        return
    theirs, ours = cast("Mapping[object, object]", given), cast("Mapping[object, object]", kept)
    if len(ours) < len(theirs):
        lost = ", ".join(repr(key) for key in theirs if key not in ours and str(key) not in ours)
        why = "its TypedDict has no such key" if lost else "as JSON, two of its keys are the same text"
        raise InvalidArguments(f"{where}: the handler would not get {lost or 'all keys'}; {why}")


def _fields(kind: Any) -> set[str]:
    """The fields that JSON gets of a class; none of a class of another sort."""
    if is_dataclass(kind):
        return {each.name for each in fields(kind)}
    modelled = getattr(kind, "__pydantic_fields__", {}) if isinstance(kind, type) else {}
    attrs = getattr(kind, "__attrs_attrs__", ()) if isinstance(kind, type) else ()
    structs = getattr(kind, "__struct_fields__", ()) if isinstance(kind, type) else ()
    return {*structs, *(each.name for each in attrs), *(name for name, each in modelled.items() if not each.exclude)}
