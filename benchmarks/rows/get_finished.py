"""What ``get_finished`` costs the engine's thread with 1,000 stores pending, all their requests passed."""

import time

from adapter import LoadStoreOp
from benchmarks.engine import BLOCKS_PER_CHUNK, Engine, Event, new_keys, small_kv_cache
from benchmarks.gateway import gateway
from benchmarks.result import Result, median, percentile
from benchmarks.row import Plan, main

PENDING = 1000
WARM_UP = 100
PAUSE_SECONDS = 0.001


def run(plan: Plan) -> list[Result]:
    """The stores wait for events that do not fire before the end."""
    rounds = plan.rounds(4000, 1000)
    events = [Event(has_fired=False) for _ in range(PENDING)]
    requests = [f"request-{i}" for i in range(PENDING)]
    seconds = []
    with gateway("256MiB").start() as daemon, Engine(daemon.run_dir, small_kv_cache(BLOCKS_PER_CHUNK)) as engine:
        for request, event in zip(requests, events, strict=True):
            engine.worker.submit_store_request(request, LoadStoreOp(new_keys(1), range(BLOCKS_PER_CHUNK)), event)
        for i in range(WARM_UP + rounds):
            time.sleep(PAUSE_SECONDS)
            began = time.perf_counter()
            sending, _ = engine.worker.get_finished(requests)
            seconds.append(time.perf_counter() - began)
            assert not sending
            if i % 100 == 0:
                plan.progress(i, WARM_UP + rounds)
        for event in events:
            event.has_fired = True
        assert engine.worker.wait_settled(30)
    seconds = seconds[WARM_UP:]
    return [
        Result(what="get_finished at 1,000 pending, p50", measured=1e6 * median(seconds), unit="µs", bar=100),
        Result(what="get_finished at 1,000 pending, p99", measured=1e6 * percentile(seconds, 0.99), unit="µs", bar=200),
    ]


if __name__ == "__main__":
    main(run)
