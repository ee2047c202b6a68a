"""The REST API: everything that pages show and do, for programs, under /api/v1, with an OpenAPI 3.1 document.

Programs send `Authorization: Bearer SECRET`; the dashboard's pages send the session cookie and X-CSRF-Token.
"""

from __future__ import annotations

from typing import Any, cast

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from tenure.config import Role
from tenure.web.api import common, events, flows, jobs, limits, origin, overview, schedules
from tenure.web.models.jobs import JobUpdate
from tenure.web.models.values import ProblemDetails
from tenure.web.site import Site

_V1 = (overview.router, jobs.router, flows.router, limits.router, schedules.router, events.router)
_ROOT = (origin.router, overview.health)
_ALL = (*_V1, *_ROOT)
_TAGS = {
    "overview": "Statistics, queues, workers and the audit trail.",
    "jobs": "Find jobs, enqueue them, act on them.",
    "flows": "Flows, and the signals for which jobs wait.",
    "limits": "What limits allow, their keys, and the jobs that have the places.",
    "schedules": "What runs when, whether it ran, and the operator's actions.",
    "events": "Live changes.",
    "health": "For monitoring the dashboard itself.",
    "origin": "The endpoints of an earlier small dashboard, for its existing clients.",
}
_SCHEMES = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "The SECRET of one of TENURE_TOKENS. On loopback without any tokens, every client is an admin.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "tenure_session",
        "description": "The session after logging in; the cookie's name ends with eight digits specific to the store.",
    },
    "csrf": {
        "type": "apiKey",
        "in": "header",
        "name": "X-CSRF-Token",
        "description": "Required for changes in a session: the value of the field csrf in any form of the dashboard.",
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
    """FastAPI's schema, plus required roles, the responses common to all endpoints, and the error format."""
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
        event = JobUpdate.model_json_schema(mode="serialization", ref_template="#/components/schemas/{model}")
        schemas |= {"ProblemDetails": problem, **problem.pop("$defs"), "JobUpdate": event, **event.pop("$defs")}
        for left in ("HTTPValidationError", "ValidationError"):
            schemas.pop(left, None)
        roles = _roles()
        for operations in said["paths"].values():
            for method, operation in operations.items():
                _complete(operation, roles.get(operation["operationId"]), changes=method != "get")
        web.openapi_schema = said
    return web.openapi_schema


def _roles() -> dict[str, Role]:
    """The role that each operation needs; /healthz needs none."""
    routes = [route for router in _ALL for route in router.routes if isinstance(route, APIRoute)]
    asked = [(route.name, each.call) for route in routes for each in route.dependant.dependencies]
    return {name: call.role for name, call in asked if isinstance(call, common.Needs)}


def _complete(operation: dict[str, Any], role: Role | None, *, changes: bool) -> None:
    parameters: list[dict[str, Any]] = operation.get("parameters", [])
    for parameter in parameters:
        parameter["schema"] = _never_null(parameter["schema"])
    responses: dict[str, Any] = operation["responses"]
    if "application/json" in responses.get("422", {}).get("content", {}):
        del responses["422"]  # FastAPI's default, in a different format
    usual = common.can(400, 421, 431)
    operation["security"] = []
    if role is not None:
        usual = common.always(values="requestBody" in operation or bool(parameters))
        operation["security"] = [{"token": []}, {"session": [], **({"csrf": []} if changes else {})}]
        operation["description"] += f"\n\nNeeds the role {role}."
    operation["responses"] = {**{str(status): said for status, said in usual.items()}, **responses}


def _never_null(schema: dict[str, Any]) -> dict[str, Any]:
    """An optional query parameter can't be null."""
    some = [each for each in cast("list[dict[str, Any]]", schema.get("anyOf", [])) if each != {"type": "null"}]
    if len(some) != 1:
        return schema
    return {**{name: value for name, value in schema.items() if name != "anyOf"}, **some[0]}
