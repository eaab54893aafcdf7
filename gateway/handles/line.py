"""One engine's copies, in order, on a thread of their own.

Owns: the thread, the events it waits for, the units that are ready. Must not know: what a unit is made of, the core,
messages. ``watch``, ``put``, ``withdraw`` and ``close`` belong to the loop's thread and never wait for a copy.

Each engine has its own, so that a slow one holds nobody else up. Events are asked, not waited for: a copy behind an
event that never fires would hold up all behind it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from gateway.device.base import OpenedEvent
from gateway.handles.operation import Operation, Place
from gateway.wire.codes import CopyStatus

_log = logging.getLogger("kvgate.handles")

NICE = 10  # a copy keeps a core busy for milliseconds; the loop and the engines need one for microseconds
SHORTEST_PAUSE_SECONDS = 0.0002
LONGEST_PAUSE_SECONDS = 0.005


class Unit(NamedTuple):
    """One chunk's copy."""

    operation: Operation
    chunk: int
    place: Place


#: Opens an event's handle; raises whatever it likes.
OpenEvent = Callable[[bytes], OpenedEvent]
#: Copies one unit and says how it ended; raises whatever it likes.
Copy = Callable[[Unit], CopyStatus]


class Line:
    """The thread of one engine.

    Args:
        copy: carries out one unit.
        open_event: opens a handle.
        event_ended: told that an operation's event has fired (True), or cannot be opened or asked.
        unit_ended: told how a unit ended.
        has_ended: called last, when no copy runs and none will.
        name: of the thread.

    All three are called on this thread.
    """

    def __init__(
        self,
        *,
        copy: Copy,
        open_event: OpenEvent,
        event_ended: Callable[[Operation, bool], None],
        unit_ended: Callable[[Unit, CopyStatus], None],
        has_ended: Callable[[], None],
        name: str,
    ) -> None:
        self._copy = copy
        self._open_event = open_event
        self._event_ended = event_ended
        self._unit_ended = unit_ended
        self._has_ended = has_ended
        self._changed = threading.Condition()
        self._watched: dict[Operation, OpenedEvent | None] = {}  # None: not opened yet
        self._ready: deque[Unit] = deque()
        self._is_closed = False
        self._has_new = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def num_imported(self) -> int:
        """Events held open."""
        with self._changed:
            return sum(event is not None for event in self._watched.values())

    @property
    def num_ready(self) -> int:
        """Units that wait for the thread."""
        return len(self._ready)

    def watch(self, operation: Operation) -> None:
        """Wait for this operation's event."""
        with self._changed:
            self._watched[operation] = None
            self._wake()

    def put(self, units: list[Unit]) -> None:
        """Copy these after what is ready already."""
        with self._changed:
            self._ready.extend(units)
            self._wake()

    def withdraw(self, operation: Operation) -> list[Unit]:
        """Forget what of the operation has not begun; returns those units. One that runs comes back by itself."""
        with self._changed:
            self._watched.pop(operation, None)
            withdrawn = [unit for unit in self._ready if unit.operation is operation]
            if withdrawn:
                self._ready = deque(unit for unit in self._ready if unit.operation is not operation)
            return withdrawn

    def close(self) -> None:
        """Begin nothing more; the thread ends after the unit it is at."""
        with self._changed:
            self._is_closed = True
            self._watched.clear()
            self._ready.clear()
            self._wake()

    def is_alive(self) -> bool:
        """Whether the thread, and so perhaps a copy, still runs."""
        return self._thread.is_alive()

    def join(self, timeout_seconds: float) -> None:
        """Wait so long at most for the thread's end."""
        self._thread.join(timeout_seconds)

    def _wake(self) -> None:
        self._has_new = True
        self._changed.notify()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # a sandbox may forbid it; then copies compete with the loop
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        self._copy_until_closed()
        self._has_ended()

    def _copy_until_closed(self) -> None:
        pause = SHORTEST_PAUSE_SECONDS
        while True:
            self._ask_events()
            with self._changed:
                if self._is_closed:
                    return
                unit = self._ready.popleft() if self._ready else None
                if unit is None:
                    pause = SHORTEST_PAUSE_SECONDS if self._has_new else min(2 * pause, LONGEST_PAUSE_SECONDS)
                    if not self._has_new:
                        self._changed.wait(pause if self._watched else None)
                    self._has_new = False
            if unit is not None:
                self._unit_ended(unit, self._end_of(unit))

    def _end_of(self, unit: Unit) -> CopyStatus:
        try:
            return self._copy(unit)
        except Exception:  # noqa: BLE001 - whatever a driver raises ends this unit, and not the thread of all others
            _log.exception("copy_failed", extra={"facts": {"op": unit.operation.number}})
            return CopyStatus.COPY_ERROR

    def _ask_events(self) -> None:
        with self._changed:
            operations = list(self._watched)
        for operation in operations:
            try:
                has_fired = self._opened(operation)
            except Exception:  # noqa: BLE001 - whatever a driver raises, the operation ends for it
                self._end_event(operation, fired=False)
            else:
                if has_fired:
                    self._end_event(operation, fired=True)

    def _opened(self, operation: Operation) -> bool:
        """Whether the operation's event has fired; opens it first. One that was withdrawn has not."""
        with self._changed:
            if operation not in self._watched:
                return False
            event = self._watched[operation]
        if event is None:
            event = self._open_event(operation.event)
            with self._changed:
                if operation not in self._watched:
                    return False
                self._watched[operation] = event
        return event.query()

    def _end_event(self, operation: Operation, *, fired: bool) -> None:
        with self._changed:
            if operation not in self._watched:
                return
            del self._watched[operation]
        self._event_ended(operation, fired)
