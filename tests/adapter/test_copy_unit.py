"""One retrieved chunk against a real pool file in which its slot changes at the worst moment: under the copy."""

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from adapter.actions import Unit
from adapter.transfer.chunks import copy_unit
from gateway.device.copy import ChunkCopier, Region
from gateway.pool.file import PoolFile
from gateway.pool.format import SlotHeader, SlotState
from gateway.pool.mapping import PoolMapping
from gateway.wire.codes import OperationKind, Reason

SLOT, CHUNK = 3, 4096
HEADER = SlotHeader(
    slot=SLOT,
    state=SlotState.READY,
    owner=b"o" * 16,
    namespace=b"n" * 16,
    key=b"k" * 32,
    shard=0,
    depth=0,
    offset=SLOT * CHUNK,
    extent=CHUNK,
    payload_bytes=CHUNK,
    generation=7,
    clear_epoch=0,
)
UNIT = Unit(1, "r", 0, OperationKind.RETRIEVE, SLOT, HEADER.offset, HEADER.generation, HEADER.key, array("q", [1]), 0)


class Interrupted(ChunkCopier):
    """Copies, and has something happen to the slot before the copy is over."""

    def __init__(self, regions: list[Region], num_blocks: int, happen: Callable[[], None]) -> None:
        super().__init__(regions, num_blocks)
        self._happen = happen

    def scatter(self, block_ids: array, slot_address: int, skip_blocks: int = 0) -> None:
        super().scatter(block_ids, slot_address, skip_blocks)
        self._happen()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolFile]:
    opened = PoolFile.open(tmp_path / "pool", data_bytes=1 << 16, slab_bytes=1 << 16, min_slot_bytes=CHUNK)
    opened.write_slot(HEADER)
    yield opened
    opened.close()


def load(pool: PoolFile, happen: Callable[[], None]) -> tuple[Reason, bytes]:
    """What the copy says of itself, and the block's bytes after it."""
    cache = np.zeros(4 * CHUNK, np.uint8)
    copier = Interrupted([Region(cache.ctypes.data, CHUNK, CHUNK)], 4, happen)
    mapping = PoolMapping.open(pool.path)
    with mapping.data(HEADER.offset, CHUNK) as view:
        view[:] = b"\x5a" * CHUNK
    reason = copy_unit(UNIT, mapping, copier)
    mapping.close()
    return reason, cache[CHUNK : 2 * CHUNK].tobytes()


def test_a_slot_that_stays_is_loaded(pool: PoolFile) -> None:
    assert load(pool, lambda: None) == (Reason.NONE, b"\x5a" * CHUNK)


def test_what_happens_to_other_slots_does_not_matter(pool: PoolFile) -> None:
    other = msgspec.structs.replace(HEADER, slot=SLOT + 1, offset=(SLOT + 1) * CHUNK, state=SlotState.WRITING)
    assert load(pool, lambda: pool.write_slot(other))[0] is Reason.NONE


@pytest.mark.parametrize(
    "change",
    [
        {"state": SlotState.WRITING, "key": b"x" * 32, "generation": 8},
        {"key": b"x" * 32, "generation": 8},
        {"generation": 8},
        {"key": b"x" * 32},
        {"state": SlotState.WRITING},
    ],
    ids=["being written", "another chunk", "another generation", "another key", "another state"],
)
def test_a_slot_that_is_reused_under_the_copy_is_not_believed(pool: PoolFile, change: dict[str, object]) -> None:
    reason, _ = load(pool, lambda: pool.write_slot(msgspec.structs.replace(HEADER, **change)))
    assert reason is Reason.CHANGED


def test_a_slot_that_is_freed_under_the_copy_is_not_believed(pool: PoolFile) -> None:
    assert load(pool, lambda: pool.free_slot(SLOT))[0] is Reason.CHANGED
