"""Reads the history of a git repository through a private mirror. Independent of jobs.

Lines are counted along the branch's main line (first parents): `git log --numstat` lists the
lines each commit added and deleted, so the running sum per file extension is the number of lines. Rename detection is
off: a rename moves lines from one extension to another. Binary files and submodules have no lines.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

Say = Callable[[str], None]

_LANGUAGES = {
    "Python": "py pyi pyx",
    "JavaScript": "js mjs cjs jsx",
    "TypeScript": "ts tsx mts cts",
    "HTML": "html htm xhtml jinja j2",
    "CSS": "css scss sass less",
    "Vue": "vue",
    "Svelte": "svelte",
    "C": "c h",
    "C++": "cc cpp cxx hh hpp hxx",
    "C#": "cs",
    "Java": "java",
    "Kotlin": "kt kts",
    "Scala": "scala sc",
    "Go": "go",
    "Rust": "rs",
    "Zig": "zig",
    "Swift": "swift",
    "Objective-C": "m mm",
    "Ruby": "rb rake gemspec erb",
    "PHP": "php",
    "Perl": "pl pm t",
    "Elixir": "ex exs",
    "Erlang": "erl hrl",
    "Haskell": "hs",
    "OCaml": "ml mli",
    "Clojure": "clj cljs cljc",
    "Lisp": "lisp el scm rkt",
    "Lua": "lua",
    "Julia": "jl",
    "R": "r rmd",
    "Dart": "dart",
    "Shell": "sh bash zsh fish",
    "PowerShell": "ps1 psm1",
    "Assembly": "asm s",
    "SQL": "sql",
    "Protobuf": "proto",
    "Terraform": "tf hcl",
    "Build": "mk cmake gradle bazel bzl nix ninja",
    "Notebook": "ipynb",
    "Markup": "md markdown rst adoc org tex txt",
    "Data": "json jsonl yaml yml toml xml csv tsv ini cfg conf po",
    "SVG": "svg",
}
_BY_ENDING = {ending: language for language, endings in _LANGUAGES.items() for ending in endings.split()}
_BY_NAME = {
    "makefile": "Build",
    "dockerfile": "Build",
    "cmakelists.txt": "Build",
    "justfile": "Build",
    "rakefile": "Ruby",
}
OTHER = "Other"


class RepositoryUnreachable(Exception):
    """Git could not read the repository. The same call may work later, or on another machine."""


class RepositoryRefused(Exception):
    """Retrying will not help: it is not a repository, or has no such branch, or has no commits yet."""


class Commit(NamedTuple):
    """One commit of the main line: its changed lines relative to its first parent."""

    sha: str
    at: int  #: Unix seconds of the committer
    subject: str
    added: int
    deleted: int
    net: dict[str, int]  #: by language


class Tree(NamedTuple):
    """The files and lines after a commit."""

    files: int
    lines: dict[str, int]  #: by language


@dataclass(frozen=True, slots=True)
class MainLine:
    """The commits to analyse, oldest first. `base` is the commit before the first one, if that is not the root."""

    branch: str
    shas: list[str]
    base: str | None = None


@dataclass(slots=True)
class Census:
    """All commits of the branch, including merged ones."""

    commits: int = 0
    authors: dict[str, int] = field(default_factory=dict[str, int])
    days: dict[int, int] = field(default_factory=dict[int, int])  #: commits by day, counted from 1970-01-01
    first_at: int = 0
    last_at: int = 0

    def add(self, at: int, author: str) -> None:
        self.first_at = min(self.first_at, at) if self.commits else at
        self.last_at = max(self.last_at, at)
        self.commits += 1
        self.authors[author] = self.authors.get(author, 0) + 1
        self.days[at // 86_400] = self.days.get(at // 86_400, 0) + 1


def language(path: str) -> str:
    """The language of a file, by its name alone.

    >>> language("src/App.TSX"), language("Makefile"), language("LICENSE")
    ('TypeScript', 'Build', 'Other')
    """
    name = path.rsplit("/", 1)[-1].lower()
    _, dot, ending = name.rpartition(".")
    return _BY_NAME.get(name) or (_BY_ENDING.get(ending, OTHER) if dot else OTHER)


class Mirror:
    """A bare mirror in the cache, with queries on it. `open_mirror` creates one."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name

    async def shallow(self) -> bool:
        """Whether the repository is a shallow clone: its older commits are missing."""
        return (await self._text("rev-parse", "--is-shallow-repository")).strip() == "true"

    async def main_line(self, branch: str | None = None, newest: int | None = None) -> MainLine:
        """The first parents of a branch (default: the repository's own), or only the `newest` of them.

        Raises RepositoryRefused if there is no such branch, or no commit on it.
        """
        if newest is not None and newest < 1:
            raise RepositoryRefused(f"max_commits: expected a whole number from 1, or None for all, got {newest}")
        name, tip = await self._tip(branch)
        limit = [f"--max-count={newest + 1}"] if newest is not None else []
        shas = (await self._text("rev-list", "--first-parent", "--reverse", *limit, tip)).split()
        base = shas.pop(0) if newest is not None and len(shas) > newest else None
        return MainLine(name, shas, base)

    async def walk(self, shas: list[str]) -> AsyncGenerator[Commit]:
        """These commits with their changes. They must be the newest of a main line, or none."""
        if not shas:
            return
        options = ["-z", "--first-parent", "-m", "--reverse", "--numstat", "--no-renames", "--ignore-submodules=all"]
        shape = ["--encoding=UTF-8", "--format=@%H %ct %s", f"--max-count={len(shas)}"]
        header: bytes | None = None
        changes: list[bytes] = []
        async with aclosing(_pieces("log", *options, *shape, shas[-1], folder=self.folder)) as pieces:
            async for piece in pieces:
                if not piece.startswith(b"@"):
                    changes.append(piece)
                    continue
                if header is not None:
                    yield _commit(header, changes)
                header, changes = piece, []
        if header is not None:
            yield _commit(header, changes)

    async def tree(self, sha: str) -> Tree:
        """The files at a commit and their lines, counted afresh."""
        empty = (await self._text("hash-object", "-t", "tree", os.devnull)).strip()
        options = ["-r", "-z", "--numstat", "--ignore-submodules=all"]
        changes = [piece async for piece in _pieces("diff-tree", *options, empty, sha, folder=self.folder)]
        return Tree(len(changes), _sum(changes)[2])

    async def census(self, line: MainLine) -> Census:
        """Commits by author and by day."""
        census = Census()
        span = [line.shas[-1], *([f"^{line.base}"] if line.base else [])]
        async for piece in _pieces(
            "log", "-z", "--encoding=UTF-8", "--format=%ct%x09%aE%x09%aN", *span, folder=self.folder
        ):
            at, email, name = piece.decode("utf-8", "replace").split("\t", 2)
            census.add(_unix(at), name.strip() or email.strip() or "unknown")
        return census

    async def _tip(self, branch: str | None) -> tuple[str, str]:
        """The branch's name and its last commit."""
        with suppress(RepositoryUnreachable):
            if branch is not None:
                return branch, (await self._text("show-ref", "--verify", "--hash", f"refs/heads/{branch}")).strip()
            tip = (await self._text("rev-parse", "--verify", "--quiet", "HEAD^{commit}")).strip()
            ref = (await self._text("rev-parse", "--abbrev-ref", "HEAD")).strip()
            return ref, tip
        names = (await self._text("for-each-ref", "--count=12", "--format=%(refname:short)", "refs/heads")).split()
        if not names:
            raise RepositoryRefused("expected a repository with commits, but it has none yet; commit something first")
        wanted = (
            f"expected a branch, got {branch!r}" if branch is not None else "its HEAD names a branch without commits"
        )
        raise RepositoryRefused(f"{wanted}; pass branch= one of: {', '.join(names)}")

    async def _text(self, *args: str) -> str:
        return (await _output(*args, folder=self.folder)).decode("utf-8", "replace")


# ── The cache ───────────────────────────────────────────────────────────────────────────────────────────────────


def cache_folder(given: str | None = None) -> Path:
    """Where mirrors are kept: `given`, else CODE_EVOLUTION_CACHE, else `tenure/git` in the user's cache folder."""
    chosen = given or os.environ.get("CODE_EVOLUTION_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "tenure" / "git"


def repository_name(repo: str) -> str:
    """A repository's name: the last part of its address, made safe for file names.

    >>> repository_name("https://example.org/ada/engine.git"), repository_name("/srv/my repo/")
    ('engine', 'my-repo')
    """
    last = re.split(r"[/:]", _shown(repo).rstrip("/").removesuffix("/.git").removesuffix(".git"))[-1]
    return re.sub(r"[^\w.-]+", "-", last, flags=re.ASCII).strip("-.") or "repository"


async def open_mirror(repo: str, cache: Path, say: Say = lambda _: None) -> Mirror:
    """An up-to-date mirror of a repository, given by path or URL. `say` is called with transfer progress.

    The repository itself is never written to. A clone is renamed into place only when it is complete, and a mirror
    that cannot be updated is replaced, so a killed attempt leaves nothing that breaks the next one.
    """
    source = _source(repo)
    await asyncio.to_thread(cache.mkdir, 0o700, parents=True, exist_ok=True)
    name = repository_name(source)
    folder = cache / f"{name}-{hashlib.sha256(source.encode()).hexdigest()[:16]}.git"
    async with _alone(folder.with_suffix(".lock"), say):
        for leftover in cache.glob(f"{folder.name}.part-*"):
            await asyncio.to_thread(shutil.rmtree, leftover, ignore_errors=True)
        try:
            if not (folder.is_dir() and await _updated(folder, say)):
                await _clone(source, folder, say)
        except RepositoryUnreachable as error:
            words = str(error).replace(source, _shown(source))
            raise RepositoryUnreachable(
                f"expected a git repository at {_shown(source)}, but git says: {words}; "
                "check the address, and that this machine has read access"
            ) from None
    return Mirror(folder, name)


def _source(repo: str) -> str:
    """The address passed to git: a URL, or the absolute path of a folder."""
    if not repo.strip() or repo.startswith("-") or "\0" in repo:
        raise RepositoryRefused(f"repo: expected the path or URL of a git repository, got {repo!r}")
    if re.match(r"[\w+.-]+::", repo):
        raise RepositoryRefused(f"repo: expected a path, or a file, git, http, https or ssh URL, got {_shown(repo)!r}")
    path = Path(repo).expanduser()
    if path.is_dir():
        return str(path.resolve())
    if "://" in repo or re.match(r"[^/]+:", repo):
        return repo
    raise RepositoryRefused(
        f"repo: expected the path or URL of a git repository, but there is no folder {path.absolute()}"
    )


def _shown(source: str) -> str:
    """The address without a password in it, for messages."""
    return re.sub(r"(?<=://)[^/@]*@", "", source)


@asynccontextmanager
async def _alone(lock: Path, say: Say) -> AsyncGenerator[None]:
    """A lock for one job at a time on this machine; the kernel releases it if the process is killed."""
    with lock.open("wb") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                say("waiting for another job that fetches the same repository")
                await asyncio.sleep(0.2)
        yield


_TRANSFER = ("-c", "gc.auto=0", "-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60")


async def _clone(source: str, folder: Path, say: Say) -> None:
    part = Path(await asyncio.to_thread(tempfile.mkdtemp, "", f"{folder.name}.part-", folder.parent))
    try:
        await _output(*_TRANSFER, "clone", "--mirror", "--progress", "--", source, str(part), say=say)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        part.rename(folder)
    finally:
        await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)


async def _updated(folder: Path, say: Say) -> bool:
    """Update a mirror; False: it cannot be updated."""
    try:
        await _output(*_TRANSFER, "fetch", "--prune", "--progress", "origin", folder=folder, say=say)
        head = (await _output("ls-remote", "--symref", "origin", "HEAD", folder=folder)).decode().split()
        # A fetch does not follow the repository to another default branch, or to a detached HEAD.
        if head[:1] == ["ref:"]:
            await _output("symbolic-ref", "HEAD", head[1], folder=folder)
        elif head:
            await _output("update-ref", "--no-deref", "HEAD", head[0], folder=folder)
    except RepositoryUnreachable:
        return False
    return True


# ── Calling git ─────────────────────────────────────────────────────────────────────────────────────────────────

_KEPT = ("GIT_SSH", "GIT_SSL", "GIT_HTTP", "GIT_PROXY", "GIT_ASKPASS", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM")


def _environment() -> dict[str, str]:
    """The environment, without variables that a surrounding git hook or alias sets to point git elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith(_KEPT)}
    ours = {"GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    return kept | ours


async def _output(*args: str, folder: Path | None = None, say: Say = lambda _: None) -> bytes:
    return b"\0".join([piece async for piece in _pieces(*args, folder=folder, say=say)])


async def _pieces(*args: str, folder: Path | None = None, say: Say = lambda _: None) -> AsyncGenerator[bytes]:
    """The output of git, split at NULs, as it arrives. Raises RepositoryUnreachable with git's error message."""
    where = [f"--git-dir={folder}"] if folder is not None else []
    pipe = asyncio.subprocess.PIPE
    try:
        git = await asyncio.create_subprocess_exec(
            "git", *where, *args, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=_environment()
        )
    except FileNotFoundError:
        raise RepositoryUnreachable(
            "expected the command git on this machine, found none; install it (apt install git, dnf install git, "
            "brew install git) and make sure the worker's PATH has it"
        ) from None
    assert git.stdout is not None and git.stderr is not None
    complaint = asyncio.create_task(_listen(git.stderr, say))
    try:
        rest = b""
        while chunk := await git.stdout.read(1 << 16):
            *whole, rest = (rest + chunk).split(b"\0")
            for piece in whole:
                yield piece
        if rest:
            yield rest
        if await git.wait() != 0:
            raise RepositoryUnreachable(await complaint or f"git {args[0]} ended with status {git.returncode}")
    finally:
        complaint.cancel()
        if git.returncode is None:
            with suppress(ProcessLookupError):
                git.terminate()
            # Reading to the end lets the pipes close; a plain wait() can hang on a full pipe.
            await git.stdout.read()
            await git.wait()


async def _listen(stderr: asyncio.StreamReader, say: Say) -> str:
    """Pass on git's progress line by line; return its last lines that are not progress."""
    words: list[str] = []
    rest = b""
    while chunk := await stderr.read(4096):
        *lines, rest = re.split(rb"[\r\n]", rest + chunk)
        for line in lines:
            text = line.decode("utf-8", "replace").strip()
            if text:
                say(text)
                words = [*words, text][-20:]
    words.append(rest.decode("utf-8", "replace").strip())
    return " / ".join(word for word in words if word.startswith(("fatal:", "error:", "remote:"))) or words[-1]


# ── Reading what git prints ─────────────────────────────────────────────────────────────────────────────────────


def _commit(header: bytes, changes: list[bytes]) -> Commit:
    sha, at, subject = header[1:].decode("utf-8", "replace").split(" ", 2)
    added, deleted, net = _sum(changes)
    return Commit(sha, _unix(at), subject, added, deleted, net)


def _sum(changes: Iterable[bytes]) -> tuple[int, int, dict[str, int]]:
    """Added, deleted, and their difference by language; of `ADDED TAB DELETED TAB PATH`, `-` for binary files."""
    added = deleted = 0
    net: dict[str, int] = {}
    for change in changes:
        plus, minus, path = change.lstrip(b"\n").split(b"\t", 2)
        if plus == b"-":
            continue
        added, deleted = added + int(plus), deleted + int(minus)
        kind = language(path.decode("utf-8", "replace"))
        net[kind] = net.get(kind, 0) + int(plus) - int(minus)
    return added, deleted, net


def _unix(text: str) -> int:
    """A date as Unix seconds. Broken commits have none, or one centuries ahead: dates are capped at the year 2200."""
    return min(max(int(text), 0), 7_258_118_400) if text.lstrip("-").isdigit() else 0
