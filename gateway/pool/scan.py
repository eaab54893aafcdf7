"""What a warm start believes of the slot headers it finds.

Owns: telling good headers from torn, stale, conflicting and repeated ones, a hundred thousand at a time. Must not
know: files, the index. Pure; runs once, on the thread that opens the pool.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.pool.format import (
    SLOT_CHECKED_BYTES,
    SLOT_HEADER_BYTES,
    SLOT_MAGIC,
    Layout,
    SlotHeader,
    SlotState,
)

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]

# The fields of gateway.pool.format's slot header, in its order.
_ROW = np.dtype(
    [
        ("magic", "<u4"),
        ("state", "<u4"),
        ("shard", "<u4"),
        ("depth", "<u4"),
        ("owner", "V16"),
        ("namespace", "V16"),
        ("key", "V32"),
        ("offset", "<u8"),
        ("extent", "<u8"),
        ("payload_bytes", "<u8"),
        ("generation", "<u8"),
        ("clear_epoch", "<u8"),
        ("crc", "<u4"),
        ("padding", "V4"),
    ]
)
_STATES = (SlotState.FREE, SlotState.WRITING, SlotState.READY)
# The fields of SlotHeader after slot and state, in its order.
_COPIED = (
    *("owner", "namespace", "key", "shard", "depth"),
    *("offset", "extent", "payload_bytes", "generation", "clear_epoch"),
)


@dataclass(frozen=True)
class FoundHeaders:
    """Headers in columns: there may be a hundred thousand. ``rows[i]`` is that of the slot ``slots[i]``, ascending."""

    slots: Numbers
    rows: Rows  # of the slot header's fields

    def headers(self) -> list[SlotHeader]:
        """The same, one by one."""
        states = [_STATES[state] for state in self.rows["state"].tolist()]
        return list(map(SlotHeader, self.slots.tolist(), states, *(self.rows[name].tolist() for name in _COPIED)))


@dataclass(frozen=True)
class Scan:
    """Result of ``scan_headers``: what stands, and what must be written as free."""

    found: FoundHeaders
    torn: list[int]  # checksum or arithmetic does not hold
    stale: list[int]  # READY, but cleared
    conflicting: list[int]  # disagree with their slab on its extent
    repeated: list[int]  # READY twice; the other one has the higher generation


def scan_headers(
    region: memoryview | bytes, layout: Layout, clear_epoch: int, namespace_epochs: Mapping[bytes, int]
) -> Scan:
    """Read every slot header of a pool nobody else writes to.

    Args:
        region: the slot headers, ``layout.num_slots * SLOT_HEADER_BYTES`` bytes.
        layout: the file's arithmetic.
        clear_epoch: the header page's.
        namespace_epochs: the clear epoch of each namespace that the file remembers; READY slots of an older one are
            dropped. For a namespace it has forgotten the header page's counts: it may have been cleared.
    """
    table = np.frombuffer(region, dtype=_ROW, count=layout.num_slots)
    words = np.frombuffer(region, dtype="<u8", count=layout.num_slots * SLOT_HEADER_BYTES // 8)
    used = np.flatnonzero(words.reshape(layout.num_slots, -1).any(axis=1))
    rows = table[used]

    rows, used, torn = _split(rows, used, _is_whole(rows) & _is_in_place(rows, used, layout))
    rows, used, stale = _split(rows, used, _is_not_cleared(rows, clear_epoch, namespace_epochs))
    rows, used, conflicting = _split(rows, used, _agree_on_extent(rows, used // layout.slots_per_slab))
    rows, used, repeated = _split(rows, used, _is_latest_of_its_key(rows))
    return Scan(FoundHeaders(used, rows), torn, stale, conflicting, repeated)


def _split(rows: Rows, used: Numbers, keep: Mask) -> tuple[Rows, Numbers, list[int]]:
    """The rows to keep with their slots, and the slots of the others."""
    if keep.all():
        return rows, used, []
    return rows[keep], used[keep], used[~keep].tolist()


def _is_whole(rows: Rows) -> Mask:
    known = (rows["state"] == SlotState.WRITING) | (rows["state"] == SlotState.READY)
    data, crc32 = rows.tobytes(), zlib.crc32
    starts = range(0, len(data), SLOT_HEADER_BYTES)
    sums = np.fromiter((crc32(data[start : start + SLOT_CHECKED_BYTES]) for start in starts), np.uint32, len(rows))
    whole: Mask = (rows["magic"] == SLOT_MAGIC) & known & (rows["crc"] == sums)
    return whole


def _is_in_place(rows: Rows, used: Numbers, layout: Layout) -> Mask:
    """``Layout.fits``, for all rows. Products wrap around only where an earlier condition has failed already."""
    slab, index = np.divmod(used.astype(np.uint64), np.uint64(layout.slots_per_slab))
    extent = rows["extent"]
    in_place: Mask = (
        (extent > 0)
        & (extent <= layout.slab_bytes)
        & (extent % layout.min_slot_bytes == 0)
        & ((index + 1) * extent <= layout.slab_bytes)
        & (rows["offset"] == slab * layout.slab_bytes + index * extent)
        & (rows["payload_bytes"] <= extent)
    )
    return in_place


def _is_not_cleared(rows: Rows, clear_epoch: int, namespace_epochs: Mapping[bytes, int]) -> Mask:
    """False for READY headers older than their namespace's last clear. A WRITING one's owner may be writing still."""
    keep = np.ones(len(rows), dtype=np.bool_)
    doubtful = np.flatnonzero((rows["state"] == SlotState.READY) & (rows["clear_epoch"] < clear_epoch))
    namespaces, epochs = rows["namespace"][doubtful].tolist(), rows["clear_epoch"][doubtful].tolist()
    keep[doubtful] = [
        epoch >= namespace_epochs.get(namespace, clear_epoch)
        for namespace, epoch in zip(namespaces, epochs, strict=True)
    ]
    return keep


def _agree_on_extent(rows: Rows, slabs: Numbers) -> Mask:
    """False for the headers to drop in slabs whose headers disagree on the extent.

    A slab is cut anew only when every header of it has been freed, so this is damage, and no READY header of such a
    slab can be believed. A WRITING one may have its owner still writing: those that share the newest one's extent
    stay.
    """
    keep = np.ones(len(rows), dtype=np.bool_)
    extents, generations, writing = rows["extent"], rows["generation"], rows["state"] == SlotState.WRITING
    differs = (slabs[1:] == slabs[:-1]) & (extents[1:] != extents[:-1])
    for slab in np.unique(slabs[1:][differs]):
        members = np.flatnonzero(slabs == slab)
        keep[members] = False
        writers = members[writing[members]]
        if len(writers):
            newest = writers[np.argmax(generations[writers])]
            keep[writers[extents[writers] == extents[newest]]] = True
    return keep


def _is_latest_of_its_key(rows: Rows) -> Mask:
    """False for READY headers of a (namespace, shard, key) that another READY header has in a higher generation."""
    keep = np.ones(len(rows), dtype=np.bool_)
    words = rows.view("<u8").reshape(len(rows), SLOT_HEADER_BYTES // 8)
    key_word, namespace_word = _ROW.fields["key"][1] // 8, _ROW.fields["namespace"][1] // 8  # type: ignore[index]
    # Keys are hashes: a word of each tells almost all apart, and the few that agree on it are compared in full.
    fold = words[:, key_word] ^ words[:, namespace_word] ^ rows["shard"]
    order = np.argsort(fold)
    alike = np.flatnonzero(fold[order[1:]] == fold[order[:-1]])
    holders: defaultdict[tuple[bytes, int, bytes], list[int]] = defaultdict(list)
    for row in np.unique(np.concatenate([order[alike], order[alike + 1]])).tolist():
        if rows["state"][row] == SlotState.READY:
            found = rows[row]
            holders[bytes(found["namespace"]), int(found["shard"]), bytes(found["key"])].append(row)
    for same in holders.values():
        same.sort(key=lambda row: int(rows["generation"][row]))
        keep[same[:-1]] = False
    return keep
