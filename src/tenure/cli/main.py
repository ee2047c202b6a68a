"""`tenure …`: the table of commands, and their exit codes and errors."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO, cast, get_args

from cyclopts import App, CycloptsError, Parameter, Token, convert

from tenure.cli.output import print_error
from tenure.config import SETTINGS
from tenure.errors import (
    InvalidArguments,
    InvalidOption,
    StoreAway,
    TenureError,
    UnknownLimit,
    UnknownQueue,
    UnknownTask,
    UnknownWorker,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

OK, WRONG, BAD_INPUT, AWAY, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 75, 130, 141

_SETTINGS_HELP = (
    "Settings: flag > code > environment > .env of this folder > default; tenure check --config shows them. "
    + ", ".join(row.env for row in SETTINGS)
    + ". Exit codes: 0 ok, 1 something is wrong, 2 bad input, 75 the store is unavailable."
)


def _version() -> str:
    from importlib.metadata import version

    return version("tenure")


def _exactly(kind: Any, tokens: Sequence[Token]) -> Any:
    """As cyclopts converts, but where a whole number is expected it would round one that has a fraction."""
    if int in (kind, *get_args(kind)) and (odd := next((each for each in tokens if _has_fraction(each.value)), None)):
        raise ValueError(f"expected a whole number, got {odd.value!r}.")
    return convert(kind, tokens)  # pyright: ignore[reportUnknownVariableType]


def _has_fraction(text: str) -> bool:
    try:
        return not float(text).is_integer()
    except ValueError:
        return False


app = App(
    name="tenure",
    help="A durable job engine: jobs that are owned until they are done.",
    help_epilogue=_SETTINGS_HELP,
    help_format="plaintext",
    version=_version,
    default_parameter=Parameter(negative=(), show_default=False, converter=_exactly),
    result_action="return_value",
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
)
_COMMANDS = {
    "worker": ("worker:worker", "Run jobs until told to stop; the first Ctrl-C or SIGTERM lets running jobs finish."),
    "enqueue": ("enqueue:enqueue", "Store a job and print its id."),
    "tasks": ("enqueue:tasks", "List the tasks of an app."),
    "jobs": ("jobs:jobs", "Find jobs, inspect them, act on them."),
    "dead": ("jobs:dead", "Dead letters: jobs that have used up their failures or crashes."),
    "flows": ("flows:flows", "Flows: how far they are; cancel, replay, go on without a job."),
    "signals": ("signals:signals", "Signals: what a job was sent; send one."),
    "codec": ("codec:codec", "Encryption at rest: make a key; with the newest one, encrypt what is stored."),
    "offload": ("offload:offload", "Large values: try their bucket, show one, delete what no job has any more."),
    "queues": ("queues:queues", "Queues: their backlog; pause and resume."),
    "limits": ("limits:limits", "Limits: their bounds, which keys jobs wait for; set, pause, resume."),
    "workers": ("workers:workers", "Workers: which ones are alive; drain and restart."),
    "schedules": ("schedules:schedules", "Schedules: what runs when, and whether it did."),
    "guard": ("guard:guards", "Run a crontab line's command at most once per tick, and never twice at a time."),
    "top": ("top:top", "Watch queues, workers, tasks and running jobs."),
    "dashboard": ("dashboard:dashboard", "Serve the dashboard: pages that update live, and a REST API."),
    "check": ("check:check", "Check the store, its workers and its jobs. Exits with 1 if something is wrong."),
    "migrate": ("check:migrate", "Bring the store's schema up to date. Safe to run at any time, also concurrently."),
    "backup": ("check:backup", "Copy an SQLite store into a new file while jobs run."),
    "demo": ("demo:demo", "Try it: jobs that succeed, run later, fail once, and fail permanently."),
    "bench": ("bench:bench", "Measure how fast it is on this machine."),
}
_NOUNS = {
    "jobs",
    "dead",
    "flows",
    "signals",
    "codec",
    "offload",
    "queues",
    "limits",
    "workers",
    "schedules",
    "guard",
}  # each is an App of its own, which has its own help
for _name, (_place, _help) in _COMMANDS.items():
    _options = {} if _name in _NOUNS else {"help_epilogue": ""}
    app.command(f"tenure.cli.{_place}", name=_name, help=_help, **_options)


app.register_install_completion_command(add_to_startup=False)  # pyright: ignore[reportUnknownMemberType]


def run() -> None:
    """The `tenure` command."""
    _open_missing()
    sys.stdout, sys.stderr = _all_written(sys.stdout), _all_written(sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without the arrow character shows a question mark
    sys.exit(main(sys.argv[1:]))


class _WholeWrites(io.BufferedWriter):
    """Each write is complete when it returns, or raises. Unbuffered output drops what a full disk or a pipe refuses."""

    def write(self, data: Buffer, /) -> int:
        written = super().write(data)
        self.flush()
        return written


def _all_written(stream: TextIO) -> TextIO:
    """The same stream; if Python was told not to buffer it (PYTHONUNBUFFERED, -u), one that loses nothing."""
    raw = getattr(stream, "buffer", None)
    if not isinstance(raw, io.RawIOBase):
        return stream
    return io.TextIOWrapper(_WholeWrites(raw), stream.encoding, stream.errors, write_through=True)


def _open_missing() -> None:
    """Open /dev/null for each standard stream that is closed: the next file or socket would get its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit code. Errors are one sentence on standard error, never a traceback."""
    try:
        code = _call(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the pipe is gone: flushing the rest at exit must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich has done the same
            return BROKEN_PIPE
        raise
    except OSError as error:  # from writing the output: errors of a command's own files are TenureErrors
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT, errno.EFBIG):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print_error(f"the output could not be written: {error.strerror}")
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
    except CycloptsError as error:
        print_error(f"{error} See {' '.join(['tenure', *(error.command_chain or ())])} --help.")
        return BAD_INPUT
    except (InvalidOption, InvalidArguments, UnknownLimit, UnknownQueue, UnknownTask, UnknownWorker) as error:
        print_error(str(error))
        return BAD_INPUT
    except StoreAway as error:
        print_error(str(error))
        return AWAY
    except TenureError as error:
        print_error(str(error))
        return WRONG
    except UnicodeEncodeError:
        if odd := next((each for each in argv if not _is_text(each)), None):
            print_error(f"expected text in UTF-8, got {os.fsencode(odd)!r}")
            return BAD_INPUT
        raise
    return code


def _is_text(argument: str) -> bool:
    """Was it UTF-8? Bytes that are not stand in sys.argv as lone surrogates."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _call(argv: Sequence[str]) -> int:
    command = cast(Callable[[Sequence[str]], Any], app)
    result = command(shared_last(argv))
    return result if isinstance(result, int) else OK


def shared_last(argv: Sequence[str]) -> list[str]:
    """--url, --app, --json and --yes may also come before the command."""
    rest, leading = list(argv), list[str]()
    while rest and rest[0].partition("=")[0] in {"--url", "--app", "--json", "--yes", "-y"}:
        leading.append(rest.pop(0))
        if leading[-1] in {"--url", "--app"} and rest:
            leading.append(rest.pop(0))
    place = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:place], *leading, *rest[place:]]
