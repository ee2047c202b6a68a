"""Models of flows and signals."""

from __future__ import annotations

from typing import Literal, Self
from uuid import UUID

from pydantic import Field

from tenure.operations import flow_graph, flows, signals
from tenure.web.models.jobs import Outcome
from tenure.web.models.overview import Counts
from tenure.web.models.values import At, Json, Model, Payloads, Stored, Text, read, shown

Stands = Literal["running", "waiting", "held", "completed", "dead", "cancelled"]


class Flow(Model):
    """A flow, and how far it is."""

    id: UUID
    name: str
    created_at: At
    state: Stands = Field(
        description="`waiting`: all its live jobs wait; `held`: they wait, and a job is dead. `dead`, `cancelled`: all "
        "have ended, at least one of them so."
    )
    total: int = Field(description="How many jobs it has.")
    progress: float = Field(description="0 to 1: the share that has ended in any way; a replay lowers it.")
    counts: Counts

    @classmethod
    def of(cls, flow: flows.Flow) -> Self:
        return cls.like(flow, state=flow.stands, counts=Counts.of(flow.counts))


class Flows(Model):
    """A page of flows, newest first."""

    flows: list[Flow]
    next: str | None = Field(description="`cursor` of the next page; null: this is the last.")


class Step(Model):
    """Jobs of one task that have the same place between the others."""

    number: int
    task: str
    level: int = Field(description="How many steps are before it, on the longest path.")
    total: int
    counts: Counts
    jobs: list[UUID] = Field(description="The first five; dead and running ones before others.")
    outside: bool = Field(description="They do not belong to the flow, but jobs of it wait, or waited, for them.")

    @classmethod
    def of(cls, step: flow_graph.Step) -> Self:
        return cls.like(step, counts=Counts.of(step.counts), jobs=list(step.jobs))


class Arrow(Model):
    """The edges from the jobs of one step to those of another."""

    source: int = Field(description="The number of the step before.")
    target: int
    edges: int
    open: int = Field(description="How many of them are waited for.")
    skipped: int
    ended: bool = Field(description="Any end of the source will do.")
    mine: bool = Field(description="The target gathers the source.")


class FlowDetail(Flow):
    steps: list[Step] = Field(description="In order of their levels.")
    arrows: list[Arrow]
    held: list[UUID] = Field(description="Dead jobs of it for which others wait; at most fifty.")
    complete: bool = Field(description="false: it has more than 10,000 jobs or 30,000 edges, the rest is left out.")
    folded: bool = Field(description="There were more than 200 steps: jobs of a task are one, wherever they are.")

    @classmethod
    def detailed(cls, found: flows.FlowDetail) -> Self:
        graph = found.graph
        return cls(
            **Flow.of(found.flow).model_dump(),
            steps=[Step.of(each) for each in graph.steps],
            arrows=[Arrow.like(each) for each in graph.arrows],
            held=[UUID(each) for each in found.held],
            complete=graph.complete,
            folded=graph.folded,
        )


class FlowDone(Model):
    done: int
    refusals: int
    refused: list[Outcome] = Field(description="At most a hundred of them.")

    @classmethod
    def of(cls, acted: flows.FlowActed) -> Self:
        return cls.like(acted, refused=[Outcome.of(each) for each in acted.refused])


class Signal(Model):
    name: str
    shared: bool = Field(description="It was sent to all jobs that wait for this key.")
    value: Stored = Field(description="Secrets redacted; null if payloads are hidden.")
    sent_at: At

    @classmethod
    def of(cls, sent: signals.Sent, payloads: bool) -> Self:
        return cls(name=sent.name, shared=sent.shared, value=read(sent.value, payloads), sent_at=sent.sent_at)


class Signals(Model):
    """The signals of a job, and the one for which it waits."""

    waits_for: str | None = Field(description="The signal for which it waits now.")
    shared: bool = Field(description="It waits for a shared one.")
    until: At | None = Field(description="When that wait times out; null: never.")
    payloads: Payloads
    sent: list[Signal]

    @classmethod
    def of(cls, found: signals.Signals, payloads: bool) -> Self:
        return cls.like(found, payloads=shown(payloads), sent=[Signal.of(each, payloads) for each in found.sent])


class NewSignal(Model):
    value: Json = Field(description="Checked against the type that its task declares, if the dashboard has an app.")
    replace: bool = Field(False, description="Also if it was sent before; what a job has read, it keeps.")


class NewSharedSignal(NewSignal):
    key: Text = Field(description="All jobs that wait for this key get it, now or later.")


class SignalSent(Model):
    says: str
