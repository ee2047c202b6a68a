"""Announcing: a ring for every listener, and a message for each job, resent until the stream confirms it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from tenure.notifiers.nats.address import Names
from tenure.notifiers.nats.connection import CALL_SECONDS, FAULTS, Connection, describe, subscribe
from tenure.ports import Ring

MOST_WAITING, MOST_WAITING_WHILE_DOWN = 200_000, 5_000  #: jobs waiting to be announced; any more are found by polling
MOST_UNCONFIRMED = 2_000
MOST_TRIES = 3
RESCUED = "rescued"


class Note(msgspec.Struct, omit_defaults=True):
    """The body of a message: for people, metrics, and the rescue of a redelivered job."""

    job: UUID
    queue: str
    cleared: bool = False
    reason: str = ""


class _Sent(NamedTuple):
    subject: str
    body: bytes
    tries: int
    at: float


class Publisher:
    """Any thread may `post`; everything else is for the connection's loop."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection, self._names = connection, names
        self.posted = asyncio.Event()  #: set on the loop after `post`
        self._lock = threading.Lock()
        self._outbox: deque[Ring] = deque()
        self._waiting = 0  # jobs and rings in the outbox
        self._unconfirmed: dict[str, _Sent] = {}
        self._unpaused = asyncio.Event()
        self._number = 0

    def post(self, rings: Iterable[Ring]) -> None:
        with self._lock:
            most = MOST_WAITING if self._connection.up.is_set() else MOST_WAITING_WHILE_DOWN
            for ring in rings:
                size = len(ring.jobs) + 1
                if self._waiting and self._waiting + size > most:
                    why = self._connection.problem or "too many at once"
                    self._connection.warn("rings are dropped, polling will find the jobs", why)
                    break
                self._waiting += size
                self._outbox.append(ring)

    @property
    def idle(self) -> bool:
        """Whether everything posted is sent and confirmed by the stream."""
        return not self._outbox and not self._unconfirmed

    async def run(self) -> None:
        """Publish posted rings while the connection is up."""
        connection = self._connection
        while True:
            await self.posted.wait()
            await connection.up.wait()
            self.posted.clear()
            while self._outbox and connection.up.is_set():
                ring = self._outbox.popleft()
                try:
                    if ring.kind == "queued":
                        await self._publish_jobs(ring)
                    if connection.client is not None:
                        word = RESCUED if ring.reason else ring.kind
                        await connection.client.publish(self._names.ring, f"{word} {ring.queue}".encode())
                except FAULTS as error:
                    connection.warn("a ring is lost", describe(error))
                with self._lock:
                    self._waiting -= len(ring.jobs) + 1
            if self._outbox:
                self.posted.set()

    async def _publish_jobs(self, ring: Ring) -> None:
        subject = self._names.subject(ring.queue)
        for job in ring.jobs:
            while len(self._unconfirmed) >= MOST_UNCONFIRMED:
                self._unpaused.clear()
                await self._unpaused.wait()
            body = msgspec.json.encode(Note(UUID(job), ring.queue, bool(ring.reason), ring.reason))
            await self._send(_Sent(subject, body, 1, time.monotonic()))

    async def _send(self, sent: _Sent) -> None:
        self._number += 1
        token = str(self._number)
        self._unconfirmed[token] = sent
        client = self._connection.client
        if client is not None:
            with suppress(*FAULTS):  # it stays unconfirmed, and so is sent again
                await client.publish(sent.subject, sent.body, reply=f"{self._connection.inbox}.sent.{token}")

    # ── confirmations ──

    async def subscribe(self, client: Client) -> None:
        """Listen for the stream's confirmations on this new connection."""
        await subscribe(client, f"{self._connection.inbox}.sent.*", self._confirm)

    async def _confirm(self, message: Msg) -> None:
        token = message.subject.rpartition(".")[2]
        if message.headers is not None or b'"error"' in message.data:  # not stored: does the stream still exist?
            self._connection.check.set()
            why = message.data.decode(errors="replace") or "no stream"
            self._connection.warn("JetStream did not store a message", why)
            if token in self._unconfirmed:
                self._unconfirmed[token] = self._unconfirmed[token]._replace(at=0.0)  # resend soon
            return
        self._unconfirmed.pop(token, None)
        self._unpaused.set()

    async def resend_all(self) -> None:
        """On a new connection: confirmations of the old one will not arrive any more."""
        for token in list(self._unconfirmed):
            await self._resend(token)

    async def resend_overdue(self) -> None:
        now = time.monotonic()
        for token, sent in list(self._unconfirmed.items()):
            if now - sent.at > CALL_SECONDS:
                await self._resend(token)

    async def _resend(self, token: str) -> None:
        sent = self._unconfirmed.pop(token, None)
        self._unpaused.set()
        if sent is not None and sent.tries < MOST_TRIES:
            await self._send(sent._replace(tries=sent.tries + 1, at=time.monotonic()))
