"""Conditions on a job's arguments, meta, result and error, as a person types them: `args.user=4711`, `error~timeout`.

A store does not compare JSON. It finds the jobs whose texts contain all `parts` of a condition, and reads only those;
then `met_by` decides, the same way for every store, on the values with their secrets starred.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

#: `text`: error and id; `fingerprint`: that of the error, which stores don't keep
Field = Literal["payload", "meta", "result", "error", "text", "fingerprint"]
#: Characters that JSON may spell differently from how they were typed: quotes, backslashes, control characters, all but
#: ASCII; and those that encoders of other languages escape for HTML: & ' / < >.
_SPELLED_OTHERWISE = re.compile(r"[^ !#-%(-.0-;=?-\[\]-~]+")
_SPELLED_OTHERWISE_IN_NAMES = re.compile(r"[^ !#-%(-\-0-;=?-\[\]-~]+")  #: dots too, since they separate names


class Part(NamedTuple):
    """A folded text that this field of a job contains in its stored form, which is JSON or plain text."""

    field: Field
    text: str


@dataclass(frozen=True, slots=True)
class Condition:
    """What `field` must contain. `path`: in which argument, with dots between names; empty: in any.

    Letters A to Z match in either case, all other characters as they are.
    """

    field: Field
    path: str
    exactly: bool  #: the value is this text; else it contains it
    text: str

    @property
    def parts(self) -> list[Part]:
        """Texts that the stored field of every job that meets the condition is certain to contain."""
        if self.field == "fingerprint":
            return []
        if self.field in ("error", "text"):
            return [Part(self.field, folded(self.text))]
        runs = [*_SPELLED_OTHERWISE_IN_NAMES.split(self.path), "", *_SPELLED_OTHERWISE.split(self.text)]
        name, value = max(runs[: runs.index("")], key=len, default=""), max(runs[runs.index("") :], key=len)
        return [Part(self.field, folded(run)) for run in (name, value) if run]

    def met_by(self, value: object) -> bool:
        """`value`: the decoded field."""
        wanted = folded(self.text)
        found = _at(value, folded(self.path))
        if self.exactly:
            return any(folded(text) == wanted for each in found for text in _texts(each, names=False))
        return any(wanted in folded(text) for each in found for text in _texts(each, names=True))


def folded(text: str) -> str:
    """The text with the letters A to Z in lower case, and no others: the one rule that every store can keep.

    >>> folded("TimeOut Ä")
    'timeout Ä'
    """
    return text.lower() if text.isascii() else re.sub("[A-Z]+", lambda found: found[0].lower(), text)


def _at(value: object, path: str) -> Iterator[object]:
    """The values under this path; of a list, those of its elements."""
    if isinstance(value, list):
        for each in cast("list[object]", value):
            yield from _at(each, path)
    elif not path:
        yield value
    elif isinstance(value, dict):
        for name, inner in cast("dict[str, object]", value).items():
            named = folded(name)
            if path == named:
                yield from _at(inner, "")
            elif path.startswith(f"{named}."):
                yield from _at(inner, path[len(named) + 1 :])


def _texts(value: object, *, names: bool) -> Iterator[str]:
    """Every plain value in it as text, and every name."""
    if isinstance(value, dict):
        for name, inner in cast("dict[str, object]", value).items():
            if names:
                yield name
            yield from _texts(inner, names=names)
    elif isinstance(value, list):
        for each in cast("list[object]", value):
            yield from _texts(each, names=names)
    else:
        yield value if isinstance(value, str) else json.dumps(value)
