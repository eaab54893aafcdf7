"""Passing open files from an engine to the gateway: memory that has no name on any file system.

Owns: one Unix datagram socket in the gateway's directory, and the files that came through it and are not taken yet.
Must not know: what they hold. ``send`` may run on any thread; an ``Inlet`` belongs to the gateway's loop.

The memory of an engine's tensors is an unlinked file. Another process of the same PID namespace could open it under
/proc; one in another container cannot, though it shares the directory. A socket in that directory can carry the file
itself. Each comes with a random token; the REGISTER that follows names it. What is sent before that message is there
when the message is read.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from gateway.device.base import DeviceError

#: The socket's name in the gateway's directory.
SOCKET = "handles.sock"
TOKEN_BYTES = 16
#: Files in one datagram; Linux takes 253.
MAX_FILES_A_DATAGRAM = 128
#: Files that wait to be taken.
MAX_WAITING = 4096
#: Nobody asks for a file that has waited longer.
MAX_WAIT_SECONDS = 30.0
#: The gateway empties its socket every 0.1 s; the kernel holds ten datagrams for it meanwhile.
SEND_SECONDS = 0.3


def send(path: str | os.PathLike[str], files: Sequence[tuple[bytes, int]]) -> None:
    """Pass these (token, descriptor) pairs; the descriptors stay the caller's.

    Raises:
        DeviceError: nobody listens at ``path``, or it does not take them at once.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(SEND_SECONDS)
        try:
            sender.connect(os.fspath(path))
            for start in range(0, len(files), MAX_FILES_A_DATAGRAM):
                tokens, fds = zip(*files[start : start + MAX_FILES_A_DATAGRAM], strict=True)
                socket.send_fds(sender, [b"".join(tokens)], list(fds))
        except OSError as error:
            raise DeviceError(f"memory cannot be passed through {os.fspath(path)}: {error}") from None


class Inlet:
    """Where files arrive. They are this process's from then on, until taken or too old.

    Args:
        path: of the socket; one that is there is a dead daemon's and is replaced.
        mode: of the socket's file.
        gid: of the socket's file; -1: as it comes.

    Raises:
        OSError: it cannot be bound.
    """

    def __init__(self, path: str | os.PathLike[str], *, mode: int = 0o600, gid: int = -1) -> None:
        self._path = Path(path)
        self._waiting: dict[bytes, tuple[int, float]] = {}  # oldest first
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind(os.fspath(self._path))
            os.chown(self._path, -1, gid)
            self._path.chmod(mode)
        except BaseException:
            self._socket.close()
            raise

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, token: bytes) -> int:
        """The descriptor that came with this token; it is the caller's now.

        Raises:
            DeviceError: none came, or it waited too long.
        """
        self.receive()
        waiting = self._waiting.pop(token, None)
        if waiting is None:
            raise DeviceError(f"no memory came through {self._path} under the token {token.hex()}")
        return waiting[0]

    def receive(self) -> None:
        """Take in what has arrived, and close what nobody asked for. Never waits."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data, fds, _, _ = socket.recv_fds(self._socket, TOKEN_BYTES * MAX_FILES_A_DATAGRAM, 253)
                self._keep(data, fds)
        now = time.monotonic()
        for token, (fd, since) in list(self._waiting.items()):
            if len(self._waiting) <= MAX_WAITING and now - since <= MAX_WAIT_SECONDS:
                break
            os.close(fd)
            del self._waiting[token]

    def close(self) -> None:
        """Take nothing more; close what waits, remove the socket."""
        self._socket.close()
        self._path.unlink(missing_ok=True)
        for fd, _ in self._waiting.values():
            os.close(fd)
        self._waiting.clear()

    def _keep(self, data: bytes, fds: list[int]) -> None:
        tokens = [data[start : start + TOKEN_BYTES] for start in range(0, len(data), TOKEN_BYTES)]
        if len(data) != TOKEN_BYTES * len(fds) or len(set(tokens)) != len(fds) or self._waiting.keys() & set(tokens):
            for fd in fds:
                os.close(fd)
            return
        now = time.monotonic()
        for token, fd in zip(tokens, fds, strict=True):
            os.set_inheritable(fd, False)
            self._waiting[token] = (fd, now)
