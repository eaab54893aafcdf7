"""One engine process: looks up, retrieves, computes what is missing, stores. ``python -m examples.demo.engine PLAN``.

Owns: the request loop and its figures. Must not know: how the gateway is run, or when it is drained or killed; it finds
out through its adapters, as any engine does. The main thread is the engine's; another one reads standard input.

Reports a JSON line a request on standard output. A line on standard input ends the replay; its end closes the
adapters.
"""

import itertools
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch
from prometheus_client import CollectorRegistry

from adapter import AdapterConfig, CacheIdentity, LoadStoreOp, SchedulerAdapter, WorkerAdapter
from examples.demo.conversations import Request, conversations, trace
from examples.demo.lines import Figures, Plan
from examples.demo.paged import PagedCache
from examples.demo.sizes import BLOCK_TOKENS, BLOCKS_PER_CHUNK, CHUNK_TOKENS, ENGINE_CHUNKS, MAX_PROMPT_CHUNKS

_TOKENS_PER_SECOND = 20_000  # of prefill, as a GPU would: it leaves the processor idle meanwhile
_LOAD_SECONDS = 60.0  # past it a load that does not end is a defect, not a slow machine


class ComputeEvent:
    """Fires when the blocks of a request are computed; what a device event is to an engine with a device."""

    def __init__(self) -> None:
        self._is_done = False

    def record(self) -> None:
        """Everything before this call is done."""
        self._is_done = True

    def query(self) -> bool:
        """Whether it is."""
        return self._is_done

    def ipc_handle(self) -> bytes:
        """Nothing: this event never leaves its process."""
        raise NotImplementedError("an event of the CPU has no handle for another process")


class Engine:
    """Serves one request after another."""

    def __init__(self, plan: Plan) -> None:
        self._identity = CacheIdentity(model="demo", block_tokens=BLOCK_TOKENS, chunk_tokens=CHUNK_TOKENS)
        self._cache = PagedCache(plan.layers, ENGINE_CHUNKS * BLOCKS_PER_CHUNK)
        # One registry for both halves: one scrape shows the engine.
        self._registry = CollectorRegistry()
        config = AdapterConfig(engine_name=plan.name)
        self.worker = WorkerAdapter(plan.run_dir, self._identity, plan.name, config, self._registry)
        self.worker.register_kv_caches(self._cache.tensors, layout="NHD", block_axis=1)
        self.scheduler = SchedulerAdapter(plan.run_dir, self._identity, plan.name, config, self._registry)
        self.scheduler.set_geometry(self.worker.geometry)
        self._figures = Figures()
        self._compute_seconds = 0.0  # between a store's submit and its event

    def close(self) -> None:
        """Close both halves."""
        self.scheduler.close()
        self.worker.close()

    def serve(self, request: Request) -> None:
        """One request, from lookup to stored."""
        keys = self.scheduler.chunk_keys(request.request_id, request.tokens)
        blocks = self._cache.allocate(len(keys) * BLOCKS_PER_CHUNK)
        # The blocks were free, but a store of what they held may not have come to its end.
        self.worker.revoke_blocks(blocks)
        found = self.scheduler.lookup(request.request_id, request.tokens, timeout_seconds=0.2) // CHUNK_TOKENS
        loaded = self._retrieve(request.request_id, keys[:found], blocks[: found * BLOCKS_PER_CHUNK])
        self._compute_and_store(request.request_id, keys, blocks, loaded)
        self.scheduler.end_session(request.request_id)
        self._cache.free(blocks)
        self._figures.requests += 1
        self._figures.prompt_tokens += len(request.tokens)
        self._figures.hit_tokens += loaded * CHUNK_TOKENS

    def report(self, event: str) -> Figures:
        """The figures now; those of the adapters as their registry shows them."""
        figures = self._figures
        figures.event = event
        figures.state = self.worker.state
        figures.pending_stores = int(self._sample("pending_stores"))
        figures.pending_retrieves = int(self._sample("pending_retrieves"))
        figures.retained_events = int(self._sample("retained_events"))
        figures.stored_bytes = int(self._sample("bytes_total", kind="store"))
        figures.retrieved_bytes = int(self._sample("bytes_total", kind="retrieve"))
        durations = "operation_duration_seconds_sum"
        figures.store_seconds = self._sample(durations, kind="store") - self._compute_seconds
        figures.retrieve_seconds = self._sample(durations, kind="retrieve")
        return figures

    def _retrieve(self, request_id: str, keys: list[bytes], blocks: list[int]) -> int:
        """Load the chunks found and compare every byte; returns how many leading ones were loaded."""
        if not keys:
            return 0
        self.worker.submit_retrieve_request(request_id, LoadStoreOp(keys, blocks))
        deadline = time.monotonic() + _LOAD_SECONDS
        while request_id not in self.worker.get_finished()[1]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the load of {request_id} did not end within {_LOAD_SECONDS:g} s")
            time.sleep(0.0005)  # an engine would run its next step here
        failed = self.worker.get_block_ids_with_load_errors()
        loaded = next((i // BLOCKS_PER_CHUNK for i, block in enumerate(blocks) if block in failed), len(keys))
        self._figures.failed_loads += loaded < len(keys)
        self._figures.wrong_bytes += self._cache.wrong_bytes(keys[:loaded], blocks[: loaded * BLOCKS_PER_CHUNK])
        return loaded

    def _compute_and_store(self, request_id: str, keys: list[bytes], blocks: list[int], loaded: int) -> None:
        if loaded == len(keys):
            return
        missing, empty = keys[loaded:], blocks[loaded * BLOCKS_PER_CHUNK :]
        event = ComputeEvent()
        operation = LoadStoreOp(
            missing, empty, start=loaded * CHUNK_TOKENS, parent=keys[loaded - 1] if loaded else None
        )
        # Submitted before the blocks are computed: the event holds the copy back, and the adapter holds the event.
        submitted_at = time.monotonic()
        self.worker.submit_store_request(request_id, operation, event)
        self._cache.compute(missing, empty)
        time.sleep(max(0.0, submitted_at + len(missing) * CHUNK_TOKENS / _TOKENS_PER_SECOND - time.monotonic()))
        if self.worker.snapshot().pending_stores:
            self._compute_seconds += time.monotonic() - submitted_at
        event.record()

    def _sample(self, name: str, **labels: str) -> float:
        return self._registry.get_sample_value(f"kvgate_adapter_{name}", labels) or 0.0


def main() -> None:
    """Replay this engine's share, then stay until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us stops us, by closing standard input
    torch.set_num_threads(1)
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    stop, end = threading.Event(), threading.Event()
    threading.Thread(target=_read_orders, args=(stop, end), daemon=True).start()
    engine = Engine(plan)
    try:
        _say(engine.report("started"))
        for request in _share(plan):
            if stop.is_set():
                break
            engine.serve(request)
            _say(engine.report("served"))
        engine.worker.wait_settled(_LOAD_SECONDS)
        _say(engine.report("idle"))
        end.wait()
    finally:
        engine.close()


def _share(plan: Plan) -> Iterator[Request]:
    max_tokens = MAX_PROMPT_CHUNKS * CHUNK_TOKENS
    requests = trace(Path(plan.trace), max_tokens) if plan.trace else conversations(max_tokens)
    return itertools.islice(requests, plan.index, None, plan.step)


def _read_orders(stop: threading.Event, end: threading.Event) -> None:
    for _ in sys.stdin:
        stop.set()
    stop.set()
    end.set()


def _say(figures: Figures) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(figures) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
