"""The pipe between a supervisor and a worker: JSON lines over a socket pair, each with a `kind`.

worker → supervisor   hello, refused, ready, due, stuck, stack, counts, draining, drained
supervisor → worker   prepare, load, start, count, stack, rescued, drain
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from tenure.core.lifecycle import Cancelled, Crashed, Failed, Outcome, Released


class Link:
    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._rest = b""
        self._unsent = b""  # the rest of a message for which there was no room
        self.closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, kind: str, **fields: Any) -> None:
        """Best effort: if the other process is gone, that is detected by other means."""
        message, self._unsent = self._unsent + _line(kind, fields), b""
        with suppress(OSError):
            self._socket.sendall(message)

    def offer(self, kind: str, **fields: Any) -> bool:
        """Send it if there is room, without waiting; False: there is none. Used by one thread, which also sends."""
        with suppress(OSError):
            if self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent, socket.MSG_DONTWAIT) :]
            if not self._unsent:
                message = _line(kind, fields)
                self._unsent = message[self._socket.send(message, socket.MSG_DONTWAIT) :]
                return True
        return False

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have arrived. Sets `closed` at end of file. Call it when the socket is readable."""
        try:
            chunk = self._socket.recv(1 << 20)
        except BlockingIOError:
            return []
        except OSError:
            chunk = b""
        if not chunk:
            self.closed = True
            return []
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self.closed = True
        self._socket.close()


def _line(kind: str, fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"kind": kind, **fields}).encode() + b"\n"


def write_verdicts(verdicts: Mapping[str, Outcome]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for job_id, outcome in verdicts.items():
        match outcome:
            case Failed(error=text):
                found[job_id] = ["failed", text]
            case Cancelled(reason=text):
                found[job_id] = ["cancelled", text]
            case Crashed(reason=text):
                found[job_id] = ["crashed", text]
            case _:
                found[job_id] = ["released", getattr(outcome, "reason", "")]
    return found


def read_verdicts(written: Mapping[str, list[str]]) -> dict[str, Outcome]:
    kinds: dict[str, Callable[[str], Outcome]] = {
        "failed": Failed,
        "cancelled": Cancelled,
        "crashed": partial(Crashed, at_fault=True),
        "released": Released,
    }
    return {job_id: kinds[kind](text) for job_id, (kind, text) in written.items()}
