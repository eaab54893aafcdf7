"""Warm start: what of the pool file's headers becomes chunks and quarantined slots.

Owns: the rules of what is taken back. Must not know: how headers are read. Runs once, before the loop.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from gateway.core.chunks import Chunks
from gateway.core.index import Group
from gateway.core.reservations import Reservations
from gateway.core.slots import SizeClass, SlotState
from gateway.core.types import FreeHeader, NamespaceRecord, SlotRecord


@dataclass(slots=True, eq=False)
class _Filling:
    """A group while its chunks come in: what they must be like."""

    group: Group
    size: SizeClass
    payload_bytes: int
    clear_epoch: int


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
    chunk of its group. None is taken whose generation is another's too, or one that this boot may still give out.
    """
    for namespace in namespaces:
        chunks.index.describe(namespace)
    writing: list[SlotRecord] = []
    ready: list[SlotRecord] = []
    for record in records:
        (ready if record.is_ready else writing).append(record)
    ready.sort(key=attrgetter("generation"), reverse=True)

    held = _adopt_writing(chunks, writing)
    taken = _adopt_ready(chunks, ready, {record.generation for record in held})
    chunks.slots.close_adoption(held + taken)
    for record in held:
        reservations.recover(record, _group_of(chunks, record))
    chunks.recover(taken, now)
    return len(taken)


def _adopt_writing(chunks: Chunks, records: Iterable[SlotRecord]) -> list[SlotRecord]:
    slots, held = chunks.slots, []
    generations: set[int] = set()
    for record in records:
        size = slots.size_found(record)
        if (
            size is not None
            and record.generation < slots.first_generation
            and record.generation not in generations
            and slots.adopt(record.slot, size, SlotState.QUARANTINED)
        ):
            generations.add(record.generation)
            held.append(record)
        else:
            slots.effects.append(FreeHeader(record.slot))
    return held


def _adopt_ready(chunks: Chunks, newest_first: Iterable[SlotRecord], writing: set[int]) -> list[SlotRecord]:
    """Adopt and index. One pass over every chunk of the pool: its speed is the speed of a restart.

    ``writing``: the generations of slots that are held for their writers.
    """
    slots, taken = chunks.slots, []
    last_generation = slots.first_generation
    fillings: dict[tuple[bytes, int], _Filling] = {}
    for record in newest_first:
        filling = fillings.get((record.namespace, record.shard))
        if filling is None:
            group = _group_of(chunks, record)
            size, clear_epoch = slots.size_found(record), group.namespace.record.clear_epoch
            if size is not None and record.clear_epoch >= clear_epoch:
                group.chunk_bytes = record.payload_bytes
                filling = _Filling(group, size, record.payload_bytes, clear_epoch)
                fillings[record.namespace, record.shard] = filling
        if (
            filling is not None
            and record.payload_bytes == filling.payload_bytes
            and record.extent == filling.size.extent
            and record.clear_epoch >= filling.clear_epoch
            and record.key not in filling.group.slots
            and record.generation < last_generation
            and record.generation not in writing
            and slots.adopt(record.slot, filling.size, SlotState.READY)
        ):
            last_generation = record.generation
            filling.group.slots[record.key] = record.slot
            taken.append(record)
        else:
            slots.effects.append(FreeHeader(record.slot))
    return taken


def _group_of(chunks: Chunks, record: SlotRecord) -> Group:
    """The record's group. A namespace that the pool file does not name may have been cleared by the last clear."""
    index, clear_epoch = chunks.index, chunks.slots.facts.clear_epoch
    known = index.find(record.namespace)
    if known is None:
        known = index.describe(NamespaceRecord(record.namespace, model="", shard_count=0, clear_epoch=clear_epoch))
    return index.group(known, record.shard)
