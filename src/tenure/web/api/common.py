"""What all endpoints share: who calls, and how OpenAPI is told what can go wrong."""

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
    """Who wants something of which site."""

    site: Site
    user: User
    root: str

    @property
    def admin(self) -> Admin:
        """In the hands of who calls: what they do is recorded under their name."""
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
JobId = Annotated[UUID, Path(description="Of a job.")]
NameOf = Annotated[Name, Path(description="Its name.")]

_SAYS = {
    400: "What was sent can't be read.",
    401: "Nobody we know: a token or a session is needed.",
    403: "Not allowed: the role is too low, or the request comes from another site.",
    404: "There is none.",
    408: "The body came too slowly.",
    409: "Not now: it is in another state, or an app is missing. The detail says what to do.",
    413: "The body is too long.",
    421: "The dashboard does not answer to this Host.",
    422: "A value can't be: `errors` or the detail say which, and what was expected.",
    429: "Too many wrong tokens came from this address; see Retry-After.",
    431: "Too many headers.",
    503: "The store is away, or too many listen: try again; see Retry-After.",
}
PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
_ALWAYS = (400, 401, 403, 408, 413, 421, 429, 431, 503)

Responses = dict[int | str, dict[str, Any]]


def can(*statuses: int) -> Responses:
    """For `responses=`: what else an endpoint may answer, beside what all of them may."""
    return {status: {"description": _SAYS[status], "content": PROBLEM} for status in statuses}


def always(*, values: bool) -> Responses:
    return can(*_ALWAYS, *((422,) if values else ()))
