"""Waiting for device events, by asking them.

Owns: the events that are polled now and the thread that polls them. Must not know: what waits for them, devices.

The thread is its own, apart from the link's: ``query`` belongs to the caller, and one that takes long (a driver's
lock, a fault) must hold back neither heartbeats nor the deadlines that would give the operation up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from gateway.device.base import OpenedEvent

SHORTEST_PAUSE_SECONDS = 0.0002
LONGEST_PAUSE_SECONDS = 0.005
#: The thread rests so many times longer than it asked: a thousand events cost a tenth of a core, not all of it.
REST_FACTOR = 9
LONGEST_REST_SECONDS = 0.05

#: Called on the polling thread with the operations that waited for an event, and whether it fired (False: it raised).
Ended = Callable[[Sequence[int], bool], None]


class EventWatcher:
    """Asks each watched event until it fires or raises; one that is watched for many operations is asked once."""

    def __init__(self, ended: Ended, name: str) -> None:
        self._ended = ended
        self._watched: dict[int, tuple[OpenedEvent, list[int]]] = {}  # by the event's identity
        self._changed = threading.Condition()
        self._is_closed = False
        self._has_new = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def watch(self, number: int, event: OpenedEvent) -> None:
        """Poll ``event`` for this operation. Any thread; never waits for a query."""
        with self._changed:
            _, numbers = self._watched.setdefault(id(event), (event, []))
            numbers.append(number)
            self._has_new = True
            self._changed.notify()

    def __len__(self) -> int:
        return len(self._watched)

    def forget(self, event: OpenedEvent) -> None:
        """Stop asking. The reference held here is gone afterwards, or with the query that is under way."""
        with self._changed:
            self._watched.pop(id(event), None)

    def close(self) -> None:
        """Forget all and end the thread; one stuck in a query is left to it."""
        with self._changed:
            self._watched.clear()
            self._is_closed = True
            self._changed.notify()

    def join(self, timeout_seconds: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        pause = SHORTEST_PAUSE_SECONDS
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or bool(self._watched))
                if self._is_closed:
                    return
                pause = SHORTEST_PAUSE_SECONDS if self._has_new else min(2 * pause, LONGEST_PAUSE_SECONDS)
                self._has_new = False
                keys = list(self._watched)
            began = time.monotonic()
            for key in keys:
                self._ask(key)
            rest = min(REST_FACTOR * (time.monotonic() - began), LONGEST_REST_SECONDS)
            with self._changed:
                if not self._has_new:
                    self._changed.wait(max(pause, rest))

    def _ask(self, key: int) -> None:
        """One query. The event is referred to in this frame alone, so that a forgotten one dies with it."""
        with self._changed:
            watched = self._watched.get(key)
        if watched is None:
            return
        try:
            has_fired = watched[0].query()
        except Exception:  # noqa: BLE001 - whatever the caller's event raises, its operations end for it
            self._end(key, watched, fired=False)
        else:
            if has_fired:
                self._end(key, watched, fired=True)

    def _end(self, key: int, watched: tuple[OpenedEvent, list[int]], *, fired: bool) -> None:
        with self._changed:
            if self._watched.get(key) is not watched:
                return
            del self._watched[key]
            numbers = list(watched[1])
        self._ended(numbers, fired)
