"""Placeholders: what a step of a flow will return, given as an argument to another step.

Such a value does not exist before the flow runs. So a placeholder can be an argument on its own, and nothing else: any
other use raises an error that says so.

A payload has *markers* in their place: `{"$output": 3}` and `{"$ended": 3}` for the job at place 3 of those that the
job waits for, `{"$outputs": [0, 500]}` for 500 places from 0 on; `[[0, 2], [7, 1]]` for several such ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Never, cast

import msgspec

from tenure.errors import InvalidArguments

if TYPE_CHECKING:
    from tenure.tasks.handle import JobHandle

MARKERS = ("$output", "$ended", "$outputs")
Until = Literal["completed", "ended"]
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Source:
    """What a placeholder stands for: a step of a flow."""

    __slots__ = ()

    @property
    def what(self) -> str:
        """For sentences: "render, step 3 of the flow 'nightly'"."""
        raise NotImplementedError

    @property
    def handle(self) -> JobHandle[Any]:
        """The handle of its job, once that is stored."""
        raise NotImplementedError


class NoAttribute(InvalidArguments, AttributeError):
    """An attribute of a placeholder."""


class Placeholder:
    """Stands for what steps will return. `until`: how far they must have got."""

    __slots__ = ("name", "sources", "until")

    def __init__(self, name: str, sources: Sequence[Source], until: Until) -> None:
        self.name = name  #: "output", "ended" or "outputs"
        self.sources = tuple(sources)
        self.until: Until = until

    def __repr__(self) -> str:
        if self.name == "outputs":
            return f"<the outputs of {len(self.sources)} steps>"
        which = "output" if self.name == "output" else "end"
        return f"<the {which} of {self.sources[0].what}>"

    def refusal(self, use: str) -> str:
        """The sentence that says why it can't be used like this."""
        return (
            f"{use}: {self!r} does not exist before the flow runs; a placeholder can only be an argument on its own, "
            "as in mail.bind(report.output); to do more with it, write a task that takes it"
        )

    def __getattr__(self, name: str) -> Never:
        raise NoAttribute(self.refusal(f"an attribute, {name!r}"))


def _refuse(use: str) -> Callable[..., Never]:
    def refuse(self: Placeholder, *_: object) -> Never:
        raise InvalidArguments(self.refusal(use))

    return refuse


_USES = {
    "str(…)": ("str", "format", "bytes", "fspath"),
    "a test for truth, as in `if`": ("bool",),
    "iteration": ("iter", "next", "aiter", "reversed"),
    "len(…)": ("len",),
    "an index or a key": ("getitem", "contains", "hash", "setitem", "delitem"),
    "a call": ("call",),
    "a number": ("int", "float", "complex", "index", "round"),
    "a comparison": ("eq", "ne", "lt", "le", "gt", "ge"),
    "an operator": (
        *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "and", "or", "xor", "lshift"),
        *("radd", "rsub", "rmul", "rmatmul", "rtruediv", "rfloordiv", "rmod", "rdivmod", "rpow", "rand", "ror", "rxor"),
        *("rshift", "rlshift", "rrshift", "neg", "pos", "abs", "invert"),
    ),
    "with": ("enter", "exit", "aenter", "aexit"),
}
for _use, _names in _USES.items():
    for _name in _names:
        setattr(Placeholder, f"__{_name}__", _refuse(_use))


def misplaced(value: object) -> str:
    """Why this can't be a part of an argument; empty: it may be."""
    if isinstance(value, Placeholder):
        return value.refusal("a placeholder inside another value")
    if isinstance(value, Source):
        return f"{value.what} is a step: give what it will return, step.output, or how it will end, step.ended"
    return ""


# ── Markers ─────────────────────────────────────────────────────────────────────────────────────────────────────


def marker(kind: str, places: Sequence[int]) -> str:
    """The JSON that stands for the results of the jobs at these places.

    >>> marker("output", [3]), marker("outputs", [0, 1, 2]), marker("outputs", [0, 1, 7]), marker("outputs", [])
    ('{"$output":3}', '{"$outputs":[0,3]}', '{"$outputs":[[0,2],[7,1]]}', '[]')
    """
    if kind != "outputs":
        return f'{{"${kind}":{places[0]}}}'
    ranges: list[list[int]] = []
    for place in places:
        if ranges and sum(ranges[-1]) == place:
            ranges[-1][1] += 1
        else:
            ranges.append([place, 1])
    if not ranges:
        return "[]"
    text = msgspec.json.encode(ranges[0] if len(ranges) == 1 else ranges).decode()
    return f'{{"$outputs":{text}}}'


def with_markers(payload: str, markers: Iterable[tuple[str, str]]) -> str:
    """The payload of the other arguments, with these markers by name."""
    texts = [f"{msgspec.json.encode(name).decode()}:{text}" for name, text in markers]
    rest = payload[1:-1]
    return "{" + ",".join([*([rest] if rest else []), *texts]) + "}"


class Marker(msgspec.Struct, frozen=True):
    """A marker of a payload: its kind, and the places that it stands for."""

    kind: str  #: "output", "ended" or "outputs"
    places: tuple[int, ...]


def split(payload: str) -> tuple[dict[str, msgspec.Raw], dict[str, Marker]]:
    """The plain arguments of a payload by name, and its markers."""
    plain: dict[str, msgspec.Raw] = {}
    markers: dict[str, Marker] = {}
    for name, raw in _decode(payload).items():
        found = _marker(raw)
        if found is None:
            plain[name] = raw
        else:
            markers[name] = found
    return plain, markers


def marked(payload: str) -> str:
    """The name of an argument that has the shape of a marker; empty: none has."""
    return next(iter(split(payload)[1]), "") if may_have_markers(payload) else ""


def may_have_markers(payload: str) -> bool:
    """A quick look; False: it has none."""
    return '"$output' in payload or '"$ended"' in payload


def _marker(raw: msgspec.Raw) -> Marker | None:
    text = bytes(raw).lstrip()
    if not text.startswith(b"{"):
        return None
    found = cast("dict[str, Any]", msgspec.json.decode(text))
    key, given = next(iter(found.items())) if len(found) == 1 else ("", cast("Any", None))
    if key in ("$output", "$ended"):
        return Marker(key[1:], (given,)) if _whole(given) else None
    if key != "$outputs" or not isinstance(given, list):
        return None
    listed: Any = cast("Any", given)
    several = listed if listed and isinstance(listed[0], list) else [listed]
    if not all(isinstance(each, list) and [_whole(n) for n in cast("Any", each)] == [True, True] for each in several):
        return None
    return Marker("outputs", tuple(place for first, count in several for place in range(first, first + count)))


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1_000_000


def shaped_like_a_marker(task: str, payload: str) -> None:
    """Raise InvalidArguments if an argument of a job that waits for others has the shape of a marker."""
    if name := marked(payload):
        raise InvalidArguments(
            f'{task}.{name}: a value like {{"$output": 0}} stands for another job\'s result in a job that waits for '
            "others; rename its key, or wrap it in another object"
        )
