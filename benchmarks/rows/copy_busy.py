"""Copying one chunk while another thread of the process computes in Python, at the default switch interval.

The bar is for the copy itself, on its thread. What a whole operation takes is told beside it: that one changes threads
several times, and each change waits for a switch interval of the busy thread.
"""

import threading
import time

from adapter.actions import Unit
from adapter.transfer.chunks import copy_unit
from benchmarks.engine import BLOCKS_PER_CHUNK, PROMPT_CHUNKS, Engine, kv_cache, new_keys, scattered
from benchmarks.gateway import gateway
from benchmarks.result import Result, median
from benchmarks.row import Plan, main
from gateway.device.base import BlockCopier
from gateway.pool.mapping import PoolMapping
from gateway.wire.codes import OperationKind, Reason

POOL = "1GiB"
KINDS = (OperationKind.STORE, OperationKind.RETRIEVE)


class TimedCopy:
    """Copies as the adapter does, and keeps how long it took on its thread."""

    def __init__(self) -> None:
        self.seconds: dict[OperationKind, list[float]] = {kind: [] for kind in KINDS}

    def __call__(self, unit: Unit, mapping: PoolMapping, copier: BlockCopier) -> Reason:
        """Copy one unit."""
        began = time.perf_counter()
        reason = copy_unit(unit, mapping, copier)
        self.seconds[unit.kind].append(time.perf_counter() - began)
        return reason


class Busy:
    """A thread that does nothing but Python."""

    def __init__(self) -> None:
        self._is_over = False
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._is_over:
            number += 1

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()


def run(plan: Plan) -> list[Result]:
    """Idle and busy rounds in turn."""
    rounds = plan.rounds(8, 2)
    chunks = 8
    copies: dict[bool, TimedCopy] = {False: TimedCopy(), True: TimedCopy()}
    whole: dict[tuple[OperationKind, bool], list[float]] = {(kind, busy): [] for kind in KINDS for busy in copies}
    current = copies[False]

    def copy(unit: Unit, mapping: PoolMapping, copier: BlockCopier) -> Reason:
        return current(unit, mapping, copier)

    with (
        gateway(POOL).start() as daemon,
        Engine(daemon.run_dir, kv_cache(), copy=copy) as engine,
    ):
        block_ids = scattered(PROMPT_CHUNKS * BLOCKS_PER_CHUNK)

        def one_round(*, is_busy: bool) -> None:
            for i in range(chunks):
                keys, blocks = new_keys(1), block_ids[i * BLOCKS_PER_CHUNK : (i + 1) * BLOCKS_PER_CHUNK]
                for kind, call in zip(KINDS, (engine.store, engine.retrieve), strict=True):
                    began = time.perf_counter()
                    call(keys, blocks)
                    whole[kind, is_busy].append(time.perf_counter() - began)

        for _ in range(4):
            one_round(is_busy=False)
        for series in (*whole.values(), *copies[False].seconds.values()):
            series.clear()
        for i in range(rounds):
            current = copies[False]
            one_round(is_busy=False)
            current = copies[True]
            with Busy():
                one_round(is_busy=True)
            plan.progress(i + 1, rounds)
        size = engine.worker.geometry.block_bytes() * BLOCKS_PER_CHUNK
    return [_result(kind, copies, whole, size) for kind in KINDS]


def _result(
    kind: OperationKind,
    copies: dict[bool, TimedCopy],
    whole: dict[tuple[OperationKind, bool], list[float]],
    size: int,
) -> Result:
    idle, busy = (median(copies[is_busy].seconds[kind]) for is_busy in (False, True))
    idle_whole, busy_whole = (median(whole[kind, is_busy]) for is_busy in (False, True))
    return Result(
        what=f"{str(kind).capitalize()} of one chunk, another thread busy / idle",
        measured=idle / busy,
        unit="x",
        bar=0.2,
        is_floor=True,
        beside=(
            f"{size / busy / 1e9:.1f} GB/s; idle {size / idle / 1e9:.1f} GB/s; "
            f"whole operation {1000 * busy_whole:.0f} ms; idle {1000 * idle_whole:.1f} ms"
        ),
    )


if __name__ == "__main__":
    main(run)
