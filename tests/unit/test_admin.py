"""What operators see and do, on every store: `Admin` and `explain`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from conformance.factories import World, bring, claim, claim_one, draft, finish, put, running, start
from tenure.core.lifecycle import GUARD, Completed, Crashed, Failed, Snoozed, State
from tenure.errors import UnknownJob
from tenure.events import UNKNOWN_TASK
from tenure.maintenance.orders import Order, give, record_stop
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.operations.explain import Explanation
from tenure.operations.jobs import Verb
from tenure.ports import Filter, Progress, Ring, Store


class Bell(PollNotifier):
    """Remembers its rings."""

    def __init__(self) -> None:
        super().__init__()
        self.rung: list[Ring] = []

    def announce(self, rings: Iterable[Ring]) -> None:
        self.rung += rings


@pytest.fixture
def bell() -> Bell:
    return Bell()


@pytest.fixture
def admin(store: Store, bell: Bell) -> Admin:
    return Admin(store, bell)


def why(admin: Admin, job_id: str) -> Explanation:
    return admin.jobs.explain(job_id)


def all_of(found: Explanation) -> str:
    return " | ".join((found.verdict, *found.reasons, found.what_to_do))


# ── Reading ──


def test_rates_are_the_difference_of_two_readings(world: World, store: Store, admin: Admin) -> None:
    bring(store, State.COMPLETED)
    first = admin.overview()

    for _ in range(4):
        bring(store, State.COMPLETED)
    world.advance(2)
    second = admin.overview(first)

    assert first.rates == {}
    assert second.counts[State.COMPLETED] == 5
    assert second.rates[State.COMPLETED] == 2.0
    assert second.rates[State.DEAD] == 0.0


def test_deleting_is_no_negative_work(world: World, store: Store, admin: Admin) -> None:
    lease = bring(store, State.COMPLETED)
    first = admin.overview()

    store.delete([lease.job_id])
    world.advance(1)

    assert admin.overview(first).rates[State.COMPLETED] == 0.0


def test_secrets_are_starred_wherever_a_job_is_shown(store: Store, admin: Admin) -> None:
    job_id = put(store, payload='{"user": "ada", "cards": [{"pin": {"$secret": 1234}}]}')

    shown = [
        admin.jobs.get(job_id),
        admin.jobs.show(job_id).job,
        admin.jobs.explain(job_id).job,
        *admin.jobs.search(Filter()).jobs,
    ]

    assert {job.payload for job in shown} == {'{"user":"ada","cards":[{"pin":"***"}]}'}


def test_a_job_that_is_not_there_is_said_with_the_stores_place(store: Store, admin: Admin) -> None:
    with pytest.raises(UnknownJob, match=r"no job nowhere in .*: never enqueued"):
        admin.jobs.get("nowhere")


# ── Acting ──


def test_each_verb_says_what_became_of_each_job(store: Store, admin: Admin) -> None:
    dead = bring(store, State.DEAD, unique="k").job_id
    here = running(store).job_id
    queued, scheduled = put(store), put(store, delay=60)
    put(store, unique="k")

    def act(verb: Verb, job_id: str) -> tuple[bool, str]:
        ((acted,),) = admin.jobs.act(verb, [admin.jobs.ref(job_id)])
        return acted.landed, acted.says

    assert act("promote", scheduled) == (True, "queued")
    assert act("cancel", queued) == (True, "cancelled")
    assert act("cancel", here)[0]
    assert "asked to stop" in act("cancel", here)[1]
    landed, says = act("replay", dead)
    assert not landed
    assert "key" in says
    landed, says = act("delete", here)
    assert not landed
    assert "processing" in says
    assert act("delete", queued) == (True, "deleted")


def test_the_bell_rings_only_for_queues_where_something_changed(store: Store, admin: Admin, bell: Bell) -> None:
    scheduled = put(store, delay=60, queue="slow")
    ended = bring(store, State.COMPLETED).job_id

    list(admin.jobs.act("promote", [admin.jobs.ref(scheduled), admin.jobs.ref(ended)]))
    list(admin.jobs.act("replay", [admin.jobs.ref(ended)]))
    list(admin.jobs.act("cancel", [admin.jobs.ref(scheduled)]))
    list(admin.jobs.act("delete", [admin.jobs.ref(scheduled)]))

    assert bell.rung == [
        Ring("queued", "slow", (scheduled,)),
        Ring("queued", "default", (ended,)),
        Ring("cancel", "slow", (scheduled,)),
    ]


def test_a_filter_names_exactly_the_jobs_that_were_counted(store: Store, admin: Admin) -> None:
    store.enqueue([draft(task="mail") for _ in range(1234)])
    put(store, task="other")

    refs = admin.jobs.refs(Filter(task="mail"))
    put(store, task="mail")
    acted = [one for batch in admin.jobs.act("cancel", refs, "spam") for one in batch]

    assert len(refs) == len(acted) == 1234
    assert store.counts()[State.QUEUED] == 2


def test_a_reference_can_insist_on_a_state(store: Store, admin: Admin) -> None:
    job_id = put(store)

    with pytest.raises(UnknownJob, match="is queued, not dead"):
        admin.jobs.ref(job_id, frozenset({State.DEAD}))


def test_a_paused_queue_gives_nothing_until_it_is_resumed(store: Store, admin: Admin, bell: Bell) -> None:
    worker = start(store)
    put(store)

    assert admin.queues.pause("default")
    assert not admin.queues.pause("default")
    assert store.claim(worker, {"default": 1}, 1) == []

    assert admin.queues.resume("default")
    assert bell.rung == [Ring("queued", "default")]
    assert len(store.claim(worker, {"default": 1}, 1)) == 1


# ── Explaining ──


def test_explain_tells_that_nobody_ever_opened_this_store(store: Store, admin: Admin) -> None:
    found = why(admin, put(store))

    assert "no worker has opened" in found.verdict
    assert store.url in found.verdict
    assert "tenure worker" in found.what_to_do


def test_explain_tells_who_was_the_last_worker(world: World, store: Store, admin: Admin) -> None:
    worker = start(store)
    world.advance(40)

    assert f"the last one, {worker}, was seen 40s ago" in why(admin, put(store)).verdict


def test_explain_tells_a_paused_queue(store: Store, admin: Admin) -> None:
    start(store)
    admin.queues.pause("default")

    found = why(admin, put(store))

    assert "paused since" in found.verdict
    assert found.what_to_do == "resume it: tenure queues resume default"


def test_explain_tells_a_queue_nobody_serves(store: Store, admin: Admin) -> None:
    start(store, queues=("default", "mail"))

    found = why(admin, put(store, queue="slow"))

    assert "no live worker serves queue slow; they serve default, mail" in found.verdict
    assert found.what_to_do == "serve it: tenure worker -q slow"


def test_explain_tells_a_task_nobody_knows(store: Store, admin: Admin) -> None:
    start(store, tasks=("work",))

    assert "no live worker knows the task gone; they know work" in why(admin, put(store, task="gone")).verdict


def test_explain_tells_full_slots_and_how_many_are_ahead(store: Store, admin: Admin) -> None:
    worker = start(store, slots=1)
    running(store, worker)
    put(store)
    put(store)

    found = why(admin, put(store))

    assert f"all slots are busy: {worker} 1 of 1" in found.verdict
    assert "at most 2 other jobs" in all_of(found)


def test_explain_tells_a_job_that_is_about_to_start(store: Store, admin: Admin) -> None:
    start(store)

    found = why(admin, put(store))

    assert "about to start" in found.verdict
    assert found.what_to_do == ""


def test_explain_says_that_a_share_of_slots_may_be_used_up(store: Store, admin: Admin) -> None:
    worker = start(store, queues=("default", "imports"), slots=4)
    put(store, queue="imports")
    job_id = put(store, queue="imports")
    free = "it is about to start: a worker that knows it has a free slot"
    assert why(admin, job_id).verdict == free

    claim(store, worker, queue="imports")
    share = ", unless the share of slots that queue imports has there (-q imports=N) is used up"
    assert why(admin, job_id).verdict == free + share
    assert why(admin, put(store)).verdict == free

    start(store, queues=("imports",))
    assert why(admin, job_id).verdict == free


def test_explain_does_not_count_on_a_worker_that_drains(store: Store, admin: Admin) -> None:
    first = start(store)
    record_stop(store, Order("drain", first, "maria", store.now()))
    job_id = put(store)

    found = why(admin, job_id)
    assert found.verdict == f"the only worker that could take it drains: {first} (drain ordered by maria)"
    assert found.what_to_do == "start another: tenure worker"
    assert "when it is due: the only worker" in all_of(why(admin, put(store, delay=60)))

    give(store, Order("restart", second := start(store, slots=1), "paul", store.now()))
    found = why(admin, job_id)
    assert found.verdict.startswith("all workers that could take it drain: ")
    assert f"{second} (restart ordered by paul, not begun yet)" in found.verdict
    assert found.what_to_do == "wait for the worker that its supervisor starts next"

    claim_one(store, third := start(store, slots=1))
    job_id = put(store)
    assert why(admin, job_id).verdict == f"all slots are busy: {third} 1 of 1"
    start(store)
    assert "about to start" in why(admin, job_id).verdict


def test_explain_counts_no_guard_and_no_courier_among_the_workers(world: World, store: Store, admin: Admin) -> None:
    start(store, runner="guard", queues=(GUARD,), tasks=("backup",))
    courier = start(store, runner="embedded", queues=("tenure.alerts",), tasks=("tenure.alert",))

    found = why(admin, put(store))

    assert "no worker has opened" in found.verdict
    assert found.what_to_do == "start a worker there: tenure worker"
    assert "about to start" in why(admin, put(store, task="tenure.alert", queue="tenure.alerts")).verdict

    last = start(store, queues=("mail",))
    assert "they serve mail" in why(admin, put(store)).verdict
    world.advance(40)
    start(store, runner="guard", queues=(GUARD,), tasks=("backup",))
    assert f"the last one, {last}, was seen 40s ago" in why(admin, put(store)).verdict
    assert f"the last one, {courier}, " not in all_of(why(admin, put(store)))


def test_explain_knows_the_owner_of_a_guards_run(store: Store, admin: Admin) -> None:
    owner = start(store, runner="guard", queues=(GUARD,), tasks=("work",))
    lease = running(store, owner)

    assert f"it is running: attempt 1 on {owner}" in why(admin, lease.job_id).verdict


def test_explain_tells_a_job_that_must_run_alone(store: Store, admin: Admin) -> None:
    lease = running(store)
    finish(store, lease, Crashed("killed", process_died=True, evidence={"signal": "SIGKILL"}))

    found = why(admin, lease.job_id)

    assert "must run alone, since its process died once, on a one-slot worker" in found.verdict
    assert "signal SIGKILL" in all_of(found)


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (
            Failed("OSError: no route\n\n  File", retry_in=90),
            ("after failure 1 of 10", "due in 1m30s", "OSError: no route"),
        ),
        (Snoozed(90, "market closed"), ("it snoozed itself", "due in 1m30s", "market closed")),
    ],
)
def test_explain_tells_why_a_job_waits_for_its_time(
    store: Store, admin: Admin, outcome: Failed | Snoozed, words: tuple[str, ...]
) -> None:
    lease = running(store)
    finish(store, lease, outcome)

    found = why(admin, lease.job_id)

    assert all(word in all_of(found) for word in words), found
    assert found.what_to_do == f"run it now: tenure jobs promote {lease.job_id}"


def test_explain_tells_a_task_that_the_last_worker_did_not_know(store: Store, admin: Admin) -> None:
    lease = running(store, start(store, tasks=("other",)))
    finish(store, lease, Snoozed(90, f"{UNKNOWN_TASK} 'work'"))

    found = why(admin, lease.job_id)

    assert found.verdict.startswith("no live worker knows its task work: it is tried again in 1m30s, at ")
    assert found.what_to_do == "deploy the code that has it, or give the renamed task aliases=[…]"

    start(store, tasks=("work",))
    found = why(admin, lease.job_id)
    assert found.verdict.startswith("the last worker that claimed it does not know its task work: it is tried again in")
    assert found.what_to_do == f"a live worker knows it; to try it now: tenure jobs promote {lease.job_id}"


def test_explain_tells_a_delay_asked_for_at_enqueue(store: Store, admin: Admin) -> None:
    start(store)

    found = why(admin, put(store, delay=60))

    assert "enqueued for later: due in 1m" in found.verdict
    assert found.reasons == ()


@pytest.mark.parametrize("ended", [State.DEAD, State.COMPLETED, State.CANCELLED])
def test_explain_tells_that_a_replay_is_due_later(store: Store, admin: Admin, ended: State) -> None:
    job_id = bring(store, ended).job_id
    store.replay([job_id], delays={job_id: 90.0})

    assert "replayed, to run when its turn comes: due in 1m30s" in why(admin, job_id).verdict


def test_explain_tells_an_expired_job(world: World, store: Store, admin: Admin) -> None:
    start(store)
    job_id = put(store, expires=10)
    world.advance(11)

    assert "it expired at" in why(admin, job_id).verdict


def test_explain_tells_who_runs_it_and_how_far_it_is(world: World, store: Store, admin: Admin) -> None:
    lease = running(store, stale_after=300.0, timeout=3600.0)
    store.progress([Progress(lease=lease, fraction=0.25, stage="clone", message="3 of 12")])
    world.advance(7)

    found = why(admin, lease.job_id)

    assert f"it is running: attempt 1 on {lease.worker_id}" in found.verdict
    assert "7s ago (it counts as hung after 5m)" in all_of(found)
    assert "clone · 25% · 3 of 12" in all_of(found)
    assert "it may run for 1h" in all_of(found)


def test_explain_tells_a_cancel_whose_code_still_stops(store: Store, admin: Admin) -> None:
    lease = running(store)
    store.cancel([lease.job_id], "wrong repo")

    found = why(admin, lease.job_id)

    assert "its code is still stopping" in found.verdict
    assert "wrong repo" in all_of(found)


def test_explain_tells_an_owner_that_is_gone(world: World, store: Store, admin: Admin) -> None:
    lease = running(store)
    world.advance(40)

    found = why(admin, lease.job_id)

    assert f"its worker {lease.worker_id} is gone" in found.verdict
    assert found.what_to_do == "start a worker: tenure worker"


def test_explain_tells_how_a_dead_letter_died_and_what_refuses_its_replay(store: Store, admin: Admin) -> None:
    lease = running(store, unique="repo:x")
    finish(store, lease, Failed("ValueError: no", final=True))
    rival = put(store, unique="repo:x")

    found = why(admin, lease.job_id)

    assert "dead letter since" in found.verdict
    assert "failures: 1 of 10" in all_of(found)
    assert "ValueError: no" in all_of(found)
    assert f"its key 'repo:x' is held by {rival} (queued)" in all_of(found)
    assert f"tenure jobs replay {lease.job_id}" in found.what_to_do


def test_explain_tells_a_completed_and_a_cancelled_job(store: Store, admin: Admin) -> None:
    done = running(store)
    finish(store, done, Completed("1"))
    unwanted = put(store)
    store.cancel([unwanted], "not needed")

    assert "it completed" in why(admin, done.job_id).verdict
    assert "it was cancelled" in why(admin, unwanted).verdict
    assert "not needed" in why(admin, unwanted).verdict
