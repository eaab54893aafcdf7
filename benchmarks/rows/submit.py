"""What submitting costs the engine's thread: a store of one chunk, and for information one of an 8k prompt."""

import time

from adapter import LoadStoreOp
from benchmarks.engine import BLOCKS_PER_CHUNK, PROMPT_CHUNKS, Engine, Event, new_keys, small_kv_cache
from benchmarks.gateway import gateway
from benchmarks.result import Result, median, micro, percentile
from benchmarks.row import Plan, main

WARM_UP = 200
#: An engine's step is longer; the link thread has done its part by then.
PAUSE_SECONDS = 0.002


def run(plan: Plan) -> list[Result]:
    """Chunk and prompt in turn."""
    rounds = plan.rounds(4000, 800)
    num_blocks = PROMPT_CHUNKS * BLOCKS_PER_CHUNK
    blocks = tuple(range(num_blocks))
    chunk, prompt = [], []
    with gateway("256MiB").start() as daemon, Engine(daemon.run_dir, small_kv_cache(num_blocks)) as engine:
        for i in range(WARM_UP + rounds):
            chunk.append(_submit(engine, f"chunk-{i}", LoadStoreOp(new_keys(1), blocks[:BLOCKS_PER_CHUNK])))
            if i % 10 == 0:
                prompt.append(_submit(engine, f"prompt-{i}", LoadStoreOp(new_keys(PROMPT_CHUNKS), blocks)))
                plan.progress(i, WARM_UP + rounds)
        assert engine.worker.wait_settled(30)
    chunk = chunk[WARM_UP:]
    beside = f"8k prompt: p50 {micro(median(prompt))}, p99 {micro(percentile(prompt, 0.99))}"
    return [
        Result(what="submit of one chunk, p50", measured=1e6 * median(chunk), unit="µs", bar=10, beside=beside),
        Result(what="submit of one chunk, p99", measured=1e6 * percentile(chunk, 0.99), unit="µs", bar=50),
    ]


def _submit(engine: Engine, request: str, op: LoadStoreOp) -> float:
    event = Event()
    time.sleep(PAUSE_SECONDS)
    began = time.perf_counter()
    engine.worker.submit_store_request(request, op, event)
    return time.perf_counter() - began


if __name__ == "__main__":
    main(run)
