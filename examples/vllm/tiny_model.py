"""A tiny Llama with random weights, made on the spot: what the demo and the engine tests let vLLM serve.

``python -m examples.vllm.tiny_model FOLDER`` makes one.

Owns: the model's folder. Must not know: vLLM, kvgate. Runs in vLLM's environment, which has torch and transformers.

Its tokens mean nothing, but they are the same in every process: weights come from a fixed seed, and each token depends
on all keys and values before it.
"""

import argparse
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
MAX_TOKENS = 8192
_CORPUS = ("the quick brown fox jumps over the lazy dog", "keys and values of every token of a prompt", "0123456789")


def make(folder: Path, *, layers: int = 8, hidden: int = 512, seed: int = 7) -> Path:
    """Write a model and its tokenizer, unless the folder has one.

    Args:
        folder: to be made; its parent exists.
        layers: attention layers.
        hidden: width; heads are 64 wide, of KV heads there are half as many.
        seed: of the weights.

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
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 128),
        head_dim=64,
        max_position_embeddings=MAX_TOKENS,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        torch_dtype="float32",
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def main() -> None:
    """Make the model in the folder that is named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512)
    arguments = parser.parse_args()
    make(arguments.folder, layers=arguments.layers, hidden=arguments.hidden)


if __name__ == "__main__":
    main()
