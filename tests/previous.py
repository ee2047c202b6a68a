"""The release before this code, installed in an environment of its own: both can then run on one store.

It is the newest release tag (`v1.2.3`) before this commit or, while there is none, the commit that previous.txt names.
Its wheel is built as `make release` builds one. Its dependencies are those of this environment, so nothing is
downloaded; its tests are there too, because an app that runs on it may use only what it knows.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parent.parent
NAMED = Path(__file__).with_suffix(".txt")


class PreviousMissing(Exception):
    """The release before this code is not available here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Release:
    """The code that a process runs. `name`: as in TENURE_RELEASE; `path`: folders of modules that are not installed."""

    name: str
    python: str
    path: tuple[Path, ...]

    @property
    def tests(self) -> Path:
        """Its own tests."""
        return self.path[-1]


@functools.cache
def previous() -> Release:
    """The release before this code; made once for each process, and removed when it ends.

    Example: `subprocess.run([previous().python, "-c", "import tenure"])`. Raises PreviousMissing.
    """
    folder = Path(tempfile.mkdtemp(prefix="tenure-previous-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source, installed = folder / "source", folder / "venv"
    with ZipFile(BytesIO(_git("archive", "--format=zip", commit()))) as archive:
        archive.extractall(source)
    _run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder), cwd=source)
    venv.create(installed, symlinks=True)
    python, (wheel,) = installed / "bin/python", folder.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python))
    _run(*pip, "install", "--no-index", "--no-deps", str(wheel), cwd=folder)
    _lend_dependencies(installed)
    tests = source / "tests"
    return Release("1", str(python), (tests / "crash/other_clock", tests))


NO_HISTORY = "the release before is built from the history of a clone, which is not here: git fetch --unshallow --tags"


def has_history() -> bool:
    """Is this a whole clone? An archive, or a shallow clone, has nothing to build the release before from."""
    try:
        return _run("git", "rev-parse", "--is-shallow-repository", cwd=ROOT).strip() == b"false"
    except (OSError, PreviousMissing):
        return False


def commit() -> str:
    """The commit of the release before this code, whole. Raises PreviousMissing."""
    name = next(iter(_tags()), NAMED.read_text().strip())
    return _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").decode().strip()


def _tags() -> list[str]:
    """The tags of releases before this commit, newest first."""
    before = ("--merged", "HEAD", "--no-contains", "HEAD")
    return _git("tag", *before, "--sort=-version:refname", "--list", "v[0-9]*").decode().split()


def _lend_dependencies(installed: Path) -> None:
    """Folders named in a .pth file come last, and .pth files in them are not read: today's code is never imported."""
    base = {"base": str(installed), "platbase": str(installed)}
    lent = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    target = Path(sysconfig.get_path("purelib", vars=base), "lent.pth")
    target.write_text("".join(f"{each}\n" for each in lent), encoding="utf-8")


def _git(*words: str) -> bytes:
    try:
        return _run("git", *words, cwd=ROOT)
    except (OSError, PreviousMissing) as error:
        raise PreviousMissing(
            f"the release before this code is a tag or the commit {NAMED.read_text().strip()} of {NAMED.name}, and git "
            f"does not find it here: run this in a whole clone; a shallow one gets it by "
            f"`git fetch --unshallow --tags` ({error})"
        ) from error


def _run(*command: str, cwd: Path) -> bytes:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, check=False)
    if run.returncode != 0:
        said = (run.stderr or run.stdout).decode(errors="replace").strip()[-2000:]
        raise PreviousMissing(f"`{' '.join(_short(command))}` ended with {run.returncode}: {said}")
    return run.stdout


def _short(command: Sequence[str]) -> list[str]:
    return [Path(command[0]).name, *command[1:]]
