"""What the race says: one figure of both sides beside each other, and how they compare.

Owns: the figure's type, and how it becomes a line of the benchmarks' table. Must not know: how anything is measured.
"""

from collections.abc import Sequence

import msgspec

from benchmarks.report import Machine
from benchmarks.result import Result, median, percentile

PEER = "LMCache"
#: How many of a unit are in a second; of a count, one.
_SCALES = {"µs": 1e6, "ms": 1e3, "s": 1.0}


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the race.

    Attributes:
        what: the figure, in words.
        unit: of all amounts.
        ours: kvgate's, a median where it is a time.
        peer: LMCache's.
        ours_p99: where it is sensible.
        peer_p99: the same.
        yardstick: what no cache can beat, in the same laps.
        bar: how many times as much the peer's must be; of a count, the most ours may be; None: for information.
        is_count: what should be nothing; there is no ratio.
        note: what else belongs to it.
    """

    what: str
    unit: str
    ours: float
    peer: float
    ours_p99: float | None = None
    peer_p99: float | None = None
    yardstick: float | None = None
    bar: float | None = None
    is_count: bool = False
    note: str = ""

    @property
    def ratio(self) -> float:
        """The peer's amount by ours: above 1 is in our favour."""
        return self.peer / self.ours if self.ours else float("inf")

    def result(self) -> Result:
        """For the benchmarks' table."""
        beside = "; ".join(
            filter(None, (self._side("", self.ours, self.ours_p99), self._peer(), self._bare(), self.note))
        )
        if self.is_count:
            return Result(what=self.what, measured=self.ours, unit=self.unit, bar=self.bar, beside=beside)
        return Result(what=self.what, measured=self.ratio, unit="x", bar=self.bar, is_floor=True, beside=beside)

    def _peer(self) -> str:
        return self._side(f"{PEER} ", self.peer, self.peer_p99)

    def _bare(self) -> str:
        return "" if self.yardstick is None else self._side("bare ", self.yardstick, None)

    def _side(self, who: str, amount: float, p99: float | None) -> str:
        return f"{who}{spoken(amount)} {self.unit}" + ("" if p99 is None else f", p99 {spoken(p99)}")


class Race(msgspec.Struct, frozen=True):
    """One run: what ran, where, and what came out."""

    command: str
    peer: str
    machine: Machine
    figures: list[Figure]
    remarks: list[str]


def of_times(  # noqa: PLR0917 - the two sides and what is said of them
    what: str,
    unit: str,
    ours: Sequence[float],
    peer: Sequence[float],
    bare: Sequence[float] = (),
    bar: float | None = None,
    *,
    has_p99: bool = False,
    note: str = "",
) -> Figure:
    """The medians of seconds; of many, the 99th percentiles too.

    Raises:
        ValueError: a side has no time at all.
    """
    if not ours or not peer:
        raise ValueError(f"{what}: {len(ours)} times of ours, {len(peer)} of the peer's")
    scale = _SCALES[unit]
    return Figure(
        what=what,
        unit=unit,
        ours=scale * median(ours),
        peer=scale * median(peer),
        ours_p99=scale * percentile(ours, 0.99) if has_p99 else None,
        peer_p99=scale * percentile(peer, 0.99) if has_p99 else None,
        yardstick=scale * median(bare) if bare else None,
        bar=bar,
        note=note,
    )


def markdown(race: Race) -> str:
    """The figures as a table for a page."""
    lines = ["| what | kvgate | LMCache | bare | times | bar | |", "|---|---|---|---|---|---|---|"]
    for one in race.figures:
        bare = "" if one.yardstick is None else f"{spoken(one.yardstick)} {one.unit}"
        times = "" if one.is_count else f"{spoken(one.ratio)} x"
        bar = "" if one.bar is None else f"≤ {spoken(one.bar)} {one.unit}" if one.is_count else f"≥ {spoken(one.bar)} x"
        verdict = "" if one.bar is None else "met" if one.result().is_met else "**missed**"
        ours, peer = (
            f"{spoken(amount)} {one.unit}" + ("" if p99 is None else f", p99 {spoken(p99)}")
            for amount, p99 in ((one.ours, one.ours_p99), (one.peer, one.peer_p99))
        )
        lines.append(f"| {one.what.strip()} | {ours} | {peer} | {bare} | {times} | {bar} | {verdict} |")
    return "\n".join(lines) + "\n"


def spoken(amount: float) -> str:
    """Three figures of a small number, all of a large one."""
    return f"{amount:,.{0 if amount >= 100 or amount == 0 else 1 if amount >= 10 else 2}f}"
