"""Flows, and the signals for which jobs wait."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated
from uuid import UUID

import msgspec
from fastapi import APIRouter, Body, Path, Query

from tenure.operations.signals import check_of
from tenure.web.api.common import JobId, Operator, Reader, can, operation_id
from tenure.web.models import flows as models
from tenure.web.models.jobs import Outcome, Reason
from tenure.web.models.values import Cursor, Text
from tenure.web.security import Problem

router = APIRouter(tags=["flows"], generate_unique_id_function=operation_id)
FlowId = Annotated[UUID, Path(description="The flow's id.")]
SignalName = Annotated[Text, Path(description="The signal's name.")]


@router.get("/flows")
def get_flows(
    caller: Reader,
    limit: Annotated[int, Query(ge=1, le=200, description="The most to return.")] = 50,
    cursor: Cursor | None = None,
) -> models.Flows:
    """Flows, newest first, and how far each is."""
    page = caller.admin.flows.all(limit=limit, cursor=cursor)
    return models.Flows(flows=[models.Flow.of(each) for each in page.flows], next=page.cursor)


@router.get("/flows/{id}", responses=can(404))
def get_flow(caller: Reader, id: FlowId) -> models.FlowDetail:  # noqa: A002
    """A flow with its jobs by step: siblings are folded. `GET /jobs?flow=…` lists its jobs."""
    return models.FlowDetail.detailed(caller.admin.flows.show(str(id)))


@router.post("/flows/{id}/cancel", responses=can(404))
def cancel_flow(
    caller: Operator,
    id: FlowId,  # noqa: A002
    why: Annotated[Reason | None, Body()] = None,
) -> models.FlowDone:
    """Cancel its jobs that have not ended; running ones are asked to stop."""
    done = caller.admin.flows.cancel(str(id), why.reason if why else "")
    caller.site.acted()
    return models.FlowDone.of(done)


@router.post("/flows/{id}/replay", responses=can(404))
def replay_flow(caller: Operator, id: FlowId) -> models.FlowDone:  # noqa: A002
    """Run its dead and expired jobs again, with fresh budgets: the flow goes on."""
    done = caller.admin.flows.replay(str(id))
    caller.site.acted()
    return models.FlowDone.of(done)


@router.post("/jobs/{id}/skip", responses=can(404, 409))
def skip_job(caller: Operator, id: JobId) -> Outcome:  # noqa: A002
    """Let the jobs that wait for this dead or cancelled one go on without it.

    Refused if one of them takes its result as an argument of its own.
    """
    (acted,) = caller.admin.flows.skip([str(id)])
    caller.site.acted()
    if not acted.landed:
        raise Problem(HTTPStatus.CONFLICT, "Nothing done", f"job {id}: {acted.says.removeprefix('nothing done: ')}")
    return Outcome.of(acted)


@router.get("/jobs/{id}/signals", responses=can(404))
def get_signals(caller: Reader, id: JobId) -> models.Signals:  # noqa: A002
    """The signals of a job, and the one for which it waits."""
    return models.Signals.of(caller.admin.signals.of(str(id)), caller.user.payloads)


@router.post("/jobs/{id}/signals/{name}", responses=can(404, 409))
def send_signal(caller: Operator, id: JobId, name: SignalName, signal: models.NewSignal) -> models.SignalSent:  # noqa: A002
    """Send a signal to a job. It arrives once: 409 if it was sent before, or the job has ended."""
    tasks = caller.site.tasks
    task = tasks.find(caller.admin.jobs.get(str(id)).task) if tasks else None
    says = caller.admin.signals.send(str(id), name, _text(signal), replace=signal.replace, check=check_of(task, name))
    caller.site.acted()
    return models.SignalSent(says=says)


@router.post("/signals", responses=can(409))
def send_shared_signal(caller: Operator, signal: models.NewSharedSignal) -> models.SignalSent:
    """Send a signal to all jobs that wait for its key, now or later. 409 if it was sent before."""
    says = caller.admin.signals.send_shared(signal.key, _text(signal), replace=signal.replace)
    caller.site.acted()
    return models.SignalSent(says=says)


def _text(signal: models.NewSignal) -> str:
    return msgspec.json.encode(signal.value).decode()
