"""Formatting of values on pages: filters of the templates, and short texts that are sent in a cookie."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from tenure.core.durations import spell
from tenure.operations.workers import Workforce


def when(at: datetime | None) -> Markup:
    """A moment: sent in UTC; the script shows the viewer's local time, with UTC on hover."""
    if at is None:
        return Markup("–")
    utc = at.astimezone(UTC)
    text = f"{utc:%Y-%m-%d %H:%M:%S} UTC"
    stamp = utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(stamp, text, text)


def duration(seconds: float | None) -> str:
    """`2m 5s`; milliseconds below a second."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} µs" if seconds else "0 ms"
    return spell(seconds)


def number(value: float | None) -> str:
    """`12,345`; one decimal below a hundred if it has any."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.1f}"


def size(count: int | None) -> str:
    """Bytes, `31 MiB`."""
    if count is None:
        return "–"
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:,.0f} {unit}"
    return f"{count} B"


def pretty(text: str | None) -> str:
    """JSON, indented; text that is not JSON is unchanged."""
    if text is None:
        return ""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def short(text: str) -> str:
    """The last eight characters of an id: enough to distinguish it on a page."""
    return text[-8:]


def some(count: int, what: str) -> str:
    """`1 worker`, `2,000 workers`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def workforce_text(workers: Workforce) -> str:
    """The workers, in a sentence."""
    if not workers.alive:
        return "No worker is alive: nothing runs until one is started: tenure worker."
    alive = f"{some(workers.alive, 'worker')} on {some(workers.hosts, 'host')}"
    stalled = f", {workers.stalled:,} stalled" if workers.stalled else ""
    died = f"; {workers.died:,} ended within the last hour" if workers.died else ""
    return f"{alive}, {workers.busy:,} of {workers.slots:,} slots busy{stalled}{died}."


FILTERS: dict[str, Callable[..., Any]] = {
    "when": when,
    "duration": duration,
    "number": number,
    "size": size,
    "pretty": pretty,
    "short": short,
}


def seal(text: str) -> str:
    """Text encoded for a cookie."""
    return urlsafe_b64encode(text[:500].encode()).decode()


def unseal(text: str) -> str:
    try:
        return urlsafe_b64decode(text.encode()).decode()[:500]
    except (ValueError, UnicodeError):
        return ""
