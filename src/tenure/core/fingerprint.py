"""What errors of one cause have in common: the text without the parts that vary from case to case."""

from __future__ import annotations

import re
from hashlib import sha256

_LOOKED_AT = 1_000  #: characters of the first line
_LONGEST = 200
_DEEPEST = 4  #: levels of lists in lists
_LEFT_OUT = "…"
# A quote inside a word is an apostrophe. One that is never closed extends to the end, which may have been cut off.
_QUOTED = re.compile(r"""(?<!\w)'[^']*(?:'|$)|"[^"]*(?:"|$)|`[^`]*(?:`|$)""")
_WORD = re.compile(r"""[^\s"'`(),;=<>\[\]{}|]+""")
_VARIES = re.compile(r"[\d/\\@]")
_CLASS = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Warning|Timeout|Exit|Group):")
_ONE = r"(?:…|\[…\]|\(…\)|\{…\})"
_SEVERAL = re.compile(rf"{_ONE}(?:[\s,;:=|&+-]*{_ONE})+")  #: what is left of a list or a mapping, however long it was


def pattern(error: str) -> str:
    """The first line of an error's text, without numbers, ids, quoted text, paths, URLs and addresses.

    >>> pattern("ValueError: no address for customer 4711\\n\\n  File 'shop.py', line 3, in send")
    'ValueError: no address for customer …'
    >>> pattern("cannot open '/srv/17.pdf': [Errno 28] No space left on device")
    'cannot open …: [Errno …] No space left on device'
    """
    line = error.strip().partition("\n")[0][:_LOOKED_AT].strip()
    named = _CLASS.match(line)
    start = named.end() if named else 0  # a digit in the name of a class is not a number
    text = _WORD.sub(_word, _QUOTED.sub(_LEFT_OUT, line[start:]))
    for _ in range(_DEEPEST):
        text = _SEVERAL.sub(_LEFT_OUT, text)
    text = line[:start] + text
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + _LEFT_OUT
    return text or "no error recorded"


def fingerprint(error: str) -> str:
    """A name for the error's pattern, by which all jobs with that pattern are found and replayed.

    >>> fingerprint("no user 17") == fingerprint("no user 4711")
    True
    """
    return sha256(pattern(error).encode("utf-8", "replace")).hexdigest()[:8]


def _word(found: re.Match[str]) -> str:
    word = found[0]
    if not _VARIES.search(word):
        return word
    return _LEFT_OUT + word[len(word.rstrip(":.!?")) :]
