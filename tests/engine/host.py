"""A vLLM in a process of its own, driven by ``tests.engine.engine``.

The engine core and the worker are in this one process, so that tests can step it, and look at both halves of the
connector.
"""

import json
import os
import signal
import threading
import time
from dataclasses import asdict
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="WARNING",
    GOMP_SPINCOUNT="0",  # where others want the cores too, threads that spin keep each other waiting
    KVGATE_VERIFY="1",
)

import torch
from blake3 import blake3
from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.lora.request import LoRARequest

from adapter import WorkerAdapter
from adapter.actions import Unit
from adapter.transfer.chunks import copy_unit
from adapter.vllm.scheduler_half import SchedulerHalf
from gateway.device.copy import ChunkCopier
from gateway.pool.mapping import PoolMapping
from gateway.wire.codes import OperationKind, Reason
from tests.engine.engine import BLOCK_TOKENS, END_SECONDS
from tests.engine.lines import serve


class Copies:
    """Stands where the adapter's copy of a chunk does: makes it, remembers the engine's bytes, fails where told to."""

    def __init__(self, host: "Host") -> None:
        self._host = host
        #: by kind and chunk key: a digest of each block that was read or written, in order
        self.digests: dict[str, dict[str, list[str]]] = {str(kind): {} for kind in OperationKind}
        #: loads fail from this chunk of theirs on; -1: they do not
        self.fail_loads_from = -1
        #: copies wait for it
        self.may_go = threading.Event()
        self.may_go.set()

    def __call__(self, unit: Unit, mapping: PoolMapping, copier: ChunkCopier) -> Reason:
        assert self.may_go.wait(60)
        reason = copy_unit(unit, mapping, copier)
        blocks = [self._host.block_bytes(block) for block in unit.block_ids[unit.skip_blocks :]]
        self.digests[str(unit.kind)][unit.key.hex()] = [blake3(data).hexdigest(16) for data in blocks]
        fails = unit.kind is OperationKind.RETRIEVE and 0 <= self.fail_loads_from <= unit.chunk
        return Reason.CHANGED if fails else reason


class Waits:
    """How long the scheduler's requests wait for us: from the first question to its answer, from a load to its end."""

    def __init__(self, half: SchedulerHalf, worker: WorkerAdapter) -> None:
        self._matched, self._submit, self._finished = half.matched, worker.submit_retrieve_request, worker.get_finished
        half.matched = self.matched
        worker.submit_retrieve_request = self.submit
        worker.get_finished = self.finished
        self._asked: dict[str, float] = {}
        self._loading: dict[str, float] = {}
        self._took: dict[str, list[float]] = {"lookup": [], "load": []}

    def matched(self, request: Any, local_tokens: int) -> int | None:
        began = self._asked.setdefault(request.request_id, time.monotonic())
        tokens = self._matched(request, local_tokens)
        if tokens is not None:
            self._took["lookup"].append(time.monotonic() - began)
            del self._asked[request.request_id]
        return tokens

    def submit(self, request_id: str, *arguments: Any) -> int:
        self._loading[request_id] = time.monotonic()
        return self._submit(request_id, *arguments)

    def finished(self) -> tuple[set[str], set[str]]:
        sent, received = self._finished()
        self._took["load"] += [time.monotonic() - self._loading.pop(request_id) for request_id in received]
        return sent, received

    def take(self) -> dict[str, list[float]]:
        took, self._took = self._took, {"lookup": [], "load": []}
        return took


class Host:
    """The engine, and what can be asked of it. Every public method is a command."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._engine = LLM(
            **{
                "dtype": "float32",
                "enforce_eager": True,
                "max_model_len": 8192,
                "max_num_seqs": 4,
                "max_num_batched_tokens": 1024,
                "block_size": BLOCK_TOKENS,
                "distributed_executor_backend": "uni",
                "disable_log_stats": False,
                "seed": 0,
                "num_gpu_blocks_override": 1024,
                **settings,
            }
        ).llm_engine
        self._core = self._engine.engine_core.engine_core
        self._scheduler = self._core.scheduler.connector._adapter
        self._worker = get_kv_transfer_group()._adapter
        self._copies = self._worker._memory._copy = Copies(self)
        self._waits = Waits(self._core.scheduler.connector._scheduler, self._worker)
        self._all_free = self._free_blocks()
        self._outputs: dict[str, Any] = {}
        self._added: dict[str, float] = {}
        self._took: dict[str, float] = {}

    def wait_healthy(self, seconds: float = 40.0) -> bool:
        return self._scheduler.wait_healthy(seconds) and self._worker.wait_healthy(seconds)

    def add(
        self,
        request_id: str,
        prompt: list[int],
        max_tokens: int = 1,
        skip_reading: bool = False,
        cache_salt: str | None = None,
        lora: dict[str, Any] | None = None,
    ) -> None:
        """``lora``: the fields of vLLM's ``LoRARequest``."""
        params = SamplingParams(
            max_tokens=max_tokens, temperature=0, logprobs=1, ignore_eos=True, skip_reading_prefix_cache=skip_reading
        )
        self._added[request_id] = time.monotonic()
        asked: dict[str, Any] = {"prompt_token_ids": prompt} | ({"cache_salt": cache_salt} if cache_salt else {})
        self._engine.add_request(request_id, asked, params, lora_request=LoRARequest(**lora) if lora else None)

    def step(self, steps: int = 1) -> bool:
        """So many steps at most; whether requests are unfinished."""
        for _ in range(steps):
            if not self._engine.has_unfinished_requests():
                return False
            for output in self._engine.step():
                if output.finished:
                    self._outputs[output.request_id] = output
                    self._took[output.request_id] = time.monotonic() - self._added.pop(output.request_id)
        return self._engine.has_unfinished_requests()

    def run(self, seconds: float = 240.0) -> dict[str, Any]:
        """Step until nothing is left; what has finished since the last time."""
        deadline = time.monotonic() + seconds
        while self.step():
            if time.monotonic() > deadline:
                raise TimeoutError(f"unfinished after {seconds} s: {self.facts()}")
        outputs, self._outputs = self._outputs, {}
        return {
            request_id: {
                "tokens": list(output.outputs[0].token_ids),
                "logprobs": [
                    step[token].logprob
                    for step, token in zip(output.outputs[0].logprobs, output.outputs[0].token_ids, strict=True)
                ],
                "cached": output.num_cached_tokens,
                "reason": output.outputs[0].finish_reason,
                "seconds": self._took.pop(request_id),
            }
            for request_id, output in outputs.items()
        }

    def quiesce(self, seconds: float = 20.0) -> int:
        """Step as the engine core's own loop would: until the scheduler asks for no more. Returns the steps."""
        deadline = time.monotonic() + seconds
        steps = 0
        while self._core.scheduler.has_requests():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the engine steps on after {seconds} s: {self.facts()}")
            self._engine.step()
            steps += 1
        return steps

    def abort(self, request_id: str) -> None:
        self._engine.abort_request([request_id])

    def settle(self, seconds: float = 20.0) -> bool:
        return self._worker.wait_settled(seconds)

    def forget_prefixes(self) -> bool:
        """Of vLLM's own: what comes next can hit in the gateway alone."""
        return self._core.scheduler.reset_prefix_cache()

    def reset(self) -> dict[str, Any]:
        """Of vLLM's own and ours, as an operator asks for it."""
        began = time.monotonic()
        done = self._engine.reset_prefix_cache(reset_connector=True)
        return {"done": done, "seconds": time.monotonic() - began}

    def undo_reset(self) -> None:
        """Keys are again those of every engine. Nothing but a test may do this: what was reset is found again."""
        self._scheduler._prompts.reset(b"")

    def digests(self, kind: str) -> dict[str, list[str]]:
        return self._copies.digests[kind]

    def forget_digests(self) -> None:
        for digests in self._copies.digests.values():
            digests.clear()

    def fail_loads_from(self, chunk: int) -> None:
        self._copies.fail_loads_from = chunk

    def hold_copies(self, hold: bool) -> None:
        """Copies begin and do not go on, until they may."""
        if hold:
            self._copies.may_go.clear()
        else:
            self._copies.may_go.set()

    def signal_at_load(self, pid: int, number: int) -> None:
        """When the next load begins, and before the gateway hears of it, this process gets a signal."""
        submit = self._worker.submit_retrieve_request

        def signal_first(*arguments: Any) -> int:
            self._worker.submit_retrieve_request = submit
            os.kill(pid, signal.Signals(number))
            return submit(*arguments)

        self._worker.submit_retrieve_request = signal_first

    def waits(self) -> dict[str, list[float]]:
        """Seconds that requests have waited since the last time: for answers to lookups, and for loads to end."""
        return self._waits.take()

    def save_kv(self, request_tokens: list[int], path: str) -> int:
        """Write the KV of the prompt's blocks, as vLLM's prefix cache has them; returns how many they are."""
        manager = self._core.scheduler.kv_cache_manager
        self.add("save-kv", [*request_tokens, 2], 2)
        while not self._core.scheduler.running:
            self.step()
        (request,) = self._core.scheduler.running
        blocks = manager.get_block_ids(request.request_id)[0][: len(request_tokens) // BLOCK_TOKENS]
        torch.save(torch.stack([cache[blocks] for cache in self._caches()]), path)
        self.run()
        return len(blocks)

    def facts(self) -> dict[str, Any]:
        """What is pending, held or tracked anywhere in this engine."""
        snapshot = asdict(self._worker.snapshot())
        half = self._core.scheduler.connector._scheduler
        return {
            "state": [str(self._scheduler.state), str(self._worker.state)],
            "pending": [snapshot["pending_stores"], snapshot["pending_retrieves"], snapshot["retained_events"]],
            "tracked": len(half._tracked),
            "requests": len(self._core.scheduler.requests),
            "blocks_held": self._all_free - self._free_blocks(),
            "preemptions": self._metric("vllm:num_preemptions"),
            "counters": {
                f"{sample.name}{''.join(f',{label}' for label in sample.labels)}": sample.value
                for adapter in (self._scheduler, self._worker)
                for sample in adapter.readings().counters
                if sample.value
            },
        }

    def metrics(self) -> dict[str, float]:
        """vLLM's own metrics, as far as they are ours."""
        return {
            f"{metric.name}{json.dumps(metric.labels, sort_keys=True)}": metric.value
            for metric in self._engine.get_metrics()
            if "kvgate" in metric.name
        }

    def block_bytes(self, block: int) -> bytes:
        return b"".join(cache[block].contiguous().numpy().tobytes() for cache in self._caches())

    def close(self) -> None:
        """End vLLM in order."""
        self._engine.engine_core.shutdown(END_SECONDS / 2)

    def _caches(self) -> tuple[torch.Tensor, ...]:
        return self._worker._memory._tensors

    def _free_blocks(self) -> int:
        return self._core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def _metric(self, name: str) -> float:
        return sum(metric.value for metric in self._engine.get_metrics() if metric.name == name)


if __name__ == "__main__":
    serve(Host)
