"""Calls of `job.expect`, and the records of how they ended: a value, or a time-out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from tenure.core.durations import Duration, seconds
from tenure.core.lifecycle import Failed, Outcome
from tenure.core.retry import Fail, members_of
from tenure.core.text import MAX_ERROR, clean
from tenure.errors import InvalidOption
from tenure.ports import Claimed, Store
from tenure.tasks.job import MISSING
from tenure.tasks.signals import fitting, kind_of, own_key, shared_key
from tenure.tasks.task import Task
from tenure.tasks.texts import valid_key

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class TooLate(Fail):
    """The time-out of a signal without a default, which ends the job."""

    def __init__(self, late: str) -> None:
        super().__init__(late, final=True)


class Asked(NamedTuple):
    """A call of `expect`."""

    name: str  #: of its record
    key: str  #: of the signal
    task: str | None  #: None: a shared signal
    kind: Any
    timeout: float | None
    default: object

    @property
    def what(self) -> str:
        return f"signal {self.key.partition(':')[2]!r}"

    @property
    def late(self) -> str:
        return f"the {self.what} did not arrive in time"

    def heard(self, record: str) -> Any:
        """The value, or the default. Without a default a time-out raises a final Fail."""
        if self.is_fatal(record):
            raise TooLate(self.late)
        value = _decode(record).get("value")
        return self.default if value is None else fitting(self.what, self.kind, bytes(value).decode())

    def is_fatal(self, record: str) -> bool:
        """Is it a time-out that ends the job?"""
        return self.default is MISSING and "value" not in _decode(record)

    def is_anew(self, record: str, claimed: Claimed, store: Store) -> bool:
        """Did an earlier attempt die of this time-out? Then its job was replayed, and waits once more.

        A handler that caught the time-out, and went on, is not to wait for it a second time; nor is a job whose process
        died between the time-out and its end, which a later attempt then tells.
        """
        if not self.is_fatal(record):
            return False
        number = int(bytes(_decode(record)["attempt"]))
        if number == claimed.attempt:
            return False
        ends = [each for each in store.attempts(claimed.id) if each.attempt >= number]
        return not ends or any(self.late in each.error for each in ends)  # `with_late` sees to that


def with_late(outcome: Outcome | None, error: BaseException, unseen: Iterable[str]) -> Outcome | None:
    """The same outcome; a failure names each time-out that it came of, so that a replay waits again.

    The handler may have told them in its own words: in a Fail, in an error raised `from` one, or in a group.
    `unseen`: those of tasks that were cancelled beside another one.
    """
    if not isinstance(outcome, Failed):
        return outcome
    late = dict.fromkeys([*_late_in(error), *unseen])
    untold = "".join(f"\n{each}" for each in late if each not in outcome.error)
    return replace(outcome, error=clean(outcome.error, MAX_ERROR - len(untold)) + untold) if untold else outcome


def _late_in(error: BaseException) -> Iterator[str]:
    found, seen = list[BaseException | None]([error]), set[int]()
    while found:
        each = found.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, TooLate):
            yield each.reason
        found += members_of(each)
        found += [each.__cause__, each.__context__ if isinstance(each, Fail) else None]


def asked_for(
    task: Task[..., Any],
    signal: str,
    kind: Any,
    timeout: Duration | None,
    default: object,
    name: str | None,
    *,
    shared: bool,
) -> Asked:
    """The call. Raises InvalidOption if it does not fit the task's declaration."""
    if not shared:
        declared = kind_of(task.name, task.signals, signal)
        if declared != kind:
            raise InvalidOption(
                f"{task.name}: signal {signal!r} is declared as {declared!r}, and expected as {kind!r}: write the "
                "same type in both places"
            )
    limit = None if timeout is None else seconds(timeout, "timeout")
    own_name = signal if name is None else valid_key(name, "name")
    key = shared_key(signal) if shared else own_key(signal)
    return Asked(own_name, key, None if shared else task.name, kind, limit, default)
