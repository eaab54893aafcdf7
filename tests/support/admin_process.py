"""A real admin process beside a core double (or any other core): ``python -m gateway.admin`` on a free port."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import httpx

from tests.support.poll import until

REPOSITORY = Path(__file__).resolve().parents[2]


class AdminProcess:
    """Starts the process and waits until it listens; stops it on the way out.

    Args:
        run_dir: of the core; its admin directory is beside it.
        arguments: more words of the command line.
        settings: KVGATE_ variables.
    """

    def __init__(self, run_dir: Path, *arguments: str, settings: Mapping[str, str] | None = None) -> None:
        self._file = run_dir.with_name(run_dir.name + ".admin") / "admin.json"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}
        self._command = [sys.executable, "-m", "gateway.admin", "--run-dir", str(run_dir), *arguments]
        self._environ = {**environ, "KVGATE_ADMIN": "127.0.0.1:0", **(settings or {})}
        self._error_file = run_dir.with_name("admin.stderr")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        with self._error_file.open("wb") as errors:
            self._process = subprocess.Popen(
                self._command, cwd=REPOSITORY, env=self._environ, stdin=subprocess.DEVNULL, stderr=errors
            )
        until(lambda: self._file.exists() or self._process.poll() is not None, 30, "the admin process listens")
        return self

    def run(self) -> int:
        """Start it where it is expected to refuse; the exit code."""
        self.start()
        return self._process.wait(30)

    @property
    def url(self) -> str:
        assert self._process.poll() is None, self.stderr
        return json.loads(self._file.read_text())["url"]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def announces(self) -> bool:
        return self._file.exists()

    @property
    def stderr(self) -> str:
        return self._error_file.read_text(errors="replace")

    def client(self, **headers: str) -> httpx.Client:
        """A client of the control listener."""
        return httpx.Client(base_url=self.url, headers=headers, timeout=20, trust_env=False)

    def stop(self, seconds: float = 20) -> int:
        self._process.terminate()
        return self._process.wait(seconds)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
