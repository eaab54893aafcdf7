"""Which of many things are due, when most of them are renewed or gone before they are.

Owns: a heap of deadlines. Must not know: what is due, or what follows. Pure; runs on the loop's thread.
"""

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from typing import Generic, TypeVar

Key = TypeVar("Key")

GONE = float("-inf")


class Deadlines(Generic[Key]):
    """Deadlines that are stored elsewhere, in the things themselves; here stands only when to look at each next.

    A renewal costs nothing here: an entry that comes up too early is put back at its thing's present deadline. A
    thing's deadline must not move before the one it was added with.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Key]] = []
        self._queued: set[Key] = set()
        self._order = count()  # ties: keys need not compare

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, key: Key, deadline: float) -> None:
        """Look at ``key`` when ``deadline`` has come; a key that waits already is looked at when it was to be."""
        if key not in self._queued:
            self._queued.add(key)
            heapq.heappush(self._heap, (deadline, next(self._order), key))

    def due(self, now: float, deadline_of: Callable[[Key], float]) -> Iterator[Key]:
        """The keys whose deadline has come. ``deadline_of`` says GONE of a key whose thing is no more."""
        while self._heap and self._heap[0][0] <= now:
            _, _, key = heapq.heappop(self._heap)
            self._queued.remove(key)
            deadline = deadline_of(key)
            if deadline > now:
                self.add(key, deadline)
            elif deadline != GONE:
                yield key
