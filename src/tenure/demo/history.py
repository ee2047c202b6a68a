"""The git history that `tenure demo` analyses: that of this folder, or a made-up one if it is too short."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tenure.demo.git_history import RepositoryRefused, RepositoryUnreachable, open_mirror, repository_name
from tenure.errors import InvalidOption, TenureError

LEAST, MOST, MADE_UP = 100, 1_000, 400  #: commits: too few to watch, the newest taken, in a made-up history
NAME = "observatory"


@dataclass(frozen=True, slots=True)
class History:
    """`commits` are those that will be read one by one. `made_up` says why it is not a real one; empty: it is."""

    name: str
    repo: str
    commits: int
    max_commits: int | None
    made_up: str = ""


def find_history(wanted: str | None, folder: Path) -> History | None:
    """The requested repository, else that of the current folder, else one made up in `folder`.

    None: there is no git on this machine. Raises InvalidOption if the requested one can't be read.
    """
    if shutil.which("git") is None:
        return None
    if wanted is None:
        repo = _root(Path.cwd())
        count, missing = (0, "this folder is in no git repository") if repo is None else (_count(repo), "")
    else:
        repo, count = _asked_for(wanted, folder / "cache")
        missing = ""
    if repo is None or count < LEAST:
        why = missing or f"{repository_name(repo or '')} has too few commits for a demo ({count})"
        made = folder / NAME
        make_up(made, MADE_UP)
        return History(NAME, str(made), MADE_UP, None, why)
    return History(repository_name(repo), repo, min(count, MOST), MOST if count > MOST else None)


def _asked_for(wanted: str, cache: Path) -> tuple[str, int]:
    path = Path(wanted).expanduser()
    if path.is_dir():
        root = _root(path)
        if root is None:
            raise InvalidOption(f"--repo: expected the path or URL of a git repository, but {path} is in none")
        return root, _count(root)
    try:
        mirror = asyncio.run(open_mirror(wanted, cache))  # the job finds it in the cache
    except (RepositoryRefused, RepositoryUnreachable) as error:
        raise InvalidOption(f"--repo: {str(error).removeprefix('repo: ')}") from error
    return wanted, _count(str(mirror.folder))


def _root(path: Path) -> str | None:
    """The top of the work tree that this folder is in; of a bare repository, itself."""
    for question in ("--show-toplevel", "--absolute-git-dir"):
        found = _git("-C", str(path), "rev-parse", question)
        if found.returncode == 0:
            return found.stdout.decode().removesuffix("\n")
    return None


def _count(repo: str) -> int:
    counted = _git("-C", repo, "rev-list", "--first-parent", "--count", "HEAD")
    return int(counted.stdout) if counted.returncode == 0 else 0


def _git(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(["git", *args], input=stdin, env=clean, capture_output=True, check=False)


# ── A made-up history ───────────────────────────────────────────────────────────────────────────────────────────

_AUTHORS = ("Ada Quill", "Ben Ortiz", "Chiyo Mori", "Dara Singh", "Elif Kaya", "Femi Okafor")
_VERBS = ("Add", "Fix", "Simplify", "Speed up", "Document", "Test", "Rework", "Extend")
_NOUNS = ("telescope", "catalogue", "night plan", "exposure", "dome", "weather", "archive", "sky map", "spectrum")
#: file ending, when in the history it begins (0 to 1), how often such files change
_KINDS = (
    ("py", 0.0, 9),
    ("md", 0.0, 2),
    ("sql", 0.08, 2),
    ("sh", 0.15, 1),
    ("ts", 0.3, 6),
    ("css", 0.35, 2),
    ("rs", 0.62, 6),
)
_BORN = 1_640_995_200  # 2022-01-01


def make_up(folder: Path, commits: int) -> None:
    """Creates a bare repository with `commits` commits by six people in seven languages, the same every time."""
    for args, stdin in (
        (("init", "--quiet", "--bare", str(folder)), b""),
        (("-C", str(folder), "symbolic-ref", "HEAD", "refs/heads/main"), b""),
        (("-C", str(folder), "fast-import", "--quiet"), b"".join(_stream(commits))),
    ):
        done = _git(*args, stdin=stdin)
        if done.returncode != 0:
            raise TenureError(
                f"the made-up history could not be created: git says {done.stderr.decode(errors='replace').strip()}"
            )


def _stream(commits: int) -> Iterator[bytes]:
    """Input for `git fast-import`. The project starts small; people and languages join as it grows."""
    random = Random(1)
    files: dict[str, list[str]] = {}
    at = _BORN
    for number in range(commits):
        age = number / commits
        at += random.randrange(1_800, 180_000)
        author = random.choice(_AUTHORS[: 2 + int(age * 5)])
        person = f"{author} <{author.split()[0].lower()}@example.org> {at} +0000"
        noun = random.choice(_NOUNS)
        yield f"commit refs/heads/main\nauthor {person}\ncommitter {person}\n".encode()
        yield _data(f"{random.choice(_VERBS)} the {noun}")
        kinds = [(ending, often) for ending, begins, often in _KINDS if begins <= age]
        for ending in random.choices(*zip(*kinds, strict=True), k=random.randrange(1, 4)):
            path = f"{ending}/{noun.replace(' ', '_')}.{ending}"
            lines = files.setdefault(path, [])
            del lines[: int(len(lines) * random.choice((0, 0, 0, 0.02, 0.2)))]
            lines += [f"{noun} {number}.{line}" for line in range(random.randrange(4, 80))]
            yield f"M 100644 inline {path}\n".encode() + _data("\n".join(lines) + "\n")


def _data(text: str) -> bytes:
    return f"data {len(text.encode())}\n{text}\n".encode()
