"""Arguments: the codec between a function's signature and a job's payload, and the rules for values in JSON."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cached_property, partial
from importlib import import_module
from math import isfinite
from typing import (
    Any,
    Generic,
    NamedTuple,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from tenure.core.lifecycle import State
from tenure.core.sealed import ALTERED, is_sealed, why_sealed
from tenure.core.signatures import signature_of
from tenure.core.text import a
from tenure.errors import InvalidArguments, InvalidOption, Locked
from tenure.ports import Input
from tenure.tasks import models
from tenure.tasks.ended import Ended
from tenure.tasks.hints import misplaced_option
from tenure.tasks.loss import has_fields, refuse_loss
from tenure.tasks.placeholders import Placeholder, misplaced

T = TypeVar("T")

_NO_KEYWORDS: dict[str, object] = {}
_NO_STREAMS: Mapping[str, Iterable[object]] = {}
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_LOCAL = re.compile(rb'\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:[+-]\d\d:\d\d)?"')  #: a time that is not in UTC
_MINUTE = timedelta(minutes=1)
_MISFIT = re.compile(r"(?:Object )?(?P<what>.*?)(?: - at (?P<path>.*))?", re.DOTALL)
_FIELD = re.compile(r"\$\.(\w+)")
_SECRET = "$secret"
STARS = "***"


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Secret(Generic[T]):
    """An argument shown as `***` in logs, errors, pages and reprs. Only `Tenure(codec=…)` encrypts it in the store.

    Example: `def charge(token: Secret[str]) -> None: use(token.reveal())`
    """

    __slots__ = ("_value",)

    def __init__(self, value: T, /) -> None:
        self._value = value

    def reveal(self) -> T:
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == cast("Secret[object]", other)._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __repr__(self) -> str:
        return "***"


def redacted(payload: str) -> str:
    """The JSON with `"***"` for every Secret, for readers that do not know the task.

    >>> redacted('{"user":"ada","token":{"$secret":"t0p"}}')
    '{"user":"ada","token":"***"}'
    """
    return _no_names.hide(payload)


class Stars:
    """Replaces every Secret, and every value whose name contains one of `names`, with `"***"`.

    >>> Stars(("password",)).hide('{"user":"ada","db_password":"t0p"}')
    '{"user":"ada","db_password":"***"}'
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._secret_name = re.compile("|".join(map(re.escape, names)), re.IGNORECASE).search if names else _never

    def hide(self, text: str) -> str:
        """The JSON text with its secrets starred; unchanged if it has none."""
        if _SECRET not in text and not self._secret_name(text):
            return text
        try:
            return msgspec.json.encode(self._star(msgspec.json.decode(text))).decode()
        except (msgspec.DecodeError, RecursionError):  # stored by SQL, say: a number out of range, a depth of thousands
            return _encode(STARS).decode()

    def hide_texts(self, texts: Mapping[str, str]) -> dict[str, str]:
        """Texts by name, starred where the name marks a secret."""
        return {name: STARS if self._secret_name(name) else text for name, text in texts.items()}

    def _star(self, value: object) -> object:
        match value:
            case dict() if _SECRET in value:
                return STARS
            case dict():
                named = cast("dict[str, object]", value).items()
                return {name: STARS if self._secret_name(name) else self._star(inner) for name, inner in named}
            case list():
                return [self._star(inner) for inner in cast("list[object]", value)]
            case _:
                return value


def _never(text: str) -> None:
    return None


_no_names = Stars()


def _to_json(value: object) -> object:
    kind: Any = type(value)
    if isinstance(value, Secret):
        return {_SECRET: cast("Secret[object]", value).reveal()}
    if isinstance(value, Ended):
        return cast("Ended[object]", value).plain()
    if flaw := misplaced(value):
        raise TypeError(flaw)
    if models.is_model(kind):
        return models.plain(value)
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError("the value is a coroutine; write the handler with `async def`, or await it")
    raise TypeError(
        f"a value of type {kind.__name__} can't be written as JSON; use plain values, dataclasses, "
        "msgspec Structs, pydantic models"
    )


def _from_json(kind: Any, value: Any) -> object:
    if kind is object:
        return value
    if (get_origin(kind) or kind) is Secret:
        if not isinstance(value, dict) or _SECRET not in value:
            raise ValueError("expected a Secret(…)")
        (inner,) = get_args(kind) or (Any,)
        try:
            return Secret[Any](msgspec.convert(value[_SECRET], inner, str_keys=True, dec_hook=_from_json))
        except msgspec.ValidationError as error:
            raise ValueError(str(error).replace(" - at ", " in ")) from None
    if (get_origin(kind) or kind) is Ended:
        return _ended(value, *(get_args(kind) or (Any,)))
    if models.is_model(kind):
        return models.read(kind, value)
    raise TypeError(f"JSON has no {getattr(kind, '__name__', kind)}; annotate plain values, dataclasses or models")


def _ended(value: Any, kind: Any) -> Ended[Any]:
    if not isinstance(value, dict) or "state" not in value:
        raise ValueError("expected an Ended(…)")
    found = cast("dict[str, Any]", value)
    result = found.get("value")
    if found["state"] == "completed":
        try:
            result = msgspec.convert(result, kind, str_keys=True, dec_hook=_from_json)
        except msgspec.ValidationError as error:
            raise ValueError(str(error).replace(" - at ", " in ")) from None
    return Ended(found["state"], value=result, error=found.get("error") or "", id=found.get("id"), decode=decoder(kind))


def _unstorable(kind: Any) -> bool:
    """Is it a class of which no value can ever be decoded from JSON?"""
    if not isinstance(kind, type) or kind.__module__ == "builtins" or issubclass(kind, Secret | Ended):
        return False
    if models.is_model(cast("object", kind)):
        return False
    inspected = import_module("msgspec.inspect")
    try:
        return isinstance(inspected.type_info(kind), inspected.CustomType)
    except (TypeError, NameError):  # `resolve` says what is wrong with it
        return False


_encode = msgspec.json.Encoder(enc_hook=_to_json).encode
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


def unreadable(what: str, text: str) -> Locked:
    """What to raise for an encrypted value that can't be read here."""
    return Locked(what, why_sealed(text), altered=text == ALTERED)


def readable(what: str, text: str) -> str:
    """The JSON. Raises Locked if it is encrypted."""
    if is_sealed(text):
        raise unreadable(what, text)
    return text


def error_of(each: Input) -> str:
    """Why this job ended without a result. Raises Locked."""
    error = each.error or ("it was deleted" if each.state is None else "")
    return "" if each.state is State.COMPLETED else readable(f"the error of {each.task or 'job'} {each.parent}", error)


def decode_any(text: str) -> Any:
    """The result of a job whose task is not known here, as plain JSON. Raises Locked."""
    return msgspec.json.decode(readable("the result", text))


def decoder(kind: Any) -> Callable[[str | bytes], Any]:
    anything = kind is object or isinstance(kind, TypeVar)
    return msgspec.json.Decoder(Any if anything else kind, dec_hook=_from_json).decode


def dump(value: object, what: str, limit: int) -> bytes:
    """The value as JSON that decodes to the same value. Raises InvalidArguments for a value that would not."""
    try:
        encoded = _encode(value)
        _decode_raw(encoded)
    except msgspec.DecodeError as error:  # msgspec.Raw is written as it is
        raise InvalidArguments(f"{what}: a msgspec.Raw in it is no JSON: {plain(str(error))}") from error
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidArguments(f"{what}: {_why_unencodable(error)}") from error
    if len(encoded) > limit:
        raise InvalidArguments(
            f"{what}: {_size(len(encoded))} as JSON, the limit is {_size(limit)}; store a path or a key instead, or "
            "set offload (docs/large-values.md)"
        )
    if b"\\u0000" in encoded and _NUL.search(encoded):
        raise InvalidArguments(f"{what}: it has a NUL character, which not every store can keep; remove it")
    if b"null" in encoded or _LOCAL.search(encoded):
        try:
            flaw = _flaw(msgspec.to_builtins(value, builtin_types=(datetime,), enc_hook=_to_json), "$")
        except RecursionError as error:
            flaw = _why_unencodable(error)
        except TypeError:  # of what is JSON already: msgspec.Raw
            flaw = ""
        if flaw:
            raise InvalidArguments(f"{what}: {flaw}")
    # A text that looks like what the store has in place of a value (sealed, kept elsewhere): the same JSON, spelled so
    # that it is not taken for that.
    return b'"\\u0074' + encoded[2:] if encoded.startswith(b'"tenure:') else encoded


def _why_unencodable(error: Exception) -> str:
    match error:
        case UnicodeEncodeError():
            return "it has a lone surrogate, which is not valid text; decode the bytes with errors='replace'"
        case RecursionError():
            return "it contains itself, or is nested too deeply"
        case _:
            return str(error)


def _flaw(value: Any, path: str) -> str:
    # msgspec writes NaN as null, a naive datetime unchanged, and an offset in whole minutes: all would be decoded as
    # something else.
    if isinstance(value, float) and not isfinite(value):
        return f"JSON has no {value} (at {path}); use None or a string"
    if isinstance(value, datetime) and value.utcoffset() is None:
        return f"a naive datetime (at {path}); give it a time zone: datetime.now(UTC)"
    if isinstance(value, datetime) and cast("timedelta", value.utcoffset()) % _MINUTE:
        return f"an offset that has seconds, {value.isoformat()} (at {path}); JSON has none such: astimezone(UTC)"
    if isinstance(value, dict):
        inner = ((f"{path}.{name}", each) for name, each in cast("dict[str, Any]", value).items())
    elif isinstance(value, list | tuple | set | frozenset):
        inner = ((f"{path}[{index}]", each) for index, each in enumerate(cast("list[Any]", value)))
    else:
        return ""
    return next(filter(None, (_flaw(each, place) for place, each in inner)), "")


def _size(count: int) -> str:
    return f"{count / 1024:.1f} KiB".replace(".0 ", " ") if count >= 1024 else f"{count} bytes"


# ── Arguments ───────────────────────────────────────────────────────────────────────────────────────────────────


_MARKS: dict[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


class _Codec(NamedTuple):
    struct: type[msgspec.Struct]
    decode: Callable[[str | bytes], Any]
    positional: int  #: how many of the struct's fields; the others are keyword-only
    keywords: tuple[str, ...]
    iterators: tuple[str, ...]  #: the arguments that the handler takes as an Iterator
    objects: tuple[str, ...]  #: those of a class with fields, or perhaps None


class Arguments:
    """The codec of one signature. Annotations are resolved at declaration if possible, else on first use."""

    def __init__(self, task: str, fn: Callable[..., object], job: type) -> None:
        self._task = task
        self._fn = fn
        self._job = job  #: the class that the first parameter may ask for
        self._all = list(signature_of(fn).parameters.values())
        for parameter in self._all:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                name = f"{_MARKS.get(parameter.kind, '')}{parameter.name}"
                raise InvalidOption(
                    f"{task}: {name} can't be stored by name; a task takes plain and keyword-only parameters: "
                    "give each a name, or take one dict or list"
                )
            if parameter.name in ("self", "cls") and parameter is self._all[0]:
                raise InvalidOption(
                    f"{task}: a method can't be a task: a worker has no {parameter.name!r}; write a function that "
                    "takes what it needs, for example an id, and makes the object"
                )
        if bare := [each.name for each in self._all if each.annotation is each.empty]:
            which = f"parameter{'s' * (len(bare) > 1)} {', '.join(map(repr, bare))} ha{'ve' if bare[1:] else 's'}"
            types = "".join(f"; {name}: its type" for name in bare[1:])
            raise InvalidOption(f"{task}: {which} no annotation; write {bare[0]}: Job, or its type{types}")
        with suppress(NameError):  # a forward reference: `resolve` checks it later
            self._refuse_unstorable()

    def _refuse_unstorable(self) -> None:
        for parameter in self._parameters:
            if _unstorable(kind := self._hints[parameter.name]):
                raise InvalidOption(
                    f"{self._task}: parameter {parameter.name!r} is {a(kind.__name__)}, which JSON can't represent; "
                    "take plain values, a dataclass, a msgspec Struct or a pydantic model, or the id of a row"
                )

    @cached_property
    def _hints(self) -> dict[str, Any]:
        fn = self._fn
        while isinstance(fn, partial):  # it has no hints of its own
            fn = cast("partial[object]", fn).func
        try:
            return get_type_hints(fn, include_extras=True)
        except TypeError:
            if inspect.isroutine(fn):
                raise
        return get_type_hints(type(fn).__call__, include_extras=True)  # an object that can be called

    @cached_property
    def takes_job(self) -> bool:
        """Does the handler take its Job? Raises InvalidOption for an invalid signature."""
        kinds = [self._hints[parameter.name] for parameter in self._all]
        asks = [(get_origin(kind) or kind) is self._job for kind in kinds]
        if any(asks[1:]) or (asks and asks[0] and self._all[0].kind is inspect.Parameter.KEYWORD_ONLY):
            raise InvalidOption(f"{self._task}: the Job must be the first parameter, before all others")
        for parameter, kind, is_job in zip(self._all, kinds, asks, strict=True):
            if not is_job and self._mentions_job(kind):
                raise InvalidOption(
                    f"{self._task}: '{_spelled(parameter)}' is not the Job, which every attempt has: make "
                    f"'{parameter.name}: Job' the first parameter"
                )
        if kinds and kinds[0] in (Any, object):
            raise InvalidOption(
                f"{self._task}: its first parameter '{self._all[0].name}' is {kinds[0].__name__}, which type checkers "
                "read as the Job; give it a type, or put another parameter first"
            )
        return bool(asks and asks[0])

    def _mentions_job(self, kind: object) -> bool:
        return (get_origin(kind) or kind) is self._job or any(map(self._mentions_job, get_args(kind)))

    @cached_property
    def is_async(self) -> bool:
        """Must the handler's return value be awaited?"""
        if inspect.iscoroutinefunction(self._fn) or inspect.iscoroutinefunction(type(self._fn).__call__):
            return True
        return get_origin(self._hints.get("return")) in (Awaitable, Coroutine)

    @property
    def names(self) -> list[str]:
        """The parameters, without the Job."""
        return [parameter.name for parameter in self._parameters]

    @property
    def required(self) -> list[str]:
        """The parameters without a default, without the Job."""
        return [parameter.name for parameter in self._parameters if parameter.default is parameter.empty]

    def resolve(self) -> None:
        """Build every codec now. Raises InvalidOption for an annotation that can't be resolved or stored."""
        _ = self._codec

    @cached_property
    def _codec(self) -> _Codec:
        try:
            self._refuse_unstorable()
            built = self._build()
            _ = self.decode_result, self.decode_checkpoint
        except NameError as error:
            raise InvalidOption(
                f"{self._task}: {error.name!r} in its annotations is undefined; define or import it at the top of the "
                "module, and not under TYPE_CHECKING"
            ) from error
        except TypeError as error:
            raise InvalidOption(f"{self._task}: JSON can't represent its annotations: {error}") from error
        return built

    @property
    def _parameters(self) -> list[inspect.Parameter]:
        return self._all[1:] if self.takes_job else self._all

    def _build(self) -> _Codec:
        plain = [each for each in self._parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        keyword_only = [each for each in self._parameters if each.kind is each.KEYWORD_ONLY]
        base = msgspec.defstruct(self._task, list(map(self._field, keyword_only)), kw_only=True)
        struct = msgspec.defstruct(self._task, list(map(self._field, plain)), bases=(base,), forbid_unknown_fields=True)
        iterators = tuple(each.name for each in self._parameters if get_origin(self._hints[each.name]) is Iterator)
        keywords = tuple(each.name for each in keyword_only)
        kinds = {each.name: self._hints[each.name] for each in self._parameters}
        objects = tuple(name for name, kind in kinds.items() if has_fields(kind))
        return _Codec(struct, decoder(struct), len(plain), keywords, iterators, objects)

    def _field(self, parameter: inspect.Parameter) -> Any:
        kind = _listed(self._hints[parameter.name])
        if parameter.default is parameter.empty:
            return parameter.name, kind
        default = parameter.default
        return parameter.name, kind, msgspec.field(default_factory=lambda: default)

    # ── to JSON and back ──

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> msgspec.Struct:
        """The arguments by name, with defaults filled in."""
        struct = self._codec.struct
        try:
            return struct(*args, **kwargs)
        except TypeError:
            unknown = [name for name in kwargs if name not in self.names]
            advice = misplaced_option(unknown[0], self._task) if unknown else ""
            raise InvalidArguments(f"{self._task}: {self._misfit(args, kwargs)}; it takes {self}{advice}") from None

    def dump(self, bound: msgspec.Struct, limit: int) -> str:
        """The payload. It is decoded once, as the worker will, so that invalid arguments are refused at enqueue."""
        try:
            encoded = dump(bound, self._task, limit)
        except InvalidArguments:
            for name, value in msgspec.structs.asdict(bound).items():
                dump(value, f"{self._task}.{name}", limit)
            raise
        decoded = self._decode(encoded)
        for name in self._codec.objects:
            refuse_loss(f"{self._task}.{name}", getattr(bound, name), getattr(decoded, name))
        return encoded.decode()

    def dump_around(self, bound: msgspec.Struct, limit: int) -> tuple[str, dict[str, Placeholder]]:
        """The payload without the placeholders among the arguments, and these by name."""
        values = msgspec.structs.asdict(bound)
        holes = {name: value for name, value in values.items() if isinstance(value, Placeholder)}
        rest = {name: value for name, value in values.items() if name not in holes}
        for name, value in rest.items():
            dump(value, f"{self._task}.{name}", limit)
        encoded = dump(rest, self._task, limit)
        kinds = [(name, _listed(self._hints[name])) for name in rest]
        decoded = self._decode(encoded, decoder(msgspec.defstruct(self._task, kinds)))
        for name in rest.keys() & set(self._codec.objects):
            refuse_loss(f"{self._task}.{name}", rest[name], getattr(decoded, name))
        return encoded.decode(), holes

    def kind_of(self, name: str) -> Any:
        """The annotation of an argument."""
        return self._hints[name]

    def stream_of(self, name: str) -> Any:
        """What an argument declared as an Iterator or Iterable yields; None: it is declared otherwise."""
        kind = self._hints.get(name)
        return None if _listed(kind) is kind else (*get_args(kind), Any)[0]

    def load(
        self, payload: str, streams: Mapping[str, Iterable[object]] = _NO_STREAMS, *, bind: bool = False
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """The handler's arguments, without its Job; `streams` replace those of these names. Raises InvalidArguments.

        `bind`: they are to be bound again, so an argument declared as an Iterator is a list.
        """
        codec = self._codec
        values = msgspec.structs.astuple(self._decode(payload))
        if (codec.iterators and not bind) or streams:
            values = tuple(self._streamed(codec, values, streams))
        if not codec.keywords:
            return values, _NO_KEYWORDS
        return values[: codec.positional], dict(zip(codec.keywords, values[codec.positional :], strict=True))

    def _streamed(
        self, codec: _Codec, values: tuple[Any, ...], streams: Mapping[str, Iterable[object]]
    ) -> Iterator[object]:
        for name, value in zip(codec.struct.__struct_fields__, values, strict=True):
            given = streams.get(name, value)
            yield iter(given) if name in codec.iterators else given

    def _decode(self, payload: str | bytes, decode: Callable[[str | bytes], Any] | None = None) -> Any:
        decode = decode or self._codec.decode
        try:
            return decode(payload)
        except msgspec.DecodeError as error:
            raise InvalidArguments(self._explain(error)) from error

    @cached_property
    def decode_result(self) -> Callable[[str | bytes], Any]:
        kind = self._hints.get("return", Any)
        if self.is_async and get_origin(kind) in (Awaitable, Coroutine):
            kind = get_args(kind)[-1]
        return decoder(kind)

    @cached_property
    def decode_checkpoint(self) -> Callable[[str | bytes], Any]:
        return decoder(next(iter(get_args(self._hints[self._all[0].name])), Any) if self.takes_job else Any)

    # ── sentences ──

    def __str__(self) -> str:
        spelled = list(map(_spelled, self._parameters))
        kinds = [each.kind for each in self._parameters]
        if inspect.Parameter.KEYWORD_ONLY in kinds:
            spelled.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
        return f"({', '.join(spelled)})"

    def _misfit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        names = self.names
        plain = names[: self._codec.positional]
        if len(args) > len(plain):
            return f"{len(args)} positional arguments given, at most {len(plain)} accepted"
        given = [*plain[: len(args)], *kwargs]
        if unexpected := [name for name in kwargs if name not in names]:
            return f"unexpected argument {unexpected[0]!r}"
        if twice := [name for name in kwargs if name in plain[: len(args)]]:
            return f"argument {twice[0]!r} is given twice"
        missing = [each.name for each in self._parameters if each.default is each.empty and each.name not in given]
        return f"missing argument {missing[0]!r}"

    def _explain(self, error: Exception) -> str:
        match = _MISFIT.fullmatch(str(error))
        assert match is not None
        what, path = match["what"], (match["path"] or "").replace("`", "")
        if not path and (unexpected := re.fullmatch(r"contains unknown field `(.+)`", what)):
            return f"{self._task}: unexpected argument {unexpected[1]!r}; it takes {self}"
        if not path and (missing := re.fullmatch(r"missing required field `(.+)`", what)):
            return f"{self._task}: missing argument {missing[1]!r}; it takes {self}"
        name = _FIELD.match(path.rpartition("key in ")[2])
        return f"{self._task}{f'.{name[1]}' if name else ''}: {plain(what)}{path and f' (at {path})'}"


def _listed(kind: Any) -> Any:
    """The type as which an argument is stored: a list for an Iterator or an Iterable."""
    if get_origin(kind) not in (Iterator, Iterable):
        return kind
    return list[(*get_args(kind), Any)[0]]  # type: ignore[misc]


def plain(text: str) -> str:
    text = text.replace("`", "")
    return text if text.startswith("JSON") else text[:1].lower() + text[1:]


def _spelled(parameter: inspect.Parameter) -> str:
    kind = parameter.annotation
    text = f"{parameter.name}: {kind if isinstance(kind, str) else inspect.formatannotation(kind)}"
    return text if parameter.default is parameter.empty else f"{text} = {parameter.default!r}"
