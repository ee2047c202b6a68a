"""`tenure guard NAME --every 1d -- COMMAND…`: a crontab line's command, at most once a tick, never twice at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from tenure.cli.output import complain
from tenure.cli.shared import Shared
from tenure.core.durations import seconds
from tenure.errors import InvalidOption, StoreAway, StoreError

if TYPE_CHECKING:
    from tenure.config import Settings
    from tenure.ports import Notifier, Store

SHARED = Shared()


def guard(
    name: str,
    /,
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    every: str | None = None,
    cron: str | None = None,
    tz: str = "UTC",
    timeout: str | None = None,
    grace: str | None = None,
    force: bool = False,
    quiet: bool = False,
    skip_exit: int = 0,
    if_unreachable: Literal["fail", "run"] = "fail",
    shared: Shared = SHARED,
) -> int:
    """Run a command at most once a tick, and never twice at a time, on all hosts together.

    Its input, its output and its exit code go through untouched; 124: timed out, 126 and 127: it could not be
    started, 128+n: signal n ended it, 75: the store is out of reach, or the lock was lost and the command killed.
    What it leaves in the background goes on.

    Parameters
    ----------
    name
        The schedule's name: one for all hosts that run it.
    command
        What to run, after `--`.
    every
        How often it is called: 5m, 1h, 1d. A call within half of that after the last one is skipped.
    cron
        When it is called, as in the crontab: "0 6 * * *". The tick is the one nearest to now.
    tz
        The time zone of --cron.
    timeout
        SIGTERM for its process group after so long.
    grace
        SIGKILL for it so long after SIGTERM.
    force
        Run it although this tick has run already, or it is paused. Never beside another run.
    quiet
        Say nothing of skips and late runs, and show the command's output only if it fails.
    skip_exit
        The exit code when it is skipped.
    if_unreachable
        What to do when the store is still out of reach after 30 s: fail (75), or run without the lock. A store that
        goes away later is waited for until two thirds of the lease.
    """
    from tenure.guards.command import Wishes, run_command
    from tenure.guards.run import declared

    if not command:
        raise InvalidOption(f"guard {name}: expected a command: tenure guard {name} --every 1d -- COMMAND…")
    if (every is None) == (cron is None):
        raise InvalidOption(f"guard {name}: expected either --every 1d or --cron '0 6 * * *'")
    if not 0 <= skip_exit <= 255:
        raise InvalidOption(f"--skip-exit: expected 0 to 255, got {skip_exit}")
    limit = None if timeout is None else seconds(timeout, "--timeout")
    if limit == 0:
        raise InvalidOption(f"--timeout: expected more than 0s, got {timeout}")
    schedule = declared(name, every=every, cron=cron, tz=tz)
    settings = shared.settings(grace=grace)
    if settings.url.startswith("sqlite:///") and not settings.url.startswith("sqlite:////"):
        raise InvalidOption(
            f"url: cron starts this in another folder than you do, so expected the whole path, like "
            f"sqlite:////srv/shop/tenure.db, got {settings.url!r}; set TENURE_URL at the top of the crontab"
        )

    def opened() -> tuple[Store, Notifier, Settings]:
        from tenure.backends import open_notifier, open_store

        store = open_store(settings)
        try:
            store.open()
        except BaseException:
            store.close()
            raise
        return store, open_notifier(settings, store), settings

    wishes = Wishes(
        timeout=limit,
        grace=settings.grace,
        force=force,
        quiet=quiet,
        skip_exit=skip_exit,
        unguarded=if_unreachable == "run",
    )
    try:
        return run_command(command, schedule, opened, wishes, complain)
    except StoreAway:
        raise
    except StoreError as error:  # not migrated, newer than this code, somebody else's: nothing that waiting would heal
        raise InvalidOption(str(error)) from error
