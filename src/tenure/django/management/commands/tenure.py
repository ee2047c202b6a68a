"""`manage.py tenure …`: every command of `tenure`, with the store, the app and the settings of the project."""

from __future__ import annotations

import os
import sys
import sysconfig
from argparse import REMAINDER, ArgumentParser
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

from django.core.management.base import BaseCommand, CommandError

from tenure import cli
from tenure.cli.main import BAD_INPUT, main, shared_last
from tenure.cli.output import print_error
from tenure.config import SETTINGS
from tenure.django import jobs
from tenure.errors import TenureError

_DJANGOS = ("--settings", "--pythonpath")  #: options of manage.py itself, which has applied them already


class Command(BaseCommand):
    help = "Run a command of tenure for this project: worker, check, jobs, dashboard and all others."

    def run_from_argv(self, argv: list[str]) -> None:
        sys.exit(run(_own(argv[2:])))

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *args: str, arguments: Sequence[str] = (), **options: Any) -> None:
        """For `call_command("tenure", "jobs", "list")`."""
        if code := run([*args, *arguments]):
            raise CommandError(f"tenure {' '.join(arguments)} has failed", returncode=code)


def run(argv: Sequence[str]) -> int:
    """Run one command of `tenure` for this project, and return its exit code."""
    try:
        cli.default_store = "that of the project's settings"
        command = _command(argv)
        with _given() if command == "guard" else _exported(secrets=command != "worker"):
            return main(argv)
    except TenureError as error:
        print_error(str(error))
        return BAD_INPUT


def _command(argv: Sequence[str]) -> str:
    return next((each for each in shared_last(argv) if not each.startswith("-")), "")


def _own(argv: Sequence[str]) -> list[str]:
    """The arguments without those that manage.py has applied already. After `--` there is a guard's command."""
    rest, each = list[str](), iter(argv)
    for argument in each:
        if argument == "--":
            return [*rest, argument, *each]
        if argument in _DJANGOS:
            next(each, None)
        elif not argument.startswith(tuple(f"{name}=" for name in _DJANGOS)):
            rest.append(argument)
    return rest


@contextmanager
def _given() -> Generator[None]:
    """Pass the project's settings on, and leave the environment as it is: a guard's command inherits it."""
    _ = jobs.settings  # what is wrong in them is said before the command runs
    cli.project = jobs.home.settings
    try:
        yield
    finally:
        cli.project = {}


@contextmanager
def _exported(*, secrets: bool) -> Generator[None]:
    """Pass the project's settings on to commands that don't import it, and to the supervisor that this process becomes.

    Workers read them from the project themselves. Secrets are not passed to their processes: every program that a
    handler starts inherits the environment.
    """
    given, settings = jobs.home.settings, jobs.settings
    rows = [row for row in SETTINGS if row.name in given and (secrets or not row.secret)]
    found = {row.env: _spelled(given[row.name], getattr(settings, row.name)) for row in rows}
    found["PYTHONPATH"] = os.pathsep.join(_project_path())
    before = {name: os.environ.get(name) for name in found}
    os.environ.update(found)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _project_path() -> list[str]:
    """The part of the import path before Python's own: worker processes must find what manage.py finds."""
    stdlib = (sysconfig.get_path("stdlib"), f"python{sys.version_info.major}{sys.version_info.minor}.zip")
    return [str(Path(path).absolute()) for path in takewhile(lambda path: not path.endswith(stdlib), sys.path)]


def _spelled(given: object, parsed: object) -> str:
    """A setting as it is written in the environment, where it is parsed again."""
    if isinstance(parsed, float):
        return f"{parsed:.3f}s"
    match given:
        case list() | tuple() | set():
            return ",".join(map(str, cast("Iterable[object]", given)))
        case _:
            return str(given)
