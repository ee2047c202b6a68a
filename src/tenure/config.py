"""Every setting, defined once: `SETTINGS` feeds `Settings`, the environment, `--help`, `.env.example` and the docs.

A value is taken from the first of: flag, code, environment, `.env` of the current folder, default.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, cast, get_args
from urllib.parse import quote

from tenure.core.durations import seconds, spell
from tenure.core.lifecycle import GUARD
from tenure.errors import InvalidOption

PREFIX = "TENURE_"
DJANGO_APP = "tenure.django:jobs"  #: the app of every Django project
Role = Literal["read", "operate", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)  #: in rising order: each includes the rights of those before it
#: parts of names whose values are secret, unless the setting `redact` says otherwise
KEY_NAMES = ("password", "passwd", "secret", "token", "api_key", "apikey", "authorization", "cookie", "private_key")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}", re.ASCII)
_NAMESPACE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}", re.ASCII)
_SIZE = re.compile(r"(\d+)\s*(KiB|MiB|B)?", re.ASCII)
_ADDRESS = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9][a-z0-9_.-]*):(?P<port>\d{1,5})", re.ASCII | re.IGNORECASE)
_ROLE = re.compile(rf"({'|'.join(ROLES)})([+-]payloads)?", re.ASCII)
_TOKEN = re.compile(r"(?P<name>[^:]+):(?P<role>[^:]+):(?P<secret>[!-+\--~]{16,256})", re.ASCII)  # no comma in a secret
_HOST = re.compile(r"[a-z0-9]([a-z0-9_.-]{0,251}[a-z0-9])?|\[?[0-9a-f:.]*:[0-9a-f:.]*\]?", re.ASCII)
_KEY_NAME = re.compile(r"[^\s,]{1,100}")
_BETWEEN_SINKS = re.compile(r"[,\s]+(?=log(?:[,\s]|$)|[A-Za-z][A-Za-z0-9+.-]*://|$)")  # a URL may have commas itself
_BYTES = {"MiB": 1 << 20, "KiB": 1 << 10, "B": 1, None: 1}
_USER_PART = re.compile(r"(://[^\s:@/?#]*):\S*@")
_SECRET_QUERY = re.compile(r"([?&](?:ssl|sentinel_)?(?:password|passwd|pwd|token)=)[^&\s]*", re.IGNORECASE)
# Files that libpq, redis-py or the NATS notifier would look for in the current folder. One with %XX stays as it is.
_FILE_QUERY = re.compile(
    r"([?&](?:ssl(?:root)?cert|sslkey|sslcrl|passfile|ssl_(?:ca_certs|certfile|keyfile)|creds)=)"
    r"(?!system(?:&|$))([^/&%~][^&%]*)(?=&|$)"
)
# A Kubernetes Service called tenure or tenure-web puts such names into every pod of its namespace.
_IGNORED = re.compile(r"TENURE_(HOST_ID|TEST_.*|(.*_)?SERVICE_.*|(.*_)?PORT(_.*)?)")


def redact(url: str) -> str:
    """The URL, or a text with URLs in it, without its passwords. In doubt it hides more rather than less.

    >>> redact("postgresql://shop:s3cret@db.local/shop?sslpassword=x")
    'postgresql://shop:***@db.local/shop?sslpassword=***'
    """
    return _SECRET_QUERY.sub(r"\1***", _USER_PART.sub(r"\1:***@", url))


def valid_name(value: object, what: str) -> str:
    """The unchanged name of a queue or task. Raises InvalidOption that says what a valid name looks like."""
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise InvalidOption(f"{what}: expected letters, digits and _ . - (at most 100, a letter or _ first), got {value!r}")


def valid_queue(value: object, what: str = "queue") -> str:
    """The unchanged name of a queue. `guard` is reserved: its jobs run outside workers, under a guard."""
    name = valid_name(value, what)
    if name == GUARD:
        raise InvalidOption(f"{what}: {GUARD!r} is reserved for guards, and no worker claims from it; use another name")
    return name


# ── Parsers: (value, label) → the value in Settings. The input is text, or the Python value a caller passes. ───────


def _text(value: object, label: str) -> str:
    if not isinstance(value, str):
        raise InvalidOption(f"{label}: expected text, got {value!r}")
    return value


def _url(value: object, label: str) -> str:
    text = _text(value, label)
    if ":" not in text:
        like = f"sqlite:///{text}" if text.startswith("/") else f"sqlite:///{text} (relative) or sqlite:////srv/{text}"
        raise InvalidOption(f"{label}: expected a URL like {like}, got {text!r}")
    return text


def _namespace(value: object, label: str) -> str:
    if isinstance(value, str) and _NAMESPACE.fullmatch(value):
        return value
    raise InvalidOption(f"{label}: expected letters, digits, _ and - (at most 63, a letter or _ first), got {value!r}")


def _whole(value: object, label: str, *, least: int, most: int) -> int:
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value.strip(), re.ASCII):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    raise InvalidOption(f"{label}: expected a whole number from {least} to {most}, got {value!r}")


def _seconds(value: object, label: str, *, least: float = 0.0, most: float | None = None, why: str = "") -> float:
    length = seconds(value, label)
    if length < least or (most is not None and length > most):
        bounds = f"at least {spell(least)}" if most is None else f"{spell(least)} to {spell(most)}"
        raise InvalidOption(f"{label}: expected {bounds}{why and f' ({why})'}, got {value}")
    return length


def _size(value: object, label: str) -> int:
    match = _SIZE.fullmatch(str(value).strip()) if isinstance(value, str | int) else None
    size = int(match[1]) * _BYTES[match[2]] if match else 0
    if 1024 <= size <= 64 << 20:
        return size
    raise InvalidOption(f"{label}: expected a size from 1KiB to 64MiB like 256KiB, 1MiB or 262144, got {value!r}")


def _choice(value: object, label: str, *, among: tuple[str, ...]) -> str:
    if isinstance(value, str) and value.lower() in among:
        return value.lower()
    raise InvalidOption(f"{label}: expected one of {', '.join(among)}, got {value!r}")


def _queues(value: object, label: str) -> dict[str, int | None]:
    if isinstance(value, str):
        value = value.split(",")
    caps: dict[str, int | None] = {}
    for item in cast("list[object]", value) if isinstance(value, list | tuple) else ():
        name, equals, cap = _text(item, label).strip().partition("=")
        if "," in name:
            each = " ".join(f"-q {part.strip()}" for part in name.split(","))
            raise InvalidOption(f"{label}: expected the name of one queue, got {name!r}; give each on its own: {each}")
        if name in caps:
            raise InvalidOption(f"{label}: queue {name!r} is named twice")
        caps[valid_queue(name, label)] = _whole(cap, f"{label}: {name}", least=1, most=10_000) if equals else None
    if not caps:
        raise InvalidOption(f"{label}: expected names like analysis=2,default (=2: at most two slots), got {value!r}")
    return caps


def _address(value: object, label: str) -> str:
    match = _ADDRESS.fullmatch(value.strip()) if isinstance(value, str) else None
    if match and int(match["port"]) <= 65_535:
        return match[0]
    raise InvalidOption(
        f"{label}: expected HOST:PORT like 127.0.0.1:9100 or [::1]:9100 (0.0.0.0:9100 is every address of this "
        f"machine, port 0 any free one), got {value!r}"
    )


def host_and_port(listen: str) -> tuple[str, int]:
    """The two parts of a `listen` setting.

    >>> host_and_port("[::1]:9100")
    ('::1', 9100)
    """
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


def _alerts(value: object, label: str) -> tuple[str, ...]:
    sinks = tuple(dict.fromkeys(filter(None, _BETWEEN_SINKS.split(_text(value, label).strip()))))
    for sink in sinks:
        if sink != "log" and not all(sink.partition("://")):
            raise InvalidOption(
                f"{label}: expected log, https://HOST/PATH (a webhook), or a URL of apprise like mailto://…, separated "
                f"by commas; one of them is invalid (it is not shown: it may be secret)"
            )
    return sinks


def sink_label(sink: str) -> str:
    """The part of a sink's URL that may be shown: a webhook's host, an apprise URL's scheme; the rest may be secret.

    >>> sink_label("https://me:s3cret@hooks.local:8443/T0/x?key=y"), sink_label("slack://T0/B0/x")
    ('https://hooks.local:8443/…', 'slack://…')
    """
    scheme, _, rest = sink.partition("://")
    if sink == "log":
        return sink
    host = re.split(r"[/?#]", rest)[0].rpartition("@")[2] + "/" if scheme.lower() in ("http", "https") else ""
    return f"{scheme}://{host}…"


def _secret(value: object, label: str) -> str:
    text = _text(value, label)
    with suppress(binascii.Error, ValueError):
        if len(base64.b64decode(text.removeprefix("whsec_"), validate=True)) >= 24:
            return text
    raise InvalidOption(
        f'{label}: expected whsec_ and at least 24 bytes in base64; make one: echo "whsec_$(openssl rand -base64 32)"'
    )


@dataclass(frozen=True, slots=True)
class Token:
    """A dashboard user, identified by this secret, and their rights."""

    name: str
    role: Role
    payloads: bool  #: may see arguments, results and log lines
    secret: str = field(repr=False)


def role_of(text: str) -> tuple[Role, bool] | None:
    """A role, and whether it sees payloads; None if the text is not a role.

    >>> role_of("operate"), role_of("read"), role_of("read+payloads")
    (('operate', True), ('read', False), ('read', True))
    """
    match = _ROLE.fullmatch(text)
    if match is None:
        return None
    role = cast(Role, match[1])
    return role, match[2] == "+payloads" if match[2] else role != "read"


def _tokens(value: object, label: str) -> tuple[Token, ...]:
    found = dict[str, Token]()
    for number, text in enumerate(_split(value, label), 1):
        match = _TOKEN.fullmatch(text)
        rights = role_of(match["role"]) if match else None
        if match is None or rights is None:
            raise InvalidOption(
                f"{label}: expected NAME:ROLE:SECRET, with commas between several. ROLE is read, operate or admin (or "
                f"read+payloads, operate-payloads), SECRET has 16 characters or more. Number {number} is invalid "
                f"(it is not shown: it may be secret); make a secret: openssl rand -hex 24"
            )
        token = Token(valid_name(match["name"], f"{label}: the name of number {number}"), *rights, match["secret"])
        if token.name in found or token.secret in {each.secret for each in found.values()}:
            raise InvalidOption(f"{label}: number {number} repeats the name or the secret of an earlier one")
        found[token.name] = token
    return tuple(found.values())


def _hosts(value: object, label: str) -> tuple[str, ...]:
    hosts = [text.lower().rstrip(".") for text in _split(value, label)]
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise InvalidOption(
                f"{label}: expected names like jobs.example.com, with commas between several, without https:// and "
                f"without a port, got {host!r}"
            )
    return tuple(dict.fromkeys(host.strip("[]") for host in hosts))


def _key_names(value: object, label: str) -> tuple[str, ...]:
    names = _split(value, label)
    if names == ["none"]:
        return ()
    for name in names:
        if not _KEY_NAME.fullmatch(name):
            raise InvalidOption(f"{label}: expected parts of names like password,api_key (or none), got {name!r}")
    return tuple(dict.fromkeys(names))


def _split(value: object, label: str) -> list[str]:
    if isinstance(value, list | tuple):
        return [_text(each, label).strip() for each in cast("list[object]", value)]
    return [text for each in _text(value, label).split(",") if (text := each.strip())]


def _folder(value: object, label: str) -> Path:
    if isinstance(value, str | Path) and str(value):
        return Path(value).expanduser()
    raise InvalidOption(f"{label}: expected a folder, got {value!r}")


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


_lease = partial(_seconds, least=1.0, most=3600.0, why="a worker silent for that long loses its jobs")
_keep = partial(_seconds, least=3600.0, why="a repeated enqueue must still find the first one")
_level = partial(_choice, among=("debug", "info", "warning", "error", "critical"))
_format = partial(_choice, among=("text", "json"))
_yes = partial(_choice, among=("yes", "no"))

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "url",
        "sqlite:///tenure.db",
        _url,
        "The store: sqlite:///a.db (this folder), sqlite:////srv/a.db, postgresql://user@host/db or redis://host:6379/0.",
    ),
    Setting("password", None, _text, "The store's password, to keep it out of the URL.", secret=True),
    Setting("namespace", "tenure", _namespace, "Schema or key prefix, for several engines in one database server."),
    Setting(
        "notifier",
        "auto",
        _text,
        "The notifier: auto (the store's own), poll, nats://host:port?ack_wait=10m, redis://… or a direct postgresql://…",
    ),
    Setting("app", None, _text, "The app that defines the tasks: module[:attribute]."),
    Setting("queues", None, _queues, "Queues to work on, in order: analysis=2,default (=2: at most two slots)."),
    Setting("concurrency", "5", partial(_whole, least=1, most=10_000), "Slots of a worker: jobs it runs at once."),
    Setting("workers", "1", partial(_whole, least=1, most=1_000), "Worker processes of one `tenure worker`."),
    Setting(
        "spares",
        "1",
        partial(_whole, least=0, most=100),
        "Processes a supervisor keeps that have loaded Tenure, but not the app, to replace a dead worker sooner.",
    ),
    Setting("grace", "25s", _seconds, "How long running jobs may continue after the first SIGTERM or Ctrl-C."),
    Setting("lease", "30s", _lease, "How long a worker may be silent before its jobs are rescued; 1s to 1h."),
    Setting(
        "poll_interval",
        "5s",
        partial(_seconds, least=0.05, most=3600.0),
        "How often a worker with a free slot polls the store, whether or not the notifier rang.",
    ),
    Setting("retry_max", "10", partial(_whole, least=1, most=1_000_000), "Failures after which a job is dead."),
    Setting("retry_base", "1s", _seconds, "The wait after failure n is random, up to this × 2^n and the cap."),
    Setting("retry_cap", "30s", _seconds, "The longest wait before a retry."),
    Setting("keep", "7d", _keep, "How long completed and cancelled jobs are kept; at least 1h."),
    Setting("keep_dead", None, _keep, "How long dead letters are kept; unset: until someone deletes them."),
    Setting("keep_history", "90d", _keep, "How long the tick history of schedules is kept; at least 1h."),
    Setting(
        "release",
        None,
        _text,
        "The app's release, any text. An older release, one seen earlier, changes no schedules. Unset: a hash of them.",
    ),
    Setting("max_payload", "256KiB", _size, "The largest arguments of a job, as JSON."),
    Setting("max_result", "256KiB", _size, "The largest result of a job, as JSON."),
    Setting(
        "runtime_dir", None, _folder, "Folder of notifier sockets; unset: $XDG_RUNTIME_DIR/tenure or /tmp/tenure-UID."
    ),
    Setting(
        "listen",
        None,
        _address,
        "HOST:PORT where `tenure dashboard` and `tenure demo --web` listen; unset: 127.0.0.1:3000.",
    ),
    Setting(
        "metrics_listen",
        None,
        _address,
        "HOST:PORT where `tenure worker` serves /metrics and /healthz; unset: nowhere.",
        flag="--listen",  # a command has one address, so both commands call it the same
    ),
    Setting(
        "tokens",
        None,
        _tokens,
        "Dashboard users: NAME:ROLE:SECRET, comma-separated. ROLE: read, operate or admin; read sees no payloads "
        "(read+payloads does, operate-payloads does not).",
        secret=True,
    ),
    Setting(
        "hosts",
        None,
        _hosts,
        "Host names the dashboard accepts, comma-separated, besides this host's own name and any IP address.",
    ),
    Setting(
        "redact",
        ",".join(KEY_NAMES),
        _key_names,
        "Values whose names contain one of these are shown as ***, in jobs and in their meta; none: nothing is hidden.",
    ),
    Setting(
        "alerts",
        "log",
        _alerts,
        "Where alerts are sent, comma-separated: log, https://… (a webhook), or a URL of apprise (mailto://…).",
    ),
    Setting("alert_secret", None, _secret, "The key that signs webhooks (Standard Webhooks): whsec_…", secret=True),
    Setting(
        "alert_every",
        "30s",
        partial(_seconds, least=0.1, most=3600.0),
        "How often each supervisor checks for problems.",
    ),
    Setting(
        "alert_queue_age",
        "10m",
        partial(_seconds, least=0.1),
        "An alert is sent when a due job has been queued for longer.",
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
    log_level: str
    log_jobs: Literal["yes", "no"]
    log_format: Literal["text", "json"]
    sources: Mapping[str, str]
    relative_url: bool = False  #: the URL was given with a path relative to the folder at hand

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

    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for row in SETTINGS:
        source, value = given[row.name][0] if given[row.name] else ("default", None)
        label = {"code": row.name, ".env": f"{row.env} in .env"}.get(source, source)
        values[row.name] = None if value is None else row.parse(value, label)
        sources[row.name] = source
    given_url, values["url"] = values["url"], _fixed(values["url"], folder)
    values["notifier"] = _fixed(values["notifier"], folder)
    values["queues"] = values["queues"] or {}
    values["tokens"] = values["tokens"] or ()
    values["hosts"] = values["hosts"] or ()
    values["runtime_dir"] = folder / (values["runtime_dir"] or _runtime_dir(environment))
    relative = given_url.startswith("sqlite:///") and given_url != values["url"]
    return Settings(**values, sources=sources, relative_url=relative)


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


def _read_dotenv(path: Path) -> dict[str, str]:
    if not path.is_file():
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
    """Where a setting of about this name is given; empty if there is none."""
    near = difflib.get_close_matches(name, [row.name for row in SETTINGS], n=1)
    return near[0] and f"it may be {PREFIX}{near[0].upper()}, in the environment or .env" if near else ""


@cache
def _warn_once(sentence: str) -> None:
    logging.getLogger("tenure.config").warning(sentence)


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
        case tuple() if row.parse is _alerts:
            return ",".join(map(sink_label, cast("tuple[str, ...]", value))) or "none"
        case tuple():
            return ",".join(cast("tuple[str, ...]", value)) or ("none" if row.default else "unset")
        case int() if row.parse is _size:
            return next(f"{value // size}{unit}" for unit, size in _BYTES.items() if value % size == 0)
        case _:
            return redact(str(value))
