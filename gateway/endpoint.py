"""One ROUTER socket of the daemon: frames in, frames out, and what happens to its connections.

Owns: the socket, its limits, the mode of its file, its monitor. Must not know: messages. Belongs to the loop's thread.

Limits: a frame over MAX_FRAME_BYTES ends its connection before it is buffered; what a peer does not read is dropped
after a bounded number of replies. A peer cannot take another's place: a second connection under a live one's identity
is refused.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import zmq
from zmq.utils.monitor import parse_monitor_message

from gateway.wire.messages import MAX_FRAME_BYTES

_MAX_QUEUED = 1000
_CONNECTION_EVENTS: dict[int, str] = {
    zmq.EVENT_ACCEPTED: "accepted",
    zmq.EVENT_DISCONNECTED: "closed",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "handshake_failed",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "handshake_failed",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "handshake_failed",
}


class Endpoint:
    """A bound socket. ``is_admin``: operators' messages are served on it."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", path: Path, *, is_admin: bool, mode: int, gid: int
    ) -> None:
        """Bind ``path``; a stale socket file there is replaced.

        Args:
            context: outlives the endpoint.
            path: of the Unix socket.
            is_admin: see the class.
            mode: of the socket file, whatever the umask.
            gid: its group; -1 leaves it.

        Raises:
            OSError: it cannot be bound, or its mode cannot be set.
        """
        self.path = path
        self.is_admin = is_admin
        self.socket = context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.LINGER, 200),  # what was answered last still goes out
            (zmq.MAXMSGSIZE, MAX_FRAME_BYTES),
            (zmq.RCVHWM, _MAX_QUEUED),
            (zmq.SNDHWM, _MAX_QUEUED),
            (zmq.ROUTER_HANDOVER, 0),
        ):
            self.socket.setsockopt(option, value)
        self.monitor = self.socket.get_monitor_socket(sum(_CONNECTION_EVENTS))
        try:
            self._bind(mode, gid)
        except BaseException:
            self._close_sockets()  # an open socket would keep the context from ending
            raise

    def _bind(self, mode: int, gid: int) -> None:
        previous_umask = os.umask(0o777 & ~mode)
        try:
            self.socket.bind(f"ipc://{self.path}")
        except zmq.ZMQError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), str(self.path)) from None
        finally:
            os.umask(previous_umask)
        os.chown(self.path, -1, gid)
        self.path.chmod(mode)

    def receive(self, limit: int) -> Iterator[list[bytes]]:
        """Up to ``limit`` messages that wait, as their frames; the first frame is who sent it."""
        for _ in range(limit):
            try:
                yield self.socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return

    def send(self, peer: bytes, frame: bytes) -> None:
        """Answer a peer; one that has gone, or does not read, gets nothing."""
        self.socket.send_multipart((peer, frame), zmq.DONTWAIT)

    def has_more(self) -> bool:
        """Whether messages wait."""
        return bool(self.socket.poll(0, zmq.POLLIN))

    def connection_events(self) -> Iterator[str]:
        """What happened to connections since the last call, in the words of the metrics table."""
        while self.monitor.poll(0):
            event = parse_monitor_message(self.monitor.recv_multipart(zmq.DONTWAIT))
            yield _CONNECTION_EVENTS[event["event"]]

    def close(self) -> None:
        """Unbind, close, and remove the socket file."""
        self._close_sockets()
        self.path.unlink(missing_ok=True)

    def _close_sockets(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
