"""``python -m benchmarks``: every figure the project promises, measured here and now.

Owns: which rows run, in what order, and what becomes of their results. Must not know: how a row measures.

Exit status: 0 when every bar was met, 1 when one was missed or a row failed, 2 for wrong usage.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from benchmarks import report
from benchmarks.result import Result
from benchmarks.row import Line, Results

#: Modules of ``benchmarks.rows``, in the order of the table. One line each would be the table's own.
ROWS = (
    "ping",
    "lookup_load",
    "lookup_prompt",
    "copies",
    "handle_copies",
    "copy_busy",
    "submit",
    "get_finished",
    "restart",
    "lookup_busy",
    "operators",
    "deaths",
    "memory",
    "start",
)
#: The same for those that need a vLLM, and so an environment with one.
VLLM_ROWS = ("vllm_first_token", "vllm_one_process", "vllm_steps")
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"

#: Of the table where nobody says how wide the terminal is.
FILE_WIDTH = 160


class RowFailedError(Exception):
    """A row ended without results."""


def main() -> int:
    """Run the rows that were asked for."""
    words = _arguments().parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH)
    load_before = os.getloadavg()[0]
    rows: dict[str, list[Result]] = {}
    failed: list[str] = []
    names = words.only or (VLLM_ROWS if words.vllm else ROWS)
    columns = (TextColumn("{task.description:<16}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, refresh_per_second=1) as progress:  # drawing costs what we measure
        for name in names:
            try:
                rows[name] = _run(name, progress, progress.add_task(name, total=1.0), is_quick=words.quick)
            except RowFailedError as error:
                console.print(f"[red]{name}[/red]: {error}")
                failed.append(name)
    made = report.Report(" ".join(["python -m benchmarks", *sys.argv[1:]]), report.machine(load_before), rows, failed)
    console.print(report.table(made))
    latest = RESULTS / ("latest.json" if set(names).isdisjoint(VLLM_ROWS) else "latest-vllm.json")
    for path in filter(None, (latest, words.json)):
        made.write(path)
    return 1 if made.num_missed or failed else 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure what the project promises.")
    rows = (*ROWS, *VLLM_ROWS)
    parser.add_argument("--vllm", action="store_true", help="what a vLLM in this environment gains and loses by kvgate")
    parser.add_argument("--only", action="append", choices=rows, metavar="ROW", help=f"one of {', '.join(rows)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: to see that it runs, not to quote")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write the report here too, beside {RESULTS.name}")
    return parser


def _run(name: str, progress: Progress, task: TaskID, *, is_quick: bool) -> list[Result]:
    """One row in its own process."""
    command = [sys.executable, "-m", f"benchmarks.rows.{name}", *(["--quick"] if is_quick else [])]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for text in process.stdout:
            line = msgspec.json.decode(text, type=Line)
            if isinstance(line, Results):
                progress.update(task, completed=1.0)
                return line.results
            progress.update(task, completed=line.share)
    raise RowFailedError(f"it ended with {process.returncode}")


if __name__ == "__main__":
    sys.exit(main())
