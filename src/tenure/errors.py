"""Every error Tenure raises. (`Snooze` and `Fail`, which a handler raises, are in `tenure.core.retry`.)

TenureError
├── InvalidOption       an invalid setting, option, name or duration; also a ValueError
├── InvalidArguments    a job's arguments do not fit its task; also a TypeError
├── UnknownTask         no task of this name; also a LookupError
├── UnknownJob          no job with this id; also a LookupError
├── UnknownFlow         no flow with this id; also a LookupError
├── UnknownLimit        no limit of this name, and none that gives this key; also a LookupError
├── WouldBlock          a synchronous call on a running event loop
├── JobFailed           .result() of a job that is dead or cancelled
├── Locked              an encrypted value can't be read here: no key, or it was altered
│   └── NotFetched      a value that is kept elsewhere can't be fetched: no bucket, it is away, or its object is gone
├── GuardSkipped        a guarded block did not run: another run holds the lock, or this tick has already run
└── StoreError          the store refused or could not answer
    ├── StoreAway       it is unavailable: retry later (exit 75)
    │   ├── StoreBusy   another open transaction holds a row or a key
    │   └── BucketAway  the bucket of large values does not take them
    ├── FlowMade        a flow that is made only once is stored already
    └── BadData         it refused one value of a batch; the others are valid
JobStopped (BaseException)   a stop was requested
└── LeaseLost           …because it no longer owns its job
"""

from __future__ import annotations

from typing import Any


class Portable(BaseException):
    """An error that another process gets as it was raised: by default it would be made anew from its text alone."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[BaseException], args: tuple[Any, ...], fields: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class TenureError(Portable, Exception):
    """The base of every error of Tenure except `JobStopped`, which must not be swallowed."""


class InvalidOption(TenureError, ValueError):
    """A setting, an option, a name or a duration is invalid."""


class InvalidArguments(TenureError, TypeError):
    """A job's arguments do not fit the signature of its task."""


class UnknownTask(TenureError, LookupError):
    """No task of this name is registered with this app."""


class UnknownQueue(TenureError, LookupError):
    """Neither the store nor any of its workers has a queue of this name."""


class UnknownJob(TenureError, LookupError):
    """The store has no job with this id: it was never enqueued, or was deleted or pruned."""


class UnknownFlow(TenureError, LookupError):
    """The store has no flow with this id: it was never enqueued, or all of its jobs were deleted or pruned."""


class UnknownLimit(TenureError, LookupError):
    """The store has no limit of this name, and none that gives this key."""


class UnknownWorker(TenureError, LookupError):
    """No worker of the last day has this id."""


class Refused(TenureError):
    """What was asked of a schedule, a job or a worker can't be done now. The message says why."""


class WouldBlock(TenureError, RuntimeError):
    """A synchronous call was made on a running event loop. The message names the call to await instead."""


class JobFailed(TenureError):
    """Raised by `JobHandle.result` when the job ended without a result.

    `state` is 'dead' or 'cancelled'; `error` is the text of the last error.
    """

    def __init__(self, job_id: str, state: str, error: str) -> None:
        super().__init__(f"job {job_id} is {state}: {error or 'no error recorded'}")
        self.job_id = job_id
        self.state = state
        self.error = error


class Locked(TenureError):
    """An encrypted value can't be read here: this process has no key for it, or it was altered in the store.

    `altered`: no key will help. In a handler: let it leave, and the job waits, uncharged, for a worker with the key.
    """

    def __init__(self, what: str, why: str, *, altered: bool = False) -> None:
        advice = "restore it from a backup" if altered else "give it that key: Tenure(codec=AesSiv([…]))"
        super().__init__(f"{what} is encrypted, and can't be read: {why}; {advice}")
        self.lacks, self.why = f"{what}: {why}", why
        self.altered = altered


class NotFetched(Locked):
    """A value that is kept elsewhere can't be fetched: no bucket here, it is away, or its object is gone or changed.

    In a handler: let it leave, and the job waits, uncharged, until it can be fetched.
    """

    def __init__(self, what: str, why: str) -> None:
        TenureError.__init__(self, f"{what} is kept elsewhere, and can't be fetched: {why}")
        self.lacks, self.why = f"{what}: {why}", why
        self.altered = False


class GuardSkipped(TenureError):
    """Raised by `with guard:` instead of running the block. The message says why: `skipped: still locked until …`."""


class StoreError(TenureError):
    """The store refused a request, or could not answer it."""


class StoreAway(StoreError):
    """The store is unreachable, full, or was locked for too long. The same call may succeed later."""


class StoreBusy(StoreAway):
    """Another open transaction holds a row or a unique key that this call needs. Other jobs of a batch may be free."""


class BucketAway(StoreAway):
    """The bucket of large values is away, full or too slow. Nothing was stored; the same call may succeed later."""


class FlowMade(StoreError):
    """A flow that is made only once is stored already. `jobs.flow(…, unique=)` says so with `flow.created`."""


class OtherDatabase(StoreError):
    """The jobs are in another database than the transaction that they are to join."""


class BadData(StoreError):
    """The store refused a value. Halving the batch finds the bad one; the others are valid."""


class JobStopped(Portable):
    """Raised inside a handler to stop it: `reason` is 'cancel', 'timeout', 'shutdown' or 'lease_lost'.

    Not an Exception, so that `except Exception` cannot swallow it. Clean up and let it propagate.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"this attempt was asked to stop: {reason}")
        self.reason = reason


class LeaseLost(JobStopped):
    """This attempt no longer owns its job: its write was refused, and none of its later writes will be stored."""

    def __init__(self, detail: str = "") -> None:
        super().__init__("lease_lost")
        self.detail = detail
