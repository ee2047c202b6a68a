"""Pydantic models, written under their aliases and read back as they were.

pydantic writes a field under its `serialization_alias` and reads it under its `validation_alias`
(https://docs.pydantic.dev/latest/concepts/alias/). Where these differ, it would refuse what it wrote, or take the
default instead. So a model is read under both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, cast

import msgspec

_STARRED = "**********"  #: pydantic's placeholder for its own secrets
_NO_SCHEMA = frozenset(("cls", "config", "default", "expected", "metadata", "serialization"))

Path = list[str | int]


def is_model(kind: object) -> bool:
    """Is it a class that pydantic writes and reads: a model, or one of its own types?"""
    return hasattr(kind, "__get_pydantic_core_schema__")


def plain(value: object) -> object:
    """The model as plain JSON values. Raises TypeError if pydantic would mask a secret of it."""
    kind: Any = type(value)
    dumped = _adapter(kind).dump_python(value, mode="json", by_alias=True, round_trip=True)
    if _STARRED in str(dumped) and _masked(_adapter(kind).dump_python(value, by_alias=True, round_trip=True)):
        raise TypeError(f"pydantic masks a secret of {kind.__name__}, so it would be lost; use tenure.Secret")
    return dumped


def read(kind: Any, value: object) -> object:
    """A model from plain JSON values. Raises ValueError, which says where it is wrong."""
    try:
        return _reader(kind).validate_json(msgspec.json.encode(value))
    except import_module("pydantic").ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{first['msg']}{place and f' in {place}'}") from None


def _masked(value: object) -> bool:
    """Has it one of pydantic's own secrets?"""
    if isinstance(value, dict):
        return any(map(_masked, (*cast("dict[object, object]", value), *cast("dict[object, object]", value).values())))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_masked, cast("Iterable[object]", value)))
    return hasattr(value, "get_secret_value")


@cache
def _adapter(kind: Any) -> Any:
    return import_module("pydantic").TypeAdapter(kind)


@cache
def _reader(kind: Any) -> Any:
    adapter = _adapter(kind)
    wider = _widened(adapter.core_schema)
    if wider is adapter.core_schema:
        return adapter
    validator = import_module("pydantic_core").SchemaValidator
    try:  # else each model in it is read by the validator that its class has already
        return validator(wider, _use_prebuilt=False)
    except TypeError:  # older: 2.11 and 2.12 can't do without, those before have none
        return validator(wider)


def _widened(schema: Any) -> Any:
    """The schema, with its models read under the names that they are written under too; itself if they are."""
    if isinstance(schema, list | tuple):
        parts = cast("Sequence[Any]", schema)
        found = [_widened(part) for part in parts]
        if all(new is old for new, old in zip(found, parts, strict=True)):
            return parts
        return tuple(found) if isinstance(parts, tuple) else found
    if not isinstance(schema, Mapping):
        return schema
    mine = cast("Mapping[str, Any]", schema)
    inner = {name: part if name in _NO_SCHEMA else _widened(part) for name, part in mine.items()}
    match mine.get("type"):
        case "model-fields" | "typed-dict":
            inner["fields"] = _wider_fields(inner["fields"])
        case "dataclass-args":
            named = {each["name"]: each for each in inner["fields"]}
            wider = _wider_fields(named)
            inner["fields"] = inner["fields"] if wider is named else list(wider.values())
        case _:
            pass
    return inner if any(inner[name] is not part for name, part in mine.items()) else mine


def _wider_fields(fields: dict[str, Any]) -> dict[str, Any]:
    wider = {name: _wider_field(name, field, _others(name, fields)) for name, field in fields.items()}
    return fields if all(wider[name] is field for name, field in fields.items()) else wider


def _others(name: str, fields: Mapping[str, Any]) -> Iterator[str]:
    """The names that the other fields may be read under."""
    for other, field in fields.items():
        if other != name:
            yield other
            yield from (str(path[0]) for path in _paths(other, field))


def _wider_field(name: str, field: Any, others: Iterable[str]) -> Any:
    written, paths = field.get("serialization_alias") or name, _paths(name, field)
    if [written] in paths or field.get("serialization_exclude") or written in others:
        return field
    return {**field, "validation_alias": [*paths, [written]]}


def _paths(name: str, field: Any) -> list[Path]:
    """Where it is read from: the first of these that there is."""
    alias = field.get("validation_alias") or name
    if isinstance(alias, str):
        return [[alias]]
    return alias if isinstance(alias[0], list) else [alias]
