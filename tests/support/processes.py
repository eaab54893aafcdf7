"""Processes of this machine, as /proc tells of them: for tests that look whether one is left, and end it."""

import contextlib
import os
import signal
from pathlib import Path

from tests.support.poll import until

_TRACKER = b"multiprocessing.resource_tracker"


def state(pid: int) -> str:
    """One letter, as in ``ps``; ``gone`` where there is no such process."""
    return (_stat(pid) or ["gone"])[0]


def of_session(session: int) -> list[int]:
    """Its processes that live; a zombie does not."""
    return [pid for pid in _pids() if _session(pid) == session]


def end_session(session: int, seconds: float = 10.0) -> None:
    """Kill what is left of a session, in a way that leaves no shared memory.

    What Python's multiprocessing makes in /dev/shm is removed by its resource tracker, a process of the same session,
    when all that use it are gone: it is not killed, but waited for.

    Raises:
        AssertionError: something is left after so long; it is killed all the same.
    """
    try:
        until(lambda: not [_kill(pid) for pid in of_session(session) if not _is_tracker(pid)], seconds, "all killed")
        until(lambda: not of_session(session), seconds, "resource tracker gone")
    finally:
        for pid in of_session(session):
            _kill(pid)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; empty when the process is gone."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _session(pid: int) -> int:
    """The session of a live process; 0 for one that is gone or a zombie."""
    fields = _stat(pid)
    return int(fields[3]) if fields and fields[0] != "Z" else 0


def _is_tracker(pid: int) -> bool:
    try:
        return _TRACKER in (Path("/proc") / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _kill(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return pid
