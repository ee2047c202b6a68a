"""A process with this on its path has its SQLite files on a disk that forgets what is not synced at a power cut."""

from __future__ import annotations

import os
from pathlib import Path

from chaos.machine import FailingDisk

disk = FailingDisk(Path(os.environ["TENURE_TEST_DISK"]))
