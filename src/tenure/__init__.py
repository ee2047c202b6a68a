"""Tenure: background, long and scheduled jobs that are owned until they are done. The database owns the job.

>>> from tenure import Tenure
>>> jobs = Tenure()
>>> @jobs.task
... def greet(name: str) -> str:
...     return f"hello {name}"
>>> greet.call("Ada")
'hello Ada'
"""

from __future__ import annotations

from tenure.app.app import Tenure
from tenure.core.retry import Fail, Retry, Snooze
from tenure.errors import GuardSkipped, JobStopped, TenureError
from tenure.ports import Status
from tenure.tasks.arguments import Secret
from tenure.tasks.ended import Ended
from tenure.tasks.flow import Flow, Step, outputs
from tenure.tasks.flow_handle import FlowHandle, FlowStatus
from tenure.tasks.handle import JobHandle
from tenure.tasks.job import Job
from tenure.tasks.limits import Limit
from tenure.tasks.task import NewJob, Task

__all__ = [
    "Ended",
    "Fail",
    "Flow",
    "FlowHandle",
    "FlowStatus",
    "GuardSkipped",
    "Job",
    "JobHandle",
    "JobStopped",
    "Limit",
    "NewJob",
    "Retry",
    "Secret",
    "Snooze",
    "Status",
    "Step",
    "Task",
    "Tenure",
    "TenureError",
    "outputs",
]
