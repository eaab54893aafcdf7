"""Records as bytes: what is written is read, and what was damaged is not believed."""

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pool import format as pool_format
from gateway.pool.format import (
    HEADER_PAGES_BYTES,
    MAX_MODEL_BYTES,
    NAMESPACE_ENTRY_BYTES,
    PAGE_BYTES,
    SLOT_HEADER_BYTES,
    HeaderPage,
    Layout,
    NamespaceEntry,
    PoolFormatError,
    SlotHeader,
    SlotState,
    decode_namespace,
    decode_pages,
    decode_slot,
    encode_namespace,
    encode_page,
    encode_slot,
    page_offset,
)
from tests.pool.records import LAYOUT, header

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
slot_headers = st.builds(
    SlotHeader,
    slot=st.integers(0, 2**40),
    state=st.sampled_from([SlotState.WRITING, SlotState.READY]),
    owner=st.binary(min_size=16, max_size=16),
    namespace=st.binary(min_size=16, max_size=16),
    key=st.binary(min_size=32, max_size=32),
    shard=u32,
    depth=u32,
    offset=u64,
    extent=u64,
    payload_bytes=u64,
    generation=u64,
    clear_epoch=u64,
)
layouts = st.builds(
    lambda num_slabs, slots, lines: Layout(num_slabs, slots * lines * PAGE_BYTES, lines * PAGE_BYTES),
    st.integers(1, 2**20),
    st.integers(1, 2**12),
    st.integers(1, 2**10),
)


def pages(*copies: HeaderPage) -> bytearray:
    image = bytearray(HEADER_PAGES_BYTES)
    for page in copies:
        record = encode_page(page)
        image[page_offset(page) : page_offset(page) + len(record)] = record
    return image


@given(slot_headers)
def test_a_slot_header_comes_back(written: SlotHeader) -> None:
    record = encode_slot(written)
    assert len(record) == SLOT_HEADER_BYTES
    assert decode_slot(record, written.slot) == written
    assert written.is_ready == (written.state is SlotState.READY)


def test_every_flipped_bit_of_a_slot_header_is_noticed() -> None:
    record = encode_slot(header(5))
    for place in range(pool_format.SLOT_CHECKED_BYTES + 4):
        for bit in range(8):
            damaged = bytearray(record)
            damaged[place] ^= 1 << bit
            assert decode_slot(bytes(damaged), 5) is None, f"byte {place}"


@given(slot_headers, slot_headers, st.integers(0, SLOT_HEADER_BYTES))
def test_a_write_that_ends_early_leaves_the_old_the_new_or_nothing(old: SlotHeader, new: SlotHeader, cut: int) -> None:
    before, after = encode_slot(old), encode_slot(new)
    assert decode_slot(after[:cut] + before[cut:], 0) in (
        None,
        decode_slot(before, 0),
        decode_slot(after, 0),
    )


def test_a_free_slot_is_zeros_and_zeros_are_a_free_slot() -> None:
    assert encode_slot(header(1, state=SlotState.FREE)) == bytes(SLOT_HEADER_BYTES)
    assert decode_slot(bytes(SLOT_HEADER_BYTES), 1) is None


@pytest.mark.parametrize("field", ["owner", "namespace", "key"])
def test_ids_of_a_wrong_length_are_refused_not_cut(field: str) -> None:
    with pytest.raises(ValueError, match="16, 16 and 32"):
        encode_slot(header(1, **{field: b"short"}))


def test_numbers_that_do_not_fit_are_refused() -> None:
    for wrong in ({"shard": -1}, {"depth": 2**32}, {"generation": 2**64}):
        with pytest.raises(struct.error):
            encode_slot(header(1, **wrong))


@given(layouts, st.binary(min_size=16, max_size=16), u64, u64, u64)
def test_a_header_page_comes_back(layout: Layout, pool_id: bytes, boot: int, clear: int, sequence: int) -> None:
    page = HeaderPage(pool_id, layout, boot, clear, sequence)
    assert decode_pages(bytes(pages(page))) == page


def test_of_two_copies_the_later_counts_and_a_torn_one_does_not() -> None:
    old = HeaderPage(b"p" * 16, LAYOUT, boot_epoch=1, sequence=8)
    new = HeaderPage(b"p" * 16, LAYOUT, boot_epoch=2, sequence=9)
    image = pages(old, new)
    assert decode_pages(bytes(image)) == new
    record = encode_page(new)
    for place in range(len(record)):
        torn = bytearray(image)
        torn[page_offset(new) + place] ^= 0xFF
        # The last bytes are padding after the checksum.
        assert decode_pages(bytes(torn)) == (old if place < len(record) - 4 else new), f"byte {place}"


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (b"", "no pool of kvgate"),
        (b"#!/bin/sh\n" * 2000, "no pool of kvgate"),
        (bytes(HEADER_PAGES_BYTES), "no pool of kvgate"),
        (pool_format.MAGIC + struct.pack("<I", 7) + bytes(HEADER_PAGES_BYTES), "pool format 7, expected pool format 1"),
        (pool_format.MAGIC + struct.pack("<I", 1) + bytes(HEADER_PAGES_BYTES), "a damaged header of pool format 1"),
    ],
)
def test_what_is_no_pool_of_this_format_is_named(image: bytes, message: str) -> None:
    with pytest.raises(PoolFormatError, match=message):
        decode_pages(image[:HEADER_PAGES_BYTES])


@given(st.binary(max_size=HEADER_PAGES_BYTES))
def test_random_bytes_are_no_pool(image: bytes) -> None:
    with pytest.raises(PoolFormatError):
        decode_pages(image)


@given(st.binary(min_size=16, max_size=16), st.text(max_size=60), u32, u32, u64, u64)
def test_a_namespace_comes_back(
    namespace: bytes, model: str, shards: int, tokens: int, epoch: int, number: int
) -> None:
    entry = NamespaceEntry(namespace, model, shards, tokens, epoch)
    record = encode_namespace(entry, number)
    assert len(record) == NAMESPACE_ENTRY_BYTES
    assert decode_namespace(record) == (entry, number)


def test_damaged_namespaces_are_noticed_and_free_places_are_free() -> None:
    record = encode_namespace(NamespaceEntry(b"n" * 16, "llama", 2, 256), 1)
    for place in range(NAMESPACE_ENTRY_BYTES - 4):
        damaged = bytearray(record)
        damaged[place] ^= 0x10
        assert decode_namespace(bytes(damaged)) is None, f"byte {place}"
    assert decode_namespace(bytes(NAMESPACE_ENTRY_BYTES)) is None


def test_a_long_model_name_is_cut_between_letters() -> None:
    entry = NamespaceEntry(b"n" * 16, "模" * 300, 1, 256)
    decoded = decode_namespace(encode_namespace(entry, 1))
    assert decoded is not None
    assert decoded[0].model == "模" * (MAX_MODEL_BYTES // 3)


@given(layouts)
def test_regions_of_a_layout_lie_apart_and_aligned(layout: Layout) -> None:
    last = layout.header_offset(layout.num_slots - 1) + SLOT_HEADER_BYTES
    assert layout.header_offset(0) >= HEADER_PAGES_BYTES
    assert last <= layout.data_offset < last + pool_format.ALIGNMENT
    assert layout.data_offset % pool_format.ALIGNMENT == 0
    assert layout.file_bytes == layout.data_offset + layout.num_slabs * layout.slab_bytes
    for outside in (-1, layout.num_slots):
        with pytest.raises(IndexError):
            layout.header_offset(outside)


@pytest.mark.parametrize(
    "sizes", [(0, 65536, 4096), (1, 0, 4096), (1, 65537, 4096), (1, 65536, 0), (1, 65536, 100), (1, 65536, 12288)]
)
def test_sizes_that_do_not_fit_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"expected"):
        Layout(*sizes)


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"offset": 0}, False),
        ({"extent": 8192}, False),
        ({"extent": 8192, "offset": 65536 + 8192}, True),
        ({"extent": 4097, "offset": 65536 + 4097}, False),
        ({"extent": 0, "offset": 65536, "payload_bytes": 0}, False),
        ({"extent": 65536, "offset": 65536 + 65536}, False),
        ({"payload_bytes": 4097}, False),
        ({"slot": 64}, False),
        ({"slot": -1}, False),
    ],
)
def test_a_header_fits_its_place_or_not(changes: dict[str, Any], fits: bool) -> None:
    assert LAYOUT.fits(msgspec.structs.replace(header(17), **changes)) is fits
