"""What the kernel says of one process of ours.

Owns: reading ``/proc/<pid>``. Must not know: metrics, the core. Runs on any thread; reads a few small files.
"""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessStats:
    """One process at one moment. ``cpu_seconds`` is user and system time since it began."""

    cpu_seconds: float
    resident_bytes: int
    open_fds: int
    threads: int


def read_process(pid: int, proc: Path = Path("/proc")) -> ProcessStats | None:
    """The process now, or None when it is gone, or belongs to another user.

    Fields of ``stat`` are counted behind the command's closing parenthesis: the command may hold spaces (proc(5)).
    """
    directory = proc / str(pid)
    try:
        fields = (directory / "stat").read_text("ascii", "replace").rpartition(")")[2].split()
        open_fds = sum(1 for _ in (directory / "fd").iterdir())
    except OSError:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    return ProcessStats(
        cpu_seconds=(int(fields[11]) + int(fields[12])) / ticks,
        resident_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        open_fds=open_fds,
        threads=int(fields[17]),
    )


def stuck_where(pid: int, proc: Path = Path("/proc")) -> str:
    """The process's state and the kernel function it sleeps in, for a log line: ``"T (stopped) in do_signal_stop"``."""
    directory = proc / str(pid)
    try:
        status = (directory / "status").read_text("ascii", "replace")
    except OSError:
        return "gone"
    state = next((line.partition(":")[2].strip() for line in status.splitlines() if line.startswith("State:")), "?")
    try:
        wchan = (directory / "wchan").read_text("ascii", "replace").strip()
    except OSError:
        wchan = ""
    return f"{state} in {wchan}" if wchan not in ("", "0") else state
