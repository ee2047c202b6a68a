"""The base of the Redis store: one server."""

from __future__ import annotations

from datetime import datetime

from tenure.stores.redis.facts import instant
from tenure.stores.redis.server import Server


class RedisBase:
    """Each verb is one script, or several of which the last checks that what the first has read still holds."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def now(self) -> datetime:
        return instant(self._server.call("now"))
