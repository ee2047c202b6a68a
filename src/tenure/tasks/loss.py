"""What a handler would not get: a value of a subclass is stored with all its fields, and decoded as the class that the
handler declares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast, get_args, get_origin

from tenure.core.text import a
from tenure.errors import InvalidArguments

_PLAIN = frozenset((str, int, float, bool, bytes, type(None)))


def has_fields(kind: Any) -> bool:
    """Does the annotation name a class with fields, at any depth?"""
    return bool(_fields(get_origin(kind) or kind)) or any(map(has_fields, get_args(kind)))


def refuse_loss(where: str, given: object, kept: object) -> None:
    """Raise InvalidArguments if `given` has fields that are not in `kept`, which was decoded from it."""
    if type(given) is not type(kept) and isinstance(given, type(kept)):
        extra: Mapping[str, object] = getattr(kept, "__pydantic_extra__", None) or {}
        if lost := _fields(type(given)).difference(_fields(type(kept)), extra):
            theirs, ours = type(given).__name__, type(kept).__name__
            raise InvalidArguments(
                f"{where}: the handler takes {a(ours)}, so it would not get {', '.join(sorted(lost))} of "
                f"{a(theirs)}; declare {theirs} there, or pass {a(ours)}"
            )
    for one, other in _inside(given, kept):
        if type(other) not in _PLAIN:
            refuse_loss(where, one, other)


def _inside(given: object, kept: object) -> Iterator[tuple[object, object]]:
    """The values in both that stand for each other."""
    if isinstance(given, list | tuple) and isinstance(kept, list | tuple):
        yield from zip(cast("list[object]", given), cast("list[object]", kept), strict=False)
    elif isinstance(given, Mapping) and isinstance(kept, Mapping):
        ours = cast("Mapping[object, object]", kept)
        for key, value in cast("Mapping[object, object]", given).items():
            if key in ours:
                yield value, ours[key]
    else:
        mine: Any = given  # pyright: ignore[reportUnknownVariableType]
        for name in _fields(type(kept)):
            if hasattr(mine, name):
                yield getattr(mine, name), getattr(kept, name)


def _fields(kind: Any) -> set[str]:
    """The fields that JSON gets of a class; none of a class of another sort."""
    if is_dataclass(kind):
        return {each.name for each in fields(kind)}
    modelled = getattr(kind, "__pydantic_fields__", {}) if isinstance(kind, type) else {}
    attrs = getattr(kind, "__attrs_attrs__", ()) if isinstance(kind, type) else ()
    structs = getattr(kind, "__struct_fields__", ()) if isinstance(kind, type) else ()
    return {*structs, *(each.name for each in attrs), *(name for name, each in modelled.items() if not each.exclude)}
