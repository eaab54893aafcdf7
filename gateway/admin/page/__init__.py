"""GET / and /page/…: the operator's page.

Owns: its files, their types and the headers that keep the page to itself. Must not know: the gateway. The files are
read once, when the router is made; no request names a path of the file system. Runs on the event loop.

The page is plain HTML, one style sheet and ES modules, as they lie in ``static``: no build step, nothing from
elsewhere. It holds no data of the gateway, so it needs no token; what it asks /v1 for does.
"""

import hashlib
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request, Response

from gateway.admin.problems import ProblemError

_STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

#: Scripts, styles, pictures and requests of this listener only, and no frame around the page: what an engine calls
#: itself cannot become code, and no other site can have the page clicked.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again each time, by its tag: an upgrade shows at once
}


class _File(NamedTuple):
    content: bytes
    media_type: str
    tag: str


def page_router() -> APIRouter:
    """The page and its parts."""
    files = {path.name: _read(path) for path in _STATIC.iterdir()}
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def page(request: Request) -> Response:
        return _answer(request, files["index.html"])

    @router.get("/page/{name}")
    async def part(request: Request, name: str) -> Response:
        if name not in files:
            raise ProblemError(HTTPStatus.NOT_FOUND, "not_found", f"the page has no part {name!r}")
        return _answer(request, files[name])

    return router


def _read(path: Path) -> _File:
    content = path.read_bytes()
    return _File(content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _answer(request: Request, file: _File) -> Response:
    headers = {**_HEADERS, "ETag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
