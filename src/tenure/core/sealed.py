"""How an encrypted value looks: a JSON string of its own kind, so that stores, limits and pages need not know of it.

    "tenure:sealed:1:3f2a91bc:fDQ9…"   the form, the name of the key, what the codec made, in base64
    "tenure:sealed:altered"            read from the store, and found to be cut short, changed or moved

Only a store that was opened with a codec writes and reads this form (stores/sealed). What it can't open it passes on
unchanged, and code that decodes a value checks for this form first.
"""

from __future__ import annotations

MARK = '"tenure:sealed:'
SEALED = f"{MARK}1:"
ALTERED = f'{MARK}altered"'
ENCRYPTED = "encrypted: "  #: the start of what people read in place of such a value
_MARK_BYTES = MARK.encode()


def is_sealed(text: str | bytes) -> bool:
    """Is it an encrypted value that could not be read?

    >>> is_sealed('{"order":7}'), is_sealed('"tenure:sealed:1:3f2a91bc:fDQ9"')
    (False, True)
    """
    return text.startswith(MARK) if isinstance(text, str) else text.startswith(_MARK_BYTES)


def key_of(text: str) -> str:
    """The name of the key that an encrypted value needs.

    >>> key_of('"tenure:sealed:1:3f2a91bc:fDQ9"')
    '3f2a91bc'
    """
    return text.removeprefix(SEALED).partition(":")[0]


def why_sealed(text: str) -> str:
    """Why it can't be read, for the middle of a sentence.

    >>> why_sealed('"tenure:sealed:1:3f2a91bc:fDQ9"')
    'it needs the key 3f2a91bc, which this process does not have'
    """
    if text == ALTERED:
        return "it was cut short, changed, or moved here from another job or field"
    return f"it needs the key {key_of(text)}, which this process does not have"
