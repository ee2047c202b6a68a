"""What all verbs of the Redis store stand on: one server."""

from __future__ import annotations

from datetime import datetime

from tenure.stores.redis.facts import instant
from tenure.stores.redis.server import Server


class RedisBase:
    """Each verb is one script of the server, or a few of which the last compares what the first has read."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def now(self) -> datetime:
        return instant(self._server.call("now"))
