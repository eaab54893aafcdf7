"""Who a cache belongs to: all of the model that must agree before bytes may be shared, but for the KV geometry."""

from dataclasses import dataclass

from adapter.geometry import Geometry
from gateway.wire.keys import namespace_id

_PLAIN_DTYPES = frozenset({"bfloat16", "float16", "float32", "float64"})


@dataclass(frozen=True)
class CacheIdentity:
    """The model and this rank's part of it.

    Attributes:
        model: served model name.
        revision: anything that changes the weights (a commit, a hash).
        dtype: KV dtype.
        block_tokens: tokens a KV block of the engine.
        chunk_tokens: tokens a chunk, a multiple of ``block_tokens``.
        shard, shard_count: which distinct part of a chunk this rank holds, of how many.
        replicas, replica: how many ranks hold the same part, and which this is; replica 0 writes.
        fingerprint: anything else that must agree (quantization, rope scaling, …).

    Raises:
        ValueError: a value is out of range; the message names it and what was expected.
    """

    model: str
    revision: str = ""
    dtype: str = "bfloat16"
    block_tokens: int = 16
    chunk_tokens: int = 256
    shard: int = 0
    shard_count: int = 1
    replicas: int = 1
    replica: int = 0
    fingerprint: str = ""

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model is empty, expected the served model's name")
        for name in ("block_tokens", "chunk_tokens", "shard_count", "replicas"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}, expected a whole number of at least 1")
        if self.chunk_tokens % self.block_tokens:
            raise ValueError(
                f"chunk_tokens is {self.chunk_tokens}, expected a multiple of block_tokens {self.block_tokens}"
            )
        if not 0 <= self.shard < self.shard_count:
            raise ValueError(f"shard is {self.shard}, expected 0 to {self.shard_count - 1}")
        if not 0 <= self.replica < self.replicas:
            raise ValueError(f"replica is {self.replica}, expected 0 to {self.replicas - 1}")

    @property
    def blocks_per_chunk(self) -> int:
        """KV blocks of one chunk."""
        return self.chunk_tokens // self.block_tokens

    def check_geometry(self, geometry: Geometry) -> None:
        """Refuse a KV geometry that cannot be this model's.

        Raises:
            ValueError: its blocks cannot hold ``block_tokens`` tokens, or its elements are not of ``dtype``.
        """
        if not geometry.layers or geometry.num_blocks < 1:
            raise ValueError(f"the geometry has {len(geometry.layers)} layers and {geometry.num_blocks} blocks")
        for layer in geometry.layers:
            if layer.row_bytes < 1 or layer.row_bytes % self.block_tokens:
                raise ValueError(
                    f"a layer has rows of {layer.row_bytes} bytes a block, expected a multiple of block_tokens "
                    f"{self.block_tokens}"
                )
        # Quantized caches are told by names of their own, and lie in tensors of bytes.
        if {self.dtype, geometry.dtype} <= _PLAIN_DTYPES and self.dtype != geometry.dtype:
            raise ValueError(f"the KV cache is of {geometry.dtype}, expected {self.dtype}")

    def namespace(self, geometry: Geometry) -> bytes:
        """The 16-byte namespace of this identity under a KV geometry: unlike layouts never meet.

        The same for every shard and replica of a model.
        """
        return namespace_id(
            [
                ("model", self.model),
                ("revision", self.revision),
                ("dtype", self.dtype),
                ("block_tokens", self.block_tokens),
                ("chunk_tokens", self.chunk_tokens),
                ("shard_count", self.shard_count),
                ("fingerprint", self.fingerprint),
                ("layout", geometry.layout),
                *(("block", f"{rows}x{row_bytes}") for rows, row_bytes in geometry.block_shapes()),
            ]
        )
