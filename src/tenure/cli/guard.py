"""`tenure guard NAME --every 1d -- COMMAND…`: runs a crontab line's command at most once per tick."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from tenure.cli.output import plain, print_error
from tenure.cli.shared import Shared, admin_of, print_result
from tenure.core.durations import seconds
from tenure.core.text import clean
from tenure.errors import InvalidOption, StoreAway, StoreError

if TYPE_CHECKING:
    from tenure.config import Settings
    from tenure.ports import Notifier, Store
    from tenure.ports.schedules import Schedule

_LONGEST_COMMAND = 2000
_MOST_RETRIES = 10  #: each is a process that waits
SHARED = Shared()
_SILENCE = logging.NullHandler()
guards = App(name="guard", help="Run a crontab line's command at most once per tick.", help_epilogue="")


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Watched:
    """The options with which a guard is declared: by each call, and by `declare` before the first one."""

    every: str | None = None
    """How often it is called: 5m, 1h, 1d. A call within half of this interval after the last one is skipped."""
    cron: str | None = None
    """When it is called, as in the crontab: "0 6 * * *". The call counts for the tick nearest to now."""
    tz: str = "UTC"
    """The time zone of --cron."""
    alert_after: int | None = None
    """Alert after this many failures in a row. Default: 1."""
    overdue_after: str | None = None
    """Alert if no call has come this long after its time. Default: 5m."""
    too_long: str | None = None
    """Alert on a run that takes longer than this. Default: one that still runs at its next two ticks."""

    def declared(self, name: str) -> Schedule:
        from tenure.guards.run import declared

        if (self.every is None) == (self.cron is None):
            raise InvalidOption(f"guard {name}: expected either --every 1d or --cron '0 6 * * *'")
        return declared(name, **asdict(self))


WATCHED = Watched()


def refuse_relative(settings: Settings) -> None:
    if settings.relative_url:
        raise InvalidOption(
            "url: cron starts this in a different folder than your shell, so expected an absolute path, like "
            "sqlite:////srv/shop/tenure.db, got one relative to this folder; set TENURE_URL at the top of the crontab"
        )


@guards.command
def declare(name: str, /, *, watched: Watched = WATCHED, shared: Shared = SHARED) -> int:
    """Put a guard on record before its first call, which is then overdue if it never comes; or change its rule.

    Parameters
    ----------
    name
        The guard's name.
    """
    from tenure.operations.schedule_health import clock
    from tenure.schedules.plan import rule_of

    schedule = watched.declared(name)
    refuse_relative(shared.settings())
    with admin_of(shared, may_create=True) as admin:
        stands = admin.schedules.expect(schedule).schedule
    tick = stands.next_tick
    when = "" if tick is None else f", its next call is expected {clock(rule_of(stands), tick)}"
    return print_result(
        shared,
        {"schedule": name, "rule": stands.rule, "next_expected_at": plain(tick)},
        f"guard {name} is on record{when}",
    )


@guards.default
def guard(
    name: str,
    /,
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    watched: Watched = WATCHED,
    timeout: str | None = None,
    grace: str | None = None,
    force: bool = False,
    quiet: bool = False,
    skip_exit: int = 0,
    ping: str = "",
    retries: int = 0,
    retry_pause: str = "10s",
    if_unreachable: Literal["fail", "run"] = "fail",
    shared: Shared = SHARED,
) -> int:
    """Run a command at most once per tick, and never twice at the same time, across all hosts.

    Its input, output and exit code pass through unchanged. Other exit codes: 124 timed out, 126 and 127 could not be
    started, 128+n ended by signal n, 75 the store is unavailable, or the lock was lost and the command killed.
    Processes that it leaves in the background are not stopped.

    Parameters
    ----------
    name
        The schedule's name, the same on all hosts that run it.
    command
        What to run, after `--`.
    timeout
        Send SIGTERM to its process group after this time.
    grace
        Send SIGKILL this long after SIGTERM.
    force
        Run it even if this tick has already run, or it is paused; but never alongside another run.
    quiet
        Print nothing about skips and late runs, and show the command's output only if it fails.
    skip_exit
        The exit code of a skipped call.
    ping
        The URL of a dead-man's switch, such as healthchecks.io: URL/start, then URL or URL/fail is sent to it.
    retries
        Run a failed command again, up to this many times, until the next tick is due or --timeout is over: 0 to 10.
    retry_pause
        The pause before each retry. Default: 10s.
    if_unreachable
        What to do if the store is still unavailable after 30 s: fail (75), or run without the lock. If the store
        becomes unavailable later, the guard waits for up to two thirds of the lease.
    """
    from tenure.guards.command_run import Wishes, run_command
    from tenure.guards.words import starred

    if not command:
        raise InvalidOption(f"guard {name}: expected a command: tenure guard {name} --every 1d -- COMMAND…")
    if command[0].startswith("-"):
        raise InvalidOption(f"guard {name}: there is no option {command[0]}; see tenure guard --help")
    if not 0 <= skip_exit <= 255:
        raise InvalidOption(f"--skip-exit: expected 0 to 255, got {skip_exit}")
    limit = None if timeout is None else seconds(timeout, "--timeout")
    if limit == 0:
        raise InvalidOption(f"--timeout: expected more than 0s, got {timeout}")
    if not 0 <= retries <= _MOST_RETRIES:
        raise InvalidOption(f"--retries: expected 0 to {_MOST_RETRIES}, got {retries}")
    schedule = watched.declared(name)
    settings = shared.settings(grace=grace)
    schedule = schedule.but(command=clean(starred(command, settings.redact), _LONGEST_COMMAND))
    refuse_relative(settings)

    def opened() -> tuple[Store, Notifier, Settings]:
        from tenure.app.backends import notifier_of, open_store

        store = open_store(settings)
        try:
            store.open()
        except BaseException:
            store.close()
            raise
        return store, notifier_of(settings, store), settings

    # Workers and `tenure check` report on the store's settings; here each call would repeat it in cron's mail.
    logging.getLogger("tenure.store").addHandler(_SILENCE)
    wishes = Wishes(
        timeout=limit,
        grace=settings.grace,
        force=force,
        quiet=quiet,
        skip_exit=skip_exit,
        unguarded=if_unreachable == "run",
        ping=ping,
        retries=retries,
        pause=seconds(retry_pause, "--retry-pause"),
    )
    try:
        return run_command(command, schedule, opened, wishes, print_error)
    except StoreAway:
        raise
    except StoreError as error:  # not migrated, newer than this code, or of another app: waiting would not help
        raise InvalidOption(str(error)) from error
