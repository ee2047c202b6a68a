"""What all stores but the one in memory say alike: what can be stored, why a job is rescued, what stands instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from tenure.core.lifecycle import Completed, Crashed, Lease, Outcome, State, outcome_name, reason_of
from tenure.errors import BadData
from tenure.ports import Answer, Edit, Landed, NotLanded
from tenure.ports.schedules import Schedule, Tick

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
encode = msgspec.json.Encoder().encode
GUARDED = "it ran under a guard: run its command again there, with tenure guard … --force"
COMPLETED = Landed(State.COMPLETED)
Cause = Literal["crash", "host", "stale", "queue"]
RESCUES: dict[str, tuple[Cause, Crashed]] = {
    "crash": ("crash", Crashed("the process of {worker} is gone", process_died=True)),
    "host": ("host", Crashed("the lease of {worker} ended: its host or its supervisor is lost")),
    "missing": ("host", Crashed("nothing is known of {worker}")),
    "hung": ("stale", Crashed("silent for longer than it may be, on {worker}")),
}


def cleared(outcome: Outcome) -> str | None:
    """The message of a job that was taken back."""
    return None if isinstance(outcome, Completed) else f"Cleared: {reason_of(outcome) or 'released'}"


def standing(lease: Lease, outcome: Outcome, job: tuple[Any, ...] | None, past: tuple[str, str] | None) -> Answer:
    """What to tell a lease whose write changed nothing now: it landed before, or what stands instead.

    `job`: its state, attempt, worker_id, last_worker_id, last_outcome and result; `past`: worker and outcome of the
    row that this attempt left, if it did.
    """
    if job is None:
        return NotLanded("no such job")
    state, attempt, worker_id, last_worker_id, last_outcome, result = job
    ended = (attempt, last_worker_id, last_outcome) == (lease.attempt, lease.worker_id, "completed")
    if state == "completed" and ended:
        if isinstance(outcome, Completed) and outcome.result == result:
            return COMPLETED
        other = " with another result" if isinstance(outcome, Completed) else ""
        return NotLanded(f"attempt {attempt} of worker {lease.worker_id} ended as completed{other}")
    if past is not None and past[0] == lease.worker_id:
        if past[1] == outcome_name(outcome):
            return Landed(State(state))
        return NotLanded(f"attempt {lease.attempt} of worker {lease.worker_id} ended as {past[1]}")
    if worker_id is not None:
        return NotLanded(f"it is processing: attempt {attempt} is owned by {worker_id}")
    return NotLanded(f"it is {state}, after attempt {attempt}")


def evidence_of(outcome: Outcome) -> str:
    return encode(dict(outcome.evidence)).decode() if isinstance(outcome, Crashed) else "{}"


def check_outcome(outcome: Outcome) -> None:
    if type(outcome) is Completed:
        check_text(outcome.result)
    elif isinstance(outcome, Crashed):
        check_text(outcome.reason, *outcome.evidence, *outcome.evidence.values())
    else:
        check_text(reason_of(outcome))


def body_of(value: Schedule | Tick) -> str:
    """A schedule or a tick as every store keeps it. Raises BadData."""
    try:
        body = encode(value).decode()
    except UnicodeEncodeError as error:
        raise BadData(f"text with a lone surrogate can't be stored: {error.object[:60]!r}") from None
    if "\\u0000" in body and (found := _NUL.search(body)):  # how JSON writes a NUL, and not a text about it
        raise BadData(f"text with a NUL can't be stored: {body[max(0, found.start() - 40) : found.end()]!r}")
    return body


def check_edits(ids: Collection[str], edits: Mapping[str, Edit]) -> None:
    strange = sorted(edits.keys() - set(ids))
    if strange:
        raise ValueError(f"edits: expected only ids that are replayed with it, got {strange[0]!r}")
    for edit in edits.values():
        check_text(*edit)


def check_text(*texts: str | None) -> None:
    """PostgreSQL keeps no NUL, SQLite's own functions cut the text there; a lone surrogate neither can keep."""
    for text in texts:
        if text is not None and ("\x00" in text or not (text.isascii() or _encodable(text))):
            raise BadData(f"text with a NUL or a lone surrogate can't be stored: {text[:60]!r}")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
