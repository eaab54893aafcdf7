"""An engine in a process of its own, for tests that stop and kill it.

``python -m tests.support.engine_process RUN_DIR MODE``, with the modes:

stop-in-copy: stores two chunks; the first copy does half of its work and stops the whole process (SIGSTOP). Continued,
it does the rest and writes a line.
"""

import ctypes
import json
import os
import signal
import sys
import threading
from array import array
from pathlib import Path

from gateway.wire.codes import Reason
from tests.support.engine import Engine, blocks, tokens

SEED = 77


def say(event: str) -> None:
    print(json.dumps({"event": event}), flush=True)


def half_then_stop(unit, mapping, copier) -> Reason:
    """Copy the first half of the slot, stop this process, then copy the rest."""
    size = copier.chunk_bytes(len(unit.block_ids))
    made = array("b", bytes(size))
    copier.gather(unit.block_ids, made.buffer_info()[0])
    slot = mapping.data_address + unit.offset
    ctypes.memmove(slot, made.buffer_info()[0], size // 2)
    os.kill(os.getpid(), signal.SIGSTOP)
    ctypes.memmove(slot + size // 2, made.buffer_info()[0] + size // 2, size - size // 2)
    say("copied")
    return Reason.NONE


def main() -> None:
    run_dir, mode = Path(sys.argv[1]), sys.argv[2]
    assert mode == "stop-in-copy", mode
    with Engine(run_dir, name="stopping", copy=half_then_stop, heartbeat_seconds=0.2) as engine:
        engine.wait_healthy()
        engine.fill(blocks(2), SEED)
        engine.store("r", tokens(2, seed=SEED), blocks(2))
        threading.Event().wait()  # until killed


if __name__ == "__main__":
    main()
