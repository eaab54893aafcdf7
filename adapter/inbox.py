"""Work for the link thread, handed over by any thread, with a bell that wakes it.

Owns: a queue of calls and an eventfd. Must not know: what the calls do. ``post`` runs on any thread and never waits;
everything else on the link thread.
"""

import contextlib
import ctypes
import os
from collections import deque
from collections.abc import Callable

#: ``os.eventfd_write`` lets go of the interpreter's lock around a call that never waits, and the thread that it wakes
#: takes it: the engine's thread would stand still in the middle of a submit until the link thread has nothing to do.
_ring = ctypes.PyDLL(None).eventfd_write
_ring.argtypes = (ctypes.c_int, ctypes.c_uint64)


class Inbox:
    """Calls in the order they were posted. What may be posted is bounded by those who post."""

    def __init__(self) -> None:
        #: Readable while there may be work: to be polled together with sockets.
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._calls: deque[Callable[[], None]] = deque()
        self._is_rung = False  # spares a system call a post while the thread has not looked yet

    @property
    def is_empty(self) -> bool:
        """Whether no call waits."""
        return not self._calls

    def post(self, call: Callable[[], None]) -> None:
        """Let the link thread make this call soon."""
        self._calls.append(call)
        if not self._is_rung:
            self._is_rung = True
            _ring(self.bell, 1)

    def take(self) -> Callable[[], None] | None:
        """The next call; None: there is none. The bell is silent afterwards until somebody posts."""
        if self._calls:
            return self._calls.popleft()
        if self._is_rung:
            self._is_rung = False  # before the last look: a post that comes now rings again
            with contextlib.suppress(BlockingIOError):  # marked, not written yet: it wakes us once for nothing
                os.eventfd_read(self.bell)
            if self._calls:
                return self._calls.popleft()
        return None

    def close(self) -> None:
        """Nobody posts any more."""
        os.close(self.bell)
