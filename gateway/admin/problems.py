"""Errors as RFC 9457 problem documents: one shape for every refusal of the admin API.

Owns: the document and which HTTP status each of the wire's error codes becomes. Must not know: routes, sockets.
Pure but for making a response.
"""

import math
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.responses import JSONResponse

from gateway.admin.views import Check
from gateway.client import GatewayRefused
from gateway.wire.codes import ErrorCode

MEDIA_TYPE = "application/problem+json"

_STATUS: dict[ErrorCode, HTTPStatus] = {
    ErrorCode.BAD_MESSAGE: HTTPStatus.BAD_GATEWAY,
    ErrorCode.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ErrorCode.INVALID: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.UNSUPPORTED: HTTPStatus.NOT_IMPLEMENTED,
    ErrorCode.INCOMPATIBLE: HTTPStatus.BAD_GATEWAY,
    ErrorCode.FORBIDDEN: HTTPStatus.FORBIDDEN,
    ErrorCode.WRONG_BOOT: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.STARTING: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.DRAINING: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.STOPPING: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.OFF: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.EXPIRED: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.UNKNOWN_PARTY: HTTPStatus.NOT_FOUND,
    ErrorCode.LOCK_NOT_HELD: HTTPStatus.CONFLICT,
    ErrorCode.COLLISION: HTTPStatus.CONFLICT,
    ErrorCode.GEOMETRY: HTTPStatus.CONFLICT,
    ErrorCode.FENCED: HTTPStatus.CONFLICT,
    ErrorCode.CONFLICT: HTTPStatus.CONFLICT,
    ErrorCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    ErrorCode.LIMIT: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
}


class FieldProblem(BaseModel):
    """One value of a request that cannot be taken. ``field`` is its path, ``body.deadline_seconds`` for instance."""

    field: str
    reason: str


class Failing(BaseModel):
    """One thing that keeps the gateway from serving."""

    name: str
    reason: str


class Problem(BaseModel):
    """An error in the words of RFC 9457, and members of our own where they say more."""

    model_config = ConfigDict(extra="forbid")

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[FieldProblem] | None = None
    failing: list[Failing] | None = None
    checks: list[Check] | None = None
    retry_after_seconds: float | None = None


class ProblemError(Exception):
    """Raised by a route; becomes the answer."""

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        detail: str,
        *,
        errors: list[FieldProblem] | None = None,
        failing: list[Failing] | None = None,
        checks: list[Check] | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.problem = Problem(
            type=f"urn:kvgate:problem:{code}",
            title=status.phrase,
            status=status.value,
            detail=detail,
            code=code,
            errors=errors,
            failing=failing,
            checks=checks,
            retry_after_seconds=retry_after_seconds,
        )

    def response(self) -> JSONResponse:
        """The problem as a response, with the headers its status asks for."""
        problem, headers = self.problem, {}
        if problem.retry_after_seconds is not None:
            headers["Retry-After"] = str(max(1, math.ceil(problem.retry_after_seconds)))
        if problem.status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = 'Bearer realm="kvgate"'
        return JSONResponse(
            problem.model_dump(exclude_none=True), problem.status, headers=headers, media_type=MEDIA_TYPE
        )


def from_refusal(refusal: GatewayRefused) -> ProblemError:
    """The core's refusal as a problem; its code and its sentence stay."""
    error = refusal.error
    retry = error.retry_after_ms / 1000 if error.retry_after_ms else None
    return ProblemError(_STATUS[error.code], error.code, error.message, retry_after_seconds=retry)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route's OpenAPI says of these statuses."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }
