"""What of vLLM's configurations the connector does not support, said at start in a sentence each.

Owns: the list. vLLM's objects are read by attribute; nothing here imports it. Pure.

A KV cache that is loaded must be the one that would have been computed. What breaks that, or cannot be proven here not
to, is refused before the first request; what concerns single requests is skipped for them (``why_not_cached``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from adapter.vllm.settings import Settings

#: KV caches in which every token has a place of its own, kept as long as its request.
_SUPPORTED_SPECS = frozenset({"FullAttentionSpec", "MLAAttentionSpec"})


def check(config: VllmConfig, cache: KVCacheConfig, settings: Settings) -> None:
    """Refuse what is not supported.

    Raises:
        ValueError: with every reason.
    """
    reasons = list(refusals(config, cache, settings))
    if reasons:
        raise ValueError("kvgate does not support this configuration: " + "; ".join(reasons))


def refusals(config: VllmConfig, cache: KVCacheConfig, settings: Settings) -> Iterator[str]:
    """Every reason why this configuration is not supported."""
    transfer, parallel = config.kv_transfer_config, config.parallel_config
    if transfer.kv_role != "kv_both":
        yield f"kv_role is {transfer.kv_role}, expected kv_both: one engine both stores and loads"
    if transfer.kv_load_failure_policy == "fail" and not settings.allow_fail:
        yield (
            "kv_load_failure_policy is fail (vLLM's default), so that a load that fails would end its request in an "
            "error: set it to recompute, or kvgate.allow_fail to true"
        )
    if config.device_config.device_type != "cpu":
        yield (
            f"its KV cache is on {config.device_config.device_type}, and blocks are copied from memory that the CPU "
            "addresses"
        )
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        yield "context parallelism spreads the tokens of a block over ranks"
    if parallel.nnodes > 1:
        yield "its ranks are on several nodes, and a gateway serves one"
    if config.speculative_config is not None and config.speculative_config.uses_draft_kv_cache():
        yield f"speculative decoding by {config.speculative_config.method} writes to the KV cache of drafts"
    if getattr(config.cache_config, "calculate_kv_scales", False):
        yield "calculate_kv_scales gives each process KV scales of its own"
    yield from _of_groups(cache)


def _of_groups(cache: KVCacheConfig) -> Iterator[str]:
    if cache.hisparse_host_num_blocks is not None:
        yield "a part of the KV cache is kept in host memory by HiSparse"
    if len(cache.kv_cache_groups) != 1:
        yield f"the model has {len(cache.kv_cache_groups)} groups of KV caches, expected one of full attention"
        return
    for spec in _specs_of(cache.kv_cache_groups[0].kv_cache_spec):
        name = type(spec).__name__
        if name not in _SUPPORTED_SPECS:
            yield f"its KV cache is of {name}, expected full attention or MLA"
        elif spec.non_causal:
            yield "its attention is not causal: a token's keys depend on tokens after it"
        elif spec.tokens_per_state != 1:
            yield f"an entry of its KV cache stands for {spec.tokens_per_state} tokens, expected 1"
        else:
            continue
        return


def _specs_of(spec: Any) -> list[Any]:
    """The layers' specifications, where a group lists them one by one."""
    return list(getattr(spec, "kv_cache_specs", {}).values()) or [spec]
