"""The interface of an eviction order: what the tables need of a policy, and nothing more.

Owns: the names. Must not know: any policy. Pure; runs on the loop's thread.
"""

from collections.abc import Iterator
from typing import Protocol

NO_SLOT = -1


class EvictionOrder(Protocol):
    """The slots of one size class that may be evicted, coldest first.

    The tables add a slot when nothing holds it any more, remove it when something does or when it is gone, and
    touch slots so that a prefix is always touched after its suffix.
    """

    def add(self, slot: int) -> None:
        """Take a slot in, as the hottest."""
        ...

    def touch(self, slot: int) -> None:
        """Make a slot the hottest; one that is not here stays out."""
        ...

    def remove(self, slot: int) -> None:
        """Take a slot out; one that is not here changes nothing."""
        ...

    def coldest(self) -> int:
        """The slot to evict first, or NO_SLOT."""
        ...

    def __len__(self) -> int: ...

    def __contains__(self, slot: object) -> bool: ...

    def __iter__(self) -> Iterator[int]:
        """Coldest first."""
        ...
