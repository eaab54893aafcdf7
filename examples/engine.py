"""Both halves of an adapter in one small engine: ``python examples/engine.py RUN_DIR``, beside ``kvgate serve``.

The first run stores the KV blocks of a prompt; the second one finds and loads them instead of computing.
"""

import sys

import torch

from adapter import CacheIdentity, LoadStoreOp, SchedulerAdapter, WorkerAdapter

if len(sys.argv) != 2:
    sys.exit("usage: python examples/engine.py RUN_DIR (the directory given to kvgate serve --run-dir)")


class Computed:
    """The event that orders a copy after the engine's compute. A ``torch.cuda.Event`` fits as it is."""

    def query(self) -> bool:
        """On the CPU compute is done when the call returns."""
        return True

    def ipc_handle(self) -> bytes:
        """Asked for only when the gateway copies."""
        raise NotImplementedError


identity = CacheIdentity(model="example", block_tokens=16, chunk_tokens=256)
layers = {f"layer.{i}": torch.zeros(2, 64, 16, 8, 128, dtype=torch.bfloat16) for i in range(4)}
worker = WorkerAdapter(sys.argv[1], identity, group="example-0")
worker.register_kv_caches(layers, layout="NHD", block_axis=1)
scheduler = SchedulerAdapter(sys.argv[1], identity, group="example-0")
scheduler.set_geometry(worker.geometry)
worker.wait_healthy(5) and scheduler.wait_healthy(5)  # without a gateway both go on: nothing found, nothing stored

prompt, blocks = list(range(1000)), list(range(48))  # 3 full chunks of 256 tokens; the rest is not cached
operation = LoadStoreOp.from_tokens(prompt, blocks, identity)

hit = scheduler.lookup("request-1", prompt, timeout_seconds=0.2)
if hit == 768:
    worker.submit_retrieve_request("request-1", operation)
    worker.wait_settled(5)
    worker.get_finished()  # ({}, {"request-1"}): once for each request
    failed = worker.get_block_ids_with_load_errors()  # compute these after all
    print(f"loaded {hit} tokens, {len(failed)} blocks failed, value {layers['layer.3'][1, 47, 0, 0, 0]:g}")
else:
    for layer in layers.values():
        layer.fill_(0.5)  # the forward pass
    worker.submit_store_request("request-1", operation, Computed())
    worker.wait_settled(5)
    stored = worker.registry.get_sample_value("kvgate_adapter_operations_total", {"kind": "store", "outcome": "stored"})
    told = f"gateway {worker.state}, {worker.snapshot().retained_events} events retained"
    print(f"{'stored' if stored else 'not stored'}, {told}")

scheduler.end_session("request-1")
scheduler.close()
worker.close()
