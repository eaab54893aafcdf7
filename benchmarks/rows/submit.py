"""What submitting costs the engine's thread: a store of one chunk, and for information one of an 8k prompt.

As in an engine: a forward pass in which the thread waits, some Python of the engine's own, then a submit for each
request of the batch. In both modes: what the engine does is the same, an event is retained and a call is posted.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from adapter import IpcEvent, LoadStoreOp
from benchmarks.engine import BLOCKS_PER_CHUNK, PROMPT_CHUNKS, Engine, Event, new_keys, small_kv_cache
from benchmarks.gateway import gateway
from benchmarks.result import Result, median, micro, percentile
from benchmarks.row import Plan, main
from gateway.device import HostEvent

WARM_UP = 10
BATCH = 16
FORWARD_SECONDS = 0.005
OWN_SECONDS = 0.0005


#: Makes an event that has fired.
MakeEvent = Callable[[], IpcEvent]


def run(plan: Plan) -> list[Result]:
    """Each step submits a batch of chunks; each tenth step one prompt. First the engine copies, then the gateway."""
    with gateway("256MiB").start() as daemon:
        return [
            *_measure(plan, daemon.run_dir, "pool", Event, ""),
            *_measure(plan, daemon.run_dir, "handle", partial(_host_event, daemon.run_dir), ", handle mode"),
        ]


def _measure(plan: Plan, run_dir: Path, transfer: str, make_event: MakeEvent, where: str) -> list[Result]:
    steps = plan.rounds(400, 80)
    num_blocks = PROMPT_CHUNKS * BLOCKS_PER_CHUNK
    blocks = tuple(range(num_blocks))
    chunk, prompt = [], []
    with Engine(run_dir, small_kv_cache(num_blocks), transfer=transfer) as engine:
        for step in range(WARM_UP + steps):
            ops = [LoadStoreOp(new_keys(1), blocks[:BLOCKS_PER_CHUNK]) for _ in range(BATCH)]
            events = [make_event() for _ in ops]
            _compute()
            chunk += [
                _submit(engine, f"{step}-{i}", op, event) for i, (op, event) in enumerate(zip(ops, events, strict=True))
            ]
            if step % 10 == 0:
                event = make_event()
                _compute()
                prompt.append(_submit(engine, f"prompt-{step}", LoadStoreOp(new_keys(PROMPT_CHUNKS), blocks), event))
                plan.progress(step, WARM_UP + steps)
        assert engine.worker.wait_settled(30)
    chunk = chunk[WARM_UP * BATCH :]
    beside = f"8k prompt: p50 {micro(median(prompt))}, p99 {micro(percentile(prompt, 0.99))}"
    what = f"submit of one chunk{where}"
    return [
        Result(what=f"{what}, p50", measured=1e6 * median(chunk), unit="µs", bar=10, beside=beside),
        Result(what=f"{what}, p99", measured=1e6 * percentile(chunk, 0.99), unit="µs", bar=50),
    ]


def _host_event(run_dir: Path) -> HostEvent:
    event = HostEvent(run_dir)
    event.record()
    return event


def _compute() -> None:
    time.sleep(FORWARD_SECONDS)
    end = time.perf_counter() + OWN_SECONDS
    while time.perf_counter() < end:
        pass


def _submit(engine: Engine, request: str, op: LoadStoreOp, event: IpcEvent) -> float:
    began = time.perf_counter()
    engine.worker.submit_store_request(request, op, event)
    return time.perf_counter() - began


if __name__ == "__main__":
    main(run)
