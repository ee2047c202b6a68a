"""Tasks: what `@jobs.task` makes of a function, and how its arguments become a job's payload.

Options never mix with arguments: `analyse.using(queue="slow", delay="5s").enqueue(repo_url="…")`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from hashlib import sha256
from inspect import isroutine
from string import Formatter
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Never,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

import msgspec

from tenure.config import valid_queue
from tenure.core.durations import Duration, seconds
from tenure.core.ids import canonical, new_id
from tenure.core.lifecycle import Edge
from tenure.core.retry import Retry
from tenure.errors import InvalidArguments, InvalidOption, TenureError
from tenure.ports import RESERVED, Draft, Enqueued, Links
from tenure.tasks.arguments import STARS, Arguments, Secret, decoder, dump, plain, readable
from tenure.tasks.edges import edges_to
from tenure.tasks.handle import AppPort, JobHandle, R_co, handle_of
from tenure.tasks.hints import TASK, USING, foreign_names, unknown_options
from tenure.tasks.limits import Limit, check_limits, keys_of, limits_of
from tenure.tasks.loops import refuse_on_loop
from tenure.tasks.placeholders import Placeholder, shaped_like_a_marker
from tenure.tasks.texts import refuse_template, valid_key

if TYPE_CHECKING:
    from tenure.tasks.edges import After
    from tenure.tasks.limits import Limits

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

LAST_YEAR = 9000

# ── Task ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
@foreign_names("the task {0.name}", TASK)
class Task(Generic[P, R_co]):
    """A registered function with its defaults. Frozen: `using` returns a copy with other options."""

    name: str
    fn: Callable[..., Any]
    place: str  #: where it is declared: its file and line
    arguments: Arguments
    detached: Callable[[Task[..., Any], str], object]  #: makes the Job of `.call()`, given the payload
    app: AppPort
    queue: str
    priority: int
    own_retry: Retry | None
    timeout: float | None
    stale_after: float | None
    isolation: Literal["process"] | None
    unique: str | None  #: a template over the arguments
    max_crashes: int
    aliases: tuple[str, ...]
    signals: Mapping[str, Any] = field(default_factory=dict[str, Any])  #: their types, by name
    limits: tuple[Limit, ...] = ()
    # What `using` adds for one enqueue:
    key: str | None = None
    numbers: Retry | None = None
    wait: float | None = None  #: seconds; not called `delay`, which is `enqueue` in other job queues
    run_at: datetime | None = None
    expires: float | None = None
    meta: Mapping[str, str] = field(default_factory=dict[str, str])
    id: str | None = None
    tx: object = None
    after: tuple[Edge, ...] = ()

    def __repr__(self) -> str:
        return f"Task({self.name}, queue={self.queue!r})"

    if not TYPE_CHECKING:  # hidden, so that type checkers reject the call

        def __call__(self, *args: object, **kwargs: object) -> None:
            raise InvalidArguments(f"{self.name} is a task: .enqueue(…) stores a job, .call(…) runs it here")

    # ── for callers ──

    def using(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        expires: Duration | None = None,
        unique: str | None = None,
        retry: Retry | int | None = None,
        timeout: Duration | None = None,
        meta: Mapping[str, str] | None = None,
        id: UUID | None = None,  # noqa: A002
        tx: object = None,
        after: After | None = None,
        limit: Limits | None = None,
        **unknown: Never,
    ) -> Self:
        """A copy with these options. Example: `analyse.using(delay="5s", unique=f"repo:{url}").enqueue(url)`

        `after`: handles of jobs that must have completed first, and steps of a flow that is stored; they may have ended
        already. `limit` replaces those of the task; `limit=()`: none.
        `expires` counts from when the job is due, not from now: with `delay="1h", expires="5m"` it is cancelled if it
        has not started 1 h 5 min from now. Raises InvalidOption.
        """
        if unknown:
            raise unknown_options(f"{self.name}.using", unknown, USING)
        changes = {
            "queue": None if queue is None else valid_queue(queue),
            "priority": None if priority is None else priority_of(priority),
            "wait": None if delay is None else seconds(delay, "delay"),
            "run_at": None if run_at is None else _aware(run_at),
            "expires": None if expires is None else positive(expires, "expires"),
            "key": None if unique is None else valid_key(unique, "unique"),
            "numbers": None if retry is None else _numbers_of(Retry.of(retry)),
            "timeout": None if timeout is None else positive(timeout, "timeout"),
            "meta": None if meta is None else {**self.meta, **_meta(meta)},
            "id": None if id is None else canonical(id),
            "tx": tx,
            "after": None if after is None else edges_to(self.app, after, f"{self.name}.using: after"),
            "limits": None if limit is None else limits_of(f"{self.name}.using", self.app, limit),
        }
        if unique is not None and "{" in unique:
            refuse_template(unique, self.arguments.names, f"{self.name}.using")
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.__dict__.update((name, value) for name, value in changes.items() if value is not None)
        if copy.wait is not None and copy.run_at is not None:
            raise InvalidOption("delay and run_at both say when the job is due; give only one of them")
        return copy

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> NewJob[R_co]:
        """A job with these arguments, validated but not yet stored. For `jobs.enqueue_many` and `jobs.schedule`."""
        bound = self.arguments.bind(args, kwargs)
        holes: dict[str, Placeholder] = {}
        try:
            payload = self.arguments.dump(bound, self.app.settings.largest_payload)
        except InvalidArguments:
            payload, holes = self.arguments.dump_around(bound, self.app.settings.largest_payload)
            if not holes:
                raise
        return NewJob(self, payload, self.key or self._key_of(bound), holes)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R_co]:
        """Store a job; it runs once it is due. Example: `greet.enqueue("Ada")`"""
        return self.bind(*args, **kwargs).enqueue()

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R_co]:
        """Store a job; it runs once it is due. Example: `await greet.aenqueue("Ada")`"""
        return await self.bind(*args, **kwargs).aenqueue()

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run it now, in this process, with a Job that is not stored. Arguments are checked as by `enqueue`."""
        refuse_on_loop("call()", f"await {self.name}.acall(…)")
        here, keywords = self._detached(args, kwargs)
        answer = self.fn(*here, **keywords)
        if self.is_async:
            import asyncio

            answer = asyncio.run(_wait_for(answer))
        return cast("R_co", answer)

    async def acall(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run it now, in this process, with a Job that is not stored; a plain `def` runs in a thread."""
        import asyncio

        here, keywords = self._detached(args, kwargs)
        if self.is_async:
            return cast("R_co", await self.fn(*here, **keywords))
        return cast("R_co", await asyncio.to_thread(self._in_thread, *here, **keywords))

    def _in_thread(self, *args: Any, **kwargs: Any) -> object:
        try:
            return self.fn(*args, **kwargs)
        except StopIteration as error:  # a future refuses it, and the caller would wait for ever
            raise RuntimeError(f"{self.name} raised StopIteration, which no coroutine can pass on") from error

    def handle(self, id: UUID | str) -> JobHandle[R_co]:  # noqa: A002
        """The handle of a job of this task that was enqueued elsewhere."""
        return handle_of(self.app, id, self.decode_result, self)

    # ── for the executor ──

    @cached_property
    def takes_job(self) -> bool:
        return self.arguments.takes_job

    @cached_property
    def is_async(self) -> bool:
        return self.arguments.is_async

    @property
    def retry(self) -> Retry:
        """The retry policy of the task, or else of the app. Its numbers are stored with each job."""
        return self.own_retry or self.app.retry

    def resolve(self) -> None:
        """Resolve every annotation now. Raises InvalidOption."""
        self.arguments.resolve()
        self.check()

    def check(self) -> None:
        """Raise InvalidOption for an option that does not fit the signature."""
        if self.stale_after is not None and not self.takes_job:
            raise InvalidOption(
                f"{self.name}: stale_after needs progress, and only a Job can report it; add a first parameter job: Job"
            )
        if self.signals and not self.takes_job:
            raise InvalidOption(f"{self.name}: signals: only a Job can expect one; add a first parameter job: Job")
        check_limits(self.name, self.limits, self.arguments)
        for name in () if self.unique is None else _fields(self.unique):
            if name not in self.arguments.names:
                raise InvalidOption(f"{self.name}: unique: no argument is named {name!r}; it takes {self.arguments}")

    def encode_result(self, value: object) -> str:
        """The result as JSON. Raises InvalidArguments if it can't be stored, which fails the attempt."""
        return "null" if value is None else self._dump_kept(value, "result")

    def decode_result(self, text: str) -> R_co:
        """The result, decoded by the handler's return annotation."""
        return cast("R_co", self._decode_kept(self.arguments.decode_result, text, "result"))

    def dump_checkpoint(self, value: object) -> str:
        """The checkpoint as JSON. It is decoded once as the C of Job[C], so that the next attempt can read it."""
        text = self._dump_kept(value, "checkpoint")
        self.load_checkpoint(text)
        return text

    def load_checkpoint(self, text: str) -> Any:
        """The checkpoint, decoded as the C of Job[C]."""
        return self._decode_kept(self.arguments.decode_checkpoint, text, "checkpoint")

    def stored_key(self, key: str) -> str:
        """What the store keeps of a key made of arguments: with a codec its digest. Raises InvalidOption."""
        key = valid_key(key, f"{self.name}: unique")
        _ = self.app.settings  # a Django project's codec is known once its settings have been read
        return sha256(f"{self.name}\n{key}".encode()).hexdigest()[:32] if self.app.codec else key

    def dump_once(self, key: str, value: object) -> str:
        """The JSON that `once` keeps under this key."""
        return self._dump_kept(value, f"once({key!r})")

    def load_once(self, key: str, text: str, fn: Callable[[], object]) -> Any:
        """The value that `once` kept, decoded by the return annotation of `fn`."""
        return self._decode_kept(decoder(returned(fn)), text, f"once({key!r})")

    def _dump_kept(self, value: object, what: str) -> str:
        return dump(value, f"{self.name}: {what}", self.app.settings.largest_result).decode()

    def _decode_kept(self, decode: Callable[[str], Any], text: str, what: str) -> Any:
        try:
            return decode(readable(f"{self.name}: its {what}", text))
        except msgspec.DecodeError as error:
            raise TenureError(f"{self.name}: its {what} does not fit its type: {plain(str(error))}") from error

    # ── inside ──

    def _key_of(self, bound: msgspec.Struct) -> str | None:
        if self.unique is None:
            return None
        values = msgspec.structs.asdict(bound)
        return self.stored_key(_Keys(self.name).vformat(self.unique, (), values))

    def moved_key(self, before: str, after: str, key: str | None) -> str | None:
        """The unique key of the payload `after`, if `key` is that of `before` and not that of `after`."""
        if self.unique is None or key is None:
            return None
        try:
            old, new = (self._key_of(self._bound(payload)) for payload in (before, after))
        except InvalidArguments:  # the old ones no longer fit, or the new ones have a field less
            return None
        return new if key == old != new else None

    def _bound(self, payload: str) -> msgspec.Struct:
        return self.arguments.bind(*self.arguments.load(payload, bind=True))

    def _detached(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        payload = self.arguments.dump(self.arguments.bind(args, kwargs), self.app.settings.largest_payload)
        here, keywords = self.arguments.load(payload)
        if self.takes_job:
            here = (self.detached(self, payload), *here)
        return here, keywords


async def _wait_for(answer: Awaitable[T]) -> T:
    return await answer


def returned(fn: Callable[[], object]) -> Any:
    """The type of what it returns: by its annotation, or the class that it is."""
    while isinstance(fn, partial):  # its own hints are those of `partial`
        fn = cast("partial[object]", fn).func
    if isinstance(fn, type):
        return cast("object", fn)
    try:
        kind = get_type_hints(fn if isroutine(fn) else type(fn).__call__).get("return", Any)
    except (NameError, TypeError):
        return Any
    return get_args(kind)[-1] if get_origin(kind) in (Awaitable, Coroutine) else kind


def priority_of(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and -100 <= value <= 100:
        return value
    raise InvalidOption(f"priority: expected a whole number from -100 to 100 (higher runs first), got {value!r}")


def positive(value: Duration, what: str) -> float:
    length = seconds(value, what)
    if length > 0:
        return length
    raise InvalidOption(f"{what}: expected more than 0s, got {value!r}")


def _aware(value: datetime) -> datetime:
    if not isinstance(value, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        now = "datetime.now(UTC) + timedelta(hours=1)"
        raise InvalidOption(f"run_at: expected a datetime with a time zone, like {now}, got {value!r}")
    if value.utcoffset() is None:
        raise InvalidOption(f"run_at: {value} is naive; give it a time zone: datetime(…, tzinfo=UTC)")
    if not 1970 <= value.year <= LAST_YEAR:  # its `expires` must still be a date
        raise InvalidOption(f"run_at: expected a year from 1970 to {LAST_YEAR}, got {value}")
    return value


def _meta(value: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(value, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f'meta: expected texts by name, like {{"user": "4711"}}, got {value!r}')
    for name, text in value.items():
        if not (isinstance(name, str) and isinstance(text, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"meta: expected texts by name, got {name!r}: {text!r}")
        if name.startswith(RESERVED):
            raise InvalidOption(f"meta: {name!r} is a name of Tenure's own, as all that begin with {RESERVED!r}")
    return dict(value)


def _numbers_of(retry: Retry) -> Retry:
    if (retry.on, retry.never, retry.delay) != ((Exception,), (), None):
        raise InvalidOption(
            "using(retry=…): only max_failures, base and cap are stored with a job; give on, never, delay to @jobs.task"
        )
    return retry


class _Keys(Formatter):
    """Writes keys, in which a Secret would be the same text for all jobs."""

    def __init__(self, task: str) -> None:
        self._task = task

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, int | str]:
        try:
            value, name = super().get_field(field_name, args, kwargs)
        except (AttributeError, LookupError, TypeError) as error:
            raise InvalidArguments(f"{self._task}: unique: {{{field_name}}} is not there: {error}") from None
        if isinstance(value, Secret) or (not isinstance(value, str) and STARS in str(value)):
            raise InvalidOption(f"{self._task}: unique can't use {field_name!r}: a Secret is *** in every text")
        return value, name

    def format_field(self, value: Any, format_spec: str) -> str:
        try:
            return cast("str", super().format_field(value, format_spec))
        except (ValueError, TypeError) as error:
            raise InvalidArguments(f"{self._task}: unique: {value!r} has no format {format_spec!r}: {error}") from None


def _fields(template: str) -> list[str]:
    if not template or not isinstance(template, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"unique: expected a template like 'repo:{{repo_url}}', got {template!r}")
    try:
        names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise InvalidOption(f"unique: {template!r} is not a template like 'repo:{{repo_url}}': {error}") from None
    return [re.split(r"[.\[]", name, maxsplit=1)[0] for name in names]


_NO_HOLES: Mapping[str, Placeholder] = {}


# ── NewJob ──────────────────────────────────────────────────────────────────────────────────────────────────────


class NewJob(Generic[R_co]):
    """A validated job that is not yet stored. Enqueued twice, it is stored once. `meta` may still be changed."""

    __slots__ = ("_holes", "_id", "_key", "_limits", "_payload", "_task", "meta")

    def __init__(
        self, task: Task[..., R_co], payload: str, key: str | None, holes: Mapping[str, Placeholder] = _NO_HOLES
    ) -> None:
        self._task = task
        self._payload = payload  #: as JSON, without the holes
        self._key = key
        self._holes = holes  #: the arguments that other steps of a flow will return, by name
        self._limits = keys_of(task.name, task.limits, payload, holes) if task.limits else ()
        self._id = task.id or new_id()
        self.meta: dict[str, str] = dict(task.meta)

    def __repr__(self) -> str:
        return f"NewJob({self._id}, {self._task.name})"

    @property
    def id(self) -> UUID:
        return UUID(self._id)

    @property
    def of(self) -> Task[..., R_co]:
        """The task it is a job of."""
        return self._task

    @property
    def tx(self) -> object:
        """The transaction that `using(tx=…)` named."""
        return self._task.tx

    def enqueue(self) -> JobHandle[R_co]:
        """Store it."""
        refuse_on_loop("enqueue()", f"await {self._task.name}.aenqueue(…)")
        return self.stored(self._task.app.client().enqueue([self.draft()], tx=self.tx)[0])

    async def aenqueue(self) -> JobHandle[R_co]:
        """Store it."""
        client = await self._task.app.aclient()
        return self.stored((await client.aenqueue([self.draft()], tx=self.tx))[0])

    def draft(self) -> Draft:
        """The draft that is passed to the store."""
        task = self._task
        for name, placeholder in self._holes.items():
            raise InvalidArguments(f"{task.name}.{name}: {placeholder!r} needs a flow: flow.add({task.name}.bind(…))")
        if not task.after:
            return self.member(self._id, self._payload, None)
        shaped_like_a_marker(task.name, self._payload)
        return self.member(self._id, self._payload, Links(after=task.after))

    def member(self, job_id: str, payload: str, links: Links | None) -> Draft:
        """The draft of it in a flow."""
        task = self._task
        retry = task.numbers or task.retry
        return Draft(
            id=job_id,
            task=task.name,
            payload=payload,
            queue=task.queue,
            priority=task.priority,
            delay=task.wait,
            run_at=task.run_at,
            expires=task.expires,
            unique=self._key,
            isolated=task.isolation is not None,
            timeout=task.timeout,
            stale_after=task.stale_after,
            max_failures=retry.max_failures,
            max_crashes=task.max_crashes,
            retry_base=retry.base,
            retry_cap=retry.cap,
            meta=dump(_meta(self.meta), "meta", task.app.settings.max_payload).decode() if self.meta else "{}",
            links=links,
            limits=self._limits,
        )

    def stored(self, answer: Enqueued) -> JobHandle[R_co]:
        """The handle for the store's answer."""
        task = self._task
        return JobHandle(task.app, answer.id, created=answer.created, decode=task.decode_result, of=task)


def common_tx(jobs: Sequence[NewJob[Any]], tx: object, what: str) -> object:
    """The transaction that these jobs join. Raises InvalidOption if there are several."""
    found = {id(each): each for each in (tx, *(job.tx for job in jobs)) if each is not None}
    if len(found) > 1:
        raise InvalidOption(f"{what}: these jobs use different transactions; one call can join only one")
    return next(iter(found.values()), None)
