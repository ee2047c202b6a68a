"""`make release`: what it refuses and says then, and what it makes of a clone of this repository."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from previous import NO_HISTORY, has_history

ROOT = Path(__file__).parents[2]
CHANGES = "# Changes\n\n## Unreleased\n\n## 1.4.0\n\n### Added\n\n- A thing.\n\n## 1.3.0\n\n- Another.\n"


@pytest.fixture(scope="module")
def release() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools/release.py"))


def git(folder: Path, *words: str) -> str:
    known = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *known, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that can be released."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "tenure"\nversion = "1.4.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all of it")


def rewrite(project: Path, name: str, old: str, new: str) -> None:
    file = project / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    commit(project)


def test_a_clean_commit_with_its_changes_told_is_planned(release: dict[str, Any], project: Path) -> None:
    planned = release["plan"](project)

    assert (planned.version, planned.tag, planned.changes) == ("1.4.0", "v1.4.0", "### Added\n\n- A thing.")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(
            lambda project: (project / "left.txt").touch(),
            "the working tree differs from its commit (left.txt): commit these files, or remove them",
            id="a file that is not committed",
        ),
        pytest.param(
            lambda project: rewrite(project, "pyproject.toml", "1.4.0", "1.4"),
            "the version in pyproject.toml is '1.4', expected three numbers such as 1.4.0: correct it",
            id="a version of two numbers",
        ),
        pytest.param(
            lambda project: git(project, "tag", "v1.4.0"),
            "the tag v1.4.0 is there already: write the next version into pyproject.toml, and commit it",
            id="a version that was released",
        ),
        pytest.param(
            lambda project: rewrite(project, "CHANGELOG.md", "## Unreleased\n", "## Unreleased\n\n- A change.\n"),
            "CHANGELOG.md has changes under “Unreleased”: move them to “## 1.4.0”, and commit that",
            id="changes of no version",
        ),
        pytest.param(
            lambda project: rewrite(project, "CHANGELOG.md", "## 1.4.0", "## 1.4.1"),
            "CHANGELOG.md says nothing of 1.4.0: write what changed under “## 1.4.0”, and commit that",
            id="a version without changes",
        ),
        pytest.param(lambda project: git(project, "config", "core.bare", "true"), "`git status", id="git that fails"),
    ],
)
def test_what_is_refused_says_what_to_do(
    release: dict[str, Any],
    project: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], object],
    said: str,
) -> None:
    spoil(project)
    tags = git(project, "tag")

    assert release["main"](project) == 1

    assert capsys.readouterr().err.startswith(f"no release: {said}")
    assert git(project, "tag") == tags
    assert not (project / "dist").exists()


def made(folder: Path, *more: str, without: str = "", version: str = "1.4.0") -> Path:
    """A wheel as hatchling makes it, of two files of code."""
    about = f"tenure-{version}.dist-info/"
    described = f"Metadata-Version: 2.4\nName: tenure\nVersion: {version}\n\nIt."
    names = ["tenure/__init__.py", "tenure/py.typed", *more, *(about + name for name in ABOUT)]
    wheel = folder / f"tenure-{version}-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        for name in names:
            if name != without:
                archive.writestr(name, described if name.endswith("METADATA") else "")
    return wheel


ABOUT = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        pytest.param({"without": "tenure/py.typed"}, "lacks tenure/py.typed", id="too little"),
        pytest.param({"more": ("tenure/notes.txt",)}, "has tenure/notes.txt", id="too much"),
        pytest.param({"version": "1.3.0"}, "expected tenure-1.4.0-py3-none-any.whl", id="another version"),
    ],
)
def test_a_wheel_that_is_not_what_is_committed_is_refused(
    release: dict[str, Any], project: Path, spoilt: dict[str, Any], said: str
) -> None:
    (project / "src/tenure").mkdir(parents=True)
    for name in ("__init__.py", "py.typed"):
        (project / "src/tenure" / name).touch()
    commit(project)
    folder = project.parent / "made"
    folder.mkdir(exist_ok=True)
    wheel = made(folder, *spoilt.pop("more", ()), **spoilt)

    with pytest.raises(release["Refused"], match=re.escape(said)):
        release["check"](project, release["plan"](project), wheel, folder / "tenure-1.4.0.tar.gz")


@pytest.mark.skipif(not has_history(), reason=NO_HISTORY)
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_clone_of_this_repository_is_built_checked_installed_and_tagged(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(ROOT), str(clone))
    changes = clone / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace("## Unreleased\n", "## Unreleased\n\n## 99.0.0\n\n- A test.\n", 1))
    project = clone / "pyproject.toml"
    project.write_text(re.sub(r'^version = ".*"$', 'version = "99.0.0"', project.read_text(), flags=re.MULTILINE))
    git(clone, "config", "user.name", "a")
    git(clone, "config", "user.email", "a@example.com")
    commit(clone)

    ran = subprocess.run([sys.executable, "tools/release.py"], cwd=clone, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("tagged v99.0.0; nothing was uploaded")
    assert git(clone, "cat-file", "tag", "v99.0.0").partition("\n\n")[2].startswith("Tenure 99.0.0\n\n- A test.\n")
    assert {each.name for each in (clone / "dist").iterdir()} == {
        "tenure-99.0.0-py3-none-any.whl",
        "tenure-99.0.0.tar.gz",
    }
    assert git(clone, "status", "--porcelain") == ""
