"""Entering the pool into this process's page tables, before copies need it.

Owns: one thread that walks through a mapping once and ends. Must not know: what the pool holds.

Page tables belong to a process: the first copy to each page pays for its entry, at a third of its speed. So the pool is
walked through while the engine starts, in small pieces and at the lowest priority. Where the kernel cannot do it, the
first copies are slower, and that is all.
"""

import contextlib
import os
import threading

from gateway.pool.mapping import PoolMapping

PIECE_BYTES = 4 << 20  # well below a millisecond, in which the process can map and unmap nothing
NICE = 19


class Prefault:
    """Walks through one mapping; to be stopped before the mapping is closed."""

    def __init__(self, mapping: PoolMapping) -> None:
        self._mapping = mapping
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvgate-prefault", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the walk; waits for the piece under way."""
        self._stops.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        with contextlib.suppress(OSError):  # Linux before 5.14
            for offset in range(0, self._mapping.data_bytes, PIECE_BYTES):
                if self._stops.is_set():
                    return
                self._mapping.prefault(offset, PIECE_BYTES)
