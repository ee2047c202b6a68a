"""`tenure offload …`: the bucket of large values: whether it answers, what is in it, and what can be deleted."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Literal

from cyclopts import App

from tenure.cli.output import print_error, print_line
from tenure.cli.shared import Shared, operator, print_result
from tenure.errors import BucketAway

offload = App(
    name="offload",
    help="Large values, kept elsewhere: try the bucket, show a value, delete what no job has any more.",
    help_epilogue="",
)
SHARED = Shared()
Kept = Literal["payload", "result", "checkpoint"]


@contextmanager
def _opened(shared: Shared) -> Generator[Any]:
    from tenure.app.backends import bucket

    values = bucket(shared.settings(), shared.codec())
    try:
        yield values
    finally:
        values.close()


@offload.command(name="try")
def try_(*, shared: Shared = SHARED) -> int:
    """Write an object into the bucket that TENURE_OFFLOAD names, read it and delete it. Exits with 1 if that fails."""
    with _opened(shared) as values:
        try:
            values.try_out()
        except BucketAway as error:
            print_error(str(error))
            return 1
        return print_result(shared, {"bucket": str(values.bucket)}, f"{values.bucket} works")


@offload.command
def show(
    job_id: str, place: Literal["payload", "result", "checkpoint"] = "payload", /, *, shared: Shared = SHARED
) -> int:
    """Print the arguments, the result or the checkpoint of a job, from wherever it is kept. --app decrypts it.

    Secrets, and values whose names TENURE_REDACT lists, are shown as ***.
    """
    from tenure.app.backends import value_of
    from tenure.operations import job_ids
    from tenure.tasks.arguments import Stars

    with _opened(shared) as values:
        job_id = job_ids.whole(values, job_id)
        found = value_of(values, job_id, place)
    if found is None:
        print_error(f"job {job_id} has no {place}")
        return 1
    print_line(Stars(shared.settings().redact).hide(found))
    return 0


@offload.command
def sweep(*, shared: Shared = SHARED) -> int:
    """Look at the whole bucket now, and delete what no job has had for as long as TENURE_KEEP_OFFLOADED says.

    Supervisors do it every hour. Safe while they do, and safe to interrupt.
    """
    from tenure.operations.audit import Trail

    with _opened(shared) as values:
        with Trail(values).recorded(operator(), "offload.sweep", str(values.bucket)) as said:
            looked, unnamed, deleted = done = values.walk()
            said.append(f"{deleted:,} deleted")
        words = f"{looked:,} values looked at, {deleted:,} deleted; {unnamed:,} that no job has are kept for now"
        return print_result(shared, done._asdict(), words)
