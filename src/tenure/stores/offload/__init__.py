"""A store whose large values are kept in a bucket: any store, with a bucket behind it.

A value that is larger than the settings allow for a row is written to the bucket first, under its hash; its size and
hash go into the row (core/offloaded.py). The same value makes the same row, so an outcome that is sent again is
recognised. Objects are never changed, and nothing but the sweep deletes any (sweep.py). A codec stands in front of this
store, so what leaves for the bucket is encrypted.

A bucket may be slow or unavailable, so no call to it takes a thread that others wait for: it has threads of its own,
and each wait for one of them is bounded. Claims, beats, renewals and rescues don't touch it. A worker puts results and
checkpoints there with `keep`, which does not wait, before it stores them; only a client's `enqueue`, in the caller's
thread, and a handler's `once` wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from secrets import token_bytes, token_hex
from threading import Lock
from time import monotonic
from typing import Any, TypeVar, cast

from tenure.core.lifecycle import Completed, Lease, Outcome
from tenure.core.logs import logger
from tenure.core.offloaded import MARK, Offloaded, is_offloaded, offloaded, parsed
from tenure.errors import BucketAway, NotFetched, StoreAway, StoreError
from tenure.ports import (
    Answer,
    Busy,
    Capabilities,
    Draft,
    Enqueued,
    OnceRecord,
    OnLoop,
    Place,
    Progress,
    Rescued,
    Store,
    Text,
)
from tenure.stores.inline import told
from tenure.stores.offload.bucket import CALL_SECONDS, Bucket, bucket_of, headline
from tenure.stores.offload.sweep import VALUES, Sweep, Swept, refuse_missing
from tenure.stores.rules import check_text

T = TypeVar("T")

WAIT_SECONDS = CALL_SECONDS + 5.0  #: for a call of the bucket, with the wait for a free thread
KEPT_SECONDS = 600.0  #: an object that this process wrote so recently is there: no sweep deletes one so young
MOST_KEPT = 10_000
THREADS = 16
_log = logger("tenure.offload")


class OffloadStore:
    """`offloading(store, …)` makes one. What is not named here passes unchanged."""

    def __init__(self, store: Store, bucket: Bucket, largest: Mapping[Place, int], grace: float) -> None:
        self.beneath, self.bucket, self._largest = store, bucket, largest
        self.capabilities: Capabilities = replace(store.capabilities, inline=min(largest.values()) // 4)
        self._sweep = Sweep(store, bucket, grace)
        self._pool = ThreadPoolExecutor(THREADS, "tenure-offload")
        self._lock = Lock()
        self._kept = OrderedDict[str, float]()
        self._puts: dict[str, Future[None]] = {}
        self._away = ""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.beneath, name)
        with suppress(AttributeError):
            if callable(found):
                setattr(self, name, found)  # so that the next call bypasses this
        return found

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.beneath.close()

    # ── the bucket ──

    def keep(self, texts: Iterable[Text]) -> Future[None] | None:
        puts = [put for put in map(self._put, texts) if put is not None]
        return _all_of(puts) if puts else None

    def _put(self, text: Text) -> Future[None] | None:
        if not self._is_large(text.place, text.value):
            return None
        data = text.value.encode()
        name = f"{VALUES}/{Offloaded(len(data), sha256(data).hexdigest()).name(text.owner)}"
        with self._lock:
            if self._kept.get(name, float("-inf")) > monotonic() - KEPT_SECONDS:
                return None
            put = self._puts.get(name)
            if put is None:
                put = self._puts[name] = self._pool.submit(self._write, name, text.value)
                put.add_done_callback(lambda _: self._puts.pop(name, None))
            return put

    def _write(self, name: str, value: str) -> None:
        began, data = monotonic(), value.encode()
        refuse_missing(self.beneath, self.bucket)
        try:
            self.bucket.put(name, data)
        except Exception as error:
            self._tell(error)
            raise BucketAway(
                f"{self.bucket} does not take a value of {len(data):,} bytes: {headline(error)}"
            ) from error
        self._tell(None)
        with self._lock:
            self._kept[name] = began
            self._kept.move_to_end(name)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)

    def _is_large(self, place: Place, value: str) -> bool:
        """True also for what only looks offloaded, so that it is read as it was written. Raises BadData."""
        most = self._largest.get(place)
        if most is None or (len(value) * 4 <= most and not value.startswith(MARK)):  # four bytes at most for each
            return False
        check_text(value)
        return len(value.encode()) > most or value.startswith(MARK)

    def fetch(self, text: Text) -> str:
        if not is_offloaded(text.value):
            return text.value
        found = parsed(text.value)
        if found is None:
            raise NotFetched(told(text), "it is stored in a form that this release does not know")
        name = f"{VALUES}/{found.name(text.owner)}"
        try:
            data = self._pool.submit(self.bucket.get, name, found.size).result(WAIT_SECONDS)
        except LookupError:
            raise NotFetched(told(text), f"{self.bucket} has no {name}") from None
        except Exception as error:
            self._tell(error)
            why = headline(error) if str(error) else f"no answer for {WAIT_SECONDS:.0f} s"
            raise NotFetched(told(text), f"{self.bucket}: {why}") from error
        self._tell(None)
        if sha256(data).hexdigest() != found.digest:
            raise NotFetched(told(text), f"{self.bucket} has another object as {name}: its hash differs")
        return data.decode()

    def _tell(self, error: Exception | None) -> None:
        """Log that the bucket fails, and that it works again: once each."""
        with self._lock:
            before, self._away = self._away, "" if error is None else headline(error)
        if error is not None and not before:
            _log.error("%s does not answer as it should; what needs it waits: %s", self.bucket, headline(error))
        elif error is None and before:
            _log.warning("%s answers again", self.bucket)

    def sweep(self, limit: int) -> float:
        return self._sweep.step(limit)

    def walk(self) -> Swept:
        """A whole walk of the sweep at once. Blocks. Raises StoreError, Refused."""
        return self._sweep.whole()

    def try_out(self) -> None:
        """Write an object, read it, delete it. Blocks. Raises BucketAway, StoreAway.

        It makes no new folder where this store has kept its values in one that is not there.
        """
        if self.bucket.is_missing():
            try:
                self.beneath.open()
            except StoreAway:
                raise
            except StoreError:  # there is no store yet, so it has kept nothing
                pass
            else:
                refuse_missing(self.beneath, self.bucket)
        name, data = f"trial/{token_hex(8)}", token_bytes(1000)
        try:
            self._pool.submit(self.bucket.put, name, data).result(WAIT_SECONDS)
            read = self._pool.submit(self.bucket.get, name, len(data)).result(WAIT_SECONDS)
            self._pool.submit(self.bucket.delete, [name]).result(WAIT_SECONDS)
        except Exception as error:
            raise BucketAway(f"{self.bucket}: {headline(error)}") from error
        if read != data:
            raise BucketAway(f"{self.bucket}: it returned something else than what was written just before")

    # ── what is written ──

    def _stored(self, place: Place, values: Iterable[tuple[str, str]], key: str = "") -> bool:
        """Write the large ones of these values into the bucket. False: none is large. Raises BucketAway."""
        large = [Text(place, job_id, key, value) for job_id, value in values if self._is_large(place, value)]
        for put in [self._put(each) for each in large]:
            try:
                if put is not None:
                    put.result(WAIT_SECONDS)
            except TimeoutError as error:
                raise BucketAway(f"{self.bucket} has not answered for {WAIT_SECONDS:.0f} s") from error
        return bool(large)

    def _for_row(self, place: Place, value: str) -> str:
        return offloaded(value.encode()) if self._is_large(place, value) else value

    def enqueue(
        self, drafts: Sequence[Draft], *, tx: object = None, committed: Callable[[], None] | None = None
    ) -> list[Enqueued]:
        if self._stored("payload", ((each.id, each.payload) for each in drafts)):
            drafts = [each.but(payload=self._for_row("payload", each.payload)) for each in drafts]
        return self.beneath.enqueue(drafts, tx=tx, committed=committed)

    def enqueue_on_loop(self, draft: Draft) -> OnLoop[Enqueued]:
        if self._is_large("payload", draft.payload):
            return None
        return (yield from self.beneath.enqueue_on_loop(draft))

    def finish(self, ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        results = ((lease.job_id, end.result) for lease, end in ends if isinstance(end, Completed))
        if self._stored("result", results):
            ends = [(lease, self._outcome(end)) for lease, end in ends]
        return self.beneath.finish(ends, tx=tx)

    def settle(self, worker_id: str, verdicts: Mapping[str, Outcome], rest: Outcome, *, how: str = "") -> list[Rescued]:
        results = ((job_id, end.result) for job_id, end in verdicts.items() if isinstance(end, Completed))
        if self._stored("result", results):
            verdicts = {job_id: self._outcome(end) for job_id, end in verdicts.items()}
        return self.beneath.settle(worker_id, verdicts, rest, how=how)

    def _outcome(self, end: Outcome) -> Outcome:
        return Completed(self._for_row("result", end.result)) if isinstance(end, Completed) else end

    def progress(self, reports: Sequence[Progress]) -> list[bool]:
        checkpoints = ((each.lease.job_id, each.checkpoint) for each in reports if each.checkpoint is not None)
        if self._stored("checkpoint", checkpoints):
            reports = [
                replace(each, checkpoint=each.checkpoint and self._for_row("checkpoint", each.checkpoint))
                for each in reports
            ]
        return self.beneath.progress(reports)

    def once(self, lease: Lease, key: str, value: str | None) -> OnceRecord | None:
        """As in any store. Raises BucketAway, NotFetched."""
        if value is not None and self._stored("once", [(lease.job_id, value)], key):
            value = self._for_row("once", value)
        found = self.beneath.once(lease, key, value)
        if found is None or found.value is None:
            return found
        return OnceRecord(self.fetch(Text("once", lease.job_id, key, found.value)))

    def rewrite(self, changes: Sequence[tuple[Text, str]]) -> int:
        for text, new in changes:
            self._stored(text.place, [(text.owner, new)], text.key)
        return self.beneath.rewrite([(text, self._for_row(text.place, new)) for text, new in changes])


def _all_of(puts: Sequence[Future[None]]) -> Future[None]:
    """Done when all of them are. It raises what the first one to fail raised."""
    whole, lock, left = Future[None](), Lock(), len(puts)

    def end(_: Future[None]) -> None:  # called in the threads of the pool
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        errors = (CancelledError() if put.cancelled() else put.exception() for put in puts)
        if error := next(filter(None, errors), None):
            whole.set_exception(error)
        else:
            whole.set_result(None)

    whole.set_running_or_notify_cancel()  # what waits for it can't cancel it
    for put in puts:
        put.add_done_callback(end)
    return whole


def offloading(store: Store, url: str, namespace: str, largest: Mapping[Place, int], grace: float) -> Store:
    """The store, with this bucket behind it. `grace`: seconds for which an object is kept that no row names."""
    return cast("Store", OffloadStore(store, bucket_of(url, namespace), largest, grace))
