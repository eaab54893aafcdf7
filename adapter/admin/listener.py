"""The socket an adapter's admin server listens on.

Owns: binding it, the private directory of Unix sockets, and taking the file away. Must not know: HTTP. Made on the
engine's thread, closed on the server's.

Unix sockets lie in one directory of the user, ``kvgate-adapters-<uid>`` beside other temporary files, which nobody else
may enter. A socket gets its name, the party's id, once it listens; files of engines that were killed are swept by the
next one.
"""

import contextlib
import os
import socket
import stat
import tempfile
from pathlib import Path

from adapter.admin.address import Address
from gateway.wire.messages import MAX_SOCKET_PATH_BYTES

_BACKLOG = 16


class Listener:
    """A listening socket. ``url`` is ``http://HOST:PORT``, or ``unix:PATH``."""

    def __init__(self, listening: socket.socket, url: str, path: Path | None = None) -> None:
        self.socket = listening
        self.url = url
        self._path = path
        # A forked child would keep the address taken after this process is gone.
        os.register_at_fork(after_in_child=listening.close)

    @classmethod
    def open(cls, address: Address, party: bytes) -> "Listener":
        """Listen.

        Raises:
            OSError: the address cannot be taken, or the private directory is not private.
        """
        return _open_unix(party) if address.is_unix else _open_tcp(address)

    def close(self) -> None:
        """Listen no more, and take the file away. Harmless when repeated."""
        self.socket.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def private_directory() -> Path:
    """Where this user's Unix sockets lie; made when it is not there.

    Raises:
        OSError: it is another's, a link, or open to others.
    """
    path = Path(tempfile.gettempdir()) / f"kvgate-adapters-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise OSError(
            f"{path} has mode {stat.S_IMODE(status.st_mode):o} and uid {status.st_uid}, expected a directory of uid "
            f"{os.geteuid()} with mode 700"
        )
    return path


def _open_tcp(address: Address) -> Listener:
    host, port = address.host, address.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    shown = f"[{host}]" if ":" in host else host
    try:
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise OSError(
            f"cannot listen on admin address {shown}:{port}: {error}; several workers of one machine need ports of "
            "their own (port 0 takes a free one), or 'unix'"
        ) from error
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Listener(listening, f"http://{shown}:{listening.getsockname()[1]}")


def _open_unix(party: bytes) -> Listener:
    directory = private_directory()
    _sweep(directory)
    path = directory / f"{party.hex()}.sock"
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH_BYTES:
        raise OSError(f"socket path {path} takes {size} bytes, at most {MAX_SOCKET_PATH_BYTES} are allowed")
    fresh = path.with_suffix(".new")
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(str(fresh))
        listening.listen(_BACKLOG)
        fresh.rename(path)
    except BaseException:
        listening.close()
        fresh.unlink(missing_ok=True)
        raise
    return Listener(listening, f"unix:{path}", path)


def _sweep(directory: Path) -> None:
    """Remove the sockets nobody listens on."""
    for path in directory.glob("*.sock"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                continue  # somebody listens, and is busy
