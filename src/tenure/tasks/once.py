"""Idempotency keys: the first result of a key is stored, and returned to every later caller.

While a process runs the code, it holds the key: a note in the store that expires, and is renewed as long as the code
runs. So no caller waits forever for a process that died, and no fixed time limit can expire under one that works.

No store can know whether code that died had taken effect. After a crash between the effect and its record the code
runs again, as it does when a process was suspended for longer than the hold. Where that matters, commit effect and
record together: `job.finish(tx=…)`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import msgspec

from tenure.core.durations import spell
from tenure.core.host import host_name
from tenure.core.ids import new_id
from tenure.core.logs import logger
from tenure.errors import StoreError, TenureError
from tenure.ports import Store
from tenure.tasks.arguments import decoder, dump, plain

HOLD_SECONDS = 30.0
RETRY_SECONDS = 1.0
_SHORTEST_POLL, _LONGEST_POLL = 0.01, 1.0
_log = logger("tenure.once")


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a key's note: a process is running the code, or the first result, as JSON."""

    by: str
    host: str = ""
    state: Literal["acting", "done"] = "acting"
    value: str = ""


_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(Record).decode


class Key:
    """One caller's use of a key: `claim()` until it is decided, run while `held()`, then `keep(…)` or `release()`."""

    def __init__(self, store: Store, key: str, ttl: float | None, wait: float | None) -> None:
        self._store, self._name, self._key = store, key, f"once:{key}"
        self._ttl, self._wait = ttl, wait
        self._mine = _encode(Record(new_id(), host_name())).decode()
        self._done = threading.Event()
        self._turn = threading.Lock()  #: one write at a time: a key that was released is not renewed
        self._began = time.monotonic()
        self._pause = _SHORTEST_POLL

    def claim(self) -> str | float | None:
        """The stored result as JSON; or the seconds until the next poll; or None: this caller has the key.

        Raises TimeoutError when it has waited for longer than `wait`.
        """
        swapped = self._store.swap(self._key, None, self._mine, ttl=HOLD_SECONDS)
        if swapped.landed:
            return None
        stored = None if swapped.value is None else _decode(swapped.value)
        if stored is not None and stored.state == "done":
            return stored.value
        waited = time.monotonic() - self._began
        if self._wait is not None and waited >= self._wait:
            why = f"a process on {stored.host} holds the key" if stored else "other processes took the key each time"
            raise TimeoutError(f"once({self._name!r}): no result after {spell(waited)}: {why}")
        pause, self._pause = self._pause, min(self._pause * 2, _LONGEST_POLL)
        return pause if self._wait is None else max(0.0, min(pause, self._wait - waited))

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold the key for as long as this block runs."""
        try:
            threading.Thread(target=self._renew, name="tenure-once", daemon=True).start()
        except RuntimeError:  # no thread can be started
            self.release()
            raise
        try:
            yield
        finally:
            self._done.set()

    def _renew(self) -> None:
        pause, logged = HOLD_SECONDS / 3, ""
        while not self._done.wait(pause):
            with self._turn:
                if self._done.is_set():
                    return
                try:
                    held = self._swapped(self._mine, self._mine) or self._swapped(None, self._mine)
                except Exception as error:
                    if not isinstance(error, StoreError) and repr(error) != logged:
                        logged = repr(error)
                        _log.critical("once(%r): renewing the key failed, retrying", self._name, exc_info=True)
                    pause = min(RETRY_SECONDS, HOLD_SECONDS / 3)
                    continue
            pause = HOLD_SECONDS / 3
            if not held:
                _log.warning("once(%r): the key was not renewed in time, and another process took it", self._name)
                return

    def _swapped(self, old: str | None, new: str | None) -> bool:
        return self._store.swap(self._key, old, new, ttl=HOLD_SECONDS).landed

    def release(self) -> None:
        """Free the key for others, if this caller holds it."""
        with self._turn, suppress(StoreError):  # the hold expires anyway
            self._done.set()
            self._swapped(self._mine, None)

    def keep(self, value: str) -> str:
        """Record the result and return it; or return the stored one, if another process was first."""
        done = _encode(Record(_decode(self._mine).by, state="done", value=value)).decode()
        with self._turn:
            swapped = self._store.swap(self._key, self._mine, done, ttl=self._ttl)
            if not swapped.landed and swapped.value is None:
                swapped = self._store.swap(self._key, None, done, ttl=self._ttl)
            self._done.set()
        if swapped.landed:
            return value
        stored = None if swapped.value is None else _decode(swapped.value)
        _log.warning("once(%r): this process lost the key for a while, and another one ran the code too", self._name)
        return stored.value if stored is not None and stored.state == "done" else value


def encode_result(key: str, value: object, limit: int) -> str:
    return dump(value, f"once({key!r})", limit).decode()


def decode_result(key: str, text: str, kind: Any) -> Any:
    try:
        return decoder(kind)(text)
    except msgspec.DecodeError as error:
        raise TenureError(f"once({key!r}): the stored result does not fit its type: {plain(str(error))}") from error
