"""/v1: what an operator reads and changes.

Owns: which wire message a call becomes, and its status. Must not know: tables, who may ask. Runs on the event loop.
"""

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from gateway.admin import views
from gateway.admin.core import Core
from gateway.admin.overview import MAX_TRANSFERS, Overview, overview_of
from gateway.admin.problems import ProblemError, responses
from gateway.wire import messages
from gateway.wire.codes import Lifecycle, SwitchMode, SwitchScope

MAX_WAIT_SECONDS = 300
_POLL_SECONDS = 0.1

_READ = responses(401, 403, 422, 503)
_CHANGE = responses(401, 403, 409, 413, 415, 422, 503)
_ENGINE_READ = _READ | responses(404)
_ENGINE_CHANGE = _CHANGE | responses(404)

RequestedBy = Annotated[
    str,
    Header(
        alias="X-Requested-By", pattern="^[ -~]{1,64}$", description="Who asks, for the audit log; it is not checked."
    ),
]


def operator_router(core: Core) -> APIRouter:
    """The routes of the control listener."""
    router = APIRouter(prefix="/v1")
    add_gateway_routes(router, core)
    _add_engine_routes(router, core)
    add_transfer_routes(router, core)
    _add_cache_routes(router, core)
    _add_switch_routes(router, core)
    return router


def add_gateway_routes(router: APIRouter, core: Core) -> None:
    """State, drain and resume; an adapter's own admin server has them too."""

    @router.get("/state", tags=["gateway"], responses=_READ, operation_id="get_state")
    async def get_state() -> views.GatewayState:
        """State, health with its checks, the last drain, engines and pool."""
        return views.state_of(await core.snapshot())

    @router.get("/overview", tags=["gateway"], responses=_READ, operation_id="get_overview")
    async def get_overview() -> Overview:
        """A verdict, what is not as it should be with one next step each, and all that the operator's page shows."""
        return overview_of(await core.snapshot(transfers=True, max_transfers=MAX_TRANSFERS), time.time())

    @router.post(
        "/drain",
        tags=["gateway"],
        status_code=HTTPStatus.ACCEPTED,
        responses=_CHANGE | {200: {"model": views.Drain, "description": "Drained already"}},
        operation_id="drain",
    )
    async def drain(
        request: Request, response: Response, body: views.DrainBody | None = None, requested_by: RequestedBy = "api"
    ) -> views.Drain:
        """Begin a drain, or join the one under way: the earlier deadline wins, ``flush`` and ``exit`` are added."""
        wanted = body or views.DrainBody()
        reply = await core.change(
            messages.Drain(
                number=0,
                requested_by=requested_by,
                peer=_peer(request),
                deadline_seconds=wanted.deadline_seconds,
                reason=wanted.reason,
                flush=wanted.flush,
                exit=wanted.exit,
            )
        )
        if not isinstance(reply, messages.Drained) or reply.drain is None:
            raise _unexpected(reply)
        if reply.already:
            response.status_code = HTTPStatus.OK
        return views.Drain.model_validate(reply.drain)

    @router.get("/drain", tags=["gateway"], responses=_READ, operation_id="get_drain")
    async def get_drain(
        request: Request,
        wait_seconds: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)] = 0,
    ) -> views.Drain | None:
        """The drain under way, or the last; null before the first. Waits while it is under way, so long at most."""
        give_up = time.monotonic() + wait_seconds
        while True:
            found = (await core.snapshot()).drain
            is_over = found is None or found.state is not Lifecycle.DRAINING
            left = give_up - time.monotonic()
            if is_over or left <= 0 or await request.is_disconnected():
                return views.drain_of(found)
            await asyncio.sleep(min(_POLL_SECONDS, left))

    @router.post("/resume", tags=["gateway"], responses=_CHANGE, operation_id="resume")
    async def resume(
        request: Request, body: views.ReasonBody | None = None, requested_by: RequestedBy = "api"
    ) -> views.GatewayState:
        """Take new work again. 200 also when nothing was drained."""
        reason = (body or views.ReasonBody()).reason
        await core.change(messages.Resume(number=0, requested_by=requested_by, peer=_peer(request), reason=reason))
        return views.state_of(await core.snapshot())


def _add_engine_routes(router: APIRouter, core: Core) -> None:
    @router.get("/engines", tags=["engines"], responses=_READ, operation_id="list_engines")
    async def list_engines() -> views.Engines:
        """Every engine with its parties and what it has pending."""
        return views.engines_of(await core.snapshot())

    @router.get("/engines/{name}", tags=["engines"], responses=_ENGINE_READ, operation_id="get_engine")
    async def get_engine(name: str) -> views.Engine:
        """One engine."""
        return await _engine(core, name)

    @router.post(
        "/engines/{name}/drain",
        tags=["engines"],
        status_code=HTTPStatus.ACCEPTED,
        responses=_ENGINE_CHANGE | {200: {"model": views.Engine, "description": "Drained already"}},
        operation_id="drain_engine",
    )
    async def drain_engine(
        name: str,
        request: Request,
        response: Response,
        body: views.EngineDrainBody | None = None,
        requested_by: RequestedBy = "api",
    ) -> views.Engine:
        """Drain one engine; the others go on."""
        await _engine(core, name, views.find_engine_here)
        wanted = body or views.EngineDrainBody()
        reply = await core.change(
            messages.Drain(
                number=0,
                requested_by=requested_by,
                peer=_peer(request),
                engine=name,
                deadline_seconds=wanted.deadline_seconds,
                reason=wanted.reason,
            )
        )
        if not isinstance(reply, messages.Drained):
            raise _unexpected(reply)
        if reply.already:
            response.status_code = HTTPStatus.OK
        return await _engine(core, name)

    @router.post(
        "/engines/{name}/resume",
        tags=["engines"],
        responses=_ENGINE_CHANGE,
        operation_id="resume_engine",
    )
    async def resume_engine(
        name: str, request: Request, body: views.ReasonBody | None = None, requested_by: RequestedBy = "api"
    ) -> views.Engine:
        """Take new work from this engine again."""
        await _engine(core, name, views.find_engine_here)
        reason = (body or views.ReasonBody()).reason
        await core.change(
            messages.Resume(number=0, requested_by=requested_by, peer=_peer(request), engine=name, reason=reason)
        )
        return await _engine(core, name)

    @router.delete(
        "/engines/{name}",
        tags=["engines"],
        status_code=HTTPStatus.NO_CONTENT,
        responses=_ENGINE_CHANGE,
        operation_id="remove_engine",
    )
    async def remove_engine(name: str, request: Request, requested_by: RequestedBy = "api") -> None:
        """Fence the engine: its registrations end, its slots stay quarantined until it is proven dead."""
        await _engine(core, name, views.find_engine_here)
        await core.change(messages.Fence(number=0, requested_by=requested_by, peer=_peer(request), engine=name))


def add_transfer_routes(router: APIRouter, core: Core) -> None:
    """The story of a request; an adapter's own admin server has it too."""

    @router.get("/transfers", tags=["transfers"], responses=_READ, operation_id="list_transfers")
    async def list_transfers(
        engine: str | None = None, request: str | None = None, state: views.TransferState | None = None
    ) -> views.Transfers:
        """Pending operations with their age, and those settled lately: the story of a request."""
        return views.transfers_of(await core.snapshot(transfers=True), engine, request, state)


def _add_cache_routes(router: APIRouter, core: Core) -> None:
    @router.get("/cache", tags=["cache"], responses=_READ, operation_id="get_cache")
    async def get_cache() -> views.Cache:
        """What the pool holds, by model and by namespace."""
        return views.cache_of(await core.snapshot())

    @router.post("/cache/clear", tags=["cache"], responses=_CHANGE | responses(404), operation_id="clear")
    async def clear(request: Request, body: views.ClearBody, requested_by: RequestedBy = "api") -> views.ClearResult:
        """Forget chunks. What readers still hold is freed when they are done."""
        reply = await core.change(
            messages.Clear(
                number=0,
                requested_by=requested_by,
                peer=_peer(request),
                model=body.model,
                namespace=body.namespace,
                all=body.all,
                reason=body.reason,
                dry_run=body.dry_run,
            )
        )
        if not isinstance(reply, messages.Cleared):
            raise _unexpected(reply)
        return views.clear_result_of(reply, dry_run=body.dry_run)


def _add_switch_routes(router: APIRouter, core: Core) -> None:
    @router.get("/switches", tags=["switches"], responses=_READ, operation_id="list_switches")
    async def list_switches() -> views.Switches:
        """Every switch that is set: of the node (its name is ``all``), of models, of engines."""
        return views.switches_of(await core.snapshot())

    @router.put("/switches/{scope}/{name:path}", tags=["switches"], responses=_CHANGE, operation_id="set_switch")
    async def set_switch(
        scope: SwitchScope, name: str, request: Request, body: views.SwitchBody, requested_by: RequestedBy = "api"
    ) -> views.Switches:
        """Set a switch for good. It outlasts restarts, drains and resumes; the strictest of three counts."""
        return await change(scope, name, body.mode, body.reason, request, requested_by)

    @router.delete("/switches/{scope}/{name:path}", tags=["switches"], responses=_CHANGE, operation_id="remove_switch")
    async def remove_switch(
        scope: SwitchScope, name: str, request: Request, requested_by: RequestedBy = "api"
    ) -> views.Switches:
        """Take a switch away. 200 also when it was not set."""
        return await change(scope, name, None, "", request, requested_by)

    async def change(  # noqa: PLR0917 - a request's parts
        scope: SwitchScope, name: str, mode: SwitchMode | None, reason: str, request: Request, requested_by: str
    ) -> views.Switches:
        await core.change(
            messages.Switch(
                number=0,
                requested_by=requested_by,
                peer=_peer(request),
                scope=scope,
                name=name,
                mode=mode,
                reason=reason,
            )
        )
        return views.switches_of(await core.snapshot())


async def _engine(
    core: Core, name: str, find: Callable[[messages.SnapshotReply, str], views.Engine] = views.find_engine
) -> views.Engine:
    try:
        return find(await core.snapshot(), name)
    except views.NoSuchEngineError as error:
        raise ProblemError(HTTPStatus.NOT_FOUND, "unknown_engine", str(error)) from None


def _peer(request: Request) -> str:
    return "" if request.client is None else f"{request.client.host}:{request.client.port}"


def _unexpected(reply: messages.Reply) -> ProblemError:
    return ProblemError(HTTPStatus.BAD_GATEWAY, "unexpected_reply", f"the core answered with {type(reply).__name__}")
