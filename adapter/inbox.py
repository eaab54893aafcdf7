"""Work for the link thread, handed over by any thread, with a bell that wakes it.

Owns: two queues of calls, those that are urgent and those that are not, and an eventfd. Must not know: what the calls
do. ``post`` runs on any thread and never waits; everything else belongs to whoever has the link's turn.
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
    """Calls, the urgent ones first, else in the order they were posted. Bounded by those who post."""

    def __init__(self) -> None:
        #: Readable when somebody posted to a sleeper: to be waited for together with sockets.
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._urgent: deque[Callable[[], None]] = deque()
        self._others: deque[Callable[[], None]] = deque()
        self._is_awake = False  # somebody takes calls, or is rung for: no post need ring

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    @property
    def is_empty(self) -> bool:
        """Whether no call waits."""
        return not self._urgent and not self._others

    @property
    def num_others(self) -> int:
        """Calls that wait and are not urgent."""
        return len(self._others)

    def post(self, call: Callable[[], None], *, is_urgent: bool = True) -> None:
        """Let this call be made soon; one that is not urgent, whenever somebody is awake."""
        if is_urgent:
            self._urgent.append(call)
            self.ring()
        else:
            self._others.append(call)

    def ring(self) -> None:
        """Wake whoever sleeps."""
        if not self._is_awake:
            self._is_awake = True
            _ring(self.bell, 1)

    def take(self, *, only_urgent: bool = False) -> Callable[[], None] | None:
        """The next call (of the urgent ones); None: there is none."""
        if self._urgent:
            return self._urgent.popleft()
        return self._others.popleft() if self._others and not only_urgent else None

    def wake(self) -> None:
        """Calls are taken from now on: no post need ring."""
        self._is_awake = True

    def may_sleep(self) -> bool:
        """No more calls are taken for now. False: an urgent one waits, sleep not."""
        self._is_awake = False  # before the last look: a post that comes now rings
        with contextlib.suppress(BlockingIOError):  # it was not rung, or is about to be: that wakes once for nothing
            os.eventfd_read(self.bell)
        return not self._urgent

    def close(self) -> None:
        """Nobody posts any more."""
        os.close(self.bell)
