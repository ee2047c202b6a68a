"""The pipe between a supervisor and a worker: JSON lines over a socket pair, each with a `kind`.

worker → supervisor   hello, refused, ready, due, stuck, stack, counts, drained
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
        self.closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, kind: str, **fields: Any) -> None:
        """Best effort: if the other process is gone, that is detected by other means."""
        message = json.dumps({"kind": kind, **fields}).encode() + b"\n"
        with suppress(OSError):
            self._socket.sendall(message)

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
