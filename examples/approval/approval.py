"""An order that waits for a decision. After two days without one the boss is asked; after seven it is declined."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from tenure import Job, Tenure

jobs = Tenure()  # sqlite:///tenure.db in this folder; TENURE_URL changes it


@dataclass
class Decision:
    by: str
    yes: bool


class Mail:
    async def ask(self, whom: str, job: str) -> None:
        """A mail with two links, each of which sends the signal to this job."""
        yes = shlex.quote(json.dumps({"by": whom, "yes": True}))
        print(f"{whom}: tenure signals send {job} decision {yes} --app approval")


@jobs.resource
def mail() -> Iterator[Mail]:
    yield Mail()


@jobs.task(unique="order:{number}", signals={"decision": Decision})
async def order(job: Job, number: int, cents: int) -> str:
    if cents < 100_000:
        return f"order {number} is sent"
    ask = partial(job.resource(Mail).ask, job=str(job.id))
    await job.aonce("ask the buyer", partial(ask, "buyer"))  # the code before a wait runs again after it
    decision = await job.aexpect("decision", Decision, timeout="2d", default=None)
    if decision is None:
        await job.aonce("ask the boss", partial(ask, "boss"))
        decision = await job.aexpect("decision", Decision, timeout="5d", default=None, name="escalated")
    if decision is None:
        return f"order {number} is declined: nobody has decided"
    return f"order {number} is {'sent' if decision.yes else 'declined'}, as {decision.by} has decided"
