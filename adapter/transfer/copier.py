"""The threads that copy chunks.

Owns: a queue of units and the threads that take them. Must not know: the ledger, memory.

The threads run at a lower priority than the engine's: a copy keeps a core busy for milliseconds, and the engine's
thread, the link and the gateway's loop need one for microseconds. (Two busy copiers at equal priority made the 99th
percentile of a lookup fourteen times as long, at this one half as long again.)
"""

import contextlib
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from adapter.actions import CopyChunk

NICE = 10


class CopyThreads:
    """Calls ``copy`` for each chunk put, on one of its threads, in the order they were put."""

    def __init__(self, num_threads: int, copy: Callable[[CopyChunk], None], name: str) -> None:
        self._copy = copy
        self._queue: SimpleQueue[CopyChunk | None] = SimpleQueue()  # bounded by what the ledger lets be granted
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True) for i in range(num_threads)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def put(self, chunk: CopyChunk) -> None:
        """Queue one unit. Any thread; never waits."""
        self._queue.put(chunk)

    def close(self) -> None:
        """Let each thread end after what is queued."""
        for _ in self._threads:
            self._queue.put(None)

    def join(self, timeout_seconds: float) -> None:
        """Wait for the end of the threads."""
        for thread in self._threads:
            thread.join(timeout_seconds)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # a sandbox may forbid it; then copies compete with the engine
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while (chunk := self._queue.get()) is not None:
            self._copy(chunk)
