"""What stands before every route of the control listener: access, and the size and kind of a body.

Owns: turning an access decision into a problem. Must not know: routes. Runs on the event loop, once a request.
"""

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admin.auth import Access, Decision
from gateway.admin.problems import ProblemError

MAX_BODY_BYTES = 64 << 10

_REFUSALS: dict[Decision, tuple[HTTPStatus, str, str]] = {
    Decision.TOKEN_MISSING: (
        HTTPStatus.UNAUTHORIZED,
        "token_missing",
        "this needs the admin token: Authorization: Bearer TOKEN",
    ),
    Decision.TOKEN_WRONG: (HTTPStatus.UNAUTHORIZED, "token_wrong", "the bearer token is not the admin token"),
    Decision.FOREIGN_ORIGIN: (
        HTTPStatus.FORBIDDEN,
        "foreign_origin",
        "the Origin header names another site than this listener",
    ),
    Decision.FOREIGN_HOST: (
        HTTPStatus.FORBIDDEN,
        "foreign_host",
        "this listener is on loopback, and the Host header names neither localhost nor a loopback address",
    ),
}


class Guard:
    """An ASGI application that lets through what the listener's rule allows."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request with a problem, or hand it on."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check(scope["method"], scope["path"], headers)
        except ProblemError as refused:
            await refused.response()(scope, receive, send)
            return
        await self._app(scope, _bounded(receive), send)

    def _check(self, method: str, path: str, headers: dict[str, str]) -> None:
        decision = self._access.decide(method, path, headers)
        if decision is not Decision.ALLOWED:
            raise ProblemError(*_REFUSALS[decision])
        length = headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length) > MAX_BODY_BYTES:
            raise ProblemError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", f"the body is over {MAX_BODY_BYTES} bytes"
            )
        has_body = length not in ("", "0") or "transfer-encoding" in headers
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if has_body and kind != "application/json":
            raise ProblemError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "media_type",
                f"the body is {kind or 'of no stated type'}, expected Content-Type: application/json",
            )


def _bounded(receive: Receive) -> Receive:
    """The same messages, until their bodies together pass the bound: a chunked body states no length up front."""
    received = 0

    async def bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY_BYTES:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is over {MAX_BODY_BYTES} bytes")
        return message

    return bounded
