"""What the code of an attempt has reported, until that is stored: its progress, checkpoint and log."""

from __future__ import annotations

import threading
from dataclasses import replace
from math import inf

from tenure.ports import Progress
from tenure.worker.job_log import JobLog
from tenure.worker.leased import Leased, W


class Reporting(Leased[W]):
    """The part of an attempt that keeps the newest report."""

    active = 0.0  #: when it last reported progress, by the loop's clock; infinite while its values are fetched
    over = False  #: its code has stopped
    _report: Progress | None = None
    _log: JobLog | None = None  #: the lines its code has logged, if any
    _report_lock: threading.Lock | None = None

    def report(self, fraction: float | None, stage: str | None, message: str | None, checkpoint: str | None) -> None:
        self.check()
        self.active = self.loop.time()
        with self._reporting:
            self._merge(fraction, stage, message, checkpoint)
        self._reported()

    @property
    def _reporting(self) -> threading.Lock:
        """Held by its code, on the loop or in a thread, and by the thread that stores its reports."""
        return self._report_lock or self.__dict__.setdefault("_report_lock", threading.Lock())

    def keep_active(self) -> None:
        """While the worker fetches its values: no other host is to believe that the job hangs."""
        limit = self.claimed.stale_after
        if limit is None or self.over or self.active != inf:
            return
        with self._reporting:
            self._merge(None, None, None, None)
        self._reported()
        self.loop.call_later(limit / 3, self.keep_active)

    def _merge(self, fraction: float | None, stage: str | None, message: str | None, checkpoint: str | None) -> None:
        old = self._report
        if old is not None:
            fraction = old.fraction if fraction is None else fraction
            stage = old.stage if stage is None else stage
            message = old.message if message is None else message
            checkpoint = old.checkpoint if checkpoint is None else checkpoint
        self._report = Progress(
            lease=self.lease, fraction=fraction, stage=stage, message=message, checkpoint=checkpoint
        )

    def take_report(self) -> Progress | None:
        """Remove and return the unstored report, with the log if it has grown; the caller must store it."""
        with self._reporting:
            report, self._report = self._report, None
        log = self._log
        if log is None or not log.unstored:
            return report
        log.unstored = False  # before reading the text: a line added meanwhile is in this report or the next
        return replace(report or Progress(lease=self.lease), log=log.text())

    def logged(self, line: bytes) -> None:
        """Add a line of its log to the next report. Called from any thread, by one at a time."""
        if self._log is None:
            self._log = JobLog()
        self._log.add(line)
        self._reported()

    @property
    def unstored(self) -> str | None:
        """The checkpoint of the report that is not stored yet."""
        return None if self._report is None else self._report.checkpoint

    def _reported(self) -> None:
        """There is progress to store."""
        raise NotImplementedError

    def put_back(self, report: Progress) -> None:
        """Keep a report that could not be stored; values reported since take precedence."""
        if report.log is not None and self._log is not None:
            self._log.unstored = True
        with self._reporting:
            since, self._report = self._report, replace(report, log=None)
            if since is not None:
                self._merge(since.fraction, since.stage, since.message, since.checkpoint)
