"""Tells a dead-man's switch, such as healthchecks.io, when a guarded command starts and how it ends.

The switch must never delay the command or change its exit code: a thread sends, each request has a time limit, and at
the end all of them together have one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Literal
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import Request, urlopen

from tenure.errors import InvalidOption

What = Literal["start", "success", "fail"]

REQUEST_SECONDS = 5.0
LAST_SECONDS = 10.0  #: for what is unsent when the command has ended


class Ping:
    """Sends to URL/start, then URL or URL/fail. Example: `Ping("https://hc.example/9f2c", print).tell("start")`"""

    def __init__(self, url: str, say: Callable[[str], None]) -> None:
        # No message shows the URL: anyone who knows it can report that a command has run, or has failed.
        strange = InvalidOption("--ping: expected a URL like https://hc-ping.com/9f2c…, with http or https")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:  # an unmatched bracket, a port that is not a number
            raise strange from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise strange
        if not url.isprintable() or " " in url:
            raise strange
        if "@" in parts.netloc:
            raise InvalidOption("--ping: expected a URL without a user and password; they would not be sent")
        self._parts, self._host, self._say = parts, parts.hostname or "", say
        self._unsent = SimpleQueue[tuple[What, str] | None]()
        self._thread: threading.Thread | None = None

    def tell(self, what: What, says: str = "") -> None:
        """Send this, after what was told before."""
        self._unsent.put((what, says))
        if self._thread is None:
            thread = threading.Thread(target=self._send_all, name="tenure-ping", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the command goes on
                self._say(f"ping: {what} is not sent: {error}")
            else:
                self._thread = thread

    def close(self) -> None:
        """Wait for what is unsent, but not for long."""
        self._unsent.put(None)
        if self._thread is not None:
            self._thread.join(LAST_SECONDS)  # looking up a host's name has no time limit
            if self._thread.is_alive():
                self._say(f"ping: no answer from {self._host} within {LAST_SECONDS:g}s")

    def _send_all(self) -> None:
        while (told := self._unsent.get()) is not None:
            try:
                self._send(*told)
            except HTTPError as error:
                self._say(f"ping: {self._host} answers {error.code} to {told[0]}")
            except Exception as error:  # whatever a server or a proxy does, the command goes on
                self._say(f"ping: {told[0]} does not reach {self._host}: {getattr(error, 'reason', error)}")

    def _send(self, what: What, says: str) -> None:
        path = self._parts.path.rstrip("/") + ("" if what == "success" else f"/{what}")
        url = urlunsplit(self._parts._replace(path=path, fragment=""))
        until = time.monotonic() + REQUEST_SECONDS
        with urlopen(Request(url, says.encode()[:1000], method="POST"), timeout=REQUEST_SECONDS) as answer:
            while time.monotonic() < until and answer.read1(65536):
                pass
