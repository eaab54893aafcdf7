"""Events in shared memory, with the lifetime law of a device's.

Owns: the files behind them. Must not know: what an event orders, devices. Any thread.

An event is one file of one byte in ``events/`` of the gateway's directory; its name is the handle. While the producer's
object lives the file is there to be opened; with the object the name goes, and who has opened the file before keeps
reading it. That is what a device's driver does, so that a program that drops its event too early fails here as it would
there.

The producer holds a lock on its file: the kernel gives it up at the end of the process, whatever that end is. A file
whose lock is free belongs to a dead producer, and ``sweep`` takes it away.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from pathlib import Path
from typing import Self

from gateway.device.base import DeviceError

#: Where events lie in the gateway's directory.
DIRECTORY = "events"
#: Between two looks of ``wait``.
PAUSE_SECONDS = 0.0005
#: A younger file may not be locked yet.
MIN_SWEPT_AGE_SECONDS = 5.0
#: Files looked at in one sweep.
MAX_SWEPT = 1024

_NAME = re.compile(rb"[0-9a-f]{32}")
_FIRED = b"\1"


class HostEvent:
    """An event of this process, not fired yet; ``record`` fires it. ``close``, or its end, takes its handle back.

    Args:
        run_dir: the gateway's shared directory.

    Raises:
        OSError: no file can be made there.
    """

    def __init__(self, run_dir: str | os.PathLike[str]) -> None:
        self._process = os.getpid()
        directory = Path(run_dir) / DIRECTORY
        self._path = directory / secrets.token_hex(16)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        if directory.stat().st_mode & stat.S_IWGRP:  # peers are of the directory's group, whatever the umask says
            os.fchmod(self._fd, 0o660)

    def record(self) -> None:
        """Fire it: what comes before in this process's program is done."""
        os.pwrite(self._fd, _FIRED, 0)

    def query(self) -> bool:
        """Whether it has fired."""
        return _has_fired(self._fd)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait so long at most until it has fired. Returns whether it has."""
        return _wait(self._fd, timeout_seconds)

    def ipc_handle(self) -> bytes:
        """What another process opens it with, while this object lives."""
        return os.fsencode(self._path.name)

    def close(self) -> None:
        """Take the handle back; a forked child's copy of this object has none to take."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if os.getpid() == self._process:
            self._path.unlink(missing_ok=True)
        os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            with contextlib.suppress(OSError):
                self.close()


class OpenedHostEvent:
    """Another process's event, good whatever becomes of that process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def open(cls, run_dir: str | os.PathLike[str], handle: bytes) -> Self:
        """Open the event with this handle.

        Raises:
            DeviceError: its producer has dropped it, it cannot be opened, or the handle is none.
        """
        if not _NAME.fullmatch(handle):
            raise DeviceError(f"an event's handle is 32 hexadecimal digits, not {handle[:40]!r}")
        try:
            return cls(_open(Path(run_dir) / DIRECTORY / os.fsdecode(handle)))
        except FileNotFoundError:
            raise DeviceError(f"event {os.fsdecode(handle)} is gone: its producer has dropped it") from None
        except OSError as error:
            raise DeviceError(f"event {os.fsdecode(handle)} cannot be opened: {error.strerror}") from None

    def query(self) -> bool:
        """Whether it has fired."""
        return _has_fired(self._fd)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait so long at most until it has fired. Returns whether it has."""
        return _wait(self._fd, timeout_seconds)

    def close(self) -> None:
        """Done with it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def sweep(run_dir: str | os.PathLike[str]) -> int:
    """Take the events of dead producers away; returns how many."""
    num_swept = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(Path(run_dir) / DIRECTORY) as entries:
        for _, entry in zip(range(MAX_SWEPT), entries, strict=False):
            with contextlib.suppress(OSError):
                age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if age >= MIN_SWEPT_AGE_SECONDS and _is_abandoned(entry):
                    Path(entry.path).unlink()
                    num_swept += 1
    return num_swept


def _open(path: str | os.PathLike[str]) -> int:
    """Open a file that any peer may have put there: a pipe is not waited for, and no link is followed.

    Raises:
        OSError: it cannot be opened, or is no plain file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "no plain file")
    return fd


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    if not entry.is_file(follow_symlinks=False):
        return True  # no event of anybody's
    fd = _open(entry.path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def _has_fired(fd: int) -> bool:
    return os.pread(fd, 1, 0) == _FIRED


def _wait(fd: int, timeout_seconds: float) -> bool:
    deadline = time.monotonic() + timeout_seconds
    while not _has_fired(fd):
        if time.monotonic() >= deadline:
            return False
        time.sleep(PAUSE_SECONDS)
    return True
