"""When to ask an event again that has not fired yet.

Owns: that schedule, for many at once. Must not know: events, threads. Pure; the time is passed in (monotonic seconds).

An event is asked again after a twentieth of the time it has waited. So what fires is seen soon, measured by how long it
took, and a hundred that do not fire cost an engine's steps nothing. Those that are nearly due are asked with those that
are: whoever asks wakes once for a batch and not once for each. It rests several times longer than it asked: a thousand
events cost a tenth of a core, not all of it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

SHARE_OF_WAIT = 1 / 20
SHORTEST_PAUSE_SECONDS = 0.0002
LONGEST_PAUSE_SECONDS = 0.05
REST_FACTOR = 9
LONGEST_REST_SECONDS = 0.05

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Wait:
    since: float
    nearly_due: float
    due: float


class Patience(Generic[Key]):
    """What is waited for, by key."""

    def __init__(self) -> None:
        self._waits: dict[Key, _Wait] = {}
        self._began = 0.0
        self._rested = 0.0

    def __len__(self) -> int:
        return len(self._waits)

    def begin(self, key: Key, now: float) -> None:
        """Ask this one at once, and again until ``end``."""
        self._waits[key] = _Wait(now, now, now)

    def end(self, key: Key) -> None:
        """Ask it no more. Harmless when repeated."""
        self._waits.pop(key, None)

    def take_due(self, now: float) -> list[Key]:
        """Whom to ask now, the one that began first in front; their next times are set. ``asked`` when it is done."""
        self._began = now
        found = [(key, wait) for key, wait in self._waits.items() if wait.nearly_due <= now]
        for _, wait in found:
            pause = min(max(SHARE_OF_WAIT * (now - wait.since), SHORTEST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
            wait.nearly_due, wait.due = now + pause / 2, now + pause
        return [key for key, _ in found]

    def asked(self, now: float) -> None:
        """Those that were due have been asked."""
        self._rested = now + min(REST_FACTOR * (now - self._began), LONGEST_REST_SECONDS)

    def pause(self, now: float) -> float | None:
        """Seconds until somebody is due, and a rest is over; None: nobody is waited for."""
        if not self._waits:
            return None
        return max(0.0, min(wait.due for wait in self._waits.values()) - now, self._rested - now)
