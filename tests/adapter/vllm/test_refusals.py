"""What the vLLM connector refuses at start, and that each reason is said."""

from types import SimpleNamespace

import pytest

from adapter.vllm import refusals
from adapter.vllm.settings import Settings

SETTINGS = Settings("d")


class FullAttentionSpec(SimpleNamespace):
    """Named as vLLM's; told by its name."""


class MLAAttentionSpec(SimpleNamespace):
    """The same."""


class SlidingWindowSpec(SimpleNamespace):
    """The same."""


class UniformTypeKVCacheSpecs(SimpleNamespace):
    """The same."""


def spec(kind: type[SimpleNamespace] = FullAttentionSpec, **changes: object) -> SimpleNamespace:
    return kind(**{"non_causal": False, "tokens_per_state": 1, **changes})


def config(**changes: object) -> SimpleNamespace:
    """A configuration that is supported, but for the changes, named by their path."""
    made = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_role="kv_both", kv_load_failure_policy="recompute"),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1, nnodes=1, tensor_parallel_size=2
        ),
        device_config=SimpleNamespace(device_type="cpu"),
        cache_config=SimpleNamespace(calculate_kv_scales=False),
        speculative_config=None,
    )
    for path, value in changes.items():
        *parents, name = path.split("__")
        owner = made
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, name, value)
    return made


def cache(*specs: SimpleNamespace, host_blocks: int | None = None) -> SimpleNamespace:
    groups = [SimpleNamespace(kv_cache_spec=entry) for entry in specs]
    return SimpleNamespace(kv_cache_groups=groups, hisparse_host_num_blocks=host_blocks)


def drafts(own_cache: bool) -> SimpleNamespace:
    return SimpleNamespace(method="eagle", uses_draft_kv_cache=lambda: own_cache)


@pytest.mark.parametrize(
    "supported",
    [
        cache(spec()),
        cache(spec(MLAAttentionSpec)),
        cache(spec(sliding_window=128)),
        cache(UniformTypeKVCacheSpecs(kv_cache_specs={"a": spec(), "b": spec(MLAAttentionSpec)})),
    ],
)
def test_full_attention_and_mla_are_supported(supported: SimpleNamespace) -> None:
    assert list(refusals.refusals(config(), supported, SETTINGS)) == []
    refusals.check(config(speculative_config=drafts(own_cache=False)), supported, SETTINGS)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_transfer_config__kv_role": "kv_producer"}, "kv_role is kv_producer"),
        ({"kv_transfer_config__kv_load_failure_policy": "fail"}, "kvgate.allow_fail"),
        ({"device_config__device_type": "cuda"}, "its KV cache is on cuda"),
        ({"parallel_config__decode_context_parallel_size": 2}, "context parallelism"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "context parallelism"),
        ({"parallel_config__nnodes": 2}, "several nodes"),
        ({"speculative_config": drafts(own_cache=True)}, "speculative decoding by eagle"),
        ({"cache_config__calculate_kv_scales": True}, "calculate_kv_scales"),
    ],
)
def test_what_is_not_supported_is_said(changes: dict[str, object], reason: str) -> None:
    (said,) = refusals.refusals(config(**changes), cache(spec()), SETTINGS)

    assert reason in said


@pytest.mark.parametrize(
    ("unsupported", "reason"),
    [
        (cache(spec(), spec(SlidingWindowSpec)), "2 groups"),
        (cache(spec(SlidingWindowSpec)), "SlidingWindowSpec"),
        (cache(spec(non_causal=True)), "not causal"),
        (cache(spec(MLAAttentionSpec, tokens_per_state=4)), "stands for 4 tokens"),
        (cache(spec(), host_blocks=100), "HiSparse"),
        (cache(UniformTypeKVCacheSpecs(kv_cache_specs={"a": spec(), "b": spec(SlidingWindowSpec)})), "SlidingWindow"),
    ],
)
def test_kv_caches_that_are_not_supported_are_said(unsupported: SimpleNamespace, reason: str) -> None:
    (said,) = refusals.refusals(config(), unsupported, SETTINGS)

    assert reason in said


def test_all_reasons_are_in_one_sentence() -> None:
    wrong = config(kv_transfer_config__kv_role="kv_consumer", parallel_config__nnodes=2)

    with pytest.raises(ValueError, match=r"kvgate does not support.*kv_consumer.*; .*nodes"):
        refusals.check(wrong, cache(spec()), SETTINGS)


def test_failing_loads_may_be_allowed_to_fail_requests() -> None:
    refusals.check(
        config(kv_transfer_config__kv_load_failure_policy="fail"), cache(spec()), Settings("d", allow_fail=True)
    )
