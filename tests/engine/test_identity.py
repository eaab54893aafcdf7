"""Whose KV cache it is, told to a live vLLM: LoRA adapters and cache salts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.engine.engine import Vllm, prompt

RANK = 8
LAYERS, HIDDEN, KV_WIDTH = 4, 256, 128  # of the model of these tests


def adapter(folder: Path, seed: int) -> str:
    """A LoRA adapter of random weights that changes keys and values; returns its path."""
    folder.mkdir()
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(LAYERS):
        for name in ("k_proj", "v_proj"):
            part = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{part}.lora_A.weight"] = torch.randn(RANK, HIDDEN, generator=random) / 10
            weights[f"{part}.lora_B.weight"] = torch.randn(KV_WIDTH, RANK, generator=random) / 10
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 16,
        "target_modules": ["k_proj", "v_proj"],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return str(folder)


def cached(engine: Vllm, asked: list[int], **options: Any) -> tuple[int, list[int]]:
    """How much of a prompt comes from the gateway alone, and the tokens that follow."""
    assert engine.ask("forget_prefixes")
    output = engine.generate(asked, 4, **options)
    assert engine.ask("settle")
    return output["cached"], output["tokens"]


def test_a_lora_adapter_has_a_cache_of_its_own_in_every_process(first: Vllm, second: Vllm, tmp_path: Path) -> None:
    asked = prompt(512, 300)
    path, other_path = adapter(tmp_path / "tuned", 1), adapter(tmp_path / "other", 2)
    tuned = {"lora_name": "tuned", "lora_int_id": 1, "lora_path": path}
    found, plain = cached(first, asked)
    assert found == 0
    found, expected = cached(first, asked, lora=tuned)
    assert found == 0, "the model without it is another"
    assert expected != plain, "or the adapter does nothing"

    assert cached(second, asked, lora={**tuned, "lora_int_id": 7}) == (512, expected), "an id is of one process"
    assert cached(second, asked, lora={**tuned, "lora_int_id": 8, "lora_path": other_path})[0] == 0, "other weights"
    assert cached(second, asked, lora={**tuned, "lora_int_id": 9, "lora_name": "renamed"})[0] == 0
    assert cached(second, asked) == (512, plain)


def test_an_adapter_whose_files_have_changed_is_not_cached(first: Vllm, tmp_path: Path) -> None:
    asked = prompt(512, 301)
    tuned = {"lora_name": "changing", "lora_int_id": 20, "lora_path": adapter(tmp_path / "changing", 3)}
    cached(first, asked, lora=tuned)
    assert cached(first, asked, lora=tuned)[0] == 512
    config = tmp_path / "changing" / "adapter_config.json"
    config.write_text(config.read_text() + " ")

    assert cached(first, asked, lora=tuned)[0] == 0


@pytest.mark.parametrize(("salt", "found"), [("a tenant", 512), ("another", 0), (None, 0)])
def test_a_cache_salt_keeps_tenants_apart(first: Vllm, second: Vllm, salt: str | None, found: int) -> None:
    asked = prompt(512, 302)
    cached(first, asked, cache_salt="a tenant")

    assert cached(second, asked, cache_salt=salt)[0] == found
