"""The admin process's end of the wire: many requests in flight on one socket, none of which can hold up another.

Owns: one DEALER socket of the event loop, the futures of its open requests, the boot id of its last HELLO. Must not
know: HTTP, what messages mean. Runs on the admin process's event loop; nothing in it blocks.

A request that gets no reply in time ends as ``GatewayUnreachable``; its reply, should it come later, meets nobody. Each
request carries its deadline, so a core that was hung does not carry out what its caller has long given up.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import zmq
import zmq.asyncio

from gateway.client import GatewayRefused, GatewayUnreachable, check_socket, connect, hello, welcomed
from gateway.wire import codec
from gateway.wire.codes import ErrorCode
from gateway.wire.messages import AnyReply, Error, Ping, Request, SnapshotRequest

#: Requests that may be asked again of another boot of the daemon: they change nothing.
_HARMLESS = (SnapshotRequest, Ping)


class WireLink:
    """One socket of the daemon, for use by any number of tasks. It connects at the first request."""

    def __init__(self, context: zmq.asyncio.Context, socket_path: Path, software: str) -> None:
        """Make the link; nothing is opened yet.

        Args:
            context: whoever made it closes it, after the link.
            socket_path: ``gateway.sock`` or ``admin.sock``.
            software: what HELLO tells of us, for the daemon's log.
        """
        self._context = context
        self._path = socket_path
        self._software = software
        self._socket: zmq.asyncio.Socket | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[AnyReply]] = {}
        self._number = 0
        self._boot = b""
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def request(self, message: Request, timeout_seconds: float) -> AnyReply:
        """Send a request and wait for its reply; HELLO is said first where none was.

        Raises:
            GatewayUnreachable: no reply in time. Whether it was done is unknown.
            GatewayRefused: the reply is an Error; nothing was changed.
        """
        deadline = time.monotonic() + timeout_seconds
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._request(message, deadline)
        except TimeoutError:
            raise GatewayUnreachable(
                f"the gateway did not answer {message.__struct_config__.tag} within {timeout_seconds:g} s"
            ) from None

    def close(self) -> None:
        """Close the socket for good; open requests, and later ones, end as unreachable."""
        self._is_closed = True
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None
        self._boot = b""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(GatewayUnreachable(f"the connection to {self._path} was closed"))
        self._waiting.clear()

    async def _request(self, message: Request, deadline: float) -> AnyReply:
        if not self._boot:
            await self._hello()
        try:
            return await self._ask(message, self._boot, deadline)
        except GatewayRefused as refusal:
            if refusal.code is not ErrorCode.WRONG_BOOT:
                raise
            await self._hello()
            if not isinstance(message, _HARMLESS):
                raise
            return await self._ask(message, self._boot, deadline)

    async def _hello(self) -> None:
        reply = await self._ask(hello(self._software), b"", 0.0)
        self._boot = welcomed(reply, self._path).boot

    async def _ask(self, message: Request, boot: bytes, deadline: float) -> AnyReply:
        socket = self._open()
        self._number += 1
        number = self._number
        frame = codec.encode(msgspec.structs.replace(message, number=number, boot=boot, deadline=deadline))
        future: asyncio.Future[AnyReply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            await socket.send(frame)
            reply = await future
        finally:
            self._waiting.pop(number, None)
        if isinstance(reply, Error):
            raise GatewayRefused(reply)
        return reply

    def _open(self) -> zmq.asyncio.Socket:
        if self._is_closed:
            raise GatewayUnreachable(f"the connection to {self._path} was closed")
        if self._socket is not None:
            return self._socket
        check_socket(self._path)
        socket = self._context.socket(zmq.DEALER)
        connect(socket, self._path)
        self._socket = socket
        self._reader = asyncio.create_task(self._read(socket))
        return socket

    async def _read(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames: Sequence[bytes] = await socket.recv_multipart()
            try:
                reply = codec.decode_reply(frames[-1])
            except codec.WireError:
                continue  # whoever asked runs into its timeout: an unreadable answer is no answer
            future = self._waiting.get(reply.number)
            if future is not None and not future.done():
                future.set_result(reply)
