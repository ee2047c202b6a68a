from __future__ import annotations

import pytest

from conformance.factories import World, bring, claim, draft, finish, look, put, race, start
from tenure.core.lifecycle import Failed, Lease, State
from tenure.ports import Answer, Edit, Landed, Progress


def test_of_many_edits_at_once_one_lands_as_a_whole(world: World) -> None:
    stores = [world.store() for _ in range(4)]
    job_id = bring(stores[0], State.DEAD).job_id

    def edit(n: int) -> Answer | None:
        return stores[n].replay([job_id], edits={job_id: Edit(f"[{n}]", f'{{"by": "{n}"}}')})[job_id]

    answers = race(*[lambda n=n: edit(n) for n in range(4)])

    (winner,) = [n for n, answer in enumerate(answers) if answer == Landed(State.QUEUED)]
    view = look(stores[0], job_id)
    assert (view.payload, view.meta) == (f"[{winner}]", {"by": f"{winner}"})


def test_an_edited_job_is_claimed_with_what_it_was_edited_to(world: World) -> None:
    store = world.store()
    job_id = bring(store, State.DEAD, meta='{"trace": "1"}', timeout=7.25, stale_after=3.5, priority=5).job_id
    before = look(store, job_id)

    store.replay([job_id], edits={job_id: Edit('{"n": "ü/\\\\"}', '{"trace": "é\\""}')})

    (claimed,) = claim(store, start(store))
    assert (claimed.id, claimed.payload, claimed.meta) == (job_id, '{"n": "ü/\\\\"}', '{"trace": "é\\""}')
    after = look(store, job_id)
    kept = ("task", "queue", "priority", "timeout", "stale_after", "max_failures", "max_crashes", "unique", "isolated")
    assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]


def test_reports_with_logs_from_many_sides_meet_without_a_deadlock(world: World) -> None:
    stores = [world.store() for _ in range(4)]
    worker = start(stores[0])
    stores[0].enqueue([draft() for _ in range(30)])
    leases = [Lease(each.id, each.attempt, worker) for each in claim(stores[0], worker, 30)]

    def report(n: int) -> list[bool]:
        mine = leases if n % 2 else leases[::-1]
        return [
            landed for _ in range(5) for landed in stores[n].progress([Progress(lease=x, log=f"{n}") for x in mine])
        ]

    assert all(landed for answers in race(*[lambda n=n: report(n) for n in range(4)]) for landed in answers)

    assert all(stores[0].logs(lease.job_id)[1] in ("0", "1", "2", "3") for lease in leases)


def test_many_who_say_what_was_refused_leave_one_word(world: World) -> None:
    stores = [world.store() for _ in range(4)]
    lease = bring(stores[0], State.DEAD)

    race(*[lambda n=n, store=store: store.refused([(lease, f"no {n}")]) for n, store in enumerate(stores)])

    (attempt,) = stores[0].attempts(lease.job_id)
    said = attempt.evidence["refused"]
    assert said in {f"no {n}" for n in range(4)}
    stores[0].refused([(lease, "later"), (lease, "still later")])
    assert stores[0].attempts(lease.job_id) == [attempt]


@pytest.mark.parametrize("way", ["delete", "prune"])
def test_logs_of_a_job_that_is_gone_do_not_come_back_with_its_id(way: str, world: World) -> None:
    store = world.store()
    job_id, worker = put(store), start(store)
    (claimed,) = claim(store, worker)
    lease = Lease(job_id, claimed.attempt, worker)
    assert store.progress([Progress(lease=lease, log="old")]) == [True]
    assert finish(store, lease, Failed("no", final=True)) is State.DEAD
    world.advance(10)
    if way == "delete":
        store.delete([job_id])
    else:
        assert store.prune(keep=5, keep_dead=5) == 1

    put(store, id=job_id)

    assert (store.logs(job_id), store.attempts(job_id)) == ({}, [])
