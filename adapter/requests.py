"""The requests of one link that wait for their reply.

Owns: request numbers, and for each the boot it is meant for and what is to be called with its end. Must not know:
sockets, what the messages mean. Runs on the link thread.

Every request ends once: with its reply, or with the reason why there is none. From then on nothing here remembers it,
so that a gateway that is silent for weeks costs nothing.
"""

import heapq
import math
from collections.abc import Callable

from gateway.wire.codes import Reason
from gateway.wire.messages import Reply

#: Called once, on the link thread, with the reply or with the reason why there is none.
Finish = Callable[[Reply | Reason], None]

#: Requests that may wait at a time.
MAX_REQUESTS = 16384


class Requests:
    """What was asked and not answered yet."""

    def __init__(self) -> None:
        self._last_number = 0  # never starts again: a reply cannot meet a request of a later connection
        self._waiting: dict[int, tuple[bytes, Finish]] = {}
        self._deadlines: list[tuple[float, int]] = []  # a heap; numbers that are answered stay until their time

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def num_deadlines(self) -> int:
        """Deadlines that are still to come, those of answered requests among them."""
        return len(self._deadlines)

    @property
    def is_full(self) -> bool:
        """Whether no other request may wait."""
        return len(self._waiting) >= MAX_REQUESTS

    def open(self, boot: bytes, deadline: float, finish: Finish) -> int:
        """A request is about to be sent; returns its number. Only ``boot`` may answer it; empty: any."""
        self._last_number += 1
        self._waiting[self._last_number] = (boot, finish)
        heapq.heappush(self._deadlines, (deadline, self._last_number))
        return self._last_number

    def take(self, number: int, boot: bytes = b"") -> Finish | None:
        """End a request that was answered by ``boot`` or could not be sent. None: it does not wait for this boot."""
        waiting = self._waiting.get(number)
        if waiting is None or (boot and waiting[0] and boot != waiting[0]):
            return None
        del self._waiting[number]
        return waiting[1]

    def take_expired(self, now: float) -> list[Finish]:
        """Forget those whose deadline has passed."""
        expired: list[Finish] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heapq.heappop(self._deadlines)
            finish = self.take(number)
            if finish is not None:
                expired.append(finish)
        return expired

    def take_all(self) -> list[Finish]:
        """Forget every one."""
        finishes = [finish for _, finish in self._waiting.values()]
        self._waiting.clear()
        self._deadlines.clear()
        return finishes

    def next_deadline(self) -> float:
        """When ``take_expired`` may have something; infinity when nothing waits."""
        return self._deadlines[0][0] if self._deadlines else math.inf
