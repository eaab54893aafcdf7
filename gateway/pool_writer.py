"""Between the core and the pool file: the core's effects become header writes, a scan's headers become its records.

Owns: the translation, both ways. Must not know: when either happens. Runs on the loop's thread.
"""

from collections.abc import Iterable

import numpy as np

from gateway.core.types import (
    FOUND_SLOT,
    Effect,
    FoundSlots,
    FreeHeader,
    NamespaceRecord,
    PoolFacts,
    SlotRecord,
    WriteClearEpoch,
    WriteHeader,
    WriteNamespace,
)
from gateway.pool.file import PoolFile
from gateway.pool.format import NamespaceEntry, SlotHeader, SlotState

#: Fields of a found slot that stand in its header under the same name.
_SAME = [name for name in FOUND_SLOT.names or () if name not in {"slot", "is_ready"}]


class PoolWriter:
    """Writes what the core decided, in its order, before anyone is told."""

    def __init__(self, pool: PoolFile) -> None:
        """Write to an open pool file, which stays the caller's."""
        self._pool = pool

    def apply(self, effects: Iterable[Effect]) -> None:
        """Write these effects; when it returns every other process that maps the file sees them."""
        for effect in effects:
            match effect:
                case WriteHeader(record):
                    self._pool.write_slot(self._header(record))
                case FreeHeader(slot):
                    self._pool.free_slot(slot)
                case WriteClearEpoch(clear_epoch):
                    self._pool.write_clear_epoch(clear_epoch)
                case WriteNamespace(record):
                    self._pool.write_namespace(_entry(record))

    def facts(self) -> PoolFacts:
        """The pool's layout and numbers."""
        pool = self._pool
        return PoolFacts(
            pool_id=pool.pool_id,
            boot_epoch=pool.boot_epoch,
            clear_epoch=pool.clear_epoch,
            num_slabs=pool.num_slabs,
            slab_bytes=pool.slab_bytes,
            slots_per_slab=pool.slots_per_slab,
            min_slot_bytes=pool.min_slot_bytes,
        )

    def found(self) -> FoundSlots:
        """Every slot the scan of a start found READY or WRITING."""
        scan = self._pool.scan()
        found = np.empty(len(scan.slots), FOUND_SLOT)
        found["slot"] = scan.slots
        found["is_ready"] = scan.rows["state"] == SlotState.READY
        for name in _SAME:
            found[name] = scan.rows[name]
        return found

    def namespaces(self) -> list[NamespaceRecord]:
        """Every namespace the file remembers."""
        return [
            NamespaceRecord(entry.namespace, entry.model, entry.shard_count, entry.chunk_tokens, entry.clear_epoch)
            for entry in self._pool.namespaces()
        ]

    def _header(self, record: SlotRecord) -> SlotHeader:
        slab, index = divmod(record.slot, self._pool.slots_per_slab)
        return SlotHeader(
            slot=record.slot,
            state=SlotState.READY if record.is_ready else SlotState.WRITING,
            owner=record.owner,
            namespace=record.namespace,
            key=record.key,
            shard=record.shard,
            depth=record.depth,
            offset=slab * self._pool.slab_bytes + index * record.extent,
            extent=record.extent,
            payload_bytes=record.payload_bytes,
            generation=record.generation,
            clear_epoch=record.clear_epoch,
        )


def _entry(record: NamespaceRecord) -> NamespaceEntry:
    return NamespaceEntry(
        namespace=record.namespace,
        model=record.model,
        shard_count=record.shard_count,
        chunk_tokens=record.chunk_tokens,
        clear_epoch=record.clear_epoch,
    )
