"""The arguments of a job that waited for others: their results stand where its payload has markers.

A result is stored as JSON and an argument is read from JSON, so results are spliced in as text and decoded once, as the
type that the handler declares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from tenure.core.lifecycle import State
from tenure.core.offloaded import is_offloaded
from tenure.core.retry import Fail, Snooze
from tenure.errors import InvalidArguments, StoreAway
from tenure.ports import Claimed, Input, Store, Text
from tenure.tasks.arguments import decoder, error_of, plain, readable
from tenure.tasks.ended import Ended
from tenure.tasks.placeholders import Marker, may_have_markers, split
from tenure.tasks.task import Task
from tenure.worker.misfits import misfit

PAGE = 200  #: results read at once
AGAIN_SECONDS = 5.0
_PLACE = re.compile(r"\(at \$\.(\w+)(?:\[(\d+)\])?")
_encode = msgspec.json.Encoder().encode
_Loaded = tuple[tuple[object, ...], dict[str, object]]


def waits_for_others(store: Store, claimed: Claimed) -> bool:
    """Was it enqueued to wait for others? If not, what looks like a marker in its payload is a plain value."""
    first = store.inputs(claimed.id, limit=1) if claimed.linked else []
    return bool(first) and not first[0].mine


def load(store: Store, task: Task[..., Any], claimed: Claimed, *, ahead: bool) -> _Loaded:
    """The handler's arguments, without its Job. `ahead`: read even what the handler would read in batches.

    Raises InvalidArguments for a value that does not fit the code, Fail where there is no value to pass.
    """
    if not may_have_markers(claimed.payload):
        return task.arguments.load(claimed.payload)
    try:
        given, markers = split(claimed.payload)
        if not markers or not waits_for_others(store, claimed):
            return task.arguments.load(claimed.payload)
        return _load(_Reader(store, claimed, task), task, given, markers, ahead=ahead)
    except StoreAway as error:
        raise Snooze(timedelta(seconds=AGAIN_SECONDS), f"the results it needs can't be read now: {error}") from error


def _load(
    reader: _Reader, task: Task[..., Any], given: dict[str, msgspec.Raw], markers: Mapping[str, Marker], *, ahead: bool
) -> _Loaded:
    streams: dict[str, Iterable[object]] = {}
    sources: dict[str, list[Input]] = {}
    for name, marker in markers.items():
        element = task.arguments.stream_of(name)
        if marker.kind == "outputs" and element is not None:
            stream = streams[name] = _Stream(reader, marker.places, decoder(element), f"{task.name}.{name}")
            if ahead:
                stream.read_ahead()
            given[name] = msgspec.Raw(b"[]")
        else:
            sources[name] = list(reader.read(marker.places))
            given[name] = msgspec.Raw(_spliced(task, marker, sources[name]))
    try:
        args, keywords = task.arguments.load(_encode(given).decode(), streams)
    except InvalidArguments as error:
        raise InvalidArguments(f"{error}{_came_from(str(error), sources)}") from error
    for value in (*args, *keywords.values()):
        if isinstance(value, Ended):
            value.attach(task.app)
    return args, keywords


class _Reader:
    """Reads what became of the jobs that a job waited for."""

    def __init__(self, store: Store, claimed: Claimed, task: Task[..., Any]) -> None:
        self._store, self._claimed, self._task = store, claimed, task

    def read(self, places: tuple[int, ...]) -> Iterator[Input]:
        """The inputs at these places, in this order."""
        known: dict[int, Input] = {}
        for place in places:
            if place not in known:
                known = {each.place: each for each in self._store.inputs(self._claimed.id, start=place, limit=PAGE)}
            if place not in known:
                raise Fail(f"{self._task.name}: the job has no input {place}: its payload was edited", final=True)
            yield self._fetched(known[place])

    def _fetched(self, each: Input) -> Input:
        if each.result is None or not is_offloaded(each.result):
            return each
        return each._replace(result=self._store.fetch(Text("result", each.parent, "", each.result)))

    def misfit(self, why: str) -> Exception:
        """What the attempt raises where a result does not fit the code."""
        return misfit(self._store, self._claimed, why)

    def texts(self, places: tuple[int, ...]) -> Iterator[tuple[Input, str]]:
        """The results at these places as JSON, without skipped ones."""
        return ((each, _result(self._task, each)) for each in self.read(places) if not each.skipped)


class _Stream:
    """Results that are read and decoded while the handler iterates over them, anew each time."""

    def __init__(self, reader: _Reader, places: tuple[int, ...], decode: Callable[[str | bytes], Any], what: str):
        self._reader, self._places, self._decode, self._what = reader, places, decode, what
        self._ahead: list[tuple[Input, str]] | None = None

    def read_ahead(self) -> None:
        """Read all of them now: on an event loop, iteration must not block."""
        self._ahead = [*self._reader.texts(self._places)]

    def __iter__(self) -> Generator[Any]:
        for each, text in self._reader.texts(self._places) if self._ahead is None else self._ahead:
            try:
                value = self._decode(text)
            except msgspec.DecodeError as error:
                why = f"{self._what}: {plain(str(error))}{_named(each)}"
                raise self._reader.misfit(why) from InvalidArguments(why)
            yield value


def _spliced(task: Task[..., Any], marker: Marker, inputs: Iterable[Input]) -> bytes:
    match marker.kind:
        case "outputs":
            return f"[{','.join(_result(task, each) for each in inputs if not each.skipped)}]".encode()
        case "output":
            (each,) = inputs
            if each.skipped:
                raise Fail(f"{task.name} needs the result of {_job(each)}, which was skipped", final=True)
            return _result(task, each).encode()
        case _:
            (each,) = inputs
            return _encode(_end(each))


def _result(task: Task[..., Any], each: Input) -> str:
    if each.state is State.COMPLETED:
        return readable(f"the result of {_job(each)}", each.result or "null")
    what = "is gone" if each.state is None else f"is {each.state}"
    raise Fail(f"{task.name} needs the result of {_job(each)}, which {what}", final=True)


def _end(each: Input) -> dict[str, object]:
    """The JSON of an `Ended`."""
    state, ok = each.state or State.CANCELLED, each.state is State.COMPLETED
    value = msgspec.Raw(readable(f"the result of {_job(each)}", each.result or "null").encode()) if ok else None
    return {"state": state, "value": value, "error": error_of(each), "id": each.parent}


def _came_from(error: str, sources: Mapping[str, list[Input]]) -> str:
    """The job whose result does not fit, for the end of the sentence."""
    found = _PLACE.search(error)
    inputs = [each for each in sources.get(found[1], []) if not each.skipped] if found else []
    index = int(found[2]) if found and found[2] and len(inputs) > 1 else 0
    return _named(inputs[index]) if index < len(inputs) else ""


def _named(each: Input) -> str:
    return f"; it is the result of {_job(each)}"


def _job(each: Input) -> str:
    return f"{each.task or 'job'} {each.parent}"
