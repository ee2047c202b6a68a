"""`tenure dashboard`: pages and a REST API, for this machine only unless TENURE_TOKENS grants others access."""

from __future__ import annotations

import json
import secrets
import webbrowser
from collections.abc import Callable
from contextlib import ExitStack
from threading import Thread
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tenure.cli.logs import follow
from tenure.cli.output import print_error
from tenure.cli.shared import Shared, app_named, app_of, store_of
from tenure.config import host_and_port, redact
from tenure.errors import InvalidOption, StoreAway

if TYPE_CHECKING:
    from tenure.app.app import Tenure
    from tenure.config import Settings
    from tenure.operations.admin import Admin

SHARED = Shared()
DEFAULT = "127.0.0.1:3000"


def dashboard(
    app: str | None = None,
    /,
    *,
    listen: str | None = None,
    browser: Annotated[bool, Parameter(name="--open")] = False,
    behind_proxy: bool = False,
    shared: Shared = SHARED,
) -> int:
    """Serve the dashboard: pages that update live, and a REST API (/api/openapi.json).

    Only this machine has access, unless TENURE_TOKENS grants it to others. Stop it with Ctrl-C or SIGTERM.

    Parameters
    ----------
    app
        Where the tasks are: module[:attribute]. Default: TENURE_APP. With it jobs can be enqueued from the dashboard,
        and edited arguments are checked.
    listen
        HOST:PORT. Default: TENURE_LISTEN, else 127.0.0.1:3000.
    browser
        Open the dashboard in a browser.
    behind_proxy
        Trust X-Forwarded-For and X-Forwarded-Proto of a proxy on this machine (elsewhere: FORWARDED_ALLOW_IPS).
    """
    from tenure.app.backends import extra

    spec = app_named(shared, app) or shared.settings(listen=listen).app
    loaded = app_of(shared, spec, listen=listen) if spec else None
    settings = loaded.settings if loaded else shared.settings(listen=listen)
    place = settings.listen or DEFAULT
    with extra("web"):
        from tenure.web.dashboard import create
        from tenure.web.server import Server, listen_at, url_of

    _refuse_strangers(settings, place, behind_proxy=behind_proxy)
    with ExitStack() as opened:

        def connect() -> Admin:
            return _connected(settings, loaded, opened)

        listening = opened.enter_context(listen_at(place))
        url = url_of(listening)
        admin = _first(connect)
        with extra("web"):
            security = create(lambda: admin or connect(), settings, tasks=loaded.tasks if loaded else None)
        follow(settings)

        def ready() -> None:
            said = json.dumps({"url": url, "store": redact(settings.url)}) if shared.json else f"dashboard at {url}"
            print(said, flush=True)
            if browser:
                Thread(
                    target=webbrowser.open, args=(url,), daemon=True
                ).start()  # some browsers block until they are closed

        Server(security, ready, behind_proxy=behind_proxy).run([listening])
    return 0


def _refuse_strangers(settings: Settings, place: str, *, behind_proxy: bool) -> None:
    from tenure.web.access import is_loopback

    if settings.tokens or (is_loopback(host_and_port(place)[0]) and not behind_proxy):
        return
    reached = "through a proxy" if behind_proxy else f"at {place}"
    raise InvalidOption(
        f"dashboard: {reached} others can reach it, so access needs tokens. Set one for each user, for "
        f"example: export TENURE_TOKENS=me:admin:{secrets.token_hex(24)}"
    )


def _connected(settings: Settings, app: Tenure | None, opened: ExitStack) -> Admin:
    from tenure.app.backends import notifier_of, shown
    from tenure.operations.admin import Admin

    store = shown(store_of(settings, may_create=app is not None), app.codec if app else None)
    try:
        store.open()
    except BaseException:
        store.close()
        raise
    notifier = notifier_of(settings, store)
    opened.callback(store.close)
    opened.callback(notifier.close)
    return Admin(store, notifier, settings)


def _first(connect: Callable[[], Admin]) -> Admin | None:
    """None: the store is unavailable; the pages report it too. Permanent errors, such as an old schema, are raised."""
    try:
        return connect()
    except StoreAway as error:
        print_error(f"{error}; the dashboard starts anyway and keeps retrying")
        return None
