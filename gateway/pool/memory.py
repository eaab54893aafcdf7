"""Whether there is room for the pool, and filling the file with memory before anyone relies on it.

Owns: free space of the file system, limits of control groups (version 1 and 2), allocation in pieces. Must not
know: what the file holds. Runs on a worker thread at start: a large pool takes seconds.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PIECE_BYTES = 256 << 20  # between two looks at ``cancelled``: about 60 ms
_NO_LIMIT = 1 << 62  # version 1 writes "no limit" as the largest page-aligned number


class PoolSpaceError(Exception):
    """There is not enough memory for the pool. The message has the sizes."""


@dataclass(frozen=True)
class MemoryRoom:
    """What a control group leaves: ``limit_bytes`` less what cannot be reclaimed of ``used_bytes``."""

    group: str
    limit_bytes: int
    used_bytes: int

    @property
    def free_bytes(self) -> int:
        """Bytes that can still be charged to the group."""
        return max(0, self.limit_bytes - self.used_bytes)


def allocated_bytes(fd: int) -> int:
    """Bytes the file really occupies."""
    return os.fstat(fd).st_blocks * 512


def reserve(
    fd: int,
    size: int,
    progress: Callable[[float], None],
    cancelled: Callable[[], bool],
    *,
    root: Path = Path("/"),
    piece_bytes: int = PIECE_BYTES,
) -> None:
    """Give every page of the file its memory, where it has none yet, so that this process is charged for it.

    Allocating over pages that are allocated already is slow (seconds a GiB), so the file is asked how much it lacks
    first, and again after each piece: an interrupted reservation goes on about where it stopped.

    Args:
        fd: the file, open for writing.
        size: of the file, in bytes.
        progress: told the fraction that is reserved, from 0 to 1.
        cancelled: asked between two pieces; True ends it early, which raises nothing.
        root: where ``proc`` and ``sys`` are looked for.
        piece_bytes: allocated in one system call.

    Raises:
        PoolSpaceError: the file system or a control group has not that much left; nothing was allocated.
        OSError: the allocation failed all the same.
    """
    missing = size - allocated_bytes(fd)
    if missing > 0:
        _check_room(fd, size, missing, root)
    starts = list(range(0, size, piece_bytes))
    resume_at = min(allocated_bytes(fd), size - 1) // piece_bytes
    for start in starts[resume_at:] + starts[:resume_at]:
        present = allocated_bytes(fd)
        if present >= size:
            break
        progress(present / size)
        if cancelled():
            return
        os.posix_fallocate(fd, start, min(piece_bytes, size - start))
    progress(1.0)


def reserve_start(fd: int, nbytes: int) -> None:
    """Give the first ``nbytes`` of the file their memory, before they are mapped.

    Touching a mapped page for which the file system has no memory ends the process (SIGBUS), and so does reading one
    that was never written. A file that has all its memory is left alone.

    Raises:
        PoolSpaceError: the file system has not that much left; the message has the sizes.
    """
    if allocated_bytes(fd) >= os.fstat(fd).st_size:
        return
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise PoolSpaceError(
            f"the headers of the pool need {nbytes} bytes, the file system has {_free_bytes(fd)} free"
        ) from None


def memory_rooms(root: Path = Path("/")) -> list[MemoryRoom]:
    """The room in each control group with a memory limit that this process is in, the nearest first.

    A container may see its own group as the root, or see the host's path without being able to follow it:
    directories that are not there are skipped, their parents are not.
    """
    return [room for directory in _group_directories(root) if (room := _room(directory)) is not None]


def _check_room(fd: int, size: int, missing: int, root: Path) -> None:
    free = _free_bytes(fd)
    if os.fstatvfs(fd).f_blocks and missing > free:  # a tmpfs without a limit has 0 blocks
        raise PoolSpaceError(f"the pool needs {missing} of {size} bytes more, the file system has {free} free")
    for room in memory_rooms(root):
        if missing > room.free_bytes:
            raise PoolSpaceError(
                f"the pool needs {missing} of {size} bytes more, the memory limit of control group {room.group}"
                f" ({room.limit_bytes} bytes, {room.used_bytes} used) leaves {room.free_bytes}"
            )


def _free_bytes(fd: int) -> int:
    file_system = os.fstatvfs(fd)
    return file_system.f_bavail * file_system.f_frsize


def _group_directories(root: Path) -> Iterator[Path]:
    """Directories that may hold a memory limit, from this process's own group upwards."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top = root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth])


def _room(directory: Path) -> MemoryRoom | None:
    for limit_name, usage_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, usage = _number(directory / limit_name), _number(directory / usage_name)
        if limit is None or usage is None or limit >= _NO_LIMIT:
            continue
        reclaimable = _statistic(directory / "memory.stat", cache_name)
        return MemoryRoom(str(directory), limit, max(0, usage - reclaimable))
    return None


def _number(file: Path) -> int | None:
    """The file's number; None: no such file, or "max"."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _statistic(file: Path, name: str) -> int:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(value) for key, _, value in (line.partition(" ") for line in lines) if key == name), 0)
