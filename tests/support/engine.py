"""A small engine: both adapters over CPU tensors of two layers, with tokens and blocks made to order."""

import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch

from adapter import AdapterConfig, CacheIdentity, LoadStoreOp, SchedulerAdapter, State, WorkerAdapter
from tests.support import scrape
from tests.support.poll import until

BLOCK_TOKENS = 16
CHUNK_TOKENS = 32
BLOCKS_PER_CHUNK = CHUNK_TOKENS // BLOCK_TOKENS
HEARTBEAT_SECONDS = 0.2


def tokens(chunks: int, seed: int = 0) -> list[int]:
    """The token ids of a prompt of so many full chunks; other seeds share no prefix."""
    ids = random.Random(seed)
    return [ids.randrange(1 << 17) for _ in range(CHUNK_TOKENS * chunks)]


def blocks(chunks: int, first: int = 0) -> list[int]:
    return list(range(first, first + chunks * BLOCKS_PER_CHUNK))


class Engine:
    """Both halves of one engine.

    Args:
        run_dir: of the gateway.
        name: the engine's name.
        num_blocks: KV blocks of each of the two layers, ``[2, num_blocks, 16, num_kv_heads, 8]`` bfloat16.
        num_kv_heads: a chunk takes 2 KiB a head.
        copy: put in the place of the worker's own copy of a unit.
        settings: of AdapterConfig.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        name: str = "engine",
        model: str = "tiny",
        num_blocks: int = 64,
        num_kv_heads: int = 2,
        copy=None,
        **settings,
    ) -> None:
        self.identity = CacheIdentity(model=model, block_tokens=BLOCK_TOKENS, chunk_tokens=CHUNK_TOKENS)
        config = AdapterConfig(**{"heartbeat_seconds": HEARTBEAT_SECONDS, "engine_name": name, **settings})
        self._name = name
        group = uuid.uuid4().hex
        shape = (2, num_blocks, BLOCK_TOKENS, num_kv_heads, 8)
        self.caches = {f"layer.{i}": torch.zeros(shape, dtype=torch.bfloat16) for i in range(2)}
        seam = {} if copy is None else {"copy": copy}
        self.worker = WorkerAdapter(str(run_dir), self.identity, group, config=config, **seam)
        self.worker.register_kv_caches(self.caches, layout="NHD", block_axis=1)
        self.scheduler = SchedulerAdapter(str(run_dir), self.identity, group, config=config)
        self.scheduler.set_geometry(self.worker.geometry)

    def wait_healthy(self, seconds: float = 15) -> Self:
        """Both halves are registered; adapters that were draining are resumed by the gateway alone."""
        until(self.is_healthy, seconds, f"healthy (worker {self.worker.state}, scheduler {self.scheduler.state})")
        return self

    def is_healthy(self) -> bool:
        return self.worker.state is State.HEALTHY and self.scheduler.state is State.HEALTHY

    def fill(self, block_ids: Sequence[int], seed: int) -> None:
        """Write bytes into these blocks that depend on the seed, the layer and the block's place in the list."""
        for i, cache in enumerate(self.caches.values()):
            made = torch.Generator().manual_seed(1000 * seed + i)
            data = torch.randn(2, len(block_ids), *cache.shape[2:], generator=made).to(cache.dtype)
            cache[:, list(block_ids)] = data

    def read(self, block_ids: Sequence[int]) -> bytes:
        """The bytes of these blocks, in order."""
        return b"".join(
            cache[:, list(block_ids)].contiguous().view(torch.uint8).numpy().tobytes() for cache in self.caches.values()
        )

    def store(self, request: str, token_ids: Sequence[int], block_ids: Sequence[int], event=None) -> int:
        op = LoadStoreOp.from_tokens(token_ids, block_ids, self.identity)
        return self.worker.submit_store_request(request, op, event)

    def retrieve(self, request: str, token_ids: Sequence[int], block_ids: Sequence[int], event=None) -> int:
        op = LoadStoreOp.from_tokens(token_ids, block_ids, self.identity)
        return self.worker.submit_retrieve_request(request, op, event)

    def store_and_wait(self, request: str, token_ids: Sequence[int], block_ids: Sequence[int], seed: int) -> None:
        """Fill the blocks, store them, and see that the gateway has them."""
        self.fill(block_ids, seed)
        self.store(request, token_ids, block_ids)
        assert self.worker.wait_settled(15)
        assert self.hit(f"{request}-check", token_ids) == len(token_ids)

    def hit(self, request: str, token_ids: Sequence[int], seconds: float = 5.0) -> int:
        """Tokens found; the lease is given back."""
        found = self.scheduler.lookup(request, token_ids, timeout_seconds=seconds)
        self.scheduler.end_session(request)
        return found

    def load(self, request: str, token_ids: Sequence[int], block_ids: Sequence[int]) -> set[int]:
        """Look up, retrieve, and wait; blocks that were not filled."""
        self.scheduler.lookup(request, token_ids, timeout_seconds=5)
        self.retrieve(request, token_ids, block_ids)
        assert self.worker.wait_settled(15)
        self.scheduler.end_session(request)
        return self.worker.get_block_ids_with_load_errors()

    def engine_name(self) -> str:
        """The engine's name."""
        return self._name

    def three(self) -> tuple[int, int, int]:
        """The three gauges, from a scrape of the worker's registry."""
        return scrape.three(scrape.of_registry(self.worker.registry))

    def total(self, name: str, **labels: str) -> float:
        """A counter of the worker's registry."""
        return scrape.value(scrape.of_registry(self.worker.registry), f"kvgate_adapter_{name}_total", **labels)

    def close(self) -> None:
        self.scheduler.close()
        self.worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
