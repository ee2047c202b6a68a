"""Codecs: what encrypts the values of jobs before a store keeps them. `Tenure(codec=AesSiv(keys))`.

A codec must be *deterministic*: the same data and the same `about` make the same bytes. The engine compares what is
stored: an outcome that is sent again after a lost reply, a checkpoint that did not move.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Protocol, cast

from tenure.core.text import a, install
from tenure.errors import InvalidOption

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_KEY = re.compile(r"[A-Za-z0-9_-]+={0,2}")
_SIZES = (32, 48, 64)  #: bytes: AES-SIV with AES-128, AES-192, AES-256
_PROBE = b"tenure", "probe"


class Codec(Protocol):
    """Encrypts values, and decrypts them again. Used by several threads at once, and it must not block.

    `about` names the place of a value, as in `result 0198c0de-…`. A value of one place must not decode at another one:
    authenticate `about`, without storing it. A key that another service keeps is fetched once, when the codec is made.
    """

    @property
    def key(self) -> str:
        """The name of the key that `encode` uses: 1 to 40 letters, digits and _ . -. It is stored beside each value."""
        ...

    def encode(self, data: bytes, about: str) -> bytes:
        """Encrypt, deterministically."""
        ...

    def decode(self, data: bytes, about: str, key: str) -> bytes:
        """Decrypt. Raises LookupError if there is no key of this name, ValueError if this is not what `encode` made."""
        ...


class AesSiv:
    """AES-SIV (RFC 5297): authenticated and deterministic. The first key encrypts, all of them decrypt.

    Example: `jobs = Tenure(codec=AesSiv(os.environ["JOBS_KEYS"]))`, one key or several with commas between them, as
    `tenure codec key` prints them. Needs the extra `crypto`. Raises InvalidOption.
    """

    def __init__(self, keys: str | Sequence[str]) -> None:
        found = [key.strip() for key in _texts(keys)]
        raw = [_read(key, place) for place, key in enumerate(found, start=1)]
        if not raw:
            raise InvalidOption("codec: expected at least one key, got none; to make one: tenure codec key")
        cipher, self._invalid = _library()
        self._ciphers = {_name(each): cipher(each) for each in raw}
        self.key = _name(raw[0])
        self._first = self._ciphers[self.key]

    def __repr__(self) -> str:
        return f"AesSiv({', '.join(self._ciphers)})"  # names, never keys

    def encode(self, data: bytes, about: str) -> bytes:
        """Encrypt with the first key."""
        encrypted: bytes = self._first.encrypt(data, [about.encode()])
        return encrypted

    def decode(self, data: bytes, about: str, key: str) -> bytes:
        """Decrypt with the key of this name."""
        try:
            decrypted: bytes = self._ciphers[key].decrypt(data, [about.encode()])
        except self._invalid:
            raise ValueError(f"not what the key {key} made for {about}") from None
        return decrypted

    @staticmethod
    def new_key() -> str:
        """A random key of 64 bytes. Example: `AesSiv([AesSiv.new_key()])`"""
        from secrets import token_bytes

        return urlsafe_b64encode(token_bytes(_SIZES[-1])).decode()


def checked(codec: object) -> Codec:
    """The codec, once it has shown that it encrypts as it must. Raises InvalidOption."""
    found = cast("Codec", codec)
    try:
        key, first, again = str(found.key), found.encode(*_PROBE), found.encode(*_PROBE)
        back = found.decode(first, _PROBE[1], key)
    except (AttributeError, TypeError) as error:
        # By its type: it may be the key itself.
        raise InvalidOption(f"codec: expected one like AesSiv(keys), got {a(type(codec).__name__)}: {error}") from None
    if not isinstance(cast("object", first), bytes):
        raise InvalidOption(f"codec: its encode has to return bytes, got {a(type(first).__name__)}")
    if not _NAME.fullmatch(key):
        raise InvalidOption(f"codec: its key has to be named with 1 to 40 letters, digits and _ . -, got {key!r:.60}")
    if first != again:
        raise InvalidOption("codec: it encrypts the same data in another way each time; it has to be deterministic")
    if back != _PROBE[0] or first == back:
        raise InvalidOption("codec: it has to encrypt, and to decode what it encoded; it does not")
    try:
        found.decode(first, f"{_PROBE[1]} elsewhere", key)
    except (ValueError, LookupError):
        return found
    except Exception as error:
        raise InvalidOption(
            "codec: for a value of another place its decode has to raise ValueError, else it is tried again for ever; "
            f"it raised {a(type(error).__name__)}"
        ) from error
    raise InvalidOption(
        "codec: it decodes a value of one place at another one, so values could be exchanged; authenticate `about`"
    )


def _texts(keys: object) -> list[str]:
    """The keys, one by one. What was given instead is not shown: it may be a key."""
    if isinstance(keys, str):
        return keys.split(",")
    found = list(cast("Sequence[object]", keys)) if isinstance(keys, list | tuple) else [keys]
    texts = [key for key in found if isinstance(key, str)]
    if len(texts) < len(found):
        wrong = next(key for key in found if not isinstance(key, str))
        raise InvalidOption(
            f"codec: expected keys as text, one or several, got {a(type(wrong).__name__)}; AesSiv(os.environ[…]) says "
            "which variable is missing, and os.environ.get(…) does not"
        )
    return texts


def _read(key: str, place: int) -> bytes:
    try:
        raw = urlsafe_b64decode(key + "=" * (-len(key) % 4)) if _KEY.fullmatch(key) else b""
    except ValueError:
        raw = b""
    if len(raw) not in _SIZES:  # the text is not shown: it may be a key with a typo
        raise InvalidOption(
            f"codec: key {place}: expected 32, 48 or 64 bytes in URL-safe base64, got {len(key)} characters that are "
            "not that; to make one: tenure codec key"
        )
    return raw


def _name(raw: bytes) -> str:
    return sha256(b"tenure key " + raw).hexdigest()[:8]


def _library() -> tuple[Any, type[Exception]]:
    """What makes a cipher from a key, and the error it raises for data that it did not encrypt."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV
    except ModuleNotFoundError as error:
        raise InvalidOption(f"{error.name} is not installed: {install('crypto')}") from error
    return AESSIV, InvalidTag
