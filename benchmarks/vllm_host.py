"""A vLLM in a process of its own that says how long its first tokens and its steps take.

Owns: how that is timed. Must not know: prompts, bars. ``tests.engine.engine.Vllm`` starts and drives it: every
public method is a command. Timed is what a caller of vLLM waits for, in whichever process it is computed.
"""

import os
import time
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    VLLM_LOGGING_LEVEL="WARNING",
    GOMP_SPINCOUNT="0",  # where others want the cores too, threads that spin keep each other waiting
)

from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer import get_kv_transfer_group

from adapter import LoadStoreOp, WorkerAdapter
from tests.engine.engine import BLOCK_TOKENS, CHUNK_TOKENS, END_SECONDS
from tests.engine.lines import serve


class NeverFires:
    """An event whose compute has not ended."""

    def query(self) -> bool:
        """It has not."""
        return False

    def ipc_handle(self) -> bytes:
        """Not used: the adapter copies."""
        return b""


class Host:
    """One engine; the settings are vLLM's."""

    def __init__(self, settings: dict[str, Any]) -> None:
        fixed = {
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 8192,
            "max_num_seqs": 4,
            "block_size": BLOCK_TOKENS,
            "num_gpu_blocks_override": 512,
            "enable_prefix_caching": False,  # what is found is found by the connector
            "seed": 0,
        }
        self._engine = LLM(**fixed, **settings).llm_engine
        self._requests = 0
        self._operations = 0

    def wait_healthy(self, seconds: float = 40.0) -> bool:
        """Whether the worker half, which is in this process, has its gateway."""
        return self._worker().wait_healthy(seconds)

    def first_token(self, prompt: list[int]) -> dict[str, float]:
        """Seconds from a request to its first token, and how many tokens of its prompt were found."""
        self._requests += 1
        params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
        began = time.perf_counter()
        self._engine.add_request(f"r{self._requests}", {"prompt_token_ids": prompt}, params)
        while not (outputs := self._engine.step()):
            pass
        return {"seconds": time.perf_counter() - began, "found": float(outputs[0].num_cached_tokens or 0)}

    def step_seconds(self, prompt: list[int], steps: int, pending: int) -> list[float]:
        """Seconds of so many steps that decode one request, while so many operations are pending."""
        params = SamplingParams(max_tokens=steps + 1, temperature=0, ignore_eos=True, skip_reading_prefix_cache=True)
        self._requests += 1
        self._engine.add_request(f"r{self._requests}", {"prompt_token_ids": prompt}, params)
        self._engine.step()
        worker = self._worker()
        assert worker.wait_settled(20)
        self._begin_operations(worker, pending)
        counts = worker.snapshot()
        assert counts.pending_stores + counts.pending_retrieves == pending
        took = []
        for _ in range(steps):
            began = time.perf_counter()
            self._engine.step()
            took.append(time.perf_counter() - began)
        counts = worker.snapshot()
        assert counts.pending_stores + counts.pending_retrieves == pending, "they were pending all the time"
        worker.drain("the lap is over", 0)
        worker.resume()
        assert worker.wait_settled(20)
        assert worker.wait_healthy(20)
        return took

    def _begin_operations(self, worker: WorkerAdapter, pending: int) -> None:
        scheduler = self._engine.engine_core.engine_core.scheduler
        (request,) = scheduler.running  # its first blocks are given to nobody else meanwhile
        blocks = scheduler.kv_cache_manager.get_block_ids(request.request_id)[0][: CHUNK_TOKENS // BLOCK_TOKENS]
        for _ in range(pending):
            self._operations += 1
            op = LoadStoreOp([os.urandom(32)], blocks)
            worker.submit_store_request(f"pending-{self._operations}", op, NeverFires())

    def close(self) -> None:
        """End vLLM in order."""
        self._engine.engine_core.shutdown(END_SECONDS / 2)

    @staticmethod
    def _worker() -> WorkerAdapter:
        adapter = get_kv_transfer_group()._adapter  # noqa: SLF001 - it is this project's connector
        assert isinstance(adapter, WorkerAdapter)
        return adapter


if __name__ == "__main__":
    serve(Host)
