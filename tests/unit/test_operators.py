"""What operators do to many jobs and to arguments, and what record is kept of it, on every store."""

from __future__ import annotations

import ast
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tenure
from conformance.factories import World, bring, draft, put, running, start
from tenure import Tenure
from tenure.config import load
from tenure.core.lifecycle import State
from tenure.errors import InvalidArguments, InvalidOption, Refused, UnknownJob
from tenure.maintenance import orders
from tenure.notifiers.poll import PollNotifier
from tenure.operations.access import EDITS
from tenure.operations.admin import Admin
from tenure.operations.audit import Trail
from tenure.operations.queues import health
from tenure.ports import Filter, Ids, Store
from tenure.tasks.arguments import Stars


@pytest.fixture
def admin(store: Store) -> Admin:
    return Admin(store, PollNotifier(), load(environ={}), who="ada")


def trail(admin: Admin) -> list[tuple[str, str, str, str]]:
    return [(each.who, each.action, each.subject, each.outcome) for each in admin.audit().entries]


# ── by a part of its id ──


def test_a_job_is_named_by_its_id_or_by_the_beginning_or_the_end_of_it(store: Store, admin: Admin) -> None:
    one, other = "0199aaaa-0000-7000-8000-00000000beef", "0199aaab-0000-7000-8000-00000000f00d"
    for job_id in (one, other):
        put(store, id=job_id)

    parts = (one, one.upper(), "0000beef", "BEEF", "0199aaaa", " 0199aaaa-0")
    assert {admin.jobs.named(each) for each in parts} == {one}
    assert admin.jobs.named("0199aaab") == other
    gone = "0199aaac-0000-7000-8000-000000000000"
    assert admin.jobs.named(gone) == gone  # the call that uses it says that there is none


def test_a_part_of_an_id_that_names_no_job_or_several_is_refused(
    store: Store, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"0199aaaa-000{n}-7000-8000-0000{n}000beef" for n in range(7)]
    for job_id in ids:
        put(store, id=job_id, task="mail")

    with pytest.raises(UnknownJob, match=r"no job in .* has an id that begins or ends with cafe"):
        admin.jobs.named("cafe")
    with pytest.raises(UnknownJob, match="no job nowhere in "):
        admin.jobs.named("nowhere")
    with pytest.raises(InvalidOption, match="at least 4 characters"):
        admin.jobs.named("eef")
    for part in ("beef", "0199aaaa"):
        with pytest.raises(InvalidOption, match=f"{part} begins or ends those of several jobs") as several:
            admin.jobs.named(part)
        assert f"{ids[6]} (mail, queued), {ids[5]} (mail, queued)" in str(several.value)
        assert str(several.value).endswith(f"{ids[2]} (mail, queued), …")
    begins = put(store, id="5000beef-0000-7000-8000-000000000000")
    with pytest.raises(InvalidOption, match=rf"{begins} \(.*, {ids[5]} \("):  # the other id ends with it
        admin.jobs.named("5000beef")

    monkeypatch.setattr(store, "ids", lambda start="", end="", **_: Ids(() if start else (ids[0],), ids[0]))
    with pytest.raises(InvalidOption, match=r"beef was not compared with all ids within 0 s; write the whole id"):
        admin.jobs.named("beef", seconds=0)


# ── many at once ──


def test_a_bulk_action_takes_what_matches_and_can_be_acted_on(store: Store, admin: Admin) -> None:
    store.enqueue([draft(task="mail", queue="slow", delay=60) for _ in range(1100)])
    others = [put(store, task="mail"), put(store, task="other", delay=60)]

    counted = admin.jobs.count(Filter(task="mail"), "promote")
    done = admin.jobs.act_on_all("promote", Filter(task="mail"))

    assert (counted.jobs, counted.more) == (1100, False)
    assert (done.done, done.refusals, done.cursor) == (1100, 0, None)
    assert store.counts()[State.QUEUED] == 1101
    assert {store.get(each).state for each in others} == {State.QUEUED, State.SCHEDULED}  # type: ignore[union-attr]


def test_a_bulk_action_says_which_jobs_refused_and_why(store: Store, admin: Admin) -> None:
    held, free = bring(store, State.DEAD, unique="k").job_id, bring(store, State.DEAD).job_id
    put(store, unique="k")

    done = admin.jobs.act_on_all("replay", Filter(states=frozenset({State.DEAD})))

    assert (done.done, done.refusals) == (1, 1)
    assert done.refused[0].id == held
    assert "key" in done.refused[0].says
    assert store.get(free).state is State.QUEUED  # type: ignore[union-attr]


def test_a_verb_that_no_asked_state_allows_is_refused_in_words(admin: Admin) -> None:
    with pytest.raises(InvalidOption, match=r"promote: no job that is dead can be; only those that are scheduled"):
        admin.jobs.count(Filter(states=frozenset({State.DEAD})), "promote")


# ── edited arguments ──


def test_an_ended_job_runs_again_with_other_arguments_and_keeps_what_they_were(store: Store, admin: Admin) -> None:
    payload = '{"order":1,"card":{"$secret":"4111"},"note":"x"}'
    job_id = bring(store, State.DEAD, payload=payload, meta='{"tenant":"a"}').job_id

    assert admin.jobs.replay_edited(job_id, {"order": 2}, drop=["note"]).landed

    stored = store.get(job_id)
    assert stored is not None
    assert stored.state is State.QUEUED
    assert json.loads(stored.payload) == {"order": 2, "card": {"$secret": "4111"}}
    detail = admin.jobs.show(job_id)
    (edit,) = detail.edits
    assert (edit.who, json.loads(edit.before)) == ("ada", {"order": 1, "card": "***", "note": "x"})
    assert detail.job.meta == {"tenant": "a"}
    assert EDITS in stored.meta
    assert trail(admin) == [("ada", "jobs.replay", job_id, "queued again")]


def test_edited_arguments_must_fit_their_task(store: Store, admin: Admin) -> None:
    jobs = Tenure("memory:")

    @jobs.task
    def work(order: int) -> None: ...

    lease = bring(store, State.DEAD, payload='{"order":1}')

    with pytest.raises(InvalidArguments, match="order"):
        admin.jobs.replay_edited(lease.job_id, {"order": "two"}, task=work)
    with pytest.raises(InvalidArguments, match="no argument 'count'"):
        admin.jobs.replay_edited(lease.job_id, {}, drop=["count"])
    assert store.get(lease.job_id).state is State.DEAD  # type: ignore[union-attr]
    assert admin.audit().entries == ()


def test_stars_are_no_new_value_of_what_they_hide(store: Store, admin: Admin) -> None:
    """A program may send back what it has read."""
    payload = '{"user":"u***","card":{"$secret":"4111"},"conf":{"api_key":"k1","url":"x"}}'
    job_id = bring(store, State.DEAD, payload=payload).job_id
    shown = json.loads(admin.jobs.get(job_id).payload)

    for name in ("card", "conf"):
        with pytest.raises(
            InvalidArguments, match=rf"\.{name}: it still contains \*\*\*: replace it with the actual value"
        ):
            admin.jobs.replay_edited(job_id, {name: shown[name]})
    assert admin.jobs.replay_edited(job_id, {"user": "v***", "card": "5500"}).landed

    stored = store.get(job_id)
    assert stored is not None
    assert json.loads(stored.payload) == {
        "user": "v***",
        "card": {"$secret": "5500"},
        "conf": {"api_key": "k1", "url": "x"},
    }


def test_a_new_value_that_not_every_store_keeps_is_refused(store: Store, admin: Admin) -> None:
    job_id = bring(store, State.DEAD, payload='{"order":1}').job_id
    with pytest.raises(InvalidArguments, match=r"\.order: it has a NUL character"):
        admin.jobs.replay_edited(job_id, {"order": "a\0"})


def test_a_live_job_is_not_edited(store: Store, admin: Admin) -> None:
    job_id = running(store).job_id

    acted = admin.jobs.replay_edited(job_id, {"order": 2})

    assert not acted.landed
    assert store.get(job_id).payload == "{}"  # type: ignore[union-attr]


# ── secrets ──


def test_what_is_under_a_name_that_sounds_like_a_secret_is_starred() -> None:
    hide = Stars(("password", "api_key")).hide

    assert hide('{"user":"ada","DB_Password":"t0p","deep":[{"api_key":{"id":1}}]}') == (
        '{"user":"ada","DB_Password":"***","deep":[{"api_key":"***"}]}'
    )
    assert hide('{"user":"ada"}') == '{"user":"ada"}'


def test_settings_say_which_names_are_starred(store: Store) -> None:
    job_id = put(store, payload='{"iban":"DE02","token":"t"}', meta='{"iban":"DE02"}')

    found = Admin(store, PollNotifier(), load({"redact": "iban"}, environ={})).jobs.get(job_id)

    assert (found.payload, found.meta) == ('{"iban":"***","token":"t"}', {"iban": "***"})


# ── the audit trail ──


def test_every_action_is_on_record_with_who_and_what_came_of_it(store: Store, admin: Admin) -> None:
    dead, queued = bring(store, State.DEAD).job_id, put(store, task="mail")

    list(admin.jobs.act("replay", [admin.jobs.ref(dead)]))
    admin.by("grace").queues.pause("default")
    admin.queues.pause("default")
    admin.jobs.act_on_all("cancel", Filter(task="mail"), "spam")

    assert trail(admin) == [
        ("ada", "jobs.cancel", "state=processing,queued,scheduled,waiting task=mail", "1 done, 0 refused"),
        ("ada", "queue.pause", "default", "it was already paused"),
        ("grace", "queue.pause", "default", "paused"),
        ("ada", "jobs.replay", dead, "queued again"),
    ]
    assert admin.audit().entries[0].detail == {"why": "spam"}
    assert store.get(queued).state is State.CANCELLED  # type: ignore[union-attr]


def test_it_is_on_record_who_paused_a_queue_and_why_until_it_is_resumed(
    world: World, store: Store, admin: Admin
) -> None:
    admin.queues.pause("reports", "the printer is on fire")
    admin.queues.pause("reports2")
    admin.by("grace").queues.pause("reports", "a second reason")

    found = admin.queues.pauses()
    assert {name: (each.who, each.why) for name, each in found.items()} == {
        "reports": ("ada", "the printer is on fire"),
        "reports2": ("ada", ""),
    }
    (row, _) = health(admin.queues.all(), (), admin.now(), pauses=found)
    assert str(row.pause) == "by ada: the printer is on fire"
    admin.queues.resume("reports")
    assert set(admin.queues.pauses()) == {"reports2"}

    store.pause("reports2", paused=False)  # by a release that keeps no record
    world.advance(120)
    store.pause("reports2", paused=True)
    (row,) = health(admin.queues.all(), (), admin.now(), pauses=admin.queues.pauses())
    assert row.pause is None


def test_an_action_that_fails_is_on_record_too(store: Store) -> None:
    seen = Trail(store)

    with pytest.raises(ZeroDivisionError), seen.recorded("ada", "queue.pause", "default"):
        raise ZeroDivisionError("by hand")
    with pytest.raises(KeyboardInterrupt), seen.recorded("ada", "queue.pause", "default"):
        raise KeyboardInterrupt

    assert [each.outcome for each in seen.entries().entries] == [
        "cut short",
        "failed: by hand",
    ]


def test_the_trail_is_read_page_by_page_and_over_days(world: World, store: Store, admin: Admin) -> None:
    for _ in range(3):
        admin.queues.pause("default")
        admin.queues.resume("default")
        world.advance(timedelta(hours=40).total_seconds())

    first = admin.audit(limit=3)
    rest = admin.audit(limit=3, cursor=first.cursor)

    assert [len(first.entries), len(rest.entries), rest.cursor] == [3, 3, None]
    both = [*first.entries, *rest.entries]
    assert sorted(both, key=lambda each: each.id, reverse=True) == both
    with pytest.raises(InvalidOption, match="cursor: expected the cursor of an earlier page, got 'x:y'"):
        admin.audit(cursor="x:y")


# ── orders to workers ──


def test_an_order_that_nobody_takes_is_void_after_a_minute(world: World, store: Store, admin: Admin) -> None:
    worker = start(store, lease=3600.0)
    says = admin.workers.stop(worker, "restart")
    with pytest.raises(Refused, match="ada ordered a restart of worker"):
        admin.by("grace").workers.stop(worker, "drain")
    assert [each.verb for each in orders.open_orders(store)] == ["restart"]

    world.advance(orders.OPEN_SECONDS + 1)

    assert orders.open_orders(store) == []
    assert admin.workers.stops() == {}
    admin.by("grace").workers.stop(worker, "drain")
    assert (says.partition(":")[0], admin.workers.stops()[worker].who) == (
        f"worker {worker} is told to drain",
        "grace",
    )


def test_the_stack_that_does_not_come_says_why_that_may_be(world: World, store: Store, admin: Admin) -> None:
    def asked(**options: Any) -> str:
        lease = running(store, start(store, lease=3600.0, **options))
        admin.jobs.ask_for_stack(lease.job_id)
        admin.by("grace").jobs.ask_for_stack(lease.job_id)  # both wait for one answer
        return lease.job_id

    supervised, embedded, lost = asked(), asked(runner="embedded"), asked()
    assert len(orders.open_orders(store)) == 3
    world.advance(7)
    owner = store.get(lost).worker_id or ""  # type: ignore[union-attr]
    store.declare_dead([owner])

    said = {job_id: admin.jobs.stack(job_id) for job_id in (supervised, embedded, lost)}

    assert {stack.state for stack in said.values() if stack} == {"silent"}
    ends = [stack.says.partition("; ")[2] for stack in said.values() if stack]
    assert ends == [
        "its supervisor hangs, or can't reach the store, or its release knows no orders",
        "code in its program holds the GIL, or it can't reach the store, or its release knows no orders",
        "that worker has ended: its process ended, by a normal stop or a kill; its jobs were settled at once",
    ]
    assert admin.jobs.stack(put(store)) is None


# ── one way in ──


def test_the_command_line_and_the_pages_ask_operations_and_never_the_store() -> None:
    """They open, close, migrate and copy a store; for what is in it, they ask operations. `bench` measures a store."""
    package = Path(tenure.__file__).parent
    files = [file for folder in ("cli", "web") for file in (package / folder).rglob("*.py") if file.name != "bench.py"]
    asked = [
        f"{file.relative_to(package)}:{node.lineno}: {ast.unparse(node)}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and ast.unparse(node.value).rpartition(".")[2].lstrip("_") == "store"
        and node.attr not in {"open", "close", "migrate", "backup", "url"}
    ]

    assert len(files) > 50
    assert asked == []
