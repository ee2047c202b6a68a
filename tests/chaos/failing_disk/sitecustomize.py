"""On the path of a process, its SQLite files are on a disk that forgets what was not synced when the power is cut."""

from __future__ import annotations

import os
from pathlib import Path

from chaos.machine import FailingDisk

disk = FailingDisk(Path(os.environ["TENURE_TEST_DISK"]))
