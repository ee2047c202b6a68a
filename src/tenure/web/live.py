"""Live pages: an open page receives its blocks again as they change, over one event stream.

One task per open page renders it once for all viewers with the same rights, and sends the blocks that changed. A slow
client gets the newest version of each block and skips those in between, so there is no backlog.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator, Hashable, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic, thread_time

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tenure.core.logs import logger
from tenure.errors import StoreAway, TenureError
from tenure.web.access import User
from tenure.web.pages import CSRF, Page, Renderer, View, match
from tenure.web.security import Problem
from tenure.web.site import Site

_log = logger("tenure.web")
MOST_WATCHERS = 500
_SHARE = 25  #: a page that takes 20 ms of processor time is rendered again after half a second
_ALL = 3  #: as `_SHARE`, for all pages together: they take a third of the processor's time at most
STILL_THERE = 15.0  #: seconds without an event after which a comment is sent as a keep-alive
LIFE = 900.0  #: seconds after which a stream ends; the browser reconnects, and its rights are checked again
KEEP_ALIVE = ": still there\n\n"
#: The same for pages: a script sees no comment, and no error where a line was cut without a word.
STILL = "event: still\ndata: {}\n\n"
RETRY = "retry: 1000\n\n"


class Places:
    """The places of the live streams of one dashboard, of all kinds: `MOST_WATCHERS`."""

    def __init__(self) -> None:
        self.taken = 0

    @contextmanager
    def one(self) -> Generator[None]:
        """A place, held from the start of a response to its end. Raises Problem if all are taken."""
        if self.taken >= MOST_WATCHERS:
            says, later = f"{MOST_WATCHERS} streams are open already", {"Retry-After": "5"}
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "Too many watch", says, later)
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


class EventStream(StreamingResponse):
    """Server-sent events, in one of the places.

    The place is taken when the response begins, in one step with the check: however many requests come at once, no more
    get a place than there are, and a request that ends before its first event leaves none taken.
    """

    def __init__(self, places: Places, events: AsyncGenerator[str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._places = places
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._places.one():
            async with aclosing(self._events):
                await self.respond(scope, receive, send)

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, now that it has its place."""
        await super().__call__(scope, receive, send)


@dataclass(eq=False, slots=True)
class _Watcher:
    news: dict[str, str] = field(default_factory=dict[str, str])  #: the newest version of each block, as JSON
    rung: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, blocks: dict[str, str]) -> None:
        if blocks:
            self.news.update(blocks)
            self.rung.set()


@dataclass(eq=False, slots=True)
class _Feed:
    look: Callable[[], Mapping[str, str]]
    every: float
    watchers: set[_Watcher] = field(default_factory=set[_Watcher])
    blocks: dict[str, str] = field(default_factory=dict[str, str])  #: the blocks that were sent last, as JSON
    task: asyncio.Task[None] | None = None
    flaw: str = ""  #: the last internal error, which is logged once and not at every read


class Feeds:
    def __init__(self, site: Site, renderer: Renderer) -> None:
        self.renderer = renderer
        self._threads = site.feeders
        self._feeds: dict[Hashable, _Feed] = {}
        self.places = Places()

    def page(self, page: Page, view: View, root: str, csrf: str) -> EventStream:
        """The page's blocks as they change, until the browser disconnects."""
        key = (view.path, tuple(view.all.multi_items()), root, view.user.role, view.user.payloads)

        def look() -> dict[str, str]:
            return {name: json.dumps(html) for name, html in self.renderer.blocks(page, view, root).items()}

        return EventStream(self.places, self.watch(key, look, page.every, csrf, still=STILL))

    def stream(self, key: Hashable, look: Callable[[], Mapping[str, str]], every: float) -> EventStream:
        """The response with the events of `watch`."""
        return EventStream(self.places, self.watch(key, look, every))

    async def watch(
        self,
        key: Hashable,
        look: Callable[[], Mapping[str, str]],
        every: float,
        csrf: str = "",
        *,
        still: str = KEEP_ALIVE,
    ) -> AsyncGenerator[str]:
        """Events with the changed values of `look`, as JSON by name. Watchers with the same key share its calls."""
        watcher, ends = _Watcher(), monotonic() + LIFE
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = _Feed(look, every)
            feed.task = asyncio.create_task(self._run(key, feed))
        feed.watchers.add(watcher)
        watcher.tell(feed.blocks)
        try:
            yield RETRY
            while monotonic() < ends:
                try:
                    async with asyncio.timeout(STILL_THERE):
                        await watcher.rung.wait()
                except TimeoutError:
                    yield still
                    continue
                watcher.rung.clear()
                news, watcher.news = watcher.news, {}
                told = ",".join(f"{json.dumps(name)}:{text}" for name, text in news.items())
                yield f"data: {{{told}}}\n\n".replace(CSRF, csrf)
        finally:
            feed.watchers.discard(watcher)
            if not feed.watchers and feed.task is not None:
                feed.task.cancel()
                self._feeds.pop(key, None)

    async def _run(self, key: Hashable, feed: _Feed) -> None:
        took = 0.0
        while True:
            before, took = took, 0.0
            try:
                blocks, took = await self._threads.run(_timed, feed.look)
                blocks["away"] = '""'
            except StoreAway as error:
                blocks = {"away": json.dumps(str(error))}
            except (Problem, TenureError) as error:  # e.g. the job was deleted
                blocks = {"gone": json.dumps(str(error))}
            except Exception as error:  # the next one may succeed; the watchers must see that this one failed
                if repr(error) != feed.flaw:
                    _log.exception("rendering for the live stream %s failed", key)
                feed.flaw = repr(error)
                blocks = {"away": json.dumps("this page can't be shown: see the log of the dashboard")}
            changed = {name: text for name, text in blocks.items() if feed.blocks.get(name) != text}
            feed.blocks |= changed
            for watcher in feed.watchers:
                watcher.tell(changed)
            usual = min(took, before)  # a single slow look, such as a count that the memo then keeps, slows no page
            await asyncio.sleep(max(feed.every, usual * max(_SHARE, _ALL * len(self._feeds))))


def _timed(look: Callable[[], Mapping[str, str]]) -> tuple[dict[str, str], float]:
    """The result of `look`, and the CPU time it took: in an embedded store with that of its reads."""
    began = thread_time()
    return dict(look()), thread_time() - began


def add(web: FastAPI, site: Site, renderer: Renderer) -> Feeds:
    feeds = Feeds(site, renderer)

    async def live(request: Request) -> Response:
        user: User = request.state.user
        found = match(renderer.pages, site, user, request.query_params.get("at", ""))
        if found is None:
            raise Problem(HTTPStatus.NOT_FOUND, "No such page", "at: expected the path and query of a page")
        return feeds.page(*found, request.scope["root_path"], request.state.csrf)

    web.state.feeds = feeds
    web.add_route("/live", live, methods=["GET"], include_in_schema=False)
    return feeds
