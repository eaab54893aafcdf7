"""The connector class that vLLM makes, in each of its processes: a thin face before the two halves.

Owns: which of vLLM's calls goes to which half, and what is refused. Must not know: how a half does its work. vLLM calls
it on the scheduler's thread or on the worker's, according to its role.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from adapter.geometry import Geometry
from adapter.scheduler import SchedulerAdapter
from adapter.vllm import refusals, settings
from adapter.vllm.identity import Rank, cache_identity
from adapter.vllm.plans import RankGeometry, StepPlan, StepReport
from adapter.vllm.scheduler_half import SchedulerHalf
from adapter.vllm.stats import KVGatePromMetrics, KVGateStats, Teller
from adapter.vllm.worker_half import WorkerHalf
from adapter.worker import WorkerAdapter

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class KVGateConnector(KVConnectorBase_V1):  # type: ignore[misc]  # vLLM is not there where types are checked
    """vLLM's KV connector for a kvgate gateway.

    Raises:
        ValueError: the configuration is not supported, or a setting is missing or wrong; the message says which.
    """

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        chosen = settings.read(self._kv_transfer_config.kv_connector_extra_config)
        refusals.check(vllm_config, kv_cache_config, chosen)
        is_scheduler = role is KVConnectorRole.SCHEDULER
        parallel = vllm_config.parallel_config
        rank = Rank.of(
            tp_rank=0 if is_scheduler else get_tensor_model_parallel_rank(),
            tp_size=parallel.tensor_parallel_size,
            pp_rank=0 if is_scheduler else get_pp_group().rank_in_group,
            pp_size=parallel.pipeline_parallel_size,
            replicas=kv_cache_config.kv_tp_replicas,
        )
        identity = cache_identity(vllm_config, chosen, rank, vllm.__version__)
        group = self._kv_transfer_config.engine_id
        self._adapter: SchedulerAdapter | WorkerAdapter
        if is_scheduler:
            self._adapter = scheduler = SchedulerAdapter(chosen.run_dir, identity, group, chosen.adapter)
            self._scheduler = SchedulerHalf(scheduler)
        else:
            self._adapter = worker = WorkerAdapter(chosen.run_dir, identity, group, chosen.adapter)
            self._worker = WorkerHalf(worker, _computed_at_once)
        self._teller = Teller(f"{group}.{role.name}.{rank.shard}.{rank.replica}")

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a cache. What is not stored is computed again."""
        return False

    def shutdown(self) -> None:
        """The engine ends."""
        self._adapter.close()

    def get_kv_connector_stats(self) -> KVGateStats | None:
        """What this half's metrics have changed by since it was last asked."""
        return self._teller.changes(self._adapter.readings())

    # -- the scheduler's side ------------------------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """(tokens that can be loaded, whether they are loaded between steps); (None, False): ask again."""
        tokens = self._scheduler.matched(request, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """The request has its blocks."""
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepPlan:
        """The plan of one step."""
        return self._scheduler.plan(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """What the workers reported."""
        self._scheduler.heard(connector_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:  # noqa: ARG002
        """The request is over. Its blocks are never held back."""
        self._scheduler.finished(request)
        return False, None

    def has_pending_push_work(self) -> bool:
        """Whether steps without tokens are wanted."""
        return self._scheduler.wants_steps

    def reset_cache(self) -> bool:
        """Nothing stored before is found again."""
        return self._scheduler.reset()

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Mapping[tuple[int, int], RankGeometry]) -> None:
        """The geometry of every rank, told once after the workers have registered their KV caches.

        Raises:
            ValueError: the ranks' caches are not parts of one.
        """
        self._scheduler.set_geometries(Geometry.from_bytes(told.encoded) for told in metadata.values())

    # -- the worker's side ---------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The KV cache was allocated."""
        cache = self._kv_cache_config
        self._worker.register(kv_caches, cache.num_blocks, cache.kv_cache_layout)

    def get_handshake_metadata(self) -> RankGeometry:
        """This rank's geometry, for the scheduler's side."""
        return self._worker.geometry()

    def handle_preemptions(self, kv_connector_metadata: StepPlan) -> None:
        """Before anything of this step is overwritten."""
        self._worker.begin_step(kv_connector_metadata)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """The plan of this step."""
        super().bind_connector_metadata(connector_metadata)
        self._worker.bind(connector_metadata)

    def start_load_kv(self, forward_context: object, **_: object) -> None:  # noqa: ARG002
        """Begin to load."""
        self._worker.start_loads(self._get_connector_metadata())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are not by layer."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: object, **_: object) -> None:
        """Stores are not by layer."""

    def wait_for_save(self) -> None:
        """Begin to store; never waits."""
        self._worker.submit_stores()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str]]:  # noqa: ARG002
        """(None, requests whose load is over). Nothing is held back, so that nothing is ever reported sent."""
        return None, self._worker.received()

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that loads did not fill."""
        return self._worker.failed_blocks()

    def build_connector_worker_meta(self) -> StepReport:
        """What the scheduler's side is told of this step."""
        return self._worker.report()

    # -- the process that serves metrics -------------------------------------------------------------------------------

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVGateStats:
        """Statistics from what has travelled."""
        return KVGateStats(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[Any], type[Any]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVGatePromMetrics:
        """Our metrics in vLLM's own."""
        return KVGatePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


def _computed_at_once() -> None:
    """On a CPU the forward pass has ended when its call returns: no event orders what follows."""
