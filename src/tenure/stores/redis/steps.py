"""How attempts end: decided here from what one script has read, and checked again in the script that writes it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from tenure.core.lifecycle import Charges, Completed, Lease, Outcome, Snoozed, State, Suspended
from tenure.ports import Answer, Landed, Rescued
from tenure.stores.redis.facts import decode_facts, millis
from tenure.stores.redis.links import edges_of
from tenure.stores.rules import (
    AMONG_OTHERS,
    Beside,
    Cause,
    cleared,
    ending,
    evidence_of,
    json_of,
    landed,
    rescued,
    standing,
)

Taken = tuple[Sequence[Any], Outcome, Cause]  #: a row of `lost` or `held`, the outcome, the cause
TRIES = 20


def what_stands(lease: Lease, outcome: Outcome, found: Sequence[Any]) -> Answer:
    state, attempt, worker_id, result, past = found
    result = "null" if result is None else result
    if state is None:
        return standing(lease, outcome, None, None)
    owner = worker_id if state == State.PROCESSING else None
    job = (state, attempt, owner, worker_id, "completed" if state == State.COMPLETED else "", result)
    ended = None if past is None else msgspec.json.decode(past)
    return standing(lease, outcome, job, ended and (ended["worker"], ended["outcome"]))


def take(rows: Sequence[Taken], *, lost: bool) -> tuple[list[Rescued], list[str]]:
    """Attempts of dead owners: the rescued jobs, and the arguments of the script `end`.

    Each row: id, attempt, worker, why, since when the job is silent, slots and neighbours, and its charges.
    """
    found: list[Rescued] = []
    ends: list[str] = []
    for (job_id, attempt, worker_id, _, since, identity, neighbours, *charges), outcome, cause in rows:
        lease = Lease(job_id, attempt, worker_id)
        answer, end = decided(
            lease, outcome, charges, cleared(lease, outcome), since if lost else None, _beside(identity, neighbours)
        )
        facts = decode_facts(charges[0])
        ends.append(end)
        found.append(rescued(lease, facts.task, facts.queue, cause, answer.state, outcome))
    return found, ends


def _beside(identity: str | None, neighbours: int) -> Beside:
    return Beside(1 if identity is None else _slots(identity), bool(neighbours))


@lru_cache(100)
def _slots(identity: str) -> int:
    return int(msgspec.json.decode(identity)["slots"])


def decided(
    lease: Lease,
    outcome: Outcome,
    found: Sequence[Any],
    message: str | None,
    silent_since: int | None = None,
    beside: Beside = AMONG_OTHERS,
) -> tuple[Landed, str]:
    """The answer once this is written, and the argument of the script `end`, with the charges it is based on."""
    facts_text, failures, crashes, total, cancel_reason, solo, together, limits = found
    facts = decode_facts(facts_text)
    seen = [int(failures), int(crashes), int(total)]
    charges = Charges(
        failures=seen[0],
        crashes=seen[1],
        crashes_total=seen[2],
        max_failures=facts.max_failures,
        max_crashes=facts.max_crashes,
        retry_base=facts.retry_base,
        retry_cap=facts.retry_cap,
        isolated=facts.isolated,
        queue=facts.queue,
        solo=solo == "1",
        together=int(together or 1),
        cancel_asked=cancel_reason is not None,
        slots=beside.slots,
        neighbours=beside.neighbours,
        limited=limits is not None,
    )
    end = ending(lease, outcome, charges, cancel_reason, message)
    answer = landed(outcome, end, charges.max_failures)
    end |= {"seen": seen, "asked": cancel_reason, "silent_since": silent_since}
    end["lost"] = True if silent_since is not None else None
    end["delay"] = None if end["delay"] is None else millis(end["delay"])
    if isinstance(outcome, Completed):
        end["result"] = outcome.result
    else:
        end["evidence"] = evidence_of(outcome)
    if isinstance(outcome, Suspended) and end["state"] is State.WAITING:
        end["after"], end["wait_for"] = edges_of(outcome), outcome.signal
        end["timeout"] = None if outcome.timeout is None else millis(outcome.timeout)
    if isinstance(outcome, Snoozed) and outcome.pause is not None:
        end["pause"] = [*outcome.pause, millis(outcome.delay)]
    return answer, json_of({name: value for name, value in end.items() if value is not None})
