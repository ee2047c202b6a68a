"""The pages of flows, and what a job's page shows of waiting: through the whole dashboard, without a script."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance.factories import World, claim, draft, finish, look, put, running, start
from conformance.test_waiting import after, end, gathered, settle_waits
from tenure import Job, Tenure
from tenure.config import Settings, load
from tenure.core.ids import new_id
from tenure.core.lifecycle import Completed, Failed, Lease, Outcome, State, Suspended
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.ports import Draft, Store
from tenure.stores.sqlite import SqliteStore
from tenure.web.dashboard import create
from tenure.web.views import flows
from web.test_pages_jobs import SCRIPT, TOKENS, Web, link, listed, said

pytestmark = pytest.mark.usefixtures("unhurried")
DEAD = Failed("ValueError: no text in picture 4711", final=True)


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

    @jobs.task(name="approve", signals={"approved": Mapping[str, str]})
    def approve(job: Job) -> None: ...

    return Web(create(lambda: Admin(store, PollNotifier(), settings), settings, tasks=jobs.tasks))


# ── Flows to look at ──


@dataclass(frozen=True)
class Made:
    """A flow, and its jobs by their tasks."""

    id: str
    jobs: Mapping[str, list[str]]

    def one(self, task: str) -> str:
        (job_id,) = self.jobs[task]
        return job_id


def flow(store: Store, name: str, **steps: tuple[int, tuple[str, ...]]) -> Made:
    """`flow(store, "x", fetch=(1, ()), page=(5, ("fetch",)))`: this many jobs of a task, each after all those tasks."""
    made = Made(new_id(), {})
    drafts: list[Draft] = []
    for task, (number, before) in steps.items():
        parents = [job_id for each in before for job_id in made.jobs[each]]
        links = after(*parents, flow=made.id, name=name)
        some = [draft(task=task, links=links) for _ in range(number)]
        made.jobs[task] = [each.id for each in some]  # type: ignore[index]
        drafts += some
    store.enqueue(drafts)
    settle_waits(store)
    return made


def diamond(store: Store, name: str = "diamond", last: Outcome = DEAD) -> Made:
    """Its second side ends with `last`; what is below waits."""
    sides = {"resize": (1, ("fetch",)), "describe": (1, ("fetch",))}
    made = flow(store, name, fetch=(1, ()), **sides, publish=(1, ("resize", "describe")))
    end(store, made.one("fetch"))
    settle_waits(store)
    end(store, made.one("resize"))
    end(store, made.one("describe"), last)
    settle_waits(store)
    return made


def waiting_for(store: Store, signal: str, task: str = "approve", timeout: float | None = None) -> str:
    lease = running(store, task=task, id=new_id())
    assert finish(store, lease, Suspended("for a signal", signal=signal, timeout=timeout)) is State.WAITING
    settle_waits(store)
    return lease.job_id


def main(html: str) -> str:
    return html.partition("<main")[2].partition("</main>")[0]


def boxes(html: str) -> list[str]:
    return re.findall(r'<a class="box[^>]*aria-label="([^"]*)"', html)


def arrows(html: str) -> list[str]:
    """Kind and sentence of each arrow of the graph."""
    found = re.findall(r'<path class="arrow (\w+)[^"]*" d="[^"]*"><title>([^<]*)', html)
    return [f"{kind}: {says}" for kind, says in found]


# ── The list ──


def test_flows_are_listed_newest_first_with_what_holds_them(web: Web, store: Store, world: World) -> None:
    done = flow(store, "done", only=(1, ()))
    end(store, done.one("only"))
    world.advance(5)
    held = diamond(store)

    page = web.by("bob").get("/flows")

    assert listed(page) == [held.id, done.id]
    rows = said(page)
    assert "2 completed, 1 waiting, 1 dead 75%" in rows
    assert f"describe {held.one('describe')[-8:]} ValueError: no text in picture 4711" in rows
    assert f'href="/flows/{held.id}"' in page
    assert listed(web.get("/flows?stands=held")) == [held.id]
    assert listed(web.get("/flows?stands=completed")) == [done.id]
    assert listed(web.get("/flows?q=DIA")) == [held.id] == listed(web.get(f"/flows?q={held.id[-8:]}"))
    assert listed(web.get("/flows?stands=nonsense")) == [held.id, done.id]


def test_a_list_without_flows_says_how_to_make_one(web: Web) -> None:
    assert "No flows yet Enqueue one in code" in said(web.get("/flows"))
    assert "No flow matches" in said(web.get("/flows?q=nothing"))


def test_a_page_of_flows_goes_on_and_a_search_says_how_far_it_looked(
    web: Web, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [flow(store, f"flow {number}", only=(1, ())) for number in range(30)]
    newest = [each.id for each in made[::-1]]

    first = web.get("/flows")
    second = web.get(link(first, "Older"))
    assert listed(first) + listed(second) == newest[: 2 * flows.SIZE]
    assert listed(web.get(link(second, "Newest"))) == listed(first)

    monkeypatch.setattr(flows, "_MOST_LOOKED_AT", 1)
    looked = web.get("/flows?q=flow+1")
    assert f"Looked at {flows.SIZE} flows; 2 of them match" in said(looked)
    assert listed(web.get(link(looked, "Look further"))) == [made[number].id for number in range(17, 9, -1)]


# ── One flow ──


def test_a_flow_is_shown_as_a_graph_and_as_a_table_of_the_same_steps(web: Web, store: Store) -> None:
    made = diamond(store)

    page = web.by("bob").get(f"/flows/{made.id}")

    assert "It is held: 75% of its 4 jobs have ended" in said(page)
    assert boxes(page) == [
        "fetch: 1 job, 1 completed",
        "describe: 1 job, 1 dead",
        "resize: 1 job, 1 completed",
        "publish: 1 job, 1 waiting",
    ]
    assert arrows(page) == [
        "done: fetch before describe: 1 edge, all ended; must complete",
        "done: fetch before resize: 1 edge, all ended; must complete",
        "held: describe before publish: 1 edge, 1 open; must complete",
        "done: resize before publish: 1 edge, all ended; must complete",
    ]
    table = page.partition('data-live="live_steps"')[2]
    assert re.findall(r'<tr id="step-(\d)">', table) == ["0", "1", "2", "3"]
    assert "publish 1 waiting describe not ended , resize" in said(page)
    assert f'href="/jobs/{made.one("publish")}"' in page
    assert "<form" not in main(page), "who only reads has no buttons"


def test_siblings_are_one_box_with_their_states_and_a_link_to_all_of_them(web: Web, store: Store) -> None:
    made = flow(store, "report", list=(1, ()), render=(40, ("list",)), combine=(1, ("render",)))
    end(store, made.one("list"))
    settle_waits(store)
    worker = start(store)
    for number, each in enumerate(claim(store, worker, 12)):
        finish(store, Lease(each.id, each.attempt, worker), DEAD if number < 2 else Completed("1"))
    settle_waits(store)

    page = web.get(f"/flows/{made.id}")

    assert boxes(page)[1] == "render: 40 jobs, 10 completed, 28 queued, 2 dead"
    assert "10 of 40 · 2 dead" in page
    assert arrows(page)[1] == "held: render before combine: 40 edges, 30 open; must complete"
    assert set(listed(web.get(link(page, "render")))) <= set(made.jobs["render"])
    assert "and 37 more" in said(page)
    jobs = web.get(f"/jobs?flow={made.id}&task=render&state=dead")
    assert set(listed(jobs)) <= set(made.jobs["render"])
    assert len(listed(jobs)) == 2


def test_a_flow_of_ten_thousand_jobs_is_a_small_page(web: Web, store: Store) -> None:
    made = flow(store, "crawl", fetch=(5_000, ()), report=(1, ("fetch",)), clean=(4_999, ()))

    page = web.get(f"/flows/{made.id}")

    assert "its 10,000 jobs" in said(page)
    assert boxes(page)[0].startswith(("clean: 4,999 jobs", "fetch: 5,000 jobs"))
    assert len(page) < 40_000


def test_a_flow_that_is_not_there_is_said_kindly(web: Web) -> None:
    for flow_id in (new_id(), "nope", "%3Cscript%3Ealert(1)"):
        page = web.get(f"/flows/{flow_id}", 404)
        assert "No such flow" in said(page)
        assert SCRIPT not in page
    web.get("/flows?cursor=nonsense", 422)


def test_a_text_of_a_flow_is_shown_as_it_is(web: Web, store: Store) -> None:
    made = flow(store, SCRIPT, **{SCRIPT: (1, ()), f"{SCRIPT} again": (2, (SCRIPT,))})
    end(store, made.one(SCRIPT), Failed(SCRIPT, final=True))
    settle_waits(store)
    child = made.jobs[f"{SCRIPT} again"][0]
    for path in ("/flows", f"/flows/{made.id}", f"/jobs/{made.one(SCRIPT)}", f"/jobs/{child}"):
        page = web.get(path)
        assert SCRIPT not in page
        assert SCRIPT in said(page)


# ── Acting on a flow ──


def test_its_dead_jobs_run_again_and_it_goes_on(web: Web, store: Store, admin: Admin) -> None:
    made = diamond(store)
    other = diamond(store, "other")

    to, told = web.by("tom").post(f"/flows/{made.id}/replay")

    assert (to, told) == (f"/flows/{made.id}", "1 job queued again")
    assert look(store, made.one("describe")).state is State.QUEUED
    assert look(store, other.one("describe")).state is State.DEAD
    entry = admin.audit().entries[0]
    assert (entry.who, entry.action, entry.subject) == ("tom", "flows.replay", made.id)
    end(store, made.one("describe"))
    settle_waits(store)
    assert look(store, made.one("publish")).state is State.QUEUED


def test_its_jobs_are_cancelled_with_a_reason_and_those_that_have_ended_stay(
    web: Web, store: Store, admin: Admin
) -> None:
    made = diamond(store, last=Completed("1"))

    assert web.by("tom").post(f"/flows/{made.id}/cancel", reason="not wanted")[1] == "1 job cancelled, or asked to stop"

    assert look(store, made.one("publish")).cancel_reason == "not wanted"
    assert look(store, made.one("fetch")).state is State.COMPLETED
    assert (admin.audit().entries[0].action, admin.audit().entries[0].subject) == ("flows.cancel", made.id)
    assert "Cancel the flow" not in said(web.get(f"/flows/{made.id}")), "nothing is left to cancel"


def test_what_waits_for_a_dead_job_goes_on_without_it_unless_it_needs_its_result(
    web: Web, store: Store, admin: Admin
) -> None:
    made = diamond(store)
    job_id = made.one("describe")
    page = web.get(f"/flows/{made.id}")
    assert "1 job waits for it" in said(page)
    assert 'data-confirm="Let the jobs that wait for describe' in page

    to, told = web.by("tom").post(f"/jobs/{job_id}/skip", back=f"/flows/{made.id}")

    assert (to, told) == (f"/flows/{made.id}", f"Job {job_id[-8:]}: skipped: what waited for it goes on")
    settle_waits(store)
    assert look(store, made.one("publish")).state is State.QUEUED
    assert (admin.audit().entries[0].action, admin.audit().entries[0].subject) == ("flows.skip", job_id)
    assert f"/jobs/{job_id}/skip" not in web.get(f"/flows/{made.id}"), "no job waits for it any more"

    parent = put(store, id=new_id(), task="load")
    child = put(store, links=after(parent), payload=json.dumps({"text": {"$output": 0}}))
    settle_waits(store)
    end(store, parent, DEAD)
    settle_waits(store)
    assert f"job {child} takes its result" in web.post(f"/jobs/{parent}/skip")[1]
    assert "nothing done" in web.post(f"/jobs/{child}/skip")[1]
    web.refused(f"/jobs/{new_id()}/skip", 404)
    web.refused(f"/flows/{new_id()}/cancel", 404)
    web.refused("/flows/nope/replay", 404)


def test_only_operators_act_on_flows_and_send_signals(web: Web, store: Store) -> None:
    made = diamond(store)
    dead, waits = made.one("describe"), waiting_for(store, "own:approved")

    for path in (f"/flows/{made.id}/cancel", f"/flows/{made.id}/replay", f"/jobs/{dead}/skip", f"/jobs/{waits}/signal"):
        web.by("bob").refused(path, 403, name="approved", value="1")
    for path in (f"/flows/{made.id}", f"/jobs/{dead}", f"/jobs/{waits}"):
        assert "<form" not in main(web.by("bob").get(path))

    assert look(store, dead).state is State.DEAD
    assert store.signals(waits) == []


# ── A job that waits ──


def test_a_waiting_job_shows_what_is_before_and_after_it(web: Web, store: Store) -> None:
    made = flow(store, "report", render=(30, ()), combine=(1, ("render",)), mail=(1, ("combine",)))
    worker = start(store)
    for number, each in enumerate(claim(store, worker, 12)):
        if number >= 3:  # the first three are running
            finish(store, Lease(each.id, each.attempt, worker), DEAD if number == 5 else Completed("1"))
    settle_waits(store)

    page = web.by("bob").get(f"/jobs/{made.one('combine')}")

    text = said(page)
    assert "8 of 30 have ended; it waits for 22." in text
    first = text.partition("Jobs before it")[2]
    assert re.match(r" 8 of 30 .{20,40} dead render [0-9a-f]{8} ValueError: no text in picture 4711", first)
    assert "22 more are not listed" in first
    assert f"Jobs after it waiting mail {made.one('mail')[-8:]}" in text
    assert f'of the flow <a href="/flows/{made.id}">report</a>' in page
    assert "waits for other jobs" in said(web.get("/jobs?state=waiting"))
    dead = next(each for each in made.jobs["render"] if look(store, each).state is State.DEAD)
    assert f'<a class="mono" href="/jobs/{dead}" title="{dead}">' in page.partition("live_waits")[0], "its reasons link"


def test_a_dead_job_is_told_who_waits_for_it_and_offers_to_go_on(web: Web, store: Store) -> None:
    made = diamond(store)

    page = web.by("tom").get(f"/jobs/{made.one('describe')}")

    assert f'action="/jobs/{made.one("describe")}/skip"' in page
    assert f"Jobs after it waiting publish {made.one('publish')[-8:]}" in said(page)
    assert "/skip" not in web.get(f"/jobs/{made.one('publish')}")


def test_a_job_shows_the_jobs_that_it_gathers(web: Web, store: Store) -> None:
    lease = running(store, id=new_id(), task="all")
    children = gathered(store, lease, number=3, task="part")
    settle_waits(store)
    end(store, children[0])
    settle_waits(store)

    text = said(web.get(f"/jobs/{lease.job_id}"))

    assert "Jobs that it gathers 1 of 3 have ended; it waits for 2." in text
    assert "Attempt 1 suspended" in text
    assert "It waits, and then starts from the top".lower() in text.lower()


def test_a_signal_is_sent_by_a_form_and_seen_by_who_may_see_payloads(web: Web, store: Store, admin: Admin) -> None:
    job_id = waiting_for(store, "own:approved", timeout=3600.0)
    page = web.by("ada").get(f"/jobs/{job_id}")
    assert "It waits for the signal approved , which times out" in said(page)
    assert "waits for the signal approved" in said(web.get("/jobs?state=waiting"))

    again = web.by("ada").refused(f"/jobs/{job_id}/signal", 422, name="approved", value='{"by": 5}')
    assert "expected str, got int" in said(again)
    assert "{&#34;by&#34;: 5}</textarea>" in again, "what was typed is kept"
    assert "expected JSON" in said(web.by("ada").refused(f"/jobs/{job_id}/signal", 422, name="approved", value="{"))
    assert store.signals(job_id) == []

    to, told = web.by("ada").post(f"/jobs/{job_id}/signal", name="approved", value='{"by": "ada@x.org"}')

    assert to == f"/jobs/{job_id}"
    assert told.startswith("approve: approved is sent")
    assert [each.key for each in store.signals(job_id)] == ["own:approved"]
    settle_waits(store)
    assert look(store, job_id).state is State.QUEUED
    seeing, blind = said(web.get(f"/jobs/{job_id}")), said(web.by("ada").get(f"/jobs/{job_id}"))
    assert "approved sent" in seeing
    assert "ada@x.org" in seeing
    assert "approved sent" in blind
    assert "ada@x.org" not in blind
    entry = admin.audit().entries[0]
    assert (entry.who, entry.action, entry.subject) == ("ada", "signals.send", job_id)
    assert "arrives once" in web.post(f"/jobs/{job_id}/signal", name="approved", value='{"by": "tom"}')[1]


def test_a_shared_signal_is_sent_to_all_that_wait_for_it(web: Web, store: Store) -> None:
    jobs = [waiting_for(store, "shared:go-live", task="release") for _ in range(2)]
    page = web.get(f"/jobs/{jobs[0]}")
    assert "It waits for the shared signal go-live ." in said(page)

    told = web.post(f"/jobs/{jobs[0]}/signal", name="go-live", value="true", shared="yes")[1]

    assert told == "release: sent to all jobs that wait for it"
    settle_waits(store)
    assert {look(store, each).state for each in jobs} == {State.QUEUED}


def test_a_signal_of_a_job_that_has_ended_is_refused_in_a_sentence(web: Web, store: Store) -> None:
    job_id = put(store, id=new_id(), task="other")
    store.cancel([job_id], "")

    to, told = web.post(f"/jobs/{job_id}/signal", name="approved", value="1")

    assert to == f"/jobs/{job_id}"
    assert f"job {job_id}" in told
    assert store.signals(job_id) == []
