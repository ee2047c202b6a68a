"""A trip is booked as a whole: if one part fails for good, the others are cancelled. A saga."""

from __future__ import annotations

from collections.abc import Iterator

from tenure import Fail, Job, Retry, Tenure

jobs = Tenure()  # sqlite:///tenure.db in this folder; TENURE_URL changes it


class SoldOut(Exception):
    pass


class Agency:
    """Books flights, hotels and cars, over the network. Each booking has a key, under which it is made only once."""

    def book(self, what: str, key: str) -> str:
        if what == "car to the moon":
            raise SoldOut(what)
        return f"{what}, booked as {key[:8]}"

    def cancel(self, key: str) -> None:
        """Cancel the booking of this key, if there is one."""


@jobs.resource
def agency() -> Iterator[Agency]:
    yield Agency()


@jobs.task(retry=Retry(3, base="1s", never=SoldOut))
def book(job: Job, what: str) -> str:
    return job.resource(Agency).book(what, key=str(job.id))


@jobs.task(retry=Retry(20, cap="1h"))  # undoing is tried for long; then it is a dead letter, which somebody sees
def cancel(job: Job, booking: str) -> None:
    job.resource(Agency).cancel(key=booking)


@jobs.task
def trip(job: Job, parts: list[str]) -> list[str]:
    booked = job.gather("book", lambda: [book.bind(part) for part in parts], ended=True)
    if all(each.ok for each in booked):
        return [each.value for each in booked]
    # Even those that are not known to have been booked: the answer of the agency may have been lost.
    job.gather("cancel", lambda: [cancel.bind(str(each.handle.id)) for each in booked])
    failed = [each.error.splitlines()[0] for each in booked if not each.ok]
    raise Fail(f"not booked: {'; '.join(failed)}", final=True)
