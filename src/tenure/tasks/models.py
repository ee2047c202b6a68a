"""Pydantic models: written so that they are read back as they were, whatever their aliases are.

pydantic writes a field under its `serialization_alias` and reads it from its `validation_alias`. Where these differ, a
value that was written by alias could not be read again, or was read as its default. Such models are written by the
names of their fields, and every model is read by these too. (https://docs.pydantic.dev/latest/concepts/alias/)
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from inspect import signature
from typing import Any, cast, get_args

import msgspec

_STARRED = "**********"  #: pydantic's placeholder for its own secrets


def is_model(kind: object) -> bool:
    """Is it a class that pydantic writes and reads: a model, or one of its own types?"""
    return hasattr(kind, "__get_pydantic_core_schema__")


def plain(value: object) -> object:
    """The model as plain JSON values. Raises TypeError if pydantic would mask a secret of it."""
    kind: Any = type(value)
    adapter, by_alias = _adapter(kind), not _two_names(kind)
    dumped = adapter.dump_python(value, mode="json", by_alias=by_alias, round_trip=True)
    if _STARRED in str(dumped) and _masked(adapter.dump_python(value, by_alias=by_alias, round_trip=True)):
        raise TypeError(f"pydantic masks a secret of {kind.__name__}, so it would be lost; use tenure.Secret")
    return dumped


def read(kind: Any, value: object) -> object:
    """A model from plain JSON values. Raises ValueError, which says where it is wrong."""
    names = {"by_alias": True, "by_name": True} if _by_name(kind) else {}
    try:
        return _adapter(kind).validate_json(msgspec.json.encode(value), **names)
    except import_module("pydantic").ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{first['msg']}{place and f' in {place}'}") from None


@cache
def _adapter(kind: Any) -> Any:
    return import_module("pydantic").TypeAdapter(kind)


@cache
def _two_names(kind: Any) -> bool:
    """Is a field of it, at any depth, written under another name than it is read by, so that its own name must do?"""
    return _by_name(kind) and any(_differs(*field) for model in _models(kind) for field in model.items())


@cache
def _by_name(kind: Any) -> bool:
    """May its fields be read by their own names too? No: pydantic is older than 2.11, or a field is read from what is
    also the name of another one, so that one would be taken for the other."""
    return "by_name" in signature(_adapter(kind).validate_json).parameters and not any(
        step in model
        for model in _models(kind)
        for name, field in model.items()
        for step in (_read_by(name, field) - {name}) | _paths(field)
    )


def _models(kind: Any) -> list[dict[str, Any]]:
    """The fields of every model in it, at any depth."""
    found: dict[Any, dict[str, Any]] = {}
    left = [kind]
    while left:
        each = left.pop()
        left += get_args(each)
        fields: dict[str, Any] = getattr(each, "__pydantic_fields__", {}) if isinstance(each, type) else {}
        if fields and each not in found:
            found[each] = fields
            left += [field.annotation for field in fields.values()]
    return list(found.values())


def _differs(name: str, field: Any) -> bool:
    return not field.exclude and (field.serialization_alias or name) not in _read_by(name, field)


def _read_by(name: str, field: Any) -> set[str]:
    """The names by which it is read."""
    return {each for each in _aliases(field) if isinstance(each, str)} if field.validation_alias else {name}


def _paths(field: Any) -> set[str]:
    """The names of the values of which it is a part."""
    return {each.path[0] for each in _aliases(field) if not isinstance(each, str)}


def _aliases(field: Any) -> list[Any]:
    alias = field.validation_alias
    return [] if alias is None else getattr(alias, "choices", [alias])


def _masked(value: object) -> bool:
    """Has it one of pydantic's own secrets?"""
    if isinstance(value, dict):
        return any(map(_masked, (*cast("dict[object, object]", value), *cast("dict[object, object]", value).values())))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_masked, cast("Iterable[object]", value)))
    return hasattr(value, "get_secret_value")
