"""`tenure …`: the table of commands, and how every one of them ends."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

from cyclopts import App, CycloptsError, Parameter

from tenure.cli.output import complain
from tenure.config import SETTINGS
from tenure.errors import InvalidArguments, InvalidOption, StoreAway, TenureError, UnknownTask

OK, WRONG, BAD_INPUT, AWAY, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 75, 130, 141

_SETTINGS_HELP = (
    "Settings: flag > code > environment > .env of this folder > default; tenure check --config shows them. "
    + ", ".join(row.env for row in SETTINGS)
    + ". Exit codes: 0 ok, 1 something is wrong, 2 bad input, 75 the store is out of reach."
)


def _version() -> str:
    from importlib.metadata import version

    return version("tenure")


app = App(
    name="tenure",
    help="A durable job engine: jobs that are owned until they are done.",
    help_epilogue=_SETTINGS_HELP,
    help_format="plaintext",
    version=_version,
    default_parameter=Parameter(negative=(), show_default=False),
    result_action="return_value",
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
)
_COMMANDS = {
    "worker": ("worker:worker", "Run jobs until told to stop; the first Ctrl-C or SIGTERM lets running jobs finish."),
    "enqueue": ("enqueue:enqueue", "Store a job and print its id."),
    "tasks": ("enqueue:tasks", "List the tasks of an app."),
    "jobs": ("jobs:jobs", "Find jobs, look at them, act on them."),
    "dead": ("jobs:dead", "Dead letters: jobs whose failures or crashes are used up."),
    "queues": ("queues:queues", "Queues: how full they are; stop and go."),
    "workers": ("queues:workers", "Workers: who is alive."),
    "schedules": ("schedules:schedules", "Schedules: what runs when, and whether it did."),
    "guard": ("guard:guard", "Run a crontab line's command at most once a tick, and never twice at a time."),
    "top": ("top:top", "Watch queues, workers and running jobs."),
    "dashboard": ("dashboard:dashboard", "Pages and a REST API: see everything, act on it, in a browser."),
    "check": ("check:check", "Is everything well? Ends with 1 if not."),
    "migrate": ("check:migrate", "Bring the store's schema up to date. Safe at any time, and by many at once."),
    "backup": ("check:backup", "Copy an SQLite store into a new file while work goes on."),
    "demo": ("demo:demo", "See it work: jobs that succeed, run later, fail once, and fail for good."),
    "bench": ("bench:bench", "How fast is it on this machine?"),
}
_NOUNS = {"jobs", "dead", "queues", "workers", "schedules"}  # each an App of its own, which says such things itself
for _name, (_place, _help) in _COMMANDS.items():
    _options = {} if _name in _NOUNS else {"help_epilogue": ""}
    app.command(f"tenure.cli.{_place}", name=_name, help=_help, **_options)


def run() -> None:
    """The `tenure` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no arrow shows a question mark
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit code. An error is one sentence on standard error, never a traceback."""
    try:
        code = _call(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has gone: flushing what is left at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except CycloptsError as error:
        complain(f"{error} See {' '.join(['tenure', *(error.command_chain or ())])} --help.")
        return BAD_INPUT
    except (InvalidOption, InvalidArguments, UnknownTask) as error:
        complain(str(error))
        return BAD_INPUT
    except StoreAway as error:
        complain(str(error))
        return AWAY
    except TenureError as error:
        complain(str(error))
        return WRONG
    return code


def _call(argv: Sequence[str]) -> int:
    command = cast(Callable[[Sequence[str]], Any], app)
    result = command(_shared_last(argv))
    return result if isinstance(result, int) else OK


def _shared_last(argv: Sequence[str]) -> list[str]:
    """--url, --json and --yes may also stand before the command."""
    rest, leading = list(argv), list[str]()
    while rest and rest[0].partition("=")[0] in {"--url", "--json", "--yes", "-y"}:
        leading.append(rest.pop(0))
        if leading[-1] == "--url" and rest:
            leading.append(rest.pop(0))
    place = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:place], *leading, *rest[place:]]
