"""`make release`: builds the wheel and the sdist of this commit, checks them, and tags it. It uploads nothing.

The version is that of pyproject.toml, and no other file has it. Everything is built from what is committed, in a
temporary folder; the tag and dist/ come last, so a release that is refused leaves nothing behind.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
from collections.abc import Collection, Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parents[1]
CHANGES, PROJECT = "CHANGELOG.md", "pyproject.toml"
UNRELEASED = "Unreleased"
#: The files of the wheel besides the packages, in its .dist-info
ABOUT = frozenset({"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"})
#: Runs a job in an environment where only the wheel and what it requires are installed.
APP = """
from tenure import Tenure

jobs = Tenure("sqlite:///jobs.db")

@jobs.task
def greet(name: str) -> str:
    return f"hello {name}"

if __name__ == "__main__":
    with jobs, jobs.worker():
        print(greet.enqueue("Ada").result(timeout="30s"))
"""


class Refused(Exception):
    """Why there is no release, and what to do."""


class Planned(NamedTuple):
    """What is to be released: its version, and what changed since the one before."""

    version: str
    changes: str

    @property
    def tag(self) -> str:
        return f"v{self.version}"


def main(root: Path = ROOT) -> int:
    try:
        planned = plan(root)
        with tempfile.TemporaryDirectory(prefix="tenure-release-") as folder:
            made = build(root, Path(folder))
            check(root, planned, *made)
            install(planned, root / "constraints.txt", made[0], Path(folder))
            message = f"Tenure {planned.version}\n\n{planned.changes}"
            # The default cleanup would remove its headings: they look like comments.
            git(root, "tag", "--annotate", "--cleanup=whitespace", planned.tag, "--message", message)
            target = keep(made, root / "dist")
    except Refused as refused:
        print(f"no release: {refused}", file=sys.stderr)
        return 1
    print(f"tagged {planned.tag}; nothing was uploaded. What is left to do:")
    print(f"  git push origin {planned.tag}")
    print(f"  upload {' and '.join(str(each.relative_to(root)) for each in target)} to the package index")
    return 0


# ── What is to be released ──────────────────────────────────────────────────────────────────────────────────────


def plan(root: Path) -> Planned:
    """Raises Refused if this commit can't be a release."""
    version = tomllib.loads((root / PROJECT).read_text())["project"]["version"]
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise Refused(f"the version in {PROJECT} is {version!r}, expected three numbers such as 1.4.0: correct it")
    dirty = git(root, "status", "--porcelain").splitlines()
    if dirty:
        some = ", ".join(line[3:] for line in dirty[:5]) + (" …" if len(dirty) > 5 else "")
        raise Refused(f"the working tree differs from its commit ({some}): commit these files, or remove them")
    if git(root, "tag", "--list", f"v{version}"):
        raise Refused(f"the tag v{version} is there already: write the next version into {PROJECT}, and commit it")
    return Planned(version, _changes(root, version))


def _changes(root: Path, version: str) -> str:
    """The section of this version. No change may be left under “Unreleased”."""
    sections = {
        heading.strip(): text.strip()
        for heading, _, text in (
            part.partition("\n") for part in re.split(r"^## ", (root / CHANGES).read_text(), flags=re.MULTILINE)[1:]
        )
    }
    if sections.get(UNRELEASED):
        raise Refused(f"{CHANGES} has changes under “{UNRELEASED}”: move them to “## {version}”, and commit that")
    if not sections.get(version):
        raise Refused(f"{CHANGES} says nothing of {version}: write what changed under “## {version}”, and commit that")
    return sections[version]


# ── Making it ───────────────────────────────────────────────────────────────────────────────────────────────────


def build(root: Path, folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist. The wheel is built from the sdist, as distributions do."""
    committed, unpacked = folder / "committed", folder / "unpacked"
    with ZipFile(BytesIO(run(root, "git", "archive", "--format=zip", "HEAD"))) as archive:
        archive.extractall(committed)
    sdist = _built("sdist", committed, folder, "*.tar.gz")
    shutil.unpack_archive(sdist, unpacked, filter="data")
    (source,) = unpacked.iterdir()
    return _built("wheel", source, folder, "*.whl"), sdist


def _built(kind: str, source: Path, folder: Path, name: str) -> Path:
    run(source, sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder))
    (made,) = folder.glob(name)
    return made


# ── Checking it ─────────────────────────────────────────────────────────────────────────────────────────────────


def check(root: Path, planned: Planned, wheel: Path, sdist: Path) -> None:
    """Check the names, the contents and the metadata of both. Raises Refused."""
    committed = git(root, "ls-files", "-z").split("\0")[:-1]
    top, about = f"tenure-{planned.version}", f"tenure-{planned.version}.dist-info/"
    names = {wheel.name, sdist.name}
    if names != (expected := {f"{top}-py3-none-any.whl", f"{top}.tar.gz"}):
        raise Refused(f"{' and '.join(sorted(names))} were made, expected {' and '.join(sorted(expected))}")
    with ZipFile(wheel) as archive:
        code = {name.removeprefix("src/") for name in committed if name.startswith("src/")}
        _compare(wheel.name, archive.namelist(), code | {about + name for name in ABOUT})
        described = Metadata.from_email(archive.read(f"{about}METADATA"), validate=True)
    with tarfile.open(sdist) as archive:
        packed = [member.name.removeprefix(f"{top}/") for member in archive if not member.isdir()]
        _compare(sdist.name, packed, {*committed, "PKG-INFO"})
    if (str(described.version), bool(described.description)) != (planned.version, True):
        raise Refused(f"{wheel.name} says it is {described.version}, expected {planned.version} and a description")


def _compare(name: str, found: Collection[str], expected: Collection[str]) -> None:
    missing, strange = set(expected) - set(found), set(found) - set(expected)
    if missing or strange:
        wrong = {"lacks": missing, "has": strange}
        said = [f"{what} {', '.join(sorted(files)[:5])}" for what, files in wrong.items() if files]
        raise Refused(f"{name} {' and '.join(said)}: correct [tool.hatch.build] in {PROJECT}, or what is committed")


def install(planned: Planned, constraints: Path, wheel: Path, folder: Path) -> None:
    """Install the wheel into a fresh environment, where it must say its version and run a job. Raises Refused."""
    home = folder / "venv"
    venv.create(home, symlinks=True)
    python = home / "bin/python"
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python))
    run(folder, *pip, "install", "--constraint", str(constraints), str(wheel))
    run(folder, *pip, "check")
    said = run(folder, str(home / "bin/tenure"), "--version").decode().strip()
    if said != planned.version:
        raise Refused(f"the installed `tenure --version` says {said!r}, expected {planned.version!r}")
    (folder / "app.py").write_text(APP)
    answer = run(folder, str(python), "app.py").decode().strip()
    if answer != "hello Ada":
        raise Refused(f"a job of the installed wheel returned {answer!r}, expected 'hello Ada'")


def keep(made: Sequence[Path], target: Path) -> list[Path]:
    target.mkdir(exist_ok=True)
    return [Path(shutil.copy(each, target)) for each in made]


# ── Commands ────────────────────────────────────────────────────────────────────────────────────────────────────


def git(root: Path, *words: str) -> str:
    return run(root, "git", *words).decode()


def run(folder: Path, *command: str) -> bytes:
    """What the command printed. Raises Refused if it fails."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TENURE_", "PYTHON"))}
    ran = subprocess.run(command, cwd=folder, env=clean, capture_output=True, check=False)
    if ran.returncode != 0:
        said = (ran.stderr or ran.stdout).decode(errors="replace").strip()[-2000:]
        raise Refused(f"`{' '.join(command)}` ended with {ran.returncode}: {said}")
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main())
