"""Flows: jobs that are stored together, and wait for each other. The arrows are the arguments.

    with jobs.flow("nightly") as flow:
        pages = [flow.add(render.bind(7, n)) for n in range(500)]
        report = flow.add(combine.bind(outputs(pages)))
        flow.add(mail.bind(report.output))

`flow.add` needs no store: it gives each step an id, and each placeholder among its arguments a place. Leaving the
block stores all steps in one call, with the edges between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, cast
from uuid import UUID, uuid5

import msgspec

from tenure.core.ids import canonical, new_id
from tenure.core.lifecycle import Edge
from tenure.errors import FlowMade, InvalidArguments, InvalidOption, TenureError
from tenure.ports import Draft, Enqueued, Links
from tenure.tasks.edges import check_number, check_store, parents_of, want
from tenure.tasks.flow_handle import FlowHandle
from tenure.tasks.handle import AppPort, ClientPort, JobHandle, R_co
from tenure.tasks.in_use import KeysInUse
from tenure.tasks.loops import refuse_on_loop, settled
from tenure.tasks.placeholders import Placeholder, Source, Until, marker, shaped_like_a_marker, with_markers
from tenure.tasks.task import NewJob, common_tx
from tenure.tasks.texts import checked_name, valid_key

if TYPE_CHECKING:
    from tenure.tasks.edges import After
    from tenure.tasks.ended import Ended

R = TypeVar("R")

_FLOWS = UUID("4f6c0c1e-6a3f-5b0e-9d51-7a1d8f0c2b64")  #: the namespace of ids that `unique=` derives


class Records(Protocol):
    """What the attempts of a job have recorded, for a flow that the job makes."""

    def recall(self, key: str) -> str | None: ...
    def record(self, key: str, value: str) -> str: ...


class Step(Source, Generic[R_co]):
    """A job of a flow, from `flow.add`. What it will return is `output`: an argument for other steps of the flow."""

    __slots__ = ("_flow", "_handle", "_id", "_job", "_lost", "_number")

    def __init__(self, flow: Flow, job: NewJob[R_co], job_id: str, number: int) -> None:
        self._flow, self._job, self._id, self._number = flow, job, job_id, number
        self._handle: JobHandle[R_co] | None = None
        self._lost = False

    def __repr__(self) -> str:
        return f"<Step {self._number}, {self._job.of.name}, of {self._flow!r}>"

    @property
    def what(self) -> str:
        return f"{self._job.of.name} (step {self._number} of the flow {self._flow.name!r})"

    @property
    def output(self) -> R_co:
        """Its result, as an argument of another step, which then waits until this one has completed."""
        return cast("R_co", Placeholder("output", [self], "completed"))

    @property
    def ended(self) -> Ended[R_co]:
        """How it ended, as an argument of another step, or in `after=`: that step waits for any end of this one."""
        return cast("Ended[R_co]", Placeholder("ended", [self], "ended"))

    @property
    def handle(self) -> JobHandle[R_co]:
        """The handle of its job, once the flow is stored: after the block. Raises TenureError before."""
        if self._lost:
            raise TenureError(
                f"{self.what} has no job of its own: when the flow was made, another job had its unique key and stands "
                "for it, and only the call that made the flow knows which; or its job was deleted"
            )
        if self._handle is None:
            raise TenureError(
                f"{self.what} is stored at the end of the flow's block: use its handle after that, "
                "or within the block flow.add(…, after=[step])"
            )
        return self._handle

    def at(self, flow: Flow) -> str:
        """Its id within this flow. Raises InvalidArguments if it is a step of another one."""
        if self._flow is not flow:
            raise InvalidArguments(
                f"{self.what} belongs to another flow than {flow.name!r}: add both steps to the same flow"
            )
        return self._id

    def stored(self, answer: Enqueued) -> None:
        self._handle = self._job.stored(answer)

    def known(self, job_id: str | None) -> None:
        """The flow was made before, and this job stands for this step. None: which one is not known."""
        self._lost = job_id is None
        if job_id is not None:
            self._handle = self._job.stored(Enqueued(job_id, False, cast("Any", None)))


def outputs(steps: Iterable[Step[R]]) -> list[R]:
    """What these steps will return, in their order, as one argument of another step: a list.

    Example: `flow.add(combine.bind(outputs(pages)))` for `def combine(pages: list[Page]) -> Report`. A parameter
    declared as `Iterable[Page]` reads the results in batches of 200. A step that an operator has skipped is left out.
    """
    found: list[Step[R]] = [*steps]
    for each in found:
        if not isinstance(each, Step):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArguments(f"outputs: expected steps of a flow, from flow.add(…), got {each!r:.200}")
    return cast("list[R]", Placeholder("outputs", found, "completed"))


class Flow:
    """Jobs that are stored together when the `with` block ends, and none of them if it raises. From `jobs.flow(…)`.

    `created` says after the block whether they were stored now: False if a flow with this `unique=` existed.
    """

    def __init__(
        self,
        app: AppPort,
        name: str,
        made_once: str | None,
        tx: object,
        records: Records | None = None,
        keys: KeysInUse | None = None,
    ) -> None:
        self.name = name
        self.created = False
        self._app, self._tx, self._records, self._keys_of_attempt = app, tx, records, keys
        self._once = made_once is not None
        self._id = new_id() if made_once is None else str(uuid5(_FLOWS, made_once))
        self._steps: list[Step[Any]] = []
        self._drafts: list[Draft] = []
        self._keys: dict[tuple[str, str], Step[Any]] = {}
        self._state = "new"  #: then "open", then "over"

    def __repr__(self) -> str:
        return f"<Flow {self.name!r} {self._id}>"

    @property
    def id(self) -> UUID:
        """Its id, for `jobs.flow_handle(flow.id)`."""
        return UUID(self._id)

    @property
    def handle(self) -> FlowHandle:
        """Its handle, for use after the block."""
        return FlowHandle(self._app, self._id)

    def add(self, job: NewJob[R], *, after: After = ()) -> Step[R]:
        """Add a step. Its arguments may be `step.output`, `step.ended` or `outputs(steps)` of earlier steps.

        It waits for the steps in its arguments and for those in `after`: steps or handles, which must complete, and
        `step.ended`, which may end in any way. Example: `flow.add(clean.bind(), after=[report.ended])`
        """
        if self._state != "open":
            raise InvalidOption(
                f"the block of the flow {self.name!r} {'has ended' if self._state == 'over' else 'has not begun'}: add "
                f"steps inside `with jobs.flow({self.name!r}) as flow:`"
            )
        if not isinstance(job, NewJob):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"flow.add: expected a job like add.bind(1, 2), got {job!r:.80}")
        if job.of.app is not self._app:
            raise InvalidOption(f"flow.add: the task {job.of.name} belongs to another app than this flow")
        number = len(self._steps) + 1
        step = Step(self, job, job.of.id or self._id_of(number), number)
        payload, edges = self._wire(job, after)
        draft = job.member(step.at(self), payload, Links(after=edges, flow=self._id, name=self.name, once=self._once))
        self._refuse_twice(step, draft)
        self._steps.append(step)
        self._drafts.append(draft)
        return step

    def _wire(self, job: NewJob[Any], after: object) -> tuple[str, tuple[Edge, ...]]:
        """The payload with its markers, and the edges: first those that markers refer to, by their places."""
        task, untils, places = job.of, dict[str, Until](), dict[str, int]()
        for placeholder in job._holes.values():
            for source in placeholder.sources:
                parent = cast("Step[Any]", source).at(self)
                places.setdefault(parent, len(places))
                want(untils, parent, placeholder.until)
        for each, until in parents_of(after, f"{task.name}: after"):
            if isinstance(each, Source):
                want(untils, cast("Step[Any]", each).at(self), until)
            else:
                check_store(self._app, each, f"{task.name}: after")
                want(untils, str(each.id), until)
        for edge in task.after:
            want(untils, edge.parent, edge.until)
        check_number(untils, f"{task.name}: after")
        if untils:
            shaped_like_a_marker(task.name, job._payload)
        markers = [
            (name, marker(each.name, [places[cast("Step[Any]", source).at(self)] for source in each.sources]))
            for name, each in job._holes.items()
        ]
        payload = with_markers(job._payload, markers) if markers else job._payload
        return payload, tuple(Edge(parent, until) for parent, until in untils.items())

    def _id_of(self, number: int) -> str:
        """An id of its own; with `unique=` the same one each time. Ids rise, so that steps keep their order."""
        if not self._once:
            return new_id()
        base, own = UUID(self._id).hex, uuid5(UUID(self._id), str(number)).hex
        return f"{base[:8]}-{base[8:12]}-8{number >> 12 & 0xFFF:03x}-8{number & 0xFFF:03x}-{own[:12]}"

    def _refuse_twice(self, step: Step[Any], draft: Draft) -> None:
        """Refuse two steps that would be one job: their edges would lead from the same place."""
        for key in ((draft.task, draft.unique or ""), ("", draft.id)):
            if not key[1]:
                continue
            other = self._keys.setdefault(key, step)
            if other is not step:
                same = f"the unique key {key[1]!r}" if key[0] else f"the id {key[1]}"
                raise InvalidOption(f"{step.what} has {same} of step {other._number}: use that step twice instead")

    # ── the block ──

    def _begin(self) -> Self:
        if self._state != "new":
            raise InvalidOption(f"the flow {self.name!r} was used before: call jobs.flow(…) for each block")
        self._state = "open"
        return self

    def _leave(self, error: object) -> bool:
        """Is there something to store?"""
        self._state = "over"
        if error is None and not self._steps:
            raise InvalidOption(f"the flow {self.name!r} has no steps: add them with flow.add(task.bind(…))")
        return error is None

    def _was_made(self, client: ClientPort) -> None:
        held, joins = self._recorded(), self._joins(client)
        for number, (step, draft) in enumerate(zip(self._steps, self._drafts, strict=True), 1):
            # What this transaction has stored, no read finds. The record may be that of a transaction that was undone.
            own = joins or not draft.unique or client.store.get(draft.id) is not None
            step.known(draft.id if own else held.get(number))

    def _is_all_of_others(self, client: ClientPort) -> bool:
        """Did an earlier attempt find other jobs for all steps? No store knows that flow, since it has no job of it."""
        held = self._recorded()
        if len(held) < len(self._steps) or any(client.store.get(job_id) is None for job_id in held.values()):
            return False
        self._was_made(client)
        return True

    def _refuse_another(self, client: ClientPort) -> None:
        """Two blocks of one attempt under one key: the second would get the steps of the first one."""
        if self._keys_of_attempt is not None and not self._joins(client):  # what joins may have been rolled back
            self._keys_of_attempt.made(self.name, self._id, [(each.task, each.payload) for each in self._drafts])

    def _joins(self, client: ClientPort) -> bool:
        return self._common_tx() is not None or client.joins()

    def _stored(self, client: ClientPort, answers: Sequence[Enqueued]) -> None:
        self.created = any(answer.created for answer in answers)
        for step, answer in zip(self._steps, answers, strict=True):
            step.stored(answer)
        drafts = enumerate(zip(self._drafts, answers, strict=True), 1)
        held = {number: answer.id for number, (draft, answer) in drafts if answer.id != draft.id}
        if held and self._records is not None and not self._joins(client):
            self._records.record(self._record, msgspec.json.encode(held).decode())

    def _recorded(self) -> dict[int, str]:
        """The jobs that stood for steps of it when an earlier attempt made it, by the numbers of those steps."""
        record = None if self._records is None else self._records.recall(self._record)
        return {} if record is None else msgspec.json.decode(record, type=dict[int, str])

    @property
    def _record(self) -> str:
        return f"\x1fflow {self._id}"  # no handler's own key begins like this

    def _common_tx(self) -> object:
        return common_tx([step._job for step in self._steps], self._tx, "flow")

    def __enter__(self) -> Self:
        refuse_on_loop("with jobs.flow(…)", "async with jobs.flow(…)")
        return self._begin()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._leave(error):
            return
        client = self._app.client()
        self._refuse_another(client)
        if self._is_all_of_others(client):
            return
        try:
            self._stored(client, client.enqueue(self._drafts, tx=self._common_tx()))
        except FlowMade:
            self._was_made(client)

    async def __aenter__(self) -> Self:
        return self._begin()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._leave(error):
            return
        client = await self._app.aclient()
        self._refuse_another(client)
        if self._records is not None and await settled(partial(self._is_all_of_others, client)):
            return
        try:
            answers = await client.aenqueue(self._drafts, tx=self._common_tx())
        except FlowMade:
            await settled(partial(self._was_made, client))
        else:
            await settled(partial(self._stored, client, answers))


class WithFlows:
    """The part of an app that makes flows and sends signals."""

    def flow(self: AppPort, name: str, *, unique: str | None = None, tx: object = None) -> Flow:
        """Store jobs that wait for each other, all or none: `with jobs.flow("nightly") as flow:`, or `async with`.

        Example: `page = flow.add(render.bind(7))`, then `flow.add(mail.bind(page.output))`. The block only describes
        the flow; leaving it stores all steps, and nothing if it raises. `unique`: a key under which this flow is made
        only once, for as long as its jobs are kept; after the block `flow.created` is False if it had been made.
        `tx`: the transaction to store it in. A step that ends dead holds the steps after it: replay or skip it. One
        that is cancelled cancels those that need its output. Raises InvalidOption.
        """
        name = checked_name(name, "flow")
        return Flow(self, name, None if unique is None else f"{name}\n{valid_key(unique, 'unique')}", tx)

    def flow_handle(self: AppPort, id: UUID | str) -> FlowHandle:  # noqa: A002
        """The handle of a flow. Example: `jobs.flow_handle(flow.id).status().progress`"""
        return FlowHandle(self, canonical(id))

    def signal(self: AppPort, key: str, value: object = None, /) -> bool:
        """Send a value to every job that waits, or will wait, for this key: `job.expect(key, kind, shared=True)`.

        Example: `jobs.signal(f"paid:{order}", Payment(40))`. Sent once: False if this key was sent before.
        """
        from tenure.tasks.signals import shared_key, text_of

        refuse_on_loop("jobs.signal(…)", "await jobs.asignal(…)")
        return self.client().signal(None, shared_key(key), text_of(self, f"signal {key!r}", value))

    async def asignal(self: AppPort, key: str, value: object = None, /) -> bool:
        """Send a value to every job that waits for this key. Example: `await jobs.asignal("paid:7", Payment(40))`"""
        from tenure.tasks.signals import shared_key, text_of

        text = text_of(self, f"signal {key!r}", value)
        return await (await self.aclient()).asignal(None, shared_key(key), text)
