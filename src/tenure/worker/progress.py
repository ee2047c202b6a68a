"""What running code reports (progress, checkpoints, log lines), on its way to the store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from dataclasses import replace

from tenure.errors import BadData, StoreError
from tenure.ports import Progress
from tenure.worker.access import StoreAccess, halving
from tenure.worker.executor import Attempt
from tenure.worker.slots import End
from tenure.worker.tally import Tally

PROGRESS_SECONDS = 0.5


class ProgressFlusher:
    """Stores the newest report of each attempt twice a second, at once if its code asks for that."""

    def __init__(self, access: StoreAccess, tally: Tally) -> None:
        self._access, self._tally = access, tally
        self._reported: set[Attempt] = set()
        self._flushing: set[Attempt] = set()  # of those reported, which are on the way to the store
        self._storing = threading.Lock()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            if self._reported:
                await self._flush()

    async def _flush(self) -> None:
        attempts = self._flushing = self._reported.copy()  # in one step each: other threads add to it
        self._reported -= attempts
        try:
            refused = await self._access.write(self.store, attempts)
        except StoreError as error:
            self._access.unavailable("write", error)
            self._reported.update(attempts)
        else:
            self._access.recovered("write")
            for attempt in refused:
                # Code that has ended is asked nothing any more: the answer to its outcome says the same.
                if not attempt.finished and not attempt.over:
                    self._count_refused(attempt)
                    attempt.ask("lease_lost", None)
        self._flushing = set()

    def _count_refused(self, attempt: Attempt) -> None:
        self._tally.count("refused", attempt.claimed.task)
        self._access.refused(attempt.lease, "progress refused")

    # ── what attempts ask of their host (executor.py), and the flusher of outcomes ──

    def reported(self, attempt: Attempt) -> None:
        self._reported.add(attempt)

    def store_now(self, attempt: Attempt) -> None:
        with self._storing:
            report = attempt.take_report()
            if report is None:
                return
            try:
                landed = halving(self._access.store.progress, self._without_log, [report])[0]
            except StoreError:
                attempt.put_back(report)
                raise
        if not landed and not attempt.finished:
            self._count_refused(attempt)
            attempt.loop.call_soon_threadsafe(attempt.ask, "lease_lost", None)
            raise attempt.lease_lost()

    def last_words(self, ended: Iterable[End]) -> set[Attempt]:
        """The attempts among those ended whose last reports are not stored: the caller stores them now."""
        found = set[Attempt]()
        for unstored in (self._reported, self._flushing):  # what is on the way right now may fail
            if unstored:
                found |= {end.attempt for end in ended if end.attempt in unstored}
        self._reported -= found
        return found

    # ── in the threads that write ──

    def store(self, attempts: Iterable[Attempt]) -> list[Attempt]:
        """Store the newest report of each; those that were refused. On an error all are put back for the next time."""
        with self._storing:
            taken = [(attempt, report) for attempt in attempts if (report := attempt.take_report()) is not None]
            try:
                reports = [report for _, report in taken]
                landed = halving(self._access.store.progress, self._what_can_be_kept, reports)
            except StoreError:
                for attempt, report in taken:
                    attempt.put_back(report)
                raise
        return [attempt for (attempt, _), yes in zip(taken, landed, strict=True) if not yes]

    def _what_can_be_kept(self, report: Progress, error: BadData) -> bool:
        try:
            return self._without_log(report, error)
        except BadData:  # nothing of it; the attempt goes on
            return True

    def _without_log(self, report: Progress, error: BadData) -> bool:
        """A log that can't be kept takes nothing else of the report with it."""
        if report.log is None:
            raise error
        return self._access.store.progress([replace(report, log=None)])[0]
