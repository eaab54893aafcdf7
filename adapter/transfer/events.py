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
from gateway.device.patience import Patience

#: Called on the polling thread with the operations that waited for an event, and whether it fired (False: it raised).
Ended = Callable[[Sequence[int], bool], None]


class EventWatcher:
    """Asks each watched event until it fires or raises; one that is watched for many operations is asked once."""

    def __init__(self, ended: Ended, name: str) -> None:
        self._ended = ended
        self._watched: dict[int, tuple[OpenedEvent, list[int]]] = {}  # by the event's identity
        self._patience: Patience[int] = Patience()  # by the same
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
            self._patience.begin(id(event), time.monotonic())
            self._has_new = True
            self._changed.notify()

    def __len__(self) -> int:
        return len(self._watched)

    def forget(self, event: OpenedEvent) -> None:
        """Stop asking. The reference held here is gone afterwards, or with the query that is under way."""
        with self._changed:
            self._watched.pop(id(event), None)
            self._patience.end(id(event))

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
        while True:
            with self._changed:
                if not self._has_new and not self._is_closed:
                    self._changed.wait(self._patience.pause(time.monotonic()))
                if self._is_closed:
                    return
                self._has_new = False
                keys = self._patience.take_due(time.monotonic())
            for key in keys:
                self._ask(key)
            with self._changed:
                self._patience.asked(time.monotonic())

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
            self._patience.end(key)
            numbers = list(watched[1])
        self._ended(numbers, fired)
