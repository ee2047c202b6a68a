"""The address of a Redis, parsed from a URL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from tenure.errors import InvalidOption

Address = tuple[str, int]  #: host and port; the path of a socket and 0

_SHAPE = "redis://[USER:PASSWORD@]HOST[:PORT][,HOST…][/DATABASE]"
_URL = re.compile(r"([a-zA-Z+]+)://([^/?]*)([^?]*)(?:\?(.*))?")
_DROPPED = dict.fromkeys(map(ord, "\t\r\n"))  #: as all URL parsers do
_SCHEMES = {
    "redis": False,
    "valkey": False,
    "unix": False,
    "rediss": True,
    "valkeys": True,
    "redis+sentinel": False,
    "valkey+sentinel": False,
    "rediss+sentinel": True,
    "valkeys+sentinel": True,
}
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_CERT_REQS = ("required", "optional", "none")
_PASSWORD_OPTIONS = ("sentinel_password",)
_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_OPTIONS = (*_TLS_OPTIONS, *_PASSWORD_OPTIONS, "sentinel_username")


@dataclass(frozen=True, slots=True, repr=False)
class Place:
    """A parsed URL. It contains the password, so it is never printed."""

    hosts: tuple[Address, ...]  #: of one server, of some nodes of a cluster, or of the Sentinels
    service: str  #: the name that the Sentinels know; empty: no Sentinels
    secure: bool
    login: Mapping[str, Any]
    sentinel_login: Mapping[str, Any]
    tls: Mapping[str, Any]


def read(url: str, password: str | None) -> tuple[Place, str]:
    """The parsed URL, and the URL without its password, for people."""
    found = _read(url, password)
    if found is None:  # raised here, outside of any exception whose text may repeat a password
        raise InvalidOption(
            f"url: expected {_SHAPE}, rediss:// for TLS, redis+sentinel://HOST[,HOST…]/SERVICE[/DATABASE], or "
            "unix://[USER:PASSWORD@]/PATH/OF/SOCKET[?db=DATABASE]; got one that can't be read. "
            "In a password write %40 for @, %2F for /, %3A for : and %23 for #"
        )
    return found


def _read(url: str, password: str | None) -> tuple[Place, str] | None:
    try:
        scheme, place, where, query = _parts(url)
        secure = _SCHEMES[scheme]
        user, _, hosts = place.rpartition("@")
        name, _, secret = user.partition(":")
        options = dict(parse_qsl(query, strict_parsing=True)) if query else {}
        path = [unquote(each) for each in where.split("/") if each]
        service = path.pop(0) if "+" in scheme else ""
        addresses: tuple[Address, ...]
        if scheme == "unix":
            addresses, database = (_socket(hosts, where),), options.pop("db", "0")
        else:
            addresses = tuple(_address(host, sentinel="+" in scheme) for host in hosts.split(","))
            (database,) = path or ["0"]
    except (ValueError, KeyError, IndexError):
        return None
    if "#" in url or not re.fullmatch(r"\d{1,9}", database, re.ASCII):
        return None
    login: dict[str, Any] = {"db": int(database)}
    strange = sorted(options.keys() - set(_OPTIONS))
    if strange:
        raise InvalidOption(f"url: expected only the options {', '.join(_OPTIONS)} after the ?, got {strange[0]!r}")
    login |= {"username": _utf_8(name) or None, "password": password or _utf_8(secret) or None}
    if re.search("[\ud800-\udfff]", f"{login['username']}{login['password']}"):
        raise InvalidOption("url: expected a user and a password (TENURE_PASSWORD) in UTF-8, got other bytes")
    if not secure and any(name in options for name in _TLS_OPTIONS):
        raise InvalidOption("url: expected the options ssl_… with rediss:// only: this connection would not use TLS")
    sentinel = {
        "username": options.pop("sentinel_username", None),
        "password": options.pop("sentinel_password", None),
    }
    shown = f"{scheme}://{quote(unquote(name)) + '@' if name else ''}{hosts}{where}"
    if scheme == "unix" and database != "0":
        shown += f"?db={database}"
    return Place(addresses, service, secure, login, sentinel, _tls(options)), shown


def _utf_8(text: str) -> str:
    """The text with its %xx decoded; bytes that are not UTF-8 become surrogates, which are refused."""
    return unquote(text, errors="surrogateescape")


def _parts(url: str) -> tuple[str, str, str, str]:
    """Scheme, hosts, path, query. Not with `urlsplit`: newer versions refuse several hosts if one is IPv6."""
    found = _URL.fullmatch(url.translate(_DROPPED).strip())
    if found is None:
        raise ValueError
    scheme, place, path, query = found.groups("")
    return scheme.lower(), place, path, query


def _address(host: str, *, sentinel: bool) -> Address:
    found = re.fullmatch(r"(\[[^\]]+\]|[^:\[\]@/]+)(?::(\d{1,5}))?", host)
    if found is None:
        raise ValueError
    port = int(found[2] or (26379 if sentinel else 6379))
    if not 0 < port < 65536:
        raise ValueError
    name = found[1].strip("[]")
    name.encode("idna")  # a UnicodeError, which is a ValueError, for an empty label or one that is too long
    return name, port


def _socket(host: str, path: str) -> Address:
    if host or len(path) < 2:  # else a relative path would be taken for a host
        raise ValueError
    return unquote(path), 0


def _tls(options: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = dict(options)
    for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        if name in options and not Path(options[name]).is_file():
            raise InvalidOption(f"url: {name}: expected a file, got {options[name]!r}")
    if options.get("ssl_cert_reqs", "required") not in _CERT_REQS:
        raise InvalidOption(f"url: ssl_cert_reqs: expected {', '.join(_CERT_REQS)}, got {options['ssl_cert_reqs']!r}")
    if "ssl_check_hostname" in options:
        word = options["ssl_check_hostname"].lower()
        if word not in _WORDS:
            raise InvalidOption(f"url: ssl_check_hostname: expected yes or no, got {word!r}")
        found["ssl_check_hostname"] = _WORDS[word]
    return found
