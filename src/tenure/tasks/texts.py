"""The texts that programs give: keys, names, reasons."""

from __future__ import annotations

import re
from collections.abc import Collection

from tenure.core.text import clean
from tenure.errors import InvalidOption

_BRACES = re.compile(r"\{(\w+)[}.\[!:]")  #: a field of a template
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def valid_key(key: object, what: str) -> str:
    """The unchanged unique or once key. Raises InvalidOption that says what a valid key looks like."""
    if isinstance(key, str) and 1 <= len(key) <= 200 and not _CONTROL.search(key):
        return key
    got = f"{len(key)} characters" if isinstance(key, str) and len(key) > 200 else repr(key)
    raise InvalidOption(f"{what}: expected 1 to 200 characters without control characters, got {got}")


def refuse_template(key: str | None, names: Collection[str], where: str) -> None:
    """Raise InvalidOption if the key has one of these arguments in braces: it would stay as it is."""
    for name in _BRACES.findall(key or ""):
        if name in names:
            raise InvalidOption(
                f"{where}: unique is the key itself, so {{{name}}} would not be filled in, and all these jobs had one "
                f'key: write f"…{{{name}}}", or give the template to @jobs.task(unique=…)'
            )


def checked_name(value: object, what: str) -> str:
    """A short name for people. Raises InvalidOption."""
    if isinstance(value, str) and value.strip() and len(value) <= 200 and not _CONTROL.search(value):
        return value
    raise InvalidOption(f"{what}: expected a name of 1 to 200 characters, like 'nightly', got {value!r:.80}")


def checked_text(value: object, what: str, limit: int) -> str:
    if isinstance(value, str):
        return clean(value, limit)
    raise InvalidOption(f"{what}: expected text, got {value!r}")
