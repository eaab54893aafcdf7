"""A small synchronous client of the wire: one request, one reply.

Owns: one DEALER socket, the numbers of its requests and the boot id it adopted from its own HELLO. Must not
know: what messages mean to the tables. An instance belongs to one thread; the admin process, the command line
and tests use it. Engines do not: their link never waits.
"""

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

from gateway.access import explain, may_use
from gateway.wire import codec
from gateway.wire.codes import ErrorCode
from gateway.wire.messages import (
    MAX_SOCKET_PATH_BYTES,
    OLDEST_PROTOCOL_VERSION,
    POOL_FORMAT,
    PROTOCOL_VERSION,
    AnyReply,
    Error,
    Hello,
    Ping,
    Request,
    SnapshotRequest,
    Welcome,
)


class GatewayError(Exception):
    """A request got no answer, or another one than was hoped for."""


class GatewayUnreachable(GatewayError):  # noqa: N818 - reads as what happened
    """No reply came: nobody listens, or whoever listens is silent. Whether it was done is unknown."""


class GatewayRefused(GatewayError):  # noqa: N818 - reads as what happened
    """The daemon answered with an error and changed nothing."""

    def __init__(self, error: Error) -> None:
        super().__init__(f"{error.code}: {error.message}")
        self.error = error

    @property
    def code(self) -> ErrorCode:
        """Why, in the contract's words."""
        return self.error.code


class GatewayClient:
    """Talks to one daemon through one of its sockets.

    A socket that got no answer in time is thrown away, so that an answer that comes late meets nobody. After a
    restart of the daemon the client says HELLO again; a request that changes nothing (SNAPSHOT, PING) is then
    asked again, any other raises, because it was meant for the boot before.
    """

    def __init__(
        self, socket_path: str | os.PathLike[str], *, timeout_seconds: float = 2.0, software: str = "kvgate"
    ) -> None:
        """Make the client; nothing is sent before the first request.

        Args:
            socket_path: ``gateway.sock`` or ``admin.sock``.
            timeout_seconds: default bound of a request, its HELLO included.
            software: what HELLO tells of the caller, for logs.
        """
        self._path = Path(socket_path)
        self._timeout_seconds = timeout_seconds
        self._software = software
        self._context = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] | None = None
        self._number = 0
        self._boot = b""

    @property
    def boot(self) -> bytes:
        """Boot id of the daemon's last welcome; empty before it."""
        return self._boot

    def hello(self, timeout_seconds: float | None = None) -> Welcome:
        """Say HELLO and adopt the daemon's boot.

        Raises:
            GatewayUnreachable: no welcome in time.
            GatewayRefused: ``incompatible``; both sides' versions stand in the message.
        """
        return self._hello(self._deadline(timeout_seconds))

    def request(self, message: Request, timeout_seconds: float | None = None) -> AnyReply:
        """Send a request and wait for its reply.

        Number and boot are filled in; HELLO is said first where none was.

        Raises:
            GatewayUnreachable: no reply in time.
            GatewayRefused: the reply is an Error.
            WireError: the message cannot be encoded; nothing was sent.
        """
        deadline = self._deadline(timeout_seconds)
        if not self._boot:
            self._hello(deadline)
        try:
            return self._ask(message, deadline)
        except GatewayRefused as refusal:
            if refusal.code is not ErrorCode.WRONG_BOOT:
                raise
            self._hello(deadline)
            if not isinstance(message, SnapshotRequest | Ping):
                raise
            return self._ask(message, deadline)

    def close(self) -> None:
        """Close the socket; what was not sent yet is dropped."""
        self._drop_socket()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _deadline(self, timeout_seconds: float | None) -> float:
        return time.monotonic() + (self._timeout_seconds if timeout_seconds is None else timeout_seconds)

    def _hello(self, deadline: float) -> Welcome:
        self._boot = b""
        welcome = welcomed(self._ask(hello(self._software), deadline), self._path)
        self._boot = welcome.boot
        return welcome

    def _ask(self, message: Request, deadline: float) -> AnyReply:
        self._number += 1
        frame = codec.encode(msgspec.structs.replace(message, number=self._number, boot=self._boot))
        socket = self._open_socket()
        if not socket.poll(_milliseconds_until(deadline), zmq.POLLOUT):
            self._drop_socket()
            raise GatewayUnreachable(f"nobody answers at {self._path}")
        socket.send(frame, zmq.DONTWAIT)
        while socket.poll(_milliseconds_until(deadline), zmq.POLLIN):
            try:
                reply = codec.decode_reply(socket.recv(zmq.DONTWAIT))
            except codec.WireError as error:
                self._drop_socket()
                raise GatewayUnreachable(f"{self._path} sent a reply that cannot be read: {error}") from None
            if reply.number != self._number:
                continue
            if isinstance(reply, Error):
                raise GatewayRefused(reply)
            return reply
        self._drop_socket()
        raise GatewayUnreachable(f"{self._path} did not answer {type(message).__name__} in time")

    def _open_socket(self) -> "zmq.Socket[bytes]":
        if self._socket is not None:
            return self._socket
        check_socket(self._path)
        self._socket = self._context.socket(zmq.DEALER)
        connect(self._socket, self._path)
        return self._socket

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None


def hello(software: str) -> Hello:
    """What a client that speaks this version says first."""
    return Hello(
        number=0,
        oldest_version=OLDEST_PROTOCOL_VERSION,
        newest_version=PROTOCOL_VERSION,
        pool_format=POOL_FORMAT,
        monotonic=time.monotonic(),
        software=software,
    )


def welcomed(reply: AnyReply, path: Path) -> Welcome:
    """The answer to HELLO.

    Raises:
        GatewayUnreachable: it is something else.
    """
    if not isinstance(reply, Welcome):
        raise GatewayUnreachable(f"{path} answered HELLO with {type(reply).__name__}, expected WELCOME")
    return reply


def connect(socket: "zmq.Socket[Any]", path: Path) -> None:
    """Connect a DEALER socket, which may be an asynchronous one, to a daemon's socket."""
    socket.setsockopt(zmq.LINGER, 0)
    # Only a live connection takes a message: nothing waits here for a daemon that may be another by then.
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
    socket.connect(f"ipc://{path}")


def check_socket(path: Path) -> None:
    """See that ``path`` can be connected to: ZeroMQ would try for ever, and never say why not.

    Raises:
        GatewayUnreachable: it is too long, nothing is there, or this process may not use it.
    """
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH_BYTES:
        raise GatewayUnreachable(f"socket path {path} takes {size} bytes, at most {MAX_SOCKET_PATH_BYTES} are allowed")
    if may_use(path, os.R_OK | os.W_OK):
        return
    try:
        path.stat()
    except OSError as error:
        if not isinstance(error, PermissionError):
            raise GatewayUnreachable(f"there is no socket {path}") from None
    raise GatewayUnreachable(f"the socket {path} may not be used: {explain(path)}")


def _milliseconds_until(deadline: float) -> int:
    return max(0, round((deadline - time.monotonic()) * 1000))
