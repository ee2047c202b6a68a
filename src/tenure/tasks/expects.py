"""Calls of `job.expect`, and the records of how they ended: a value, or a time-out."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from tenure.core.durations import Duration, seconds
from tenure.core.retry import Fail
from tenure.errors import InvalidOption
from tenure.ports import Claimed, Store
from tenure.tasks.job import MISSING
from tenure.tasks.signals import fitting, kind_of, own_key, shared_key
from tenure.tasks.task import Task
from tenure.tasks.texts import valid_key

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


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
            raise Fail(self.late, final=True)
        value = _decode(record).get("value")
        return self.default if value is None else fitting(self.what, self.kind, bytes(value).decode())

    def is_fatal(self, record: str) -> bool:
        """Is it a time-out that ends the job?"""
        return self.default is MISSING and "value" not in _decode(record)

    def is_anew(self, record: str, claimed: Claimed, store: Store) -> bool:
        """Did an earlier attempt die of this time-out? Then its job was replayed, and waits once more.

        It did if its error names the time-out, or if it was the attempt that had it, or the next one after a crash: a
        handler may have told it in its own words, or beside others. A handler that caught the time-out, and waited for
        something else, is not to wait for it a second time; nor is a job whose process died between the time-out and
        its end, which a later attempt then tells.
        """
        if not self.is_fatal(record):
            return False
        number = int(bytes(_decode(record)["attempt"]))
        if number == claimed.attempt:
            return False
        ends = [each for each in store.attempts(claimed.id) if each.attempt >= number]
        if not ends or any(self.late in each.error for each in ends):
            return True
        told = next((each for each in ends if each.outcome not in ("crashed", "released")), None)
        if told is None or told.outcome != "failed":
            return False
        # Only a replay takes failures back: without one, those since then and that one would have been counted.
        return claimed.failures <= sum(each.outcome == "failed" and each.attempt > told.attempt for each in ends)


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
