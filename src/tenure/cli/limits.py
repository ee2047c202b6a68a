"""`tenure limits …`: their bounds, which keys jobs wait for, which jobs have places; set, reset, pause, resume."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tenure.cli.output import ago, jobs_table, pairs, plain, print_error, print_line, show_json, table
from tenure.cli.shared import Shared, admin_of, print_result
from tenure.errors import InvalidOption
from tenure.operations.explain import stamp
from tenure.operations.keys import Paused, Sum, allowed, command, held_of, next_of

if TYPE_CHECKING:
    from tenure.operations.keys import Usage
    from tenure.operations.limits import KeyStatus, LimitStatus
    from tenure.ports import KeyView

limits = App(
    name="limits", help="Limits: their bounds, which keys jobs wait for; set, reset, pause, resume.", help_epilogue=""
)
SHARED = Shared()
Name = Annotated[str, Parameter(help="A limit, such as 'shop:{shop}', or a key of it, such as shop:42.")]
Number = Annotated[int, Parameter(name=["--limit", "-n"], help="At most this many keys. Default: 20.")]


@limits.default
@limits.command(name="list")
def list_(
    *,
    retired: Annotated[bool, Parameter(help="Also those that no app declares any more.")] = False,
    shared: Shared = SHARED,
) -> int:
    """List limits, what each allows, and how much it is waited for."""
    with admin_of(shared) as admin:
        found, usage, now = admin.limits.all(retired=retired), admin.limits.usage(), admin.now()
    sums = usage.sums
    if shared.json:
        show_json([{**_described(each), "sum": plain(sums.get(each.name, Sum()))} for each in found])
        return 0
    rows = [_row(each, sums.get(each.name, Sum()), now) for each in found]
    numbers = ("keys", "held", "waiting")
    table(("limit", *numbers, "allows", "note"), rows, fixed=numbers, right=numbers, below="note")
    if not usage.complete:
        print_error(_SOME)
    return 0


_SOME = "there are many keys: only the first 2,000 by name, and those that jobs have waited for longest, are counted"


def _row(limit: LimitStatus, sums: Sum, now: datetime) -> list[str]:
    numbers = [f"{sums.keys:,}", f"{sums.held:,}", f"{sums.waiting:,}"]
    return [limit.name, *numbers, allowed(limit.bounds), _note(limit, sums, now)]


def _note(limit: LimitStatus, sums: Sum, now: datetime) -> str:
    said: list[str] = []
    if limit.retired_at is not None:
        said.append("no longer declared: it limits nothing")
    if limit.set is not None:
        said.append(f"set{f' by {limit.set_by.who}' if limit.set_by else ''}")
    if (pause := _pause_of(limit)) is not None:
        said.append(f"paused {pause.told(now)}")
    elif sums.paused:
        said.append(f"{sums.paused:,} of its keys {'is' if sums.paused == 1 else 'are'} paused")
    return "; ".join(said)


def _pause_of(limit: LimitStatus) -> Paused | None:
    return None if limit.paused_until is None else Paused(limit.name, limit.paused_until, limit.why, limit.paused_by)


@limits.command
def show(name: Name, /, *, limit: Number = 20, shared: Shared = SHARED) -> int:
    """Show a key, which jobs have its places and which come next; or a limit, and its most waited-for keys."""
    if not 1 <= limit <= 1_000:
        raise InvalidOption(f"--limit: expected 1 to 1000, got {limit}")
    with admin_of(shared) as admin:
        now, template = admin.now(), admin.limits.limit_of(name)
        status = admin.limits.get(template)
        if name == template and status.keyed:
            usage = admin.limits.usage(template)
            oldest = admin.limits.oldest(usage, usage.keys[:limit])
            return _show_limit(status, usage, oldest, limit, now, shared)
        key = admin.limits.key(name)
    if shared.json:
        show_json(_key_described(key))
        return 0
    _show_key(key, status, now)
    return 0


def _show_limit(
    status: LimitStatus, usage: Usage, oldest: Mapping[str, datetime], number: int, now: datetime, shared: Shared
) -> int:
    if shared.json:
        keys = [_viewed(each) for each in usage.keys[:number]]
        show_json({**_described(status), "keys": keys, "complete": usage.complete})
        return 0
    pairs([("limit", status.name), *_bounds(status), *_paused(_pause_of(status), now)])
    print_line("")
    rows = [
        [each.key, held_of(each), f"{each.waiting:,}", _oldest(oldest, each, now), next_of(each), _key_note(each, now)]
        for each in usage.keys[:number]
    ]
    fixed = ("held", "waiting", "oldest", "token")
    table(("key", *fixed, "note"), rows, fixed=fixed, right=("held", "waiting", "oldest"), below="note")
    if len(usage.keys) > number:
        print_error(f"{len(usage.keys) - number:,} more keys, for which fewer jobs wait: use --limit N to see more")
    if not usage.complete:
        print_error(_SOME)
    return 0


def _oldest(oldest: Mapping[str, datetime], key: KeyView, now: datetime) -> str:
    return ago(oldest[key.key], now) if key.key in oldest else ""


def _key_note(key: KeyView, now: datetime) -> str:
    if key.paused_until is None:
        return ""
    return f"paused {Paused(key.key, key.paused_until, key.why, None).told(now)}"


def _bounds(status: LimitStatus) -> list[tuple[str, str]]:
    said = [("allows", allowed(status.bounds))]
    if status.set is not None and status.set_by is not None:
        said.append(("set by", f"{status.set_by.who}, {stamp(status.set_by.at)}"))
    if status.declared is not None and status.declared != status.bounds:
        said.append(("declared", allowed(status.declared)))
    said.append(("app", status.source or "none has declared it"))
    return said + _retired(status)


def _retired(status: LimitStatus) -> list[tuple[str, str]]:
    return [] if status.retired_at is None else [("retired", f"{stamp(status.retired_at)}: it limits nothing")]


def _paused(pause: Paused | None, now: datetime) -> list[tuple[str, str]]:
    if pause is None:
        return []
    return [("paused", pause.told(now)), ("resume", command("resume", pause.name))]


def _show_key(found: KeyStatus, status: LimitStatus, now: datetime) -> None:
    key = found.key
    token = next_of(key)
    pairs(
        [
            ("key", key.key),
            ("limit", key.limit),
            ("allows", allowed(key.bounds)),
            *([("set by", f"{found.set_by.who}, {stamp(found.set_by.at)}")] if found.set and found.set_by else []),
            *_retired(status),
            *_paused(found.pause, now),
            ("places", f"{held_of(key)} held, {key.unbegun:,} of them not begun"),
            *(
                [("tokens", f"{key.tokens:.1f}{f', the next one {token}' if token else ''}")]
                if key.tokens is not None
                else []
            ),
            ("waiting", f"{key.waiting:,}"),
        ]
    )
    for title, jobs, total in (("held by", found.holders, key.held), ("next", found.parked, key.waiting)):
        if jobs:
            print_line(f"\n{title}{f', the first {len(jobs)}' if total > len(jobs) else ''}:")
            jobs_table(jobs, now)


# ── JSON ──


def _described(status: LimitStatus) -> dict[str, Any]:
    return {**plain(status), "paused_until": _until(status.paused_until)}


def _viewed(key: KeyView) -> dict[str, Any]:
    return {**plain(key), "paused_until": _until(key.paused_until)}


def _key_described(found: KeyStatus) -> Mapping[str, Any]:
    pause = found.pause
    told = None if pause is None else {**plain(pause), "until": _until(pause.until)}
    return {**plain(found), "key": _viewed(found.key), "pause": told}


def _until(unix: float | None) -> str | None:
    """The time, written like all others; "resumed": the pause lasts until it is resumed."""
    if unix is None:
        return None
    at = Paused("", unix, "", None).until_at
    return "resumed" if at is None else plain(at)


# ── Acting ──────────────────────────────────────────────────────────────────────────────────────────────────────


@limits.command(name="set")
def set_(
    name: Name,
    /,
    *,
    concurrency: Annotated[int | None, Parameter(help="At most this many at a time.")] = None,
    rate: Annotated[str | None, Parameter(help="At most this many begin in a period: 100/1m.")] = None,
    burst: Annotated[int | None, Parameter(help="At most this many of the rate at once.")] = None,
    shared: Shared = SHARED,
) -> int:
    """Replace the bounds that the code declares, also after a deploy; bounds that are not given stay.

    A new rate without a burst gets the default one, a tenth. Jobs that already run beyond the bounds continue.
    """
    with admin_of(shared) as admin:
        stands = admin.limits.set(name, concurrency=concurrency, rate=rate, burst=burst)
        words = f"{name} allows {allowed(stands)}{admin.limits.besides(name)}"
    return print_result(shared, {"name": name, "bounds": plain(stands)}, words)


@limits.command
def reset(name: Name, /, *, shared: Shared = SHARED) -> int:
    """Restore the bounds that the code declares."""
    with admin_of(shared) as admin:
        changed = admin.limits.reset(name)
        bounds = admin.limits.bounds(name)
    words = f"{name} allows {allowed(bounds)}" + ("" if changed else ", as before: nothing was set")
    return print_result(shared, {"name": name, "changed": changed, "bounds": plain(bounds)}, words)


@limits.command
def pause(
    name: Name,
    /,
    *,
    for_: Annotated[str | None, Parameter(name="--for", help="For this long: 10m. Default: until resumed.")] = None,
    why: Annotated[str, Parameter(help="The reason, shown while it is paused.")] = "",
    shared: Shared = SHARED,
) -> int:
    """Give out no place of a key, or of any key of a limit; jobs that have one go on."""
    with admin_of(shared) as admin:
        until = admin.limits.pause(name, for_, why)
        words = f"{name} is paused {Paused(name, until, '', None).told(admin.now())}{admin.limits.besides(name)}"
    return print_result(shared, {"name": name, "paused_until": _until(until)}, words)


@limits.command
def resume(name: Name, /, *, shared: Shared = SHARED) -> int:
    """End the pause of a key, or of a limit; keys of a limit that are paused themselves stay so."""
    with admin_of(shared) as admin:
        changed = admin.limits.resume(name)
        template = admin.limits.limit_of(name)
        pause = admin.limits.key(name).pause if name != template else None
        whole = pause is not None and pause.name == template
        words = f"{name} {'is resumed' if changed else 'was not paused'}{admin.limits.besides(name)}"
    return print_result(shared, {"name": name, "changed": changed, "limit_paused": whole}, words)
