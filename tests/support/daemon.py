"""A real ``kvgate serve`` in a private directory of /dev/shm, with a tiny pool and free ports."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from gateway.client import GatewayClient
from gateway.wire.messages import SnapshotReply, SnapshotRequest
from tests.support import processes
from tests.support.poll import until
from tests.support.raw import RawDealer

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-c", "from gateway.cli.main import main; main()")

#: Small and quick: a pool of 32 slabs of 256 KiB, short timers. A test may override each.
SETTINGS: Mapping[str, str] = {
    "KVGATE_POOL_SIZE": "8MiB",
    "KVGATE_SLAB_SIZE": "256KiB",
    "KVGATE_MIN_CHUNK_BYTES": "4KiB",
    "KVGATE_ADMIN": "127.0.0.1:0",
    "KVGATE_HEARTBEAT_SECONDS": "0.2",
    "KVGATE_LEASE_SECONDS": "3",
    "KVGATE_RESERVATION_SECONDS": "3",
    "KVGATE_STOP_DEADLINE_SECONDS": "2",
    "KVGATE_WATCHDOG_SECONDS": "0",
    "KVGATE_START_LOCK_WAIT_SECONDS": "10",
    "KVGATE_VERIFY": "1",
}

#: What the daemon logs when a request, a chore or an invariant failed by a defect of its own.
DEFECTS = ("request_failed", "chore_failed", "reply_not_encoded", "copy_step_failed", "frame_failed")


class Daemon:
    """Starts, stops, kills, pauses and restarts one daemon; what it leaves behind fails the test.

    A context manager: on the way out the daemon is stopped, no process of it may be left, its private directory goes.

    Args:
        settings: KVGATE_ variables over ``SETTINGS``; an empty value takes one away.
        arguments: more words for ``kvgate serve``.
        own_run_dir: False: no ``--run-dir``; the daemon makes a temporary one.
        base: a directory for ``run`` and the logs that the caller removes; None: one of its own.
        umask: the daemon's; -1: the caller's.
        prefix: words before the command, to run it elsewhere.
    """

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        *,
        own_run_dir: bool = True,
        base: Path | None = None,
        umask: int = -1,
        prefix: tuple[str, ...] = (),
    ) -> None:
        self._owns_base = base is None
        self.base = base or Path(tempfile.mkdtemp(prefix="kvgate-test-", dir="/dev/shm"))
        self.run_dir = self.base / "run"
        self._umask = umask
        self._prefix = prefix
        self._settings = {**SETTINGS, **(settings or {})}
        self._arguments = (*(("--run-dir", str(self.run_dir)) if own_run_dir else ()), *arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: list[int] = []
        self._starts = 0
        self.ready_line: dict[str, object] = {}

    # -- life
    def spawn(self) -> "Daemon":
        """Start the process and return at once."""
        self._starts += 1
        environ = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}
        environ.update({name: value for name, value in self._settings.items() if value})
        with self._out.open("wb") as out, self._err.open("ab") as err:
            self._process = subprocess.Popen(
                [*self._prefix, *COMMAND, "serve", *self._arguments],
                cwd=REPOSITORY,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                umask=self._umask,
            )
        self._sessions.append(self._process.pid)
        return self

    def start(self, seconds: float = 30.0) -> "Daemon":
        """Start the process and wait for its ready line."""
        self.spawn()
        return self.wait_ready(seconds)

    def wait_ready(self, seconds: float = 30.0) -> "Daemon":
        def line() -> str:
            assert self._running.poll() is None, f"serve exited with {self._running.returncode}:\n{self.stderr}"
            text = self._out.read_text()
            return text if text.endswith("\n") else ""

        self.ready_line = json.loads(until(line, seconds, "a ready line"))
        self.run_dir = Path(str(self.ready_line["run_dir"]))
        return self

    def stop(self, number: int = signal.SIGTERM, seconds: float = 30.0) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        self.signal(number)
        return self.wait(seconds)

    def kill(self) -> None:
        """SIGKILL the core, as a crash would, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def pause(self) -> None:
        """SIGSTOP the core."""
        self.signal(signal.SIGSTOP)
        until(lambda: processes.state(self.pid) == "T", what="the core stopped")

    def go_on(self) -> None:
        """SIGCONT the core."""
        self.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        self._running.send_signal(number)

    def wait(self, seconds: float = 30.0) -> int:
        return self._running.wait(timeout=seconds)

    # -- talk
    def client(self, timeout_seconds: float = 5.0) -> GatewayClient:
        """A client of the shared socket."""
        return GatewayClient(self.socket, timeout_seconds=timeout_seconds)

    def admin_client(self, timeout_seconds: float = 5.0) -> GatewayClient:
        """A client of the admin socket."""
        return GatewayClient(self.admin_socket, timeout_seconds=timeout_seconds)

    def dealer(self) -> RawDealer:
        """A bare socket on the shared socket."""
        return RawDealer(self.socket)

    def snapshot(self, *, transfers: bool = False) -> SnapshotReply:
        with self.admin_client() as client:
            reply = client.request(SnapshotRequest(number=0, transfers=transfers))
        assert isinstance(reply, SnapshotReply)
        return reply

    # -- look
    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._running.poll()

    @property
    def socket(self) -> Path:
        return self.run_dir / "gateway.sock"

    @property
    def admin_dir(self) -> Path:
        return self.run_dir.with_name(self.run_dir.name + ".admin")

    @property
    def admin_socket(self) -> Path:
        return self.admin_dir / "admin.sock"

    @property
    def pool(self) -> Path:
        return self.run_dir / "pool"

    @property
    def admin_url(self) -> str:
        return str(self.ready_line["admin_url"])

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        """All that every start of this daemon has written."""
        return self._err.read_text(errors="replace") if self._err.exists() else ""

    def log_lines(self, event: str = "") -> list[dict[str, object]]:
        """The JSON lines of stderr, of one event where it is named."""
        lines = [json.loads(line) for line in self.stderr.splitlines() if line.startswith("{")]
        return [line for line in lines if not event or line.get("event") == event]

    def processes(self) -> list[int]:
        """Every process of this daemon that lives, of all its starts."""
        return [pid for session in self._sessions for pid in processes.of_session(session)]

    # -- end
    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGTERM)
            try:
                self.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()
        try:
            until(lambda: not self.processes(), 10, "no process of the daemon left")
            defects = [line for name in DEFECTS for line in self.log_lines(name)]
            assert not defects, json.dumps(defects, indent=1)
        finally:
            for pid in self.processes():
                os.kill(pid, signal.SIGKILL)
            if self._owns_base:
                shutil.rmtree(self.base, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    @property
    def _out(self) -> Path:
        return self.base / f"stdout-{self._starts}"

    @property
    def _err(self) -> Path:
        return self.base / "stderr"
