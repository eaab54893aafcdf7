"""A small paged KV cache on the CPU, filled with bytes that tell where they belong.

Owns: the tensors, the free list, and the pattern. Must not know: adapters, gateways. Runs on the engine's one thread.

Nothing is computed: a chunk's bytes are a function of its key, its layer and the place within the chunk, so that any
byte of a retrieved chunk can be checked, and a block that came from another chunk, layer or place is seen.
"""

from collections import deque
from collections.abc import Sequence

import torch

from examples.demo.sizes import BLOCK_TOKENS, BLOCKS_PER_CHUNK, HEAD_DIM, KV_HEADS

_LAYER_STEP = 0x9E3779B97F4A7C15  # odd: no two layers share a word


class PagedCache:
    """Layers of ``[2, num_blocks, block_size, num_kv_heads, head_dim]``, bfloat16, and the blocks that are free."""

    def __init__(self, layers: int, num_blocks: int) -> None:
        shape = (2, num_blocks, BLOCK_TOKENS, KV_HEADS, HEAD_DIM)
        self.tensors = {f"layer.{i}": torch.zeros(shape, dtype=torch.bfloat16) for i in range(layers)}
        # The same memory as 64-bit words: [2, num_blocks, words].
        self._words = [tensor.view(torch.int64).view(2, num_blocks, -1) for tensor in self.tensors.values()]
        generator = torch.Generator().manual_seed(1)
        chunk_shape = (2, BLOCKS_PER_CHUNK, self._words[0].shape[-1])
        self._pattern = torch.randint(-(2**62), 2**62, chunk_shape, dtype=torch.int64, generator=generator)
        self._expected = torch.empty_like(self._pattern)
        self._found = torch.empty_like(self._pattern)
        # Oldest first, and scattered, as after hours of use.
        self._free = deque(torch.randperm(num_blocks, generator=generator).tolist())

    def allocate(self, num_blocks: int) -> list[int]:
        """Take the blocks that have been free the longest."""
        return [self._free.popleft() for _ in range(num_blocks)]

    def free(self, block_ids: Sequence[int]) -> None:
        """Give blocks back. A store of them may still be running: whoever takes them next revokes it first."""
        self._free.extend(block_ids)

    def compute(self, keys: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Fill the blocks of these chunks, as a forward pass would."""
        for layer, words in enumerate(self._words):
            for key, blocks in zip(keys, _by_chunk(block_ids), strict=True):
                words.index_copy_(1, blocks, self._chunk(key, layer))

    def wrong_bytes(self, keys: Sequence[bytes], block_ids: Sequence[int]) -> int:
        """How many bytes of these chunks are not what ``compute`` would have written; every byte is looked at."""
        wrong = 0
        for layer, words in enumerate(self._words):
            for key, blocks in zip(keys, _by_chunk(block_ids), strict=True):
                torch.index_select(words, 1, blocks, out=self._found)
                expected = self._chunk(key, layer)
                if not torch.equal(self._found, expected):
                    wrong += int((self._found.view(torch.uint8) != expected.view(torch.uint8)).sum())
        return wrong

    def _chunk(self, key: bytes, layer: int) -> torch.Tensor:
        """A chunk's words in one layer, in a buffer that the next call overwrites."""
        seed = (int.from_bytes(key[:8], "little") + layer * _LAYER_STEP) % 2**64 - 2**63
        return torch.bitwise_xor(self._pattern, seed, out=self._expected)


def _by_chunk(block_ids: Sequence[int]) -> torch.Tensor:
    return torch.tensor(block_ids, dtype=torch.int64).view(-1, BLOCKS_PER_CHUNK)
