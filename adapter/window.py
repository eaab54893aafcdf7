"""Which operations may ask the gateway for slots now, and which must wait for their turn.

Owns: the number of RESERVE and READ requests under way, the operations that wait for room among them, and the stores
that the gateway's quota stopped. Must not know: operations themselves (numbers only), the time (it is passed in). Pure.

Without a bound an overloaded gateway would find a thousand requests in its queue before the heartbeat that shows it to
be alive; so the rest waits here. First come, first served, on both counts.
"""

from __future__ import annotations

import math

#: RESERVE and READ requests under way at once.
MAX_ASKS = 64
#: How long a store waits before it asks again for slots that the party's quota did not allow.
QUOTA_RETRY_SECONDS = 0.2


class Window:
    """The turns of one worker's operations at the gateway."""

    def __init__(self, max_asks: int = MAX_ASKS) -> None:
        #: requests under way, those of operations settled meanwhile included
        self.under_way = 0
        self._max_asks = max_asks
        self._waiting: dict[int, None] = {}
        self._starved: dict[int, float] = {}  #: when to ask again

    def begin_ask(self, number: int) -> bool:
        """Whether the operation may ask now; if not, it waits here."""
        if self.under_way >= self._max_asks:
            self._waiting[number] = None
            return False
        self.under_way += 1
        return True

    def end_ask(self) -> None:
        """A request has its answer, or will have none."""
        self.under_way -= 1

    def next_waiting(self) -> int | None:
        """The operation whose turn it is, if there is room: it waits no longer."""
        if self.under_way >= self._max_asks:
            return None
        return self._take(self._waiting)

    def starve(self, number: int, now: float) -> None:
        """The quota gave the operation nothing: it asks again when something is freed, or after a while."""
        self._starved[number] = now + QUOTA_RETRY_SECONDS

    def next_starved(self) -> int | None:
        """The operation that the quota has stopped for longest: it waits no longer."""
        return self._take(self._starved)

    def next_retry(self) -> float:
        """When the next of the starved asks again; infinity when there is none."""
        return min(self._starved.values(), default=math.inf)

    def has(self, number: int) -> bool:
        """Whether the operation waits for either."""
        return number in self._waiting or number in self._starved

    def leave(self, number: int) -> None:
        """The operation wants nothing more."""
        self._waiting.pop(number, None)
        self._starved.pop(number, None)

    @property
    def num_waiting(self) -> int:
        """Operations that wait here."""
        return len(self._waiting) + len(self._starved)

    def check(self, unsettled: frozenset[int]) -> None:
        """Raise AssertionError where the queues contradict themselves, or name an operation that is settled."""
        assert self._starved.keys() | self._waiting.keys() <= unsettled
        assert not self._starved.keys() & self._waiting.keys()
        assert 0 <= self.under_way <= self._max_asks
        assert self.under_way == self._max_asks or not self._waiting, "there is room, and yet one waits"

    def _take(self, queue: dict[int, None] | dict[int, float]) -> int | None:
        number = next(iter(queue), None)
        if number is not None:
            del queue[number]
        return number
