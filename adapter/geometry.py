"""The shape of an engine's KV cache, as far as bytes are concerned: what a block of each layer is made of.

Owns: reading shapes and strides of registered tensors into rows. Must not know: tensor libraries (tensors are read by
``data_ptr``, ``shape``, ``stride``, ``element_size``, ``dtype``, ``device``), slots, sockets.

A chunk in a slot is: for each layer, for each row of a block (K and V of ``[2, num_blocks, block_size, num_kv_heads, head_dim]`` are two rows;
``[num_blocks, ...]`` has one), for each block of the chunk in token order, the row's bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class LayerGeometry(msgspec.Struct, frozen=True, array_like=True):
    """One layer: ``rows`` runs of ``row_bytes`` contiguous bytes a block."""

    rows: int
    row_bytes: int


class Geometry(msgspec.Struct, frozen=True):
    """A worker's KV cache: layout name, dtype, blocks, and each distinct layer in registration order."""

    layout: str
    dtype: str
    num_blocks: int
    layers: tuple[LayerGeometry, ...]

    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return sum(layer.rows * layer.row_bytes for layer in self.layers)

    def block_shapes(self) -> list[tuple[int, int]]:
        """The distinct (rows, row_bytes) of its layers, sorted; the same for ranks that hold unlike numbers of layers."""
        return sorted({(layer.rows, layer.row_bytes) for layer in self.layers})

    def to_bytes(self) -> bytes:
        """Encoding for another process of the same engine."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Geometry:
        """The geometry that ``to_bytes`` encoded.

        Raises:
            ValueError: not an encoded geometry.
        """
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise ValueError(f"not an encoded geometry: {error}") from None


@dataclass(frozen=True)
class Region:
    """One row of one layer in memory: block ``b`` lies at ``address + b * stride_bytes``, ``row_bytes`` long."""

    address: int
    stride_bytes: int
    row_bytes: int
