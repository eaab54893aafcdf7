"""What submitting costs the engine's thread: a store of one chunk, and for information one of an 8k prompt.

As in an engine: a forward pass in which the thread waits, some Python of the engine's own, then a submit for each
request of the batch.
"""

import time

from adapter import LoadStoreOp
from benchmarks.engine import BLOCKS_PER_CHUNK, PROMPT_CHUNKS, Engine, Event, new_keys, small_kv_cache
from benchmarks.gateway import gateway
from benchmarks.result import Result, median, micro, percentile
from benchmarks.row import Plan, main

WARM_UP = 10
BATCH = 16
FORWARD_SECONDS = 0.005
OWN_SECONDS = 0.0005


def run(plan: Plan) -> list[Result]:
    """Each step submits a batch of chunks; each tenth step one prompt."""
    steps = plan.rounds(400, 80)
    num_blocks = PROMPT_CHUNKS * BLOCKS_PER_CHUNK
    blocks = tuple(range(num_blocks))
    chunk, prompt = [], []
    with gateway("256MiB").start() as daemon, Engine(daemon.run_dir, small_kv_cache(num_blocks)) as engine:
        for step in range(WARM_UP + steps):
            _compute()
            ops = [LoadStoreOp(new_keys(1), blocks[:BLOCKS_PER_CHUNK]) for _ in range(BATCH)]
            chunk += [_submit(engine, f"{step}-{i}", op) for i, op in enumerate(ops)]
            if step % 10 == 0:
                _compute()
                prompt.append(_submit(engine, f"prompt-{step}", LoadStoreOp(new_keys(PROMPT_CHUNKS), blocks)))
                plan.progress(step, WARM_UP + steps)
        assert engine.worker.wait_settled(30)
    chunk = chunk[WARM_UP * BATCH :]
    beside = f"8k prompt: p50 {micro(median(prompt))}, p99 {micro(percentile(prompt, 0.99))}"
    return [
        Result(what="submit of one chunk, p50", measured=1e6 * median(chunk), unit="µs", bar=10, beside=beside),
        Result(what="submit of one chunk, p99", measured=1e6 * percentile(chunk, 0.99), unit="µs", bar=50),
    ]


def _compute() -> None:
    time.sleep(FORWARD_SECONDS)
    end = time.perf_counter() + OWN_SECONDS
    while time.perf_counter() < end:
        pass


def _submit(engine: Engine, request: str, op: LoadStoreOp) -> float:
    event = Event()
    began = time.perf_counter()
    engine.worker.submit_store_request(request, op, event)
    return time.perf_counter() - began


if __name__ == "__main__":
    main(run)
