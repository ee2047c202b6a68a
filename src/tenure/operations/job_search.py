"""The words of a search, for the command line, the API and the pages: `args.user=4711 error~timeout ended<2h`.

docs/search.md has the grammar. A reader who may not see payloads can't search them either: finding a job by a value
would show the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from tenure.core.conditions import Condition, Field
from tenure.core.durations import YEARS, seconds
from tenure.core.fingerprint import fingerprint
from tenure.core.lifecycle import State
from tenure.errors import InvalidOption
from tenure.ports import Filter, JobView
from tenure.schedules.cron import Rule

LONGEST = 1_000  #: characters of a search; what is longer is a mistake, not a search
MOST = 10  #: conditions
_WORD = re.compile(r'\s*((?:[^\s"]|"[^"]*")+)')
_NAMED = re.compile(r'([a-z]+)((?:\.(?:[^=~<>"\s]|"[^"]*")+)?)([=~<>])(.*)', re.DOTALL)
_FIELDS: dict[str, Field] = {"args": "payload", "meta": "meta", "result": "result", "error": "error"}
_EXACT = {"task": "task", "queue": "queue", "worker": "worker_id", "unique": "unique", "flow": "flow"}
_FINGERPRINT = re.compile("[0-9a-f]{8}")
_TIMES = ("enqueued", "ended")
_PAYLOADS = ("payload", "result")
_EXPECTED = (
    "expected args.NAME=…, args~…, meta.NAME=…, result~…, error~…, task=…, queue=…, worker=…, unique=…, flow=…, "
    "state=…, fingerprint=3f9a2c11, enqueued<2h or ended>2h"
)


class Word(NamedTuple):
    """One word of a search, taken apart: `args.user=4711`. A plain text has no name."""

    name: str
    path: str
    sign: str
    text: str
    typed: str


def parsed(text: str, now: datetime) -> Filter:
    """The filter that these words describe; all of them must hold.

    >>> parsed("state=dead args.user=4711", datetime.now(UTC)).conditions
    (Condition(field='payload', path='user', exactly=True, text='4711'),)

    Raises InvalidOption.
    """
    given: dict[str, Any] = {}
    words = list(_words(checked(text, "search")))
    if len(words) > MOST:
        raise InvalidOption(f"search: expected at most {MOST} words, got {len(words)}")
    conditions = [condition for word in words if (condition := _condition(word, given, now)) is not None]
    return Filter(**given, conditions=tuple(conditions))


def _condition(word: Word, given: dict[str, Any], now: datetime) -> Condition | None:
    """The condition that this word is; else it is stored in `given`, a filter's values."""
    name, path, sign, text, typed = word
    if not text and (sign != "=" or not typed.endswith('""')):  # an empty variable of a shell would mean all jobs
        raise InvalidOption(f'search: expected a value after {typed}; an empty one is written NAME=""')
    if name in _FIELDS and sign in "=~" and (path == "" or name != "error"):
        return Condition(_FIELDS[name], path, sign == "=", text)
    if name == "text":
        return Condition("text", "", False, text)
    if name == "fingerprint" and sign == "=" and not path and _FINGERPRINT.fullmatch(text):
        return Condition("fingerprint", "", True, text)
    if path:
        raise _strange(word)
    if name == "state" and sign == "=":
        _once(given, "states", states_of(text.split(","), "state"))
    elif name in _EXACT and sign == "=":
        _once(given, _EXACT[name], text)
    elif name in _TIMES and sign in "<>":
        before, at = _bound(word, now)
        _once(given, f"{name}_{'until' if before else 'since'}", at)
    else:
        raise _strange(word)
    return None


def _bound(word: Word, now: datetime) -> tuple[bool, datetime]:
    """Whether it means before this time. A duration is an age: `<2h` is less than two hours ago, so after that time."""
    if word.text[:4].isdigit() and word.text[4:5] == "-":
        return word.sign == "<", moment(word.text, word.name)
    return word.sign == ">", now - timedelta(seconds=seconds(word.text, word.name))


def _once(given: dict[str, Any], name: str, value: object) -> None:
    if given.setdefault(name, value) != value:
        raise InvalidOption(f"search: {name.partition('_')[0]} is there twice, with two values; keep one of them")


def fixed(text: str, now: datetime) -> str:
    """The search with times for ages, so that it finds the same jobs later. Raises InvalidOption."""
    return " ".join(
        f"{word.name}{'<' if before else '>'}{at.isoformat()}" if bound else word.typed
        for word in _words(checked(text, "search"))
        for bound in [word.name in _TIMES]
        for before, at in [_bound(word, now) if bound else (False, now)]
    )


def both(one: Filter, other: Filter) -> Filter:
    """Jobs that match both. Raises InvalidOption if they contradict each other."""
    given: dict[str, Any] = {}
    for name in ("task", "queue", "worker_id", "unique", "flow", "text"):
        for where in (one, other):
            if (value := getattr(where, name)) is not None:
                _once(given, name, value)
    spans: dict[str, Callable[..., datetime]] = {"since": max, "until": min}
    for name in _TIMES:
        for end, nearest in spans.items():
            times = [at for where in (one, other) if (at := getattr(where, f"{name}_{end}")) is not None]
            given[f"{name}_{end}"] = nearest(times) if times else None
    states = one.states & other.states if one.states and other.states else one.states | other.states
    if not states and (one.states or other.states):
        here, there = (", ".join(sorted(where.states)) for where in (one, other))
        raise InvalidOption(f"search: these are jobs that are {here}, and it asks for {there}; leave the state out")
    return Filter(
        **given,
        states=states,
        guards=one.guards and other.guards,
        conditions=(*one.conditions, *other.conditions),
    )


def permitted(where: Filter, *, payloads: bool) -> Filter:
    """The filter, if this reader may use it. Raises InvalidOption."""
    hidden = [each for each in where.conditions if each.field in _PAYLOADS]
    if hidden and not payloads:
        name = "args" if hidden[0].field == "payload" else "result"
        raise InvalidOption(
            f"search: you may not see arguments and results, so you can't search them; leave out {name}, or ask for "
            "a role with +payloads"
        )
    return where


def spelled(condition: Condition) -> str:
    """For the audit trail, whose readers may not see payloads: without the values of arguments and results.

    >>> spelled(Condition("payload", "user", True, "4711")), spelled(Condition("error", "", False, "timeout"))
    ('args.user=***', 'error~timeout')
    """
    names = {value: name for name, value in _FIELDS.items()}
    name = ".".join(filter(None, (names.get(condition.field, condition.field), condition.path)))
    text = "***" if condition.field in _PAYLOADS else condition.text
    return f"{name}{'=' if condition.exactly else '~'}{text}"


def meets(job: JobView, where: Filter) -> bool:
    """Whether the job, with its secrets starred, meets the conditions. The store compared all else."""
    return all(_met(job, condition) for condition in where.conditions)


def _met(job: JobView, condition: Condition) -> bool:
    match condition.field:
        case "text":
            return True  # it has no secrets: the store's answer stands
        case "fingerprint":
            has_one = job.error is not None or job.state is State.DEAD
            return has_one and fingerprint(job.error or "") == condition.text
        case "error":
            return job.error is not None and condition.met_by(job.error)
        case "meta":
            return condition.met_by(dict(job.meta))
        case "payload":
            return _met_in_json(job.payload, condition)
        case "result":
            return job.result is not None and _met_in_json(job.result, condition)


def _met_in_json(text: str, condition: Condition) -> bool:
    try:
        return condition.met_by(msgspec.json.decode(text))
    except (msgspec.DecodeError, RecursionError):
        return condition.met_by(text)


def _words(text: str) -> Iterator[Word]:
    at = 0
    text = text.rstrip()
    while at < len(text):
        found = _WORD.match(text, at)
        if found is None:
            raise InvalidOption(f"search: a quote is not closed: {text[at:].strip()[:60]}")
        typed = found[1]
        named = _NAMED.fullmatch(typed)
        name, path, sign, value = named.groups() if named else ("text", "", "~", typed)
        yield Word(name, _unquoted(path[1:]), sign, _unquoted(value), typed)
        at = found.end()


def _unquoted(text: str) -> str:
    return text.replace('"', "")


def _strange(word: Word) -> InvalidOption:
    typed = word.typed[:60]
    return InvalidOption(f'search: {_EXPECTED}, got {typed!r}; if it is a text to look for, quote it: "{typed}"')


def checked(text: str, label: str) -> str:
    """Text of a bounded length that every store can compare. Raises InvalidOption."""
    if len(text) > LONGEST:
        raise InvalidOption(f"{label}: expected at most {LONGEST:,} characters, got {len(text):,}")
    if "\x00" in text or any("\ud800" <= each <= "\udfff" for each in text):
        raise InvalidOption(f"{label}: expected text without NUL and lone surrogates, got {text[:60]!r}")
    return text


def states_of(words: list[str] | tuple[str, ...], label: str) -> frozenset[State]:
    """The states with these names. Raises InvalidOption."""
    if unknown := [word for word in words if word not in set(State)]:
        raise InvalidOption(f"{label}: expected some of {', '.join(State)}, got {unknown[0]!r}")
    return frozenset(map(State, words))


def moment(text: str, label: str, rule: Rule | None = None) -> datetime:
    """A time as a form sends it; without a zone it is in the rule's zone. Raises InvalidOption."""
    try:
        at = datetime.fromisoformat(text)
        zone = rule.local(datetime.now(UTC)).tzinfo if rule else UTC
        if at.year in YEARS:
            return (at.replace(tzinfo=zone) if at.tzinfo is None else at).astimezone(UTC)
    except ValueError:
        pass
    zone_said = "" if rule else ", in UTC"
    raise InvalidOption(f"{label}: expected a time like 2030-01-31T06:00{zone_said}, got {text!r}")
