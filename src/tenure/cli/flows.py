"""`tenure flows …`: how far flows are, their jobs by step; cancel, replay, go on without a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tenure.cli.output import ago, pairs, plain, print_error, print_line, show_json, table
from tenure.cli.shared import Shared, admin_of, confirm
from tenure.core.lifecycle import State
from tenure.errors import InvalidOption
from tenure.operations.explain import stamp

if TYPE_CHECKING:
    from tenure.operations.flow_graph import Graph, Step
    from tenure.operations.flows import Flow, FlowActed
    from tenure.operations.jobs import Acted

flows = App(name="flows", help="Flows: how far they are; cancel, replay, go on without a job.", help_epilogue="")
SHARED = Shared()
FlowId = Annotated[str, Parameter(help="The flow's id.")]
_NUMBERS = ("ended", "age")


@flows.default
@flows.command(name="list")
def list_(
    *,
    limit: Annotated[int, Parameter(name=["--limit", "-n"], help="At most this many. Default: 50.")] = 50,
    cursor: Annotated[str | None, Parameter(help="Continue where an earlier list ended.")] = None,
    shared: Shared = SHARED,
) -> int:
    """List flows, newest first, and how far each is."""
    if not 1 <= limit <= 1_000:
        raise InvalidOption(f"--limit: expected 1 to 1000, got {limit}")
    with admin_of(shared) as admin:
        page, now = admin.flows.all(limit=limit, cursor=cursor), admin.now()
    if shared.json:
        show_json({"flows": [_described(each) for each in page.flows], "cursor": page.cursor})
        return 0
    rows = [
        [
            each.id,
            each.stands,
            f"{each.progress:.0%}",
            ago(each.created_at, now),
            each.name,
            f"{_jobs(each.total)}: {_counted(each.counts)}",
        ]
        for each in page.flows
    ]
    heads = ("id", "state", "ended", "age", "name", "what")
    table(heads, rows, fixed=("id", "state", *_NUMBERS), right=_NUMBERS, below="what")
    if page.cursor is not None:
        print_error(f"there are more: --cursor {page.cursor}")
    return 0


@flows.command
def show(flow_id: FlowId, /, *, shared: Shared = SHARED) -> int:
    """Show the jobs of a flow by step: siblings are one line."""
    with admin_of(shared) as admin:
        found = admin.flows.show(flow_id)
    flow, graph = found.flow, found.graph
    if shared.json:
        show_json({**_described(flow), "held": list(found.held), **plain(graph)})
        return 0
    pairs(
        [
            ("flow", flow.id),
            ("name", flow.name),
            ("state", f"{flow.stands}, {flow.progress:.0%} of {_jobs(flow.total)} ended"),
            ("since", stamp(flow.created_at)),
            ("jobs", _counted(flow.counts)),
            *(("held by", job_id) for job_id in found.held),
        ]
    )
    print_line("")
    rows = [
        [str(each.number + 1), each.task, f"{each.total:,}", _after(each, graph), _state(each)] for each in graph.steps
    ]
    heads = ("step", "task", "jobs", "after", "what")
    table(heads, rows, fixed=("step", "jobs"), right=("step", "jobs"), below="what")
    if graph.folded:
        print_error("it has many steps: all jobs of a task are one line, wherever they are in the flow")
    if not graph.complete:
        print_error("it has more jobs or edges than are shown: tenure jobs list flow=… lists all")
    if found.held:
        print_line("→ why, and what to do: tenure jobs explain ID")
    return 0


def _described(flow: Flow) -> Mapping[str, Any]:
    return {**plain(flow), "total": flow.total, "progress": flow.progress, "state": flow.stands}


def _counted(counts: Mapping[State, int]) -> str:
    return ", ".join(f"{counts[state]:,} {state}" for state in State if counts.get(state, 0))


def _after(step: Step, graph: Graph) -> str:
    names = [
        f"{each.source + 1}{' (any end)' if each.ended else ''}{' (gathers)' if each.mine else ''}"
        for each in graph.arrows
        if each.target == step.number
    ]
    return ", ".join(names)


def _state(step: Step) -> str:
    gone = step.total - sum(step.counts.values())
    said = [_counted(step.counts), f"{gone:,} gone" if gone else "", "not of this flow" if step.outside else ""]
    dead = f"first: {step.jobs[0]}" if step.counts.get(State.DEAD, 0) else ""
    return "; ".join(filter(None, (*said, dead)))


# ── Acting ──────────────────────────────────────────────────────────────────────────────────────────────────────


@flows.command
def cancel(flow_id: FlowId, /, *, reason: str = "", shared: Shared = SHARED) -> int:
    """Cancel the jobs of a flow that have not ended; running ones are asked to stop.

    Parameters
    ----------
    reason
        Kept with the jobs.
    """
    with admin_of(shared) as admin:
        flow = admin.flows.get(flow_id)
        if flow.live:
            confirm(shared, f"cancel the {_jobs(flow.live)} of flow {flow.name} that have not ended?")
        return _told(admin.flows.cancel(flow_id, reason), "cancelled or asked to stop", shared)


@flows.command
def replay(flow_id: FlowId, /, *, shared: Shared = SHARED) -> int:
    """Run the dead and expired jobs of a flow again, with fresh budgets: the flow goes on."""
    with admin_of(shared) as admin:
        flow = admin.flows.get(flow_id)
        if failed := admin.flows.replayable(flow):
            confirm(shared, f"replay {_jobs(failed)} of flow {flow.name}?")
        return _told(admin.flows.replay(flow_id), "queued again", shared)


@flows.command
def skip(
    *ids: Annotated[str, Parameter(help="The dead or cancelled jobs, by id, or its beginning or end.")],
    shared: Shared = SHARED,
) -> int:
    """Let the jobs that wait for a dead or cancelled one go on without it; a list of results leaves its result out."""
    if not ids:
        raise InvalidOption("skip: expected the id of a dead or cancelled job")
    with admin_of(shared) as admin:
        acted = admin.flows.skip([admin.jobs.named(each) for each in ids])
    if shared.json:
        show_json(acted)
    else:
        _list(acted)
    return 0 if all(each.landed for each in acted) else 1


def _told(acted: FlowActed, done: str, shared: Shared) -> int:
    if shared.json:
        show_json(acted)
    else:
        _list(acted.refused[:20])
        print_line(f"{_jobs(acted.done)} {done}" if acted.done or not acted.refusals else "nothing done")
    return 1 if acted.refusals else 0


def _list(acted: tuple[Acted, ...] | list[Acted]) -> None:
    for each in acted:
        print_line(f"{each.id}: {each.says}")


def _jobs(number: int) -> str:
    return f"{number:,} job{'' if number == 1 else 's'}"
