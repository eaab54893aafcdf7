"""The default eviction order against a reference that sorts: places, uses, and the uses of evicted chunks."""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.core.policy.lfu import MAX_USES, LeastFrequentlyUsed
from gateway.core.policy.order import NO_SLOT

NUM_SLOTS = 6
CHUNKS = st.integers(0, 2 * NUM_SLOTS - 1)
SLOTS = st.integers(0, NUM_SLOTS - 1)


def key(chunk: int) -> bytes:
    """A key whose word in the table of evicted chunks is its own."""
    return chunk.to_bytes(8, "big") + bytes(16) + (chunk + 1 << 8).to_bytes(8, "big")


@dataclass
class Chunk:
    """What the reference knows of a slot."""

    chunk: int
    uses: int
    place: float = 0.0
    turn: int = 0
    is_held: bool = False


class OrderMachine(RuleBasedStateMachine):
    """Any sequence of what the tables do to an order."""

    def __init__(self) -> None:
        super().__init__()
        self.order = LeastFrequentlyUsed(NUM_SLOTS, NUM_SLOTS)
        self.slots: dict[int, Chunk] = {}
        self.evicted: dict[int, int] = {}
        self.clock = 0.0
        self.turn = 0

    def put(self, slot: int) -> None:
        known = self.slots[slot]
        self.turn += 1
        known.place, known.turn = self.clock + (0.5 if known.uses == 1 else known.uses), self.turn

    def in_order(self) -> list[int]:
        here = [slot for slot, known in self.slots.items() if not known.is_held]
        return sorted(here, key=lambda slot: (self.slots[slot].place, self.slots[slot].turn))

    @rule(slot=SLOTS, chunk=CHUNKS)
    def add(self, slot: int, chunk: int) -> None:
        if slot in self.slots or any(known.chunk == chunk for known in self.slots.values()):
            return
        self.slots[slot] = Chunk(chunk, min(MAX_USES, self.evicted.get(chunk, 0) + 1))
        self.put(slot)
        self.order.add(slot, key(chunk))

    @rule(slot=SLOTS, times=st.integers(1, MAX_USES + 1))
    def use_and_hold(self, slot: int, times: int) -> None:
        """A use of what is not here changes nothing; neither does a second hold."""
        for _ in range(times):
            self.order.use(slot)
        self.order.hold(slot)
        if slot in self.slots:
            known = self.slots[slot]
            known.uses, known.is_held = min(MAX_USES, known.uses + times), True

    @rule(slot=SLOTS)
    def release(self, slot: int) -> None:
        if slot in self.slots and self.slots[slot].is_held:
            self.slots[slot].is_held = False
            self.put(slot)
            self.order.release(slot)

    @rule(slot=SLOTS, behind=st.one_of(st.just(NO_SLOT), SLOTS))
    def touch(self, slot: int, behind: int) -> None:
        self.order.touch(slot, behind)
        if slot in self.slots:
            known = self.slots[slot]
            if behind in self.slots:
                known.uses = max(known.uses, self.slots[behind].uses)
            if not known.is_held:
                self.put(slot)

    @precondition(lambda self: self.in_order())
    @rule()
    def evict_the_coldest(self) -> None:
        slot = self.order.coldest()
        self.evict(slot)
        assert slot not in self.slots

    @rule(slot=SLOTS)
    def evict_any(self, slot: int) -> None:
        """A slab that goes to another size evicts what lies in it."""
        if slot in self.slots and not self.slots[slot].is_held:
            self.evict(slot)

    def evict(self, slot: int) -> None:
        known = self.slots.pop(slot)
        self.evicted[known.chunk] = known.uses
        self.order.evict(slot, key(known.chunk))

    @rule(slot=SLOTS)
    def remove(self, slot: int) -> None:
        """Held or not, here or not."""
        self.slots.pop(slot, None)
        self.order.remove(slot)

    @invariant()
    def order_and_reference_agree(self) -> None:
        expected = self.in_order()
        assert self.order.coldest() == (expected[0] if expected else NO_SLOT)
        if expected:
            self.clock = self.slots[expected[0]].place
        assert list(self.order) == expected
        assert len(self.order) == len(expected)
        assert all((slot in self.order) == (slot in expected) for slot in range(NUM_SLOTS))
        oldest = min(expected, key=lambda slot: self.slots[slot].turn, default=NO_SLOT)
        assert oldest in (self.order.heads() or [NO_SLOT])


TestEvictionOrder = OrderMachine.TestCase
