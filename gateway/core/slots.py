"""Slots: the places of the pool, in slabs of one size each.

Owns: which slot is in which state, what lies in it, its generation, its pins; which slab has which size. Must not
know: why a slot is taken or given up, files (what must be written to the pool file is left as effects). Runs on the
loop's thread.

Slot ``s`` lies in slab ``s // slots_per_slab`` at place ``i = s % slots_per_slab``; its bytes begin at
``slab * slab_bytes + i * extent``, where extent is the slab's slot size. A slab has ``slab_bytes // extent`` slots. It
gets another size only when all of them are free: a slab without a slot in use has no size.

Facts about slots stand in columns, not in objects: at 100,000 chunks, objects would cost twice the memory and make the
garbage collector stall the loop. The numeric columns are zeroed pages that the kernel provides only where one is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import cast

import numpy as np
import numpy.typing as npt

from gateway.core.policy.choice import new_order
from gateway.core.policy.order import NO_SLOT, EvictionOrder
from gateway.core.types import Effect, FreeHeader, Numbers, PoolFacts, SlotRecord

GENERATION_COUNTER_BITS = 40  # a generation is boot_epoch << 40 | counter
NO_GROUP = -1


class SlotState(IntEnum):
    """What a slot is. Every place of the pool is exactly one of these."""

    FREE = 0
    WRITING = 1  # under a live reservation
    READY = 2
    QUARANTINED = 3  # its owner may still write: reused only after the owner's ABORT or proven death


@dataclass(slots=True, eq=False)
class SizeClass:
    """All slabs whose slots have one size."""

    extent: int  # bytes a slot
    slots_per_slab: int
    evictable: EvictionOrder  # its READY slots that nothing pins
    slabs: set[int] = field(default_factory=set)
    open_slabs: dict[int, None] = field(default_factory=dict)  # of them, those with a free slot


@dataclass(slots=True, eq=False)
class _Slab:
    """Which places of a slab are free: those given back, and those from ``unused`` on that its size never used."""

    size: SizeClass | None = None
    freed: dict[int, None] = field(default_factory=dict)
    unused: int = 0


class Slots:
    """The table of slots. Its public columns are indexed by slot."""

    def __init__(self, facts: PoolFacts, effects: list[Effect], eviction_policy: str) -> None:
        self.facts = facts
        self.sizes: dict[int, SizeClass] = {}  # by extent
        self.effects = effects  # what must reach the pool file, in order
        self._eviction_policy = eviction_policy
        self.places_per_slab = facts.slots_per_slab
        #: By slab: the order of its size, while it has one.
        self.orders: list[EvictionOrder] = [new_order(eviction_policy, 0, 0)] * facts.num_slabs
        self._slabs = [_Slab() for _ in range(facts.num_slabs)]
        self._free_slabs = dict.fromkeys(range(facts.num_slabs - 1, -1, -1))  # of no size; the last is taken first
        #: Below it are the generations of earlier boots, from it on those that this one gives out.
        self.first_generation = facts.boot_epoch << GENERATION_COUNTER_BITS
        self._last_generation = self.first_generation

        num_places = facts.num_slabs * facts.slots_per_slab
        self._states = np.zeros(num_places, np.uint8)
        self._pins = np.zeros(num_places, np.int64)
        self._used = np.zeros(num_places, np.float64)
        self._generations = np.zeros(num_places, np.int64)
        # The same memory for one slot at a time: a memoryview reads an item twice as fast as an array.
        self.states = self._states.data  # SlotState
        self.generations = self._generations.data
        self.pins = self._pins.data  # leases that hold a READY slot
        self._groups = np.zeros(num_places, np.int32)
        self.groups = self._groups.data  # Group.number while READY; NO_GROUP once out of the index
        self.used = cast("memoryview[float]", self._used.data)  # monotonic time of a READY slot's last use
        self.keys: list[bytes] = [b""] * num_places  # the very object the index has: no second copy
        self.parents: list[bytes] = [b""] * num_places  # key of the chunk before; empty where it is not known

    # -- sizes and places

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool's data."""
        return self.facts.num_slabs * self.facts.slab_bytes

    def size_for(self, payload_bytes: int) -> SizeClass:
        """The size class for a payload, which must fit a slab."""
        unit = self.facts.min_slot_bytes
        extent = -(-payload_bytes // unit) * unit
        size = self.sizes.get(extent)
        if size is None:
            num_slots = min(self.facts.slab_bytes // extent, self.places_per_slab)
            order = new_order(self._eviction_policy, len(self._states), num_slots * self.facts.num_slabs)
            size = self.sizes[extent] = SizeClass(extent, num_slots, order)
        return size

    def size_of(self, slot: int) -> SizeClass:
        """The size class of a slot in use."""
        size = self._slabs[slot // self.places_per_slab].size
        if size is None:
            raise AssertionError(f"slot {slot} lies in a slab of no size: the tables are broken")
        return size

    def offset_of(self, slot: int) -> int:
        """Where a slot's bytes begin, from the start of the pool's data."""
        slab, place = divmod(slot, self.places_per_slab)
        return slab * self.facts.slab_bytes + place * self.size_of(slot).extent

    def slots_of_slab(self, slab: int) -> range:
        """The slots of a slab that has a size."""
        size = self._slabs[slab].size
        first = slab * self.places_per_slab
        return range(first, first + (size.slots_per_slab if size else 0))

    # -- take and give back

    def take(self, size: SizeClass) -> int:
        """A free slot, now WRITING under a new generation; NO_SLOT when the size has none and no slab is free."""
        if not size.open_slabs and not self._take_slab(size):
            return NO_SLOT
        number = next(iter(size.open_slabs))
        slab = self._slabs[number]
        if slab.freed:
            slot, _ = slab.freed.popitem()
        else:
            slot = number * self.places_per_slab + slab.unused
            slab.unused += 1
        if not slab.freed and slab.unused == size.slots_per_slab:
            del size.open_slabs[number]
        self._last_generation += 1
        self.generations[slot] = self._last_generation
        self.states[slot] = SlotState.WRITING
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back, and its slab when nothing else is in it. Leaves the effect that frees its header."""
        number = slot // self.places_per_slab
        slab = self._slabs[number]
        size = self.size_of(slot)
        self.states[slot] = SlotState.FREE
        self.keys[slot] = self.parents[slot] = b""
        self.effects.append(FreeHeader(slot))
        slab.freed[slot] = None
        if len(slab.freed) == slab.unused:
            slab.freed.clear()
            slab.unused = 0
            slab.size = None
            size.slabs.remove(number)
            size.open_slabs.pop(number, None)
            self._free_slabs[number] = None
        else:
            size.open_slabs[number] = None

    # -- from the pool file

    def size_found(self, payload_bytes: int, extent: int) -> SizeClass | None:
        """The size class of a header found in the pool file, if its sizes can be those of a slot of this pool."""
        if not 0 < payload_bytes <= extent <= self.facts.slab_bytes:
            return None
        size = self.size_for(payload_bytes)
        return size if size.extent == extent else None

    def adopt(self, record: SlotRecord, size: SizeClass, state: SlotState) -> bool:
        """Take over a slot from the pool file, unless it lies outside or beside slots of another size.

        ``close_adoption`` must follow before anything else is asked.
        """
        slot = record.slot
        number, place = divmod(slot, self.places_per_slab)
        if not (0 <= number < len(self._slabs) and place < size.slots_per_slab) or self.states[slot]:
            return False
        slab = self._slabs[number]
        if slab.size is not size:
            if slab.size is not None:
                return False
            del self._free_slabs[number]
            self._give_size(number, size)
        self.states[slot] = state
        self.generations[slot] = record.generation
        return True

    def adopt_ready(self, slots: Numbers, extents: Numbers, generations: Numbers) -> npt.NDArray[np.bool_]:
        """As ``adopt``, for many READY slots of known sizes. Of those that contradict each other the first is taken.

        Returns:
            Which were adopted.
        """
        is_adopted = (slots >= 0) & (slots < len(self._states))
        is_adopted[is_adopted] &= self._states[slots[is_adopted]] == SlotState.FREE
        numbers, places = np.divmod(slots, self.places_per_slab)
        for size in self.sizes.values():
            is_adopted &= (extents != size.extent) | (places < size.slots_per_slab)
        chosen = np.flatnonzero(is_adopted)
        chosen = chosen[np.sort(np.unique(slots[chosen], return_index=True)[1])]
        claimed, first = np.unique(numbers[chosen], return_index=True)
        for number, extent in zip(claimed.tolist(), extents[chosen[first]].tolist(), strict=True):
            if self._slabs[number].size is None:
                del self._free_slabs[number]
                self._give_size(number, self.sizes[extent])
        slab_extents = np.fromiter((slab.size.extent if slab.size else 0 for slab in self._slabs), np.int64)
        chosen = chosen[slab_extents[numbers[chosen]] == extents[chosen]]
        self._states[slots[chosen]] = SlotState.READY
        self._generations[slots[chosen]] = generations[chosen]
        is_adopted[:] = False
        is_adopted[chosen] = True
        return is_adopted

    def close_adoption(self) -> None:
        """No more will be adopted: find what is free in the slabs."""
        for size in self.sizes.values():
            for number in size.slabs:
                first = number * self.places_per_slab
                states = self._states[first : first + size.slots_per_slab]
                slab = self._slabs[number]
                slab.unused = int(np.flatnonzero(states)[-1]) + 1
                slab.freed = dict.fromkeys((np.flatnonzero(states[: slab.unused] == SlotState.FREE) + first).tolist())
                if not slab.freed and slab.unused == size.slots_per_slab:
                    del size.open_slabs[number]

    def fill(self, slots: Numbers, keys: Sequence[bytes], group: int, now: float) -> None:
        """What lies in adopted READY slots, and that they are used now."""
        self._groups[slots] = group
        self._used[slots] = now
        for slot, key in zip(slots.tolist(), keys, strict=True):
            self.keys[slot] = key

    # -- inside

    def _take_slab(self, size: SizeClass) -> bool:
        if not self._free_slabs:
            return False
        number, _ = self._free_slabs.popitem()
        self._give_size(number, size)
        return True

    def _give_size(self, number: int, size: SizeClass) -> None:
        self._slabs[number].size = size
        self.orders[number] = size.evictable
        size.slabs.add(number)
        size.open_slabs[number] = None

    # -- readings

    def coldest_evictable_slab(self, size: SizeClass, colder_than: float) -> int:
        """Of the slabs whose every slot in use may be evicted, the one used longest ago; -1: none is so cold.

        A slab was used when its chunks were, on average. Its hottest chunk would be the wrong measure: evictions leave
        old and new chunks side by side in every slab, so that the size with more slots a slab would never give one up.
        With the average it is never so that each of two sizes could take a slab of the other.

        Looks at all slots of the size: ask only when it has an evictable slot that is cold enough.
        """
        if not size.slabs:
            return -1
        slabs = np.fromiter(size.slabs, np.int64)
        states = self._states.reshape(-1, self.places_per_slab)[slabs, : size.slots_per_slab]
        pins = self._pins.reshape(-1, self.places_per_slab)[slabs, : size.slots_per_slab]
        used = self._used.reshape(-1, self.places_per_slab)[slabs, : size.slots_per_slab]
        is_ready = states == SlotState.READY
        may_go = (is_ready & (pins == 0)) | (states == SlotState.FREE)
        heat = np.where(is_ready, used, 0.0).sum(axis=1) / is_ready.sum(axis=1).clip(1)  # clip: all may be WRITING
        heat[~may_go.all(axis=1)] = np.inf
        coldest = int(heat.argmin())
        return int(slabs[coldest]) if heat[coldest] < colder_than else -1

    def in_state(self, state: SlotState) -> list[int]:
        """All slots in this state, in order."""
        return np.flatnonzero(self._states == state).tolist()

    def pinned(self) -> dict[int, int]:
        """The pins of each slot that has any."""
        slots = np.flatnonzero(self._pins)
        return dict(zip(slots.tolist(), self._pins[slots].tolist(), strict=True))

    def counts(self) -> dict[str, int]:
        """Slots and bytes (of their places) by state; what is neither is free."""
        states = self._states.reshape(-1, self.places_per_slab)
        extents = np.fromiter((slab.size.extent if slab.size else 0 for slab in self._slabs), np.int64)
        found: dict[str, int] = {}
        taken_bytes = 0
        for state in (SlotState.READY, SlotState.WRITING, SlotState.QUARANTINED):
            per_slab: npt.NDArray[np.int64] = (states == state).sum(axis=1)
            name = state.name.lower()
            found[name] = int(per_slab.sum())
            found[f"{name}_bytes"] = int(per_slab @ extents)
            taken_bytes += found[f"{name}_bytes"]
        found["free_bytes"] = self.pool_bytes - taken_bytes
        found["pool_bytes"] = self.pool_bytes
        return found

    def check(self) -> None:
        """Raise AssertionError unless every place is in exactly one state and every slab knows its free ones."""
        is_free = (self._states == SlotState.FREE).reshape(-1, self.places_per_slab)
        for number, slab in enumerate(self._slabs):
            self._check_slab(number, slab, is_free[number])
        in_use = self._states != SlotState.FREE
        generations = self._generations[in_use]
        assert len(np.unique(generations)) == len(generations), "two slots have one generation"
        pins = self._pins
        assert (pins >= 0).all(), "a slot has less than no pins"
        assert not pins[self._states != SlotState.READY].any(), "a slot is pinned, not READY"

    def _check_slab(self, number: int, slab: _Slab, is_free: npt.NDArray[np.bool_]) -> None:
        assert (slab.size is None) == (number in self._free_slabs), f"slab {number} is lost"
        for size in self.sizes.values():
            assert (number in size.slabs) == (slab.size is size), f"slab {number} is in the wrong class"
        known = np.zeros(self.places_per_slab, np.bool_)
        known[slab.unused :] = True
        known[[slot - number * self.places_per_slab for slot in slab.freed]] = True
        assert (is_free == known).all(), (
            f"slab {number}: free places are {np.flatnonzero(is_free)}, known are {np.flatnonzero(known)}"
        )
        if slab.size is not None:
            is_open = len(slab.freed) + slab.size.slots_per_slab - slab.unused > 0
            assert is_open == (number in slab.size.open_slabs), f"slab {number}: open is wrong"
            assert len(slab.freed) < slab.unused, f"slab {number} has a size and nothing in it"
