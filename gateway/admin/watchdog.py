"""The watchdog: a core whose loop is silent for too long is killed, so that hung becomes dead.

Owns: the decision, and the thread that asks and acts. Must not know: HTTP, the event loop; it has a thread and a
connection of its own, so that nothing the admin API does can keep it from its work.

A dead daemon is a plain case for everyone: engines settle on the kernel's proof of its death, a supervisor starts it
anew and it comes back warm. A hung one is not. So the watchdog would rather kill than wait, but never by mistake: where
its own timer was late the machine was paused or throttled, which says nothing about the core.
"""

import logging
import os
import signal
import threading
import time
from enum import Enum, auto
from pathlib import Path

from gateway.client import GatewayClient, GatewayRefused, GatewayUnreachable
from gateway.metrics.process import stuck_where
from gateway.wire.messages import Ping, SnapshotReply, SnapshotRequest

log = logging.getLogger("kvgate.watchdog")

BEAT_SECONDS = 1.0
MAX_LATE_SECONDS = 1.0
_ANSWER_SECONDS = 0.8  # below a beat: asking is never why a beat is late
_BEATS_PER_SNAPSHOT = 10
_STACKS_SECONDS = 1.0  # for the core to write its stacks, if it still can


class Verdict(Enum):
    """What a beat of the watchdog comes to."""

    FINE = auto()
    SILENT = auto()  # no answer, not for long enough yet
    STARTED_AGAIN = auto()  # our own timer was late: the count begins anew
    HUNG = auto()


class SilenceCount:
    """How long the core has been silent, as far as we were there to hear it. Pure: the clock is passed in."""

    def __init__(self, limit_seconds: float, now: float) -> None:
        self._limit_seconds = limit_seconds
        self._silent_since = now
        self._next_beat = now + BEAT_SECONDS

    def beat(self, now: float, *, answered: bool) -> Verdict:
        """Count one beat; it is to come once each ``BEAT_SECONDS``."""
        is_late = now - self._next_beat > MAX_LATE_SECONDS
        self._next_beat = now + BEAT_SECONDS
        if answered or is_late:
            self._silent_since = now
            return Verdict.FINE if answered else Verdict.STARTED_AGAIN
        return Verdict.HUNG if self.silent_seconds(now) >= self._limit_seconds else Verdict.SILENT

    def silent_seconds(self, now: float) -> float:
        """Since the last answer, or since the count began anew."""
        return now - self._silent_since


class Watchdog:
    """Watches one core from a thread; ``stop`` ends it within a beat."""

    def __init__(self, admin_socket: Path, core_pid: int, limit_seconds: float) -> None:
        self._client = GatewayClient(admin_socket, timeout_seconds=_ANSWER_SECONDS, software="kvgate-watchdog")
        self._core_pid = core_pid
        self._limit_seconds = limit_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._last_seen = "nothing seen of it yet"

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        count = SilenceCount(self._limit_seconds, time.monotonic())
        beats = 0
        with self._client:
            while not self._stopping.is_set():
                began = time.monotonic()
                answered = self._ask(wants_counts=beats % _BEATS_PER_SNAPSHOT == 0)
                beats += 1
                now = time.monotonic()
                match count.beat(now, answered=answered):
                    case Verdict.STARTED_AGAIN:
                        log.warning("watchdog_started_again", extra={"facts": {"reason": "paused or throttled"}})
                    case Verdict.HUNG:
                        self._kill(count.silent_seconds(now))
                        return
                    case Verdict.FINE | Verdict.SILENT:
                        pass
                self._stopping.wait(max(0.0, BEAT_SECONDS - (time.monotonic() - began)))

    def _ask(self, *, wants_counts: bool) -> bool:
        try:
            if wants_counts:
                reply = self._client.request(SnapshotRequest(number=0))
                if isinstance(reply, SnapshotReply):
                    self._last_seen = _counts(reply)
            else:
                self._client.request(Ping(number=0))
        except GatewayUnreachable:
            return False
        except GatewayRefused:
            return True  # whatever it says, its loop turns
        return True

    def _kill(self, silent_seconds: float) -> None:
        facts = {
            "core_pid": self._core_pid,
            "silent_seconds": round(silent_seconds, 1),
            "watchdog_seconds": self._limit_seconds,
            "process": stuck_where(self._core_pid),
            "last_seen": self._last_seen,
        }
        log.error("core_silent", extra={"facts": facts})
        self._signal(signal.SIGUSR2)  # the core's stacks, to its own stderr
        self._stopping.wait(_STACKS_SECONDS)
        log.error("core_killed", extra={"facts": {"core_pid": self._core_pid, "reason": "hung becomes dead"}})
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Only to our own parent: while it is that, its pid cannot have become another's."""
        if os.getppid() == self._core_pid:
            os.kill(self._core_pid, number)


def _counts(snapshot: SnapshotReply) -> str:
    engines = snapshot.engines
    return (
        f"{snapshot.state}, {snapshot.health}, loop age {snapshot.loop_age_seconds:.2f} s, "
        f"{len(engines)} engines, {sum(e.pending_stores for e in engines)} pending stores, "
        f"{sum(e.pending_retrieves for e in engines)} pending retrieves, "
        f"{snapshot.slots.ready} chunks ready, {snapshot.slots.writing} being written"
    )
