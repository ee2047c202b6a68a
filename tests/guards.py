"""Delete the SQLite store's guards, one at a time, and see a test go red each time: `python -m tests.guards`.

A suite that stays green without a guard proves nothing about it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Guard(NamedTuple):
    name: str
    file: str
    text: str
    without: str


STATEMENTS, STORE, OPERATORS, SCHEDULES = "statements.py", "__init__.py", "operators.py", "schedules.py"
# ruff: noqa: E501 (a guard a line, however long: it is a table)
GUARDS = (
    Guard("an owner's write checks the attempt", STATEMENTS, " AND attempt = :attempt AND +worker_id", " AND +worker_id"),
    Guard("an owner's write checks the worker", STATEMENTS, " AND +worker_id = :worker\"", '"'),
    Guard("a completion checks the attempt", STATEMENTS, " AND jobs.attempt = done.attempt", ""),
    Guard("a completion checks the worker", STATEMENTS, "\n      AND +jobs.worker_id = :worker", ""),
    Guard("a claim needs a worker that is not dead", STATEMENTS, "id = :worker AND died_at IS NULL", "id = :worker"),
    Guard("a claim needs a lease that has not ended", STATEMENTS, " AND expires_boot > :boot", ""),
    Guard("a claim takes nothing from a paused queue", STATEMENTS, "name = :queue AND paused_at IS NOT NULL", "FALSE"),
    Guard("a claim takes only queued jobs", STATEMENTS, "WHERE state = 'queued' AND queue = :queue AND solo", "WHERE queue = :queue AND solo"),
    Guard("a renewal revives nobody", STORE, "note = ? WHERE id = ? AND died_at IS NULL", "note = ? WHERE id = ?"),
    Guard("death is declared once", STORE, "death = 'crash' WHERE id = ? AND died_at IS NULL", "death = 'crash' WHERE id = ?"),
    Guard("a rescue takes only from the dead, missing or hung", STATEMENTS, "w.id IS NULL OR w.died_at IS NOT NULL\n        OR ", "TRUE OR "),
    Guard("a worker id is used once", STORE, "if connection.changes() == 0:\n                raise", "if False:\n                raise"),
    Guard("a log is kept only with its report", STORE, "if landed[-1] and report.log", "if report.log"),
    Guard("a refusal is told by the attempt of that worker", STATEMENTS, " AND worker_id = :worker AND evidence", " AND evidence"),
    Guard("the first refusal stands", STATEMENTS, " AND evidence ->> '$.refused' IS NULL", ""),
    Guard("a running job can't be deleted", OPERATORS, "DELETE FROM jobs WHERE id = ? AND state <> 'processing'", "DELETE FROM jobs WHERE id = ?"),
    Guard("a cancel ends only what waits", OPERATORS, "WHERE id = :id AND state IN ('scheduled', 'queued')", "WHERE id = :id"),
    Guard("a cancel asked turns a retry into cancelled", STORE, "cancel_reason is not None)", "False)"),
    Guard("a schedule is written over what was read only", SCHEDULES, "if (0 if stands is None else stands[0]) != rev:", "if False:"),
    Guard("a guard's job begins under a living worker only", SCHEDULES, "if wanted.owner is not None and first", "if False and first"),
    Guard("a guard's owner is not dead", SCHEDULES, "WHERE id = ? AND died_at IS NULL AND boot_id", "WHERE id = ? AND boot_id"),
    Guard("a guard's owner has a lease", SCHEDULES, " AND expires_boot > ?", " AND ? IS NOT NULL"),
    Guard("a guard's job is never replayed", OPERATORS, "if queue == GUARD:", "if False:"),
    Guard("a replay makes older readings stale", SCHEDULES, "SET rev = rev + 1, body", "SET rev = rev, body"),
    Guard("a note is swapped for what was read only", SCHEDULES, "if stands not in (old, new):", "if False:"),
    Guard("what a landed swap enqueued is not enqueued again", SCHEDULES, "if stands == old != new:", "if True:"),
    Guard("open ticks are kept", SCHEDULES, "WHERE NOT open AND decided_at < ?", "WHERE decided_at < ?"),
    Guard("a note ends with its time", SCHEDULES, "WHERE key = ? AND (expires_at IS NULL OR expires_at > ?)", "WHERE key = ? AND (TRUE OR ?)"),
)  # fmt: skip


def red_test(guard: Guard) -> str:
    """The first test that fails without this guard, or '' when none does."""
    with tempfile.TemporaryDirectory(prefix="guards-") as folder:
        shutil.copytree(ROOT / "src", Path(folder, "src"))
        shutil.copytree(ROOT / "tests", Path(folder, "tests"), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        path = Path(folder, "src/tenure/stores/sqlite", guard.file)
        text = path.read_text()
        if guard.text not in text:
            raise SystemExit(f"{guard.name}: {guard.file} no longer has {guard.text!r}")
        path.write_text(text.replace(guard.text, guard.without, 1))
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "tests/conformance", "-x", "-q", "-k", "sqlite", "-p", "no:cacheprovider"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(folder, "src")), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].partition(" ")[2].partition(" - ")[0] if run.returncode == 1 and failed else ""


def main() -> int:
    unseen = 0
    for guard in GUARDS:
        red = red_test(guard)
        unseen += not red
        sys.stdout.write(f"{'red ' if red else 'GREEN'} without: {guard.name}\n     {red or 'no test noticed'}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(GUARDS) - unseen} of {len(GUARDS)} deleted guards made a test fail\n")
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
