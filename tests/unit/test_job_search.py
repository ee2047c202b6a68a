"""The words of a search: what they mean, what is refused, who may use them, and how far one look goes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from conformance.factories import bring, draft, finish, put, running
from tenure.config import load
from tenure.core.lifecycle import Completed, Failed, State
from tenure.errors import InvalidOption
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.operations.job_query import JobQuery
from tenure.operations.job_search import fixed, parsed
from tenure.ports import Filter, Page, Store

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def admin(store: Store) -> Admin:
    return Admin(store, PollNotifier(), load(environ={}), who="ada")


def found(admin: Admin, words: str, **options: Any) -> list[str]:
    return [job.id for job in admin.jobs.search(parsed(words, admin.now()), seconds=60.0, **options).jobs]


def test_each_word_is_one_condition() -> None:
    ago = NOW - timedelta(hours=2)
    expected: dict[str, Filter] = {
        "": Filter(),
        "  task=mail queue=slow ": Filter(task="mail", queue="slow"),
        "worker=w unique=order:7": Filter(worker_id="w", unique="order:7"),
        "state=dead,cancelled": Filter(states=frozenset({State.DEAD, State.CANCELLED})),
        "ended<2h": Filter(ended_since=ago),
        "ended>2h": Filter(ended_until=ago),
        "ended<2030-01-31T10:00": Filter(ended_until=ago),
        "enqueued>2030-01-31T10:00": Filter(enqueued_since=ago),
        'task="a b"': Filter(task="a b"),
    }
    for words, where in expected.items():
        assert parsed(words, NOW) == where, words


@pytest.mark.parametrize(
    "words",
    [
        "args.user=4711",
        "ARGS.user=x",
        "user=4711",
        "args.user<5",
        "args.user=",
        "args.user~",
        'args.user~""',
        "args~",
        '""',
        "task=",
        "ended=2h",
        "ended<2",
        "state=dad",
        "task=a task=b",
        "state~dead",
        '"not closed',
        "error.x~y",
        "a " * 11,
        "x" * 1_001,
        "a\x00b",
        "a\ud800b",
        "[.*+",
        "http://host/?a=b",
        '"user=4711"',
    ],
)
def test_what_is_not_understood_is_refused_in_words_and_never_guessed(words: str) -> None:
    good = ("args.user=4711", "ARGS.user=x", "[.*+", "http://host/?a=b", '"user=4711"')
    if words in good:
        assert parsed(words, NOW).conditions
    else:
        with pytest.raises(InvalidOption, match=r"expected|quote|twice|unit"):
            parsed(words, NOW)


def test_a_search_finds_by_argument_meta_result_and_error(store: Store, admin: Admin) -> None:
    payload = {"user": 4711, "order": {"id": 17, "tags": ["Red", "blue"]}, "a.b": True, "none": None, "price": 1.5}
    lease = running(store, payload=json.dumps(payload), meta='{"trace.id":"Ab"}')
    finish(store, lease, Completed('[{"sent":"YES"}]'))
    dead = running(store, payload='{"user":47110}')
    finish(store, dead, Failed("TimeOut: no answer\n  in line 3", final=True))

    here = [
        "args.user=4711",
        "args.USER=4711",
        "args.order.id=17",
        "args.order.tags=red",
        "args.order~tags",
        "args=17",
        "args~ED",
        "args.a.b=true",
        "args.none=null",
        "args.price=1.5",
        "meta.trace.id=ab",
        "meta~a",
        "result.sent=yes",
        "result~Yes",
        "args.user=4711 state=completed ended<1h",
    ]
    for words in here:
        assert found(admin, words) == [lease.job_id], words
    for words in ("error~timeout", "timeout ANSWER", 'error~"no answer"', "args.user=47110", "args.user~47110"):
        assert found(admin, words) == [dead.job_id], words
    assert found(admin, "args.user~4711") == [dead.job_id, lease.job_id]
    for words in (
        "args.user=471",
        "args.tags=red",
        "args.order=17x",
        "error~nowhere",
        "args.order=tags",
        "result=sent",
    ):
        assert found(admin, words) == [], words


def test_an_empty_value_is_looked_for_only_where_it_is_written(store: Store, admin: Admin) -> None:
    empty, _ = put(store, payload='{"user":""}'), put(store, payload='{"user":"ada"}')
    assert found(admin, 'args.user=""') == [empty]


def test_other_encoders_escape_other_characters(store: Store, admin: Admin) -> None:
    """SQL stores arguments as they come, and PHP, Go or Ruby write some characters differently."""
    here = put(store, payload=r'{"url":"https:\/\/x.io\/y","q":"a\u0026b \u003c\u003e \u0027"}')
    for words in ("args.url=https://x.io/y", "args.q~a&b", 'args.q~"<> \'"'):
        assert found(admin, words) == [here], words


def test_arguments_that_no_worker_can_read_are_listed_starred(store: Store, admin: Admin) -> None:
    for odd in ("1e400", "[" * 3_000 + "]" * 3_000):
        here = put(store, payload=f'{{"token":1,"a":{odd}}}')
        assert found(admin, "")[0] == here
        assert next(job for job in admin.jobs.search(parsed("", admin.now())).jobs if job.id == here).payload == '"***"'


def test_nobody_finds_a_job_by_a_secret(store: Store, admin: Admin) -> None:
    payload = '{"user":1,"password":"hunter2","card":{"$secret":"hunter2"},"list":[{"token":"hunter2"}]}'
    store.enqueue([draft(payload=payload, meta='{"api_token":"hunter2"}') for _ in range(450)])

    for words in ("args.password=hunter2", "args~hunter2", "meta~hunter2", "args.card~hunter2", "args.list~hunter2"):
        nothing = admin.jobs.search(parsed(words, admin.now()), limit=3, seconds=60.0)
        assert (nothing.jobs, nothing.cursor) == ((), None), words
    assert len(found(admin, "args.user=1", limit=30)) == 30


def test_jobs_that_only_a_hidden_value_makes_candidates_move_no_cursor_off_the_batch(
    store: Store, admin: Admin
) -> None:
    store.enqueue([draft(payload='{"user":1,"password":"hunter2"}') for _ in range(900)])
    walked, cursor, looked = 0, None, 0
    while True:
        page = admin.jobs.search(parsed("args~hunter2", admin.now()), limit=7, cursor=cursor, seconds=0.0)
        assert page.jobs == ()
        if (cursor := page.cursor) is None:
            break
        walked, looked = walked + 1, looked + page.looked
    assert looked % 200 == 0
    assert walked == looked // 200


def test_a_page_of_matches_goes_on_after_its_last_match(store: Store, admin: Admin) -> None:
    ids = [put(store, payload=json.dumps({"user": number % 3})) for number in range(700)][::-1]
    wanted = [job_id for place, job_id in enumerate(ids) if (699 - place) % 3 == 1]

    seen, cursor = list[str](), None
    while True:
        page = admin.jobs.search(parsed("args.user=1", admin.now()), limit=40, cursor=cursor, seconds=60.0)
        assert len(page.jobs) <= 40
        seen += [job.id for job in page.jobs]
        if (cursor := page.cursor) is None:
            break
    assert seen == wanted


def test_a_search_out_of_time_says_how_far_it_looked_and_goes_on(store: Store, admin: Admin) -> None:
    oldest = put(store, payload='{"user":4711}')
    store.enqueue([draft() for _ in range(2_500)])
    where = parsed("args.user=4711", admin.now())

    page = admin.jobs.search(where, seconds=0.0)
    assert (page.jobs, page.looked) == ((), 1_000)
    assert page.reached is not None
    rest = admin.jobs.search(where, cursor=page.cursor, seconds=60.0)
    assert [job.id for job in rest.jobs] == [oldest]
    assert (rest.cursor, rest.looked) == (None, 0)


def test_a_reader_without_payloads_neither_sees_nor_searches_them() -> None:
    for words in ("args.user=1", "args~x", "result=1", "task=a result.x~y"):
        with pytest.raises(InvalidOption, match="may not see arguments and results"):
            JobQuery((), {"q": words}).filter(NOW, payloads=False)
        assert JobQuery((), {"q": words}).filter(NOW, payloads=True).conditions
    for words in ("error~x", "meta.request=1", "boom"):
        assert JobQuery((), {"q": words}).filter(NOW, payloads=False).conditions


def test_a_search_and_the_other_filters_must_both_match() -> None:
    ask = JobQuery(("dead",), {"q": "state=dead,queued task=mail enqueued<2h", "last": "1h", "queue": "slow"})
    where = ask.filter(NOW, payloads=True)
    assert (where.states, where.task, where.queue) == (frozenset({State.DEAD}), "mail", "slow")
    assert where.enqueued_since == NOW - timedelta(hours=1)
    with pytest.raises(InvalidOption, match="these are jobs that are dead, and it asks for queued"):
        JobQuery(("dead",), {"q": "state=queued"}).filter(NOW, payloads=True)
    with pytest.raises(InvalidOption, match="twice"):
        JobQuery((), {"q": "task=a", "task": "b"}).filter(NOW, payloads=True)
    for name in ("task", "queue", "worker", "unique", "text"):
        for odd in ("x" * 5_000, "a\x00"):
            with pytest.raises(InvalidOption, match=f"{name}: expected"):
                JobQuery((), {name: odd}).filter(NOW, payloads=True)


def test_a_search_with_ages_finds_the_same_jobs_later() -> None:
    words = 'ended<2h enqueued>1d "ended<2h" args.user="a b"'
    later = NOW + timedelta(hours=5)
    assert parsed(fixed(words, NOW), later) == parsed(words, NOW)
    ask = JobQuery((), {"q": words}).fixed(NOW, payloads=True)
    assert ask.filter(later, payloads=True).ended_since == NOW - timedelta(hours=2)


@pytest.mark.parametrize("end", ["", "2030-01-31T00:00:00Z"])
def test_what_was_counted_has_no_jobs_that_are_enqueued_after_the_count(end: str) -> None:
    asks = [JobQuery((), {"until": end} if end else {}), JobQuery((), {"q": f"enqueued<{end}"} if end else {})]
    for ask in asks:
        until = ask.fixed(NOW, payloads=True).filter(NOW, payloads=True).enqueued_until
        assert until is not None
        assert until <= NOW + timedelta(milliseconds=1)


def test_bulk_actions_take_exactly_what_a_search_finds_and_the_trail_hides_the_value(
    store: Store, admin: Admin
) -> None:
    near, exact = bring(store, State.DEAD, payload='{"user":47110}'), bring(store, State.DEAD, payload='{"user":4711}')
    where = parsed("args.user=4711", admin.now())

    assert admin.jobs.count(where, "replay").jobs == 1
    assert [ref.id for ref in admin.jobs.refs(where)] == [exact.job_id]
    assert admin.jobs.act_on_all("replay", where).done == 1
    assert [job.state for job in map(store.get, (near.job_id, exact.job_id)) if job] == [State.DEAD, State.QUEUED]
    subjects = [each.subject for each in admin.audit().entries]
    assert any("args.user=***" in subject for subject in subjects)
    assert not any("4711" in subject for subject in subjects)


@pytest.mark.thorough
def test_a_bulk_action_reads_each_job_about_once(store: Store, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    store.enqueue([draft(payload='{"user":4711}') for _ in range(2_000)])
    where, search, read = parsed("args.user=4711", admin.now()), store.search, list[int]()

    def counting(where: Filter, **options: Any) -> Page:
        page = search(where, **options)
        read.append(len(page.jobs))
        return page

    monkeypatch.setattr(store, "search", counting)
    results = {
        "refs": lambda: len(admin.jobs.refs(where)),
        "count": lambda: admin.jobs.count(where, "cancel").jobs,
        "act": lambda: admin.jobs.act_on_all("cancel", where).done,
    }
    for name, result in results.items():
        read.clear()
        assert result() == 2_000, name
        assert sum(read) <= 2_000 + 200, name  # only the first step finds out how many are candidates
        assert len(read) <= 2_000 / 200 + 2, name
