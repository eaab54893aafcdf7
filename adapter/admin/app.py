"""The application of an adapter's admin server: the gateway's own routes over the adapter, /livez and /metrics.

Owns: which routes an adapter has. Must not know: sockets, settings. Runs on the server's event loop; a scrape is
rendered on a worker thread. Imports FastAPI: only a server that is asked for imports this module.
"""

import asyncio
from http import HTTPStatus

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.types import ASGIApp

from adapter.admin.core import AdapterCore
from adapter.admin.report import MAX_LINK_AGE_SECONDS
from gateway.admin.app import empty_app
from gateway.admin.auth import Access
from gateway.admin.guard import Guard
from gateway.admin.problems import ProblemError, responses
from gateway.admin.routes import add_gateway_routes, add_transfer_routes
from gateway.admin.views import Alive

_DESCRIPTION = (
    "State, drain and operations of one worker half inside an engine, in the documents of the gateway's admin API. It "
    "answers whether or not the gateway does. Slots are the gateway's to tell: they are 0 here."
)


def admin_app(core: AdapterCore, registry: CollectorRegistry, access: Access) -> ASGIApp:
    """All routes of one adapter, behind the guard."""
    app = empty_app("kvgate adapter admin API", _DESCRIPTION, openapi_url="/v1/openapi.json")
    app.include_router(_probes(core, registry))
    router = APIRouter(prefix="/v1")
    add_gateway_routes(router, core)
    add_transfer_routes(router, core)
    app.include_router(router)
    return Guard(app, access)


def _probes(core: AdapterCore, registry: CollectorRegistry) -> APIRouter:
    router = APIRouter(tags=["probes"])

    @router.get("/livez", responses=responses(503), operation_id="livez")
    async def livez() -> Alive:
        """200 while the adapter's link thread goes round, whatever the gateway does; 200 while drained."""
        age_seconds = core.report().link_age_seconds
        if age_seconds >= MAX_LINK_AGE_SECONDS:
            detail = f"the link thread last went round {age_seconds:.1f} s ago"
            raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "not_alive", detail)
        return Alive(alive=True)

    @router.get("/metrics", response_class=Response, operation_id="metrics")
    async def metrics() -> Response:
        """Prometheus text of the adapter's registry."""
        return Response(await asyncio.to_thread(generate_latest, registry), media_type=CONTENT_TYPE_LATEST)

    return router
