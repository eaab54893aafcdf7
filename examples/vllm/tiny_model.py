"""A tiny model with random weights, made on the spot: what the demo and the engine tests let vLLM serve.

``python -m examples.vllm.tiny_model FOLDER`` makes a Llama; with ``--mla`` a DeepSeek-V2, whose attention is MLA.

Owns: the model's folder. Must not know: vLLM, kvgate. Runs in vLLM's environment, which has torch and transformers.

Its tokens mean nothing, but they are the same in every process: weights come from a fixed seed, and each token depends
on all keys and values before it.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

VOCABULARY = 512
MAX_TOKENS = 8192
_CORPUS = ("the quick brown fox jumps over the lazy dog", "keys and values of every token of a prompt", "0123456789")


def make(folder: Path, *, layers: int = 8, hidden: int = 512, seed: int = 7, is_mla: bool = False) -> Path:
    """Write a model and its tokenizer, unless the folder has one.

    Args:
        folder: to be made; its parent exists.
        layers: attention layers.
        hidden: width; heads are 64 wide, of KV heads there are half as many.
        seed: of the weights.
        is_mla: attention by MLA: one latent of 512 + 64 numbers a token and layer, whatever the width.

    Returns:
        The folder.
    """
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(_CORPUS, vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"])
    bpe.save(str(folder / "tokenizer.json"))
    PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "max_position_embeddings": MAX_TOKENS,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    torch.manual_seed(seed)
    model = _mla(shape) if is_mla else _llama(shape)
    model.save_pretrained(folder)
    return folder


def _llama(shape: dict[str, Any]) -> Any:
    hidden = shape["hidden_size"]
    heads = {"num_attention_heads": hidden // 64, "num_key_value_heads": max(1, hidden // 128), "head_dim": 64}
    return LlamaForCausalLM(LlamaConfig(**shape, **heads))


def _mla(shape: dict[str, Any]) -> Any:
    """Its layers are dense all: experts are not what is shown here."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": None, "kv_lora_rank": 512}
    widths = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    dense = {"first_k_dense_replace": shape["num_hidden_layers"], "n_routed_experts": 2, "num_experts_per_tok": 1}
    return DeepseekV2ForCausalLM(DeepseekV2Config(**shape, **heads, **widths, **dense))


def main() -> None:
    """Make the model in the folder that is named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--mla", action="store_true")
    arguments = parser.parse_args()
    make(arguments.folder, layers=arguments.layers, hidden=arguments.hidden, is_mla=arguments.mla)


if __name__ == "__main__":
    main()
