"""What one engine has stored another loads: the bytes, the tokens, and the proof that it was so."""

import math
from pathlib import Path

import torch

from gateway.pool.mapping import PoolMapping
from tests.engine.conftest import at_rest
from tests.engine.engine import BLOCK_TOKENS, CHUNK_TOKENS, Vllm, prompt
from tests.support.daemon import Daemon

#: Log-probabilities are float32, and sums are made in another order when fewer tokens are computed.
TOLERANCE = 2e-4
BLOCKS = CHUNK_TOKENS // BLOCK_TOKENS


def test_another_process_loads_the_bytes_that_were_stored(first: Vllm, second: Vllm, daemon: Daemon) -> None:
    for tokens, seed in ((2048, 1), (4000, 2)):
        asked = prompt(tokens, seed)
        computed = first.generate(asked, max_tokens=8)
        assert first.ask("settle")

        loaded = second.generate(asked, max_tokens=8)

        whole = tokens // CHUNK_TOKENS * CHUNK_TOKENS
        assert (computed["cached"], loaded["cached"]) == (0, whole)
        assert loaded["tokens"] == computed["tokens"]
        assert close(loaded["logprobs"], computed["logprobs"])
    stored, brought = first.ask("digests", kind="store"), second.ask("digests", kind="retrieve")
    assert len(brought) == 2048 // CHUNK_TOKENS + 4000 // CHUNK_TOKENS
    assert brought == stored
    at_rest(daemon)


def test_zeros_in_the_pool_give_other_tokens(first: Vllm, second: Vllm, daemon: Daemon) -> None:
    asked = prompt(2048, 3)
    computed = first.generate(asked, max_tokens=8)
    assert first.ask("settle")
    wipe(daemon.pool)

    loaded = second.generate(asked, max_tokens=8)

    assert loaded["cached"] == 2048
    assert not close(loaded["logprobs"], computed["logprobs"]), "the pool's bytes decide what is computed"


def test_a_load_that_begins_inside_a_chunk_leaves_what_vllm_holds_alone(first: Vllm, second: Vllm) -> None:
    asked = prompt(1024, 4)
    computed = first.generate(asked, max_tokens=4)
    assert first.ask("settle")
    second.generate(asked[:112])  # three blocks of it are vLLM's own now

    loaded = second.generate(asked, max_tokens=4)

    assert loaded["cached"] == 1024
    assert close(loaded["logprobs"], computed["logprobs"])
    stored, brought = first.ask("digests", kind="store"), second.ask("digests", kind="retrieve")
    partly = [key for key, blocks in brought.items() if key in stored and len(blocks) == BLOCKS - 3]
    assert len(partly) == 1
    assert brought[partly[0]] == stored[partly[0]][3:]


def test_what_is_not_a_whole_chunk_is_computed(first: Vllm, second: Vllm) -> None:
    asked = prompt(CHUNK_TOKENS + 100, 5)
    first.generate(asked)
    assert first.ask("settle")

    assert second.generate(asked)["cached"] == CHUNK_TOKENS
    assert second.generate(prompt(CHUNK_TOKENS - 1, 6))["cached"] == 0


def test_one_more_block_is_not_worth_a_load(first: Vllm) -> None:
    asked = prompt(512, 7)
    first.generate(asked)
    assert first.ask("settle")
    before = first.ask("facts")["counters"].get("operations,retrieve,loaded", 0)

    assert first.generate(asked)["cached"] == 512 - BLOCK_TOKENS
    assert first.ask("facts")["counters"].get("operations,retrieve,loaded", 0) == before


def test_loaded_kv_is_what_would_have_been_computed(first: Vllm, second: Vllm, tmp_path: Path) -> None:
    asked = prompt(1024, 8)
    first.generate(asked)
    assert first.ask("settle")
    assert second.generate(asked)["cached"] == 1024
    loaded, computed = tmp_path / "loaded", tmp_path / "computed"
    assert second.ask("save_kv", request_tokens=asked, path=str(loaded)) == 1024 // BLOCK_TOKENS
    assert second.ask("forget_prefixes")
    second.generate(asked, skip_reading=True)
    assert second.ask("save_kv", request_tokens=asked, path=str(computed)) == 1024 // BLOCK_TOKENS

    assert torch.allclose(torch.load(loaded), torch.load(computed), atol=1e-4)


def test_after_a_reset_nothing_of_before_hits(first: Vllm, second: Vllm) -> None:
    asked = prompt(1024, 9)
    first.generate(asked)
    assert first.ask("settle")
    assert first.ask("reset")["done"]
    assert first.generate(asked)["cached"] == 0, "not in the engine that was reset"
    assert first.ask("settle")
    assert first.ask("forget_prefixes")

    assert first.generate(asked)["cached"] == 1024, "and what it stores from then on does"
    assert second.generate(asked)["cached"] == 1024, "others keep what they had"


def test_vllms_own_metrics_have_ours(first: Vllm, second: Vllm) -> None:
    asked = prompt(512, 10)
    second.generate(asked)
    assert second.ask("settle")
    first.generate(asked)
    metrics = first.ask("metrics")
    states = {name: value for name, value in metrics.items() if "gateway_state" in name}

    assert sum(states.values()) == 2, "both halves see one state each"
    assert all("vllm:kvgate_adapter_" in name for name in metrics)
    assert any(name.startswith("vllm:kvgate_adapter_drains") and value == 0 for name, value in metrics.items())
    loaded = next(value for name, value in metrics.items() if name.startswith("vllm:kvgate_adapter_loaded_tokens"))
    assert loaded == first.ask("facts")["counters"]["loaded_tokens"]


def close(one: list[float], other: list[float]) -> bool:
    return all(math.isclose(a, b, abs_tol=TOLERANCE) for a, b in zip(one, other, strict=True))


def wipe(pool: Path) -> None:
    """Zeros over all data in the pool; its headers stay."""
    mapping = PoolMapping.open(pool)
    zeros = bytes(1 << 20)
    for offset in range(0, mapping.data_bytes, len(zeros)):
        mapping.data(offset, len(zeros))[:] = zeros
    mapping.close()
