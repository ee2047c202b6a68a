"""`with jobs.testing() as queue:` runs jobs in a test, in memory, with a virtual clock: docs/testing.md."""

from __future__ import annotations

from tenure.testing.queue import Point, TestQueue, VirtualClock

__all__ = ["Point", "TestQueue", "VirtualClock"]
