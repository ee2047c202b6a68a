"""Pages: their table, and rendering: whole for a browser, and block by block for live updates.

A page is a path, a template and a function that reads its data. Its content depends only on path, query and rights,
so one rendering serves all viewers of the same page. Blocks of its template whose names begin with `live_` are sent
again whenever they change; each is inside an element with `data-live` and the same name.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from types import CodeType
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode

from fastapi import FastAPI
from jinja2 import BytecodeCache, Environment, PackageLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup, escape
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import compile_path

from tenure.operations.admin import Admin
from tenure.web import words
from tenure.web.access import Role, User
from tenure.web.security import Problem
from tenure.web.site import Site

CSRF = f"csrf-{secrets.token_hex(16)}"  #: placeholder for the viewer's CSRF token, replaced when it is sent
_FLASH = "tenure_flash"
_LONGEST_PATH = 2_000
_JOB = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_root: ContextVar[str] = ContextVar("root", default="")


@dataclass(frozen=True, slots=True)
class View:
    """A viewer and what they requested. `query` has the last value of each name; `all` has every value."""

    site: Site
    user: User
    path: str
    query: Mapping[str, str]
    all: QueryParams
    given: Mapping[str, str]  #: the path's parameters: `given["id"]`

    @property
    def admin(self) -> Admin:
        """Operator access as the viewer: actions are recorded under their name."""
        return self.site.admin.by(self.user.name)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sorting:
    """The order of a table, as its headings set it: `sort=-queued` in the address, `by` queued, `down`."""

    path: str
    query: Mapping[str, Any]
    by: str = ""
    down: bool = False

    @classmethod
    def of(cls, view: View, path: str, names: Collection[str], query: Mapping[str, Any]) -> Sorting:
        """`names`: of the columns that can be sorted. Another one is ignored."""
        text = view.query.get("sort", "")
        by = text.removeprefix("-")
        return cls(path, query, by, text != by) if by in names else cls(path, query)

    @property
    def text(self) -> str | None:
        """For links; None: the page's own order."""
        return f"{'-' if self.down else ''}{self.by}" or None

    def link(self, name: str, down: bool) -> str:
        """The other way around if it is sorted by this column already, else `down` or up."""
        return f"{'-' if (not self.down if name == self.by else down) else ''}{name}"

    def sorted(self, rows: Iterable[T], keys: Mapping[str, Callable[[T], Any]]) -> list[T]:
        """By the chosen column; rows without a value come last."""
        if not self.by:
            return list(rows)
        valued = [(keys[self.by](row), row) for row in rows]
        found = sorted((each for each in valued if each[0] is not None), key=lambda each: each[0], reverse=self.down)
        return [row for _, row in found] + [row for value, row in valued if value is None]


class Page(NamedTuple):
    """Example: `Page("/jobs/{id}", "job.html", look_at_job)`. `every`: seconds between two live updates."""

    path: str
    template: str
    look: Callable[[View], Mapping[str, Any]]
    every: float = 0.2
    title: str = ""  #: in the navigation; empty: not listed


class Action(NamedTuple):
    """A form's target. `act` gets the form's fields, and returns a message and where to redirect (a dashboard path)."""

    path: str
    needs: Role
    act: Callable[[View, Mapping[str, str], Sequence[tuple[str, str]]], tuple[str, str]]


class Again(Problem):
    """A form with errors: its page is shown again, with the input and what is wrong with it."""

    def __init__(self, page: Page, shown: Mapping[str, Any], detail: str) -> None:
        super().__init__(HTTPStatus.UNPROCESSABLE_ENTITY, "It can't be taken as it is", detail)
        self.page, self.shown = page, shown


class _Compiled(BytecodeCache):
    """Templates are compiled once for all dashboards of a process: it takes long, and tests make many."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        if bucket.code is not None:
            self._code[bucket.key, bucket.checksum] = bucket.code


_compiled = _Compiled()


class Renderer:
    """Templates, rendered. Safe to use from several threads."""

    def __init__(self, site: Site, pages: Sequence[Page]) -> None:
        self._site, self.pages = site, pages
        env = Environment(
            loader=PackageLoader("tenure.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            bytecode_cache=_compiled,
        )
        env.filters.update(words.FILTERS)
        env.filters["linked"] = _linked
        known = cast("dict[str, Any]", env.globals)
        known.update(url=_url, asset=_asset, CSRF=CSRF, site=site)
        # As a global, since a block that is rendered alone does not see its template's imports.
        known["ui"] = env.get_template("ui.html").module
        self._env = env

    def whole(
        self,
        page: Page,
        view: View,
        root: str,
        *,
        flash: str = "",
        session: bool = False,
        shown: Mapping[str, Any] | None = None,
    ) -> str:
        """The page. `session`: the viewer can sign out; `shown`: show this instead of the page's own data."""
        _root.set(root)
        context = {**(page.look(view) if shown is None else shown), "view": view, "page": page}
        around = {"flash": flash, "session": session, "navigation": self._navigation(view)}
        return self._env.get_template(page.template).render({**context, **around})

    def blocks(self, page: Page, view: View, root: str) -> dict[str, str]:
        """The live blocks, by name."""
        _root.set(root)
        template = self._env.get_template(page.template)
        context = template.new_context({**page.look(view), "view": view, "page": page})
        return {name: "".join(block(context)) for name, block in template.blocks.items() if name.startswith("live_")}

    def _navigation(self, view: View) -> list[Page]:
        return [page for page in self.pages if page.title and (page.path != "/try" or view.site.demo)]

    def problem(
        self,
        view: View,
        status: int,
        title: str,
        detail: str,
        root: str,
        *,
        again: bool,
        session: bool = False,
    ) -> str:
        """The page of an error. `again`: its address is that of a page, which may be tried again."""
        _root.set(root)
        shown = {"view": view, "status": status, "title": title, "detail": detail, "navigation": self._navigation(view)}
        return self._env.get_template("problem.html").render(shown, again=again, flash="", page=None, session=session)


def match(pages: Sequence[Page], site: Site, user: User, at: str) -> tuple[Page, View] | None:
    """The page at this path and query of a browser's address, relative to the dashboard's root."""
    path, _, text = at.partition("?")
    path = unquote(path)
    for page in pages:
        found = compile_path(page.path)[0].match(path)
        if found:
            return page, _view(
                site, user, path, QueryParams(parse_qsl(text, keep_blank_values=True)), found.groupdict()
            )
    return None


def add(web: FastAPI, site: Site, renderer: Renderer, actions: Sequence[Action]) -> None:
    for page in renderer.pages:
        web.add_route(page.path, _endpoint(page, site, renderer), methods=["GET"], include_in_schema=False)
    for action in actions:
        web.add_route(action.path, _form(action, site, renderer), methods=["POST"], include_in_schema=False)


def _endpoint(page: Page, site: Site, renderer: Renderer) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        user: User = request.state.user
        view = _view(site, user, _inner(request), request.query_params, request.path_params)
        if any(not text for _, text in view.all.multi_items()):
            # A form sends its empty fields too: an address that is passed on should say only what was asked.
            return RedirectResponse(request.scope["root_path"] + here(view), status_code=HTTPStatus.SEE_OTHER)
        flash = words.unseal(request.cookies.get(_FLASH, ""))
        root, session = request.scope["root_path"], request.state.session
        html = await site.threads.run(renderer.whole, page, view, root, flash=flash, session=session)
        response = HTMLResponse(html.replace(CSRF, request.state.csrf))
        if flash:
            response.delete_cookie(_FLASH, path=root or "/")
        return response

    return endpoint


def _form(action: Action, site: Site, renderer: Renderer) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        user: User = request.state.user
        if not user.may(action.needs):
            raise Problem(HTTPStatus.FORBIDDEN, "Not allowed", f"{user.name} is {user.role}; this needs {action.needs}")
        form = [(name, str(value)) for name, value in (await request.form()).multi_items()]
        view = _view(site, user, _inner(request), request.query_params, request.path_params)
        root = request.scope["root_path"]
        try:
            said, to = await site.threads.run(action.act, view, dict(form), form)
        except Again as again:
            session = request.state.session
            path = compile_path(again.page.path)[1].format_map(view.given)  # for which its live updates ask
            shown_at = replace(view, path=path)
            html = await site.threads.run(
                renderer.whole, again.page, shown_at, root, session=session, shown=again.shown
            )
            return HTMLResponse(html.replace(CSRF, request.state.csrf), again.status)
        finally:
            site.acted()
        response = RedirectResponse(f"{root}{to}", status_code=HTTPStatus.SEE_OTHER)
        if said:
            told, secure = words.seal(said), request.url.scheme == "https"
            response.set_cookie(
                _FLASH, told, path=root or "/", httponly=True, secure=secure, samesite="strict", max_age=60
            )
        return response

    return endpoint


def back(form: Mapping[str, str], otherwise: str) -> str:
    """The page of the form: a dashboard path, never another host."""
    to = form.get("back", "")
    tricky = to.startswith(("//", "/\\")) or ".." in to.partition("?")[0] or not to.isprintable()
    return to if to.startswith("/") and not tricky and len(to) <= _LONGEST_PATH else otherwise


def count(text: str, otherwise: int) -> int:
    """A number in a query or a form, of at most nine digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else otherwise


def here(view: View) -> str:
    """The address of this page within the dashboard, without empty values."""
    pairs = [pair for pair in view.all.multi_items() if pair[1]]
    return quote(view.path) + (f"?{urlencode(pairs)}" if pairs else "")


def _inner(request: Request) -> str:
    """The path below the dashboard's root; not from `request.url`, which takes a `?` in a name for the query."""
    path, root = str(request.scope["path"]), str(request.scope["root_path"])
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def _view(site: Site, user: User, path: str, query: QueryParams, given: Mapping[str, str]) -> View:
    return View(site, user, path, dict(query), query, given)


def _url(path: str, **query: object) -> str:
    """A link within the dashboard, wherever it is mounted. `None` omits a name."""
    pairs = [(name, value) for name, value in query.items() if value not in (None, "")]
    text = urlencode(pairs, doseq=True)
    return f"{_root.get()}{quote(path)}{'?' if text else ''}{text}"


def _linked(text: str) -> Markup:
    """The text, with its ids of jobs as links to them."""

    def link(found: re.Match[str]) -> str:
        job_id = found[0]
        return f'<a class="mono" href="{_url(f"/jobs/{job_id}")}" title="{job_id}">{words.short(job_id)}</a>'

    return Markup(_JOB.sub(link, str(escape(text))))


def _asset(name: str) -> str:
    return f"{_root.get()}/static/{name}?v={_fingerprint(name)}"


@cache
def _fingerprint(name: str) -> str:
    """A content hash, so that the file may be cached forever under this address."""
    return sha256((files("tenure.web") / "static" / name).read_bytes()).hexdigest()[:12]
