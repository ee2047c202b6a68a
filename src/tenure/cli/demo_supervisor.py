"""The demo's supervisor, a separate process: `python -m tenure.cli.demo_supervisor ORDER`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

LEASE = "10s"


@contextmanager
def running_supervisor(order: Mapping[str, object], log: Path) -> Generator[subprocess.Popen[bytes]]:
    """Runs a supervisor within the block. It ends when its standard input closes: also when this process is killed."""
    environment = {**os.environ, "TENURE_LEASE": LEASE, "TENURE_LOG_LEVEL": "info", "TENURE_LOG_FORMAT": "text"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tenure.cli.demo_supervisor", json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            env=environment,
            process_group=0,  # Ctrl-C must reach only the demo
        )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        finally:
            if process.poll() is None:
                process.kill()  # its workers die with it
                process.wait()


def _become_supervisor(order: str) -> int:
    from tenure.app.processes import supervise
    from tenure.cli import logs

    def end_with_the_demo() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_the_demo, name="demo-end", daemon=True).start()
    return supervise(json.loads(order), logs.follow)


if __name__ == "__main__":
    sys.exit(_become_supervisor(sys.argv[1]))
