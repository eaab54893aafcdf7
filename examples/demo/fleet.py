"""The demo's engine processes: how they are started, what they have said, how they are ended.

Owns: those processes and their latest figures. Must not know: gateways. Runs on the demo's main thread; one thread an
engine reads its standard output.
"""

import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import msgspec

from examples.demo.lines import Figures, Plan
from examples.demo.sizes import NUM_ENGINES, Sizes

_CLOSE_SECONDS = 20.0


class EngineFailedError(Exception):
    """An engine process ended before it was told to; the message ends with the last lines of its log."""


class Fleet:
    """All engines of the demo."""

    def __init__(self, home: Path, run_dir: Path, sizes: Sizes, trace: str) -> None:
        self._home = home
        self._inbox: queue.SimpleQueue[tuple[str, Figures | None]] = queue.SimpleQueue()
        self.figures: dict[str, Figures] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._is_closing = False
        for index in range(NUM_ENGINES):
            name = f"engine-{index}"
            self.figures[name] = Figures()
            plan = Plan(str(run_dir), name, index, NUM_ENGINES, sizes.layers, trace)
            self._processes[name] = self._start(plan)

    @property
    def requests(self) -> int:
        """Requests served so far, by all."""
        return sum(figures.requests for figures in self.figures.values())

    @property
    def is_idle(self) -> bool:
        """Whether every engine has served its share and settled its operations."""
        return all(figures.event == "idle" for figures in self.figures.values())

    def listen(self, seconds: float) -> None:
        """Take what engines say, for so long.

        Raises:
            EngineFailedError: an engine has ended.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                name, figures = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            if figures is None:
                if self._is_closing:
                    continue
                raise EngineFailedError(f"{name} has ended with {self._processes[name].wait()}\n{self._log_tail(name)}")
            self.figures[name] = figures

    def stop(self) -> None:
        """Let engines take no further request."""
        for process in self._processes.values():
            assert process.stdin is not None  # noqa: S101 - said PIPE below
            process.stdin.write(b"stop\n")
            process.stdin.flush()

    def close(self) -> list[int]:
        """End the engines and wait; returns their exit statuses. An engine that does not end is killed."""
        self._is_closing = True
        for process in self._processes.values():
            assert process.stdin is not None  # noqa: S101 - said PIPE below
            process.stdin.close()
        deadline = time.monotonic() + _CLOSE_SECONDS
        statuses = []
        for process in self._processes.values():
            try:
                statuses.append(process.wait(max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.kill()
                statuses.append(process.wait())
        self._processes.clear()
        return statuses

    def _start(self, plan: Plan) -> "subprocess.Popen[bytes]":
        with self._log(plan.name).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "examples.demo.engine", msgspec.json.encode(plan).decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert process.stdout is not None  # noqa: S101 - said PIPE above
        threading.Thread(target=self._read, args=(plan.name, process.stdout), daemon=True).start()
        return process

    def _read(self, name: str, output: IO[bytes]) -> None:
        with output:
            for line in output:
                self._inbox.put((name, msgspec.json.decode(line, type=Figures)))
        self._inbox.put((name, None))

    def _log(self, name: str) -> Path:
        return self._home / f"{name}.log"

    def _log_tail(self, name: str, lines: int = 15) -> str:
        return "\n".join(self._log(name).read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
