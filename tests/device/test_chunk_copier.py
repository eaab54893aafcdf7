"""Both implementations of the chunk copy, held to the same bytes."""

import ctypes
import random
import sys
import threading
import time
from array import array

import numpy as np
import pytest

from gateway.device.copy import ChunkCopier, Region, extension_available

needs_extension = pytest.mark.skipif(not extension_available(), reason="the C extension was not built")
IMPLEMENTATIONS = [pytest.param("c", marks=needs_extension), "python"]
NUM_BLOCKS = 23
EDGE = 192  # bytes around the slot that nobody may touch


class Cache:
    """Layers of unlike rows, at unaligned addresses, with gaps between blocks; filled with random bytes."""

    def __init__(self, rows: list[tuple[int, int]], seed: int = 1) -> None:
        """``rows``: bytes of a row, and bytes of the gap after it."""
        self.memory = [
            np.random.default_rng(seed + i).integers(0, 256, 1 + NUM_BLOCKS * (row + gap), np.uint8)
            for i, (row, gap) in enumerate(rows)
        ]
        self.regions = [
            Region(memory.ctypes.data + 1, row + gap, row) for memory, (row, gap) in zip(self.memory, rows, strict=True)
        ]

    def block(self, region: int, block_id: int) -> bytes:
        start = 1 + block_id * self.regions[region].stride_bytes
        return self.memory[region][start : start + self.regions[region].row_bytes].tobytes()

    def chunk(self, block_ids: array) -> bytes:
        return b"".join(self.block(region, i) for region in range(len(self.regions)) for i in block_ids)

    def image(self) -> list[bytes]:
        return [memory.tobytes() for memory in self.memory]


class Slot:
    """Memory for a chunk at a chosen misalignment, with edges that show an overrun."""

    def __init__(self, size: int, misalignment: int = 0) -> None:
        self.memory = np.full(size + 2 * EDGE + 64, 0xA5, np.uint8)
        self.start = EDGE + (-(self.memory.ctypes.data + EDGE) % 64) + misalignment
        self.size = size
        self.address = self.memory.ctypes.data + self.start

    def bytes(self) -> bytes:
        return self.memory[self.start : self.start + self.size].tobytes()

    def edges_hold(self) -> bool:
        return bool((self.memory[: self.start] == 0xA5).all() and (self.memory[self.start + self.size :] == 0xA5).all())


#: Around every border of the copy loop: single bytes, a line, a line and a bit, no multiple of anything, a page.
ROWS = [
    (1, 0),
    (15, 3),
    (63, 1),
    (64, 0),
    (65, 7),
    (127, 0),
    (128, 64),
    (129, 0),
    (191, 5),
    (1000, 24),
    (4096, 0),
    (4099, 13),
]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("misalignment", [0, 1, 16, 33])
def test_gather_puts_rows_in_order_and_touches_nothing_else(implementation: str, misalignment: int) -> None:
    cache = Cache(ROWS)
    copier = ChunkCopier(cache.regions, NUM_BLOCKS, implementation)
    block_ids = array("q", [22, 0, 7, 7, 3])
    slot = Slot(copier.chunk_bytes(len(block_ids)), misalignment)
    before = cache.image()
    copier.gather(block_ids, slot.address)
    assert slot.bytes() == cache.chunk(block_ids)
    assert slot.edges_hold()
    assert cache.image() == before


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("misalignment", [0, 1, 16, 33])
@pytest.mark.parametrize("skip", [0, 1, 4, 5])
def test_scatter_writes_its_blocks_and_no_others(implementation: str, misalignment: int, skip: int) -> None:
    source, cache = Cache(ROWS, seed=100), Cache(ROWS)
    block_ids = array("q", [22, 0, 7, 11, 3])
    copier = ChunkCopier(cache.regions, NUM_BLOCKS, implementation)
    slot = Slot(copier.chunk_bytes(len(block_ids)), misalignment)
    ctypes.memmove(slot.address, source.chunk(block_ids), slot.size)
    expected = Cache(ROWS)
    for r, region in enumerate(expected.regions):
        for block_id in block_ids[skip:]:
            start = 1 + block_id * region.stride_bytes
            expected.memory[r][start : start + region.row_bytes] = np.frombuffer(source.block(r, block_id), np.uint8)
    copier.scatter(block_ids, slot.address, skip)
    assert cache.image() == expected.image()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_any_rows_survive_the_way_there_and_back(implementation: str) -> None:
    rng = random.Random(20)
    for _ in range(30):
        rows = [(rng.randrange(1, 700), rng.randrange(80)) for _ in range(rng.randrange(1, 5))]
        block_ids = array("q", rng.sample(range(NUM_BLOCKS), rng.randrange(1, NUM_BLOCKS)))
        cache, other = Cache(rows, seed=rng.randrange(1000)), Cache(rows, seed=2000)
        there = ChunkCopier(cache.regions, NUM_BLOCKS, implementation)
        back = ChunkCopier(other.regions, NUM_BLOCKS, implementation)
        slot = Slot(there.chunk_bytes(len(block_ids)), rng.randrange(64))
        there.gather(block_ids, slot.address)
        back.scatter(block_ids, slot.address)
        assert slot.edges_hold()
        assert other.chunk(block_ids) == cache.chunk(block_ids)


@needs_extension
def test_auto_takes_c_where_it_was_built_and_both_write_the_same_bytes() -> None:
    cache = Cache(ROWS)
    block_ids = array("q", [5, 4, 20])
    images = set()
    for implementation in ("auto", "c", "python"):
        copier = ChunkCopier(cache.regions, NUM_BLOCKS, implementation)
        assert copier.implementation == ("python" if implementation == "python" else "c")
        slot = Slot(copier.chunk_bytes(3))
        copier.gather(block_ids, slot.address)
        images.add(slot.bytes())
    assert len(images) == 1


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_block_ids_out_of_range_copy_nothing(implementation: str) -> None:
    cache = Cache([(64, 0)])
    copier = ChunkCopier(cache.regions, NUM_BLOCKS, implementation)
    slot = Slot(copier.chunk_bytes(2))
    before = cache.image()
    for wrong in ([0, NUM_BLOCKS], [-1, 0], [2**62, 0], [0, -(2**62)]):
        with pytest.raises(ValueError, match="block ids"):
            copier.gather(array("q", wrong), slot.address)
        with pytest.raises(ValueError, match="block ids"):
            copier.scatter(array("q", wrong), slot.address)
    for skip in (-1, 3):
        with pytest.raises(ValueError, match="skip_blocks"):
            copier.scatter(array("q", [0, 1]), slot.address, skip)
    with pytest.raises(ValueError, match="'q'"):
        copier.gather(array("i", [0, 1]), slot.address)
    assert cache.image() == before
    assert slot.bytes() == b"\xa5" * slot.size


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_chunk_of_no_blocks_is_nothing(implementation: str) -> None:
    copier = ChunkCopier(Cache([(64, 0)]).regions, NUM_BLOCKS, implementation)
    assert copier.chunk_bytes(0) == 0
    slot = Slot(0)
    copier.gather(array("q"), slot.address)
    copier.scatter(array("q"), slot.address)
    assert slot.edges_hold()


def test_an_unknown_implementation_is_refused() -> None:
    with pytest.raises(ValueError, match="'fast'"):
        ChunkCopier([], 1, "fast")


@needs_extension
def test_the_extension_refuses_arrays_it_cannot_read() -> None:
    from gateway.device import _copy

    for regions, block_ids, skip in (
        (array("q", [1, 2]), array("q"), 0),
        (array("q"), array("b", [1]), 0),
        (array("q"), array("q"), -1),
    ):
        with pytest.raises(ValueError, match="int64"):
            _copy.gather(regions, block_ids, 0, skip)


@needs_extension
def test_other_threads_run_during_a_copy() -> None:
    row = 1 << 20
    memory = np.zeros(64 * row, np.uint8)
    copier = ChunkCopier([Region(memory.ctypes.data, row, row)], 64, "c")
    slot = np.zeros(64 * row, np.uint8)
    block_ids = array("q", range(64))
    may_run, has_run = threading.Lock(), []

    def run() -> None:
        with may_run:
            has_run.append(True)

    may_run.acquire()
    thread = threading.Thread(target=run)
    thread.start()
    interval = sys.getswitchinterval()
    try:
        sys.setswitchinterval(60)  # nobody gives the interpreter up but of his own will
        may_run.release()
        deadline = time.monotonic() + 20
        while not has_run and time.monotonic() < deadline:
            copier.gather(block_ids, slot.ctypes.data)
        assert has_run
    finally:
        sys.setswitchinterval(interval)
        thread.join()
