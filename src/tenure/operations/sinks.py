"""Alert sinks: a webhook, or any service that apprise supports, e-mail among them.

Their URLs are secrets: logs, errors, jobs and reprs show only what `sink_label` returns.
"""

from __future__ import annotations

import base64
import hmac
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from importlib import import_module
from typing import Any, Literal, Protocol, get_args
from urllib.parse import quote, unquote, urlsplit

import msgspec

from tenure.config import Settings, sink_label
from tenure.core.lifecycle import ALERT, ALERTS
from tenure.core.text import install
from tenure.errors import InvalidOption, TenureError

LOG = "log"
QUEUE = ALERTS
TASK = ALERT
SEND_SECONDS = 10.0
SERVICE_SECONDS = 1.0  #: between two messages to an apprise service, which may itself wait for up to 5.5

#: In the order in which to mend them: what comes first may be the cause of what comes later.
Kind = Literal[
    "scheduler-silent",
    "queue-paused",
    "limit-paused",
    "no-worker",
    "slots-held",
    "admission-held",
    "duty-late",
    "wait-lost",
    "stuck-jobs",
    "too-long",
    "arguments-misfit",
    "key-missing",
    "value-missing",
    "dead-letters",
    "flow-held",
    "failures",
    "queue-age",
    "limit-behind",
    "waits-long",
    "late",
    "overdue",
]


KINDS: tuple[Kind, ...] = get_args(Kind)
#: Kinds that the previous release does not know, each with the nearest one that it does.
OLDER: Mapping[str, Kind] = {
    "slots-held": "queue-age",
    "stuck-jobs": "too-long",
    "queue-paused": "queue-age",
    "key-missing": "arguments-misfit",
    "value-missing": "arguments-misfit",
    "admission-held": "no-worker",
    "flow-held": "dead-letters",
    "waits-long": "queue-age",
    "wait-lost": "queue-age",
    "limit-paused": "queue-age",
    "limit-behind": "queue-age",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A problem that was detected. It is kept in the store while it is open."""

    id: str
    key: str  #: the key of its problem
    kind: str  #: one of `KINDS`, or one that only a newer release knows
    subject: str
    says: str
    store: str
    opened_at: datetime
    gone_at: datetime | None = None  #: when the problem was first found to be gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a sink receives. A webhook gets exactly this, as JSON."""

    type: Literal["incident.opened", "incident.closed"]
    timestamp: datetime
    title: str
    text: str
    data: Incident


class Undelivered(TenureError):
    """A sink did not accept a message. The text contains no secrets."""


class Sink(Protocol):
    """One destination. `send` returns once the message is accepted, and raises Undelivered if it is not."""

    @property
    def label(self) -> str: ...

    def send(self, message_id: str, message: Message) -> None: ...


def open_sinks(settings: Settings) -> dict[str, Sink]:
    """The sinks of `alerts` except the log, each under a short name that a job may carry. Raises InvalidOption."""
    secret = settings.alert_secret
    return {
        sha256(url.encode()).hexdigest()[:8]: Webhook(url, secret) if _is_web(url) else Service(url)
        for url in settings.alerts
        if url != LOG
    }


def _is_web(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


def signature(secret: str, message_id: str, at: str, body: bytes) -> str:
    """The header `webhook-signature` of a message sent `at` this Unix time."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{message_id}.{at}.".encode() + body, "sha256")
    return f"v1,{base64.b64encode(digest).decode()}"


class Webhook:
    """A URL that gets each message as a JSON POST, signed as standardwebhooks.com specifies if there is a secret.

    `webhook-id` is the same in every attempt, so that a receiver can drop duplicates.
    """

    def __init__(self, url: str, secret: str | None) -> None:
        self.label = sink_label(url)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            raise InvalidOption(f"alerts: {self.label} is not a URL: expected https://HOST/PATH") from None
        if not host:
            raise InvalidOption(f"alerts: {self.label} has no host: expected https://HOST/PATH")
        host = f"[{host}]" if ":" in host else host
        plain = parts._replace(netloc=host if port is None else f"{host}:{port}", fragment="")
        self._url = quote(plain.geturl(), safe=":/?#[]@!$&'()*+,;=%~")
        self._headers = {"Content-Type": "application/json", "User-Agent": "tenure"}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        self._secret = secret

    def __repr__(self) -> str:
        return f"Webhook({self.label})"

    def send(self, message_id: str, message: Message) -> None:
        """One POST, at most 10 s per step. Any 2xx counts as delivered; a redirect does not, and is not followed."""
        from urllib import error, request

        class NoRedirect(request.HTTPRedirectHandler):
            def redirect_request(self, *args: Any, **kwargs: Any) -> None:
                """It may lead to another host, which must not see the message."""

        body, at = msgspec.json.encode(message), str(int(time.time()))
        headers = {**self._headers, "webhook-id": message_id, "webhook-timestamp": at}
        if self._secret is not None:
            headers["webhook-signature"] = signature(self._secret, message_id, at, body)
        post = request.Request(self._url, body, headers, method="POST")
        try:
            with request.build_opener(NoRedirect).open(post, timeout=SEND_SECONDS):
                return
        except error.HTTPError as answer:
            answer.close()
            problem = f"answered {answer.code}" + (
                ", a redirect: configure the URL it leads to" * (answer.code // 100 == 3)
            )
        except error.URLError as away:
            problem = f"is unreachable: {away.reason}"
        except Exception as other:  # its text may contain the URL
            problem = f"could not be called: {type(other).__name__}"
        raise Undelivered(f"{self.label} {problem}")


class Service:
    """A URL of apprise: mailto://, slack://, tgram:// and about a hundred more."""

    def __init__(self, url: str) -> None:
        self.label = sink_label(url)
        try:
            apprise: Any = import_module("apprise")
        except ModuleNotFoundError as error:
            raise InvalidOption(
                f"alerts: {self.label} needs {error.name}, which is not installed: {install('alerts')}"
            ) from error
        log = logging.getLogger("apprise")
        if log.level == logging.NOTSET:
            log.setLevel(logging.WARNING)  # lower levels log URLs with all their secrets
        self._apprise = apprise.Apprise()
        log.disabled = True  # it would log the part of the URL that it can't parse
        try:
            understood = self._apprise.add(url)
        finally:
            log.disabled = False
        if not understood:
            raise InvalidOption(
                f"alerts: apprise does not understand the URL {self.label}; to see why, run apprise -vv -b test URL, "
                "and see https://github.com/caronc/apprise/wiki"
            )

        for service in self._apprise:
            service.request_rate_per_sec = SERVICE_SECONDS

    def __repr__(self) -> str:
        return f"Service({self.label})"

    def send(self, message_id: str, message: Message) -> None:
        """A title and a text."""
        try:
            taken = self._apprise.notify(title=message.title, body=message.text)
        except Exception as error:  # its text may contain the URL
            raise Undelivered(f"{self.label} could not be called: {type(error).__name__}") from None
        if not taken:
            raise Undelivered(f"{self.label} did not accept it; see the log of apprise")
