"""Saying something again and again, but not too often. Pure; the time is passed in."""

import math


class Throttle:
    """Lets one of many through in each interval, and tells it how many were held back before it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next_at = -math.inf
        self._held_back = 0

    def let_through(self, now: float) -> int | None:
        """None: hold this one back. A number: let it through; so many were held back since the last."""
        if now < self._next_at:
            self._held_back += 1
            return None
        self._next_at = now + self._seconds
        held_back, self._held_back = self._held_back, 0
        return held_back
