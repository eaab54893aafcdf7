"""Work for the link thread, handed over by any thread, with a bell that wakes it.

Owns: a queue of calls and an eventfd. Must not know: what the calls do. ``post`` runs on any thread and never waits;
everything else belongs to whoever has the link's turn.
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
        #: Readable when somebody posted to a sleeper: to be waited for together with sockets.
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._calls: deque[Callable[[], None]] = deque()
        self._is_awake = False  # somebody takes calls, or is rung for: no post need ring

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def is_empty(self) -> bool:
        """Whether no call waits."""
        return not self._calls

    def post(self, call: Callable[[], None], *, is_urgent: bool = True) -> None:
        """Let this call be made soon; one that is not urgent, whenever somebody is awake."""
        self._calls.append(call)
        if is_urgent:
            self.ring()

    def ring(self) -> None:
        """Wake whoever sleeps."""
        if not self._is_awake:
            self._is_awake = True
            _ring(self.bell, 1)

    def take(self) -> Callable[[], None] | None:
        """The next call; None: there is none."""
        return self._calls.popleft() if self._calls else None

    def wake(self) -> None:
        """Calls are taken from now on: no post need ring."""
        self._is_awake = True

    def may_sleep(self) -> bool:
        """No more calls are taken for now. False: one waits, sleep not."""
        self._is_awake = False  # before the last look: a post that comes now rings
        with contextlib.suppress(BlockingIOError):  # it was not rung, or is about to be: that wakes once for nothing
            os.eventfd_read(self.bell)
        return not self._calls

    def close(self) -> None:
        """Nobody posts any more."""
        os.close(self.bell)
