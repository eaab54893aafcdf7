"""An engine in a process of its own, for tests that stop and kill it.

``python -m tests.support.engine_process RUN_DIR MODE``, with the modes:

stop-in-copy: stores two chunks; the first copy does half of its work and stops the whole process (SIGSTOP). Continued,
it does the rest and writes a line.

handle-pending: in handle mode, fifty stores whose events never fire; writes a line when all are submitted.

breed: a fresh engine like that for each line on stdin; its process id is the line that comes back.
"""

import ctypes
import json
import os
import signal
import sys
import threading
from array import array
from pathlib import Path

from adapter.actions import Unit
from adapter.transfer.chunks import copy_unit
from gateway.device import HostEvent
from gateway.device.copy import ChunkCopier
from gateway.pool.mapping import PoolMapping
from gateway.wire.codes import Reason
from tests.support.engine import Engine, blocks, tokens

SEED = 77


def say(event: str) -> None:
    print(json.dumps({"event": event}), flush=True)


class HalfThenStop:
    """Copies a unit; the first one only by half, then stops this process, and does the rest when it is continued."""

    def __init__(self) -> None:
        self._has_stopped = False

    def __call__(self, unit: Unit, mapping: PoolMapping, copier: ChunkCopier) -> Reason:
        if self._has_stopped:
            return copy_unit(unit, mapping, copier)
        self._has_stopped = True
        size = copier.chunk_bytes(len(unit.block_ids))
        made = array("b", bytes(size))
        source = made.buffer_info()[0]
        copier.gather(unit.block_ids, source)
        slot = mapping.data_address + unit.offset
        ctypes.memmove(slot, source, size // 2)
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this very thread goes no further
        ctypes.memmove(slot + size // 2, source + size // 2, size - size // 2)
        say("copied")
        return Reason.NONE


def stop_in_copy(run_dir: Path) -> None:
    with Engine(run_dir, name="stopping", copy=HalfThenStop(), heartbeat_seconds=0.2) as engine:
        engine.wait_healthy()
        engine.fill(blocks(2), SEED)
        engine.store("r", tokens(2, seed=SEED), blocks(2))
        threading.Event().wait()  # until killed


def handle_pending(run_dir: Path) -> None:
    with Engine(run_dir, name="pending", transfer="handle", num_blocks=128) as engine:
        engine.wait_healthy()
        events = [HostEvent(run_dir) for _ in range(50)]
        for i, event in enumerate(events):
            engine.store(f"r{i}", tokens(1, seed=i), blocks(1, first=2 * i), event)
        say("submitted")
        threading.Event().wait()  # until killed


def breed(run_dir: Path) -> None:
    """One such engine, forked, for each line that comes; the next when the last is dead. Importing is paid for once."""
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            stop_in_copy(run_dir)
        print(child, flush=True)
        os.waitpid(child, 0)


def main() -> None:
    modes = {"stop-in-copy": stop_in_copy, "handle-pending": handle_pending, "breed": breed}
    modes[sys.argv[2]](Path(sys.argv[1]))


if __name__ == "__main__":
    main()
