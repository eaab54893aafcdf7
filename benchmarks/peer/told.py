"""A process that does what it is told, a line of JSON at a time, seen by whoever tells it.

Owns: that process. Its other end is ``tests.engine.lines``.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.support.daemon import REPOSITORY

#: The environment of scripts/setup-peer.
PEER_PYTHON = REPOSITORY / ".venv-peer" / "bin" / "python"
#: Of every engine: where others want the cores too, threads of torch that spin keep each other waiting.
ENVIRONMENT = {"GOMP_SPINCOUNT": "0"}
#: It says nothing that nobody asked for, and sends nothing home.
PEER_ENVIRONMENT = {
    "LMCACHE_DISABLE_BANNER": "1",
    "LMCACHE_LOG_LEVEL": "WARNING",
    "LMCACHE_TRACK_USAGE": "false",
    "PYTHONPATH": str(REPOSITORY),
}


class ToldError(Exception):
    """It could not do what it was told, or did not answer; its last words are in the message."""


class Told:
    """The process; commands are the methods of the object that its module serves.

    Args:
        module: what to run.
        settings: what it is made with.
        python: in which environment.
        environment: variables over those of this process.
    """

    def __init__(
        self,
        module: str,
        settings: Mapping[str, Any],
        *,
        python: Path = Path(sys.executable),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [str(python), "-m", module, json.dumps(settings)],
            cwd=REPOSITORY,
            env={**os.environ, **ENVIRONMENT, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._buffer = b""

    def tell(self, command: str, **arguments: Any) -> Self:
        """Give a command and do not wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **arguments}).encode() + b"\n")
        self._process.stdin.flush()
        return self

    def hear(self, seconds: float = 120.0) -> Any:
        """The answer to the command given longest ago; the first line says that it is ready.

        Raises:
            ToldError: the command failed, the process ended, or no answer came in time.
        """
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(descriptor, 1 << 16) if ready else b""
            if not data:
                raise ToldError(f"{'it ended' if ready else 'no answer in time'}:\n{self._words()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply = json.loads(line)
        if "error" in reply:
            raise ToldError(f"{reply['error']}\n{self._words()}")
        return reply["answer"]

    def ask(self, command: str, **arguments: Any) -> Any:
        """Give a command and wait for its answer."""
        return self.tell(command, **arguments).hear()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        if self._process.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()  # it ends when nobody tells it anything any more
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            assert stream is not None
            stream.close()

    def _words(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-3000:]
