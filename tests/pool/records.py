"""Slot headers and small pools for these tests."""

from pathlib import Path

from gateway.pool.file import PoolFile
from gateway.pool.format import Layout, SlotHeader, SlotState

SLAB_BYTES = 65536
SLOT_BYTES = 4096
NAMESPACE = b"n" * 16
LAYOUT = Layout(num_slabs=4, slab_bytes=SLAB_BYTES, min_slot_bytes=SLOT_BYTES)


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def header(slot: int, *, extent: int = SLOT_BYTES, layout: Layout = LAYOUT, **changes: object) -> SlotHeader:
    """A READY header that fits its place; ``changes`` replace fields."""
    slab, index = divmod(slot, layout.slots_per_slab)
    fields = {
        "slot": slot,
        "state": SlotState.READY,
        "owner": b"o" * 16,
        "namespace": NAMESPACE,
        "key": key(slot),
        "shard": 0,
        "depth": 3,
        "offset": slab * layout.slab_bytes + index * extent,
        "extent": extent,
        "payload_bytes": extent - 1,
        "generation": (1 << 40) + slot,
        "clear_epoch": 0,
    }
    return SlotHeader(**(fields | changes))  # type: ignore[arg-type]


def open_pool(path: Path, num_slabs: int = LAYOUT.num_slabs, **changes: object) -> PoolFile:
    sizes = {"data_bytes": num_slabs * SLAB_BYTES, "slab_bytes": SLAB_BYTES, "min_slot_bytes": SLOT_BYTES}
    return PoolFile.open(path, **(sizes | changes))  # type: ignore[arg-type]
