"""The command line of a guard as it is stored and shown: as a shell reads it, without its secrets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from tenure.config import redact

_STARS = "***"
_NAME = r"[\w.-]*"


def starred(words: Sequence[str], names: Sequence[str]) -> str:
    """The command, its secrets starred: passwords in URLs, and the values of options, assignments and headers whose
    name contains one of `names`. In doubt it hides more rather than less.

    >>> starred(["mysqldump", "--password=hunter2", "--token", "abc", "shop"], ("password", "token"))
    'mysqldump --password=*** --token *** shop'
    """
    if not names:
        return redact(shlex.join(words))
    secret = "|".join(re.escape(name).replace("_", "[_-]") for name in names)  # api_key is --api-key, too
    shapes = _Shapes(secret)
    shown: list[str] = []
    hide = False  # the word before is an option with such a name
    for before, word in zip(["", *words], words, strict=False):
        # The value may itself begin with a dash; but `--token --verbose` is two options.
        if hide and not word.startswith("--"):
            shown.append(_STARS)
            hide = False
            continue
        hide = shapes.option(word)
        shown.append(shapes.star(redact(word), script=re.fullmatch(r"-[a-z]*c", before) is not None))
    return " ".join(map(_quoted, shown))


class _Shapes:
    """The forms in which a secret appears in a word, or in a script that is one word (`sh -c '…'`)."""

    def __init__(self, secret: str) -> None:
        name = rf"{_NAME}(?:{secret}){_NAME}"
        value = r"""(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\;|&)])+"""
        self._option = re.compile(rf"-+{name}", re.IGNORECASE | re.ASCII)
        self._whole = re.compile(rf"""(\S*?(?:{secret}){_NAME}["']?[=:]\s*).+""", re.IGNORECASE | re.DOTALL)
        self._assigned = re.compile(rf"((?<![\w.-])-*{name}=){value}", re.IGNORECASE | re.ASCII)
        self._spaced = re.compile(rf"((?<![\w.-])-+{name}\s+)(?!--){value}", re.IGNORECASE | re.ASCII)
        # A header, or JSON: Authorization: Bearer x, "token": "x". Up to the end of its line or its quotes.
        self._said = re.compile(rf"""((?<![\w.-]){name}["']?:\s*["']?)[^"'\n]+""", re.IGNORECASE | re.ASCII)

    def option(self, word: str) -> bool:
        return self._option.fullmatch(word) is not None

    def star(self, word: str, *, script: bool) -> str:
        if not script and (whole := self._whole.fullmatch(word)):
            return whole[1] + _STARS
        for shape in (self._assigned, self._spaced, self._said):
            word = shape.sub(rf"\1{_STARS}", word)
        return word


def _quoted(word: str) -> str:
    """As a shell reads it, except that stars alone need no quotes."""
    bare = word.replace(_STARS, "")
    return word if word == _STARS or (bare and shlex.quote(bare) == bare) else shlex.quote(word)
