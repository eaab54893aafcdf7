"""The engine processes of a run: started, stopped, killed, and what they have told in all their lives."""

import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import msgspec

from tests.chaos.lines import Told
from tests.support.daemon import REPOSITORY


class EngineSeat:
    """One place in the fleet: an engine's name, and the processes that have it one after the other."""

    def __init__(self, name: str, run_dir: Path, home: Path, seed: int, *, manner: str = "") -> None:
        self.name = name
        self._run_dir = run_dir
        self._log = home / f"{name}.log"
        self._seed = seed
        self._manners = manner.split()
        self._lines: queue.SimpleQueue[Told] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self.latest = Told()
        self.earlier: list[Told] = []  #: the last words of those that were killed

    def start(self) -> None:
        """A new process, with a seed that follows from this place's and its number here."""
        seed = 1000 * self._seed + len(self.earlier)
        self.latest = Told()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.engine", str(self._run_dir), self.name, str(seed), *self._manners],
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._lines = queue.SimpleQueue()
        threading.Thread(target=_read, args=(self._running.stdout, self._lines), daemon=True).start()

    def listen(self) -> None:
        """Take what it has said."""
        while not self._lines.empty():
            self.latest = self._lines.get()

    def kill(self) -> None:
        """SIGKILL, and another in its place."""
        self.listen()
        self._running.kill()
        self._running.wait()
        self._close_pipes()
        self.earlier.append(self.latest)
        self.start()

    def leave(self) -> None:
        """Let it settle and leave, in its own time; ``follow`` it when it is gone."""
        self._running.stdin.close()

    def follow(self) -> int:
        """Another in the place of one that has left; how that one ended."""
        self.listen()
        self.earlier.append(self.latest)
        status = self._running.wait()
        self.start()
        return status

    def pause(self) -> None:
        """SIGSTOP."""
        self._running.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._running.send_signal(signal.SIGCONT)

    def rest(self) -> None:
        """Let it take no further prompt."""
        self._running.stdin.write(b"\n")
        self._running.stdin.flush()

    def end(self, seconds: float) -> int:
        """Let it leave; its exit status."""
        self.go_on()
        self._running.stdin.close()
        try:
            status = self._running.wait(seconds)
        except subprocess.TimeoutExpired:
            self._running.kill()
            status = self._running.wait()
        self._close_pipes()
        return status

    @property
    def is_running(self) -> bool:
        """Whether it has not ended by itself."""
        return self._running.poll() is None

    @property
    def pid(self) -> int:
        """Of the process that is there now."""
        return self._running.pid

    @property
    def log(self) -> str:
        """All that its processes wrote to standard error."""
        return self._log.read_text(errors="replace")

    def total(self, name: str) -> int:
        """A count over all processes of this place."""
        return sum(getattr(told, name) for told in (*self.earlier, self.latest))

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    def _close_pipes(self) -> None:
        self._running.stdin.close()


def _read(output: IO[bytes], lines: queue.SimpleQueue[Told]) -> None:
    with output:
        for line in output:
            if line.endswith(b"\n"):
                lines.put(msgspec.json.decode(line, type=Told))
