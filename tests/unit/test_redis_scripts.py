"""What one script is given and answers: the server does nothing else while it runs."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from conformance.factories import claim, draft, start
from servers import shared_valkey
from tenure.core.lifecycle import Completed, Failed, Lease, Released
from tenure.ports import Landed, Progress
from tenure.stores.redis import RedisStore
from tenure.stores.redis.drafts import MOST, MOST_BYTES
from tenure.stores.redis.jobs import MOST_CLAIMED
from tenure.stores.redis.server import Server

MANY = 500
LARGE = 16 * 1024
MIB = 1 << 20
ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Seen(NamedTuple):
    """One run of a script: the jobs that it was given or returned, and the size of the larger of both texts."""

    script: str
    jobs: int
    size: int


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from texts(each)
    elif value is not None:
        yield str(value)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    runs: list[Seen] = []
    call_each = Server.call_each

    def counted(server: Server, name: str, batches: Sequence[Any], values: Callable[[Any], Sequence[Any]]) -> list[Any]:
        answers = call_each(server, name, batches, values)
        for batch, answer in zip(batches, answers, strict=True):
            given, got = list(texts(list(values(batch)))), list(texts(answer))
            jobs = {found for text in given + got for found in ID.findall(text[:200])}
            runs.append(Seen(name, len(jobs), max(sum(map(len, given)), sum(map(len, got)))))
        return answers

    monkeypatch.setattr(Server, "call_each", counted)
    return runs


@pytest.fixture
def store() -> Iterator[RedisStore]:
    store = RedisStore(shared_valkey().url, namespace=f"scripts_{secrets.token_hex(4)}")
    store.open()
    yield store
    store.close()


def owned(store: RedisStore, size: int = 10) -> list[Lease]:
    """The leases of one worker on very many jobs."""
    worker = start(store, slots=MANY)
    store.enqueue([draft(payload=f'"{"x" * size}"') for _ in range(MANY)])
    leases: list[Lease] = []
    while more := claim(store, worker, MANY - len(leases)):
        leases += [Lease(each.id, each.attempt, worker) for each in more]
    assert len(leases) == MANY
    return leases


def finish(store: RedisStore) -> None:
    assert len(store.finish([(lease, Completed(f'"{"x" * LARGE}"')) for lease in owned(store)])) == MANY


def fail(store: RedisStore) -> None:
    answers = store.finish([(lease, Failed("x" * LARGE, retry_in=60.0)) for lease in owned(store)])
    assert all(isinstance(answer, Landed) for answer in answers)


def settle(store: RedisStore) -> None:
    leases = owned(store)
    charged = {lease.job_id: Failed("x" * 2_000) for lease in leases}
    settled = store.settle(leases[0].worker_id, charged, Released())
    assert sorted(each.id for each in settled) == sorted(charged)
    assert store.renew([leases[0].worker_id]) == frozenset()


def beat(store: RedisStore) -> None:
    leases = owned(store, LARGE)
    found = store.owned(leases[0].worker_id)
    assert {each.claimed.id for each in found} == {lease.job_id for lease in leases}
    assert all(len(each.claimed.payload) == LARGE + 2 for each in found)


def report(store: RedisStore) -> None:
    assert all(store.progress([Progress(lease=lease, checkpoint="x" * LARGE) for lease in owned(store)]))


def rescue(store: RedisStore) -> None:
    leases = owned(store)
    store.declare_dead([leases[0].worker_id])
    rescued: list[str] = []
    while more := store.rescue(limit=MANY):
        rescued += [each.id for each in more]
    assert len(rescued) == MANY


def operate(store: RedisStore) -> None:
    ids = [lease.job_id for lease in owned(store)]
    assert len(store.cancel(ids, "x" * 2_000)) == MANY


@pytest.mark.parametrize(
    "work",
    [
        settle,
        *(pytest.param(each, marks=pytest.mark.thorough) for each in (finish, fail, beat, report, rescue, operate)),
    ],
    ids=lambda work: work.__name__,
)
def test_one_script_handles_few_jobs_and_little_text(
    work: Callable[[RedisStore], None], store: RedisStore, seen: list[Seen]
) -> None:
    work(store)

    for each in seen:
        assert each.jobs <= (MOST_CLAIMED if each.script == "claim" else MOST), each
        assert each.size <= MOST_BYTES + 4 * LARGE + 200 * each.jobs, each
