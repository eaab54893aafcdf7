"""What may interrupt the loop's wait: signals, and results of worker threads.

Owns: one socket pair, the signal handlers of this process, and the queue of posted steps. Must not know: what they
mean. ``post`` may be called from any thread; everything else belongs to the main thread.
"""

import contextlib
import select
import signal
import socket
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Self

_POSTED = 0  # no signal has this number


class Wakeup:
    """A readable descriptor that says: there is something to take."""

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        """Catch these signals from now on until ``close``: they become readable here and do nothing else."""
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        # A handler in Python, though it does nothing: only such signals are written to the wake-up descriptor.
        self._previous = {number: signal.signal(number, _leave_to_the_loop) for number in signals}

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._reader.fileno()

    def post(self, step: Callable[[], None]) -> None:
        """Have ``step`` run on the loop's thread. Any thread; never blocks."""
        self._posted.put(step)
        # A full buffer wakes the loop just as well.
        with contextlib.suppress(BlockingIOError):
            self._writer.send(bytes([_POSTED]))

    def wait(self, seconds: float) -> bool:
        """Wait until there is something to take, for so long at most."""
        readable, _, _ = select.select([self._reader], [], [], seconds)
        return bool(readable)

    def take(self) -> tuple[list[int], list[Callable[[], None]]]:
        """Signals that came, and steps that were posted, in order; empties both."""
        received = bytearray()
        with contextlib.suppress(BlockingIOError):
            while True:
                received += self._reader.recv(4096)
        steps = [self._posted.get_nowait() for _ in range(self._posted.qsize())]
        return [number for number in received if number != _POSTED], steps

    def close(self) -> None:
        """Give signals back to whoever had them, and close the descriptors."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_fd)
        self._reader.close()
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _leave_to_the_loop(number: int, frame: FrameType | None) -> None:
    del number, frame
