"""What a benchmark says: one figure against its bar, and what it was measured beside.

Owns: the result's type and the few statistics all rows use. Must not know: what is measured.
"""

import statistics
from collections.abc import Sequence

import msgspec


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table.

    Attributes:
        what: the figure, in words.
        measured: its value; a ratio where the bar is relative to a yardstick.
        unit: of ``measured`` and ``bar``; ``x`` is a ratio.
        bar: what is promised; None: told for information only.
        is_floor: the bar is a least value, not a most.
        beside: the absolute figures behind it, the yardstick's included.
    """

    what: str
    measured: float
    unit: str
    bar: float | None = None
    is_floor: bool = False
    beside: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the bar holds; a result without one always does."""
        if self.bar is None:
            return True
        return self.measured >= self.bar if self.is_floor else self.measured <= self.bar


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return statistics.median(values)


def micro(seconds: float) -> str:
    """A time for ``beside``."""
    return f"{seconds * 1e6:,.0f} µs"
