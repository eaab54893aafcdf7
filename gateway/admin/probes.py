"""/livez, /readyz and /metrics: what orchestrators and Prometheus ask, on both listeners.

Owns: the verdicts. Must not know: who may ask. Runs on the event loop; text is rendered on a worker thread, because a
scrape of a hundred engines takes long enough to be felt by the others.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Response

from gateway.admin.core import CoreClient
from gateway.admin.problems import Failing, ProblemError, responses
from gateway.admin.views import Alive, Check, Ready, checks_of, failing_of
from gateway.client import GatewayError
from gateway.metrics import collector
from gateway.metrics.process import ProcessStats, read_process
from gateway.wire.messages import Pong, SnapshotReply

#: A stale one of these means that the process no longer does its work and should be replaced.
LIVENESS_CHECKS = frozenset({"loop", "reaper"})


def probes_router(core: CoreClient, *, core_pid: int | None, shows_reasons: bool) -> APIRouter:
    """The three routes.

    Args:
        core: the daemon's sockets.
        core_pid: the core's process, for its process metrics; None where it is not known.
        shows_reasons: False on the probe listener: names of checks only, no sentence that may tell of paths.
    """
    router = APIRouter(tags=["probes"])

    def shown(checks: list[Check]) -> list[Check]:
        return checks if shows_reasons else [check.model_copy(update={"reason": ""}) for check in checks]

    def failing_as_problem(
        code: str, detail: str, failing: Sequence[tuple[str, str]], checks: list[Check] | None = None
    ) -> ProblemError:
        return ProblemError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            code,
            detail,
            failing=[Failing(name=name, reason=reason if shows_reasons else "") for name, reason in failing],
            checks=checks,
        )

    @router.get("/livez", responses=responses(503), operation_id="livez")
    async def livez() -> Alive:
        """200 unless the core's loop or its reaper is stale, or the core does not answer; 200 while drained."""
        try:
            snapshot = await core.snapshot()
        except GatewayError as error:
            raise failing_as_problem("not_alive", "the core does not answer", [("core", str(error))]) from None
        stale = [(c.name, c.reason or "stale") for c in snapshot.checks if c.name in LIVENESS_CHECKS and not c.ok]
        if stale:
            raise failing_as_problem("not_alive", f"stale: {_names(stale)}", stale)
        return Alive(alive=True)

    @router.get("/readyz", responses=responses(422, 503), operation_id="readyz", response_model_exclude_none=True)
    async def readyz(
        verbose: Annotated[str | None, Query(description="Given at all: list the checks.")] = None,
    ) -> Ready:
        """200 only when the gateway serves: a real request through the data plane is answered and no check fails.

        ``verbose`` lists every check, whether or not it does.
        """
        snapshot, pong = await asyncio.gather(core.snapshot(), core.probe(), return_exceptions=True)
        failing = _why_not_ready(snapshot, pong)
        checks = None
        if verbose is not None and isinstance(snapshot, SnapshotReply):
            checks = shown(checks_of(snapshot))
        if failing:
            raise failing_as_problem("not_ready", f"not ready: {_names(failing)}", failing, checks)
        return Ready(ready=True, checks=checks)

    @router.get("/metrics", response_class=Response, operation_id="metrics")
    async def metrics() -> Response:
        """Prometheus text. If the core does not answer: process metrics and ``kvgate_scrape_success 0`` only."""
        began = time.monotonic()
        snapshot: SnapshotReply | None = None
        with suppress(GatewayError):  # the scrape says so itself: scrape_success is 0
            snapshot = await core.snapshot()
        duration = time.monotonic() - began
        text = await asyncio.to_thread(_render, snapshot, core_pid, duration)
        return Response(text, media_type=collector.CONTENT_TYPE)

    return router


def _why_not_ready(snapshot: SnapshotReply | BaseException, pong: Pong | BaseException) -> list[tuple[str, str]]:
    failing: list[tuple[str, str]] = []
    for name, answer in (("core", snapshot), ("data_plane", pong)):
        if isinstance(answer, GatewayError):
            failing.append((name, str(answer)))
        elif isinstance(answer, BaseException):
            raise answer
    if isinstance(snapshot, SnapshotReply):
        failing += failing_of(snapshot)
    return failing


def _names(failing: Sequence[tuple[str, str]]) -> str:
    return ", ".join(name for name, _ in failing)


def _render(snapshot: SnapshotReply | None, core_pid: int | None, duration_seconds: float) -> bytes:
    processes: dict[str, ProcessStats | None] = {"admin": read_process(os.getpid())}
    if core_pid is not None:
        processes["core"] = read_process(core_pid)
    return collector.Scrape(snapshot, processes, duration_seconds).text()
