"""Moving one chunk between an engine's paged KV blocks and its slot in the pool.

Owns: the order of a chunk's bytes in its slot, and the two ways to copy them: a small C extension, and plain Python
that gives the same bytes where it could not be built. Must not know: tensors, slots, who waits for the copy. Runs
on copy threads; one copier may be used by several.

A chunk in its slot: for each region in order, for each block of the chunk in token order, the row's bytes.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

try:
    from gateway.device import _copy as _found
except ImportError:
    _extension: ModuleType | None = None
else:
    _extension = _found


@dataclass(frozen=True)
class Region:
    """One row of one layer in memory: block ``b`` lies at ``address + b * stride_bytes``, ``row_bytes`` long."""

    address: int
    stride_bytes: int
    row_bytes: int


def extension_available() -> bool:
    """Whether the C extension was built."""
    return _extension is not None


def catch_lost_memory() -> None:
    """From now on a copy whose memory is taken away under it (a file made smaller) raises OSError in this process.

    Only the extension can do so: without it such a copy ends the process with SIGBUS. For the gateway, which copies
    from other processes' memory; a handler of the engine's process is the engine's own affair.
    """
    if _extension is not None:
        _extension.catch_lost_memory()


class ChunkCopier:
    """Copies chunks of one KV cache.

    The caller keeps the cache's memory alive, and answers for slot addresses: ``chunk_bytes`` from there on are
    read or written.

    Args:
        regions: rows of the KV cache in the order they have in a slot.
        num_blocks: of the KV cache; block ids are below it.
        implementation: ``"c"``, ``"python"``, or ``"auto"``: C where it was built.

    Raises:
        ValueError: an unknown implementation, or C where it was not built.
    """

    def __init__(self, regions: Sequence[Region], num_blocks: int, implementation: str = "auto") -> None:
        if implementation not in ("auto", "c", "python"):
            raise ValueError(f"implementation is {implementation!r}, expected 'auto', 'c' or 'python'")
        if implementation == "c" and _extension is None:
            raise ValueError("implementation is 'c', but the extension gateway.device._copy was not built")
        self._regions = tuple(regions)
        self._packed = array("q", [n for r in regions for n in (r.address, r.stride_bytes, r.row_bytes)])
        self._num_blocks = num_blocks
        self._block_bytes = sum(region.row_bytes for region in regions)
        self._extension = _extension if implementation != "python" else None

    @property
    def implementation(self) -> str:
        """Which one copies: ``"c"`` or ``"python"``."""
        return "python" if self._extension is None else "c"

    def chunk_bytes(self, num_blocks: int) -> int:
        """Bytes of a chunk of so many blocks."""
        return num_blocks * self._block_bytes

    def gather(self, block_ids: array[int], slot_address: int) -> None:
        """Copy blocks into a slot. The bytes are there for every process when it returns.

        Args:
            block_ids: array('q'), the chunk's blocks in token order.
            slot_address: of the slot's first byte.

        Raises:
            ValueError: a block id is out of range; nothing was copied.
            OSError: memory was taken away meanwhile; see ``catch_lost_memory``.
        """
        self.check(block_ids, 0)
        if self._extension is not None:
            self._extension.gather(self._packed, block_ids, slot_address, 0)
        else:
            self._copy_rows(block_ids, slot_address, 0, to_slot=True)

    def scatter(self, block_ids: array[int], slot_address: int, skip_blocks: int = 0) -> None:
        """Copy a slot into blocks.

        Args:
            block_ids: array('q'), the chunk's blocks in token order.
            slot_address: of the slot's first byte.
            skip_blocks: leading blocks that are left as they are; their ids still count for the place of the others.

        Raises:
            ValueError: a block id is out of range; nothing was copied.
            OSError: memory was taken away meanwhile; see ``catch_lost_memory``.
        """
        self.check(block_ids, skip_blocks)
        if self._extension is not None:
            self._extension.scatter(self._packed, block_ids, slot_address, skip_blocks)
        else:
            self._copy_rows(block_ids, slot_address, skip_blocks, to_slot=False)

    def check(self, block_ids: array[int], skip_blocks: int) -> None:
        """Refuse what must not be copied.

        Raises:
            ValueError: a block id or ``skip_blocks`` is out of range, or the ids are no array('q').
        """
        if block_ids.typecode != "q":
            raise ValueError(f"block_ids is an array of {block_ids.typecode!r}, expected 'q'")
        if block_ids and not (min(block_ids) >= 0 and max(block_ids) < self._num_blocks):
            raise ValueError(f"block ids {min(block_ids)} to {max(block_ids)}, expected 0 to {self._num_blocks - 1}")
        if not 0 <= skip_blocks <= len(block_ids):
            raise ValueError(f"skip_blocks is {skip_blocks}, expected 0 to {len(block_ids)}")

    def _copy_rows(self, block_ids: array[int], slot_address: int, skip_blocks: int, *, to_slot: bool) -> None:
        place = slot_address
        for region in self._regions:
            for i, block_id in enumerate(block_ids):
                block = region.address + block_id * region.stride_bytes
                if i >= skip_blocks:
                    to, source = (place, block) if to_slot else (block, place)
                    ctypes.memmove(to, source, region.row_bytes)
                place += region.row_bytes
