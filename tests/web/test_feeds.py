"""What runs for the pages that somebody watches ends when it is told to, whatever it is doing at that moment."""

from __future__ import annotations

import asyncio
import itertools
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tenure.web import live
from tenure.web.live import Feeds
from tenure.web.pages import Renderer
from tenure.web.site import Site
from tenure.web.threads import ThreadPool

_FEEDS, _ROUNDS = 10, 60


@pytest.fixture
def feeds() -> Feeds:
    site = cast(Site, SimpleNamespace(feeders=ThreadPool("feed", 4, patience=60.0)))
    return Feeds(site, cast(Renderer, None))  # no page is rendered here


async def _watch(feeds: Feeds, key: Any) -> None:
    numbers = itertools.count()
    async for _ in feeds.watch(key, lambda: {"number": str(next(numbers))}, every=0.0):
        pass


def test_streams_and_looks_end_at_the_first_word_also_when_news_come_with_it(feeds: Feeds) -> None:
    """A swallowed cancel once left a look running for ever, and a dashboard that was told to stop never did."""

    async def look_and_leave() -> set[asyncio.Task[Any]]:
        ours = asyncio.current_task()
        streams = [asyncio.create_task(_watch(feeds, number)) for number in range(_FEEDS)]
        while len(told := asyncio.all_tasks() - {ours}) < 2 * _FEEDS:  # each stream has a look
            await asyncio.sleep(random.uniform(0.001, 0.01))
        for stream in streams:
            stream.cancel()
        return (await asyncio.wait(told, timeout=20.0))[1]

    for _ in range(_ROUNDS):
        left = asyncio.run(look_and_leave())
        assert not left, f"{len(left)} went on"


def test_one_slow_look_delays_no_page_and_a_slow_page_takes_its_share(
    feeds: Feeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    took = [0.01, 2.0, 0.01, 2.0, 2.0]  # seconds of processor time
    clock = iter([at for each in took for at in (0.0, each)])
    monkeypatch.setattr(live, "thread_time", lambda: next(clock))
    pauses: list[float] = []

    async def play() -> None:
        told = asyncio.Event()

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == len(took):
                told.set()
                await asyncio.Event().wait()

        monkeypatch.setattr(asyncio, "sleep", sleep)
        watching = asyncio.create_task(_watch(feeds, "page"))
        await asyncio.wait_for(told.wait(), 20.0)
        watching.cancel()

    asyncio.run(play())

    assert pauses == [0.0, 0.25, 0.25, 0.25, 50.0]
