"""Least frequently used, with ageing and a memory of what has gone: the default eviction order.

Owns: how often each slot's chunk was used, the shelves, the memory of evicted keys. Must not know: what is in the
slots, the time. Pure; runs on the loop's thread; every step takes a constant time.

Prompts that come once are most of what is stored. Ordered by last use alone they push out the conversations that go
on, whenever more is stored between two turns than the pool holds. So a chunk's place is *uses + clock*, and the lowest
place goes first, where the clock is the place of the last that went (LFU with dynamic ageing: Arlitt, Cherkasova,
Dilley, Friedrich and Jin, "Evaluating content management techniques for Web proxy caches", 2000). Of one place the
least recently used goes first. Uses are worth something for as long as the clock needs to go over them, so that what
was popular once leaves in the end, and with chunks that are all used equally often this is plain LRU.

Three things are ours, and have to do with prompts:

- A first use counts half. It only says that the chunk was stored; every later one that it was wanted.
- What was evicted comes back with the uses it had. A table of one word a chunk remembers them under the chunk's key,
  twice as many as there are slots; an entry is overwritten by the next that falls on it. The idea is that of the ghost
  lists of 2Q and MQ; keys are hashes already, so that neither order nor buckets are needed.
- A chunk is used at least as often as the one behind it: ``touch`` raises a prefix to its suffix. Without that a lost
  entry of the table would leave a cold chunk in the middle of a hot prompt, and nothing behind it could be hit.

Memory: about 155 bytes a slot, 18 more than plain LRU. ``docs/decisions/eviction.md`` has what each choice is worth.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from gateway.core.policy.order import NO_SLOT

MAX_USES = 15  # the low four bits of a word in the table
_FIRST_USE = 1  # places are counted in half uses
_LATER_USE = 2
_NUM_SHELVES = 32  # more than the highest place above the clock; a power of two, so that places wrap around
_NO_SHELF = 255
_WORDS_A_SLOT = 2
_USES_MASK = 0xF


class LeastFrequentlyUsed:
    """Slots on shelves, one shelf a place above the clock. See ``EvictionOrder`` for the methods."""

    def __init__(self, num_slots: int, capacity: int) -> None:
        """An empty order.

        Args:
            num_slots: slots are numbers below this.
            capacity: how many slots there can be at once.
        """
        self._shelves: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(_NUM_SHELVES)]
        self._clock = 0  # the shelf of what goes next, or one before it
        self._shelf_of = bytearray([_NO_SHELF]) * num_slots
        self._uses = bytearray(num_slots)  # of chunks in the order and of held ones; 0: neither
        self._evicted = array("Q", [0]) * max(1, _WORDS_A_SLOT * capacity)  # 60 bits of a key, four of its uses

    # -- come and go

    def add(self, slot: int, key: bytes) -> None:
        """Take in a slot whose chunk was just stored, with the uses it had when it was evicted and one more."""
        index, tag = self._word_of(key)
        word = self._evicted[index]
        known = word & _USES_MASK if word & ~_USES_MASK == tag else 0
        self._uses[slot] = min(known + 1, MAX_USES)
        self._put(slot)

    def adopt(self, coldest_first: Sequence[int]) -> None:
        """Take in slots as used once. The pool file does not say how often, and the table is as new as this boot."""
        shelf = (self._clock + _FIRST_USE) % _NUM_SHELVES
        self._shelves[shelf].update(dict.fromkeys(coldest_first))
        for slot in coldest_first:
            self._uses[slot] = 1
            self._shelf_of[slot] = shelf

    def evict(self, slot: int, key: bytes) -> None:
        """Take a slot out, and remember its chunk's uses."""
        index, tag = self._word_of(key)
        self._evicted[index] = tag | self._uses[slot]
        self.remove(slot)

    def remove(self, slot: int) -> None:
        """Take a slot out and forget its uses; one that is not here changes nothing."""
        self.hold(slot)
        self._uses[slot] = 0

    def _word_of(self, key: bytes) -> tuple[int, int]:
        """Where a key's word is, and what of the key stands in it."""
        return int.from_bytes(key[:8]) % len(self._evicted), int.from_bytes(key[-8:]) & ~_USES_MASK

    # -- use

    def use(self, slot: int) -> None:
        """Count a use; it takes effect when the slot is next put in its place."""
        if 0 < self._uses[slot] < MAX_USES:
            self._uses[slot] += 1

    def hold(self, slot: int) -> None:
        """Take a slot out; one that is not in the order changes nothing."""
        shelf = self._shelf_of[slot]
        if shelf != _NO_SHELF:
            del self._shelves[shelf][slot]
            self._shelf_of[slot] = _NO_SHELF

    def release(self, slot: int) -> None:
        """Take a held slot back in, where its uses place it above the clock."""
        self._put(slot)

    def touch(self, slot: int, behind: int = NO_SLOT) -> None:
        """Put a slot where its uses place it now; it has at least those of the one behind it. Held, it stays out."""
        if behind != NO_SLOT and 0 < self._uses[slot] < self._uses[behind]:
            self._uses[slot] = self._uses[behind]
        if self._shelf_of[slot] != _NO_SHELF:
            self.hold(slot)
            self._put(slot)

    def _put(self, slot: int) -> None:
        uses = self._uses[slot]
        shelf = (self._clock + (_LATER_USE * uses if uses > 1 else _FIRST_USE)) % _NUM_SHELVES
        self._shelves[shelf][slot] = None
        self._shelf_of[slot] = shelf

    # -- what goes first

    def coldest(self) -> int:
        """The slot to evict first, or NO_SLOT. Moves the clock to its place, which nothing is below."""
        for step in range(_NUM_SHELVES):
            shelf = (self._clock + step) % _NUM_SHELVES
            for slot in self._shelves[shelf]:
                self._clock = shelf
                return slot
        return NO_SLOT

    def heads(self) -> Sequence[int]:
        """The first slot of each shelf: on a shelf they stand in the order of their last use."""
        return [next(iter(shelf)) for shelf in self._shelves if shelf]

    def __len__(self) -> int:
        return sum(map(len, self._shelves))

    def __contains__(self, slot: object) -> bool:
        return isinstance(slot, int) and self._shelf_of[slot] != _NO_SHELF

    def __iter__(self) -> Iterator[int]:
        for step in range(_NUM_SHELVES):
            yield from self._shelves[(self._clock + step) % _NUM_SHELVES]
