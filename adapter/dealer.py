"""One DEALER socket and what it is polled with.

Owns: a ZeroMQ context of its own, a socket that is made when something is sent, the poller. Must not know: messages,
boots. Belongs to the link thread; made and closed there.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import zmq

#: Messages the socket holds for a gateway that does not read.
SEND_QUEUE = 8192


class Dealer:
    """A socket that can be thrown away, with all it has queued, and is made anew by the next ``send``.

    Args:
        path: of the Unix socket.
        bell: a descriptor to be polled beside it.
    """

    def __init__(self, path: Path, bell: int) -> None:
        self._address = f"ipc://{path}"
        self._context = zmq.Context(io_threads=1)  # its own: a shared one does not survive a fork
        self._socket: zmq.Socket[bytes] | None = None
        self._poller = zmq.Poller()
        self._poller.register(bell, zmq.POLLIN)

    def poll(self, until: float) -> None:
        """Wait for a message or the bell, at most until then (monotonic)."""
        self._poller.poll(max(0, math.ceil((until - time.monotonic()) * 1000)))

    def send(self, frame: bytes) -> bool:
        """Hand one frame over, without waiting. False: the queue is full, or the path cannot be connected."""
        try:
            self._connected().send(frame, zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def receive(self) -> bytes | None:
        """The next message's last frame, which holds all of it; None: there is none yet."""
        if self._socket is None:
            return None
        try:
            return self._socket.recv_multipart(zmq.NOBLOCK)[-1]
        except zmq.Again:
            return None

    def disconnect(self) -> None:
        """Close the socket; what it has queued reaches nobody."""
        if self._socket is not None:
            self._poller.unregister(self._socket)
            self._socket.close(linger=0)
            self._socket = None

    def close(self) -> None:
        """Close everything."""
        self.disconnect()
        self._context.term()

    def _connected(self) -> zmq.Socket[bytes]:
        if self._socket is None:
            socket = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, SEND_QUEUE)
            socket.setsockopt(zmq.RECONNECT_IVL, 20)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
            try:
                socket.connect(self._address)
            except zmq.ZMQError:
                socket.close(linger=0)
                raise
            self._poller.register(socket, zmq.POLLIN)
            self._socket = socket
        return self._socket
