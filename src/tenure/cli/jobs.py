"""`tenure jobs …` and `tenure dead …`: find jobs, inspect them, act on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tenure.cli.output import jobs_table, pairs, plain, print_error, print_line, progress_bar, show_json, table
from tenure.cli.shared import Shared, admin_of, confirm
from tenure.core.conditions import Condition
from tenure.core.durations import seconds, spell
from tenure.core.lifecycle import GUARD, State
from tenure.errors import InvalidOption, TenureError
from tenure.events import headline
from tenure.operations import job_search
from tenure.operations.explain import progress_text, stamp, waits_for
from tenure.operations.job_search import states_of
from tenure.operations.jobs import CAN, DONE
from tenure.operations.stacks import PATIENCE_SECONDS, stack_lines
from tenure.ports import Filter, JobView

if TYPE_CHECKING:
    from tenure.operations.admin import Admin
    from tenure.operations.jobs import Acted, JobDetail, JobRef, Verb
    from tenure.operations.pace import Pace

jobs = App(name="jobs", help="Find jobs, inspect them, act on them.", help_epilogue="")
dead = App(name="dead", help="Dead letters: jobs that have used up their failures or crashes.", help_epilogue="")

#: The states that each verb acts on if the filter names none: completed jobs are replayed only on request.
_SOURCES: dict[Verb, frozenset[State]] = {**CAN, "replay": CAN["replay"] - {State.COMPLETED}}
_DEAD = frozenset({State.DEAD})
_LOOK_SECONDS = 10.0  #: of one search


def _time(text: str | None, label: str, now: datetime) -> datetime | None:
    """The time that this option means: a duration is so long ago."""
    if text is None:
        return None
    with suppress(InvalidOption):
        return now - timedelta(seconds=seconds(text, label))
    with suppress(InvalidOption):
        return job_search.moment(text, label)
    raise InvalidOption(f"{label}: expected 2h, or a time like 2030-01-31T06:00, in UTC; got {text!r}")


def _argument(text: str) -> Condition:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise InvalidOption(f"--args: expected NAME=VALUE, got {text!r}")
    return Condition("payload", name, True, job_search.checked(value, "--args"))


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Where:
    task: Annotated[str | None, Parameter(name=["--task", "-t"])] = None
    """Only jobs of this task."""
    queue: Annotated[str | None, Parameter(name=["--queue", "-q"])] = None
    """Only jobs of this queue."""
    worker: str | None = None
    """Only jobs that this worker runs."""
    flow: str | None = None
    """Only jobs of this flow."""
    text: str | None = None
    """Only jobs with this text in their error or id."""
    where: str | None = None
    """Only jobs that match a search: "args.user=4711 error~timeout ended<2h"."""
    args: Annotated[list[str] | None, Parameter(consume_multiple=False)] = None
    """Only jobs with this argument, as NAME=VALUE; repeat it."""
    since: str | None = None
    """Only jobs enqueued at or after this time, or within this long: 2030-01-31T06:00, 2h."""
    until: str | None = None
    """Only jobs enqueued before this time, or longer ago than this."""

    def filter(self, states: frozenset[State], now: datetime, words: str = "") -> Filter:
        """Raises InvalidOption."""
        if self.where is not None and not self.where.strip():  # it would mean all jobs
            raise InvalidOption("--where: expected a search, such as args.user=4711, got nothing")
        if self.text is not None and not self.text.strip():  # the same
            raise InvalidOption("--text: expected a text, got nothing")
        plain = Filter(
            states=states,
            task=self.task,
            queue=self.queue,
            worker_id=self.worker,
            flow=self.flow,
            text=self.text,
            enqueued_since=_time(self.since, "--since", now),
            enqueued_until=_time(self.until, "--until", now),
            conditions=tuple(map(_argument, self.args or ())),
        )
        return job_search.both(plain, job_search.parsed(" ".join((self.where or "", words)), now))

    def __bool__(self) -> bool:
        given = (self.task, self.queue, self.worker, self.flow, self.text, self.args, self.since, self.until)
        return any(given) or self.where is not None


Words = Annotated[str, Parameter(help="A search: args.NAME=…, meta.NAME~…, error~…, ended<2h; see docs/search.md.")]
JobId = Annotated[str, Parameter(help="The job's id, or its beginning or end.")]
Ids = Annotated[str, Parameter(help="Which jobs, by id, or its beginning or end; or use the filters.")]
DeadIds = Annotated[
    str, Parameter(help="Which dead letters, by id, or its beginning or end; or use the filters, or --every.")
]
Every = Annotated[bool, Parameter(help="All of them.")]
States = Annotated[
    list[str] | None,
    Parameter(name=["--state", "-s"], help="Only jobs in these states; repeat it, or separate them with commas."),
]
Limit = Annotated[int, Parameter(name=["--limit", "-n"], help="At most this many. Default: 50.")]
PerMinute = Annotated[
    int | None,
    Parameter(
        help="Replay this many a minute: the first at once, each of the others when its turn comes. The same command "
        "continues a replay that was interrupted."
    ),
]
ByError = Annotated[bool, Parameter(name="--by-error", help="Count them by what their errors have in common.")]
Cursor = Annotated[str | None, Parameter(help="Continue where an earlier list ended.")]
NOWHERE, SHARED = Where(), Shared()
STATS_HEADS = (
    "task",
    "completed",
    "dead",
    "cancelled",
    "dead of these",
    "failed before",
    "wait p50",
    "wait p95",
    "run p50",
    "run p95",
)


def _states(named: Sequence[str] | None) -> frozenset[State]:
    return states_of([word.strip() for part in named or () for word in part.split(",")], "--state")


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────────────


@jobs.command
def stats(
    *,
    span: Annotated[str, Parameter(name=["--span"])] = "15m",
    task: Annotated[str | None, Parameter(name=["--task", "-t"])] = None,
    shared: Shared = SHARED,
) -> int:
    """Show how many jobs of each task ended, how many failed, and how long they waited and ran.

    Parameters
    ----------
    span
        15m, 6h or 7d. Default: 15m.
    task
        Only this task.
    """
    with admin_of(shared) as admin:
        found = [each for each in admin.trends.look(span).tasks if task in (None, each.task)]
    if shared.json:
        show_json([{**plain(each), "failure_rate": each.failure_rate} for each in found])
        return 0
    rows = [
        [
            each.task,
            *(f"{count:,}" for count in (each.completed, each.dead, each.cancelled)),
            "" if each.failure_rate is None else f"{each.failure_rate:.1%}",
            f"{each.stumbled:,}",
            *map(short_time, (each.wait_p50, each.wait_p95, each.run_p50, each.run_p95)),
        ]
        for each in found
    ]
    table(STATS_HEADS, rows, fixed=STATS_HEADS[1:], right=STATS_HEADS[1:])
    if not found:
        print_error(f"no job ended within {span}")
    return 0


def short_time(seconds: float | None) -> str:
    return "" if seconds is None else spell(seconds) if seconds >= 1 else f"{seconds * 1000:.0f}ms"


@jobs.command(name="list")
def list_(
    *words: Words,
    state: States = None,
    where: Where = NOWHERE,
    limit: Limit = 50,
    cursor: Cursor = None,
    shared: Shared = SHARED,
) -> int:
    """List jobs, newest first, for example: tenure jobs list "args.user=4711 error~timeout ended<2h"."""
    states = _states(state)
    return _list(lambda now: where.filter(states, now, " ".join(words)), limit, cursor, shared)


def _list(where: Callable[[datetime], Filter], limit: int, cursor: str | None, shared: Shared) -> int:
    if not 1 <= limit <= 10_000:
        raise InvalidOption(f"--limit: expected 1 to 10000, got {limit}")
    with admin_of(shared) as admin:
        now = admin.now()
        asked = where(now)
        page = admin.jobs.search(asked, limit=limit, cursor=cursor, seconds=_LOOK_SECONDS)
        if asked.task and not page.jobs and (warning := admin.jobs.no_such_task(asked.task)):
            print_error(warning)
    if shared.json:
        show_json(page)
        return 0
    jobs_table(page.jobs, now)
    if page.looked:
        back = "" if page.reached is None else f", back to {stamp(page.reached)}"
        print_error(f"looked at {page.looked:,} jobs{back}; to look further: --cursor {page.cursor}")
    elif page.cursor is not None:
        print_error(f"there are more: --cursor {page.cursor}")
    return 0


@jobs.command
def show(job_id: JobId, /, *, shared: Shared = SHARED) -> int:
    """Show everything the store knows about a job, secrets redacted."""
    with admin_of(shared) as admin:
        found = admin.jobs.show(admin.jobs.named(job_id))
    if shared.json:
        show_json(found)
        return 0
    pairs(_facts(found))
    if found.attempts:
        print_line("")
        rows = [
            [
                str(attempt.attempt),
                attempt.outcome,
                stamp(attempt.ended_at),
                attempt.worker_id,
                ", ".join((headline(attempt.error), *(f"{name} {value}" for name, value in attempt.evidence.items()))),
            ]
            for attempt in found.attempts
        ]
        table(
            ("attempt", "outcome", "ended", "worker", "why"), rows, fixed=("attempt", "outcome", "ended"), below="why"
        )
    if found.job.error:
        print_line(f"\n{found.job.error.rstrip()}")
    return 0


def _alone(job: JobView) -> str:
    if not job.solo:
        return ""
    if job.together == 1:
        return "yes, on a one-slot worker"
    return f"in a group of at most {job.together} jobs whose processes died"


def _facts(found: JobDetail) -> list[tuple[str, str]]:
    job = found.job
    rows = [
        ("id", job.id),
        ("task", job.task),
        ("queue", f"{job.queue}, priority {job.priority}"),
        ("state", str(job.state)),
        ("attempt", f"{job.attempt}; {job.failures} of {job.max_failures} failures, {job.crashes} crashes"),
        ("worker", job.worker_id or ""),
        ("alone", _alone(job)),
        ("unique", job.unique or ""),
        ("flow", job.flow or ""),
        ("limits", ", ".join(key.key for key in job.limits)),
        ("waits for", waits_for(job) if job.state is State.WAITING else ""),
        ("progress", progress_text(job)),
        ("cancel requested", job.cancel_reason or ""),
        ("arguments", job.payload),
        ("checkpoint", job.checkpoint or ""),
        ("result", job.result or ""),
        ("meta", ", ".join(f"{key}={value}" for key, value in job.meta.items())),
        *((name, stamp(at)) for name, at in found.times),
    ]
    return [(name, value) for name, value in rows if value]


@jobs.command
def explain(job_id: JobId, /, *, shared: Shared = SHARED) -> int:
    """Explain why a job is not running, or how it ended, and what to do."""
    with admin_of(shared) as admin:
        found = admin.jobs.explain(admin.jobs.named(job_id))
    if shared.json:
        show_json(found)
        return 0
    print_line(f"{found.job.task} {found.job.id} ({found.job.state}): {found.verdict}")
    for reason in found.reasons:
        print_line(f"  - {reason}")
    if found.what_to_do:
        print_line(f"→ {found.what_to_do}")
    return 0


@jobs.command
def stack(job_id: JobId, /, *, shared: Shared = SHARED) -> int:
    """Show where the code of a running job is: its files, lines and functions, the innermost last."""
    with admin_of(shared) as admin:
        job_id = admin.jobs.named(job_id)
        admin.jobs.ask_for_stack(job_id)
        found = admin.jobs.stack(job_id, within=PATIENCE_SECONDS + 1)
    if found is None:
        raise TenureError(f"job {job_id} has ended before its worker was asked")
    if shared.json:
        show_json(found)
    else:
        for line in stack_lines(found):
            print_line(line)
    return 0 if found.state == "answered" else 1


# ── Acting ──────────────────────────────────────────────────────────────────────────────────────────────────────


@jobs.command
def cancel(*ids: Ids, reason: str = "", state: States = None, where: Where = NOWHERE, shared: Shared = SHARED) -> int:
    """Cancel jobs: waiting ones at once, running ones when their code has stopped.

    Parameters
    ----------
    reason
        Kept with the jobs.
    """
    return _act("cancel", ids, _states(state), where, shared, reason=reason)


@jobs.command
def promote(*ids: Ids, where: Where = NOWHERE, shared: Shared = SHARED) -> int:
    """Run scheduled jobs now, due or not."""
    return _act("promote", ids, frozenset(), where, shared)


@jobs.command
def replay(
    *ids: Ids, state: States = None, where: Where = NOWHERE, per_minute: PerMinute = None, shared: Shared = SHARED
) -> int:
    """Run ended jobs again, with fresh budgets. A filter without --state selects dead and cancelled jobs."""
    return _act("replay", ids, _states(state), where, shared, per_minute=per_minute)


@jobs.command
def delete(*ids: Ids, state: States = None, where: Where = NOWHERE, shared: Shared = SHARED) -> int:
    """Delete jobs in any state but processing, with their attempts, results and logs."""
    return _act("delete", ids, _states(state), where, shared)


def _act(
    verb: Verb,
    ids: Sequence[str],
    states: frozenset[State],
    where: Where,
    shared: Shared,
    *,
    reason: str = "",
    per_minute: int | None = None,
) -> int:
    if bool(ids) == bool(where or states):
        got = "both" if ids else "neither"
        raise InvalidOption(f"{verb}: expected either ids or filters (--state, --task, --where …), got {got}")
    with admin_of(shared) as admin:
        if ids:
            refs, all_of = [admin.jobs.ref(each) for each in _named(admin, ids)], None
        else:
            all_of = where.filter(states or _SOURCES[verb], admin.now())
            refs = admin.jobs.refs(all_of)
            _ask(verb, refs, shared)
        pace = None if per_minute is None else admin.jobs.pace(per_minute, all_of)
        among = all_of.states if all_of else None
        return _carry_out(admin, verb, refs, shared, reason=reason, pace=pace, among=among)


def _named(admin: Admin, ids: Sequence[str]) -> list[str]:
    """Each once, before anything is done to one of them."""
    return list(dict.fromkeys(map(admin.jobs.named, ids)))


def _ask(verb: Verb, refs: Sequence[JobRef], shared: Shared) -> None:
    if refs:
        counts = Counter(ref.state for ref in refs)
        told = ", ".join(f"{counts[state]:,} {state}" for state in State if counts[state])
        confirm(shared, f"{verb} {len(refs):,} job{'' if len(refs) == 1 else 's'} ({told})?")


def _carry_out(
    admin: Admin,
    verb: Verb,
    refs: Sequence[JobRef],
    shared: Shared,
    *,
    reason: str = "",
    pace: Pace | None = None,
    among: frozenset[State] | None = None,
) -> int:
    """`among`: the states that a filter, or a command for dead letters, asked for: what has left them is left alone."""
    acted: list[Acted] = []
    try:
        with progress_bar(verb) as step:
            for batch in admin.jobs.act(verb, refs, reason, pace=pace, among=among):
                acted += batch
                step(len(acted), len(refs))
    except KeyboardInterrupt:
        print_error(f"{len(acted):,} of {len(refs):,} are done; the same command continues with the others")
        raise
    missed = [one for one in acted if not one.landed]
    if shared.json:
        show_json(acted)
    elif len(acted) == 1 or missed:
        for one in acted if len(acted) <= 20 else missed[:20]:
            print_line(f"{one.id}: {one.says}")
    if not shared.json and not acted:
        print_line("no job matches")
    elif not shared.json and len(acted) != 1:
        when = f", {pace.per_minute:,} a minute, the last at {stamp(pace.last)}" if pace else ""
        print_line(f"{len(acted) - len(missed):,} of {len(acted):,} jobs {DONE[verb]}{when}")
    return 1 if missed else 0


# ── Dead letters ────────────────────────────────────────────────────────────────────────────────────────────────


@dead.command(name="list")
def dead_list(
    *,
    where: Where = NOWHERE,
    by_error: ByError = False,
    limit: Limit = 50,
    cursor: Cursor = None,
    shared: Shared = SHARED,
) -> int:
    """List dead letters, newest first; those of guards only with --queue guard, since their schedules report them."""
    if by_error:
        return _by_error(where, limit, shared)
    return _list(lambda now: _dead(where, now), limit, cursor, shared)


def _by_error(where: Where, limit: int, shared: Shared) -> int:
    with admin_of(shared) as admin:
        found = admin.jobs.errors(_dead(where, admin.now()), seconds=_LOOK_SECONDS)
    if shared.json:
        show_json(found)
        return 0
    numbers = ("jobs", "fingerprint", "last")
    rows = [
        [
            f"{group.jobs:,}",
            group.fingerprint,
            stamp(group.last_at) if group.last_at else "",
            ", ".join(task for task, _ in group.tasks),
            group.says,
        ]
        for group in found.groups[:limit]
    ]
    table((*numbers, "tasks", "error"), rows, fixed=numbers, right=("jobs",), below="error")
    if found.more:
        print_error(f"these are the newest {found.jobs:,}; there are more")
    if rows:
        print_error(f"replay a group: tenure dead replay --where fingerprint={rows[0][1]} --per-minute 60")
    return 0


dead.command(show)


@dead.command(name="replay")
def dead_replay(
    *ids: DeadIds,
    where: Where = NOWHERE,
    every: Every = False,
    per_minute: PerMinute = None,
    shared: Shared = SHARED,
) -> int:
    """Run dead letters again, with fresh budgets: these, those that match, or --every one."""
    return _act_on_dead("replay", ids, where, every, shared, per_minute)


@dead.command(name="delete")
def dead_delete(*ids: DeadIds, where: Where = NOWHERE, every: Every = False, shared: Shared = SHARED) -> int:
    """Delete dead letters permanently: these, those that match, or --every one."""
    return _act_on_dead("delete", ids, where, every, shared)


def _dead(where: Where, now: datetime) -> Filter:
    return replace(where.filter(_DEAD, now), guards=where.queue == GUARD)


def _act_on_dead(
    verb: Verb, ids: Sequence[str], where: Where, every: bool, shared: Shared, per_minute: int | None = None
) -> int:
    if bool(ids) + bool(where) + every != 1:
        raise InvalidOption(f"{verb}: expected ids, or filters (--task, --queue, --where …), or --every")
    with admin_of(shared) as admin:
        if ids:
            refs, all_of = [admin.jobs.ref(each, _DEAD) for each in _named(admin, ids)], None
        else:
            all_of = _dead(where, admin.now())
            refs = admin.jobs.refs(all_of)
            _ask(verb, refs, shared)
        pace = None if per_minute is None else admin.jobs.pace(per_minute, all_of)
        return _carry_out(admin, verb, refs, shared, pace=pace, among=_DEAD)
