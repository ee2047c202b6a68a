"""Output formats: tables and colours on a terminal, tab-separated lines in a pipe, JSON with --json."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from tenure.core.lifecycle import State
from tenure.core.text import is_utf8
from tenure.events import headline
from tenure.operations.explain import progress_text, waits_for

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from tenure.ports import JobView

COLOURS: Mapping[State, str] = {
    State.WAITING: "magenta",
    State.SCHEDULED: "blue",
    State.QUEUED: "cyan",
    State.PROCESSING: "yellow",
    State.COMPLETED: "green",
    State.DEAD: "bold red",
    State.CANCELLED: "bright_black",
}
_STYLES = {**{str(state): colour for state, colour in COLOURS.items()}, "ok": "green", "WRONG": "bold red"}
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_STYLED = {"state", ""}
#: All but tab and new line; DEL, the second set of controls, and marks that reverse the direction of a text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_JSON_TEXTS = {"payload", "result", "checkpoint"}


def console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def print_line(sentence: str) -> None:
    """One line for people, on standard output."""
    sys.stdout.write(f"{visible(sentence)}\n")


def print_error(sentence: str) -> None:
    """One line for people, on standard error."""
    sys.stderr.write(f"{visible(sentence)}\n")


def visible(text: str) -> str:
    """Control characters as escapes: what a job printed must not act on the operator's terminal.

    >>> visible("\\x1b[2J gone")
    '\\\\x1b[2J gone'
    """
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def show_json(value: object) -> None:
    indent = 2 if sys.stdout.isatty() else None
    text = json.dumps(plain(value), ensure_ascii=not is_utf8(sys.stdout), indent=indent)
    sys.stdout.write(_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def plain(value: object) -> Any:
    """A Tenure value as JSON. JSON texts inside it (payload, result, checkpoint) become JSON values."""
    match value:
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case Path():
            return str(value)
        case Mapping():
            return {str(key): plain(each) for key, each in cast("Mapping[object, object]", value).items()}
        case frozenset():
            return sorted(str(each) for each in cast("frozenset[object]", value))
        case tuple() if names := getattr(cast("object", value), "_fields", ()):
            return {name: plain(getattr(cast("object", value), name)) for name in names}
        case list() | tuple():
            return [plain(each) for each in cast("Sequence[object]", value)]
        case msgspec.Struct():
            return {name: _field(name, each) for name, each in msgspec.structs.asdict(value).items()}
        case _ if is_dataclass(value):
            return {field.name: _field(field.name, getattr(value, field.name)) for field in fields(value)}
        case _:
            return value


def _field(name: str, value: object) -> Any:
    if name in _JSON_TEXTS and isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return plain(value)


# ── Tables ──────────────────────────────────────────────────────────────────────────────────────────────────────


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    fixed: Collection[str] = ("id",),
    right: Collection[str] = (),
    below: str | None = None,
    paint: Callable[[str, str], Text] | None = None,
) -> None:
    """Rows under their headings: fitted to a terminal (see `grid`), else in full and separated by tabs.

    `paint` styles a cell by its heading and text; by default states have their colours.
    """
    found = [[visible(" ".join(cell.split())) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        sys.stdout.write("".join("\t".join(row) + "\n" for row in (list(heads), *found)))
        return
    from tenure.cli.grid import grid

    screen, cell = console(), paint or _by_state
    coloured = [[cell(head, text) for head, text in zip(heads, row, strict=True)] for row in found]
    screen.print(grid(heads, coloured, screen.width, fixed=fixed, right=right, below=below), soft_wrap=True)


def _by_state(head: str, text: str) -> Text:
    from rich.text import Text

    return Text(text, style=_STYLES.get(text, "") if head in _STYLED else "")


def pairs(rows: Iterable[tuple[str, str]]) -> None:
    """Names and values, one per line."""
    found = list(rows)
    width = max((len(name) for name, _ in found), default=0)
    for name, value in found:
        first, *more = value.splitlines() or [""]
        print_line(f"{name:<{width}}  {first}")
        for line in more:
            print_line(f"{'':<{width}}  {line}")


def jobs_table(jobs: Sequence[JobView], now: datetime) -> None:
    rows = [[job.id, str(job.state), job.task, job.queue, when(job, now), note(job)] for job in jobs]
    table(("id", "state", "task", "queue", "when", "note"), rows, fixed=("id", "state", "when"), below="note")


def when(job: JobView, now: datetime) -> str:
    """The one time that matters in this state: until the job is due, or since it is in this state."""
    match job.state:
        case State.SCHEDULED:
            due = (job.run_at - now).total_seconds()
            return f"in {brief(due)}" if due > 0 else "due"
        case State.QUEUED | State.WAITING:
            return ago(job.run_at, now)
        case State.PROCESSING:
            return ago(job.started_at, now)
        case State.COMPLETED | State.DEAD | State.CANCELLED:
            return ago(job.ended_at, now)


def ago(then: datetime | None, now: datetime) -> str:
    """How long ago, in one unit, so that a column of them is easy to scan."""
    return "?" if then is None else brief((now - then).total_seconds())


def brief(length: float) -> str:
    """A length of time in its largest unit only.

    >>> brief(5400), brief(42.7), brief(0.2)
    ('1h', '42s', '0s')
    """
    whole = max(int(length), 0)
    size, unit = next(((size, unit) for size, unit in _UNITS if whole >= size), (1, "s"))
    return f"{whole // size}{unit}"


def note(job: JobView) -> str:
    """The note about a job in a list, next to its state."""
    if job.state is State.PROCESSING:
        return "stopping: a cancel was requested" if job.cancel_reason is not None else progress_text(job)
    if job.state is State.WAITING:
        return waits_for(job)
    if job.state is State.COMPLETED:
        return f"attempt {job.attempt}" if job.attempt > 1 else ""
    return headline(job.error) if job.error else ""


# ── Progress of long commands ───────────────────────────────────────────────────────────────────────────────────


class Step(Protocol):
    def __call__(self, done: int, total: int) -> None: ...


@contextmanager
def progress_bar(what: str) -> Generator[Step]:
    """A bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def step(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield step
