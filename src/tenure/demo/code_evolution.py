"""How a git repository grew: a long job that reports its progress and, after a crash, continues where it was.

Every commit of the main line is read, oldest first. After each one the job reports progress; every 25 commits it
stores its totals as a checkpoint. If the worker is killed, the next attempt continues from there.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import secrets
import shutil
import sys
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tenure import Job, JobHandle, Retry, Tenure
from tenure.app.backends import open_store
from tenure.core.durations import seconds
from tenure.demo.evolution_chart import Picture, draw
from tenure.demo.git_history import (
    Census,
    Commit,
    MainLine,
    RepositoryRefused,
    cache_folder,
    open_mirror,
)
from tenure.errors import TenureError

log = logging.getLogger(__name__)
jobs = Tenure()

CHECKPOINT_EVERY = 25
MOST_POINTS = 400
TOP_AUTHORS = 10


@dataclass(slots=True)
class Evolution:
    """The running totals after `position`, and the points of the picture so far. This is the job's checkpoint.

    `points` are (Unix seconds, lines of each language in the order of `lines`). Every `stride`-th commit has a
    point; when there are too many, every other one is dropped, so a checkpoint stays small for any history.
    """

    position: str = ""
    commits: int = 0
    added: int = 0
    deleted: int = 0
    lines: dict[str, int] = field(default_factory=dict[str, int])
    stride: int = 1
    points: list[tuple[int, list[int]]] = field(default_factory=list[tuple[int, list[int]]])

    def add(self, commit: Commit) -> None:
        self.added += commit.added
        self.deleted += commit.deleted
        for language, net in commit.net.items():
            self.lines[language] = self.lines.get(language, 0) + net
        if self.commits % self.stride == 0:
            self.points.append((commit.at, list(self.lines.values())))
        if len(self.points) > MOST_POINTS:
            del self.points[1::2]
            self.stride *= 2
        self.position = commit.sha
        self.commits += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the job returns. `lines` and `files` are those after the last commit; churn covers the main line."""

    repository: str
    branch: str
    commits: int  #: all commits of the branch
    main_line: int  #: commits of the main line, which were read one by one
    authors: int
    top_authors: dict[str, int]
    first_at: datetime
    last_at: datetime
    files: int
    lines: dict[str, int]
    added: int
    deleted: int
    resumed_from: int  #: commits that an earlier attempt had already processed
    note: str
    picture: str


@jobs.task(queue="analysis", stale_after="5m", timeout="2h", retry=Retry(5, never=RepositoryRefused))
async def code_evolution(
    job: Job[Evolution],
    repo: str,
    out: str = "{name}-evolution.svg",
    branch: str | None = None,
    max_commits: int | None = None,
    cache: str | None = None,
    pace: str = "0ms",
) -> Summary:
    """Analyse a repository, given by path or URL, and draw its picture to `out`.

    `max_commits` limits it to the newest ones. `pace` is a pause after every commit, for the demo: a small repository
    would otherwise be done before the worker can be killed.
    """
    wait = seconds(pace, "pace")
    mirror = await open_mirror(repo, cache_folder(cache), lambda line: job.progress(stage="fetch", message=line))
    line = await mirror.main_line(branch, max_commits)
    evolution, todo, restarted = resume(job.checkpoint, line)
    notes = [restarted] if restarted else []
    if await mirror.shallow():
        notes.append(f"a shallow clone: commits before {line.shas[0][:9]} are missing; git fetch --unshallow gets them")
    for note in notes:
        log.warning("%s: %s", mirror.name, note)
    resumed_from = evolution.commits
    if not resumed_from and line.base:
        evolution.lines = (await mirror.tree(line.base)).lines

    total = resumed_from + len(todo)
    async with aclosing(mirror.walk(todo)) as commits:
        async for commit in commits:
            evolution.add(commit)
            done = evolution.commits
            job.progress(
                done / total,
                stage="analyse",
                message=f"{commit.sha[:9]} {commit.subject}",
                checkpoint=evolution if done % CHECKPOINT_EVERY == 0 else None,
            )
            await asyncio.sleep(wait)

    job.progress(stage="draw", message="counting files and authors")
    tree = await mirror.tree(line.shas[-1])
    census = await mirror.census(line)
    path = Path(out.replace("{name}", mirror.name)).expanduser().absolute()
    await asyncio.to_thread(write, path, draw(picture(mirror.name, evolution, census)))
    return Summary(
        repository=mirror.name,
        branch=line.branch,
        commits=census.commits,
        main_line=evolution.commits,
        authors=len(census.authors),
        top_authors=ranked(census.authors, TOP_AUTHORS),
        first_at=datetime.fromtimestamp(census.first_at, UTC),
        last_at=datetime.fromtimestamp(census.last_at, UTC),
        files=tree.files,
        lines=ranked(tree.lines),
        added=evolution.added,
        deleted=evolution.deleted,
        resumed_from=resumed_from,
        note="; ".join(notes),
        picture=str(path),
    )


def resume(checkpoint: Evolution | None, line: MainLine) -> tuple[Evolution, list[str], str]:
    """Where to continue: the totals so far, the commits still to read, and a note for the log.

    A rewritten history no longer has the commit of the checkpoint: then the analysis starts over.
    """
    if checkpoint is None:
        return Evolution(), line.shas, ""
    if checkpoint.position not in line.shas:
        gone = f"commit {checkpoint.position[:9]} of the checkpoint is no longer in {line.branch}: started over"
        return Evolution(), line.shas, gone
    return checkpoint, line.shas[line.shas.index(checkpoint.position) + 1 :], ""


def ranked(counts: dict[str, int], most: int | None = None) -> dict[str, int]:
    """Largest first, without zeros."""
    order = sorted(((name, count) for name, count in counts.items() if count), key=lambda item: (-item[1], item[0]))
    return dict(order[:most])


def picture(name: str, evolution: Evolution, census: Census) -> Picture:
    """The picture to draw from the totals."""
    first, last = (datetime.fromtimestamp(at, UTC) for at in (census.first_at, census.last_at))
    dates = " – ".join(dict.fromkeys(f"{when.day} {when:%b %Y}" for when in (first, last)))
    points = [*evolution.points, (census.last_at, list(evolution.lines.values()))]
    width = len(evolution.lines)
    padded = [[*counts, *[0] * (width - len(counts))] for _, counts in points]
    return Picture(
        title=f"{name}: lines of code by language",
        subtitle=(
            f"{_count(census.commits, 'commit')} by {_count(len(census.authors), 'author')}, {dates}; "
            f"{evolution.added:,} lines added, {evolution.deleted:,} deleted"
        ),
        times=_rising([at for at, _ in points]),
        series={language: [counts[i] for counts in padded] for i, language in enumerate(evolution.lines)},
        days=census.days,
        authors=ranked(census.authors, TOP_AUTHORS),
    )


def write(path: Path, text: str) -> None:
    """Replace a file atomically: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _rising(times: list[int]) -> list[int]:
    """Rising times, although committers' clocks disagree: no point is before its predecessor or after the last."""
    rising: list[int] = []
    for at in times:
        rising.append(max(min(at, times[-1]), rising[-1] if rising else 0))
    return rising


# ── Standalone program ──────────────────────────────────────────────────────────────────────────────────────────


def main() -> int:
    """Enqueue one analysis on the default store, and run it in this process until it is done."""
    parser = argparse.ArgumentParser(
        prog="code_evolution.py",
        description="Draw how a git repository grew. Interrupt or kill it: the same command continues where it was.",
    )
    parser.add_argument("repo", help="path or URL of a git repository")
    parser.add_argument("--out", default="{name}-evolution.svg", help="the picture (default: %(default)s)")
    parser.add_argument("--branch", help="default: the repository's own")
    parser.add_argument("--max-commits", type=int, help="only the newest ones")
    parser.add_argument("--pace", default="0ms", help="wait this long after every commit, to have time to watch")
    given = parser.parse_args()
    path = Path(given.repo).expanduser()
    repo = str(path.resolve()) if path.is_dir() else given.repo
    key = hashlib.sha256(repr((repo, given.out, given.branch, given.max_commits)).encode()).hexdigest()
    jobs.configure({"grace": "1s"})  # on Ctrl-C: work since the last checkpoint is quickly repeated
    try:
        with jobs, jobs.worker(queues=["analysis"], concurrency=1):
            task = code_evolution.using(unique=key)
            handle = task.enqueue(repo, given.out, given.branch, given.max_commits, pace=given.pace)
            print(f"job {handle.id}" + ("" if handle.created else ", which was not finished: continuing"))
            summary = follow(handle)
    except TenureError as error:
        words, _, _ = str(error).partition("\n")
        print(f"code_evolution: {words}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the same command continues where it was", file=sys.stderr)
        return 130
    print(told(summary))
    return 0


def follow(handle: JobHandle[Summary]) -> Summary:
    """Wait for the job, with a progress line on the terminal."""
    with closing(open_store(jobs.settings)) as store:
        store.open()
        while True:
            try:
                summary = handle.result("200ms")
            except TimeoutError:
                if job := store.get(str(handle.id)):
                    show(f"{job.progress or 0:4.0%}  {job.stage or job.state}  {job.message or ''}")
            else:
                show("")
                return summary


def show(line: str) -> None:
    """Replace the terminal's last line."""
    if sys.stderr.isatty():
        fits = "".join(filter(str.isprintable, line))[: shutil.get_terminal_size().columns - 1]
        print(f"\r\x1b[K{fits}", end="", file=sys.stderr, flush=True)


def told(summary: Summary) -> str:
    """The summary as text."""
    lines = ", ".join(f"{language} {count:,}" for language, count in summary.lines.items())
    authors = ", ".join(f"{name} {count:,}" for name, count in summary.top_authors.items())
    told = {
        "commits": f"{summary.commits:,} on {summary.branch}, {summary.first_at.date()} to {summary.last_at.date()}",
        "authors": f"{summary.authors:,}: {authors}",
        "files": f"{summary.files:,}",
        "lines": lines or "none",
        "churn": f"{summary.added:,} added, {summary.deleted:,} deleted along {_count(summary.main_line, 'commit')}",
        "resumed": f"after commit {summary.resumed_from:,}" if summary.resumed_from else "",
        "note": summary.note,
        "picture": summary.picture,
    }
    return "\n".join(f"{word:<8} {text}" for word, text in told.items() if text)
