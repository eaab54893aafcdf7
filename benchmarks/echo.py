"""The yardstick of every message: a bare pyzmq ROUTER that sends back what it gets.

Owns: that process, and the socket that asks it. Must not know: messages. ``python -m benchmarks.echo PATH`` is the
process; it ends when its standard input does.
"""

import subprocess
import sys
from pathlib import Path
from typing import Self

import zmq

from tests.support.poll import until


class Echo:
    """The process. ``path`` is its socket's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._process = subprocess.Popen([sys.executable, "-m", __name__, str(path)], stdin=subprocess.PIPE)
        until(path.exists, what="the echo's socket")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self.path.unlink()


class EchoClient:
    """One DEALER socket to an echo."""

    def __init__(self, path: Path) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(f"ipc://{path}")

    def ask(self, frame: bytes) -> bytes:
        """There and back."""
        self._socket.send(frame)
        return self._socket.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close(linger=0)
        self._context.term()


def _serve(path: str) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    socket = context.socket(zmq.ROUTER)
    socket.bind(f"ipc://{path}")
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    while sys.stdin.fileno() not in dict(poller.poll()):
        while True:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            socket.send_multipart(frames)
    context.destroy(linger=0)


if __name__ == "__main__":
    _serve(sys.argv[1])
