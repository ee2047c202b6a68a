"""Tells the app's tracer of attempts that were rescued: their own processes can't."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from tenure.core.logs import logger
from tenure.events import Events, JobRescued
from tenure.ports import Rescued, Store
from tenure.tasks.tracing import Tracing

FLUSH_SECONDS = 3.0  #: how long a worker's exit waits until the traces are handed over
_log = logger("tenure.worker")


class RescueTraces:
    """Reads rescued jobs in a thread of its own: neither the worker nor the maintenance waits for it.

    It hears of them by events of its process, and from the supervisor, which has no tracer. `mine`: the id of the
    worker of this process. Make it before anything in this process may rescue a job.
    """

    def __init__(self, store: Store, tracing: Tracing, mine: Callable[[], str], events: Events) -> None:
        self._store, self._tracing, self._mine = store, tracing, mine
        self._thread = ThreadPoolExecutor(1, "tenure-traces")
        self._unsubscribe = events.subscribe(JobRescued, self._heard)

    def _heard(self, event: JobRescued) -> None:
        if event.rescued.worker_id != self._mine():  # else its own flusher ends the trace
            self.tell(event.rescued)

    def tell(self, rescued: Rescued) -> None:
        """From any thread."""
        with suppress(RuntimeError):  # closed
            self._thread.submit(self._tell, rescued)

    def _tell(self, rescued: Rescued) -> None:
        try:
            job = self._store.get(rescued.id)
            ended = (each for each in self._store.attempts(rescued.id) if each.attempt == rescued.attempt)
            attempt = next(ended, None)
            if job is not None and attempt is not None:
                self._tracing.rescued(rescued, job, attempt)
        except Exception as error:  # the store is away, or closed: the trace lacks this attempt
            _log.debug("the rescue of job %s can't be traced: %s", rescued.id, error)

    def close(self) -> None:
        """Return when everything that it was told is traced. Blocks for 3 seconds at most; the rest is not traced."""
        self._unsubscribe()
        with suppress(RuntimeError, TimeoutError):  # closed; a read of the store takes longer
            self._thread.submit(int).result(FLUSH_SECONDS)
        self._thread.shutdown(wait=False, cancel_futures=True)
