"""The events of one engine that its copies wait for, on a thread of their own.

Owns: the thread, the events it holds open. Must not know: what is copied, the core, messages. ``watch``, ``withdraw``
and ``close`` belong to the loop's thread and never wait for a device.

Events are asked, not waited for: one that never fires would hold up all others. Not on the copies' thread either: that
one is niced, and a niced thread that asks often is put aside with the interpreter's lock in its hand on a busy machine,
for all other threads of the daemon to wait for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gateway.device.base import OpenedEvent
from gateway.device.patience import Patience
from gateway.handles.operation import Operation

#: Opens an event's handle; raises whatever it likes.
OpenEvent = Callable[[bytes], OpenedEvent]
#: Told that an operation's event has fired (True), or cannot be opened or asked.
EventEnded = Callable[[Operation, bool], None]


class EventWatch:
    """The thread that asks one engine's events.

    Args:
        open_event: opens a handle.
        ended: called once for each operation that was not withdrawn; on this thread, as is ``open_event``.
        name: of the thread.
    """

    def __init__(self, open_event: OpenEvent, ended: EventEnded, name: str) -> None:
        self._open_event = open_event
        self._ended = ended
        self._changed = threading.Condition()
        self._watched: dict[Operation, OpenedEvent | None] = {}  # None: not opened yet
        self._patience: Patience[Operation] = Patience()
        self._is_closed = False
        self._has_new = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def num_open(self) -> int:
        """Events held open."""
        with self._changed:
            return sum(event is not None for event in self._watched.values())

    def watch(self, operation: Operation) -> None:
        """Wait for this operation's event."""
        with self._changed:
            self._watched[operation] = None
            self._patience.begin(operation, time.monotonic())
            self._wake()

    def withdraw(self, operation: Operation) -> None:
        """Let go of this operation's event, if it is still waited for."""
        with self._changed:
            self._watched.pop(operation, None)
            self._patience.end(operation)

    def close(self) -> None:
        """Let go of all; the thread ends soon."""
        with self._changed:
            self._is_closed = True
            self._watched.clear()
            self._wake()

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()

    def _wake(self) -> None:
        self._has_new = True
        self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._has_new:
                    self._changed.wait(self._patience.pause(time.monotonic()))
                if self._is_closed:
                    return
                self._has_new = False
            self._ask_those_due()

    def _ask_those_due(self) -> None:  # in a frame of its own: one that is over is not kept while the thread sleeps
        with self._changed:
            operations = self._patience.take_due(time.monotonic())
        for operation in operations:
            self._ask(operation)
        with self._changed:
            self._patience.asked(time.monotonic())

    def _ask(self, operation: Operation) -> None:
        try:
            has_fired = self._opened(operation)
        except Exception:  # noqa: BLE001 - whatever a driver raises, the operation ends for it
            self._end(operation, fired=False)
        else:
            if has_fired:
                self._end(operation, fired=True)

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

    def _end(self, operation: Operation, *, fired: bool) -> None:
        with self._changed:
            if operation not in self._watched:
                return
            del self._watched[operation]
            self._patience.end(operation)
        self._ended(operation, fired)
