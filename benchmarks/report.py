"""What comes out: one readable table and one JSON file.

Owns: both, and the facts of the machine in them. Must not know: how anything is measured.
"""

import os
import platform
from pathlib import Path

import msgspec
from rich.table import Table

from benchmarks.result import Result


class Machine(msgspec.Struct, frozen=True):
    """Where and under what load it was measured."""

    processor: str
    cores: int
    kernel: str
    python: str
    load_before: float
    load_after: float


class Report(msgspec.Struct, frozen=True):
    """One run of the benchmarks: what ran, where, and what came out, by row."""

    command: str
    machine: Machine
    rows: dict[str, list[Result]]
    failed: list[str]

    @property
    def num_missed(self) -> int:
        """Bars that do not hold."""
        return sum(not result.is_met for results in self.rows.values() for result in results)

    def write(self, path: Path) -> None:
        """As JSON, with what is read from the fields spelled out."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


def machine(load_before: float) -> Machine:
    """This machine."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
        python=platform.python_version(),
        load_before=round(load_before, 1),
        load_after=round(os.getloadavg()[0], 1),
    )


def table(report: Report) -> Table:
    """For a terminal."""
    facts = report.machine
    made = Table(
        title=f"{facts.processor}, {facts.cores} cores, Linux {facts.kernel}, Python {facts.python}; "
        f"load {facts.load_before} before, {facts.load_after} after"
    )
    for heading in ("what", "measured", "bar", ""):
        made.add_column(heading, justify="right" if heading in ("measured", "bar") else "left")
    made.add_column("beside", style="dim")
    for results in report.rows.values():
        for result in results:
            made.add_row(
                result.what, _amount(result.measured, result.unit), _bar(result), _verdict(result), result.beside
            )
    for name in report.failed:
        made.add_row(f"the row {name}", "", "", "[red]failed[/red]", "its own words are above")
    return made


def _bar(result: Result) -> str:
    if result.bar is None:
        return ""
    return f"{'≥' if result.is_floor else '≤'} {_amount(result.bar, result.unit)}"


def _verdict(result: Result) -> str:
    if result.bar is None:
        return ""
    return "[green]met[/green]" if result.is_met else "[red]missed[/red]"


def _amount(value: float, unit: str) -> str:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
