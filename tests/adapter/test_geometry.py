"""Tensors into rows: real torch tensors, compared with what torch itself says the bytes of a block are."""

import pytest
import torch

from adapter.geometry import Geometry, read_layers
from gateway.device.copy import Region

BLOCKS = 6


def bytes_of(regions: list[Region], block: int) -> bytes:
    import ctypes

    return b"".join(ctypes.string_at(r.address + block * r.stride_bytes, r.row_bytes) for r in regions)


def filled(*shape: int, dtype: torch.dtype = torch.int16) -> torch.Tensor:
    count = 1
    for length in shape:
        count *= length
    return torch.arange(count, dtype=torch.int64).to(dtype).reshape(shape)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    ("shape", "axis", "rows"),
    [
        ((2, BLOCKS, 16, 3, 4), 1, 2),
        ((BLOCKS, 2, 16, 3, 4), 0, 1),
        ((BLOCKS, 16, 12), 0, 1),
        ((2, 3, BLOCKS, 16), 2, 6),
    ],
)
def test_a_block_is_the_bytes_torch_says_it_is(shape: tuple[int, ...], axis: int, rows: int) -> None:
    cache = filled(*shape)
    geometry, regions = read_layers({"a": cache}, "NHD", axis, 16)
    assert (geometry.num_blocks, geometry.dtype, geometry.layout) == (BLOCKS, "int16", "NHD")
    assert len(regions) == geometry.layers[0].rows == rows
    assert geometry.block_bytes() * BLOCKS == cache.numel() * 2
    for block in range(BLOCKS):
        assert bytes_of(regions, block) == raw(cache.select(axis, block))


def test_rows_follow_memory_when_axes_are_permuted() -> None:
    memory = filled(2, BLOCKS, 3, 16, 4)  # heads before tokens in memory, tokens before heads in the shape
    cache = memory.permute(0, 1, 3, 2, 4)
    geometry, regions = read_layers({"a": cache}, "HND", None, 16)
    assert geometry.num_blocks == BLOCKS
    for block in range(BLOCKS):
        assert bytes_of(regions, block) == raw(memory[:, block])
    in_order, _ = read_layers({"a": filled(2, BLOCKS, 16, 3, 4)}, "HND", None, 16)
    assert in_order.block_shapes() == geometry.block_shapes()
    assert in_order.layout != geometry.layout, "unlike bytes must not meet under one name"


def test_blocks_may_lie_apart() -> None:
    wide = filled(BLOCKS, 2, 16, 3, 4)
    keys, values = wide[:, 0], wide[:, 1]
    _, regions = read_layers({"k": keys, "v": values}, None, None, 16)
    assert [region.stride_bytes for region in regions] == [2 * 16 * 12 * 2] * 2
    for block in range(BLOCKS):
        assert bytes_of(regions, block) == raw(wide[block])


def test_regions_stand_layer_by_layer_in_the_given_order() -> None:
    first, second = filled(2, BLOCKS, 16, 3, 4), filled(2, BLOCKS, 16, 3, 4)
    _, regions = read_layers({"b": second, "a": first}, "NHD", 1, 16)
    half = first.numel()  # bytes of K, and of V
    assert [region.address for region in regions] == [
        second.data_ptr(),
        second.data_ptr() + half,
        first.data_ptr(),
        first.data_ptr() + half,
    ]


@pytest.mark.parametrize(
    ("shape", "layout", "expected"),
    [
        ((2, 64, 16, 3, 4), None, 64),
        ((64, 2, 16, 3, 4), None, 64),
        ((64, 16, 576), None, 64),
        ((1, 64, 16, 3, 4), None, 64),
        ((2, 64, 16, 3, 4), "NHD", 64),
        ((2, 64, 3, 16, 4), "HND", 64),
        ((64, 3, 16, 4), "HND", 64),
        ((2, 16, 16, 16, 16), "NHD", 16),
        ((64, 16, 16), "NHD", 64),
    ],
)
def test_a_plain_block_axis_need_not_be_said(shape: tuple[int, ...], layout: str | None, expected: int) -> None:
    geometry, _ = read_layers({"a": filled(*shape)}, layout, None, 16)
    assert geometry.num_blocks == expected


def test_another_layer_can_tell_which_axis_it_is() -> None:
    ambiguous, plain = filled(2, 8, 64, 16, 4), filled(64, 16, 4)
    with pytest.raises(ValueError, match=r"\[2, 8, 64, 16, 4\].*block_axis"):
        read_layers({"a": ambiguous}, None, None, 16)
    geometry, regions = read_layers({"a": ambiguous, "b": plain}, None, None, 16)
    assert geometry.num_blocks == 64
    assert geometry.block_shapes() == [(1, 128), (16, 128)]
    assert len(regions) == 17


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((2, 2, 16, 3, 4), None),
        ((2, 2, 16, 3, 4), "NHD"),
        ((2, 64, 3, 16, 4), None),  # 64 blocks or 3 blocks
        ((64, 16, 16, 4), None),  # tokens, or blocks of 16 heads
        ((2, 64, 8, 3, 4), "NHD"),  # no axis has 16 tokens
        ((64,), None),
    ],
)
def test_where_more_than_one_or_none_can_be_it_the_caller_is_asked(shape: tuple[int, ...], layout: str | None) -> None:
    with pytest.raises(ValueError, match="block_axis") as error:
        read_layers({"model.layers.0": filled(*shape)}, layout, None, 16)
    assert str(list(shape)) in str(error.value)
    assert "model.layers.0" in str(error.value)


def test_layouts_made_from_shapes_tell_unlike_shapes_apart() -> None:
    names = {
        read_layers({"a": filled(*shape)}, None, axis, 16)[0].layout
        for shape, axis in (((2, 6, 16, 3, 4), 1), ((2, 6, 3, 16, 4), 1), ((6, 2, 16, 3, 4), 0), ((2, 7, 16, 3, 4), 1))
    }
    assert len(names) == 3, "the number of blocks alone makes no other layout"


def test_one_tensor_under_two_names_counts_once() -> None:
    cache = filled(2, BLOCKS, 16, 3, 4)
    once = read_layers({"a": cache}, "NHD", 1, 16)
    assert read_layers({"a": cache, "b": cache, "c": cache.view(2, BLOCKS, 16, 3, 4)}, "NHD", 1, 16) == once


def test_blocks_with_gaps_or_overlaps_are_refused_by_name() -> None:
    gaps = filled(2, BLOCKS, 16, 3, 8)[..., :4]
    with pytest.raises(ValueError, match=r"layer x of shape \[2, 6, 16, 3, 4\], strides \[2304, 384, 24, 8, 1\]"):
        read_layers({"x": gaps}, "NHD", 1, 16)
    expanded = filled(1, 16, 3, 4).expand(BLOCKS, 16, 3, 4)
    with pytest.raises(ValueError, match="layer x"):
        read_layers({"x": expanded}, "NHD", 0, 16)
    sliding = filled(4096).as_strided((BLOCKS, 16, 12), (96, 12, 1))
    with pytest.raises(ValueError, match="layer x"):
        read_layers({"x": sliding}, "NHD", 0, 16)


def test_layers_must_agree_on_the_number_of_blocks() -> None:
    with pytest.raises(ValueError, match=r"6 in layer a .* and 7 in layer b"):
        read_layers({"a": filled(2, 6, 16, 3, 4), "b": filled(2, 7, 16, 3, 4)}, "NHD", 1, 16)


def test_other_refusals() -> None:
    with pytest.raises(ValueError, match="no KV caches"):
        read_layers({}, "NHD", 1, 16)
    with pytest.raises(ValueError, match="layer a is on meta: known devices are cpu, cuda"):
        read_layers({"a": torch.empty(2, 6, 16, 3, 4, device="meta")}, "NHD", 1, 16)
    with pytest.raises(ValueError, match="block_axis is 5"):
        read_layers({"a": filled(2, 6, 16, 3, 4)}, "NHD", 5, 16)
    with pytest.raises(ValueError, match="no blocks"):
        read_layers({"a": torch.empty(2, 0, 16, 3, 4)}, "NHD", 1, 16)


def test_a_geometry_crosses_processes() -> None:
    geometry, _ = read_layers({"a": filled(2, BLOCKS, 16, 3, 4, dtype=torch.bfloat16)}, "NHD", -4, 16)
    assert geometry.dtype == "bfloat16"
    assert Geometry.from_bytes(geometry.to_bytes()) == geometry
    for broken in (b"", b"\xc1", geometry.to_bytes()[:-1], b"\x80"):
        with pytest.raises(ValueError, match="geometry"):
            Geometry.from_bytes(broken)
