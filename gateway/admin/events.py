"""GET /v1/events: the overview once a second, for everybody who watches, as server-sent events.

Owns: the one task that asks the core, the last overview as a frame of bytes, the last minutes, and who watches. Must
not know: how it is drawn. Runs on the event loop.

Whoever watches shares one snapshot a second and one encoding of it. There is no queue: a watcher is given the latest
frame when it has taken the one before, so a slow one misses some, and one that takes none for ``SEND_SECONDS`` is
dropped. Something is sent at least every ``LONGEST_SILENCE_SECONDS``: a watcher that hears nothing for longer may take
the connection for dead.

While nobody watches, a point is still taken every ``POINT_SECONDS``: whoever opens the page sees the last minutes.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

from fastapi import APIRouter, Response
from starlette.types import Receive, Scope, Send

from gateway.admin.core import READ_TIMEOUT_SECONDS, CoreClient
from gateway.admin.overview import MAX_TRANSFERS, Overview, Totals, overview_of
from gateway.admin.problems import ProblemError, responses
from gateway.admin.views import Document
from gateway.client import GatewayError

log = logging.getLogger("kvgate.admin")

FRAME_SECONDS = 1.0
POINT_SECONDS = 5.0
#: Five minutes.
MAX_POINTS = 60
MAX_WATCHERS = 32
SEND_SECONDS = 5.0
#: A frame's interval, and the core's time to answer.
LONGEST_SILENCE_SECONDS = FRAME_SECONDS + READ_TIMEOUT_SECONDS

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Point(Document):
    """What the charts draw of one moment: totals since the boot, and two levels."""

    at: float
    boot_id: str
    totals: Totals
    used_bytes: int
    pending: int


class History(Document):
    """The last minutes, oldest first."""

    points: list[Point]


class Unanswered(Document):
    """The core did not answer; nothing is known of it since the last overview."""

    at: float
    reason: str


class Feed:
    """The latest frame, and whoever waits for the next one. Use it as a context manager on its event loop."""

    def __init__(self, core: CoreClient) -> None:
        self._core = core
        self._points: deque[Point] = deque(maxlen=MAX_POINTS)
        self._frame = b""
        self._number = 0  # of the frame: grows with each
        self._is_closed = False
        self._changed = asyncio.Condition()
        self._wanted = asyncio.Event()  # somebody has come: do not wait for the next point
        self._num_watchers = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Feed"]:
        """Ask the core as long as the context lasts."""
        asking = asyncio.create_task(self._ask_for_ever())
        try:
            yield self
        finally:
            await self.close()
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking

    async def close(self) -> None:
        """Whoever watches is at the end of the stream."""
        async with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def join(self) -> bool:
        """Begin to watch; False when as many watch as may. Whoever joined leaves."""
        if self._num_watchers >= MAX_WATCHERS:
            return False
        self._num_watchers += 1
        self._wanted.set()
        return True

    def leave(self) -> None:
        """Watch no more."""
        self._num_watchers -= 1

    async def frames(self) -> AsyncGenerator[bytes]:
        """The last minutes, then the latest frame whenever there is one that was not given yet, until the feed ends."""
        seen = self._number  # a frame from before somebody watched may be seconds old
        yield _encode("history", History(points=list(self._points)))
        while True:
            async with self._changed:
                while not self._is_closed and self._number <= seen:
                    await self._changed.wait()
                frame, seen = self._frame, self._number
            if self._is_closed:
                return
            yield frame

    async def _ask_for_ever(self) -> None:
        while True:
            began = time.monotonic()
            self._wanted.clear()
            # Whoever comes from here on is given the next frame, which is asked for as soon as this one is here.
            is_watched = self._num_watchers > 0
            try:
                frame = await self._take(with_transfers=is_watched)
                if is_watched:
                    await self._publish(frame)
            except Exception:  # a defect in one frame must not end the feed
                log.exception("frame_failed")
            if is_watched:
                await asyncio.sleep(max(0.0, began + FRAME_SECONDS - time.monotonic()))
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), POINT_SECONDS)

    async def _take(self, *, with_transfers: bool) -> bytes:
        try:
            snapshot = await self._core.snapshot(transfers=with_transfers, max_transfers=MAX_TRANSFERS)
        except GatewayError as error:
            return _encode("unanswered", Unanswered(at=time.time(), reason=str(error)))
        overview = overview_of(snapshot, time.time())
        if not self._points or overview.at - self._points[-1].at >= POINT_SECONDS - FRAME_SECONDS / 2:
            self._points.append(_point_of(overview))
        return _encode("overview", overview)

    async def _publish(self, frame: bytes) -> None:
        async with self._changed:
            self._frame, self._number = frame, self._number + 1
            self._changed.notify_all()


class _Stream(Response):
    """The feed as a response that ends when the watcher leaves, stops taking, or the feed ends."""

    media_type = "text/event-stream"

    def __init__(self, feed: Feed) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Send until one of the three ends it."""
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._feed.leave()
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for frame in self._feed.frames():
            async with asyncio.timeout(SEND_SECONDS):
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def events_router(feed: Feed) -> APIRouter:
    """The route."""
    router = APIRouter(prefix="/v1")

    @router.get(
        "/events",
        tags=["gateway"],
        responses=responses(401, 403, 503)
        | {200: {"description": "Server-sent events, for ever", "content": {"text/event-stream": {}}}},
        response_class=Response,
        operation_id="events",
    )
    async def events() -> Response:
        """Server-sent events, each with a JSON document: what GET /v1/overview says, once a second.

        `history` comes first, with the `points` of the last five minutes; then an `overview` each second, or
        `unanswered`, with `at` and `reason`, while the core is silent. A client that does not keep up misses some; one
        that takes nothing for five seconds is dropped.
        """
        if not feed.join():
            raise ProblemError(
                HTTPStatus.SERVICE_UNAVAILABLE, "too_many_watchers", f"{MAX_WATCHERS} watch", retry_after_seconds=5
            )
        return _Stream(feed)

    return router


def _point_of(overview: Overview) -> Point:
    pool = overview.pool
    return Point(
        at=overview.at,
        boot_id=overview.boot_id,
        totals=overview.totals,
        used_bytes=pool.pool_bytes - pool.free_bytes,
        pending=overview.pending,
    )


def _encode(event: str, document: Document) -> bytes:
    """One event; JSON has no line breaks, so one line of data is enough."""
    return f"event: {event}\ndata: {document.model_dump_json()}\n\n".encode()
