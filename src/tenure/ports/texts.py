"""The texts of a store one by one, wherever each is kept: to encrypt them again, and to keep large ones elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
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
    """What is needed besides the reads for people. Example: `store.rewrite([(Text("result", job_id, "", old), new)])`

    A store with a bucket keeps large payloads, results, checkpoints and records of `once` there, and in the row what
    stands for each (core/offloaded.py). No read but `once` and `fetch` waits for the bucket.
    """

    def records(self, job_id: str) -> Mapping[str, str]:
        """What `once` has recorded in this job, by key."""
        ...

    def rewrite(self, changes: Sequence[tuple[Text, str]]) -> int:
        """Replace each text by the new one, if the stored text is still the same. Returns how many were replaced.

        Nothing else about a job changes: not its state, its lease, or when it was last active. A row that another
        transaction has locked is left as it is.
        """
        ...

    def keep(self, texts: Iterable[Text]) -> Future[None] | None:
        """Begin to offload the texts that are too large for a row. Waits for nothing.

        None: all of them are in the bucket, and the verb that stores them will not wait for it. Otherwise a future that
        is done when they are; it raises BucketAway.
        """
        ...

    def fetch(self, text: Text) -> str:
        """The value of this text, from the bucket if it is there. Blocks, for a bounded time. Raises NotFetched."""
        ...

    def sweep(self, limit: int) -> float:
        """Look at this many objects of the bucket, and delete those that no row has named for long. Raises StoreError.

        Returns the seconds until there is more to look at; infinity: there is no bucket.
        """
        ...
