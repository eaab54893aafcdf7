"""The core as the admin API's routes see it: a snapshot, a change, a probe.

Owns: how long each may take, and how often the core is asked. Must not know: HTTP, documents. Runs on the event loop.
"""

import asyncio
import time
from pathlib import Path
from typing import Protocol, Self

import zmq.asyncio

from gateway import __version__
from gateway.admin.link import WireLink
from gateway.client import GatewayUnreachable
from gateway.wire.messages import AnyReply, Ping, Pong, Request, SnapshotReply, SnapshotRequest

#: Below the two seconds within which probes and scrapes are answered, whatever the core does.
READ_TIMEOUT_SECONDS = 1.2
CHANGE_TIMEOUT_SECONDS = 5.0

#: However many ask, the core takes no more than twenty snapshots a second of each kind: one of many engines takes its
#: loop milliseconds, in which no engine is answered.
_SNAPSHOT_INTERVAL_SECONDS = 0.05

_SOFTWARE = f"kvgate-admin/{__version__}"


class Core(Protocol):
    """Whom the routes ask. Both calls raise ``GatewayUnreachable`` and ``GatewayRefused``."""

    async def snapshot(self, *, transfers: bool = False, max_transfers: int = 0) -> SnapshotReply:
        """What is, now; of operations so many of each kind, 0: all."""
        ...

    async def change(self, message: Request) -> AnyReply:
        """Ask for a change."""
        ...


class CoreClient:
    """The daemon's two sockets. Make it on the event loop that uses it, close it there."""

    def __init__(self, *, admin_socket: Path, engine_socket: Path) -> None:
        self._context = zmq.asyncio.Context(io_threads=1)
        self._admin = WireLink(self._context, admin_socket, _SOFTWARE)
        self._engine_socket = engine_socket
        #: By what it is to hold: the snapshot that is not asked for yet, which later callers may share.
        self._coming: dict[tuple[bool, int], asyncio.Task[SnapshotReply]] = {}
        self._last_snapshot = 0.0  # monotonic, when the last one was asked for

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        self._context.destroy(linger=0)

    def close(self) -> None:
        """Ask nothing more: who waits for an answer is told so at once."""
        self._admin.close()

    async def snapshot(self, *, transfers: bool = False, max_transfers: int = 0) -> SnapshotReply:
        """What is, now: taken after this call began, and shared with whoever else asks at the same time.

        Args:
            transfers: with the operations.
            max_transfers: so many pending ones, the oldest, and so many settled ones, the latest; 0: all.

        Raises:
            GatewayUnreachable: the core did not answer in time.
            GatewayRefused: it answered with an error.
        """
        wanted = (transfers, max_transfers)
        coming = self._coming.get(wanted)
        if coming is None:
            coming = asyncio.create_task(self._take_snapshot(*wanted))
            coming.add_done_callback(_forget_error)
            self._coming[wanted] = coming
        return await asyncio.shield(coming)  # one who gives up waiting does not take it from the others

    async def change(self, message: Request) -> AnyReply:
        """Ask for a change; the same errors as ``snapshot``."""
        return await self._admin.request(message, CHANGE_TIMEOUT_SECONDS)

    async def _take_snapshot(self, transfers: bool, max_transfers: int) -> SnapshotReply:
        await asyncio.sleep(max(0.0, self._last_snapshot + _SNAPSHOT_INTERVAL_SECONDS - time.monotonic()))
        self._last_snapshot = time.monotonic()
        del self._coming[transfers, max_transfers]  # what is sent now may be too old for whoever comes from here on
        request = SnapshotRequest(number=0, transfers=transfers, max_transfers=max_transfers)
        reply = await self._admin.request(request, READ_TIMEOUT_SECONDS)
        if not isinstance(reply, SnapshotReply):
            raise GatewayUnreachable(f"the gateway answered SNAPSHOT with {type(reply).__name__}")
        return reply

    async def probe(self) -> Pong:
        """One request through the data plane, the way an engine comes: a new connection, HELLO, PING.

        Raises: as ``snapshot``.
        """
        async with WireLink(self._context, self._engine_socket, _SOFTWARE) as link:
            reply = await link.request(Ping(number=0), READ_TIMEOUT_SECONDS)
        if not isinstance(reply, Pong):
            raise GatewayUnreachable(f"the gateway answered PING with {type(reply).__name__}")
        return reply


def _forget_error(task: asyncio.Task[SnapshotReply]) -> None:
    """Look at the error once: when everyone who waited has left, nobody else does, and asyncio would complain."""
    if not task.cancelled():
        task.exception()
