"""One DEALER socket and what is waited for beside it.

Owns: a ZeroMQ context of its own, a socket that is made when something is sent, what wakes whom. Must not know:
messages, boots. Belongs to whoever has the link's turn, but for ``sleep``; made and closed by the link thread.

Two threads may wait here, the link thread in ``sleep`` and a caller that has the turn in ``wait``. What comes then is
the caller's: the link thread, woken beside it, would want the interpreter's lock in the very moment in which the caller
does. So it sleeps on a set of descriptors that is itself watched, and that watch can be taken away under its sleep.

ZeroMQ's descriptor is readable when the socket *may* have changed, and any call on the socket clears it. So whoever is
about to wait asks ``has_input`` first, while it has the turn.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator
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
        self._sources = select.epoll()  # the socket's descriptor and the bell
        self._sources.register(bell, select.EPOLLIN)
        self._watch = select.epoll()  # the sources, unless a caller waits for them
        self._watch.register(self._sources, select.EPOLLIN)

    def sleep(self, until: float) -> None:
        """Wait for a message or the bell, at most until then (monotonic). The link thread, without the turn."""
        self._watch.poll(max(0.0, until - time.monotonic()))

    def wait(self, until: float) -> None:
        """The same, by a caller that has the turn and keeps it."""
        self._sources.poll(max(0.0, until - time.monotonic()))

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """What comes meanwhile does not wake the link thread."""
        self._watch.modify(self._sources, 0)
        try:
            yield
        finally:
            self._watch.modify(self._sources, select.EPOLLIN)

    def has_input(self) -> bool:
        """Whether a message waits."""
        return self._socket is not None and bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

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
            self._sources.unregister(self._socket.fileno())
            self._socket.close(linger=0)
            self._socket = None

    def close(self) -> None:
        """Close everything."""
        self.disconnect()
        self._context.term()
        self._watch.close()
        self._sources.close()

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
            self._sources.register(socket.fileno(), select.EPOLLIN)
            self._socket = socket
        return self._socket
