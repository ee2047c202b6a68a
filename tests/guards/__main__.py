"""Take out the guards, one at a time, and see a test go red each time: `python -m tests.guards [--store redis]…`.

Each run has a copy of the sources with one guard less, and the tests of that guard; if these stay green, all tests of
the store. One PostgreSQL and one Valkey serve all runs. With all guards in place the same tests must be green: what is
red anyway proves nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from servers import Postgres, Valkey

from . import ROOT, SOURCE, Guard, memory, mistakes, postgres, redis, runtime, sqlite
from .promises import PROMISES

TABLES = {
    "memory": memory.TABLE,
    "sqlite": sqlite.TABLE,
    "postgres": postgres.TABLE,
    "redis": redis.TABLE,
    "runtime": runtime.TABLE,
}
#: The text that is left can't run at all: any test would notice that, without seeing the guard.
NONSENSE = re.compile(
    r"(Syntax|Indentation|Name|Import)Error|syntax error|Error compiling script|no query solution|no such column"
    r"|UndefinedColumn|UndefinedFunction|IndeterminateDatatype|ambiguous"
)
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", re.MULTILINE)
RUN_SECONDS = 900
_QUIETLY = ("-x", "-q", "--tb=short", "--timeout=90", "-p", "no:cacheprovider", "-p", "pytest_timeout")


class Found(NamedTuple):
    store: str
    guard: str
    file: str
    caught_by: str
    seconds: float
    wrong: str = ""  #: with the table, and not with the tests


class Bench:
    """A copy of the tree as it is now, and what one run of it takes."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        leave = shutil.ignore_patterns(".*", "__pycache__")
        for name in ("src", "tests", "examples", "docs"):
            shutil.copytree(ROOT / name, folder / name, ignore=leave)
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md"):
            shutil.copy(ROOT / name, folder)

    def without(self, guard: Guard, store: str) -> Found:
        began = time.monotonic()
        table = TABLES[store]
        with tempfile.TemporaryDirectory(prefix="guard-", dir=self._folder) as folder:
            source = Path(folder, "src")
            shutil.copytree(self._folder / "src", source, copy_function=os.link)
            file = Path(folder, SOURCE, guard.file)
            text = file.read_text(encoding="utf-8").replace(guard.text, guard.without)
            file.unlink()  # it is a link
            file.write_text(text, encoding="utf-8")
            caught_by = self.red(arguments(that_see(guard), table.chosen), source)
            if not caught_by and table.tests:
                caught_by = self.red(arguments(table.tests, table.chosen), source)
                if caught_by and self.red([caught_by]):
                    raise Mistake(f"{caught_by} fails with this guard too")
        return Found(store, guard.promise, guard.file, caught_by, round(time.monotonic() - began, 1))

    def red(self, asked: Sequence[str], source: Path | None = None) -> str:
        """The first test that fails; empty: all are green."""
        with tempfile.TemporaryDirectory(prefix="guard-tmp-", ignore_cleanup_errors=True) as folder:
            run = subprocess.run(
                [sys.executable, "-m", "pytest", *_QUIETLY, "--basetemp", folder, *asked],
                cwd=self._folder,
                env={
                    **os.environ,
                    **self._environment,
                    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # to import them takes longer than most of these runs
                    "PYTHONPATH": os.pathsep.join((str(source or self._folder / "src"), "tests")),
                },
                capture_output=True,
                text=True,
                check=False,
                timeout=RUN_SECONDS,
            )
        if run.returncode == 0:
            return ""
        failed = FAILED.search(run.stdout)
        if run.returncode != 1 or failed is None:
            raise Mistake(f"pytest ended with {run.returncode}: {(run.stdout + run.stderr)[-2000:]}")
        nonsense = NONSENSE.search(run.stdout)
        if nonsense:
            raise Mistake(f"what is left is no program ({nonsense[0]}): {run.stdout[-3000:]}")
        return failed[1]


class Mistake(Exception):
    """The table is wrong, not the suite."""


def that_see(guard: Guard) -> str:
    """The tests that are to notice when it is gone."""
    return guard.tests or PROMISES.get(guard.promise, "")


def arguments(tests: str, chosen: str) -> list[str]:
    """The same as pytest takes them."""
    asked = [f"tests/{each}" if "/" in each else each for each in dict.fromkeys(shlex.split(tests))]
    return [*asked, "-k", chosen] if chosen and "-k" not in asked else asked


@contextmanager
def servers(stores: Sequence[str]) -> Iterator[dict[str, str]]:
    """One of each that is needed, as the tests are told of it."""
    environment: dict[str, str] = {}
    running: list[Postgres | Valkey] = []
    try:
        if not {"postgres", "runtime"}.isdisjoint(stores):
            postgres_server = Postgres({"max_connections": 300, "fsync": "off"})
            running.append(postgres_server)
            environment["TENURE_TEST_POSTGRES_URL"] = postgres_server.url()
        if "redis" in stores:
            valkey = Valkey()
            running.append(valkey)
            environment["TENURE_TEST_REDIS_URL"] = valkey.url
        yield environment
    finally:
        for server in running:
            server.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.guards", description=__doc__)
    parser.add_argument("--store", action="append", choices=TABLES, help="only this one (again for more)")
    parser.add_argument("--guard", default="", metavar="TEXT", help="only those whose name or file has this text")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write what was found")
    parser.add_argument("--trusted", action="store_true", help="don't first see the tests green with all guards")
    asked = parser.parse_args()
    stores: list[str] = asked.store or list(TABLES)
    rows = [
        (store, guard)
        for store in stores
        for guard in TABLES[store].guards
        if asked.guard in f"{guard.promise} {guard.file}"
    ]
    wrong = [said for _, guard in rows if (said := mistakes(guard))]
    if wrong:
        sys.stdout.write("\n".join(wrong) + "\n")
        return 1
    with tempfile.TemporaryDirectory(prefix="guards-") as folder, servers(stores) as environment:
        bench = Bench(Path(folder), environment)
        with ThreadPoolExecutor(asked.jobs) as threads:
            if not asked.trusted:
                for store, red in zip(stores, threads.map(lambda store: green(bench, store), stores), strict=True):
                    if red:
                        sys.stdout.write(f"{store}: {red} fails with all guards in place, so nothing is proved\n")
                        return 1
            found = list(tell(threads.map(lambda row: seen(bench, *row), rows)))
    unseen = sum(not each.caught_by for each in found)
    sys.stdout.write(f"{len(found) - unseen} of {len(found)} guards that were taken out made a test fail\n")
    if asked.json:
        asked.json.write_text(
            json.dumps([dict(zip(Found._fields[:-1], each, strict=False)) for each in found], indent=1)
        )
    return 1 if unseen else 0


def green(bench: Bench, store: str) -> str:
    """What fails with all guards in place, of the tests that the guards of a store name."""
    table = TABLES[store]
    named = list(dict.fromkeys(map(that_see, table.guards)))
    together = " ".join(tests for tests in named if "-k" not in tests)
    alone = [tests for tests in named if "-k" in tests]
    runs = (bench.red(arguments(tests, table.chosen)) for tests in (together, *alone))
    return next(filter(None, runs), "")


def seen(bench: Bench, store: str, guard: Guard) -> Found:
    try:
        return bench.without(guard, store)
    except (Mistake, subprocess.TimeoutExpired) as error:
        return Found(store, guard.promise, guard.file, "", 0.0, str(error))


def tell(found: Iterator[Found]) -> Iterator[Found]:
    for each in found:
        colour = "red  " if each.caught_by else "WRONG" if each.wrong else "GREEN"
        caught_by = each.caught_by or each.wrong or "no test noticed"
        sys.stdout.write(f"{colour} {each.store}: {each.guard} ({each.file}): {caught_by} ({each.seconds} s)\n")
        sys.stdout.flush()
        yield each


if __name__ == "__main__":
    sys.exit(main())
