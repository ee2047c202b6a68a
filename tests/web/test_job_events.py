"""The events of one job, over the whole dashboard: what a browser that watches a job receives, on every store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from conformance.factories import bring, finish, put, running, start
from tenure.config import Settings, load
from tenure.core.clock import Clock
from tenure.core.lifecycle import ENDED, Cancelled, Completed, Failed, Outcome, State
from tenure.errors import StoreAway
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.ports import Progress, Store
from tenure.stores.memory import MemoryStore
from tenure.tasks import watch as watches
from tenure.web.dashboard import create
from tenure.web.job_events import JobFeeds, JobStream
from tenure.web.live import Places
from tenure.web.site import Site
from web.test_api import NOWHERE, TOKENS, Api, scope_of

pytestmark = pytest.mark.usefixtures("unhurried")


def in_memory(_: Path) -> Callable[[Clock], Store]:
    return MemoryStore


#: For tests of what is the same on every store.
once = pytest.mark.parametrize("new_world", [in_memory], indirect=True, ids=["memory"])


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(code={"tokens": ",".join(TOKENS.values())}, environ={}, folder=tmp_path)


@pytest.fixture
def api(store: Store, settings: Settings) -> Api:
    return Api(create(lambda: Admin(store, PollNotifier(), settings), settings))


@dataclass
class Event:
    name: str = "message"
    id: str = ""
    data: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class Listening:
    """An answer as it comes: its status, its events and comments, and whether it has ended."""

    status: int = 0
    body: bytes = b""
    parts: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue[bytes | None])
    task: asyncio.Task[None] | None = None

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif part := message.get("body", b""):
            self.parts.put_nowait(part)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.parts.put_nowait(None)

    async def part(self) -> bytes | None:
        """The next part of the answer; None: there is no further one."""
        return await asyncio.wait_for(self.parts.get(), 60)

    async def event(self) -> Event | None:
        """The next event; None: the stream has ended."""
        while (part := await self.part()) is not None:
            lines = dict(
                line.split(": ", 1) for line in part.decode().splitlines() if not line.startswith(":") and line
            )
            if "data" in lines:
                return Event(lines.get("event", "message"), lines.get("id", ""), json.loads(lines["data"]))
        return None


@asynccontextmanager
async def listening(api: Api, job_id: str, **headers: str) -> AsyncGenerator[Listening]:
    answer = Listening()
    scope = scope_of(api, f"/api/v1/jobs/{job_id}/events", **headers)
    task = asyncio.create_task(api.app(scope, asyncio.Event().wait, answer.send))
    try:
        yield answer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def all_of(api: Api, job_id: str, **headers: str) -> tuple[int, list[Event], bytes]:
    """A whole answer."""
    async with listening(api, job_id, **headers) as answer:
        events, body = list[Event](), b""
        while (part := await answer.part()) is not None:
            body += part
            lines = dict(line.split(": ", 1) for line in part.decode().splitlines() if ": " in line)
            if part.startswith((b"id: ", b"event: ")):
                events.append(Event(lines.get("event", "message"), lines.get("id", ""), json.loads(lines["data"])))
        return answer.status, events, body


async def here(call: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.to_thread(call, *args)


# ── What is told ──


def test_each_change_is_an_event_until_the_job_has_ended(api: Api, store: Store) -> None:
    lease = running(store)

    async def watch() -> list[Event | None]:
        async with listening(api, lease.job_id) as answer:
            told = [await answer.event()]
            await here(store.progress, [Progress(lease=lease, fraction=0.25, stage="load", message="7 of 28")])
            told.append(await answer.event())
            await here(store.progress, [Progress(lease=lease, fraction=0.5, message="14 of 28\n")])
            told.append(await answer.event())
            await here(finish, store, lease, Completed('"done"'))
            return [*told, await answer.event(), await answer.event(), await answer.event()]

    *told, end, over = asyncio.run(watch())
    assert over is None
    assert end == Event("end", "", {"detail": f"job {lease.job_id} has ended: completed"})
    facts = [(each.name, each.data["state"], each.data["progress"], each.data["message"]) for each in told if each]
    assert facts == [
        ("message", "processing", None, None),
        ("message", "processing", 0.25, "7 of 28"),
        ("message", "processing", 0.5, "14 of 28\n"),
        ("message", "completed", 0.5, "14 of 28\n"),
    ]
    assert len({each.id for each in told if each}) == 4


@once
@pytest.mark.parametrize("state", sorted(ENDED))
def test_an_ended_job_is_told_and_the_stream_ends(state: State, api: Api, store: Store) -> None:
    job_id = bring(store, state).job_id

    status, (job, end), _ = asyncio.run(all_of(api, job_id))

    assert (status, job.data["state"], end.name) == (200, state, "end")


def test_an_event_says_the_same_as_the_job(api: Api, store: Store) -> None:
    worker = start(store)
    outcomes: list[Outcome] = [Completed('{"sum": 7}'), Failed("no", final=True), Cancelled("enough")]
    leases = [running(store, worker) for _ in outcomes]
    for lease, outcome in zip(leases, outcomes, strict=True):
        finish(store, lease, outcome)

    for lease in leases:
        told = asyncio.run(all_of(api, lease.job_id))[1][0].data
        job = api.get(f"/api/v1/jobs/{lease.job_id}")
        assert told == {name: job[name] for name in told}


@once
def test_who_may_not_see_payloads_gets_no_result_and_secrets_are_starred(api: Api, store: Store) -> None:
    lease = running(store)
    finish(store, lease, Completed('{"sum": 7, "password": "t0p"}'))

    seen = {who: asyncio.run(all_of(api.by(who), lease.job_id))[1][0].data for who in ("eve", "bob")}

    assert (seen["eve"]["payloads"], seen["eve"]["result"]) == ("shown", {"sum": 7, "password": "***"})
    assert (seen["bob"]["payloads"], seen["bob"]["result"]) == ("hidden", None)


@once
def test_a_job_that_is_not_there_is_a_problem(api: Api) -> None:
    status, _, body = asyncio.run(all_of(api, NOWHERE))
    assert (status, json.loads(body)["type"]) == (404, "/problems/no-such-job")
    status, _, body = asyncio.run(all_of(api, "seven"))
    assert (status, json.loads(body)["type"]) == (422, "/problems/invalid-request")


def test_a_job_that_is_deleted_meanwhile_ends_the_stream_with_a_sentence(api: Api, store: Store) -> None:
    job_id = put(store)

    async def watch() -> list[Event | None]:
        async with listening(api, job_id) as answer:
            first = await answer.event()
            await here(store.delete, [job_id])
            return [first, await answer.event(), await answer.event()]

    first, gone, over = asyncio.run(watch())
    assert first is not None
    assert gone is not None
    assert (gone.name, over) == ("end", None)
    assert "is gone" in gone.data["detail"]


# ── Coming back ──


@once
def test_who_comes_back_is_told_only_what_is_new(api: Api, store: Store) -> None:
    lease = running(store)

    async def watch() -> tuple[Event | None, Event | None]:
        async with listening(api, lease.job_id) as answer:
            first = await answer.event()
        assert first is not None
        async with listening(api, lease.job_id, **{"last-event-id": first.id}) as again:
            assert await again.part() == b"retry: 1000\n\n"
            await here(finish, store, lease, Completed("1"))
            return first, await again.event()

    first, second = asyncio.run(watch())
    assert first is not None
    assert second is not None
    assert (first.data["state"], second.data["state"]) == ("processing", "completed")
    # A browser reconnects after each end, unless the answer is a 204.
    status, events, body = asyncio.run(all_of(api, lease.job_id, **{"last-event-id": second.id}))
    assert (status, events, body) == (204, [], b"")
    assert asyncio.run(all_of(api, lease.job_id, **{"last-event-id": "another"}))[0] == 200


@once
def test_a_silent_stream_is_kept_alive_and_ends_after_a_while(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.web.live.STILL_THERE", 0.05)
    monkeypatch.setattr("tenure.web.live.LIFE", 0.3)
    status, (first,), body = asyncio.run(all_of(api, put(store)))
    assert (status, first.data["state"]) == (200, "queued")
    assert b": still there\n\n" in body


@once
def test_a_store_that_goes_away_is_told_and_the_stream_goes_on(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both for a client that watches already and for one that comes meanwhile."""
    monkeypatch.setattr(watches, "AWAY_SECONDS", 0.0)
    lease, looks, away = running(store), store.updates, False

    def updates(*args: Any, **options: Any) -> Any:
        if away:
            raise StoreAway("nobody listens")
        return looks(*args, **options)

    monkeypatch.setattr(store, "updates", updates)
    api = Api(create(lambda: Admin(store, PollNotifier(), settings), settings))

    async def watch() -> list[Event | None]:
        nonlocal away
        async with listening(api, lease.job_id) as answer:
            first = await answer.event()
            away = True
            gone = await answer.event()
            async with listening(api, lease.job_id) as other:
                late = await other.event()
                away = False
                back, back_too = await answer.event(), await other.event()
                return [first, gone, late, back, back_too]

    first, *said, back, back_too = asyncio.run(watch())
    assert said == [Event("away", "", {"detail": "nobody listens"})] * 2
    assert first == back == back_too


# ── Many ──


@once
def test_a_thousand_who_watch_one_job_are_one_read(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many come, and however many there are: the reads are those of one."""
    monkeypatch.setattr("tenure.web.live.MOST_WATCHERS", 1000)
    lease, looks, asked = running(store), store.updates, list[int]()

    def updates(seen: Any, **options: Any) -> Any:
        asked.append(len(seen))
        return looks(seen, **options)

    monkeypatch.setattr(store, "updates", updates)
    site = Site(lambda: Admin(store, PollNotifier(), settings), settings)

    async def watch() -> float:
        feeds, answers, began = JobFeeds(site, Places()), [Listening() for _ in range(1000)], monotonic()

        async def told() -> set[float | None]:
            events = [await each.event() for each in answers]
            assert None not in events
            return {each.data["progress"] for each in events if each}

        for each in answers:
            stream = JobStream(feeds, lease.job_id, True, "")
            each.task = asyncio.create_task(stream({"type": "http"}, asyncio.Event().wait, each.send))
        assert await told() == {None}
        await here(store.progress, [Progress(lease=lease, fraction=0.5)])
        assert await told() == {0.5}
        await here(finish, store, lease, Completed("1"))
        assert await told() == {0.5}
        for each in answers:
            assert [event and event.name for event in [await each.event(), await each.event()]] == ["end", None]
        await asyncio.gather(*(each.task for each in answers if each.task))
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert (await asyncio.wait(left, timeout=20))[1] == set() if left else True
        return monotonic() - began

    took = asyncio.run(watch())
    site.close()
    assert set(asked) == {1}
    # One every fifth of a second, and a few soon after another while the job is new.
    assert len(asked) <= 15 + took / watches.LONGEST


@once
def test_streams_of_jobs_and_of_pages_share_their_places(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = put(store)
    monkeypatch.setattr("tenure.web.live.MOST_WATCHERS", 1)

    async def watch() -> list[int]:
        async with listening(api, job_id) as answer:
            await answer.event()
            too_many = (await all_of(api, job_id))[0], (await all_of(api, NOWHERE))[0]
        return [*too_many, (await all_of(api, NOWHERE))[0]]

    assert asyncio.run(watch()) == [503, 503, 404]


@once
def test_streams_take_no_seat_of_the_calls_that_wait_for_the_store(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = put(store)
    monkeypatch.setattr("tenure.web.security._SEATS", 1)

    async def watch() -> int:
        async with listening(api, job_id) as one, listening(api, job_id) as two, api.client() as client:
            await one.event()
            await two.event()
            return (await client.get(f"/api/v1/jobs/{job_id}")).status_code

    assert asyncio.run(watch()) == 200
