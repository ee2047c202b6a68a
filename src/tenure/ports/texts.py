"""The texts of a store one by one, wherever each is kept: to encrypt them anew, with another key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

Field = Literal["payload", "result", "checkpoint", "error", "stage", "message", "meta"]
#: A field of a job; the error of an attempt, or its log; a record of `once`; a signal; a note.
Place = Field | Literal["attempt", "log", "once", "signal", "note"]


class Text(NamedTuple):
    """A text as it is stored. `owner`: the job; empty for a shared signal; a note's key.

    `key`: the number of the attempt, or the key of the record or signal.
    """

    place: Place
    owner: str
    key: str
    value: str


class TextStore(Protocol):
    """What is needed besides the reads of people. Example: `store.rewrite([(Text("result", job_id, "", old), new)])`"""

    def records(self, job_id: str) -> Mapping[str, str]:
        """What `once` has recorded in this job, by key."""
        ...

    def rewrite(self, changes: Sequence[tuple[Text, str]]) -> int:
        """Put each new text in the place of this one, if it is still that. Returns how many were.

        Nothing else about a job changes: not its state, its lease, or when it was last active. A row that another
        transaction has locked is left as it is.
        """
        ...
