"""The eviction orders by the names of the setting.

Owns: the names. Must not know: who chooses. Pure; runs on the loop's thread.
"""

from gateway.core.policy.lfu import LeastFrequentlyUsed
from gateway.core.policy.lru import LeastRecentlyUsed
from gateway.core.policy.order import EvictionOrder

POLICIES = ("lfu", "lru")


def new_order(policy: str, num_slots: int, capacity: int) -> EvictionOrder:
    """An empty order for slots numbered below ``num_slots``, of which there are at most ``capacity`` at once."""
    if policy == "lru":
        return LeastRecentlyUsed()
    return LeastFrequentlyUsed(num_slots, capacity)
