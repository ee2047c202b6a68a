"""Text that every store can keep."""

from __future__ import annotations

import re

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def clean(text: str, limit: int) -> str:
    """Text that every store can keep: NUL and lone surrogates replaced, at most `limit` characters.

    >>> clean("a\\0b", 10), clean("abcdef", 4)
    ('a\\ufffdb', 'abc…')
    """
    text = _UNSTORABLE.sub("\ufffd", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"
