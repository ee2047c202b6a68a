"""Shared by all endpoints: the caller, and the error responses for OpenAPI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, cast
from uuid import UUID

from fastapi import Depends, Path
from fastapi.routing import APIRoute
from starlette.requests import Request

from tenure.config import Role
from tenure.operations.admin import Admin
from tenure.web.access import User
from tenure.web.models.values import Name
from tenure.web.security import needs
from tenure.web.site import Site


@dataclass(frozen=True, slots=True)
class Caller:
    """The user behind a request, and the site."""

    site: Site
    user: User
    root: str

    @property
    def admin(self) -> Admin:
        """Operator access as the caller: actions are recorded under their name."""
        return self.site.admin.by(self.user.name)


@dataclass(frozen=True, slots=True)
class Needs:
    """A dependency: the caller, if they have this role."""

    role: Role

    async def __call__(self, request: Request) -> Caller:
        user = await needs(self.role)(request)
        return Caller(site_of(request), user, request.scope.get("root_path", ""))


def operation_id(route: APIRoute) -> str:
    return route.name


def site_of(request: Request) -> Site:
    return cast("Site", request.app.state.site)


Reader = Annotated[Caller, Depends(Needs("read"))]
Operator = Annotated[Caller, Depends(Needs("operate"))]
Administrator = Annotated[Caller, Depends(Needs("admin"))]
JobId = Annotated[UUID, Path(description="The job's id.")]
NameOf = Annotated[Name, Path(description="Its name.")]

_SAYS = {
    400: "The request can't be parsed.",
    401: "Not authenticated: a token or a session is needed.",
    403: "Not allowed: the role is too low, or the request comes from another site.",
    404: "Not found.",
    408: "The body arrived too slowly.",
    409: "Not possible now: it is in another state, or an app is missing. The detail says what to do.",
    413: "The body is too large.",
    421: "The dashboard does not serve this Host.",
    422: "A value is invalid: `errors` or the detail say which, and what was expected.",
    429: "Too many wrong tokens came from this address; see Retry-After.",
    431: "Too many headers.",
    503: "The store is unavailable, or too many streams are open: retry; see Retry-After.",
}
PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
_ALWAYS = (400, 401, 403, 408, 413, 421, 429, 431, 503)

Responses = dict[int | str, dict[str, Any]]


def can(*statuses: int) -> Responses:
    """For `responses=`: further responses of an endpoint, besides those common to all."""
    return {status: {"description": _SAYS[status], "content": PROBLEM} for status in statuses}


def always(*, values: bool) -> Responses:
    return can(*_ALWAYS, *((422,) if values else ()))
