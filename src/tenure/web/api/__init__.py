"""The REST API: everything that pages show and do, for programs, under /api/v1; its whole contract as OpenAPI 3.1.

A program brings `Authorization: Bearer SECRET`; a page of ours its session's cookie and X-CSRF-Token.
"""

from __future__ import annotations

from typing import Any, cast

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from tenure.config import Role
from tenure.web.api import common, events, jobs, origin, overview, schedules
from tenure.web.models.values import ProblemDetails
from tenure.web.site import Site

_V1 = (overview.router, jobs.router, schedules.router, events.router)
_ROOT = (origin.router, overview.health)
_ALL = (*_V1, *_ROOT)
_TAGS = {
    "overview": "Everything at a glance, queues, workers, and who did what.",
    "jobs": "Look for jobs, store them, act on them.",
    "schedules": "What runs when, whether it did, and what an operator can do about it.",
    "events": "What changes, as it changes.",
    "health": "For those who watch over the dashboard itself.",
    "origin": "The endpoints of a small queue's dashboard, for programs that know those.",
}
_SCHEMES = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "The SECRET of one of TENURE_TOKENS. On loopback without any, whoever comes is an admin.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "tenure_session",
        "description": "Of who has logged in; the cookie's name ends with eight digits that are the store's.",
    },
    "csrf": {
        "type": "apiKey",
        "in": "header",
        "name": "X-CSRF-Token",
        "description": "What a session needs to change anything: the value of the field csrf in any form of ours.",
    },
}


def add(web: FastAPI, site: Site) -> None:
    web.state.site = site
    for router in _V1:
        web.include_router(router, prefix="/api/v1")
    for router in _ROOT:
        web.include_router(router)
    web.openapi = lambda: _openapi(web)  # type: ignore[method-assign]


def _openapi(web: FastAPI) -> dict[str, Any]:
    """FastAPI's own, and what it can't know: who may, what all endpoints answer, and how errors look."""
    if web.openapi_schema is None:
        said = get_openapi(
            title=web.title,
            version=web.version,
            description=web.description,
            routes=web.routes,
            tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
            servers=web.servers,
        )
        components = said["components"]
        components["securitySchemes"] = _SCHEMES
        schemas: dict[str, Any] = components["schemas"]
        problem = ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= {"ProblemDetails": problem, **problem.pop("$defs")}
        for left in ("HTTPValidationError", "ValidationError"):
            schemas.pop(left, None)
        roles = _roles()
        for operations in said["paths"].values():
            for method, operation in operations.items():
                _complete(operation, roles.get(operation["operationId"]), changes=method != "get")
        web.openapi_schema = said
    return web.openapi_schema


def _roles() -> dict[str, Role]:
    """What each operation needs; /healthz nothing."""
    routes = [route for router in _ALL for route in router.routes if isinstance(route, APIRoute)]
    asked = [(route.name, each.call) for route in routes for each in route.dependant.dependencies]
    return {name: call.role for name, call in asked if isinstance(call, common.Needs)}


def _complete(operation: dict[str, Any], role: Role | None, *, changes: bool) -> None:
    parameters: list[dict[str, Any]] = operation.get("parameters", [])
    for parameter in parameters:
        parameter["schema"] = _never_null(parameter["schema"])
    responses: dict[str, Any] = operation["responses"]
    if "application/json" in responses.get("422", {}).get("content", {}):
        del responses["422"]  # FastAPI's own, which looks otherwise
    usual = common.can(400, 421, 431)
    operation["security"] = []
    if role is not None:
        usual = common.always(values="requestBody" in operation or bool(parameters))
        operation["security"] = [{"token": []}, {"session": [], **({"csrf": []} if changes else {})}]
        operation["description"] += f"\n\nNeeds the role {role}."
    operation["responses"] = {**{str(status): said for status, said in usual.items()}, **responses}


def _never_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that may be left out has no way to be null."""
    some = [each for each in cast("list[dict[str, Any]]", schema.get("anyOf", [])) if each != {"type": "null"}]
    if len(some) != 1:
        return schema
    return {**{name: value for name, value in schema.items() if name != "anyOf"}, **some[0]}
