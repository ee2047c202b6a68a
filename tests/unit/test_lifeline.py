"""The numbers that a supervisor and its worker share."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from tenure.maintenance.holder import Renewal
from tenure.maintenance.lifeline import Lifeline


@pytest.mark.parametrize("memory_files", ["work", "are forbidden", "are unknown"])
def test_it_has_its_memory_before_a_number_is_written(memory_files: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk refuses a store into a hole of a file by SIGBUS, which ends the process."""

    def no(*_: object) -> int:
        raise OSError(errno.EPERM, "Operation not permitted")

    if memory_files == "are forbidden":
        monkeypatch.setattr("os.memfd_create", no, raising=False)
    elif memory_files == "are unknown":
        monkeypatch.delattr("os.memfd_create", raising=False)
    line = Lifeline.create()
    assert os.fstat(line.fd).st_blocks > 0
    line.tick = 1.0
    assert line.tick == 1.0
    line.close()


def test_where_the_disk_is_full_none_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.memfd_create", raising=False)
    with Path("/dev/full").open("r+b", buffering=0) as full, pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        monkeypatch.setattr("tempfile.TemporaryFile", lambda *_, **__: full)
        Lifeline.create()


def test_deadlines_move_on_with_a_renewal() -> None:
    line = Lifeline.create()
    assert (line.ask_at, line.kill_at, line.tick, line.fenced) == (0, 0, 0, False)
    line.renewed(Renewal.of(100.0, 30.0))
    line.fence()
    assert (line.ask_at, line.kill_at, line.fenced) == (120.0, 124.0, True)
    line.close()


def test_only_a_worker_with_timely_renewals_for_a_whole_lease_may_judge_others() -> None:
    line = Lifeline.create()
    assert not line.well_renewed(110.0)
    line.renewed(Renewal.of(100.0, 30.0))
    assert not line.well_renewed(110.0), "its supervisor has not said since when"
    line.quiet_until = 105.0
    assert [line.well_renewed(now) for now in (104.0, 110.0, 121.0)] == [False, True, False]
    line.close()


def test_a_renewal_that_lands_after_the_end_harms_nobody() -> None:
    line = Lifeline.create()
    line.close()
    line.renewed(Renewal.of(100.0, 30.0))
    line.tick = 1.0
    line.close()
    assert line.tick == 0.0


def test_a_reader_never_sees_half_a_number() -> None:
    line = Lifeline.create()
    line.tick = 1.0
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            line.tick = 12345.678

    writer = threading.Thread(target=write)
    writer.start()
    seen = {line.tick for _ in range(50_000)}
    stop.set()
    writer.join()
    line.close()
    assert seen <= {1.0, 12345.678}
