"""The gateway of the demo: the real ``kvgate serve``, its admin API, and its scrape.

Owns: that process and nothing of what is in it. Must not know: engines. Runs on the demo's main thread.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

_KVGATE = (sys.executable, "-c", "from gateway.cli.main import main; main()")  # what the kvgate script does
_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_GONE_SECONDS = 5.0


class Ready(msgspec.Struct, frozen=True):
    """What ``kvgate serve`` prints when it is ready; the fields used here."""

    admin_url: str
    pid: int


class GatewayFailedError(Exception):
    """``kvgate serve`` ended, or did not get ready; the message ends with the last lines of its log."""


@dataclass(frozen=True)
class Scrape:
    """One reading of ``/metrics``: values by name and sorted labels."""

    values: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def value(self, name: str, **labels: str) -> float:
        """One sample.

        Raises:
            KeyError: the scrape does not have it.
        """
        return self.values[name, tuple(sorted(labels.items()))]

    def total(self, name: str) -> float:
        """The sum over all label sets; 0 when there is none."""
        return sum(value for (found, _), value in self.values.items() if found == name)


class Gateway:
    """One ``kvgate serve`` after another, on the same ``run_dir``."""

    def __init__(self, home: Path, pool_bytes: int) -> None:
        self.run_dir = home / "run"
        self._log = home / "gateway.log"
        self._pool_bytes = pool_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._client: httpx.Client | None = None

    def start(self) -> float:
        """Start the daemon and wait until it is ready; returns the seconds that took.

        Raises:
            GatewayFailedError: it ended, or was not ready in time.
        """
        began = time.monotonic()
        arguments = ["--run-dir", str(self.run_dir), "--pool-size", str(self._pool_bytes), "--admin", "127.0.0.1:0"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_KVGATE, "serve", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")},
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        ready = self._wait_ready(self._process)
        self._client = httpx.Client(base_url=ready.admin_url, timeout=15.0)
        return time.monotonic() - began

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel has taken the process down."""
        self._signal(signal.SIGKILL)

    def stop(self) -> int:
        """Stop the daemon as an operator would; returns its exit status. Does nothing when it does not run."""
        return self._signal(signal.SIGTERM)

    def check_alive(self) -> None:
        """See that the daemon has not ended by itself.

        Raises:
            GatewayFailedError: it has.
        """
        if self._process is not None and self._process.poll() is not None:
            raise GatewayFailedError(f"kvgate serve has ended\n{self.log_tail()}")

    def get(self, path: str) -> Any:
        """The JSON answer of the admin API."""
        return self._admin().get(path).raise_for_status().json()

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON answer of the admin API to a change."""
        return self._admin().post(path, json=body or {}).raise_for_status().json()

    def scrape(self) -> Scrape:
        """``/metrics``, now."""
        text = self._admin().get("/metrics").raise_for_status().text
        return Scrape(
            {
                (sample.name, tuple(sorted(sample.labels.items()))): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
        )

    def survivors(self) -> list[int]:
        """Processes that still serve this ``run_dir`` some seconds after the daemon ended: there must be none."""
        deadline = time.monotonic() + _GONE_SECONDS
        while (pids := _processes_naming(str(self.run_dir))) and time.monotonic() < deadline:
            time.sleep(0.05)
        return pids

    def log_tail(self, lines: int = 15) -> str:
        """The end of the daemon's log."""
        text = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def _admin(self) -> httpx.Client:
        if self._client is None:
            raise GatewayFailedError("the gateway does not run")
        return self._client

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> Ready:
        assert process.stdout is not None  # noqa: S101 - said PIPE above
        timer = threading.Timer(_START_SECONDS, process.kill)
        timer.start()
        try:
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            process.wait()
            raise GatewayFailedError(f"kvgate serve ended with {process.returncode}\n{self.log_tail()}")
        return msgspec.json.decode(line, type=Ready)

    def _signal(self, number: signal.Signals) -> int:
        if self._client is not None:
            self._client.close()
            self._client = None
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            status = process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return status


def _processes_naming(text: str) -> list[int]:
    """Processes with ``text`` in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if text.encode() in command:
            found.append(int(folder.name))
    return found
