"""What the demo shows: a progress bar on a terminal, plain lines elsewhere, a table at the end.

Owns: the words on the screen. Must not know: how the figures came about. Runs on the demo's main thread.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


class Screen:
    """Shows how far the replay is. A context manager: the bar goes when it ends."""

    def __init__(self, total: int) -> None:
        self._console = Console()
        self._total = total
        self._told_tenths = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._bar = self._progress.add_task("requests", total=total, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """One line that stays."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def advance(self, requests: int, note: str) -> None:
        """So many requests are served. Without a terminal: a line each tenth of the way."""
        self._progress.update(self._bar, completed=min(requests, self._total), note=note)
        tenths = min(10, requests * 10 // self._total)
        if not self._console.is_terminal and tenths > self._told_tenths:
            self._told_tenths = tenths
            self.say(f"requests {requests}/{self._total}, {note}")

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        """The figures, one a line."""
        table = Table(show_header=False)
        table.add_column("figure")
        table.add_column("value", justify="right")
        for name, value in rows:
            table.add_row(name, value)
        self._console.print(table)
