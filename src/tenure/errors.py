"""Every error Tenure raises. (`Snooze` and `Fail`, which a handler raises, are in `tenure.core.retry`.)

TenureError
├── InvalidOption       a setting, option, name or duration that cannot be; also a ValueError
├── InvalidArguments    a job's arguments do not fit its task; also a TypeError
├── UnknownTask         no task of this name; also a LookupError
├── UnknownJob          no job with this id; also a LookupError
├── WouldBlock          a synchronous call on a running event loop
├── JobFailed           .result() of a job that is dead or cancelled
├── GuardSkipped        a guarded block is not run: another run goes on, or this tick has run already
└── StoreError          the store refused or could not answer
    ├── StoreAway       it is out of reach: try again later (exit 75)
    │   └── StoreBusy   somebody's open transaction holds a row or a key
    └── BadData         it refused one value of a batch; the others are fine
JobStopped (BaseException)   the handler is asked to stop
└── LeaseLost           …because it no longer owns its job
"""

from __future__ import annotations


class TenureError(Exception):
    """The root of every error of Tenure, but for `JobStopped`, which must not be swallowed."""


class InvalidOption(TenureError, ValueError):
    """A setting, an option, a name or a duration that cannot be."""


class InvalidArguments(TenureError, TypeError):
    """A job's arguments do not fit the signature of its task."""


class UnknownTask(TenureError, LookupError):
    """No task of this name is registered here."""


class UnknownJob(TenureError, LookupError):
    """The store has no job with this id: never enqueued, deleted, or pruned."""


class WouldBlock(TenureError, RuntimeError):
    """A synchronous call on a running event loop. The message names the awaitable twin."""


class JobFailed(TenureError):
    """Raised by `JobHandle.result` when the job ended without a result.

    `state` is 'dead' or 'cancelled', `error` the last error's text.
    """

    def __init__(self, job_id: str, state: str, error: str) -> None:
        super().__init__(f"job {job_id} is {state}: {error or 'no error recorded'}")
        self.job_id = job_id
        self.state = state
        self.error = error


class GuardSkipped(TenureError):
    """Raised by `with guard:` instead of running the block. Its text says why: `skipped: still locked until …`."""


class StoreError(TenureError):
    """The store refused, or could not answer."""


class StoreAway(StoreError):
    """The store is out of reach, full or locked for too long. The same call may work later."""


class StoreBusy(StoreAway):
    """Somebody's open transaction holds what this needs: a row, or a unique key. In a batch, the others may be free."""


class BadData(StoreError):
    """The store refused a value. In a batch, halving it finds the culprit; the others are fine."""


class JobStopped(BaseException):
    """Raised inside a handler that is asked to stop: `reason` is 'cancel', 'timeout', 'shutdown' or 'lease_lost'.

    Not an Exception, so that `except Exception` cannot swallow it. Clean up and let it pass.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"this attempt is asked to stop: {reason}")
        self.reason = reason


class LeaseLost(JobStopped):
    """This attempt no longer owns its job: its write was refused, and nothing it does will be stored."""

    def __init__(self, detail: str = "") -> None:
        super().__init__("lease_lost")
        self.detail = detail
