"""One engine's copies, in order, on a thread of their own.

Owns: the thread, the units that are ready. Must not know: what a unit is made of, what it waited for (``EventWatch``),
the core, messages. ``put``, ``withdraw`` and ``close`` belong to the loop's thread and never wait for a copy.

Each engine has its own, so that a slow one holds nobody else up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from gateway.handles.operation import Operation, Place
from gateway.wire.codes import CopyStatus

_log = logging.getLogger("kvgate.handles")

NICE = 10  # a copy keeps a core busy for milliseconds; the loop and the engines need one for microseconds


class Unit(NamedTuple):
    """One chunk's copy."""

    operation: Operation
    chunk: int
    place: Place


#: Copies one unit and says how it ended; raises whatever it likes.
Copy = Callable[[Unit], CopyStatus]


class Line:
    """The thread of one engine.

    Args:
        copy: carries out one unit.
        unit_ended: told how a unit ended.
        has_ended: called last, when no copy runs and none will.
        name: of the thread.

    All of them are called on this thread.
    """

    def __init__(
        self,
        *,
        copy: Copy,
        unit_ended: Callable[[Unit, CopyStatus], None],
        has_ended: Callable[[], None],
        name: str,
    ) -> None:
        self._copy = copy
        self._unit_ended = unit_ended
        self._has_ended = has_ended
        self._changed = threading.Condition()
        self._ready: deque[Unit] = deque()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def num_ready(self) -> int:
        """Units that wait for the thread."""
        return len(self._ready)

    def put(self, units: list[Unit]) -> None:
        """Copy these after what is ready already."""
        with self._changed:
            self._ready.extend(units)
            self._changed.notify()

    def withdraw(self, operation: Operation) -> list[Unit]:
        """Forget what of the operation has not begun; returns those units. One that runs comes back by itself."""
        with self._changed:
            withdrawn = [unit for unit in self._ready if unit.operation is operation]
            if withdrawn:
                self._ready = deque(unit for unit in self._ready if unit.operation is not operation)
            return withdrawn

    def close(self) -> None:
        """Begin nothing more; the thread ends after the unit it is at."""
        with self._changed:
            self._is_closed = True
            self._ready.clear()
            self._changed.notify()

    def is_alive(self) -> bool:
        """Whether the thread, and so perhaps a copy, still runs."""
        return self._thread.is_alive()

    def join(self, timeout_seconds: float) -> None:
        """Wait so long at most for the thread's end."""
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # a sandbox may forbid it; then copies compete with the loop
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        self._copy_until_closed()
        self._has_ended()

    def _copy_until_closed(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._ready)
                if self._is_closed:
                    return
                unit = self._ready.popleft()
            self._unit_ended(unit, self._end_of(unit))

    def _end_of(self, unit: Unit) -> CopyStatus:
        try:
            return self._copy(unit)
        except Exception:  # noqa: BLE001 - whatever a driver raises ends this unit, and not the thread of all others
            _log.exception("copy_failed", extra={"facts": {"op": unit.operation.number}})
            return CopyStatus.COPY_ERROR
