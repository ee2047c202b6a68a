"""The dashboard inside a Django site, for its staff."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from importlib import import_module
from typing import Any
from urllib.parse import urlencode

from asgiref.sync import sync_to_async
from django import conf
from django.contrib.auth import get_user
from django.db import close_old_connections
from django.http import HttpRequest
from django.shortcuts import resolve_url
from django.urls import set_script_prefix

from tenure.app.backends import extra
from tenure.django import jobs
from tenure.errors import InvalidOption

SITE = "tenure.site"  #: where the site itself is, below the server's root

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def with_dashboard(application: Application, path: str = "/jobs") -> Application:
    """Serve the dashboard below `path`. Example, in `asgi.py`: `application = with_dashboard(get_asgi_application())`

    Staff may look, superusers may do everything; visitors without a session are sent to `LOGIN_URL`, others get 403.
    """
    root = f"/{path.strip('/')}"
    if root == "/":
        raise InvalidOption(f'with_dashboard: path: expected one below the site\'s, like "/jobs", got {path!r}')
    dashboard = jobs.dashboard(auth=staff)

    async def either(
        scope: Scope, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        if scope["type"] == "http":
            site = scope.get("root_path", "").rstrip("/")
            asked = scope["path"].removeprefix(site)  # some servers give the path without it
            if f"{asked}/".startswith(f"{root}/"):
                await dashboard({**scope, SITE: site, "root_path": site + root, "path": site + asked}, receive, send)
                return
        await application(scope, receive, send)

    return either


@sync_to_async
def staff(request: Any) -> object:
    """Who is asking, by the site's own session."""
    with extra("web"):
        from starlette.exceptions import HTTPException

        from tenure.web.access import User

    close_old_connections()
    try:
        asked = HttpRequest()
        key = request.cookies.get(conf.settings.SESSION_COOKIE_NAME)
        asked.session = import_module(conf.settings.SESSION_ENGINE).SessionStore(key)
        # After a new SECRET_KEY Django gives a session another key, but the visitor would not be sent that cookie.
        asked.session.cycle_key = _nothing
        user = get_user(asked)
    finally:
        close_old_connections()
    if not user.is_authenticated:
        set_script_prefix(f"{request.scope.get(SITE, '')}/")
        login = resolve_url(conf.settings.LOGIN_URL)
        back = request.url.path + (request.url.query and f"?{request.url.query}")
        raise HTTPException(303, headers={"Location": f"{login}?{urlencode({'next': back}, safe='/')}"})
    name, superuser = _name(user), getattr(user, "is_superuser", False)
    if not _may_look(user):
        raise HTTPException(403, f"{name} is not staff: the dashboard is for the staff of this site")
    return User(name, "admin" if superuser else "read", payloads=superuser)


def _may_look(user: Any) -> bool:
    """A site's own user model may know no staff: then only its superusers."""
    staff = getattr(user, "is_staff", getattr(user, "is_superuser", False))
    return bool(user.is_active and staff)


def _name(user: Any) -> str:
    """A name as the dashboard takes it: that of a site's own user model may be a number, or longer."""
    name = "".join(each if each.isprintable() else "?" for each in str(user.get_username()))
    return name[:200] if name.strip() else f"user {user.pk}"


def _nothing() -> None:
    """Stands in for a change that this request must not make."""
