"""Text that every store can keep and every output can show."""

from __future__ import annotations

import codecs
import json
import re
from typing import TextIO, cast

UPGRADE = "upgrade Tenure (git pull, then pip install . in its checkout)"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


MAX_ERROR = 16_384  #: characters of an error kept with the job


def clean(text: str, limit: int) -> str:
    """Text that every store can keep: NUL and lone surrogates replaced, at most `limit` characters.

    >>> clean("a\\0b", 10), clean("abcdef", 4)
    ('a\\ufffdb', 'abc…')
    """
    text = _UNSTORABLE.sub("\ufffd", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def install(extra: str) -> str:
    """How the optional dependencies of this name are installed."""
    return f'pip install ".[{extra}]" in the checkout of Tenure'


def a(name: str) -> str:
    """A name with its article.

    >>> a("Session"), a("AsyncSession")
    ('a Session', 'an AsyncSession')
    """
    return f"an {name}" if name[:1] in {*"AEIOUaeiou"} else f"a {name}"


def preview(payload: str, width: int) -> str:
    """The first arguments of a job, in one line of about `width` characters.

    >>> preview('{"order":17,"user":{"id":4711},"tags":["a","b"],"note":"two  lines"}', 80)
    'order=17, user={…}, tags=[2], note=two lines'
    >>> preview('{"order":17,"user":4711}', 8)
    'order=17…'
    """
    try:
        given: object = json.loads(payload)
    except (ValueError, RecursionError):
        return clean(payload, width)
    if not isinstance(given, dict):
        return clean(payload, width)
    shown, room = list[str](), width
    for name, value in cast("dict[str, object]", given).items():
        if room <= 0:
            return ", ".join(shown) + "…"
        shown.append(clean(f"{name}={_short(value)}", 60))
        room -= len(shown[-1]) + 2
    return ", ".join(shown)


def _short(value: object) -> str:
    match value:
        case str():
            return " ".join(value[:200].split())
        case dict():
            return "{…}" if value else "{}"
        case list():
            return f"[{len(cast('list[object]', value))}]"
        case _:
            return json.dumps(value)


def is_utf8(stream: TextIO) -> bool:
    """Can it show every character? On any other, JSON is written with escapes: else it would have question marks."""
    return codecs.lookup(stream.encoding or "utf-8").name == "utf-8"
