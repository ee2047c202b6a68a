"""Signals: the values that people and programs send to a job that waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from tenure.errors import InvalidArguments, InvalidOption
from tenure.tasks.arguments import decoder, dump, plain, readable
from tenure.tasks.handle import AppPort
from tenure.tasks.texts import valid_key


def declared_signals(task: str, signals: object) -> Mapping[str, Any]:
    """The types of a task's signals by name. Raises InvalidOption."""
    if signals is None:
        return {}
    if not isinstance(signals, Mapping):
        raise InvalidOption(f'{task}: signals: expected types by name, like {{"approved": Approval}}, got {signals!r}')
    found: dict[str, Any] = {}
    for name, kind in cast("Any", signals).items():
        found[valid_key(name, f"{task}: signals")] = kind
        try:
            decoder(kind)
        except TypeError as error:
            raise InvalidOption(f"{task}: signals: JSON can't represent {name!r}: {error}") from error
    return found


def own_key(name: str) -> str:
    """The key of a signal to one job."""
    return f"own:{valid_key(name, 'signal')}"


def shared_key(key: str) -> str:
    """The key of a signal to all jobs that wait for it."""
    return f"shared:{valid_key(key, 'signal')}"


def kind_of(task: str, signals: Mapping[str, Any], name: str) -> Any:
    """The declared type of a task's signal. Raises InvalidOption."""
    if name in signals:
        return signals[name]
    known = ", ".join(sorted(signals)) or "none"
    raise InvalidOption(
        f"{task} takes no signal {name!r} (it takes: {known}); declare it: @jobs.task(signals={{{name!r}: its type}})"
    )


def text_of(app: AppPort, what: str, value: object) -> str:
    """The value as JSON. Raises InvalidArguments."""
    return dump(value, what, app.settings.max_payload).decode()


def own_text(app: AppPort, task: str, signals: Mapping[str, Any], name: str, value: object) -> str:
    """The value of a signal to a job of this task as JSON. Raises InvalidArguments if it does not fit."""
    kind = kind_of(task, signals, name)
    text = text_of(app, f"{task}: signal {name!r}", value)
    fitting(f"{task}: signal {name!r}", kind, text)
    return text


def fitting(what: str, kind: Any, text: str) -> Any:
    """The value of this type that a signal's JSON stands for. Raises InvalidArguments."""
    try:
        return decoder(kind)(readable(what, text))
    except msgspec.DecodeError as error:
        raise InvalidArguments(f"{what}: {plain(str(error))}") from error
