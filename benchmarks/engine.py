"""An engine as the benchmarks have it: both adapters over a KV cache of real tensors.

Owns: the geometry of the table, tensors, and keys nobody has stored yet. Must not know: what is measured.
"""

import os
import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch

from adapter import AdapterConfig, CacheIdentity, LoadStoreOp, SchedulerAdapter, WorkerAdapter
from adapter.transfer.chunks import CopyUnit, copy_unit

BLOCK_TOKENS = 16
CHUNK_TOKENS = 256
BLOCKS_PER_CHUNK = CHUNK_TOKENS // BLOCK_TOKENS
#: Of the table: 32 layers of [2, num_blocks, 16, 8, 128] bfloat16. A chunk has 32 MiB, 8k tokens have 1 GiB.
LAYERS = 32
BLOCK_SHAPE = (16, 8, 128)
PROMPT_CHUNKS = 32
#: Where nobody looks at the copies: one layer with 4 KiB a chunk.
SMALL_BLOCK_SHAPE = (16, 1, 4)


class Event:
    """Stands for a device event; fired from the beginning unless it is told otherwise."""

    def __init__(self, *, has_fired: bool = True) -> None:
        self.has_fired = has_fired

    def query(self) -> bool:
        """Whether it has fired."""
        return self.has_fired

    def ipc_handle(self) -> bytes:
        """Not used: the adapter copies."""
        return b""


def kv_cache(layers: int = LAYERS, num_blocks: int = PROMPT_CHUNKS * BLOCKS_PER_CHUNK) -> dict[str, torch.Tensor]:
    """Tensors of the table's geometry. Each byte has been written: no page of them is the kernel's zero page."""
    shape = (2, num_blocks, *BLOCK_SHAPE)
    return {f"layer.{i}": torch.full(shape, i + 0.5, dtype=torch.bfloat16) for i in range(layers)}


def small_kv_cache(num_blocks: int) -> dict[str, torch.Tensor]:
    """One layer with small blocks."""
    return {"layer.0": torch.full((2, num_blocks, *SMALL_BLOCK_SHAPE), 0.5, dtype=torch.bfloat16)}


def new_keys(num_chunks: int) -> tuple[bytes, ...]:
    """Keys of chunks that are nowhere."""
    return tuple(os.urandom(32) for _ in range(num_chunks))


def scattered(num_blocks: int) -> list[int]:
    """All blocks in an order as after hours of use."""
    blocks = list(range(num_blocks))
    random.Random(1).shuffle(blocks)
    return blocks


class Engine:
    """Both halves, registered."""

    def __init__(
        self,
        run_dir: Path,
        caches: dict[str, torch.Tensor],
        *,
        copy: CopyUnit = copy_unit,
        copy_threads: int = 1,
        transfer: str = "auto",
    ) -> None:
        self.identity = CacheIdentity(model="benchmark", block_tokens=BLOCK_TOKENS, chunk_tokens=CHUNK_TOKENS)
        config = AdapterConfig(engine_name="benchmark", copy_threads=copy_threads, transfer=transfer)
        group = uuid.uuid4().hex
        self.worker = WorkerAdapter(run_dir, self.identity, group, config=config, copy=copy)
        self.worker.register_kv_caches(caches, layout="NHD", block_axis=1)
        self.scheduler = SchedulerAdapter(run_dir, self.identity, group, config=config)
        self.scheduler.set_geometry(self.worker.geometry)
        self.wait_healthy()

    def wait_healthy(self) -> None:
        """Both halves take work."""
        assert self.worker.wait_healthy(30)
        assert self.scheduler.wait_healthy(30)

    def store(self, keys: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Store these chunks and wait until they are there."""
        self.worker.submit_store_request("store", LoadStoreOp(keys, block_ids))
        assert self.worker.wait_settled(60)

    def retrieve(self, keys: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Load these chunks and wait until they are there."""
        self.worker.submit_retrieve_request("retrieve", LoadStoreOp(keys, block_ids))
        assert self.worker.wait_settled(60)
        self.worker.get_finished()
        assert not self.worker.get_block_ids_with_load_errors()

    def close(self) -> None:
        """Leave."""
        self.scheduler.close()
        self.worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
