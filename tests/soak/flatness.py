"""Whether a series of readings is flat: the rule, for readings of any kind. Pure.

A run is cut into windows of equal length. Those of the warm-up are left out; the median of each other one stands for
it, so that a reading taken in the middle of a burst does not count. The slope is Theil and Sen's: the median of the
slopes between all pairs of windows, which a third of bad windows does not move. Sen's interval goes with it, from the
variance of Kendall's rank statistic. (P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, 1968.)

A series grows when even the lower end of that interval is above what is allowed. What is allowed is a rate, for what
would fill a machine in weeks, or one step over the whole run, for what happens once: an allocator's arena, a thread's
first connection. In an hour the rate decides, in a minute the step: a short run finds large leaks, a long run small
ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

HOUR = 3600.0
NUM_WINDOWS = 40
#: Longer than a deadline's thirty seconds and a grace: what is remembered until then has filled up.
WARM_UP_SECONDS = 45.0
SURE = 2.33  # standard deviations: one flat series of a hundred has its lower end above its true slope


@dataclass(frozen=True)
class Rule:
    """What a series may do.

    Attributes:
        unit: of its readings.
        per_hour: growth an hour that is allowed.
        step: growth over the run that is allowed, once.
        bound: no reading is above it; such a table may fill, and its slope is not looked at.
        is_empty_at_rest: its last reading, when all is over, is 0.
    """

    unit: str = ""
    per_hour: float = 0.0
    step: float = 0.0
    bound: float = math.inf
    is_empty_at_rest: bool = False


@dataclass(frozen=True)
class Verdict:
    """How a series fared: a line of the table. Slopes are an hour's."""

    name: str
    unit: str
    first: float
    last: float
    slope: float
    lowest_slope: float
    allowed: float
    problem: str = ""


def warm_up(seconds: float) -> float:
    """How much of a run of so many seconds is not looked at: a quarter, or as long as deadlines take; half at most."""
    return min(max(seconds / 4, WARM_UP_SECONDS), seconds / 2)


def slope_of(times: Sequence[float], levels: Sequence[float]) -> tuple[float, float]:
    """(Theil and Sen's slope, the lower end of Sen's interval), a second. Fewer than three points: (0, 0)."""
    num = len(times)
    if num < 3:
        return 0.0, 0.0
    slopes = sorted((levels[j] - levels[i]) / (times[j] - times[i]) for i in range(num) for j in range(i + 1, num))
    # Ties lessen the variance; without the correction the interval is wider, and never too sure.
    spread = SURE * math.sqrt(num * (num - 1) * (2 * num + 5) / 18)
    lowest = max(0, math.floor((len(slopes) - spread) / 2))
    return median(slopes), slopes[lowest]


def windowed(readings: Sequence[tuple[float, float]], seconds: float) -> tuple[list[float], list[float]]:
    """Middles and medians of the windows after the warm-up of a run of so many seconds; empty windows are left out."""
    width = seconds / NUM_WINDOWS
    windows: dict[int, list[float]] = {}
    for time, level in readings:
        windows.setdefault(min(int(time / width), NUM_WINDOWS - 1), []).append(level)
    kept = sorted(number for number in windows if number * width >= warm_up(seconds))
    return [(number + 0.5) * width for number in kept], [median(windows[number]) for number in kept]


def judge(
    name: str, rule: Rule, readings: Sequence[tuple[float, float]], seconds: float, at_rest: float | None = None
) -> Verdict:
    """Look at one series.

    Args:
        name: of the series.
        rule: what it may do.
        readings: (seconds since the run began, level).
        seconds: how long the run was.
        at_rest: the level when all is over; None: nobody looked.
    """
    times, levels = windowed(readings, seconds)
    if len(times) < NUM_WINDOWS // 4:
        return Verdict(name, rule.unit, 0, 0, 0, 0, 0, f"{len(times)} windows with readings: nothing can be said")
    slope, lowest = (HOUR * one for one in slope_of(times, levels))
    allowed = max(rule.per_hour, rule.step * HOUR / (times[-1] - times[0]))
    problem = ""
    most = max(level for _, level in readings)
    if most > rule.bound:
        problem = f"{most:,.0f}, and its bound is {rule.bound:,.0f}"
    elif math.isinf(rule.bound) and lowest > allowed:
        problem = "grows"
    elif rule.is_empty_at_rest and at_rest:
        problem = f"{at_rest:,.0f} at rest"
    return Verdict(name, rule.unit, levels[0], levels[-1], slope, lowest, allowed, problem)
