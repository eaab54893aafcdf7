"""Store and retrieve of an 8k-token prompt (1 GiB), with one and two threads, beside ``np.copyto`` of the same bytes.

A round is: the yardstick, a store of new chunks, a retrieve of them; submit to settled, messages and commits included.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self

import numpy as np
import torch

from benchmarks.engine import BLOCKS_PER_CHUNK, PROMPT_CHUNKS, Engine, kv_cache, new_keys, scattered
from benchmarks.gateway import gateway
from benchmarks.result import Result, median
from benchmarks.row import Plan, main

POOL = "4GiB"
#: Rounds that go once through the pool, so that every page of it has been touched.
WARM_UP = 4


def run(plan: Plan) -> list[Result]:
    """Both thread counts over the same tensors and the same daemon."""
    rounds = plan.rounds(12, 3)
    caches = kv_cache()
    results: list[Result] = []
    with gateway(POOL).start() as daemon:
        for index, threads in enumerate((1, 2)):
            progress = partial(_tell, plan, index * (WARM_UP + rounds), 2 * (WARM_UP + rounds))
            with Engine(daemon.run_dir, caches, copy_threads=threads) as engine, Yardstick(caches, threads) as bare:
                name = f"{threads} thread{'s' * (threads > 1)}"
                results += measure(engine, bare, rounds, progress, name=name, bar=0.85)
    return results


def _tell(plan: Plan, before: int, total: int, done: int) -> None:
    plan.progress(before + done, total)


class Yardstick:
    """``np.copyto`` of every layer into memory as large, each thread a share of the layers."""

    def __init__(self, caches: dict[str, torch.Tensor], threads: int) -> None:
        sources = [cache.view(torch.int16).numpy() for cache in caches.values()]
        pairs = [(np.full_like(source, 1), source) for source in sources]
        self._shares = [pairs[i::threads] for i in range(threads)]
        self._pool = ThreadPoolExecutor(threads)

    def copy(self) -> None:
        """Copy all of it once."""
        list(self._pool.map(_copy, self._shares))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()


def _copy(pairs: list[tuple[Any, Any]]) -> None:
    for to, source in pairs:
        np.copyto(to, source)


def measure(
    engine: Engine, yardstick: Yardstick, rounds: int, progress: Callable[[int], None], *, name: str, bar: float
) -> list[Result]:
    """Store and retrieve beside the yardstick, round by round.

    Args:
        engine: who stores and retrieves.
        yardstick: what both are compared with.
        rounds: that count; ``WARM_UP`` go before.
        progress: told how many are done.
        name: what tells these results from others.
        bar: share of the yardstick's speed that is promised.
    """
    block_ids = scattered(PROMPT_CHUNKS * BLOCKS_PER_CHUNK)
    bare: list[float] = []
    stores: list[float] = []
    retrieves: list[float] = []
    for i in range(WARM_UP + rounds):
        keys = new_keys(PROMPT_CHUNKS)
        times = [
            _timed(yardstick.copy),
            _timed(partial(engine.store, keys, block_ids)),
            _timed(partial(engine.retrieve, keys, block_ids)),
        ]
        if i >= WARM_UP:
            for series, seconds in zip((bare, stores, retrieves), times, strict=True):
                series.append(seconds)
        progress(i)
    gibibytes = engine.worker.geometry.block_bytes() * len(block_ids) / 2**30
    return [
        _result(kind, name, bar, gibibytes, median(seconds), median(bare))
        for kind, seconds in (("Store", stores), ("Retrieve", retrieves))
    ]


def _timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _result(kind: str, name: str, bar: float, gibibytes: float, seconds: float, bare: float) -> Result:  # noqa: PLR0917
    size = gibibytes * 2**30 / 1e9
    return Result(
        what=f"{kind} of an 8k prompt, {name} / np.copyto",
        measured=bare / seconds,
        unit="x",
        bar=bar,
        is_floor=True,
        beside=f"{size / seconds:.1f} GB/s; np.copyto {size / bare:.1f} GB/s",
    )


if __name__ == "__main__":
    main(run)
