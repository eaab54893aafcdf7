"""The two applications: control and probe.

Owns: which routes stand on which listener, and that every error is a problem document. Must not know: sockets,
settings. Runs on the event loop.
"""

from http import HTTPMethod, HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp

from gateway import __version__
from gateway.admin.auth import Access
from gateway.admin.core import CoreClient
from gateway.admin.events import Feed, events_router
from gateway.admin.guard import Guard
from gateway.admin.page import page_router
from gateway.admin.probes import probes_router
from gateway.admin.problems import FieldProblem, Problem, ProblemError, from_refusal
from gateway.admin.routes import operator_router
from gateway.client import GatewayRefused, GatewayUnreachable

_TITLE = "kvgate admin API"
_DESCRIPTION = (
    "State, drain and contents of one KV-cache gateway. Every error is an RFC 9457 problem document with a stable "
    "`code`. Changes need the bearer token once one is set; on a listener others can reach, reads need it too."
)


def control_app(core: CoreClient, feed: Feed, access: Access, core_pid: int | None) -> ASGIApp:
    """Everything, behind the guard."""
    return Guard(control_routes(core, feed, core_pid), access)


def control_routes(core: CoreClient, feed: Feed, core_pid: int | None) -> FastAPI:
    """Every route of the control listener, with its description in OpenAPI."""
    app = empty_app(_TITLE, _DESCRIPTION, openapi_url="/v1/openapi.json")
    app.include_router(probes_router(core, core_pid=core_pid, shows_reasons=True))
    app.include_router(operator_router(core))
    app.include_router(events_router(feed))
    app.include_router(page_router())
    return app


def probe_app(core: CoreClient, core_pid: int | None) -> FastAPI:
    """/livez, /readyz and /metrics only."""
    app = empty_app(_TITLE, _DESCRIPTION, openapi_url=None)
    app.include_router(probes_router(core, core_pid=core_pid, shows_reasons=False))
    return app


def empty_app(title: str, description: str, *, openapi_url: str | None) -> FastAPI:
    """An application without routes, in which every error is a problem document."""
    app = _Api(
        title=title,
        version=__version__,
        description=description,
        openapi_url=openapi_url,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_exception_handler(ProblemError, _problem)
    app.add_exception_handler(GatewayUnreachable, _problem)
    app.add_exception_handler(GatewayRefused, _problem)
    app.add_exception_handler(RequestValidationError, _problem)
    app.add_exception_handler(HTTPException, _problem)
    app.add_exception_handler(Exception, _problem)
    return app


class _Api(FastAPI):
    """FastAPI whose description knows the problem document and the token."""

    def openapi(self) -> dict[str, Any]:
        """The description, made once."""
        if not self.openapi_schema:
            schema = get_openapi(
                title=self.title, version=self.version, description=self.description, routes=self.routes
            )
            _, problem = models_json_schema([(Problem, "serialization")], ref_template="#/components/schemas/{model}")
            components = schema.setdefault("components", {})
            components.setdefault("schemas", {}).update(problem["$defs"])
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{}, {"token": []}]
            self.openapi_schema = schema
        return self.openapi_schema


async def _problem(request: Request, error: Exception) -> Response:
    response = _as_problem(request, error).response()
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})
    if response.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["Allow"] = ", ".join(_allowed(request))  # the router names one route's, and a path has more
    return response


def _allowed(request: Request) -> list[str]:
    """Every method that the path can be asked with."""
    routes: list[BaseRoute] = request.app.routes
    return [
        method
        for method in sorted(HTTPMethod)
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]


def _as_problem(request: Request, error: Exception) -> ProblemError:
    match error:
        case ProblemError():
            return error
        case GatewayRefused():
            return from_refusal(error)
        case GatewayUnreachable():
            return ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "unreachable", str(error), retry_after_seconds=1)
        case RequestValidationError():
            errors = [_field_problem(found) for found in error.errors()]
            detail = "; ".join(f"{found.field}: {found.reason}" for found in errors)
            return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid", detail, errors=errors)
        case HTTPException(status_code=HTTPStatus.BAD_REQUEST):  # FastAPI's, for a body that is not even text
            found = FieldProblem(field="body", reason="this is no JSON: it cannot be decoded")
            detail = f"{found.field}: {found.reason}"
            return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid", detail, errors=[found])
        case HTTPException():
            status = HTTPStatus(error.status_code)
            detail = (
                error.detail if error.detail != status.phrase else f"{request.method} {request.url.path} does not exist"
            )
            return ProblemError(status, status.name.lower(), detail)
        case _:
            # The traceback goes to the log; the caller learns only that it was not their fault.
            return ProblemError(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "the admin process made a mistake")


def _field_problem(found: dict[str, Any]) -> FieldProblem:
    if found["type"] == "json_invalid":
        return FieldProblem(field="body", reason=f"this is no JSON: {found['ctx']['error']}")
    return FieldProblem(field=".".join(str(part) for part in found["loc"]), reason=found["msg"])
