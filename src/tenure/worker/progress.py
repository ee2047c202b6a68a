"""Stores what running code reports: progress, checkpoints and log lines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tenure.errors import BadData, BucketAway, StoreBusy, StoreError
from tenure.ports import Busy, Progress, Text
from tenure.worker.access import Portion, StoreAccess, halving
from tenure.worker.executor import Attempt
from tenure.worker.keeping import Keeping
from tenure.worker.slots import End
from tenure.worker.tally import Tally

PROGRESS_SECONDS = 0.5
FLUSH_SECONDS = 30.0  #: how long `job.flush` waits for the bucket
MOST_REPORTS = 1000  #: in one call


class ProgressFlusher:
    """Stores the newest report of each attempt twice a second, or at once if its code asks for that."""

    def __init__(self, access: StoreAccess, tally: Tally, keeping: Keeping) -> None:
        self._access, self._tally, self._keeping = access, tally, keeping
        self._large: dict[Attempt, asyncio.Task[None]] = {}  # reports whose checkpoints are brought into the bucket
        self._reported: set[Attempt] = set()
        self._flushing: set[Attempt] = set()  # those with reports that are being written
        self._portion = Portion(MOST_REPORTS)
        self._storing = threading.Lock()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            if self._reported:
                await self._flush()

    async def _flush(self) -> None:
        attempts = self._flushing = self._reported.copy()  # atomic, as is the next step: other threads add to the set
        self._reported -= attempts
        large = {each for each in attempts if self.has_large(each)}
        attempts -= large  # no other report waits for the bucket
        for attempt in large:
            self._begin_large(attempt)
        active = [each for each in large if each.claimed.stale_after is not None]
        if not attempts and not active:
            return
        try:
            refused = await self._access.write(self._store_some, attempts, active)
        except StoreError as error:
            self._access.unavailable("write", error)
            self._reported.update(attempts)
        else:
            self._access.recovered("write")
            for attempt in refused:
                self._lost(attempt)
        self._flushing = set()

    def _store_some(self, attempts: Iterable[Attempt], active: Sequence[Attempt]) -> list[Attempt]:
        """Store their newest reports, and of `active` only that they have reported. Returns the attempts refused."""
        refused, busy = self.store(attempts)
        self._reported.update(busy)
        landed = self._access.store.progress([Progress(lease=each.lease) for each in active]) if active else []
        return refused + [each for each, stored in zip(active, landed, strict=True) if not stored]

    def _lost(self, attempt: Attempt) -> None:
        """Code that has ended need not be stopped: its outcome will be refused, too."""
        if not attempt.finished and not attempt.over:
            self._count_refused(attempt)
            attempt.request_stop("lease_lost", None)

    # ── large checkpoints ──

    def has_large(self, attempt: Attempt | None) -> bool:
        """Does a report of this attempt wait for the bucket, or will one have to?"""
        return attempt is not None and (attempt in self._large or self._keeping.is_large(attempt.unstored))

    def _begin_large(self, attempt: Attempt) -> asyncio.Task[None]:
        if attempt not in self._large:
            self._large[attempt] = self._keeping.begin(self._store_large(attempt))
        return self._large[attempt]

    async def _store_large(self, attempt: Attempt) -> None:
        """Store its newest report once the bucket has the checkpoint; what is reported meanwhile comes after it."""
        report = attempt.take_report()
        try:
            if report is not None:
                await self._keeping.kept([Text("checkpoint", attempt.claimed.id, "", report.checkpoint or "")])
                if not await self._access.write(self._store_alone, report):
                    self._lost(attempt)
        except BaseException as error:
            if report is not None:
                attempt.put_back(report)
            if not isinstance(error, StoreError):
                raise
            self._access.unavailable("write", error)
        finally:
            del self._large[attempt]
            self._reported.add(attempt)

    def _store_alone(self, report: Progress) -> bool:
        return halving(self._access.store.progress, self._salvage, [report])[0]

    async def stored_large(self, attempt: Attempt) -> None:
        """Return when none of its reports has to wait for the bucket."""
        while self.has_large(attempt):
            await asyncio.wait([self._begin_large(attempt)])
            if self.has_large(attempt):
                await asyncio.sleep(PROGRESS_SECONDS)

    def _count_refused(self, attempt: Attempt) -> None:
        self._tally.count("refused", attempt.claimed.task)
        self._access.refused(attempt.lease, "progress refused")

    # ── called by attempts (the `Host` of executor.py) and by the OutcomeFlusher ──

    def reported(self, attempt: Attempt) -> None:
        self._reported.add(attempt)

    def store_now(self, attempt: Attempt) -> None:
        if self.has_large(attempt):
            storing = asyncio.run_coroutine_threadsafe(self.stored_large(attempt), attempt.loop)
            try:
                storing.result(FLUSH_SECONDS)
            except TimeoutError as error:
                storing.cancel()
                raise BucketAway(f"the checkpoint is not in the bucket after {FLUSH_SECONDS:.0f} s") from error
            attempt.check()
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
            attempt.loop.call_soon_threadsafe(attempt.request_stop, "lease_lost", None)
            raise attempt.lease_lost()

    def take_unstored(self, ended: Iterable[End]) -> set[Attempt]:
        """The ended attempts with reports that are not stored: the caller must store them."""
        found = set[Attempt]()
        for unstored in (self._reported, self._flushing):  # a write in flight may fail
            if unstored:
                found |= {end.attempt for end in ended if end.attempt in unstored}
        self._reported -= found
        return found

    # ── in the writer threads ──

    def store(self, attempts: Iterable[Attempt]) -> tuple[list[Attempt], list[Attempt]]:
        """Store the newest report of each. Returns the attempts refused, and those whose rows another one has locked.

        After an error, all reports are put back for later; else only those of locked rows.
        """
        with self._storing:
            taken = [(attempt, report) for attempt in attempts if (report := attempt.take_report()) is not None]
            reports, landed = [report for _, report in taken], list[bool | Busy]()
            some: Sequence[Progress] = ()
            try:
                while len(landed) < len(reports):
                    some = self._portion.of(reports[len(landed) :], _size)
                    landed += self._each_stored(some)
                    self._portion.landed()
            except StoreError:
                self._portion.failed(len(some))  # at least one report: the store is not called without any
                for attempt, report in taken:
                    attempt.put_back(report)
                raise
            busy = [each for each, stored in zip(taken, landed, strict=True) if isinstance(stored, Busy)]
            for attempt, report in busy:
                attempt.put_back(report)
        refused = [attempt for (attempt, _), stored in zip(taken, landed, strict=True) if stored is False]
        return refused, [attempt for attempt, _ in busy]

    def _each_stored(self, reports: Sequence[Progress]) -> list[bool | Busy]:
        """A checkpoint whose row another transaction has locked can't be stored now: it delays no other report."""
        try:
            return [*halving(self._access.store.progress, self._salvage, reports)]
        except StoreBusy:
            if len(reports) == 1:
                return [Busy()]
        half = len(reports) // 2
        return self._each_stored(reports[:half]) + self._each_stored(reports[half:])

    def _salvage(self, report: Progress, error: BadData) -> bool:
        try:
            return self._without_log(report, error)
        except BadData:  # none of it can be stored; the attempt continues
            return True

    def _without_log(self, report: Progress, error: BadData) -> bool:
        """Retry without the log: one that can't be stored must not cost the rest of the report."""
        if report.log is None:
            raise error
        return self._access.store.progress([replace(report, log=None)])[0]


def _size(report: Progress) -> int:
    return sum(len(text) for text in (report.message, report.checkpoint, report.log) if text is not None)
