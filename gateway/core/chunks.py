"""READY chunks: published, found, pinned, touched, evicted, cleared.

Owns: the rules that tie index, slots and eviction orders together, and the memory of keys evicted lately. Must not
know: who holds a lease or a reservation, or why. Runs on the loop's thread.

A chunk is evictable exactly when it is READY, in the index and pinned by nothing. Whatever touches chunks does it from
back to front and goes on to the ancestors before them, so that a prefix is always hotter than its suffix: a suffix
without its prefix could never be hit.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from gateway.core.index import Group, Index
from gateway.core.policy.order import NO_SLOT
from gateway.core.slots import NO_GROUP, SizeClass, Slots, SlotState
from gateway.core.types import Counts, Numbers, SlotRecord, WriteHeader
from gateway.wire.codes import EvictionReason

MAX_EVICTED_KEYS = 16384


class Chunks:
    """All READY chunks."""

    def __init__(self, slots: Slots, index: Index, counts: Counts, idle_buckets: Sequence[float]) -> None:
        self.slots = slots
        self.index = index
        self._counts = counts
        self._idle_buckets = idle_buckets
        self._evicted: OrderedDict[bytes, bytes] = OrderedDict()  # key -> namespace, oldest first
        self._has_recovered = False

    # -- come

    def publish(self, writing: SlotRecord, group: Group, parent: bytes, now: float) -> None:
        """Make a filled slot readable: its header is READY before anyone is told."""
        slots, slot = self.slots, writing.slot
        slots.effects.append(WriteHeader(writing._replace(is_ready=True)))
        slots.states[slot] = SlotState.READY
        slots.keys[slot] = writing.key
        slots.parents[slot] = parent
        slots.groups[slot] = group.number
        slots.used[slot] = now
        slots.orders[slot // slots.places_per_slab].add(slot, writing.key)
        group.slots[writing.key] = slot

    def recover(self, newest_first: Numbers, extents: Numbers, depths: Numbers) -> None:
        """READY chunks from the pool file may be evicted; their slots are filled, their keys indexed.

        When they were last used is not known. The deepest go first, so that every prefix outlives its suffix; of one
        depth the oldest.
        """
        slots = self.slots
        coldest_first = len(depths) - 1 - np.argsort(-depths[::-1], kind="stable")
        ordered, ordered_extents = newest_first[coldest_first], extents[coldest_first]
        for extent, size in slots.sizes.items():
            size.evictable.adopt(ordered[ordered_extents == extent].tolist())
        self._has_recovered = len(newest_first) > 0

    # -- find and hold

    def leading(self, namespace: bytes, shard_count: int, keys: Sequence[bytes]) -> list[int]:
        """The slots of the leading chunks of which every shard is there: those of chunk 0, of chunk 1 and so on."""
        found = self.index.find(namespace)
        if found is None or any(shard not in found.groups for shard in range(shard_count)):
            return []
        tables = [found.groups[shard].slots for shard in range(shard_count)]
        hits: list[int] = []
        for key in keys:
            for table in tables:
                slot = table.get(key, NO_SLOT)
                if slot == NO_SLOT:
                    del hits[len(hits) // shard_count * shard_count :]
                    return hits
                hits.append(slot)
        return hits

    def was_evicted(self, namespace: bytes, key: bytes) -> bool:
        """Whether the key was evicted for room lately."""
        return self._evicted.get(key) == namespace

    def num_evicted(self) -> int:
        """Keys evicted for room that are remembered, at most ``MAX_EVICTED_KEYS``."""
        return len(self._evicted)

    def use(self, wanted: Iterable[int]) -> None:
        """A request wants these chunks: however often it then asks for and reads them, it is one use of each."""
        orders, places = self.slots.orders, self.slots.places_per_slab
        for slot in wanted:
            orders[slot // places].use(slot)

    def pin(self, held: Iterable[int], now: float) -> None:
        """Hold chunks for a lease: nothing evicts them. NO_SLOT is skipped."""
        slots = self.slots
        pins, used, orders, places = slots.pins, slots.used, slots.orders, slots.places_per_slab
        for slot in held:
            if slot == NO_SLOT:
                continue
            count = pins[slot]
            pins[slot] = count + 1
            used[slot] = now
            if not count:
                orders[slot // places].hold(slot)

    def unpin(self, held: Sequence[int], now: float) -> None:
        """A lease ends. What nothing else holds may be evicted again, or is freed if it has left the index."""
        slots = self.slots
        released: dict[int, int] = {}  # of each group the slot that came last: the one nearest to the root
        for slot in reversed(held):
            if slot == NO_SLOT:
                continue
            slots.pins[slot] -= 1
            if slots.pins[slot]:
                continue
            group = slots.groups[slot]
            if group == NO_GROUP:
                slots.free(slot)
                continue
            slots.used[slot] = now
            slots.orders[slot // slots.places_per_slab].release(slot)
            released[group] = slot
        for group, slot in released.items():
            self._touch_ancestors(self.index.groups[group], slot, now)

    def touch(self, group: Group, keys: Iterable[bytes], now: float) -> None:
        """Make chunks the hottest: ``keys`` from front to back, then what stands before them."""
        first = NO_SLOT
        for key in reversed(list(keys)):
            slot = group.slots.get(key, NO_SLOT)
            if slot != NO_SLOT:
                self._touch(slot, first, now)
                first = slot
        if first != NO_SLOT:
            self._touch_ancestors(group, first, now)

    def _touch(self, slot: int, behind: int, now: float) -> None:
        slots = self.slots
        slots.used[slot] = now
        slots.orders[slot // slots.places_per_slab].touch(slot, behind)

    def _touch_ancestors(self, group: Group, slot: int, now: float) -> None:
        table, parents = group.slots, self.slots.parents
        for _ in range(len(table)):  # parents come from clients: a ring must not hold the loop
            behind, slot = slot, table.get(parents[slot], NO_SLOT)
            if slot == NO_SLOT:
                return
            self._touch(slot, behind, now)

    def learn_parents(self, hits: Sequence[int], shard_count: int, keys: Sequence[bytes]) -> None:
        """The pool file does not say which chunk comes before a recovered one; a lookup does."""
        if not self._has_recovered:
            return
        parents = self.slots.parents
        for i in range(shard_count, len(hits)):
            if not parents[hits[i]]:
                parents[hits[i]] = keys[i // shard_count - 1]

    # -- go

    def make_room(self, size: SizeClass, now: float) -> bool:
        """Evict so that a slot of this size can be taken: the coldest chunk of the size, or a slab of another.

        Another size gives a slab up when that was used longer ago than what this size is about to lose. Both sizes are
        measured by their oldest chunks, of each queue of the order one, on average: the coldest chunk of a size may
        have been used a moment ago, and its oldest for the hundredth time.

        Returns:
            False when nothing may go; then nothing has changed.
        """
        slots = self.slots
        coldest = size.evictable.coldest()
        others = [other for other in slots.sizes.values() if other is not size]
        age_limit = self._age(size) if others else 0.0
        for other in others:
            if self._age(other) >= age_limit:
                continue
            slab = slots.coldest_evictable_slab(other, age_limit)
            if slab >= 0:
                for slot in slots.slots_of_slab(slab):
                    if slots.states[slot] == SlotState.READY:
                        self._evict(slot, EvictionReason.SLAB, now)
                return True
        if coldest == NO_SLOT:
            return False
        self._evict(coldest, EvictionReason.CAPACITY, now)
        return True

    def _age(self, size: SizeClass) -> float:
        """When the oldest evictable chunks of a size were used; infinity: there is none."""
        heads = size.evictable.heads()
        return sum(self.slots.used[slot] for slot in heads) / len(heads) if heads else float("inf")

    def _evict(self, slot: int, reason: EvictionReason, now: float) -> None:
        slots = self.slots
        group = self.index.groups[slots.groups[slot]]
        key = slots.keys[slot]
        idle_seconds = max(0.0, now - slots.used[slot])
        self._counts.eviction_idle_seconds[bisect_left(self._idle_buckets, idle_seconds)] += 1
        self._counts.eviction_idle_sum += idle_seconds
        self._evicted.pop(key, None)
        self._evicted[key] = group.namespace.record.namespace
        if len(self._evicted) > MAX_EVICTED_KEYS:
            self._evicted.popitem(last=False)
        slots.size_of(slot).evictable.evict(slot, key)
        self._leave(slot, group, reason)

    def drop_group(self, group: Group, reason: EvictionReason) -> None:
        """Take all chunks of a group out of the index; those that are pinned are freed by their last release."""
        for slot in list(group.slots.values()):
            self._leave(slot, group, reason)

    def num_held(self, group: Group) -> int:
        """How many of the group's chunks are pinned."""
        return sum(self.slots.pins[slot] > 0 for slot in group.slots.values())

    def _leave(self, slot: int, group: Group, reason: EvictionReason) -> None:
        slots = self.slots
        del group.slots[slots.keys[slot]]
        slots.groups[slot] = NO_GROUP
        slots.size_of(slot).evictable.remove(slot)
        if not slots.pins[slot]:
            slots.free(slot)
        self._counts.evictions[reason] = self._counts.evictions.get(reason, 0) + 1

    def check(self) -> None:
        """Raise AssertionError unless index, slots and eviction orders agree."""
        slots = self.slots
        indexed = 0
        for group in self.index.groups.values():
            for key, slot in group.slots.items():
                indexed += 1
                assert slots.states[slot] == SlotState.READY, f"slot {slot} is indexed and not READY"
                assert slots.keys[slot] == key, f"slot {slot} has another key than the index"
                assert slots.groups[slot] == group.number, f"slot {slot} has another group than the index"
                assert slots.size_of(slot) is slots.size_for(group.chunk_bytes), f"slot {slot} has another size"
        evictable = 0
        for size in slots.sizes.values():
            for slot in size.evictable:
                evictable += 1
                assert slots.states[slot] == SlotState.READY, f"slot {slot} is evictable and not READY"
                assert slots.size_of(slot) is size, f"slot {slot} is in the order of another size"
        for slot in slots.in_state(SlotState.READY):
            is_indexed = slots.groups[slot] != NO_GROUP
            indexed -= is_indexed
            assert is_indexed or slots.pins[slot], f"slot {slot} is READY, and nobody can reach it"
            may_go = is_indexed and not slots.pins[slot]
            evictable -= may_go
            assert may_go == (slot in slots.size_of(slot).evictable), f"slot {slot} is wrongly evictable or not"
        assert indexed == 0, "the index and the READY slots differ in number"
        assert evictable == 0, "the eviction orders and the evictable slots differ in number"
