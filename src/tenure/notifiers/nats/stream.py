"""The namespace's stream on the server, and a consumer for each queue that is asked for: made and kept as needed."""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec

from tenure.notifiers.nats.address import Names
from tenure.notifiers.nats.connection import Connection, Refused


class Stream:
    """What is missing is made; what differs is changed, and what an operator has set beside that is left alone."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection, self._names = connection, names
        self._consumers: set[str] = set()  # queues whose consumer is known to be there, on this connection
        self.problems: dict[str, str] = {}  #: queue → why permits can't be asked for

    async def ensure(self) -> None:
        """Raises Refused."""
        name = self._names.stream
        need = {"name": name, "subjects": [f"{self._names.queues}*"], "retention": "workqueue", "storage": "file"}
        await self._ensure("STREAM", name, need)

    async def ensure_consumer(self, queue: str) -> None:
        """Have the stream and the queue's consumer there, if they are not known to be. Raises Refused."""
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
                "give it what is missing, or remove what is in its way"
            )

    async def _api(self, verb: str, body: object = None) -> dict[str, Any]:
        payload = b"" if body is None else msgspec.json.encode(body)
        return cast("dict[str, Any]", msgspec.json.decode(await self._connection.request(f"$JS.API.{verb}", payload)))
