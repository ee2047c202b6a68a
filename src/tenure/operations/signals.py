"""Signals: which ones a job has, and sending one as an operator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.core.lifecycle import State
from tenure.errors import InvalidArguments, Refused, UnknownJob
from tenure.operations.access import Access
from tenure.operations.jobs import JobReads
from tenure.ports import Answer, NotLanded, Ring, SignalView
from tenure.tasks.arguments import dump
from tenure.tasks.signals import fitting, kind_of, own_key, shared_key

if TYPE_CHECKING:
    from tenure.tasks.task import Task

_SHARED = "shared:"


@dataclass(frozen=True, slots=True)
class Sent:
    """A signal that was sent. `value` is JSON, secrets redacted."""

    name: str
    shared: bool
    value: str
    sent_at: datetime


@dataclass(frozen=True, slots=True)
class Signals:
    """The signals of a job, and the one for which it waits now."""

    waits_for: str | None
    shared: bool  #: it waits for a shared one
    until: datetime | None
    sent: tuple[Sent, ...]


class SignalActions:
    """Queries and actions on signals. Example: `admin.signals.send(job_id, "approved", '{"by":"ada"}')`"""

    def __init__(self, access: Access) -> None:
        self._access = access

    def of(self, job_id: str) -> Signals:
        """The signals of a job, with the shared one that it waits for. Raises UnknownJob."""
        job, store = JobReads(self._access).get(job_id), self._access.store
        found = store.signals(job_id)
        key = job.wait_for
        if key is not None and key.startswith(_SHARED):
            found += store.signals(None, [key])
        return Signals(
            None if key is None else key.partition(":")[2],
            bool(key and key.startswith(_SHARED)),
            job.wait_until,
            tuple(map(self._shown, found)),
        )

    def send(
        self,
        job_id: str,
        name: str,
        value: str,
        *,
        replace: bool = False,
        check: Callable[[str], object] | None = None,
    ) -> str:
        """Send a signal, JSON, to one job; it arrives once. Returns what became of it, in words.

        `check` raises InvalidArguments if the value does not fit what the task declares. Raises UnknownJob, and
        Refused if it was sent before, unless `replace`, or the job has ended.
        """
        job = JobReads(self._access).get(job_id)
        text, key = self._json(value), own_key(name)
        if check is not None:
            check(text)
        with self._access.recorded("signals.send", job_id, **_detail(name, replace)) as said:
            answer = self._access.store.signal(job_id, key, text, replace=replace)
            says = _told(job_id, name, answer)
            said.append(says)
        self._access.notifier.announce([Ring("due", job.queue)])
        return says

    def send_shared(self, name: str, value: str, *, replace: bool = False) -> str:
        """Send a signal to all jobs that wait for this key, now or later. Raises Refused if it was sent before."""
        text, key = self._json(value), shared_key(name)
        with self._access.recorded("signals.send", key, **_detail(name, replace)) as said:
            answer = self._access.store.signal(None, key, text, replace=replace)
            if isinstance(answer, NotLanded):
                raise Refused(f"{answer.stands}; replace it, or use another key")
            says = "sent to all jobs that wait for it"
            said.append(says)
        self._access.notifier.announce([Ring("due", "")])
        return says

    def _json(self, value: str) -> str:
        try:
            given = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidArguments(f'signal: expected JSON such as true, 5 or {{"by":"ada"}}: {error}') from None
        text = dump(given, "signal", sys.maxsize).decode()
        most = self._access.settings.max_payload if self._access.settings else 256 * 1024
        if len(text.encode()) > most:
            raise InvalidArguments(f"signal: expected at most {most:,} bytes of JSON, got {len(text.encode()):,}")
        return text

    def _shown(self, signal: SignalView) -> Sent:
        kind, _, name = signal.key.partition(":")
        return Sent(name, f"{kind}:" == _SHARED, self._access.stars.hide(signal.value), signal.sent_at)


def check_of(task: Task[..., Any] | None, name: str) -> Callable[[str], object] | None:
    """A check by what the task declares; None: the task is not known here. Raises InvalidOption, InvalidArguments."""
    if task is None:
        return None
    kind = kind_of(task.name, task.signals, name)
    return partial(fitting, f"{task.name}: signal {name!r}", kind)


def _told(job_id: str, name: str, answer: Answer | None) -> str:
    match answer:
        case None:
            raise UnknownJob(f"no job {job_id}: deleted, or pruned")
        case NotLanded():
            hint = "; to replace it: tenure signals send … --replace" if "arrives once" in answer.stands else ""
            raise Refused(f"job {job_id}: {answer.stands}{hint}")
        case _:
            then = "goes on if it waits for it" if answer.state is State.WAITING else "finds it when it asks for it"
            return f"{name} is sent; the job {then}"


def _detail(name: str, replace: bool) -> dict[str, str]:
    return {"name": name, **({"replaced": "yes"} if replace else {})}
