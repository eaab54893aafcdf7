"""The shape of an engine's KV cache, as far as bytes are concerned: what a block of each layer is made of.

Owns: reading shapes and strides of registered tensors into rows. Must not know: tensor libraries (tensors are read by
``data_ptr``, ``shape``, ``stride``, ``element_size``, ``dtype``, ``device``), slots, sockets. Pure; any thread.

A block of a layer is a number of *rows*, each a run of bytes without a gap: K and V of
``[2, num_blocks, block_size, num_kv_heads, head_dim]`` are two, ``[num_blocks, ...]`` has one. A chunk in a slot
is: for each layer, for each row of a block, for each block of the chunk in token order, the row's bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from gateway.device.copy import Region
from gateway.device.devices import NAMES

# Of layouts with these names the last three axes are tokens, heads and head_dim in some order, or tokens and the
# rest.
_NAMED_LAYOUTS = ("NHD", "HND")


class Tensor(Protocol):
    """What is asked of a tensor. ``torch.Tensor`` fits."""

    @property
    def shape(self) -> Sequence[int]:
        """Length of each axis."""
        ...

    @property
    def dtype(self) -> object:
        """Element type; its text ends in the type's name."""
        ...

    @property
    def device(self) -> object:
        """Where it lies; its text begins with the kind of device."""
        ...

    def data_ptr(self) -> int:
        """Address of the first element."""
        ...

    def stride(self) -> Sequence[int]:
        """Elements from one index to the next, for each axis."""
        ...

    def element_size(self) -> int:
        """Bytes of an element."""
        ...


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
        """The distinct (rows, row_bytes) of its layers, sorted: the same for ranks with unlike numbers of layers."""
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


def read_layers(
    caches: Mapping[str, Tensor], layout: str | None, block_axis: int | None, block_tokens: int
) -> tuple[Geometry, list[Region]]:
    """What the registered KV caches are made of, and where their rows lie.

    A tensor under several names counts once, in its first place.

    Which axis counts the blocks need not be said where only one can: one that all layers have in the same length,
    with an axis of ``block_tokens`` inside of it, whose blocks are whole rows. An axis of length 1 or 2 is
    not it where another one is left. Of the layouts NHD and HND the last three axes (of three axes the last two) are
    never it.

    Args:
        caches: tensors by layer name, in the order of the layers.
        layout: the layout's name, for the namespace: ``"NHD"``, ``"HND"`` or the engine's own; None: made from the
            shapes.
        block_axis: the axis that counts blocks, in all layers; None: see above.
        block_tokens: tokens a block.

    Returns:
        The geometry, and a region for each row of each layer. The caller keeps the tensors alive as long as it
        copies.

    Raises:
        ValueError: no tensors, tensors on a device, unlike block counts, blocks that are not whole rows, or a block
            axis that is not plain; the message names the layer, its shape and its strides.
    """
    layers = _distinct(caches)
    if not layers:
        raise ValueError("no KV caches were given, expected at least one tensor")
    axes = [_normal_axis(layer, block_axis) for layer in layers] if block_axis is not None else None
    if axes is None:
        axes = _block_axes(layers, layout, block_tokens)
    lengths = {layer.shape[axis]: layer for layer, axis in zip(layers, axes, strict=True)}
    if len(lengths) > 1:
        unlike = " and ".join(f"{length} in {layer.describe()}" for length, layer in lengths.items())
        raise ValueError(f"all layers must have the same number of blocks, found {unlike}")
    num_blocks = next(iter(lengths))
    if num_blocks < 1:
        raise ValueError(f"{layers[0].describe()} has no blocks")

    regions: list[Region] = []
    shapes: list[LayerGeometry] = []
    orders: dict[str, bool] = {}
    for layer, axis in zip(layers, axes, strict=True):
        rows = layer.rows(axis)
        regions += rows
        shapes.append(LayerGeometry(len(rows), rows[0].row_bytes))
        orders[layer.order(axis)] = layer.is_in_order()
    geometry = Geometry(
        layout=_layout_name(layout, orders),
        dtype="+".join(sorted({layer.dtype for layer in layers})),
        num_blocks=num_blocks,
        layers=tuple(shapes),
    )
    return geometry, regions


class _Layer:
    """One tensor's numbers."""

    def __init__(self, name: str, tensor: Tensor) -> None:
        self.name = name
        self.device = str(tensor.device)
        self.dtype = str(tensor.dtype).rpartition(".")[2]
        self.shape = tuple(tensor.shape)
        self.strides = tuple(tensor.stride())
        self.address = tensor.data_ptr()
        self.element_bytes = tensor.element_size()
        if self.device.partition(":")[0] not in NAMES:
            raise ValueError(f"layer {name} is on {self.device}: known devices are {', '.join(NAMES)}")

    def describe(self) -> str:
        return f"layer {self.name} of shape {list(self.shape)}, strides {list(self.strides)}"

    def outer_axes(self, block_axis: int) -> list[int]:
        """Axes around the block axis in memory, the widest first."""
        return [axis for axis in self._by_stride() if self._is_outside(axis, block_axis)]

    def inner_axes(self, block_axis: int) -> list[int]:
        """Axes of a row, the widest first; those of length 1 do not matter and are left out."""
        return [
            axis
            for axis in self._by_stride()
            if axis != block_axis and self.shape[axis] > 1 and not self._is_outside(axis, block_axis)
        ]

    def fault(self, block_axis: int) -> str:
        """Why the blocks along this axis are not whole rows; empty when they are."""
        width = 1
        for axis in reversed(self.inner_axes(block_axis)):
            if self.strides[axis] != width:
                return f"the elements of a block have gaps or overlap at axis {axis}"
            width *= self.shape[axis]
        for axis in [block_axis, *reversed(self.outer_axes(block_axis))]:
            if self.shape[axis] > 1 and self.strides[axis] < width:
                return f"blocks overlap at axis {axis}"
            width = max(width, self.strides[axis] * self.shape[axis])
        return ""

    def rows(self, block_axis: int) -> list[Region]:
        """The rows of its blocks, in the order they have in memory.

        Raises:
            ValueError: the blocks are not whole rows.
        """
        fault = self.fault(block_axis)
        if fault:
            raise ValueError(f"blocks along axis {block_axis} of {self.describe()} are not whole rows: {fault}")
        starts = [0]
        for axis in self.outer_axes(block_axis):
            starts = [start + i * self.strides[axis] for start in starts for i in range(self.shape[axis])]
        row_elements = math.prod(self.shape[axis] for axis in self.inner_axes(block_axis))
        size = self.element_bytes
        stride_bytes = self.strides[block_axis] * size
        return [Region(self.address + start * size, stride_bytes, row_elements * size) for start in starts]

    def order(self, block_axis: int) -> str:
        """Its axes as they lie in memory, the widest first: lengths, and B for the blocks."""
        axes = [*self.outer_axes(block_axis), block_axis, *self.inner_axes(block_axis)]
        return "x".join("B" if axis == block_axis else str(self.shape[axis]) for axis in axes)

    def is_in_order(self) -> bool:
        """Whether its axes lie in memory in the order in which they are numbered."""
        return [axis for axis in self._by_stride() if self.shape[axis] > 1] == [
            axis for axis, length in enumerate(self.shape) if length > 1
        ]

    def _by_stride(self) -> list[int]:
        return sorted(range(len(self.shape)), key=lambda axis: (-self.strides[axis], axis))

    def _is_outside(self, axis: int, block_axis: int) -> bool:
        return axis != block_axis and self.shape[axis] > 1 and self.strides[axis] > self.strides[block_axis]


def _distinct(caches: Mapping[str, Tensor]) -> list[_Layer]:
    """The tensors in order, each memory once."""
    seen: dict[tuple[object, ...], _Layer] = {}
    for name, tensor in caches.items():
        layer = _Layer(name, tensor)
        seen.setdefault((layer.address, layer.shape, layer.strides, layer.dtype), layer)
    return list(seen.values())


def _normal_axis(layer: _Layer, block_axis: int) -> int:
    axes = len(layer.shape)
    if not -axes <= block_axis < axes:
        raise ValueError(f"block_axis is {block_axis}, {layer.describe()} has axes 0 to {axes - 1}")
    return block_axis % axes


def _block_axes(layers: Sequence[_Layer], layout: str | None, block_tokens: int) -> list[int]:
    """The block axis of each layer, where only one can be it."""
    possible = [_possible_block_axes(layer, layout, block_tokens) for layer in layers]
    lengths = set.intersection(
        *({layer.shape[axis] for axis in axes} for layer, axes in zip(layers, possible, strict=True))
    )
    lengths = lengths - {1, 2} or lengths
    fitting = [
        [axis for axis in axes if layer.shape[axis] in lengths] for layer, axes in zip(layers, possible, strict=True)
    ]
    for layer, axes in zip(layers, fitting, strict=True):
        if len(axes) != 1:
            found = f"axes {axes} could" if axes else f"none holds {block_tokens} tokens a block in whole rows"
            raise ValueError(f"which axis of {layer.describe()} counts the blocks? {found}: pass block_axis")
    return [axes[0] for axes in fitting]


def _possible_block_axes(layer: _Layer, layout: str | None, block_tokens: int) -> list[int]:
    axes = len(layer.shape)
    if layout in _NAMED_LAYOUTS:
        axes -= 3 if axes > 3 else 2
    return [
        axis
        for axis in range(axes)
        if (block_tokens == 1 or block_tokens in (layer.shape[inner] for inner in layer.inner_axes(axis)))
        and not layer.fault(axis)
    ]


def _layout_name(layout: str | None, orders: Mapping[str, bool]) -> str:
    """The given name; where memory does not follow the shapes, with the axes as they lie: unlike bytes never meet."""
    if layout is not None and all(orders.values()):
        return layout
    described = ",".join(sorted(orders))
    return described if layout is None else f"{layout}:{described}"
