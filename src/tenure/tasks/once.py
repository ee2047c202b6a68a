"""Idempotency keys: the first result of a key is stored, and given to whoever repeats it.

While one acts, its key is held: a note of the store that ends by itself, and is renewed for as long as the code runs.
So nobody waits for ever for a process that died, and no fixed time can run out under one that works.

What no store can do: know whether code that died had acted. A crash between the act and its record acts again, as does
a process that was away for longer than the hold. Where that matters, act and record together: `job.finish(tx=…)`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import msgspec

from tenure.core.durations import spell
from tenure.core.ids import new_id
from tenure.errors import StoreError, TenureError
from tenure.liveness.host import host_name
from tenure.ports import Store
from tenure.tasks.arguments import decoder, dump, plain

HOLD_SECONDS = 30.0
RETRY_SECONDS = 1.0
_FIRST_LOOK, _SLOWEST_LOOK = 0.01, 1.0
_log = logging.getLogger("tenure.once")


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the note of a key says: someone acts, or what the first one's result was, as JSON."""

    by: str
    host: str = ""
    state: Literal["acting", "done"] = "acting"
    value: str = ""


_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(Record).decode


class Key:
    """One caller's way to a key: `claim()` until it tells, act while it is `held()`, then `keep(…)` or `let_go()`."""

    def __init__(self, store: Store, key: str, ttl: float | None, wait: float | None) -> None:
        self._store, self._name, self._key = store, key, f"once:{key}"
        self._ttl, self._wait = ttl, wait
        self._mine = _encode(Record(new_id(), host_name())).decode()
        self._done = threading.Event()
        self._turn = threading.Lock()  #: one word to the store at a time: what is let go is not taken again
        self._began = time.monotonic()
        self._pause = _FIRST_LOOK

    def claim(self) -> str | float | None:
        """The result that stands as JSON; the seconds until the next look; None: it is ours to act.

        Raises TimeoutError when it has waited for long enough.
        """
        swapped = self._store.swap(self._key, None, self._mine, ttl=HOLD_SECONDS)
        if swapped.landed:
            return None
        stands = None if swapped.value is None else _decode(swapped.value)
        if stands is not None and stands.state == "done":
            return stands.value
        waited = time.monotonic() - self._began
        if self._wait is not None and waited >= self._wait:
            who = f"a process on {stands.host} acts" if stands else "others were faster each time"
            raise TimeoutError(f"once({self._name!r}): no result after {spell(waited)}: {who}")
        pause, self._pause = self._pause, min(self._pause * 2, _SLOWEST_LOOK)
        return pause if self._wait is None else max(0.0, min(pause, self._wait - waited))

    @contextmanager
    def held(self) -> Generator[None]:
        """Ours for as long as this block runs."""
        threading.Thread(target=self._renew, name="tenure-once", daemon=True).start()
        try:
            yield
        finally:
            self._done.set()

    def _renew(self) -> None:
        pause, told = HOLD_SECONDS / 3, ""
        while not self._done.wait(pause):
            with self._turn:
                if self._done.is_set():
                    return
                try:
                    held = self._swapped(self._mine, self._mine) or self._swapped(None, self._mine)
                except Exception as error:
                    if not isinstance(error, StoreError) and repr(error) != told:
                        told = repr(error)
                        _log.critical("once(%r): to renew it has failed, and is tried again", self._name, exc_info=True)
                    pause = min(RETRY_SECONDS, HOLD_SECONDS / 3)
                    continue
            pause = HOLD_SECONDS / 3
            if not held:
                _log.warning("once(%r): it could not be renewed in time, and another acts too", self._name)
                return

    def _swapped(self, old: str | None, new: str | None) -> bool:
        return self._store.swap(self._key, old, new, ttl=HOLD_SECONDS).landed

    def let_go(self) -> None:
        """Free for others, if it is ours."""
        with self._turn, suppress(StoreError):  # it ends by itself
            self._done.set()
            self._swapped(self._mine, None)

    def keep(self, value: str) -> str:
        """Record the result; the one that stands, if another was faster."""
        done = _encode(Record(_decode(self._mine).by, state="done", value=value)).decode()
        with self._turn:
            swapped = self._store.swap(self._key, self._mine, done, ttl=self._ttl)
            if not swapped.landed and swapped.value is None:
                swapped = self._store.swap(self._key, None, done, ttl=self._ttl)
            self._done.set()
        if swapped.landed:
            return value
        stands = None if swapped.value is None else _decode(swapped.value)
        _log.warning("once(%r): another has acted too, since this key was out of our hands for a while", self._name)
        return stands.value if stands is not None and stands.state == "done" else value


def encode_result(key: str, value: object, limit: int) -> str:
    return dump(value, f"once({key!r})", limit).decode()


def decode_result(key: str, text: str, kind: Any) -> Any:
    try:
        return decoder(kind)(text)
    except msgspec.DecodeError as error:
        raise TenureError(f"once({key!r}): what was kept does not fit its type: {plain(str(error))}") from error
