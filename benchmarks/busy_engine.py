"""An engine in a process of its own, for rows that need one busy or dead.

Owns: that process and how it is told. ``python -m benchmarks.busy_engine RUN_DIR`` is the process: a line with a number
of seconds makes it store and retrieve prompts for so long; ``hold`` makes it hold reservations until it is killed.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from adapter import LoadStoreOp
from benchmarks.engine import BLOCKS_PER_CHUNK, Engine, Event, kv_cache, new_keys, scattered

#: A small engine: 256 MiB of KV blocks, so that several fit a machine.
CHUNKS = 8


class BusyEngine:
    """The process, seen by the row that runs it. It is healthy when this is made."""

    def __init__(self, run_dir: Path) -> None:
        words = [sys.executable, "-m", __name__, str(run_dir)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.wait()

    def copy_for(self, seconds: float) -> None:
        """Let it copy for so long; ``wait`` waits for the end."""
        self._tell(str(seconds))

    def hold(self) -> None:
        """Let it hold reserved slots; returns when they are granted."""
        self._tell("hold")
        self.wait()

    def wait(self) -> None:
        """Wait until it has done what it was told."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "an engine has ended"

    def kill(self) -> None:
        """SIGKILL. Returns at once: the kernel has its memory to take down."""
        self._process.kill()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def _serve(run_dir: Path) -> None:
    blocks = scattered(CHUNKS * BLOCKS_PER_CHUNK)
    with Engine(run_dir, kv_cache(num_blocks=len(blocks))) as engine:
        print("ready", flush=True)
        for line in sys.stdin:
            if line.strip() == "hold":
                _hold(engine, blocks)
            else:
                _copy_until(engine, blocks, time.monotonic() + float(line))
            print("done", flush=True)


def _copy_until(engine: Engine, blocks: list[int], end: float) -> None:
    """It is a load, whatever comes of it: on a machine that starves it an operation may expire."""
    while time.monotonic() < end:
        op = LoadStoreOp(new_keys(CHUNKS), blocks)
        for submit in (engine.worker.submit_store_request, engine.worker.submit_retrieve_request):
            submit("load", op)
            assert engine.worker.wait_settled(60)
        engine.worker.get_finished()
        engine.worker.get_block_ids_with_load_errors()


def _hold(engine: Engine, blocks: list[int]) -> None:
    """Stores whose event never fires: they are granted, and go no further."""
    engine.worker.submit_store_request("held", LoadStoreOp(new_keys(CHUNKS), blocks), Event(has_fired=False))


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
