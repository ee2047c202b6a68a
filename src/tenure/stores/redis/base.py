"""The base of the Redis store: one server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tenure.stores.redis.facts import instant
from tenure.stores.redis.server import Server


class RedisBase:
    """Each verb is one script, or several: the last checks that what the first has read is still true."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def now(self) -> datetime:
        return instant(self._server.call("now"))

    def _held(self, worker_id: str) -> list[str]:
        """The ids of the jobs that a worker owns."""
        held: list[str] = self._server.run("HKEYS", f"{self._server.prefix}processing:{worker_id}")
        return held

    def _with_jobs(self, queues: Sequence[str], *, solo: bool) -> Sequence[str]:
        """Those in which jobs are queued, in the same order; or all, if most queues are of other workers."""
        found = self._server.call("with_jobs", int(solo), 2 * len(queues))
        if found is None:
            return queues
        waiting = set(found)
        return [queue for queue in queues if queue in waiting]
