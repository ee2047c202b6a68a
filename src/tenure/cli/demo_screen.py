"""The output of `tenure demo`: a line per event, a live table below them, and the report.

In a pipe there is no table: every state change of a job is a line instead.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tenure.cli.output import COLOURS, console
from tenure.core.durations import spell
from tenure.core.lifecycle import State
from tenure.demo.code_evolution import Summary
from tenure.demo.history import History
from tenure.events import headline
from tenure.ports import JobView

_WIDEST, _PIPE_WIDTH = 110, 120
_MOST_LANGUAGES = 8
_DIM = "bright_black"


@dataclass(frozen=True, slots=True)
class Kill:
    """`commit` is the last progress in the store; `worker` was the process `pid`."""

    worker: str
    pid: int
    commit: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Takeover:
    """`seconds` after the kill the next attempt started, at the commit of the last checkpoint."""

    worker: str
    pid: int
    commit: int
    seconds: float


class Check(NamedTuple):
    """One expectation, and whether it was met."""

    name: str
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of the demo; --json prints it."""

    ok: bool
    seconds: float
    store: str
    folder: Path | None  #: the folder of its files, if they are kept
    history: History | None
    killed: Kill | None
    takeover: Takeover | None
    jobs: Mapping[str, JobView]
    dead_letters: Sequence[JobView]
    analysis: Summary | None
    picture: Path | None
    checks: Sequence[Check]
    problem: str
    log: Sequence[str]  #: the supervisor's last lines, if something went wrong
    next: Mapping[str, str]  #: commands to try, and what they do


class Screen:
    """`quiet` shows nothing at all."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = console()
        self._quiet = quiet
        self._moves = self._console.is_terminal and not quiet
        self._live: Live | None = None
        self._began = time.monotonic()
        self._known: dict[str, tuple[object, ...]] = {}
        self._width = min(self._console.width, _WIDEST) if self._console.is_terminal else _PIPE_WIDTH
        self._console.width = self._width

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def title(self) -> None:
        self._print(Text.assemble(("\ntenure demo", "bold"), ("  real work that survives a killed worker\n", _DIM)))

    def event(self, sentence: str, style: str = "", mark: str = "·") -> None:
        """One event line, with the time of the event."""
        if not self._console.is_terminal:
            self._print(f"{self.elapsed:5.1f}s {mark} {sentence}")
            return
        line = Table.grid(padding=(0, 1))
        line.add_column(justify="right", width=6, no_wrap=True, style=_DIM)
        line.add_column(width=1)
        line.add_column()
        line.add_row(f"{self.elapsed:.1f}s", Text(mark, style=style or _DIM), Text(sentence, style=style))
        self._print(line)

    @contextmanager
    def moving(self) -> Generator[None]:
        """Show a table below the event lines, which `draw` keeps up to date."""
        if not self._moves:
            yield
            return
        with Live(console=self._console, transient=True, auto_refresh=False) as self._live:
            yield
        self._live = None

    def draw(self, jobs: Mapping[str, JobView], pids: Mapping[str, int]) -> None:
        if self._live is not None:
            self._live.update(_moving_table(jobs, pids, self._width), refresh=True)
            return
        for name, job in jobs.items():
            quarter = int((job.progress or 0) * 4) if job.state is State.PROCESSING else 0
            if self._known.get(name) != (news := (job.state, job.attempt, quarter)):
                self._known[name] = news
                self.event(f"{name}: {job.state}{_plain_note(job)}")

    def end(self, report: Report) -> None:
        """The whole report."""
        self._print(Group(*ending(report, self._width)))

    def _print(self, what: RenderableType) -> None:
        if self._quiet:
            return
        if self._console.is_terminal:
            self._console.print(what)
            return
        with self._console.capture() as printed:
            self._console.print(what, soft_wrap=isinstance(what, str))
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in printed.get().splitlines()))
        sys.stdout.flush()


def _plain_note(job: JobView) -> str:
    match job.state:
        case State.PROCESSING:
            share = f", {job.progress:.0%} done" if job.progress else ""
            return f", attempt {job.attempt} on {job.worker_id}{share}"
        case State.QUEUED if job.attempt:
            return f" again after attempt {job.attempt}"
        case State.SCHEDULED if job.failures:
            return f" for a retry after failure {job.failures}: {headline(job.error or '')}"
        case State.COMPLETED | State.DEAD:
            return f", {result_of(job)}"
        case _:
            return ""


# ── While it runs ───────────────────────────────────────────────────────────────────────────────────────────────


def _moving_table(jobs: Mapping[str, JobView], pids: Mapping[str, int], width: int) -> RenderableType:
    table = _filling(_table("job", "state", "attempt>", "worker", "progress"), width)
    for name, job in jobs.items():
        running = job.state is State.PROCESSING
        pid = pids.get(job.worker_id or "")
        owner = f"pid {pid}" if running and pid else ""
        table.add_row(name, _state(job.state), str(job.attempt or ""), owner, _doing(job, width))
    return Padding(table, (1, 0, 0, 0))


def _doing(job: JobView, width: int) -> Text:
    if job.progress is None or job.state in {State.COMPLETED, State.DEAD}:
        waits = job.state is State.SCHEDULED and job.failures
        return Text("failed once, waiting for its retry" if waits else result_of(job), _DIM)
    bar = _bar(0, job.progress, max(width // 5, 8), COLOURS[job.state])
    return bar + Text(f" {job.progress:4.0%}  ") + Text(job.message or "", _DIM)


def _bar(start: float, end: float, width: int, colour: str) -> Text:
    """A line from `start` to `end` (0 to 1) on a track of this width."""
    first, last = round(start * width), max(round(end * width), round(start * width) + 1)
    return Text.assemble(("─" * first, _DIM), ("━" * (last - first), colour), ("─" * (width - last), _DIM))


# ── The report ──────────────────────────────────────────────────────────────────────────────────────────────────


def ending(report: Report, width: int) -> Iterable[RenderableType]:
    """The whole report, for a screen of this width."""
    yield from _section("Jobs", _job_table(report.jobs, width - 1), width)
    if report.dead_letters:
        yield from _section("Dead letters", _dead_letters(report.dead_letters), width)
    if report.killed and report.history:
        yield from _section("The job whose worker was killed", _attempts(report, width), width)
    if report.analysis:
        yield from _section("What the analysis found", _languages(report.analysis, report.picture, width), width)
    yield from _section("Checks", _checks(report), width)
    if report.log:
        yield from _section("The supervisor's last log lines", Text("\n".join(report.log), _DIM), width)
    yield from _section("Next", _commands(report.next), width)
    yield Text()


def _section(name: str, body: RenderableType, width: int) -> Iterable[RenderableType]:
    yield Text()
    yield Rule(Text(name, style="bold"), align="left", style=_DIM)
    yield Padding(body, (0, 0, 0, 1))


def _table(*heads: str) -> Table:
    """A heading that ends in > is right-aligned, for numbers. If space is short, the last column shrinks."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=_DIM, pad_edge=False)
    for head in heads:
        justify: Literal["left", "right"] = "right" if head.endswith(">") else "left"
        table.add_column(head.rstrip(">"), justify=justify, overflow="ellipsis", no_wrap=head is not heads[-1])
    return table


def _filling(table: Table, width: int) -> Table:
    """The table with one line per row: text that does not fit the last column is cut off."""
    table.width = width
    table.columns[-1].ratio, table.columns[-1].no_wrap = 1, True
    return table


def _state(state: State) -> Text:
    return Text(str(state), style=COLOURS[state])


def _job_table(jobs: Mapping[str, JobView], width: int) -> RenderableType:
    table = _filling(_table("job", "state", "attempts>", "failures>", "crashes>", "took>", "result"), width)
    for name, job in jobs.items():
        took = spell((job.ended_at - job.enqueued_at).total_seconds()) if job.ended_at else ""
        charged = [str(count) if count else "·" for count in (job.failures, job.crashes_total)]
        table.add_row(name, _state(job.state), str(job.attempt), *charged, took, result_of(job))
    return table


def result_of(job: JobView) -> str:
    """A job's result or error in a few words."""
    if job.state is State.DEAD:
        return headline(job.error or "")
    if job.state is not State.COMPLETED:
        return ""
    result = json.loads(job.result or "null")
    return f"{result['main_line']} commits, a picture" if isinstance(result, dict) else str(result)


def _dead_letters(jobs: Sequence[JobView]) -> RenderableType:
    lines: list[Text] = []
    for job in jobs:
        died = f"{job.ended_at:%H:%M:%S} UTC" if job.ended_at else ""
        spent = f"  {job.id}  {job.failures} of {job.max_failures} failures  {died}"
        lines.append(Text.assemble((job.task, COLOURS[State.DEAD]), spent))
        lines.append(Text(f"  {job.payload}  {headline(job.error or '')}"))
    return Group(*lines)


def _attempts(report: Report, width: int) -> RenderableType:
    """Each attempt as a bar over the commits: the second begins where the first one's last checkpoint was."""
    assert report.killed and report.history
    total, killed, taken = report.history.commits, report.killed, report.takeover
    track = max(width // 3, 12)
    table = _table("", "", "commits>", "")
    table.show_header = False
    bar = _bar(0, killed.commit / total, track, "red")
    table.add_row("attempt 1", bar, f"0–{killed.commit}", Text(f"✗ pid {killed.pid} killed by SIGKILL", "red"))
    if taken is not None:
        bar = _bar(taken.commit / total, 1, track, "green")
        words = f"✓ pid {taken.pid} continued {spell(taken.seconds)} later"
        table.add_row("attempt 2", bar, f"{taken.commit}–{total}", Text(words, "green"))
    return table


def _languages(summary: Summary, picture: Path | None, width: int) -> RenderableType:
    table = _table("", ">", "")
    table.show_header = False
    most = max(summary.lines.values(), default=1)
    for language, lines in list(summary.lines.items())[:_MOST_LANGUAGES]:
        bar = Text("━" * max(round(lines / most * width / 3), 1), "cyan")
        table.add_row(language, f"{lines:,}", bar)
    authors = f"{summary.authors:,} author{'s' if summary.authors != 1 else ''}"
    head = Text.assemble(
        (summary.repository, "bold"),
        f"  {summary.commits:,} commits by {authors}, {summary.files:,} files, lines of code:",
    )
    if summary.note:
        head.append(f"\n{summary.note}", "yellow")
    where = Text.assemble("\npicture  ", (str(picture), "bold cyan")) if picture else Text()
    return Group(head, table, where)


def _checks(report: Report) -> RenderableType:
    lines = [
        Text.assemble(("✓ ", "green") if check.ok else ("✗ ", "bold red"), (check.name, "" if check.ok else "bold red"))
        for check in report.checks
    ]
    failed = sum(not check.ok for check in report.checks)
    verdict = (
        Text(f"all {len(lines)} checks pass, after {report.seconds:.0f} s", "bold green")
        if report.ok
        else Text(f"{failed} of {len(lines)} checks fail.  {report.problem}".rstrip(), "bold red")
    )
    return Group(*lines, verdict)


def _commands(commands: Mapping[str, str]) -> RenderableType:
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for command, purpose in commands.items():
        table.add_row(Text(command, "bold"), Text(purpose, _DIM))
    return table
