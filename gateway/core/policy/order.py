"""The interface of an eviction order: what the tables need of a policy, and nothing more.

Owns: the names. Must not know: any policy. Pure; runs on the loop's thread.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

NO_SLOT = -1


class EvictionOrder(Protocol):
    """The slots of one size class that may be evicted, coldest first.

    A slot comes with ``add`` or ``adopt``, goes with ``evict`` or ``remove``, and is out of the order, but not
    forgotten, between ``hold`` and ``release``. The tables touch slots from the back of a prompt to its front, so that
    a prefix is always hotter than its suffix.
    """

    def add(self, slot: int, key: bytes) -> None:
        """Take in a slot with a chunk that was just stored, as just used."""
        ...

    def adopt(self, coldest_first: Sequence[int]) -> None:
        """Take in slots with chunks of an earlier life, of which nothing more is known."""
        ...

    def use(self, slot: int) -> None:
        """A request wants the chunk, which is about to be held for it."""
        ...

    def hold(self, slot: int) -> None:
        """Take a slot out for as long as something reads it."""
        ...

    def release(self, slot: int) -> None:
        """Take a held slot back in, as just used."""
        ...

    def touch(self, slot: int, behind: int = NO_SLOT) -> None:
        """Make a slot as just used, and no colder than the one behind it in the prompt. One that is held stays out."""
        ...

    def evict(self, slot: int, key: bytes) -> None:
        """The chunk goes to make room; it may come back in another slot."""
        ...

    def remove(self, slot: int) -> None:
        """The chunk goes for good; a slot that is not here changes nothing."""
        ...

    def coldest(self) -> int:
        """The slot to evict first, or NO_SLOT."""
        ...

    def heads(self) -> Sequence[int]:
        """The slots that were used longest ago, one of each queue the order has; none when there is no slot."""
        ...

    def __len__(self) -> int: ...

    def __contains__(self, slot: object) -> bool: ...

    def __iter__(self) -> Iterator[int]:
        """Coldest first."""
        ...
