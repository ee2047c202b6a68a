"""The values of settings: one parser each, (value, label) → the value in `Settings`; and what may be shown of them."""

from __future__ import annotations

import base64
import binascii
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

from tenure.core.durations import seconds, spell
from tenure.core.lifecycle import GUARD
from tenure.errors import InvalidOption

Role = Literal["read", "operate", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)  #: in rising order: each includes the rights of those before it
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}", re.ASCII)
_NAMESPACE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}", re.ASCII)
_SIZE = re.compile(r"(\d+)\s*(KiB|MiB|B)?", re.ASCII)
_ADDRESS = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9][a-z0-9_.-]*):(?P<port>\d{1,5})", re.ASCII | re.IGNORECASE)
_ROLE = re.compile(rf"({'|'.join(ROLES)})([+-]payloads)?", re.ASCII)
_TOKEN = re.compile(r"(?P<name>[^:]+):(?P<role>[^:]+):(?P<secret>[!-+\--~]{16,256})", re.ASCII)  # no comma in a secret
_HOST = re.compile(r"[a-z0-9]([a-z0-9_.-]{0,251}[a-z0-9])?|\[?[0-9a-f:.]*:[0-9a-f:.]*\]?", re.ASCII)
_BUCKET = re.compile(r"(file:///[^?#]|(s3|gs|az)://[^\s/?#@:]+(/|$))[^?#]*$", re.ASCII)
_KEY_NAME = re.compile(r"[^\s,]{1,100}")
_BETWEEN_SINKS = re.compile(r"[,\s]+(?=log(?:[,\s]|$)|[A-Za-z][A-Za-z0-9+.-]*://|$)")  # a URL may have commas itself
BYTES = {"MiB": 1 << 20, "KiB": 1 << 10, "B": 1, None: 1}
_USER_PART = re.compile(r"(://[^\s:@/?#]*):\S*@")
_SECRET_QUERY = re.compile(r"([?&](?:ssl|sentinel_)?(?:password|passwd|pwd|token)=)[^&\s]*", re.IGNORECASE)


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


def bucket(value: object, label: str) -> str:
    text = plain(value, label)
    if _BUCKET.match(text):
        return text
    raise InvalidOption(
        f"{label}: expected file:///FOLDER, s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or az://CONTAINER/FOLDER, "
        f"got {redact(text)!r}"
    )


def plain(value: object, label: str) -> str:
    if not isinstance(value, str):
        raise InvalidOption(f"{label}: expected text, got {value!r}")
    return value


def url(value: object, label: str) -> str:
    text = plain(value, label)
    if ":" not in text:
        like = f"sqlite:///{text}" if text.startswith("/") else f"sqlite:///{text} (relative) or sqlite:////srv/{text}"
        raise InvalidOption(f"{label}: expected a URL like {like}, got {text!r}")
    return text


def namespace(value: object, label: str) -> str:
    if isinstance(value, str) and _NAMESPACE.fullmatch(value):
        return value
    raise InvalidOption(f"{label}: expected letters, digits, _ and - (at most 63, a letter or _ first), got {value!r}")


def whole(value: object, label: str, *, least: int, most: int) -> int:
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value.strip(), re.ASCII):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    raise InvalidOption(f"{label}: expected a whole number from {least} to {most}, got {value!r}")


def length(value: object, label: str, *, least: float = 0.0, most: float | None = None, why: str = "") -> float:
    given = seconds(value, label)
    if given < least or (most is not None and given > most):
        bounds = f"at least {spell(least)}" if most is None else f"{spell(least)} to {spell(most)}"
        raise InvalidOption(f"{label}: expected {bounds}{why and f' ({why})'}, got {value}")
    return given


def size(value: object, label: str) -> int:
    match = _SIZE.fullmatch(str(value).strip()) if isinstance(value, str | int) else None
    found = int(match[1]) * BYTES[match[2]] if match else 0
    if 1024 <= found <= 64 << 20:
        return found
    raise InvalidOption(f"{label}: expected a size from 1KiB to 64MiB like 256KiB, 1MiB or 262144, got {value!r}")


def choice(value: object, label: str, *, among: tuple[str, ...]) -> str:
    if isinstance(value, str) and value.lower() in among:
        return value.lower()
    raise InvalidOption(f"{label}: expected one of {', '.join(among)}, got {value!r}")


def queues(value: object, label: str) -> dict[str, int | None]:
    if isinstance(value, str):
        value = value.split(",")
    caps: dict[str, int | None] = {}
    for item in cast("list[object]", value) if isinstance(value, list | tuple) else ():
        name, equals, cap = plain(item, label).strip().partition("=")
        if "," in name:
            each = " ".join(f"-q {part.strip()}" for part in name.split(","))
            raise InvalidOption(f"{label}: expected the name of one queue, got {name!r}; give each on its own: {each}")
        if name in caps:
            raise InvalidOption(f"{label}: queue {name!r} is named twice")
        caps[valid_queue(name, label)] = whole(cap, f"{label}: {name}", least=1, most=10_000) if equals else None
    if not caps:
        raise InvalidOption(f"{label}: expected names like analysis=2,default (=2: at most two slots), got {value!r}")
    return caps


def address(value: object, label: str) -> str:
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


def alerts(value: object, label: str) -> tuple[str, ...]:
    sinks = tuple(dict.fromkeys(filter(None, _BETWEEN_SINKS.split(plain(value, label).strip()))))
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


def secret(value: object, label: str) -> str:
    text = plain(value, label)
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


def tokens(value: object, label: str) -> tuple[Token, ...]:
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


def hosts(value: object, label: str) -> tuple[str, ...]:
    found = [name.lower().rstrip(".") for name in _split(value, label)]
    for host in found:
        if not _HOST.fullmatch(host):
            raise InvalidOption(
                f"{label}: expected names like jobs.example.com, with commas between several, without https:// and "
                f"without a port, got {host!r}"
            )
    return tuple(dict.fromkeys(host.strip("[]") for host in found))


def key_names(value: object, label: str) -> tuple[str, ...]:
    names = _split(value, label)
    if names == ["none"]:
        return ()
    for name in names:
        if not _KEY_NAME.fullmatch(name):
            raise InvalidOption(f"{label}: expected parts of names like password,api_key (or none), got {name!r}")
    return tuple(dict.fromkeys(names))


def _split(value: object, label: str) -> list[str]:
    if isinstance(value, list | tuple):
        return [plain(each, label).strip() for each in cast("list[object]", value)]
    return [text for each in plain(value, label).split(",") if (text := each.strip())]


def folder(value: object, label: str) -> Path:
    if isinstance(value, str | Path) and str(value):
        return Path(value).expanduser()
    raise InvalidOption(f"{label}: expected a folder, got {value!r}")
