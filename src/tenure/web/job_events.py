"""The events of one job: its state and progress as they change, until it has ended.

All streams of one job share what one read finds; all jobs that are watched share that read, through the site's `Watch`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2s
from http import HTTPStatus
from time import monotonic

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tenure.core.lifecycle import ENDED
from tenure.core.logs import logger
from tenure.errors import StoreAway, TenureError, UnknownJob
from tenure.ports import Update
from tenure.web import live
from tenure.web.live import EventStream, Places
from tenure.web.models.jobs import JobUpdate
from tenure.web.site import Site

_log = logger("tenure.web")
_FIRST_SECONDS = 8.0  #: how long a stream waits to learn whether there is such a job before it begins all the same
_RETRY_SECONDS = 1.0


@dataclass(eq=False, slots=True)
class _Feed:
    """What is known of a watched job."""

    job_id: str
    watchers: int = 0
    update: Update | None = None
    away: str = ""  #: why the store does not answer
    id: str = ""  #: of the event that tells `update`
    texts: dict[bool, str] = field(default_factory=dict[bool, str])  #: that event, with and without payloads
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def show(self, update: Update | None, away: str = "") -> None:
        """Tell the watchers. None: the last update stands."""
        self.away = away
        if update is not None:
            self.update = update
            self.id = blake2s(update.mark.encode(errors="replace"), digest_size=12).hexdigest()
            self.texts.clear()
        self.changed.set()
        self.changed = asyncio.Event()

    def event(self, payloads: bool) -> str:
        text = self.texts.get(payloads)
        if text is None:
            assert self.update is not None
            body = JobUpdate.of(self.update, payloads).model_dump_json()
            text = self.texts[payloads] = f"id: {self.id}\ndata: {body}\n\n"
        return text

    @property
    def over(self) -> str:
        """Why there will be no further event. Empty: there may be one."""
        if self.update is None:
            return ""
        if self.update.status is None:
            return f"job {self.job_id} is gone: it was deleted, or pruned some time after its end"
        state = self.update.status.state
        return f"job {self.job_id} has ended: {state}" if state in ENDED else ""


class JobFeeds:
    """The watched jobs of one dashboard."""

    def __init__(self, site: Site, places: Places) -> None:
        self._site = site
        self.places = places
        self._feeds: dict[str, _Feed] = {}

    @contextmanager
    def joined(self, job_id: str) -> Generator[_Feed]:
        """The job's feed, which runs while anyone watches."""
        feed = self._feeds.get(job_id)
        if feed is None:
            feed = self._feeds[job_id] = _Feed(job_id)
            feed.task = asyncio.create_task(self._run(feed))
        feed.watchers += 1
        try:
            yield feed
        finally:
            feed.watchers -= 1
            if not feed.watchers and feed.task is not None:
                feed.task.cancel()
                self._feeds.pop(job_id, None)

    async def _run(self, feed: _Feed) -> None:
        while True:
            # After an outage ask as if nothing were known of the job: only then does the answer come at once.
            seen = "" if feed.update is None or feed.away else feed.update.mark
            try:
                feed.show(await self._site.watch.await_(feed.job_id, seen))
            except Exception as error:  # the next try may succeed; the watchers must see that this one failed
                away = "the job can't be read: see the log of the dashboard"
                if isinstance(error, TenureError):
                    away = str(error)
                elif not feed.away:
                    _log.exception("watching job %s failed", feed.job_id)
                if away != feed.away:
                    feed.show(None, away)
                await asyncio.sleep(0.0 if isinstance(error, StoreAway) else _RETRY_SECONDS)


class JobStream(EventStream):
    """The response with the events of one job. `seen` is the id of the last event that the client has received."""

    def __init__(self, feeds: JobFeeds, job_id: str, payloads: bool, seen: str) -> None:
        super().__init__(feeds.places, self._told())
        self._feeds = feeds
        self._feed = _Feed(job_id)  #: until it joins the one that is shared
        self._payloads = payloads
        self._seen = seen

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._feeds.joined(self._feed.job_id) as self._feed:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_SECONDS):
                    while self._feed.update is None and not self._feed.away:
                        await self._feed.changed.wait()
            update = self._feed.update
            if update is not None and update.status is None:
                raise UnknownJob(f"{self._feed.over}, or it was never enqueued in this store")
            if self._feed.over and self._feed.id == self._seen:  # a browser reconnects until it is told to stop
                await Response(status_code=HTTPStatus.NO_CONTENT)(scope, receive, send)
                return
            await super().respond(scope, receive, send)

    async def _told(self) -> AsyncGenerator[str]:
        feed, seen, away = self._feed, self._seen, ""
        ends = monotonic() + live.LIFE
        yield live.RETRY
        while monotonic() < ends:
            changed = feed.changed
            if feed.away:
                if feed.away != away:
                    yield _named("away", feed.away)
                away = feed.away
            elif feed.update is not None and (away or feed.id != seen):
                seen, away, over = feed.id, "", feed.over
                if feed.update.status is not None:
                    yield feed.event(self._payloads)
                if over:
                    yield _named("end", over)
                    return
            if changed is not feed.changed:
                continue  # it changed while an event was being sent
            try:
                async with asyncio.timeout(live.STILL_THERE):
                    await changed.wait()
            except TimeoutError:
                yield live.KEEP_ALIVE


def _named(kind: str, detail: str) -> str:
    return f"event: {kind}\ndata: {json.dumps({'detail': detail})}\n\n"
