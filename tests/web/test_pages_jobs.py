"""The pages of jobs, dead letters and schedules by their promises: through the whole dashboard, without a script."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import httpx
import pytest

from conformance.factories import (
    World,
    bring,
    claim_one,
    draft,
    finish,
    look,
    made,
    put,
    running,
    schedule,
    standing,
    start,
    tick,
)
from conformance.scene import paused_and_late
from tenure import Secret, Tenure
from tenure.config import Settings, load
from tenure.core.ids import new_id
from tenure.core.lifecycle import Completed, Crashed, Failed, State
from tenure.errors import StoreAway
from tenure.maintenance import orders
from tenure.maintenance.orders import Frame, Stack, Trace
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.operations.jobs import JobReads
from tenure.ports import Filter, Progress, Store
from tenure.ports.schedules import Change
from tenure.schedules.timetable import Timetable, UnknownSchedule
from tenure.stores.sqlite import SqliteStore
from tenure.web.dashboard import create
from tenure.worker.job_log import LogLine, encode
from waiting import until

TOKENS = {
    "root": "root:admin:root-secret-0123456789",
    "ada": "ada:operate-payloads:ada-secret-0123456789",
    "bob": "bob:read+payloads:bob-secret-0123456789",
    "tom": "tom:operate:tom-secret-0123456789",
}
SCRIPT = "<script>alert(1)</script>"

pytestmark = pytest.mark.usefixtures("unhurried")


@dataclass(frozen=True)
class Web:
    """The pages, visited as somebody."""

    app: Any
    who: str = "root"

    def by(self, who: str) -> Web:
        return replace(self, who=who)

    def get(self, path: str, status: int = 200) -> str:
        answer = asyncio.run(self._send("GET", path))
        assert answer.status_code == status, (answer.status_code, answer.text)
        return answer.text

    def post(self, path: str, **fields: str | Sequence[str]) -> tuple[str, str]:
        """Where a form led to, and what is said there."""
        answer = asyncio.run(self._send("POST", path, **fields))
        assert answer.status_code == 303, (answer.status_code, said(answer.text))
        to = answer.headers["location"]
        shown = asyncio.run(self._send("GET", to, cookies=answer.cookies)).text
        flash = re.search(r'<p class="flash">(.*?)</p>', shown, re.DOTALL)
        return to, unescape(flash[1]) if flash else ""

    def refused(self, path: str, status: int, **fields: str | Sequence[str]) -> str:
        """What the page says that refuses a form."""
        answer = asyncio.run(self._send("POST", path, **fields))
        assert answer.status_code == status, (answer.status_code, said(answer.text))
        return answer.text

    async def _send(
        self, method: str, path: str, cookies: httpx.Cookies | None = None, **fields: str | Sequence[str]
    ) -> httpx.Response:
        secret = TOKENS[self.who].rpartition(":")[2]
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app),
            base_url="http://localhost",
            headers={"Authorization": f"Bearer {secret}", "Accept": "text/html"},
            cookies=cookies,
        ) as client:
            return await client.request(method, path, data=fields or None)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(lambda clock: SqliteStore(str(tmp_path / "tenure.db"), clock=clock))
    yield world
    world.close()


@pytest.fixture
def store(world: World) -> Store:
    return world.store()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(code={"tokens": ",".join(TOKENS.values())}, environ={}, folder=tmp_path)


@pytest.fixture
def admin(store: Store, settings: Settings) -> Admin:
    return Admin(store, PollNotifier(), settings, who="ada")


@pytest.fixture
def web(store: Store, settings: Settings, tmp_path: Path) -> Web:
    jobs = Tenure(f"sqlite:///{tmp_path}/elsewhere.db")

    @jobs.task
    def work(n: int, card: Secret[str] | None = None) -> None: ...

    def opened() -> Admin:
        return Admin(store, PollNotifier(), settings)

    return Web(create(opened, settings, tasks=jobs.tasks))


def said(html: str) -> str:
    """The text of a page, in one line."""
    main = html.partition("<main")[2].partition("</main>")[0]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", main)).split())


def listed(html: str) -> list[str]:
    """The ids of the jobs in a list, in order."""
    return re.findall(r'<tr data-key="([0-9a-f-]{36})"', html)


def link(html: str, label: str) -> str:
    found = re.search(rf'<a [^>]*href="([^"]*)"[^>]*>{label}</a>', html)
    assert found, said(html)
    return unescape(found[1])


def hidden(html: str, action: str) -> dict[str, list[str]]:
    """The fields of a form that are filled in already."""
    form = html.partition(f'action="{action}"')[2].partition("</form>")[0]
    assert form, f"no form of {action}"
    fields: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form):
        if name != "csrf":
            fields.setdefault(name, []).append(unescape(value))
    return fields


# ── Jobs: found ──


def test_jobs_are_found_by_what_is_known_of_them(web: Web, store: Store, world: World) -> None:
    old = put(store, task="old", queue="past", id=new_id())
    world.advance(7200)
    lease = running(store, task="busy", id=new_id())
    dead = bring(store, State.DEAD, id=new_id()).job_id
    late = put(store, delay=60, queue="reports", unique="r", id=new_id())

    def found(**query: str | list[str]) -> set[str]:
        return set(listed(web.get(f"/jobs?{httpx.QueryParams(query)}")))

    assert found() == {old, lease.job_id, dead, late}
    assert found(state=["scheduled", "dead"]) == {late, dead}
    assert found(task="busy") == {lease.job_id} == found(worker=lease.worker_id)
    assert found(queue="reports") == {late} == found(unique="r")
    assert found(text="for good") == {dead} == found(text=dead)
    assert found(last="1h") == {lease.job_id, dead, late}
    assert found(until=f"{store.now() - timedelta(hours=1):%Y-%m-%dT%H:%M}") == {old}
    assert found(state="cancelled") == set()


def test_a_search_that_cannot_be_keeps_what_was_typed_and_says_what_it_expects(web: Web) -> None:
    page = web.get("/jobs?text=boom&since=yesterday")

    assert "since: expected a time like" in said(page)
    assert 'value="boom"' in page
    assert "expected some of waiting, scheduled" in said(web.get("/jobs?state=lost"))
    assert "expected a duration" in said(web.get("/jobs?last=soon"))


def test_an_id_or_the_end_of_one_goes_straight_to_the_job(web: Web, store: Store) -> None:
    job_id = put(store, id=new_id())

    assert web.post("/jobs/find", id=job_id.upper())[0] == f"/jobs/{job_id}"
    assert web.by("bob").post("/jobs/find", id=job_id[-8:])[0] == f"/jobs/{job_id}"
    assert web.post("/jobs/find", id="ffffffff")[0] == "/jobs?text=ffffffff"


def test_pages_go_on_where_the_one_before_ended_and_keep_the_filter(web: Web, store: Store) -> None:
    ids = [put(store, queue="reports") for _ in range(40)]
    put(store)

    first = web.get("/jobs?queue=reports")
    second = web.get(link(first, "Older"))

    assert listed(first) + listed(second) == ids[::-1]
    assert 'value="reports"' in second


def test_a_search_out_of_time_says_how_far_it_looked_and_goes_on(
    web: Web, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(JobReads.search.__kwdefaults__, "seconds", 0.0)
    job_id = put(store, task="needle")
    for _ in range(5):
        store.enqueue([draft(task="hay") for _ in range(500)])

    page, steps = web.get("/jobs?task=needle"), 0
    while not listed(page):
        assert re.search(r"Looked at 1,000 jobs, back to \S+ \S+ UTC ; 0 of them match", said(page))
        page, steps = web.get(link(page, "Look further")), steps + 1

    assert listed(page) == [job_id]
    assert steps == 2


def test_a_job_is_found_by_an_argument_by_those_who_may_see_it(web: Web, store: Store) -> None:
    ids = [put(store, payload=json.dumps({"user": user, "note": "<b>"}), meta='{"r":"x1"}') for user in (4711, 17)]
    ask = httpx.QueryParams({"q": "args.user=4711"})

    page = web.get(f"/jobs?{ask}")
    assert listed(page) == ids[:1]
    assert "user=4711, note=<b>" in said(page)
    assert listed(web.by("bob").get(f"/jobs?{ask}")) == ids[:1]
    for who in ("ada",):  # she may act, but sees no payloads
        hidden_from = web.by(who).get(f"/jobs?{ask}")
        assert listed(hidden_from) == []
        assert "may not see arguments" in said(hidden_from)
        everything = web.by(who).get("/jobs?q=meta.r%3Dx1")
        assert set(listed(everything)) == set(ids)
        assert "4711" not in everything
        assert "user=" not in said(everything).replace("args.user", "")


@pytest.mark.parametrize(
    "odd",
    ["%", "_", "\\", '"', "''; --", "\x00", "x" * 5_000, "<script>", "ſ", "[.*+", "args.=", "=", "~", "a" * 1_001],
)
def test_odd_characters_in_every_search_are_a_page_and_never_an_error(odd: str, web: Web, store: Store) -> None:
    put(store, payload='{"a":1}')
    for name in ("q", "text", "task", "queue", "worker", "unique", "since", "until", "last", "state", "cursor"):
        for who in ("root", "ada"):
            page = web.by(who).get(f"/jobs?{httpx.QueryParams({name: odd})}")
            assert SCRIPT[:8] + ">" not in page.replace("<script src", "")
    assert asyncio.run(web._send("GET", f"/dead?{httpx.QueryParams({'text': odd})}")).status_code in (200, 422)


def test_a_bulk_action_on_a_search_takes_what_it_found_and_no_one_searches_by_it_what_he_may_not_see(
    web: Web, store: Store
) -> None:
    near, exact = put(store, payload='{"user":47110}'), put(store, payload='{"user":4711}')
    where = {"all": "yes", "verb": "cancel", "q": "args.user=4711 enqueued<1h"}

    asked = web.post("/jobs/bulk/ask", **where)[0]
    assert "1 job" in said(web.get(asked))
    fields = hidden(web.get(asked), "/jobs/bulk")
    told = web.post("/jobs/bulk", **{**fields, "verb": "cancel"})[1]
    assert told.startswith("1 job cancelled")
    assert [job.state for job in map(store.get, (near, exact)) if job] == [State.QUEUED, State.CANCELLED]
    assert "may not see arguments" in said(web.by("ada").get(asked, 422))
    assert "may not see arguments" in said(web.by("ada").refused("/jobs/bulk", 422, **where))


def test_fields_suggest_the_names_that_are_known(web: Web, store: Store) -> None:
    worker = start(store, tasks=("mail", "report"), queues=("slow",))
    page = web.get("/jobs")

    for name, known in (("task", ["mail", "report"]), ("queue", ["slow"]), ("worker", [worker])):
        options = re.search(rf'<datalist id="known-{name}">(.*?)</datalist>', page, re.DOTALL)
        assert options
        assert re.findall(r'value="([^"]*)"', options[1]) == known
        assert f'name="{name}" value="" list="known-{name}"' in page
        assert all(f'<option value="{name}={value}">' in page for value in known), "the search field knows them, too"


def test_empty_fields_leave_no_trace_in_the_address(web: Web) -> None:
    answer = asyncio.run(web._send("GET", "/jobs?q=&state=dead&task=&state=queued&queue=%20a"))

    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=dead&state=queued&queue=+a")


# ── Jobs: many at once ──


def test_a_bulk_action_is_counted_and_asked_for_first(web: Web, store: Store, world: World) -> None:
    ids = {put(store, queue="reports") for _ in range(3)}
    other = put(store)

    to, _ = web.post("/jobs/bulk/ask", verb="cancel", all="yes", queue="reports", back="/jobs?queue=reports")
    page = web.get(to)
    assert "Cancel 3 jobs?" in said(page)
    assert "in queue reports" in said(page)
    assert {look(store, each).state for each in ids} == {State.QUEUED}

    world.advance(1)
    late = put(store, queue="reports")
    assert web.post("/jobs/bulk", **hidden(page, "/jobs/bulk"), reason="not wanted") == (
        "/jobs?queue=reports",
        "3 jobs cancelled or asked to stop",
    )
    assert {look(store, each).cancel_reason for each in ids} == {"not wanted"}
    assert look(store, other).state is State.QUEUED
    assert look(store, late).state is State.QUEUED, "it was not counted"


def test_a_bulk_action_takes_no_more_than_were_counted(web: Web, store: Store) -> None:
    late = [put(store, queue="reports") for _ in range(5)]
    for _ in range(3):
        store.cancel([put(store, queue="reports")], "no need")
    to, _ = web.post("/jobs/bulk/ask", verb="replay", all="yes", queue="reports", state="cancelled", back="/jobs")
    page = web.get(to)
    assert "Replay 3 jobs?" in said(page)

    store.cancel(late, "no need")

    assert "3 were counted, and 8 match now" in said(web.refused("/jobs/bulk", 409, **hidden(page, "/jobs/bulk")))
    assert {look(store, each).state for each in late} == {State.CANCELLED}


def test_a_bulk_action_on_chosen_jobs_says_of_whom_it_could_not_be_done(web: Web, store: Store) -> None:
    dead, queued = bring(store, State.DEAD).job_id, put(store)

    to, _ = web.post("/jobs/bulk/ask", verb="replay", id=[dead, queued], all="")
    page = web.get(to)
    assert "Replay 2 jobs?" in said(page)
    _, told = web.post("/jobs/bulk", **hidden(page, "/jobs/bulk"))

    assert told.startswith("1 job queued again; 1 job left as it was")
    assert queued in told
    assert look(store, dead).state is State.QUEUED


@pytest.mark.parametrize("verb", ["replay", "delete"])
def test_a_chosen_job_that_somebody_else_replayed_meanwhile_is_left_alone(web: Web, store: Store, verb: str) -> None:
    first, other = bring(store, State.DEAD).job_id, bring(store, State.DEAD).job_id
    page = web.get(web.post("/jobs/bulk/ask", verb=verb, id=[first, other], all="")[0])
    store.replay([first])
    assert finish(store, claim_one(store, start(store)), Completed()) is State.COMPLETED

    _, told = web.post("/jobs/bulk", **hidden(page, "/jobs/bulk"), confirm="delete 2")

    assert f"1 job left as it was, {first}: nothing done: it is completed by now" in told
    assert (look(store, first).state, look(store, first).attempt) == (State.COMPLETED, 2)


def test_nothing_chosen_is_nothing_done(web: Web, store: Store) -> None:
    put(store)

    to, told = web.post("/jobs/bulk/ask", verb="cancel", all="", back="/jobs?queue=default")

    assert to == "/jobs?queue=default"
    assert "No job is selected" in told


def test_many_are_deleted_by_an_admin_alone_who_types_how_many(web: Web, store: Store) -> None:
    ids = [bring(store, State.DEAD).job_id for _ in range(12)]
    page = web.get("/jobs/bulk?verb=delete&all=yes&state=dead&back=/dead")
    fields = hidden(page, "/jobs/bulk")
    assert "Type delete 12 to confirm" in said(page)

    for typed in ("", "12 jobs", "delete 11", "delete"):
        assert "type delete 12" in said(web.refused("/jobs/bulk", 422, **fields, confirm=typed))
    assert "delete needs admin" in said(web.by("ada").refused("/jobs/bulk", 403, **fields, confirm="delete 12"))
    assert all(store.get(each) for each in ids)

    assert web.post("/jobs/bulk", **fields, confirm="delete 12") == ("/dead", "12 jobs deleted")
    assert not any(store.get(each) for each in ids)


def test_after_ten_thousand_it_says_how_many_are_done_and_offers_to_go_on(
    web: Web, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("jobs", "job_actions"):
        monkeypatch.setattr(f"tenure.operations.{module}.MOST_AT_ONCE", 4)
    monkeypatch.setattr("tenure.operations.jobs.BATCH", 3)  # which four is no multiple of
    ids = [put(store) for _ in range(6)]

    page = web.get("/jobs/bulk?verb=cancel&all=yes")
    assert "Cancel 4 or more jobs?" in said(page)
    to, told = web.post("/jobs/bulk", **hidden(page, "/jobs/bulk"))
    assert "there are more" in told
    page = web.get(to)
    assert "4 are already done" in said(page)
    assert "Cancel 2 jobs?" in said(page)
    web.post("/jobs/bulk", **hidden(page, "/jobs/bulk"))

    assert {look(store, each).state for each in ids} == {State.CANCELLED}


# ── A job ──


def test_a_job_tells_its_whole_story(web: Web, store: Store, world: World) -> None:
    lease = running(store, unique="k", payload='{"n": 1}')
    store.progress([Progress(lease=lease, log=encode([LogLine(store.now(), "info", f"before {SCRIPT}")]))])
    world.advance(5)
    evidence = {"exit": "signal 9 (SIGKILL)", "peak_memory": "31 MiB", "line": "shop.py:3 in send"}
    store.settle(lease.worker_id, {}, Crashed("its worker died", process_died=True, evidence=evidence))
    store.refused([(lease, "progress came from a former owner")])
    world.advance(1)
    (again,) = store.claim(start(store, runner="solo", slots=1), {"default": 1}, 1, solo=True)
    page = web.get(f"/jobs/{lease.job_id}")
    text = said(page)

    assert "Attempt 1 crashed" in text
    assert lease.worker_id in text
    assert "Rescued: its worker died" in text
    assert "signal 9 (SIGKILL)" in text
    assert "peak memory 31 MiB" in text
    assert "shop.py:3 in send" in text
    assert "One of its writes was refused progress came from a former owner" in text
    assert f"before {SCRIPT}" in text
    assert "the next attempt started 1s later" in text
    assert f"Attempt {again.attempt} processing" in text
    assert SCRIPT not in page


def test_where_the_code_of_a_running_job_is_can_be_asked_for(web: Web, store: Store, world: World) -> None:
    lease = running(store, task="charge")
    path = f"/jobs/{lease.job_id}"
    assert "Show where it is" in said(web.get(path))

    assert web.post(f"{path}/stack") == (f"{path}#stack", "")

    assert "Its worker was asked" in said(web.get(path))
    world.advance(10)
    until(
        lambda: f"Worker {lease.worker_id} has not answered for 10s; its supervisor hangs" in said(web.get(path)), "it"
    )
    (order,) = orders.open_orders(store)
    traces = (Trace(f"its thread {SCRIPT}", (Frame(f"/srv/{SCRIPT}.py", 7, "charge"),), left_out=2),)
    orders.answer(store, Stack(order.job, order.worker, order.who, order.at, store.now(), "", traces))
    orders.done(store, order)
    until(lambda: f'File "/srv/{SCRIPT}.py", line 7, in charge' in said(web.get(path)), "the stack")
    page = web.get(path)
    assert "… 2 frames are left out …" in said(page)
    assert SCRIPT not in page
    reader = replace(web, who="bob")
    assert "line 7" not in said(reader.get(path))
    assert "Show where it is" not in said(reader.get(path))
    finish(store, lease, Completed("1"))
    until(lambda: "Where its code was" in said(web.get(path)), "its end")
    assert "is completed: only a running job has a stack" in web.post(f"{path}/stack")[1]


def test_a_completed_job_shows_its_last_attempt_and_its_result(web: Web, store: Store) -> None:
    lease = bring(store, State.QUEUED)
    job_id = lease.job_id
    (claimed,) = store.claim(lease.worker_id, {"default": 1}, 1)
    assert finish(store, lease._replace(attempt=claimed.attempt), Completed('{"sent": 3}')) is State.COMPLETED

    text = said(web.get(f"/jobs/{job_id}"))

    assert "Attempt 1 released" in text
    assert "Attempt 2 completed" in text
    assert '"sent": 3' in text


def test_a_job_in_a_paused_queue_has_the_button_that_resumes_it(web: Web, store: Store) -> None:
    start(store)
    job_id = put(store)
    store.pause("default", paused=True)

    page = web.get(f"/jobs/{job_id}")

    assert "its queue default is paused since" in said(page)
    assert "What to do: resume it Resume queue default" in said(page)
    assert "tenure " not in said(page)
    assert "Resume queue" not in said(web.by("bob").get(f"/jobs/{job_id}"))
    assert web.post("/queues/default/resume", back=f"/jobs/{job_id}")[0] == f"/jobs/{job_id}"
    assert "tenure " not in said(web.get(f"/jobs/{bring(store, State.DEAD, priority=9).job_id}"))


def test_a_late_schedule_in_a_paused_queue_says_so_and_has_the_button(web: Web, world: World, store: Store) -> None:
    paused_and_late(world, store, Timetable(store, PollNotifier()))

    page = web.get("/schedules/nightly")

    assert "its queue reports is paused" in said(page)
    assert "its queue reports is paused" in said(web.get("/schedules"))
    assert 'action="/queues/reports/resume"' in page
    assert 'action="/queues/reports/resume"' not in web.by("bob").get("/schedules/nightly")


def test_a_waiting_job_says_why_it_does_not_run_and_what_to_do(web: Web, store: Store) -> None:
    text = said(web.get(f"/jobs/{put(store)}"))

    assert "no worker has opened" in text
    assert "What to do: start a worker there: tenure worker" in text
    assert "Not started yet" in text


def test_payloads_are_shown_to_those_who_may_see_them(web: Web, store: Store, admin: Admin) -> None:
    lease = running(store, payload='{"n": 42424242}')  # which no id or host name happens to contain
    store.progress([Progress(lease=lease, checkpoint='"page 99"', log=encode([LogLine(store.now(), "info", "psst")]))])
    store.finish([(lease, Completed('"done 77"'))])
    acted = admin.jobs.replay_edited(lease.job_id, {"n": 5})
    assert acted.landed, acted.says
    secrets = ("42424242", "psst")

    blind, seeing = (said(web.by(who).get(f"/jobs/{lease.job_id}")) for who in ("ada", "bob"))

    assert all(each in seeing for each in secrets)
    assert not any(each in blind for each in secrets)
    assert "only to users who may see payloads" in blind
    assert "ada changed them" in blind
    assert "Attempt 1 completed" in blind


def test_a_job_that_is_not_there_is_said_kindly(web: Web) -> None:
    for job_id in (new_id(), "nope", "<script>alert(1)"):
        page = web.get(f"/jobs/{quote(job_id, safe='')}", 404)
        assert "No such job" in said(page)
        assert SCRIPT not in page


def test_each_action_is_offered_where_it_can_land_and_to_those_who_may(web: Web, store: Store) -> None:
    jobs = {state: bring(store, state).job_id for state in sorted(State, key=lambda state: state is State.QUEUED)}

    def offered(who: str, state: State) -> set[str]:
        page = web.by(who).get(f"/jobs/{jobs[state]}")
        return set(re.findall(rf'(?:action|href)="/jobs/{jobs[state]}/(\w+)"', page))

    assert offered("root", State.WAITING) == {"cancel", "delete", "signal"}
    assert offered("root", State.SCHEDULED) == {"cancel", "promote", "delete"}
    assert offered("root", State.PROCESSING) == {"cancel", "stack"}
    assert offered("root", State.DEAD) == {"replay", "edit", "delete"} == offered("root", State.COMPLETED)
    assert offered("tom", State.DEAD) == {"replay", "edit"}
    assert offered("ada", State.DEAD) == {"replay"}
    assert all(offered("bob", state) == set() for state in State)


def test_actions_do_what_they_say_under_the_name_of_who_did_them(web: Web, store: Store, admin: Admin) -> None:
    job_id = put(store, delay=3600)

    assert web.by("ada").post(f"/jobs/{job_id}/promote") == (f"/jobs/{job_id}", "work: queued")
    assert web.post(f"/jobs/{job_id}/cancel", reason="a mistake")[1] == "work: cancelled"
    assert look(store, job_id).cancel_reason == "a mistake"
    assert web.post(f"/jobs/{job_id}/replay")[1] == "work: queued again"
    assert "nothing done" in web.post(f"/jobs/{job_id}/replay")[1]
    web.by("bob").refused(f"/jobs/{job_id}/cancel", 403)
    web.by("ada").refused(f"/jobs/{job_id}/delete", 403, confirm=job_id[-8:])

    assert "type the last eight characters" in said(web.refused(f"/jobs/{job_id}/delete", 422, confirm="delete"))
    assert web.post(f"/jobs/{job_id}/delete", confirm=job_id[-8:]) == ("/jobs", "work: deleted")
    assert store.get(job_id) is None
    done = [(each.who, each.action) for each in admin.audit().entries]
    assert done[:2] == [("root", "jobs.delete"), ("root", "jobs.replay")]


def test_a_run_of_a_schedule_leads_to_it(web: Web, store: Store, admin: Admin) -> None:
    name = made(store).name

    page = web.get(f"/jobs/{admin.schedules.trigger(name)}")

    assert f'href="/schedules/{name}"' in page


# ── Edit and replay ──


def dead_with(store: Store, payload: str) -> str:
    return bring(store, State.DEAD, payload=payload).job_id


def stored(store: Store, job_id: str) -> Any:
    return json.loads(look(store, job_id).payload)


def test_a_job_runs_again_with_edited_arguments_and_keeps_what_they_were(web: Web, store: Store) -> None:
    job_id = dead_with(store, '{"n": 1, "old": [1]}')
    page = web.by("tom").get(f"/jobs/{job_id}/edit")
    assert "work(n: int" in said(page)

    to, told = web.by("tom").post(f"/jobs/{job_id}/edit", **{"value:n": "2", "value:old": "[1]", "drop:old": "on"})

    assert (to, told) == (f"/jobs/{job_id}", "work: queued again")
    assert stored(store, job_id) == {"n": 2}
    text = said(web.get(to))
    assert "tom changed them" in text
    assert '"old": [ 1 ]' in text


@pytest.mark.parametrize(("before", "after"), [("[1]", "[true]"), ('{"dry": 0}', '{"dry": false}'), ("[1]", "[1.0]")])
def test_an_edit_that_python_takes_for_the_same_value_is_an_edit(
    web: Web, store: Store, before: str, after: str
) -> None:
    job_id = bring(store, State.DEAD, task="of_another_app", payload=f'{{"old": {before}}}').job_id

    web.by("tom").post(f"/jobs/{job_id}/edit", **{"value:old": after})

    assert json.dumps(stored(store, job_id)["old"]) == after


def test_a_search_of_dead_letters_that_is_not_understood_stays_in_its_field(web: Web, store: Store) -> None:
    dead_with(store, "{}")

    page = web.get("/dead?q=foo%3Dbar")

    assert 'value="foo=bar"' in page
    assert "foo" in said(page)
    assert "No dead letter" not in said(page)
    assert "all that match" not in said(page)


def test_only_a_page_can_be_tried_again(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreAway("nobody listens")

    monkeypatch.setattr(SqliteStore, "pause", away)

    assert "Try again" not in web.refused("/queues/default/pause", 503)


def test_secrets_are_kept_as_they_are_unless_they_are_replaced(web: Web, store: Store) -> None:
    # No hexadecimal digits alone: a page is full of random ones.
    job_id, other = (dead_with(store, '{"n": 1, "card": {"$secret": "4111-visa"}}') for _ in range(2))
    page = web.get(f"/jobs/{job_id}/edit")
    assert "4111-visa" not in page

    web.post(f"/jobs/{job_id}/edit", **{"value:n": "2", "value:card": '"***"'})
    assert stored(store, job_id) == {"n": 2, "card": {"$secret": "4111-visa"}}

    stars = web.refused(f"/jobs/{other}/edit", 422, **{"value:card": '"***"', "replace:card": "on"})
    assert "it still contains ***" in said(stars).lower()
    web.post(f"/jobs/{other}/edit", **{"value:card": '"5500"', "replace:card": "on"})
    assert stored(store, other) == {"n": 1, "card": {"$secret": "5500"}}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"value:n": "[1,"}, "expected JSON"),
        ({"value:n": '"one"'}, "expected int"),
        ({"value:n": "1", "new_name": "colour", "new_text": '"red"'}, "unexpected argument 'colour'"),
        ({"value:n": "1", "drop:n": "on"}, "missing argument 'n'"),
        ({"value:n": "1", "new_name": "n", "new_text": "2"}, "argument 'n' already exists"),
        ({"value:n": "1", "new_name": "card", "new_text": "{"}, "expected JSON"),
        ({"value:n": "[" * 100_000}, "expected JSON"),
        ({"value:n": r'"\ud800"'}, "expected"),
    ],
)
def test_what_can_not_be_taken_comes_back_with_the_sentence_and_all_that_was_typed(
    web: Web, store: Store, fields: dict[str, str], says: str
) -> None:
    job_id = dead_with(store, '{"n": 1}')

    page = web.refused(f"/jobs/{job_id}/edit", 422, **fields)

    assert says.lower() in said(page).lower()
    assert f'action="/jobs/{job_id}/edit"' in page
    assert unescape(page).count(fields["value:n"])
    assert all(fields.get(name, "") in unescape(page) for name in ("new_name", "new_text"))
    assert ("checked" in page) == ("drop:n" in fields)
    assert look(store, job_id).state is State.DEAD


def test_only_ended_jobs_are_edited_by_those_who_see_payloads_and_may_operate(web: Web, store: Store) -> None:
    dead, live = dead_with(store, '{"n": 1}'), put(store)

    assert "it is queued" in said(web.get(f"/jobs/{live}/edit", 409))
    for who in ("ada", "bob"):
        web.by(who).get(f"/jobs/{dead}/edit", 403)
        web.by(who).refused(f"/jobs/{dead}/edit", 403, **{"value:n": "2"})


# ── Dead letters ──


def test_dead_letters_are_counted_by_task_and_by_error(web: Web, store: Store) -> None:
    ids = [bring(store, State.DEAD, task=task).job_id for task in ("mail", "mail", "bill")]
    bring(store, State.COMPLETED)

    page = web.get("/dead")

    assert listed(page) == ids[::-1]
    assert "By task mail 2 bill 1" in said(page)
    assert re.search(r"for good mail 2, bill 1 · last .* UTC 3 Replay…", said(page))
    assert listed(web.get(link(page, "bill"))) == [ids[2]]


def test_two_causes_are_two_groups_each_replayed_at_so_many_a_minute(web: Web, store: Store) -> None:
    for number in range(22):
        for task, error in (("mail", f"no address for customer {number}"), ("pdf", f"cannot open '/srv/{number}'")):
            finish(store, running(store, task=task), Failed(error, final=True))
    page = web.get("/dead")
    shown = said(page)
    assert "no address for customer … mail · last" in shown
    assert shown.count(" 22 Replay… ") == 2, shown
    assert "Replay…" not in said(web.by("bob").get("/dead"))
    assert len(listed(web.get(link(page, "no address for customer …")))) == 22

    group = page.partition("no address for customer …</a>")[2]
    to, _ = web.post("/jobs/bulk/ask", **hidden(group, "/jobs/bulk/ask"))
    page = web.get(to)
    assert "Replay 22 jobs?" in said(page)
    _, told = web.post("/jobs/bulk", **{**hidden(page, "/jobs/bulk"), "per_minute": "60"})

    assert told.startswith("22 jobs queued again, 60 a minute, the last at 2027-01-15 08:00:21 UTC")
    counts = store.counts()
    assert (counts[State.QUEUED], counts[State.SCHEDULED], counts[State.DEAD]) == (1, 21, 22)


def test_how_many_a_minute_is_a_number(web: Web, store: Store) -> None:
    dead = bring(store, State.DEAD).job_id

    for typed in ("often", "-1", "0", "1234567"):
        page = web.refused("/jobs/bulk", 422, verb="replay", id=[dead], per_minute=typed)
        assert "Per minute: expected" in said(page)
    assert look(store, dead).state is State.DEAD


def test_dead_letters_say_when_they_died(web: Web, world: World, store: Store) -> None:
    put(store)
    world.advance(7200)
    died = look(store, bring(store, State.DEAD, priority=9).job_id).ended_at
    assert died is not None

    page = web.get("/dead")

    assert ">Died<" in page
    assert ">Age<" not in page
    assert f'data-label="Died"><time data-ago="ago" datetime="{died:%Y-%m-%dT%H:%M:%S}' in page


def test_dead_letters_are_replayed_where_they_are_listed(web: Web, store: Store) -> None:
    dead = bring(store, State.DEAD).job_id
    page = web.get("/dead")
    assert f'formaction="/jobs/{dead}/replay"' in page

    assert web.post(f"/jobs/{dead}/replay", **hidden(page, "/jobs/bulk/ask")) == ("/dead", "work: queued again")
    assert "No dead letters" in said(web.get("/dead"))


def test_who_may_only_read_is_offered_nothing_to_do(web: Web, store: Store) -> None:
    bring(store, State.DEAD)

    for path in ("/jobs", "/dead"):
        page = web.by("bob").get(path)
        assert 'name="verb"' not in page
        assert "formaction" not in page
        assert 'name="id" value' not in page


# ── Schedules ──


def test_schedules_show_their_health_at_a_glance(web: Web, store: Store) -> None:
    now = store.now()
    declared = {"name": "nightly", "rule": "0 6 * * *", "tz": "Europe/Paris"}
    s = schedule(**declared, failure_count=2, next_tick=now, last_status="failure")
    ticks = [
        tick(s, now - timedelta(hours=hours), status=status, why=f"why {SCRIPT}")
        for hours, status in enumerate(("failure", "skipped", "success"), start=1)
    ]
    assert store.change([Change(schedule=s, ticks=tuple(ticks))]) == [True]

    page = web.get("/schedules")

    assert "0 6 * * * Europe/Paris" in said(page)
    assert "2 failed" in said(page)
    assert "CET" in said(page)
    assert re.findall(r'class="tick (\w+)"', page) == ["success", "skipped", "failure"]
    assert 'aria-label="the last 3: ' in page
    assert SCRIPT not in page


def test_the_worst_come_first_when_asked_for(web: Web, store: Store, world: World) -> None:
    made(store, name="a_fine", next_tick=store.now() + timedelta(days=1))
    made(store, name="b_failing", failure_count=3, next_tick=store.now() + timedelta(days=1))
    made(store, name="c_overdue", next_tick=store.now(), grace=60.0)
    made(store, name="d_retired", retired_at=store.now())
    world.advance(3600)

    def names(query: str) -> list[str]:
        return re.findall(r'<tr data-key="(\w+)"', web.get(f"/schedules?{query}"))

    assert names("") == ["a_fine", "b_failing", "c_overdue"]
    assert names("order=worst") == ["c_overdue", "b_failing", "a_fine"]
    assert names("name=FAIL") == ["b_failing"]
    assert names("retired=yes&name=retired") == ["d_retired"]
    assert "no supervisor fired it" in said(web.get("/schedules"))


def test_the_columns_of_schedules_are_sorted_by_a_click(web: Web, store: Store) -> None:
    now = store.now()
    for name, failures, next_in in (("a", 1, 30), ("b", 3, None), ("c", 2, 10)):
        made(store, name=name, failure_count=failures, next_tick=next_in and now + timedelta(minutes=next_in))

    def order(path: str) -> list[str]:
        return re.findall(r'<tr data-key="(\w+)">', web.get(path))

    assert order("/schedules") == order("/schedules?sort=name") == order("/schedules?sort=nonsense") == ["a", "b", "c"]
    assert order("/schedules?sort=-name") == ["c", "b", "a"]
    assert order("/schedules?sort=-fails") == ["b", "c", "a"]
    assert order("/schedules?sort=next") == ["c", "a", "b"], "one without a next tick comes last"
    assert order("/schedules?sort=-next") == ["a", "c", "b"]
    page = web.get("/schedules?sort=-fails")
    assert 'aria-sort="descending"' in page
    assert 'href="/schedules?sort=fails"' in page, "another click turns it around"
    assert 'href="/schedules?sort=-last"' in page


def test_jobs_are_listed_in_another_order_only_where_the_store_can(web: Web, store: Store, world: World) -> None:
    first, second = (running(store) for _ in range(2))
    longest = running(store)
    world.advance(1)
    for lease in (second, first):
        finish(store, lease, Completed())
        world.advance(1)
    running(store)

    def order(path: str) -> list[str]:
        return re.findall(r'<tr data-key="([\w-]+)">', web.get(path))

    assert order("/jobs?state=completed") == [second.job_id, first.job_id]
    assert order("/jobs?state=completed&sort=ended") == [first.job_id, second.job_id]
    assert order("/jobs?state=processing")[1] == longest.job_id
    assert order("/jobs?state=processing&sort=started")[0] == longest.job_id
    assert "the store keeps no other order" in said(web.get("/jobs?state=completed&state=dead&sort=ended"))
    assert order("/jobs?state=completed&queue=default&sort=ended") == order("/jobs?state=completed"), "as if not asked"


def test_some_schedules_a_page(web: Web, store: Store) -> None:
    store.change([Change(schedule=schedule(name=f"s{number:03}")) for number in range(20)])

    first = web.get("/schedules")
    second = web.get(link(first, "Next"))

    assert "1 to 15 of 20" in said(first)
    assert "16 to 20 of 20" in said(second)


@pytest.fixture
def hourly(store: Store) -> str:
    return made(store, name="hourly", rule="0 * * * *", tz="Europe/Paris", since=store.now()).name


def test_a_schedule_shows_what_it_did_and_will_do(web: Web, store: Store, hourly: str) -> None:
    s, now = standing(store, hourly).schedule, store.now()
    ticks = [
        tick(s, now - timedelta(hours=hours), status="missed", why="no supervisor fired it") for hours in range(1, 26)
    ]
    assert store.change([Change(schedule=s, ticks=tuple(ticks))]) == [True]

    page = web.get(f"/schedules/{hourly}")
    older = web.get(link(page, "Older"))

    text = said(page)
    assert "0 * * * * in Europe/Paris" in text
    assert "skip: a tick is skipped while the previous run is still in progress" in text
    assert page.count('<tr data-key="tick-') == 15
    assert older.count('<tr data-key="tick-') == 10
    assert len(re.findall(r'<tr data-key="\d', page)) == 10, "the next ticks"
    assert "No such schedule" in said(web.get(f"/schedules/{quote(SCRIPT + '/?#', safe='')}", 404))


def test_a_schedule_is_paused_resumed_and_triggered(web: Web, store: Store, hourly: str, world: World) -> None:
    ada = web.by("ada")
    assert ada.post(f"/schedules/{hourly}/pause", why="until Monday")[0] == f"/schedules/{hourly}"
    assert standing(store, hourly).schedule.paused_why == "until Monday"
    assert "until Monday" in said(web.get(f"/schedules/{hourly}"))
    ada.post(f"/schedules/{hourly}/resume")
    assert standing(store, hourly).schedule.paused_at is None

    _, told = ada.post(f"/schedules/{hourly}/trigger")
    (run,) = standing(store, hourly).runs
    assert run.tick.job_id
    assert run.tick.job_id in told
    world.advance(1)
    assert run.tick.job_id in said(ada.refused(f"/schedules/{hourly}/trigger", 409))
    ada.post(f"/schedules/{hourly}/trigger", force="yes")
    assert len(standing(store, hourly).runs) == 2
    web.by("bob").refused(f"/schedules/{hourly}/pause", 403)
    assert "<form" not in web.by("bob").get(f"/schedules/{hourly}").partition("<main")[2].partition("</main>")[0]


def test_ticks_of_the_past_are_counted_before_they_are_run(web: Web, store: Store, hourly: str, world: World) -> None:
    world.advance(6 * 3600)
    web.post(f"/schedules/{hourly}/pause", why="quiet")
    since = f"{store.now() - timedelta(hours=2):%Y-%m-%dT%H:%M}"  # Paris is an hour ahead: that is three hours ago

    page = web.get(f"/schedules/{hourly}?since={since}")
    assert "4 ticks:" in said(page)
    assert not store.search(Filter()).jobs
    _, told = web.post(f"/schedules/{hourly}/backfill", **hidden(page, f"/schedules/{hourly}/backfill"))

    assert told == f"{hourly}: 4 jobs stored"
    assert len(store.search(Filter()).jobs) == 4
    assert "Every tick in that time already has a run" in said(web.get(f"/schedules/{hourly}?since={since}"))
    assert "from: expected a time like" in said(web.get(f"/schedules/{hourly}?since=monday"))
    assert "from before until" in said(web.get(f"/schedules/{hourly}?since={since}&until=2020-01-01T00:00"))


def test_a_schedule_is_removed_by_an_admin_who_types_its_name(web: Web, store: Store, admin: Admin) -> None:
    name, declared = made(store).name, made(store, source="shop").name

    assert "type its name" in said(web.refused(f"/schedules/{name}/remove", 422, confirm="remove"))
    web.by("ada").refused(f"/schedules/{name}/remove", 403, confirm=name)
    assert "is declared by app shop" in said(web.refused(f"/schedules/{declared}/remove", 422, confirm=declared))
    assert web.post(f"/schedules/{name}/remove", confirm=name)[0] == "/schedules"

    with pytest.raises(UnknownSchedule):
        admin.schedules.get(name)


def test_a_schedule_is_renamed_by_an_admin(web: Web, store: Store, admin: Admin) -> None:
    name, declared = made(store, name="nightly").name, made(store, source="shop").name

    web.by("ada").refused(f"/schedules/{name}/rename", 403, new="digest")
    assert "is declared by app shop" in said(web.refused(f"/schedules/{declared}/rename", 422, new="digest"))
    assert "exists already" in said(web.refused(f"/schedules/{name}/rename", 409, new=declared))
    assert "expected letters" in said(web.refused(f"/schedules/{name}/rename", 422, new="a b"))
    assert web.post(f"/schedules/{name}/rename", new="digest")[0] == "/schedules/digest"
    assert "nightly until" in said(web.get("/schedules/digest"))
    assert f'action="/schedules/{declared}/rename"' not in web.get(f"/schedules/{declared}")


def test_what_happened_last_night_is_one_page_of_all_schedules(web: Web, store: Store) -> None:
    one, two, now = made(store, name="backup"), made(store, name="report"), store.now()
    for plan, hours, status, why in (
        (one, 3, "failure", f"no disk {SCRIPT}"),
        (two, 2, "success", ""),
        (one, 1, "missed", "no supervisor fired it"),
        (two, 30, "skipped", "overlap"),
    ):
        stands = standing(store, plan.name).schedule
        done = tick(stands, now - timedelta(hours=hours), status=cast("Any", status), why=why)
        assert store.change([Change(schedule=stands, ticks=(done,))]) == [True]

    page = web.get("/ticks")
    lines = re.findall(r'<tr data-key="(\w+)-tick', page)
    assert lines == ["backup", "report", "backup"]
    assert SCRIPT not in page
    assert "no disk" in said(page)
    wrong = web.get("/ticks?last=7d&only=wrong")
    assert re.findall(r'<tr data-key="(\w+)-tick', wrong) == ["backup", "backup", "report"]
    span = f"since={now - timedelta(hours=40):%Y-%m-%dT%H:%M}&until={now - timedelta(hours=20):%Y-%m-%dT%H:%M}"
    assert re.findall(r'<tr data-key="(\w+)-tick', web.get(f"/ticks?{span}")) == ["report"]
    assert "Nothing happened" in said(web.get(f"/ticks?until={now - timedelta(hours=40):%Y-%m-%dT%H:%M}"))
    assert "from: expected a time like" in said(web.get("/ticks?since=monday"))
    assert 'href="/ticks"' in web.get("/schedules")


def test_what_happened_is_read_page_by_page(web: Web, store: Store) -> None:
    plan, now = made(store, name="often"), store.now()
    ticks = (tick(plan, now - timedelta(minutes=n), status="missed", why="x") for n in range(1, 121))
    assert store.change([Change(schedule=plan, ticks=tuple(ticks))]) == [True]

    seen, page = 0, web.get("/ticks")
    while (seen := seen + page.count('<tr data-key="often-')) < 120:
        page = web.get(link(page, "Older"))

    assert (seen, "Older" in page) == (120, False)


def test_what_a_guard_printed_last_is_a_payload(web: Web, store: Store) -> None:
    s = schedule(name="backup", kind="guard", job=None)
    output = f"copied 4242 files {SCRIPT}"
    printed = tick(s, store.now() - timedelta(hours=1), status="success", output=output, host="web-7")
    assert store.change([Change(schedule=s, ticks=(printed,))]) == [True]

    blind, seeing = (web.by(who).get("/schedules/backup") for who in ("ada", "bob"))

    assert "copied 4242 files" in said(seeing)
    assert "copied 4242 files" not in blind
    assert SCRIPT not in seeing
