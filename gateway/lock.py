"""Proof of death: a kernel lock that ends with its holder, and the eyes that watch it.

Owns: where in the pool file each party's lock lies, taking one, asking for one. Must not know: what the file holds,
who the parties are. Any thread.

The lock is an *open-file-description* lock on one byte far beyond the end of the file (there is nothing to truncate,
nothing to unlink). It belongs to the open file, not to the process, and that is the point:

- the kernel drops it when the last descriptor of that open file is closed, so after SIGKILL too, and not earlier;
- closing some other descriptor of the same file does not drop it, as it would a POSIX record lock;
- one process can hold it and watch it: the watcher has an open file of its own.

A *free* lock proves death only to who has seen it *held*, on the same inode. Nobody asks by trying to take it: two who
did so would see each other and take that for life.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from typing import Self

_FIRST_OFFSET = 2**62  # beyond any file; below the largest offset the kernel takes (2**63 - 1)
_PARTY_OFFSETS = 2**61
# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid (which must be 0), padded as in C.
_FLOCK = struct.Struct("@hhqqi4x")

Inode = tuple[int, int]


def daemon_offset() -> int:
    """Where the daemon's lock lies."""
    return _FIRST_OFFSET


def party_offset(party: bytes) -> int:
    """Where the lock of the party with this id lies. Two ids can share a place; the daemon refuses the second."""
    return _FIRST_OFFSET + 1 + int.from_bytes(party, "big") % _PARTY_OFFSETS


class LockHeldError(OSError):
    """Another open file holds this byte."""


class DeathLock:
    """One byte of a file, locked until ``close`` or the end of the process.

    A forked child closes its copy of the descriptor at once; a child started by exec never has it. Dropping the object
    keeps the lock: a byte that came free while its holder still copies would be a false proof of death.
    """

    def __init__(self) -> None:
        self._fd = -1
        # Held while the descriptor is opened, so that no fork falls between the system call and the assignment: such
        # a child would keep an open file it does not know of, and with it the lock.
        self._opening = threading.Lock()
        os.register_at_fork(
            before=self._opening.acquire,
            after_in_parent=self._opening.release,
            after_in_child=self._close_in_child,
        )

    @classmethod
    def take(cls, path: str | os.PathLike[str], offset: int) -> Self:
        """Lock the byte at ``offset`` of the file at ``path``, which must exist.

        Raises:
            LockHeldError: another holds it.
            OSError: the file cannot be opened for reading and writing, or its file system has no such locks.
        """
        lock = cls()
        with lock._opening:
            lock._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.fcntl(lock._fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, offset, 1))
        except OSError as error:
            lock.close()
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise LockHeldError(error.errno, "another process holds this lock", os.fspath(path)) from None
            raise
        return lock

    @property
    def inode(self) -> Inode:
        """(st_dev, st_ino) of the locked file."""
        return _inode(self._fd)

    def close(self) -> None:
        """Give the lock up. Only when nothing that it vouches for can run any more."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _close_in_child(self) -> None:
        self._opening.release()
        self.close()


class LockObserver:
    """Asks whether bytes of one file are locked, through a descriptor of its own that it keeps open."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Watch the file that ``path`` names now; it may be renamed or removed later.

        Raises:
            OSError: it cannot be opened for reading.
        """
        return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    @property
    def inode(self) -> Inode:
        """(st_dev, st_ino) of the watched file."""
        return _inode(self._fd)

    def is_held(self, offset: int) -> bool:
        """Whether anyone holds the byte at ``offset``, this process included. About a microsecond."""
        return self._is_locked(offset, 1)

    def is_any_party_held(self) -> bool:
        """Whether any party at all holds its lock on this file."""
        return self._is_locked(_FIRST_OFFSET + 1, _PARTY_OFFSETS)

    def close(self) -> None:
        """Stop watching."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _is_locked(self, offset: int, length: int) -> bool:
        answer = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, offset, length))
        # Only the type tells: the process id of such a lock is -1, and means nothing in another container anyhow.
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _flock(kind: int, offset: int, length: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, offset, length, 0)


def _inode(fd: int) -> Inode:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
