"""A KV cache that is too small: requests are preempted and blocks reused while they are being stored."""

from pathlib import Path

import pytest
import torch

from tests.engine.conftest import PATIENT
from tests.engine.engine import BLOCK_TOKENS, CHUNK_TOKENS, Vllm, connector, prompt
from tests.support.daemon import Daemon

NUM_BLOCKS = 80
#: By who copies for the engine that is preempted; the one that looks afterwards copies itself.
SEEDS = {"pool": range(80, 85), "handle": range(85, 90)}
GENERATED = 60  # more than the last block of a prompt has room for


@pytest.mark.parametrize("transfer", SEEDS)
def test_no_stored_chunk_holds_foreign_bytes(
    model: Path, second: Vllm, daemon: Daemon, tmp_path: Path, transfer: str
) -> None:
    prompts = [prompt(600, seed) for seed in SEEDS[transfer]]
    told = connector(daemon.run_dir, {**PATIENT, "kvgate.engine_name": "tiny", "kvgate.transfer": transfer})
    with Vllm(model, told, num_gpu_blocks_override=NUM_BLOCKS, max_model_len=1024) as tiny:
        assert tiny.ask("wait_healthy")
        for i, asked in enumerate(prompts):
            tiny.ask("add", request_id=f"r{i}", prompt=asked, max_tokens=GENERATED)
        outputs = tiny.ask("run")
        assert tiny.ask("settle")
        facts = tiny.ask("facts")
        assert facts["preemptions"] > 0, "or nothing was tested"
        assert facts["pending"] == [0, 0, 0]
        assert facts["blocks_held"] == 0

    for i, asked in enumerate(prompts):
        whole = asked[: len(asked) // CHUNK_TOKENS * CHUNK_TOKENS]
        loaded, computed = tmp_path / "loaded", tmp_path / "computed"
        assert second.ask("forget_prefixes")
        output = second.generate(asked, GENERATED)
        assert output["cached"] == len(whole), "every chunk was stored in the end"
        assert second.ask("save_kv", request_tokens=whole, path=str(loaded)) == len(whole) // BLOCK_TOKENS
        assert second.ask("forget_prefixes")
        without = second.generate(asked, GENERATED, skip_reading=True)
        assert second.ask("save_kv", request_tokens=whole, path=str(computed)) == len(whole) // BLOCK_TOKENS
        assert torch.allclose(torch.load(loaded), torch.load(computed), atol=1e-4)
        assert outputs[f"r{i}"]["tokens"] == without["tokens"] == output["tokens"]
