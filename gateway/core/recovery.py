"""Warm start: what of the pool file's headers becomes chunks and quarantined slots.

Owns: the rules of what is taken back. Must not know: how headers are read. Runs once, before the loop.
"""

from collections.abc import Iterable
from operator import attrgetter

from gateway.core.chunks import Chunks
from gateway.core.index import Group, Index
from gateway.core.reservations import Reservations
from gateway.core.slots import SlotState
from gateway.core.types import FreeHeader, NamespaceRecord, SlotRecord


def recover(
    chunks: Chunks,
    reservations: Reservations,
    records: Iterable[SlotRecord],
    namespaces: Iterable[NamespaceRecord],
    now: float,
) -> int:
    """Fill empty tables; returns READY chunks taken back. A header that is not taken is freed.

    WRITING slots come first: their owners may still be writing there, so nothing may contradict them. A READY one is
    not taken when it was cleared, when its key is there in a newer slot, or when its size is not that of the newest
    chunk of its group.
    """
    slots, index = chunks.slots, chunks.index
    clear_epoch = slots.facts.clear_epoch
    for namespace in namespaces:
        index.describe(namespace)
    writing: list[SlotRecord] = []
    ready: list[SlotRecord] = []
    for record in records:
        (ready if record.is_ready else writing).append(record)
    ready.sort(key=attrgetter("generation"), reverse=True)

    for record in writing:
        if slots.fits(record.slot, record.payload_bytes, record.extent):
            reservations.recover(record, _group_of(index, record, clear_epoch))
        else:
            slots.effects.append(FreeHeader(record.slot))

    taken: list[SlotRecord] = []
    seen: set[tuple[int, bytes]] = set()
    for record in ready:
        group = _group_of(index, record, clear_epoch)
        name = (group.number, record.key)
        chunk_bytes = group.chunk_bytes or record.payload_bytes
        if (
            record.clear_epoch < group.namespace.record.clear_epoch
            or name in seen
            or record.payload_bytes != chunk_bytes
            or not slots.fits(record.slot, record.payload_bytes, record.extent)
        ):
            slots.effects.append(FreeHeader(record.slot))
            continue
        group.chunk_bytes = chunk_bytes
        slots.adopt(record.slot, record.payload_bytes, SlotState.READY, record.generation)
        seen.add(name)
        taken.append(record)
    chunks.recover(taken, now)
    return len(taken)


def _group_of(index: Index, record: SlotRecord, clear_epoch: int) -> Group:
    """The record's group. A namespace that the pool file does not name may have been cleared by the last clear."""
    known = index.find(record.namespace)
    if known is None:
        known = index.describe(NamespaceRecord(record.namespace, model="", shard_count=0, clear_epoch=clear_epoch))
    return index.group(known, record.shard)
