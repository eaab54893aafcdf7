"""Warm start: what of the pool file's headers becomes chunks and quarantined slots.

Owns: the rules of what is taken back. Must not know: how headers are read. Runs once, before the loop.
"""

from collections.abc import Iterable
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from gateway.core.chunks import Chunks
from gateway.core.index import Group
from gateway.core.reservations import Reservations
from gateway.core.slots import SlotState
from gateway.core.types import FoundSlots, FreeHeader, NamespaceRecord, Numbers, SlotRecord

Mask = npt.NDArray[np.bool_]


def recover(
    chunks: Chunks,
    reservations: Reservations,
    found: FoundSlots,
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
    is_ready = found["is_ready"]
    held = _adopt_writing(chunks, found[~is_ready])
    ready = np.flatnonzero(is_ready)
    newest_first = ready[np.argsort(-found["generation"][ready], kind="stable")]
    taken = _adopt_ready(chunks, found[newest_first], {record.generation for record in held}, now)
    chunks.slots.close_adoption()
    for record in held:
        reservations.recover(record, _group_of(chunks, record.namespace, record.shard))
    return taken


def _adopt_writing(chunks: Chunks, writing: FoundSlots) -> list[SlotRecord]:
    slots, held = chunks.slots, []
    generations: set[int] = set()
    for record in map(SlotRecord._make, writing.tolist()):
        size = slots.size_found(record.payload_bytes, record.extent)
        if (
            size is not None
            and record.generation < slots.first_generation
            and record.generation not in generations
            and slots.adopt(record, size, SlotState.QUARANTINED)
        ):
            generations.add(record.generation)
            held.append(record)
        else:
            slots.effects.append(FreeHeader(record.slot))
    return held


def _adopt_ready(chunks: Chunks, ready: FoundSlots, writing: set[int], now: float) -> int:
    """Adopt and index, newest first; returns how many. Its speed is the speed of a restart: whole columns at a time.

    ``writing``: the generations of slots that are held for their writers.
    """
    slots, places, all_keys, generations = chunks.slots, ready["slot"], ready["key"], ready["generation"]
    is_alone = (generations < slots.first_generation) & ~np.isin(generations, list(writing))
    is_alone[1:] &= generations[1:] != generations[:-1]
    fits = np.zeros(len(ready), np.bool_)
    groups = [(_group_of(chunks, *_pair(ready, rows[0])), rows) for rows in _by_group(ready)]
    for group, rows in groups:
        fits[rows] = _fits_newest(chunks, group, ready[rows], is_alone[rows])
    fits[fits] = slots.adopt_ready(places[fits], ready["extent"][fits], generations[fits])
    for group, rows in groups:
        taken = rows[fits[rows]]
        keys = all_keys[taken].tolist()
        group.slots.update(zip(keys, places[taken].tolist(), strict=True))
        slots.fill(places[taken], keys, group.number, now)
    slots.effects.extend(map(FreeHeader, places[~fits].tolist()))
    chunks.recover(places[fits], ready["extent"][fits], ready["depth"][fits])
    return int(fits.sum())


def _pair(ready: FoundSlots, row: int) -> tuple[bytes, int]:
    return ready["namespace"][row].tobytes(), int(ready["shard"][row])


def _by_group(ready: FoundSlots) -> list[Numbers]:
    """The rows of each namespace and shard, in their order; the group of the first row comes first."""
    if not len(ready):
        return []
    halves = np.ascontiguousarray(ready["namespace"]).view(np.uint64).reshape(-1, 2)
    columns = (halves[:, 0], halves[:, 1], ready["shard"])
    order = np.lexsort(columns)  # stable: within a group the rows stay in their order
    differs = np.any([column[order[1:]] != column[order[:-1]] for column in columns], axis=0)
    return sorted(np.split(order, np.flatnonzero(differs) + 1), key=itemgetter(0))


def _fits_newest(chunks: Chunks, group: Group, ready: FoundSlots, is_alone: Mask) -> Mask:
    """Of one group's headers, newest first, those that are not cleared, have its size, and whose key is not there yet.

    The newest that can lie in this pool tells the size.
    """
    is_valid: Mask = ready["clear_epoch"] >= group.namespace.record.clear_epoch
    for row in np.flatnonzero(is_valid).tolist():
        payload_bytes, extent = int(ready["payload_bytes"][row]), int(ready["extent"][row])
        if chunks.slots.size_found(payload_bytes, extent) is not None:
            break
    else:
        return np.zeros(len(ready), np.bool_)
    group.chunk_bytes = payload_bytes
    fits: Mask = is_valid & is_alone & (ready["payload_bytes"] == payload_bytes) & (ready["extent"] == extent)
    rows = np.flatnonzero(fits)
    keys = ready["key"][rows].tolist()
    if len(set(keys)) < len(keys):
        seen: set[bytes] = set()
        for row, key in zip(rows.tolist(), keys, strict=True):
            fits[row] = key not in seen
            seen.add(key)
    return fits


def _group_of(chunks: Chunks, namespace: bytes, shard: int) -> Group:
    """A group. A namespace that the pool file does not name may have been cleared by the last clear."""
    index, clear_epoch = chunks.index, chunks.slots.facts.clear_epoch
    known = index.find(namespace)
    if known is None:
        known = index.describe(NamespaceRecord(namespace, model="", shard_count=0, clear_epoch=clear_epoch))
    return index.group(known, shard)
