"""`tenure top`: a live screen, drawn from two snapshots and a page of running jobs."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from tenure.cli.grid import Cell, grid
from tenure.cli.jobs import short_time
from tenure.cli.output import COLOURS, ago, console, show_json, visible
from tenure.cli.queues import QUEUE_HEADS, QUEUE_NUMBERS, queue_row
from tenure.cli.shared import Shared, admin_of
from tenure.cli.workers import WORKER_HEADS, WORKER_NUMBERS, worker_row
from tenure.core.lifecycle import State
from tenure.errors import InvalidOption, StoreAway
from tenure.operations.backlogs import Backlogs
from tenure.operations.explain import doing
from tenure.operations.queues import health
from tenure.operations.workers import stalls
from tenure.ports import Filter

if TYPE_CHECKING:
    from datetime import datetime

    from tenure.operations.admin import Admin, Overview
    from tenure.operations.trends import TaskTrend
    from tenure.ports import JobView

SHARED = Shared()
_REFRESH = 1.0
_RUNNING = Filter(states=frozenset({State.PROCESSING}))
_MOST_RUNNING = 200
_PIPE_WIDTH = 160
_TASK_SECONDS = 15.0  #: how old the figures of the tasks may be, which are read from many jobs
_TASK_HEADS = ("task", "ended", "dead", "wait p50", "wait p95", "run p50", "run p95")
_ORDER = (State.QUEUED, State.PROCESSING, State.SCHEDULED, State.WAITING, State.COMPLETED, State.DEAD, State.CANCELLED)


@dataclass(frozen=True, slots=True)
class Reading:
    url: str
    overview: Overview
    running: Sequence[JobView]
    tasks: Sequence[TaskTrend]  #: of the last 15 minutes
    tasks_at: datetime  #: when they were read


def top(*, once: bool = False, shared: Shared = SHARED) -> int:
    """Watch queues, workers, tasks and running jobs. q or Ctrl-C quits.

    Parameters
    ----------
    once
        Print a single snapshot and exit.
    """
    screen = console()
    if not once and not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise InvalidOption("top: there is no terminal to draw on; print a single snapshot with --once")
    with admin_of(shared) as admin:
        first = read(admin, None)
        if once:
            time.sleep(_REFRESH / 2)  # a rate needs two snapshots
            second = read(admin, first)
            if shared.json:
                show_json(second)
            else:
                width = screen.width if screen.is_terminal else _PIPE_WIDTH
                screen.print(frame(second, width, None), soft_wrap=True)
            return 0
        _watch(admin, first, screen)
    return 0


def read(admin: Admin, before: Reading | None) -> Reading:
    """Read once everything that the screen shows."""
    overview = admin.overview(before.overview if before else None)
    running = admin.jobs.search(_RUNNING, limit=_MOST_RUNNING).jobs
    if before is not None and (overview.at - before.tasks_at).total_seconds() < _TASK_SECONDS:
        return Reading(admin.url, overview, running, before.tasks, before.tasks_at)
    return Reading(admin.url, overview, running, admin.trends.look("15m").tasks, overview.at)


def _watch(admin: Admin, reading: Reading, screen: Console) -> None:
    problem, backlogs = "", Backlogs()
    with _keys(), Live(console=screen, screen=True, auto_refresh=False) as live:
        try:
            while True:
                outlooks = _outlooks(reading.overview, backlogs)
                live.update(frame(reading, screen.width, screen.height, problem, outlooks), refresh=True)
                if _told_to_leave(_REFRESH):
                    return
                try:
                    reading, problem = read(admin, reading), ""
                except StoreAway as error:
                    problem = f"the store is unavailable, retrying: {error}"
        except KeyboardInterrupt:
            return


def _outlooks(overview: Overview, backlogs: Backlogs) -> dict[str, str]:
    """When each queue will be empty, or how fast it grows, from the looks so far."""
    queues = overview.queues
    rows = health(queues, overview.workers, overview.at, paces=backlogs.look(queues, overview.at))
    return {row.queue.name: row.outlook for row in rows if row.pace or not row.workers}


@contextmanager
def _keys() -> Generator[None]:
    """Read single keys instead of lines within the block."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _told_to_leave(wait: float) -> bool:
    ready, _, _ = select.select([sys.stdin], [], [], wait)
    if not ready:
        return False
    keys = os.read(sys.stdin.fileno(), 1024)  # read all: `select` does not see keys left in a Python buffer
    return not keys or b"q" in keys.lower()


# ── Drawing ─────────────────────────────────────────────────────────────────────────────────────────────────────


def frame(
    reading: Reading,
    width: int,
    height: int | None,
    problem: str = "",
    outlooks: Mapping[str, str] = MappingProxyType({}),
) -> RenderableType:
    """The whole screen, for a terminal of this size; without a height nothing is left out."""
    overview = reading.overview
    warnings = [Text(f"! {sentence}", style="bold red") for sentence in ([problem] if problem else [])]
    warnings += [Text(f"! {sentence}", style="bold yellow") for sentence in stalls(overview.workers)]
    # Headings, blank lines and the top rows take 13 or 15 lines; the rest is distributed, running jobs last.
    told = sum(-(-len(warning) // width) for warning in warnings) + 2 * bool(reading.tasks)
    room = 1_000_000 if height is None else max(height - 13 - told, 3)
    queues, room = _cut(len(overview.queues), room // 3, room)
    workers, room = _cut(len(overview.workers), room // 2, room)
    tasks, room = _cut(len(reading.tasks), room // 3, room)
    running, _ = _cut(len(reading.running), room, room)
    return Group(
        _title(reading, width, "" if height is None else "   q quits"),
        *warnings,
        Text(),
        _counts(overview),
        Text(),
        _queue_table(overview, queues, width, outlooks),
        Text(),
        _worker_table(overview, workers, width),
        *_task_table(reading, tasks, width),
        Text(),
        _running_table(reading, running, width),
    )


def _cut(there: int, share: int, room: int) -> tuple[int, int]:
    shown = min(there, max(share, 1))
    return shown, max(room - shown - (there > shown), 1)


def _title(reading: Reading, width: int, hint: str) -> Text:
    clock = f"{reading.overview.at:%H:%M:%S} UTC{hint}"
    name = f"tenure  {reading.url}"
    room = max(width - len(clock) - 2, 20)
    if len(name) > room:
        name = f"{name[: room // 2 - 1]}…{name[len(name) - (room - room // 2) :]}"
    return Text(f"{name:<{room}}  {clock}", style="bold")


def _counts(overview: Overview) -> Text:
    heads = [str(state) for state in _ORDER]
    counts: list[Cell] = []
    rates: list[Cell] = []
    for state in _ORDER:
        count, rate = overview.counts.get(state, 0), overview.rates.get(state, 0.0)
        counts.append(Text(f"{count:,}", style=COLOURS[state] if count else "bright_black"))
        rates.append(Text("" if not rate else f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"))
    return grid(heads, [counts, rates], 80, fixed=heads, right=heads)


def _queue_table(overview: Overview, shown: int, width: int, outlooks: Mapping[str, str]) -> Text:
    if not overview.queues:
        return Text("no queue holds a live job", style="bright_black")
    lines = [queue_row(queue, overview.at) for queue in overview.queues[:shown]]
    rows: list[list[Cell]] = [
        [*cells, Text(note, style="bold yellow") if note else Text(outlooks.get(cells[0], ""))]
        for *cells, note in lines
    ]
    drawn = grid(QUEUE_HEADS, rows, width, fixed=QUEUE_NUMBERS, right=QUEUE_NUMBERS)
    return drawn + _more(len(overview.queues), shown)


def _worker_table(overview: Overview, shown: int, width: int) -> Text:
    if not overview.workers:
        return Text("no worker is alive: start one with tenure worker", style="bold yellow")
    rows: list[list[Cell]] = []
    for row in overview.workers[:shown]:
        *cells, note = worker_row(row, overview.at)
        rows.append([*cells, Text("stalled", style="bold yellow") if row.note else note])
    drawn = grid(WORKER_HEADS, rows, width, fixed=WORKER_NUMBERS, right=WORKER_NUMBERS)
    return drawn + _more(len(overview.workers), shown)


def _task_table(reading: Reading, shown: int, width: int) -> list[Text]:
    if not reading.tasks:
        return []
    rows: list[list[Cell]] = [
        [
            each.task,
            f"{each.ended:,}",
            Text(f"{each.dead:,}", style=COLOURS[State.DEAD] if each.dead else "bright_black"),
            *map(short_time, (each.wait_p50, each.wait_p95, each.run_p50, each.run_p95)),
        ]
        for each in reading.tasks[:shown]
    ]
    drawn = grid(_TASK_HEADS, rows, width, fixed=_TASK_HEADS[1:], right=_TASK_HEADS[1:])
    return [Text(), drawn + _more(len(reading.tasks), shown)]


def _running_table(reading: Reading, shown: int, width: int) -> Text:
    if not reading.running:
        return Text("no job is running", style="bright_black")
    heads = ("running", "for", "progress", "doing", "job", "worker")[: None if width >= 140 else 4]
    rows = [_running_row(job, reading.overview.at, width) for job in reading.running[:shown]]
    drawn = grid(heads, rows, width, fixed=("for", "progress", "job"), right=("for",))
    return drawn + _more(len(reading.running), shown)


def _more(there: int, shown: int) -> Text:
    return Text(f"\n… and {there - shown:,} more" if there > shown else "", style="bright_black")


def _running_row(job: JobView, now: datetime, width: int) -> list[Cell]:
    return [job.task, ago(job.started_at, now), _bar(job, width // 6), _doing(job, now), job.id, job.worker_id or ""]


def _bar(job: JobView, width: int) -> Text:
    if job.progress is None:
        return Text()
    full = round(min(max(job.progress, 0.0), 1.0) * width)
    return Text.assemble(("━" * full, "green"), ("─" * (width - full), "bright_black"), f" {job.progress:>4.0%}")


def _doing(job: JobView, now: datetime) -> Text:
    if job.cancel_reason is not None:
        return Text("stopping: a cancel was requested", style="yellow")
    silent = (now - job.last_activity_at).total_seconds() if job.last_activity_at else 0.0
    if job.stale_after is not None and silent > job.stale_after:
        return Text(f"silent for {ago(job.last_activity_at, now)}", style="bold red")
    return Text(visible(doing(job)))
