"""A device event made by hand: it fires when the test says so, and tells how many of its kind are alive."""

import threading
import time
import weakref


class EventCounter:
    """Makes events and counts those that somebody still refers to."""

    def __init__(self) -> None:
        self._events: weakref.WeakSet[FakeEvent] = weakref.WeakSet()

    def make(self, **settings) -> "FakeEvent":
        event = FakeEvent(**settings)
        self._events.add(event)
        return event

    @property
    def live(self) -> int:
        return len(self._events)


class FakeEvent:
    """Fits ``adapter.IpcEvent``. ``error`` is raised by ``query``; ``destructor_seconds`` is what dropping it costs."""

    def __init__(self, *, fired: bool = False, error: Exception | None = None, destructor_seconds: float = 0.0) -> None:
        self._fired = threading.Event()
        self._error = error
        self._destructor_seconds = destructor_seconds
        if fired:
            self._fired.set()

    def fire(self) -> None:
        self._fired.set()

    def query(self) -> bool:
        if self._error is not None:
            raise self._error
        return self._fired.is_set()

    def ipc_handle(self) -> bytes:
        raise AssertionError("pool mode never exports an event")

    def __del__(self) -> None:
        if self._destructor_seconds:
            time.sleep(self._destructor_seconds)
