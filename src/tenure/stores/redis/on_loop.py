"""A script for a caller on an event loop: it never waits for a connection, and waits on the loop for the answer."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any

from redis import exceptions

from tenure.ports import Readable
from tenure.stores.redis.server import ANSWER_SECONDS, Connection, Server, mapping_errors


def call(server: Server, name: str, values: Sequence[Any], *, large: bool = False) -> Generator[Readable, None, Any]:
    """Run one script. None: not now, and nothing was executed. `large`: wait in place for the rest of its answer."""
    if os.getpid() != server.pid or server.sentinels_due() or not server.room.acquire(blocking=False):
        return None
    try:
        epoch, connection = server.epoch, server.take()
        if connection is None:
            return None
        with mapping_errors(server), server.returned(connection, epoch):
            return (yield from _ask(connection, server.evalsha(name, values), large=large))
    finally:
        server.room.release()


def _ask(connection: Connection, command: Sequence[Any], *, large: bool) -> Generator[Readable, None, Any]:
    line = connection._get_socket()  # redis-py has no other way to wait for it together with other things
    assert line is not None, "an idle connection has a socket"
    packed = connection.pack_command(*command)
    line.settimeout(0)  # a line that accepts no more, or a part of an answer, is an error
    try:
        connection.send_packed_command(packed)
        yield Readable(line.fileno(), ANSWER_SECONDS)
        if large:
            line.settimeout(ANSWER_SECONDS)
        return connection.read_response()
    except (exceptions.MovedError, exceptions.NoScriptError):  # the next call, which waits, deals with that
        return None
    finally:
        with suppress(OSError):  # it is closed
            line.settimeout(ANSWER_SECONDS)
