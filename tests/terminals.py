"""Commands at a terminal, and what is seen there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios


def on_a_terminal(width: int, *argv: str) -> tuple[int, str]:
    """Run one command at a terminal of this width: its exit code, and what is seen there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TERM": "xterm"}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        environ.pop(name, None)
    code = "from tenure.cli.main import run; run()"
    command = [sys.executable, "-c", code, *argv]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as process:
        os.close(theirs)
        seen = b""
        try:
            while read := os.read(ours, 65536):
                seen += read
        except OSError:
            pass  # how Linux reports that the other end was closed
        os.close(ours)
    return process.returncode, seen.decode()


def plain(seen: str) -> list[str]:
    """The lines without their colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", seen).splitlines()
