"""The sweep: deletes from the bucket what no row of the store has named for long.

It walks over the objects, a batch at each step, and looks for the name of each in the rows of its job. An object that
is not named gets a *mark*, an empty object of the same name in another folder, whose age says for how long that has
been so. One that is named again loses its mark. So nothing is kept in memory or in the store but when the last walk
began; a process that sweeps may be killed at any point, and two that sweep at once make the same changes.

An object is deleted when it and its mark are older than the grace: the jobs of a backup find their values for that
long. It is written before the row that names it: the transaction in between may take as long.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from secrets import token_hex
from time import time
from typing import NamedTuple

from tenure.core.offloaded import parsed
from tenure.errors import BucketAway, Refused, StoreError
from tenure.ports import Store
from tenure.stores.offload.bucket import Bucket, Entry, headline

VALUES, MARKS = "values", "unnamed"
BATCH = 500
EVERY = 3600.0  #: seconds from the beginning of a walk to that of the next one
_NAME = re.compile(r"[0-9a-f]{2}/[0-9a-f-]{36}\.[0-9a-f]{64}")  #: other files are not ours
_NOTE, _STORE, _OWNER = "offload:swept", "offload:store", "store/of/these"


def refuse_missing(store: Store, bucket: Bucket) -> None:
    """Raise BucketAway if the bucket would be made anew although a walk has found it before."""
    if bucket.is_missing() and store.notes(_STORE):
        raise BucketAway(
            f"{bucket} is not there, and this store has kept its values in it: is it mounted? If a new one is to take "
            "its place, make the folder"
        )


class Swept(NamedTuple):
    """What a walk did. `unnamed`: how many objects no row names; they are kept until that has been so for the grace."""

    looked: int = 0
    unnamed: int = 0
    deleted: int = 0


class Sweep:
    """`step` looks at the next objects of the bucket; the first process to see that a walk is due does all of it."""

    def __init__(self, store: Store, bucket: Bucket, grace: float) -> None:
        self._store, self._bucket, self._grace = store, bucket, grace
        self._after: str | None = None  #: the last object that was looked at; None: no walk is under way
        self._due = False  #: this process has taken the next walk upon it, and has not made its first step yet
        self.done = Swept()  #: of this walk, or of the last one

    def step(self, limit: int) -> float:
        """Look at this many objects. Returns the seconds until the next step, 0 in the middle of a walk."""
        if self._after is None and not self._due:
            left = self._until_due(time())
            if left > 0:
                return left
        self._due = self._after is None  # until a step succeeds, so that one that fails is tried again
        more = self.walk(limit)
        self._due = False
        return 0.0 if more else EVERY

    def _until_due(self, now: float) -> float:
        old = self._store.notes(_NOTE).get(_NOTE)
        left = 0.0 if old is None else float(old) + EVERY - now
        if left > EVERY:  # a process whose clock is ahead has written that
            left = 0.0
        if left <= 0 and not self._store.swap(_NOTE, old, str(now)).landed:
            return EVERY  # another process does it
        return left

    def whole(self, limit: int = BATCH) -> Swept:
        """A walk from the beginning, due or not."""
        self._after = None
        while self.walk(limit):
            pass
        return self.done

    def walk(self, limit: int) -> bool:
        """One step of a walk, due or not. False: that was the last one."""
        try:
            if self._after is None:
                refuse_missing(self._store, self._bucket)
                self._check_owner()
                self.done = Swept()
            after = self._after or ""
            values = self._bucket.names(VALUES, after, limit)
            last = values[-1].name if len(values) == limit else None
            self._look(values, self._marks(after, last, limit))
        except (StoreError, Refused):
            raise
        except Exception as error:  # of the bucket's library, which has a type for each kind
            raise BucketAway(f"{self._bucket}: {headline(error)}") from error
        self._after = last
        return self._after is not None

    def _look(self, values: list[Entry], marks: dict[str, Entry]) -> None:
        ours = [each for each in values if _NAME.fullmatch(each.name)]
        named = {name for job_id, _ in groupby(map(_job_of, ours)) for name in self._named(job_id)}
        unnamed = [each for each in ours if each.name not in named]
        ripe = time() - self._grace
        doomed = [each.name for each in unnamed if each.name in marks and marks[each.name].modified < ripe]
        for each in unnamed:
            if each.name not in marks:
                self._bucket.put(f"{MARKS}/{each.name}", b"")
        gone = {name for name in doomed if self._delete_if_old(name, ripe)}
        present = {each.name for each in unnamed} - gone
        if unmarked := [f"{MARKS}/{name}" for name in marks if name not in present]:
            self._bucket.delete(unmarked)
        looked, left, deleted = self.done
        self.done = Swept(looked + len(ours), left + len(present), deleted + len(gone))

    def _delete_if_old(self, name: str, ripe: float) -> bool:
        """Delete it unless it was written again since it was listed: then a row has named it meanwhile, or will.

        A value is written to the bucket before the row names it, so its age tells. Each object is looked at just before
        it is deleted: to look at all of a batch first, or to read its rows, takes long enough to write one again.
        """
        (entry,) = self._bucket.names(VALUES, name[:-1], 1) or (None,)
        if entry is None or entry.name != name or entry.modified >= ripe:
            return False
        self._bucket.delete([f"{VALUES}/{name}"])
        return True

    def _named(self, job_id: str) -> Iterable[str]:
        """The objects that the rows of this job name."""
        job = self._store.get(job_id)
        if job is None:
            return ()
        texts = (job.payload, job.result, job.checkpoint, *self._store.records(job_id).values())
        found = (parsed(text) for text in texts if text is not None)
        return {each.name(job_id) for each in found if each is not None}

    def _marks(self, after: str, last: str | None, limit: int) -> dict[str, Entry]:
        """The marks behind `after`, up to `last`; None: all of them."""
        found: dict[str, Entry] = {}
        while page := self._bucket.names(MARKS, after, limit):
            found |= {each.name: each for each in page if last is None or each.name <= last}
            after = page[-1].name
            if last is not None and after > last:
                break
        return found

    def _check_owner(self) -> None:
        """Sweep no bucket whose objects belong to the jobs of another store. Raises Refused."""
        mine = self._store.notes(_STORE).get(_STORE)
        if mine is None:
            landed, stands = self._store.swap(_STORE, None, new := token_hex(16))
            mine = new if landed or stands is None else stands
        try:
            owner = self._bucket.get(_OWNER, len(mine))
        except LookupError:
            self._bucket.put(_OWNER, mine.encode())
            return
        if owner != mine.encode():
            raise Refused(
                f"{self._bucket} is not swept: it belongs to another store, or to an earlier state of this one. Give "
                f"each store a bucket, folder or namespace of its own; if only this one uses it, delete {_OWNER} there"
            )


def _job_of(entry: Entry) -> str:
    return entry.name[3:39]
