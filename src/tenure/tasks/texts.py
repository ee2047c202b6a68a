"""The texts that programs give: keys, names, reasons."""

from __future__ import annotations

import re

from tenure.core.text import clean
from tenure.errors import InvalidOption

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def valid_key(key: object, what: str) -> str:
    """The unchanged unique or once key. Raises InvalidOption that says what a valid key looks like."""
    if isinstance(key, str) and 1 <= len(key) <= 200 and not _CONTROL.search(key):
        return key
    got = f"{len(key)} characters" if isinstance(key, str) and len(key) > 200 else repr(key)
    raise InvalidOption(f"{what}: expected 1 to 200 characters without control characters, got {got}")


def checked_name(value: object, what: str) -> str:
    """A short name for people. Raises InvalidOption."""
    if isinstance(value, str) and value.strip() and len(value) <= 200 and not _CONTROL.search(value):
        return value
    raise InvalidOption(f"{what}: expected a name of 1 to 200 characters, like 'nightly', got {value!r:.80}")


def checked_text(value: object, what: str, limit: int) -> str:
    if isinstance(value, str):
        return clean(value, limit)
    raise InvalidOption(f"{what}: expected text, got {value!r}")
