"""The namespace's stream on the server, and a consumer for each requested queue: created and updated as needed."""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec

from tenure.notifiers.nats.address import Names
from tenure.notifiers.nats.connection import Connection, Refused


class Stream:
    """Creates what is missing and updates settings that differ; other settings made by an operator are kept."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection, self._names = connection, names
        self._consumers: set[str] = set()  # queues with a consumer that is known to exist, on this connection
        self.problems: dict[str, str] = {}  #: queue → why permits can't be requested

    async def ensure(self) -> None:
        """Raises Refused."""
        name = self._names.stream
        need = {"name": name, "subjects": [f"{self._names.queues}*"], "retention": "workqueue", "storage": "file"}
        await self._ensure("STREAM", name, need)

    async def ensure_consumer(self, queue: str) -> None:
        """Create the stream and the queue's consumer unless they are known to exist. Raises Refused."""
        try:
            if queue not in self._consumers:
                await self.ensure()
                await self._make_consumer(queue)
                self._consumers.add(queue)
        except Refused as error:
            self.problems[queue] = str(error)
            raise
        self.problems.pop(queue, None)

    def doubt_consumer(self, queue: str) -> None:
        self._consumers.discard(queue)

    def doubt_all(self) -> None:
        self._consumers.clear()

    async def _make_consumer(self, queue: str) -> None:
        stream, token = self._names.stream, self._names.token(queue)
        need = {
            "durable_name": token,
            "ack_policy": "explicit",
            "ack_wait": int(self._connection.address.ack_wait * 1e9),
            "max_deliver": -1,
            "max_ack_pending": -1,
            "filter_subject": self._names.subject(queue),
        }
        await self._ensure("CONSUMER", f"{stream}.{token}", need, stream)

    async def _ensure(
        self, kind: Literal["STREAM", "CONSUMER"], path: str, need: dict[str, Any], stream: str | None = None
    ) -> None:
        def body(config: dict[str, Any]) -> dict[str, Any]:
            return config if stream is None else {"stream_name": stream, "config": config}

        answer = await self._api(f"{kind}.INFO.{path}")
        error = answer.get("error")
        if error is None:
            there = cast("dict[str, Any]", answer["config"])
            if all(there.get(key) == value for key, value in need.items()):
                return
            verb = "UPDATE" if kind == "STREAM" else "CREATE"
            error = (await self._api(f"{kind}.{verb}.{path}", body({**there, **need}))).get("error")
        elif error.get("code") == 404:
            error = (await self._api(f"{kind}.CREATE.{path}", body(need))).get("error")
        if error is not None:
            raise Refused(
                f"JetStream refuses {kind.lower()} {path}: {error.get('description', error)}; "
                "provide what is missing, or remove what conflicts with it"
            )

    async def _api(self, verb: str, body: object = None) -> dict[str, Any]:
        payload = b"" if body is None else msgspec.json.encode(body)
        return cast("dict[str, Any]", msgspec.json.decode(await self._connection.request(f"$JS.API.{verb}", payload)))
