"""A row's own process: it measures, tells how far it is, and prints its results.

Owns: the lines between a row and the table that runs it. Must not know: what is measured.

Each row has a process of its own, so that no row inherits another's memory, threads or garbage.
"""

import os
import sys
from collections.abc import Callable
from typing import TextIO

import msgspec

from benchmarks.result import Result


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """So much of the row is done, from 0 to 1."""

    share: float


class Results(msgspec.Struct, frozen=True, tag="results"):
    """The row is done."""

    results: list[Result]


Line = Progress | Results


class Plan:
    """How much to measure, and whom to tell."""

    def __init__(self, lines: TextIO, *, is_quick: bool) -> None:
        self.is_quick = is_quick
        self._lines = lines

    def rounds(self, full: int, quick: int) -> int:
        """How many rounds."""
        return quick if self.is_quick else full

    def progress(self, done: float, total: float) -> None:
        """Tell how far it is."""
        self.say(Progress(done / total))

    def say(self, line: Line) -> None:
        """One line to whoever runs the row."""
        self._lines.write(msgspec.json.encode(line).decode() + "\n")
        self._lines.flush()


def main(run: Callable[[Plan], list[Result]]) -> None:
    """Run one row as this process."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no line of ours
    plan = Plan(lines, is_quick="--quick" in sys.argv[1:])
    plan.say(Results(run(plan)))
