"""Shared by all commands: --url, --json and --yes, opening the store, and confirmations."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from cyclopts import Parameter

from tenure import cli
from tenure.cli.output import print_error, print_line, show_json
from tenure.core.durations import seconds
from tenure.errors import InvalidOption, JobFailed, TenureError

if TYPE_CHECKING:
    from tenure.app.app import Tenure
    from tenure.codecs import Codec
    from tenure.config import Settings
    from tenure.operations.admin import Admin
    from tenure.ports import Store


_SOON_SECONDS = 3.0


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Shared:
    url: Annotated[str | None, Parameter(help=f"The store. Default: {cli.default_store}.")] = None
    app: str | None = None
    """Where the app is: module[:attribute]. Its store is used, and its codec decrypts what is shown."""
    json: bool = False
    """Write JSON."""
    yes: Annotated[bool, Parameter(name=["--yes", "-y"])] = False
    """Don't ask."""

    def settings(self, **flags: object) -> Settings:
        from tenure.config import load

        if self.app is not None:
            return _import(self, self.app, **flags).settings
        return load({"url": self.url, **flags}, cli.project)

    def codec(self) -> Codec | None:
        """What decrypts the values of jobs: the codec of the app, which has to be named."""
        return None if self.app is None else _import(self, self.app).codec


def app_named(shared: Shared, app: str | None) -> str | None:
    """The app that a command line names: as its argument, or with --app."""
    if app is not None and shared.app not in (None, app):
        raise InvalidOption(f"expected one app, got {app} and --app {shared.app}")
    return app or shared.app


def app_of(shared: Shared, spec: str | None, **flags: object) -> Tenure:
    """The app with its tasks, under these flags: `spec`, else --app. Import errors name their place in the code."""
    spec = app_named(shared, spec)
    app = _import(shared, spec, **flags)
    if not len(app.tasks):
        raise InvalidOption(
            f'{spec or "the app"} has no tasks; list the modules that define them: Tenure(imports=["shop.tasks"])'
        )
    app.tasks.resolve()
    return app


def _import(shared: Shared, spec: str | None, **flags: object) -> Tenure:
    from tenure.app.processes import load_app

    try:
        app = load_app(spec)
    except TenureError:
        raise
    except SystemExit as error:
        raise InvalidOption(
            f"{spec or 'the app'} can't be imported: it exits meanwhile (SystemExit: {error}); what it runs as a "
            'script belongs under `if __name__ == "__main__":`'
        ) from error
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        at = (
            f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else f"{frame.filename}:{frame.lineno}"
        )
        reason = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
        raise InvalidOption(f"{spec or 'the app'} can't be imported: {reason} (at {at})") from error
    app.configure({"url": shared.url, **flags})
    return app


def store_of(settings: Settings, *, may_create: bool = False) -> Store:
    """The store of these settings, not yet opened. Reading from a missing SQLite file does not create it."""
    from tenure.app.backends import open_store

    store = open_store(settings)
    path = Path(store.url.removeprefix("sqlite:///"))
    if store.url.startswith("sqlite:///") and not may_create and not _exists(path):
        raise TenureError(
            f"there is no {path} yet: nothing was ever enqueued there. "
            "Is the store elsewhere? Set --url or TENURE_URL. "
            "To start: tenure worker MODULE, or tenure demo."
        )
    return store


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:  # one of its folders is not ours to enter
        raise TenureError(f"{path} can't be reached: {error.strerror}") from error
    return True


@contextmanager
def admin_of(shared: Shared, *, large: bool = False, may_create: bool = False) -> Generator[Admin]:
    """The opened store, with operator access. `large`: with the bucket of its large values, which may need an extra."""
    from tenure.app.backends import notifier_of, shown, with_bucket
    from tenure.operations.admin import Admin

    settings, codec = shared.settings(), shared.codec()
    plain = store_of(settings, may_create=may_create)
    store = shown(with_bucket(plain, settings) if large else plain, codec)
    store.open()
    notifier = notifier_of(settings, store)
    try:
        yield Admin(store, notifier, settings, who=operator())
    finally:
        notifier.close()
        store.close()


def operator() -> str:
    """The user at this terminal, for the audit trail: `ada@web-2`."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a number without a name, in a container
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


def print_result(shared: Shared, answer: Mapping[str, object], words: str) -> int:
    """Print the result, as JSON or as text. Returns 0, the exit code."""
    if shared.json:
        show_json(answer)
    else:
        print_line(words)
    return 0


def wait_limit(wait: bool, timeout: str | None) -> float | None:
    """How many seconds --wait waits; None: no limit."""
    if timeout is not None and not wait:
        raise InvalidOption("--timeout limits --wait: use both, or neither")
    return None if timeout is None else seconds(timeout, "--timeout")


def awaited(
    shared: Shared,
    stored: Mapping[str, object],
    job_id: str,
    limit: float | None,
    result: Callable[[float | None], str],
) -> str:
    """The result of a job that has just been stored. A job that does not start soon is explained meanwhile.

    With --json a failure is printed too, beside what is known of the job.
    """
    print_error(f"job {job_id} is stored; waiting for it")
    sys.stderr.flush()
    try:
        if limit is None or limit > _SOON_SECONDS:
            try:
                return result(_SOON_SECONDS)
            except TimeoutError as error:
                if "; " in str(error):  # then it says why
                    print_error(f"{error}; still waiting")
                limit = None if limit is None else limit - _SOON_SECONDS
        return result(limit)
    except TimeoutError as error:
        if shared.json:
            show_json(stored)
        raise TenureError(str(error)) from error
    except JobFailed as failed:
        if shared.json:
            show_json({**stored, "state": failed.state, "error": failed.error})
        raise


def confirm(shared: Shared, question: str) -> None:
    """Continue only if confirmed: by --yes, or y at the terminal."""
    if shared.yes:
        return
    if not sys.stdin.isatty():
        raise InvalidOption(f"{question} There is no terminal to ask on: use --yes.")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise TenureError("nothing done")


@contextmanager
def signals_end_it() -> Generator[None]:
    """SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that all processes are stopped."""

    def leave(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
