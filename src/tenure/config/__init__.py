"""Every setting, defined once: `SETTINGS` feeds `Settings`, the environment, `--help`, `.env.example` and the docs.

A value is taken from the first of: flag, code, environment, `.env` of the current folder, default.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import quote

from tenure.config import values
from tenure.config.values import (
    ROLES,
    Role,
    Token,
    host_and_port,
    redact,
    role_of,
    sink_label,
    valid_name,
    valid_queue,
)
from tenure.core.durations import spell
from tenure.core.logs import logger
from tenure.core.retry import MOST_FAILURES
from tenure.errors import InvalidOption

__all__ = [
    "DJANGO_APP",
    "KEY_NAMES",
    "PREFIX",
    "ROLES",
    "SETTINGS",
    "Role",
    "Setting",
    "Settings",
    "Token",
    "current_folder",
    "host_and_port",
    "load",
    "redact",
    "role_of",
    "setting_named",
    "sink_label",
    "valid_name",
    "valid_queue",
]

PREFIX = "TENURE_"
DJANGO_APP = "tenure.django:jobs"  #: the app of every Django project
#: parts of names whose values are secret, unless the setting `redact` says otherwise
KEY_NAMES = ("password", "passwd", "secret", "token", "api_key", "apikey", "authorization", "cookie", "private_key")
# Files that libpq, redis-py or the NATS notifier would look for in the current folder. One with %XX stays as it is.
_FILE_QUERY = re.compile(
    r"([?&](?:ssl(?:root)?cert|sslkey|sslcrl|passfile|ssl_(?:ca_certs|certfile|keyfile)|creds)=)"
    r"(?!system(?:&|$))([^/&%~][^&%]*)(?=&|$)"
)
# A Kubernetes Service called tenure or tenure-web puts such names into every pod of its namespace.
_IGNORED = re.compile(r"TENURE_(HOST_ID|TEST_.*|(.*_)?SERVICE_.*|(.*_)?PORT(_.*)?)")


# ── The table ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `default` is written as a user would write it; None means unset."""

    name: str
    default: str | None
    parse: Callable[[object, str], Any]
    help: str
    secret: bool = False
    flag: str = ""

    def __post_init__(self) -> None:
        if not self.flag:
            object.__setattr__(self, "flag", f"--{self.name.replace('_', '-')}")

    @property
    def env(self) -> str:
        return PREFIX + self.name.upper()


_lease = partial(values.length, least=1.0, most=3600.0, why="a worker silent for that long loses its jobs")
_keep = partial(values.length, least=3600.0, why="a repeated enqueue must still find the first one")
_keep_offloaded = partial(values.length, least=3600.0, why="a transaction that has stored it may still be open")
_level = partial(values.choice, among=("debug", "info", "warning", "error", "critical"))
_format = partial(values.choice, among=("text", "json"))
_yes = partial(values.choice, among=("yes", "no"))

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "url",
        "sqlite:///tenure.db",
        values.url,
        "The store: sqlite:///a.db (this folder), sqlite:////srv/a.db, postgresql://user@host/db or redis://host:6379/0.",
    ),
    Setting("password", None, values.plain, "The store's password, to keep it out of the URL.", secret=True),
    Setting(
        "namespace", "tenure", values.namespace, "Schema or key prefix, for several engines in one database server."
    ),
    Setting(
        "notifier",
        "auto",
        values.plain,
        "The notifier: auto (the store's own), poll, nats://host:port?ack_wait=10m, redis://… or a direct postgresql://…",
    ),
    Setting("app", None, values.plain, "The app that defines the tasks: module[:attribute]."),
    Setting(
        "queues",
        None,
        values.queues,
        "Queues to work on, each served first in turn: analysis=2,default (=2: at most two slots).",
        flag="--queue",  # repeated, it names one each time
    ),
    Setting(
        "concurrency", "5", partial(values.whole, least=1, most=10_000), "Slots of a worker: jobs it runs at once."
    ),
    Setting("workers", "1", partial(values.whole, least=1, most=1_000), "Worker processes of one `tenure worker`."),
    Setting(
        "spares",
        "1",
        partial(values.whole, least=0, most=100),
        "Processes a supervisor keeps that have loaded Tenure, but not the app, to replace a dead worker sooner.",
    ),
    Setting("grace", "25s", values.length, "How long running jobs may continue after the first SIGTERM or Ctrl-C."),
    Setting("lease", "30s", _lease, "How long a worker may be silent before its jobs are rescued; 1s to 1h."),
    Setting(
        "poll_interval",
        "5s",
        partial(values.length, least=0.05, most=3600.0),
        "How often a worker with a free slot polls the store, whether or not the notifier rang.",
    ),
    Setting(
        "retry_max", "10", partial(values.whole, least=1, most=MOST_FAILURES), "Failures after which a job is dead."
    ),
    Setting("retry_base", "1s", values.length, "The wait after failure n is random, up to this × 2^n and the cap."),
    Setting("retry_cap", "30s", values.length, "The longest wait before a retry."),
    Setting("keep", "7d", _keep, "How long completed and cancelled jobs are kept; at least 1h."),
    Setting("keep_dead", None, _keep, "How long dead letters are kept; unset: until someone deletes them."),
    Setting("keep_history", "90d", _keep, "How long the tick history of schedules is kept; at least 1h."),
    Setting(
        "release",
        None,
        values.plain,
        "The app's release, any text. An older release, one seen earlier, changes no schedules. Unset: a hash of them.",
    ),
    Setting("max_payload", "256KiB", values.size, "The largest arguments of a job in the store, as JSON."),
    Setting("max_result", "256KiB", values.size, "The largest result of a job in the store, as JSON; or checkpoint."),
    Setting(
        "offload",
        None,
        values.bucket,
        "Where larger values are kept: file:///FOLDER, s3://BUCKET/FOLDER, gs:// or az://; unset: they are refused.",
    ),
    Setting("max_offloaded", "64MiB", values.size, "The largest value that may be offloaded."),
    Setting(
        "keep_offloaded",
        "2d",
        _keep_offloaded,
        "How long offloaded values are kept once no job has them; make it longer than the age of the oldest backup "
        "that you may restore.",
    ),
    Setting(
        "runtime_dir",
        None,
        values.folder,
        "Folder of notifier sockets; unset: $XDG_RUNTIME_DIR/tenure or /tmp/tenure-UID.",
    ),
    Setting(
        "listen",
        None,
        values.address,
        "HOST:PORT where `tenure dashboard` and `tenure demo --web` listen; unset: 127.0.0.1:3000.",
    ),
    Setting(
        "metrics_listen",
        None,
        values.address,
        "HOST:PORT where `tenure worker` serves /metrics and /healthz; unset: nowhere.",
        flag="--listen",  # a command has one address, so both commands call it the same
    ),
    Setting(
        "tokens",
        None,
        values.tokens,
        "Dashboard users: NAME:ROLE:SECRET, comma-separated. ROLE: read, operate or admin; read sees no payloads "
        "(read+payloads does, operate-payloads does not).",
        secret=True,
    ),
    Setting(
        "hosts",
        None,
        values.hosts,
        "Host names the dashboard accepts, comma-separated, besides this host's own name and any IP address.",
    ),
    Setting(
        "redact",
        ",".join(KEY_NAMES),
        values.key_names,
        "Values whose names contain one of these are shown as ***, in jobs and in their meta; none: nothing is hidden.",
    ),
    Setting(
        "alerts",
        "log",
        values.alerts,
        "Where alerts are sent, comma-separated: log, https://… (a webhook), or a URL of apprise (mailto://…).",
    ),
    Setting(
        "alert_secret", None, values.secret, "The key that signs webhooks (Standard Webhooks): whsec_…", secret=True
    ),
    Setting(
        "alert_every",
        "30s",
        partial(values.length, least=0.1, most=3600.0),
        "How often each supervisor checks for problems.",
    ),
    Setting(
        "alert_queue_age",
        "10m",
        partial(values.length, least=0.1),
        "An alert is sent when a due job has been queued for longer than this.",
    ),
    Setting(
        "alert_wait_age",
        "1d",
        partial(values.length, least=0.1),
        "An alert is sent when a job has waited for longer than this: for other jobs, for a signal without a time-out, "
        "or for a place of a limit.",
    ),
    Setting("log_level", "info", _level, "The lowest level that `tenure worker` logs."),
    Setting("log_jobs", "no", _yes, "Should `tenure worker` log a line for each job it completes? yes or no."),
    Setting("log_format", "text", _format, "The log format of `tenure worker`: text or json."),
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Settings:
    """The resolved settings. Durations are seconds, sizes are bytes; `sources` says where each value came from."""

    url: str
    password: str | None
    namespace: str
    notifier: str
    app: str | None
    queues: Mapping[str, int | None]  #: in order, with the cap of each (None: no cap); empty means all queues
    concurrency: int
    workers: int
    spares: int
    grace: float
    lease: float
    poll_interval: float
    retry_max: int
    retry_base: float
    retry_cap: float
    keep: float
    keep_dead: float | None
    keep_history: float
    release: str | None
    max_payload: int
    max_result: int
    offload: str | None
    max_offloaded: int
    keep_offloaded: float
    runtime_dir: Path
    listen: str | None
    metrics_listen: str | None
    tokens: tuple[Token, ...]
    hosts: tuple[str, ...]
    redact: tuple[str, ...]
    alerts: tuple[str, ...]  #: `sink_label` says what may be shown of each
    alert_secret: str | None
    alert_every: float
    alert_queue_age: float
    alert_wait_age: float
    log_level: str
    log_jobs: Literal["yes", "no"]
    log_format: Literal["text", "json"]
    sources: Mapping[str, str]
    relative_url: bool = False  #: the URL was given with a path relative to the current folder

    @property
    def largest_payload(self) -> int:
        """Bytes, wherever it is kept."""
        return self.max_payload if self.offload is None else max(self.max_payload, self.max_offloaded)

    @property
    def largest_result(self) -> int:
        """Bytes, wherever it is kept."""
        return self.max_result if self.offload is None else max(self.max_result, self.max_offloaded)

    def shown(self) -> list[tuple[Setting, str, str]]:
        """Each setting, its value as a person would write it (secrets starred), and where it came from."""
        return [(row, _spelled(row, getattr(self, row.name)), self.sources[row.name]) for row in SETTINGS]

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{row.name}={value}' for row, value, _ in self.shown())})"


def load(
    flags: Mapping[str, object] | None = None,
    code: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Resolve every setting: flag > code > environment > `.env` > default. A value of None counts as not given.

    Relative paths are taken from `folder` (None: the current one), and so is `.env`: a later `chdir` changes nothing.
    Raises InvalidOption that names the source of the bad value. Logs a warning, once per process, for an unknown
    TENURE_ name, and for a url in the code that overrides a different TENURE_URL.
    """
    environment = os.environ if environ is None else environ
    folder = folder or current_folder()
    dotenv = _read_dotenv(folder / ".env")
    _warn_of_unknown([*environment, *dotenv])

    given: dict[str, list[tuple[str, object]]] = {}
    for row in SETTINGS:
        found = (
            (row.flag, (flags or {}).get(row.name)),
            ("code", (code or {}).get(row.name)),
            (row.env, environment.get(row.env) or None),
            (".env", dotenv.get(row.env)),
            ("default", row.default),
        )
        given[row.name] = [(source, value) for source, value in found if value is not None]
    _warn_of_overridden_url(given["url"])

    resolved: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for row in SETTINGS:
        source, value = given[row.name][0] if given[row.name] else ("default", None)
        label = {"code": row.name, ".env": f"{row.env} in .env"}.get(source, source)
        resolved[row.name] = None if value is None else row.parse(value, label)
        sources[row.name] = source
    given_url, resolved["url"] = resolved["url"], _fixed(resolved["url"], folder)
    resolved["notifier"] = _fixed(resolved["notifier"], folder)
    resolved["queues"] = resolved["queues"] or {}
    resolved["tokens"] = resolved["tokens"] or ()
    resolved["hosts"] = resolved["hosts"] or ()
    resolved["runtime_dir"] = folder / (resolved["runtime_dir"] or _runtime_dir(environment))
    changed = given_url != resolved["url"]  # also `//` and `/./`, in a path that is absolute
    relative = changed and given_url.startswith("sqlite:///") and not given_url.startswith("sqlite:////")
    return Settings(**resolved, sources=sources, relative_url=relative)


def current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was deleted: what needs a file there says so
        return Path("/proc/self/cwd")


def _fixed(url: str, folder: Path) -> str:
    """The URL with absolute paths: its SQLite file, and the certificates and keys that it names.

    >>> _fixed("sqlite:///tenure.db", Path("/srv")), _fixed("redis://h/0?ssl_ca_certs=ca.pem", Path("/srv"))
    ('sqlite:////srv/tenure.db', 'redis://h/0?ssl_ca_certs=/srv/ca.pem')
    """
    if url.startswith("sqlite:///") and (name := url.removeprefix("sqlite:///")) not in ("", ":memory:"):
        return f"sqlite:///{folder / name}"
    return _FILE_QUERY.sub(lambda found: f"{found[1]}{quote(str(folder))}/{found[2]}", url)


def is_file(path: Path) -> bool:
    """False also in a folder that is not ours to enter, where pathlib raises before Python 3.14."""
    try:
        return path.is_file()
    except PermissionError:
        return False


def _read_dotenv(path: Path) -> dict[str, str]:
    if not is_file(path):
        return {}
    from dotenv import dotenv_values

    try:
        found = dotenv_values(path, interpolate=False)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{path}: expected a readable UTF-8 file of NAME=value lines: {error}") from error
    return {name: value for name, value in found.items() if name.startswith(PREFIX) and value}


def _runtime_dir(environment: Mapping[str, str]) -> Path:
    own = environment.get("XDG_RUNTIME_DIR")
    return Path(own) / "tenure" if own else Path(f"/tmp/tenure-{os.getuid()}")


def _warn_of_unknown(names: Iterable[str]) -> None:
    known = [row.env for row in SETTINGS]
    for name in names:
        if name.startswith(PREFIX) and name not in known and not _IGNORED.fullmatch(name):
            near = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {near[0]}?" if near else "tenure check --config lists all settings"
            _warn_once(f"{name} is not a setting and is ignored; {advice}")


def _warn_of_overridden_url(given: list[tuple[str, object]]) -> None:
    (source, value), rest = given[0], given[1:]
    others = [(name, url) for name, url in rest if name != "default" and url != value]
    if source == "code" and others:
        name, other = others[0]
        where = "TENURE_URL" if name != ".env" else "TENURE_URL in .env"
        _warn_once(
            f"url: the code says {redact(str(value))}, {where} says {redact(str(other))}; the code wins. "
            "Write Tenure() to let the environment decide."
        )


def setting_named(name: str) -> str:
    """Where to give the setting with a name like this; empty if there is none."""
    near = difflib.get_close_matches(name, [row.name for row in SETTINGS], n=1)
    return near[0] and f"it may be {PREFIX}{near[0].upper()}, in the environment or .env" if near else ""


@cache
def _warn_once(sentence: str) -> None:
    logger("tenure.config").warning(sentence)


def _spelled(row: Setting, value: object) -> str:
    if row.secret and value:
        return "***"
    match value:
        case None:
            return "unset"
        case float():
            return spell(value)
        case dict():
            caps = cast("dict[str, int | None]", value)
            return ",".join(name if cap is None else f"{name}={cap}" for name, cap in caps.items()) or "all"
        case tuple() if row.parse is values.alerts:
            return ",".join(map(sink_label, cast("tuple[str, ...]", value))) or "none"
        case tuple():
            return ",".join(cast("tuple[str, ...]", value)) or ("none" if row.default else "unset")
        case int() if row.parse is values.size:
            return next(f"{value // size}{unit}" for unit, size in values.BYTES.items() if value % size == 0)
        case _:
            return redact(str(value))
