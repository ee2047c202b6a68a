"""What the code of an attempt has reported, until that is stored: its progress, checkpoint and log."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace

from tenure.ports import Progress
from tenure.worker.job_log import JobLog
from tenure.worker.leased import Leased, W


class Reporting(Leased[W]):
    """The part of an attempt that keeps the newest report."""

    active = 0.0  #: when it last reported progress, by the loop's clock
    _report: Progress | None = None
    _log: JobLog | None = None  #: the lines its code has logged, if any
    _lock: threading.Lock | None = None

    def report(self, fraction: float | None, stage: str | None, message: str | None, checkpoint: str | None) -> None:
        self.check()
        self.active = self.loop.time()
        lock = self._lock
        if lock is None:
            self._merge(fraction, stage, message, checkpoint)
        else:
            with lock:
                self._merge(fraction, stage, message, checkpoint)
        self._reported()

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
        with self._lock or nullcontext():
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
        with self._lock or nullcontext():
            since, self._report = self._report, replace(report, log=None)
            if since is not None:
                self._merge(since.fraction, since.stage, since.message, since.checkpoint)
