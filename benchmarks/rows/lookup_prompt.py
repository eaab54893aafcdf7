"""Lookup of a prompt of 32k tokens, hashing included, from the engine's call to its answer; then one turn more."""

import random
import time

from adapter import LoadStoreOp
from benchmarks.engine import BLOCKS_PER_CHUNK, CHUNK_TOKENS, Engine, small_kv_cache
from benchmarks.gateway import gateway
from benchmarks.result import Result, median, percentile
from benchmarks.row import Plan, main

CHUNKS = 128
WARM_UP = 20


def run(plan: Plan) -> list[Result]:
    """Each round is a request that nobody has hashed before; its second turn has one chunk more."""
    rounds = plan.rounds(500, 100)
    generator = random.Random(1)
    prompt = [generator.randrange(150_000) for _ in range(CHUNKS * CHUNK_TOKENS)]
    first_turn = prompt[:-CHUNK_TOKENS]
    whole, first, second = [], [], []
    caches = small_kv_cache(CHUNKS * BLOCKS_PER_CHUNK)
    with gateway("64MiB").start() as daemon, Engine(daemon.run_dir, caches) as engine:
        op = LoadStoreOp.from_tokens(prompt, range(CHUNKS * BLOCKS_PER_CHUNK), engine.identity)
        engine.store(op.keys, op.block_ids)
        for i in range(WARM_UP + rounds):
            whole.append(_timed(engine, f"whole-{i}", prompt))
            first.append(_timed(engine, f"turns-{i}", first_turn))
            second.append(_timed(engine, f"turns-{i}", prompt))
            engine.scheduler.end_session(f"whole-{i}")
            engine.scheduler.end_session(f"turns-{i}")
            if i % 10 == 0:
                plan.progress(i, WARM_UP + rounds)
    return [
        _result("Lookup of 32k tokens, p50", whole[WARM_UP:], 1.0),
        _result("The same with one chunk more, second turn, p50", second[WARM_UP:], 0.3),
    ]


def _timed(engine: Engine, request: str, prompt: list[int]) -> float:
    began = time.perf_counter()
    found = engine.scheduler.lookup(request, prompt, timeout_seconds=2)
    seconds = time.perf_counter() - began
    assert found == len(prompt), found
    return seconds


def _result(what: str, seconds: list[float], bar: float) -> Result:
    beside = f"p99 {1000 * percentile(seconds, 0.99):.2f} ms"
    return Result(what=what, measured=1000 * median(seconds), unit="ms", bar=bar, beside=beside)


if __name__ == "__main__":
    main(run)
