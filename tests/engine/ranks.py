"""vLLM's real scheduler and aggregator of outputs over ranks made by hand.

What a vLLM on a CPU cannot show: several ranks, steps that overlap. The scheduler, its KV cache manager and our
scheduler half in it are the real ones, and so are the worker halves; only the model is not there: every request gets
the same token, and a block's bytes are random from the start.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's imports warn
    import vllm
    from vllm import SamplingParams
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.hashing import sha256
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreOutput
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

from adapter import WorkerAdapter
from adapter.vllm import settings
from adapter.vllm.identity import Rank, cache_identity
from adapter.vllm.worker_half import WorkerHalf
from tests.engine.engine import BLOCK_TOKENS, connector

SHAPE = (2, BLOCK_TOKENS, 16)  # of a block: heads, tokens, content
LAYOUT = "LBHNC"
TOKEN = 7
ITEM_TOKENS = 4096


def config_of(
    model: Path, run_dir: Path, *, policy: str = "recompute", extra: dict[str, Any] | None = None
) -> VllmConfig:
    """vLLM's configuration with our connector in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return EngineArgs(
            model=str(model),
            dtype="float32",
            max_model_len=4096,
            max_num_batched_tokens=4096,
            max_num_seqs=8,
            block_size=BLOCK_TOKENS,
            enforce_eager=True,
            kv_transfer_config=connector(run_dir, extra, policy),
        ).create_engine_config()


def cache_of(num_blocks: int, *, replicas: int = 1, layout: str = LAYOUT) -> KVCacheConfig:
    """A KV cache of one layer."""
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=2, head_size=8, dtype=torch.float32)
    return KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        kv_cache_layout=layout,
        kv_tp_replicas=replicas,
    )


@dataclass
class Flight:
    """A step that was scheduled, and what each rank had to say of it."""

    output: SchedulerOutput
    ranks: list[ModelRunnerOutput]


class Ranks:
    """One engine of ``tp`` x ``pp`` ranks, in the order in which vLLM counts them.

    Args:
        model: folder.
        run_dir: of the gateway.
        tp: tensor-parallel ranks, of each stage.
        pp: stages of a pipeline.
        replicas: consecutive tensor-parallel ranks that hold the same heads.
        layout: of the KV cache, by vLLM's name.
        num_blocks: of the KV cache of each.
        is_async: schedule as vLLM does when steps overlap.
        policy: of failed loads.
    """

    def __init__(
        self,
        model: Path,
        run_dir: Path,
        *,
        tp: int = 2,
        pp: int = 1,
        replicas: int = 1,
        layout: str = LAYOUT,
        num_blocks: int = 128,
        is_async: bool = False,
        policy: str = "recompute",
        extra: dict[str, Any] | None = None,
    ) -> None:
        config = config_of(model, run_dir, policy=policy, extra={"kvgate.heartbeat_seconds": 0.5, **(extra or {})})
        chosen = settings.read(config.kv_transfer_config.kv_connector_extra_config)
        config.parallel_config.tensor_parallel_size = tp
        config.parallel_config.pipeline_parallel_size = pp
        config.cache_config.num_gpu_blocks = num_blocks
        init_none_hash(sha256)
        self.scheduler = (AsyncScheduler if is_async else Scheduler)(
            config,
            cache_of(num_blocks, replicas=replicas, layout=layout),
            StructuredOutputManager(config),
            BLOCK_TOKENS,
        )
        # A text model has no room for images; the scheduler plans requests with them all the same.
        self.scheduler.max_num_encoder_input_tokens = ITEM_TOKENS
        self.scheduler.encoder_cache_manager = EncoderCacheManager(ITEM_TOKENS)
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)
        self.caches: list[torch.Tensor] = []
        self.workers: list[WorkerAdapter] = []
        self.halves: list[WorkerHalf] = []
        ranks = [(pp_rank, tp_rank) for pp_rank in range(pp) for tp_rank in range(tp)]
        for pp_rank, tp_rank in ranks:
            part = Rank.of(tp_rank=tp_rank, tp_size=tp, pp_rank=pp_rank, pp_size=pp, replicas=replicas)
            identity = cache_identity(config, chosen, part, vllm.__version__)
            worker = WorkerAdapter(run_dir, identity, config.kv_transfer_config.engine_id, chosen.adapter)
            half = WorkerHalf(worker, lambda: None)
            self.caches.append(self.caches[-1].clone() if part.replica else torch.randn(num_blocks, *SHAPE))
            half.register({"layer": self.caches[-1]}, num_blocks, layout)
            self.workers.append(worker)
            self.halves.append(half)
        own = self.scheduler.connector
        own.set_xfer_handshake_metadata_pp_aware(
            {rank: half.geometry() for rank, half in zip(ranks, self.halves, strict=True)}
        )
        self.half = own._scheduler
        self.adapter = own._adapter
        self._aggregator = KVOutputAggregator(len(ranks))
        self.finished: dict[str, EngineCoreOutput] = {}

    def wait_healthy(self, seconds: float = 40.0) -> Self:
        assert all(adapter.wait_healthy(seconds) for adapter in (self.adapter, *self.workers))
        return self

    def add(self, request_id: str, tokens: list[int], max_tokens: int = 2, **options: Any) -> None:
        request = Request(
            request_id=request_id,
            prompt_token_ids=list(tokens),
            sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0),
            pooling_params=None,
            block_hasher=self._hasher,
            **options,
        )
        self.scheduler.add_request(request)

    def schedule(self) -> Flight:
        """Schedule a step, and let each rank take its part in it."""
        output = self.scheduler.schedule()
        return Flight(output, [self._run(half, output) for half in self.halves])

    def land(self, flight: Flight) -> None:
        """The scheduler hears of a step."""
        merged = self._aggregator.aggregate(flight.ranks)
        assert merged is not None
        for outputs in self.scheduler.update_from_output(flight.output, merged).values():
            for output in outputs.outputs:
                if output.finish_reason is not None:
                    self.finished[output.request_id] = output

    def step(self) -> Flight:
        """A whole step."""
        flight = self.schedule()
        self.land(flight)
        return flight

    def settle(self) -> None:
        assert all(worker.wait_settled(20) for worker in self.workers)

    def blocks_of(self, request_id: str) -> list[int]:
        return self.scheduler.kv_cache_manager.get_block_ids(request_id)[0]

    @property
    def free_blocks(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def close(self) -> None:
        self.scheduler.shutdown()
        for worker in self.workers:
            worker.close()

    def __enter__(self) -> Self:
        return self.wait_healthy()

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _run(half: WorkerHalf, output: SchedulerOutput) -> ModelRunnerOutput:
        plan = output.kv_connector_metadata
        half.begin_step(plan)
        half.bind(plan)
        half.start_loads(plan)
        half.submit_stores()
        told = KVConnectorOutput(
            finished_recving=half.received(),
            invalid_block_ids=half.failed_blocks(),
            kv_connector_worker_meta=half.report(),
        )
        names = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[[TOKEN] for _ in names],
            kv_connector_output=told,
        )
