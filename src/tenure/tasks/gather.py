"""Gathers the `aenqueue` calls of one event loop: calls that arrive during a write share the next one.

No caller waits for another caller's key. Jobs with a unique key are written apart from those without one. If the key is
held by an open transaction, the store says so after a moment; the callers that want this key are then set
aside and tried again, and all others are stored at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from functools import partial
from typing import NamedTuple, Protocol

from tenure.errors import StoreAway, StoreBusy
from tenure.ports import BATCH_BYTES, Draft, Enqueued, OnLoop
from tenure.tasks.loops import drive, pass_on

RETRY_SECONDS = 5.0  #: how long enqueues are retried while the store is unavailable
BUSY_SECONDS = 5.0  #: how long a caller waits for a key that an open transaction holds
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25  # between two tries for such a key
_HELD_THREADS = 4
_MAX_BATCH = 1000

_Key = tuple[str, str]  #: task and unique key; or '' and the id of a job that has no unique key
_Answer = list[Enqueued] | Exception


class _Enqueue(Protocol):
    def __call__(self, drafts: Sequence[Draft], *, shared: bool, again: bool) -> list[Enqueued]: ...


class _Caller(NamedTuple):
    """One call of `aenqueue`."""

    drafts: Sequence[Draft]
    future: asyncio.Future[list[Enqueued]]
    give_up_at: float
    again: bool = False  #: an earlier try may have stored its jobs

    def wanted(self) -> set[_Key]:
        return {(draft.task, draft.unique) if draft.unique else ("", draft.id) for draft in self.drafts}

    def alone(self) -> bool:
        """Does it make a flow that only one call may make? Two such callers in one write would both make it."""
        return any(draft.links is not None and draft.links.once for draft in self.drafts)

    def answer(self, answer: _Answer) -> None:
        if self.future.done():  # cancelled
            return
        if isinstance(answer, Exception):
            self.future.set_exception(answer)
        else:
            self.future.set_result(answer)


class Gatherer:
    """Stores what the callers of one loop enqueue, in shared writes."""

    def __init__(self, store: _Enqueue, on_loop: Callable[[Draft], OnLoop[Enqueued]]) -> None:
        self._store = store
        self.on_loop = on_loop
        self._lanes = (_Lane(self, "tenure-enqueue"), _Lane(self, "tenure-enqueue-unique"))
        self._held: dict[_Key, list[_Caller]] = {}  #: the callers that wait for each held key
        self._tries = ThreadPoolExecutor(_HELD_THREADS, "tenure-enqueue-held")

    def close(self) -> None:
        for thread in (*(lane.thread for lane in self._lanes), self._tries):
            thread.shutdown(wait=False)

    def give_up(self) -> None:
        """Its loop is closed: no caller waits any more, and no call may keep its connection."""
        self.close()
        for lane in self._lanes:
            if lane.call is not None:
                lane.call.close()

    async def add(self, drafts: Sequence[Draft]) -> list[Enqueued]:
        loop = asyncio.get_running_loop()
        caller = _Caller(drafts, loop.create_future(), loop.time() + BUSY_SECONDS)
        if not self._held or not self._joins_held(caller):
            self._lanes[any(draft.unique for draft in drafts)].add(caller)
        if caller.future.done():  # at once: a caller that enqueues in a loop must let others go on
            await asyncio.sleep(0)
        return await caller.future

    # ── keys that open transactions hold ──

    def set_aside(self, caller: _Caller) -> None:
        """Let it wait for its key while all others go on."""
        if not self._joins_held(caller):
            callers = [caller]
            self._held |= dict.fromkeys(caller.wanted(), callers)
            self._try_later(callers, _SHORTEST_PAUSE)

    def _joins_held(self, caller: _Caller) -> bool:
        callers = next((self._held[key] for key in caller.wanted() if key in self._held), None)
        if callers is not None:
            callers.append(caller)
        return callers is not None

    def _try_later(self, callers: list[_Caller], pause: float) -> None:
        """By callbacks: a task would end when the program cancels all of its tasks, and its callers would wait on."""
        callers[:] = [caller for caller in callers if not caller.future.done()]
        if callers:
            asyncio.get_running_loop().call_later(pause, self._try_held, callers, min(pause * 2, _LONGEST_PAUSE))
        else:
            self._held = {key: waiting for key, waiting in self._held.items() if waiting is not callers}

    def _try_held(self, callers: list[_Caller], pause: float) -> None:
        """Try the first of them until its key is free, then store the others too. `pause`: until the next try."""
        batch = [caller for caller in callers if not caller.future.done()][:_MAX_BATCH]
        if batch:
            pass_on(self._tries, partial(self._write_held, batch), partial(self._tried, callers, pause, batch))
        else:  # all were cancelled
            self._try_later(callers, pause)

    def _tried(
        self, callers: list[_Caller], pause: float, batch: list[_Caller], answers: list[_Answer] | BaseException
    ) -> None:
        if isinstance(answers, BaseException):
            fail(callers, answers)
        else:
            now = asyncio.get_running_loop().time()
            if isinstance(answers[0], StoreBusy):
                batch, answers = callers.copy(), answers * len(callers)
            for caller, answer in zip(batch, answers, strict=True):
                if not isinstance(answer, StoreBusy) or now > caller.give_up_at:
                    caller.answer(answer)
        self._try_later(callers, pause)

    # ── in the writer threads ──

    def _write_held(self, callers: list[_Caller]) -> list[_Answer]:
        """The answer of the first caller if its key is still held, else an answer for each of them."""
        first = self.write(callers[:1])
        return first if isinstance(first[0], StoreBusy) else first + self.write(callers[1:])

    def write(self, callers: Sequence[_Caller]) -> list[_Answer]:
        """An answer for each caller. If the store refuses or is busy, halve the batch until the caller is alone."""
        answers: dict[int, _Answer] = {}
        held: dict[_Key, StoreBusy] = {}
        alone = [n for n, caller in enumerate(callers) if caller.alone()]
        together = [n for n in range(len(callers)) if n not in alone] if alone else list(range(len(callers)))
        batches = [*([n] for n in reversed(alone)), together]
        while batches:
            batch: list[int] = []
            for n in batches.pop():
                busy = next((held[key] for key in callers[n].wanted() if key in held), None) if held else None
                if busy is None:
                    batch.append(n)
                else:
                    answers[n] = busy
            try:
                drafts = [draft for n in batch for draft in callers[n].drafts]
                stored = iter(self._store(drafts, shared=True, again=any(callers[n].again for n in batch)))
                answers |= {n: [next(stored) for _ in callers[n].drafts] for n in batch}
            except Exception as error:
                if isinstance(error, StoreAway) and not isinstance(error, StoreBusy):
                    return [answers.get(n, error) for n in range(len(callers))]
                if len(batch) > 1:
                    half = len(batch) // 2
                    batches += [batch[half:], batch[:half]]
                    continue
                answers[batch[0]] = error
                if isinstance(error, StoreBusy):
                    held |= dict.fromkeys(callers[batch[0]].wanted(), error)
        return [answers[n] for n in range(len(callers))]


class _Lane:
    """A queue of callers. A thread stores what they enqueue, in batches; the loop itself stores a single job if it can.

    For a single job the thread would cost more than the write: two switches of threads, with the interpreter's lock.
    """

    def __init__(self, gatherer: Gatherer, name: str) -> None:
        self._gatherer = gatherer
        self._waiting: list[_Caller] = []
        self._busy = False
        self._single = False  #: the last write was for one caller
        self.call: OnLoop[Enqueued] | None = None  #: the last one that this loop has begun
        self._context = Context()  # not a caller's: a write may serve several
        # One dedicated thread, which stays warm: the loop's pool would use a different one each time (measured: 615 µs
        # per job instead of 440).
        self.thread = ThreadPoolExecutor(1, name)

    def add(self, caller: _Caller) -> None:
        self._waiting.append(caller)
        if not self._busy:
            self._busy = True
            if self._single:
                self._context.run(self._store_next)
            else:
                self._store_soon()

    def _store_soon(self) -> None:
        """Together with what comes in this turn of the loop."""
        asyncio.get_running_loop().call_soon(self._store_next, context=self._context)

    def _store_next(self) -> None:
        batch = self._next_batch()
        self._single = len(batch) == 1
        if self._single and len(batch[0].drafts) == 1:
            began = asyncio.get_running_loop().time()
            self.call = self._gatherer.on_loop(batch[0].drafts[0])
            drive(self.call, partial(self._answered, batch[0], began))
        elif batch:
            self._store_in_thread(batch)
        else:
            self._busy = False

    def _answered(self, caller: _Caller, began: float, answer: Enqueued | Exception | None) -> None:
        """The loop has stored its job, or could not."""
        away = isinstance(answer, StoreAway) and not isinstance(answer, StoreBusy)
        if answer is None:
            self._store_in_thread([caller])
        elif away and asyncio.get_running_loop().time() - began < RETRY_SECONDS:
            self._store_in_thread([caller._replace(again=True)])
        else:
            self._pass_on([caller], [answer if isinstance(answer, Exception) else [answer]])

    def _store_in_thread(self, batch: list[_Caller]) -> None:
        # No task waits for the thread: a program that cancels all of its tasks would cancel that one too.
        pass_on(self.thread, partial(self._gatherer.write, batch), partial(self._written, batch))

    def _written(self, batch: list[_Caller], answers: list[_Answer] | BaseException) -> None:
        if isinstance(answers, BaseException):
            later, self._waiting, self._busy = self._waiting, [], False
            fail(batch + later, answers)
        else:
            self._pass_on(batch, answers)

    def _pass_on(self, batch: list[_Caller], answers: list[_Answer]) -> None:
        for caller, answer in zip(batch, answers, strict=True):
            if isinstance(answer, StoreBusy):
                self._gatherer.set_aside(caller)
            else:
                caller.answer(answer)
        if self._waiting:
            self._store_soon()
        else:
            self._busy = False

    def _next_batch(self) -> list[_Caller]:
        batch: list[_Caller] = []
        number = size = 0
        while self._waiting:
            caller = self._waiting[0]
            number += len(caller.drafts)
            size += sum(len(draft.payload) + len(draft.meta) for draft in caller.drafts)
            if batch and (number > _MAX_BATCH or size > BATCH_BYTES):
                break
            del self._waiting[0]
            if not caller.future.done():
                batch.append(caller)
        return batch


def fail(callers: Iterable[_Caller], error: BaseException) -> None:
    """There is no thread: no caller may wait forever."""
    for caller in callers:
        caller.answer(StoreAway(f"the jobs could not be passed to the store: {error!r}"))
