"""Error responses: problem details (RFC 9457) for programs, a page for people."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenure.core.logs import logger
from tenure.errors import (
    BadData,
    InvalidArguments,
    InvalidOption,
    Refused,
    StoreAway,
    TenureError,
    UnknownFlow,
    UnknownJob,
    UnknownLimit,
    UnknownQueue,
    UnknownTask,
    UnknownWorker,
)
from tenure.schedules.timetable import UnknownSchedule
from tenure.web.access import User
from tenure.web.models.values import MOST_DEEP
from tenure.web.pages import CSRF, Renderer, View
from tenure.web.security import Problem
from tenure.web.site import Site

_log = logger("tenure.web")
RETRY_AFTER = 5  #: seconds until a client should retry while the store is unavailable
PROBLEM = "application/problem+json"
_PROGRAMS = re.compile(r"/(?:api|live|metrics|healthz)(?:/|$)")
_SHOWN = 10  #: the most validation errors shown for one request


class _Kind(NamedTuple):
    status: HTTPStatus
    title: str


_KINDS: Mapping[type[TenureError], _Kind] = {
    UnknownFlow: _Kind(HTTPStatus.NOT_FOUND, "No such flow"),
    UnknownJob: _Kind(HTTPStatus.NOT_FOUND, "No such job"),
    UnknownLimit: _Kind(HTTPStatus.NOT_FOUND, "No such limit"),
    UnknownQueue: _Kind(HTTPStatus.NOT_FOUND, "No such queue"),
    UnknownSchedule: _Kind(HTTPStatus.NOT_FOUND, "No such schedule"),
    UnknownTask: _Kind(HTTPStatus.NOT_FOUND, "No such task"),
    UnknownWorker: _Kind(HTTPStatus.NOT_FOUND, "No such worker"),
    InvalidOption: _Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid value"),
    InvalidArguments: _Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "Arguments do not fit"),
    BadData: _Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "Refused by the store"),
    Refused: _Kind(HTTPStatus.CONFLICT, "Refused"),
    StoreAway: _Kind(HTTPStatus.SERVICE_UNAVAILABLE, "The store is away"),
    TenureError: _Kind(HTTPStatus.INTERNAL_SERVER_ERROR, "The store failed"),
}


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """An error response. `type` never changes for a kind of problem; `errors`: which field, what was expected."""

    status: int
    title: str
    detail: str
    type: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    errors: Sequence[Mapping[str, str]] = ()

    def json(self) -> Response:
        body: dict[str, Any] = {"type": self.type, "title": self.title, "status": self.status, "detail": self.detail}
        if self.errors:
            body["errors"] = self.errors
        # Escaped to ASCII: it may repeat input that is not valid text.
        return Response(json.dumps(body), self.status, dict(self.headers), PROBLEM)


def error_response(error: Exception) -> ErrorResponse:
    """The response to an error; an unexpected one reveals no details."""
    match error:
        case Problem():
            return ErrorResponse(error.status, error.title, error.detail, _type(error.title), error.headers)
        case TenureError():
            kind = next(_KINDS[each] for each in type(error).__mro__ if each in _KINDS)
            headers = {"Retry-After": str(RETRY_AFTER)} if isinstance(error, StoreAway) else {}
            return ErrorResponse(kind.status.value, kind.title, str(error), _type(kind.title), headers)
        case RequestValidationError():
            errors = [_mistake(each) for each in error.errors()[:_SHOWN]]
            detail = "; ".join(f"{each['field']}: {each['expected']}" for each in errors)
            return ErrorResponse(422, "Invalid request", detail, _type("Invalid request"), errors=errors)
        case HTTPException():
            title = HTTPStatus(error.status_code).phrase
            detail = error.detail if error.detail != title else _DETAILS.get(error.status_code, title)
            if detail == _UNPARSED:
                detail = _TOO_MUCH_JSON
            return ErrorResponse(error.status_code, title, detail, _type(title), error.headers or {})
        case _:
            return ErrorResponse(500, "Internal error", "see the log of the dashboard", _type("Internal error"))


_UNPARSED = "There was an error parsing the body"  #: FastAPI's, of JSON that Python's parser gives up on
_TOO_MUCH_JSON = f"body: expected JSON of at most {MOST_DEEP} levels, and no number of thousands of digits"
_DETAILS = {
    404: "there is no such page: see the navigation, or /api/openapi.json for the endpoints of the API",
    405: "this address does not support this method; the header Allow lists those it does",
}


def _type(title: str) -> str:
    return f"/problems/{title.lower().replace(' ', '-')}"


def _mistake(error: Mapping[str, Any]) -> dict[str, str]:
    """The field, as `limit` or `body.args`, and what was expected."""
    where, *path = map(str, error["loc"])
    name = ".".join([where, *path] if where == "body" or not path else path)
    if error["type"] == "json_invalid":
        return {"field": "body", "expected": f"JSON: {error['ctx']['error']}"}
    said = str(error["msg"]).removeprefix("Value error, ")
    return {"field": name, "expected": said[:1].lower() + said[1:]}


def add(web: FastAPI, site: Site, renderer: Renderer) -> None:
    answers = _Answers(site, renderer)
    for kind in (Problem, TenureError, RequestValidationError, HTTPException):
        web.add_exception_handler(kind, answers.answer)
    web.add_middleware(_LastResort, answers=answers)


class _Answers:
    def __init__(self, site: Site, renderer: Renderer) -> None:
        self._site = site
        self._renderer = renderer

    def answer(self, request: Request, error: Exception) -> Response:
        said = error_response(error)
        if said.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            _log.error("%s %s: %s", request.method, request.url.path, error, exc_info=error)
        path = request.url.path.removeprefix(request.scope.get("root_path", ""))
        return said.json() if _PROGRAMS.match(path) else self._page(request, path, said)

    def _page(self, request: Request, path: str, said: ErrorResponse) -> Response:
        root: str = request.scope.get("root_path", "")
        user: User | None = getattr(request.state, "user", None)
        if user is not None:
            view = View(self._site, user, path, dict(request.query_params), request.query_params, {})
            try:
                again, session = request.method == "GET", request.state.session
                html = self._renderer.problem(
                    view, said.status, said.title, said.detail, root, again=again, session=session
                )
                csrf: str = getattr(request.state, "csrf", "")
                return HTMLResponse(html.replace(CSRF, csrf), said.status, dict(said.headers))
            except Exception:  # the page's frame may need what has just failed
                _log.debug("the error page can't be rendered", exc_info=True)
        return PlainTextResponse(f"{said.title}\n\n{said.detail}\n", said.status, dict(said.headers))


class _LastResort:
    """Unexpected errors are logged once and answered here, so that no server or host app logs them again."""

    def __init__(self, app: ASGIApp, answers: _Answers) -> None:
        self._app = app
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = False

        async def sending(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            if began or scope["type"] != "http":  # too late to answer: the server aborts the response, and logs it
                raise
            response = self._answers.answer(Request(scope), error)
            await response(scope, receive, send)
