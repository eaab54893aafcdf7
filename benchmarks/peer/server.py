"""LMCache's multi-process server in a process of its own, on free ports of the loopback.

Owns: that process, its command line, and its shared memory, which is removed in the end.
"""

import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from benchmarks.peer.told import ENVIRONMENT, PEER_ENVIRONMENT, PEER_PYTHON
from tests.support.daemon import REPOSITORY
from tests.support.poll import until

SHM = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is


class Server:
    """Starts, stops, kills, pauses and restarts one server.

    Args:
        name: of its shared memory.
        pool_gib: the pool's size.
    """

    def __init__(self, name: str, pool_gib: float) -> None:
        self._name = name
        self._pool_gib = pool_gib
        self._port = _free_port()
        self.url = f"tcp://localhost:{self._port}"
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - closed with the server
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it and wait until its port takes connections."""
        words = (
            f"server --port {self._port} --http-port {_free_port()} --prometheus-port {_free_port()}"
            f" --supported-transfer-mode auto --shm-name {self._name} --no-l1-use-lazy"
            f" --l1-size-gb {self._pool_gib} --eviction-policy LRU"
        )
        self._process = subprocess.Popen(
            [str(PEER_PYTHON.with_name("lmcache")), *words.split()],
            cwd=REPOSITORY,
            env={**os.environ, **ENVIRONMENT, **PEER_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        until(self._takes_connections, 120, "LMCache's server takes connections")
        return self

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(60)

    def pause(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def shared_files(self) -> list[Path]:
        """What of it lies in shared memory: its pool's name has ours in it."""
        return [path for path in SHM.iterdir() if self._name in path.name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.go_on()
            self._signal(signal.SIGTERM)
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()
        for path in self.shared_files():
            path.unlink()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _takes_connections(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"it ended:\n{self._words()}"
        try:
            socket.create_connection(("127.0.0.1", self._port), 1).close()
        except OSError:
            time.sleep(0.001)
            return False
        return True

    def _words(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-3000:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
