"""Assembles the dashboard: pages, API, live streams and the security middleware, as one ASGI app."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from tenure.config import Settings
from tenure.operations.admin import Admin
from tenure.web import api, errors, live, pages
from tenure.web.access import Access
from tenure.web.job_events import JobFeeds
from tenure.web.pages import Renderer
from tenure.web.security import Security
from tenure.web.site import Demo, Site
from tenure.web.views import ACTIONS, PAGES

if TYPE_CHECKING:
    from tenure.tasks.registry import Registry


def create(
    connect: Callable[[], Admin],
    settings: Settings,
    *,
    tasks: Registry | None = None,
    auth: Callable[..., Any] | None = None,
    demo: Demo | None = None,
    client: Callable[[], object] | None = None,
) -> Security:
    """The dashboard as an ASGI app: run it, or mount it in another one. It needs no lifespan.

    `connect` is called again once `client` gives another object: the app that it is mounted in uses another store.
    """
    site = Site(connect, settings, tasks=tasks, demo=demo, client=client)
    web = FastAPI(
        title="Tenure",
        version=site.version,
        description="Jobs that are owned until they are done: inspect them, and act on them.",
        docs_url=None,  # those pages load scripts from other hosts
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    renderer = Renderer(site, PAGES)
    feeds = live.add(web, site, renderer)
    web.state.job_feeds = JobFeeds(site, feeds.places)
    pages.add(web, site, renderer, ACTIONS)
    api.add(web, site)
    errors.add(web, site, renderer)
    web.mount("/static", StaticFiles(directory=str(files("tenure.web") / "static")), name="static")
    return Security(web, Access(settings, auth), site.close)
