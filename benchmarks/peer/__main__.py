"""``python -m benchmarks.peer``: kvgate and LMCache's multi-process server side by side, on this machine's CPU.

Owns: what becomes of the figures: a JSON file, a table (also as Markdown, beside it), a picture. Must not know: how
they are measured.

Exit status: 0 when every bar was met, 1 when one was missed, 2 for wrong usage or no environment to race in.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks import report
from benchmarks.peer.course import Course
from benchmarks.peer.figures import Race, markdown
from benchmarks.peer.told import PEER_PYTHON
from tests.support.daemon import REPOSITORY

RESULTS = REPOSITORY / "benchmarks" / "results"
PEER = "LMCache 0.5.6"
FILE_WIDTH = 200


def main() -> int:
    """Run the race once."""
    words = _arguments().parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH)
    if not PEER_PYTHON.exists():
        console.print("there is no .venv-peer: run scripts/setup-peer, or `make race`")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what it started, as Ctrl-C does
    load_before = os.getloadavg()[0]
    began = time.monotonic()
    course = Course(words.quick, lambda part: console.print(f"{time.monotonic() - began:4.0f} s  {part}", style="dim"))
    course.run()
    command = " ".join(["python -m benchmarks.peer", *sys.argv[1:]])
    machine = report.machine(load_before)
    race = Race(command, PEER, machine, course.figures, course.remarks)
    words.json.parent.mkdir(parents=True, exist_ok=True)
    words.json.write_bytes(msgspec.json.format(msgspec.json.encode(race), indent=2) + b"\n")
    words.json.with_suffix(".md").write_text(markdown(race), encoding="utf-8")
    made = report.Report(command, machine, {"race": [figure.result() for figure in race.figures]}, [])
    console.print(report.table(made))
    for remark in race.remarks:
        console.print(remark)
    subprocess.run([PEER_PYTHON, "-m", "benchmarks.peer.plot", words.json, words.plot], cwd=REPOSITORY, check=True)
    console.print(f"{words.json} and {words.plot}")
    return 1 if made.num_missed else 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peer", description=f"kvgate beside {PEER}.")
    parser.add_argument("--quick", action="store_true", help="fewer laps: to see that it runs, not to quote")
    parser.add_argument("--json", type=Path, default=RESULTS / "race.json", metavar="FILE", help="the figures")
    parser.add_argument("--plot", type=Path, default=RESULTS / "race.png", metavar="FILE", help="the picture")
    return parser


if __name__ == "__main__":
    sys.exit(main())
