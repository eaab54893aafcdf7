"""Who owns a pool file's name, and how another file gets it.

Owns: making a file, taking an existing one over, setting one aside, and what becomes of files set aside. Must not
know: slots. Runs on the main thread at start; ``discard_set_aside`` later on the loop's.

Two daemons can never own one name. Whoever owns it holds the daemon's lock on the very inode that the name stands
for: a file is locked before it gets its name, and one that was opened by name is looked at again after it was
locked.

A file is never cut short or laid out anew in place, since engines have it mapped: a new file takes its name, and
the old one stays beside it as ``<name>.set-aside.<n>`` until no party holds its lock there. Only then is its memory
freed: no engine finds a hole where it holds a lease, and none writes into memory that nobody counts. An engine that
keeps it mapped without a lock reads zeros, and no header of zeros is ready.
"""

from __future__ import annotations

import mmap
import os
import secrets
import stat
import threading
from pathlib import Path
from typing import Self

from gateway.lock import DeathLock, Inode, LockObserver, daemon_offset
from gateway.pool.format import HEADER_PAGES_BYTES, HeaderPage, Layout, encode_page, page_offset
from gateway.pool.memory import reserve_start

_ATTEMPTS = 100  # a lost one means that another daemon made or replaced the file just now
_PUNCH_BYTES = 16 << 20  # freed in one system call, some milliseconds in which no other thread of this process runs


class PoolClaim:
    """One daemon's claim to one name: whatever file stands there is its own, and locked."""

    def __init__(self, path: Path, layout: Layout, file_mode: int, group: int | None) -> None:
        self._path = path
        self._layout = layout
        self._file_mode = file_mode
        self._group = group
        self._discarding = threading.Lock()
        #: Bytes from the start of each file set aside that were freed so far.
        self._freed_bytes: dict[Inode, int] = {}
        #: The daemon's lock on the file that the name stands for.
        self.lock: DeathLock

    @classmethod
    def take(cls, path: Path, layout: Layout, file_mode: int, group: int | None) -> Self:
        """Claim ``path``; where no file is, a new one with ``layout`` is made.

        Args:
            path: in a directory that exists.
            layout: of new files.
            file_mode: permissions, whatever the umask.
            group: owning group id; None: as it is.

        Raises:
            LockHeldError: another daemon has claimed it.
            PoolSpaceError: there is no memory for a new file's first pages.
            OSError: the file cannot be opened or made.
        """
        claim = cls(path, layout, file_mode, group)
        for _ in range(_ATTEMPTS):
            lock = claim._lock_or_make()
            if lock is None:
                continue
            if _is_named(path, lock.inode):
                claim.lock = lock
                claim._sweep_unfinished()
                return claim
            lock.close()
        raise OSError(f"{path} is replaced faster than it can be locked")

    def set_permissions(self, fd: int) -> None:
        """Give an open file the permissions and the group of this claim, if it has others."""
        status = os.fstat(fd)
        if self._group is not None and status.st_gid != self._group:
            os.fchown(fd, -1, self._group)
        if stat.S_IMODE(status.st_mode) != self._file_mode:
            os.fchmod(fd, self._file_mode)

    def replace(self) -> Path:
        """Give the name to a new file; returns where the old one stands now. The name never stands for nothing."""
        fresh, lock = self._make()
        try:
            aside = self._path.with_name(f"{self._path.name}.set-aside.{self._next_aside()}")
            aside.hardlink_to(self._path)
            fresh.replace(self._path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            lock.close()
            raise
        self.lock.close()
        self.lock = lock
        return aside

    def discard_set_aside(self, max_bytes: int) -> int:
        """Free and remove the files set aside on which no party holds its lock; returns how many are left.

        Args:
            max_bytes: of memory to free in this call, a fraction of a second a GiB; the next one goes on from there.
        """
        if self._discarding.acquire(blocking=False):  # else another thread is at it
            try:
                for aside in self._asides():
                    max_bytes -= self._discard(aside, max_bytes)
            finally:
                self._discarding.release()
        return len(self._asides())

    def remove(self) -> None:
        """Take all names away; memory is freed when the last engine has unmapped it."""
        for aside in self._asides():
            aside.unlink()
        if _is_named(self._path, self.lock.inode):
            self._path.unlink()

    def _discard(self, aside: Path, max_bytes: int) -> int:
        """Free up to ``max_bytes`` of one file, and remove it when none are left; returns how many were freed."""
        freed = 0
        observer = LockObserver.open(aside)
        try:
            # The file in use may have a second name: a daemon was killed in the middle of ``replace``.
            if observer.inode != self.lock.inode:
                if observer.is_any_party_held():
                    return 0
                start = self._freed_bytes.get(observer.inode, 0)
                freed = _punch(aside, start, max_bytes)
                self._freed_bytes[observer.inode] = start + freed
                if start + freed < aside.stat().st_size:
                    return freed
            aside.unlink()
        finally:
            observer.close()
        return freed

    def _lock_or_make(self) -> DeathLock | None:
        """A lock on the file there, or on a new one; None: another daemon was quicker, look again."""
        try:
            return DeathLock.take(self._path, daemon_offset())
        except FileNotFoundError:
            fresh, lock = self._make()
        try:
            self._path.hardlink_to(fresh)
        except (FileExistsError, FileNotFoundError):  # it made the file, or swept ours away
            lock.close()
            return None
        except BaseException:
            lock.close()
            raise
        finally:
            fresh.unlink(missing_ok=True)
        return lock

    def _make(self) -> tuple[Path, DeathLock]:
        """A new pool file under a temporary name, locked."""
        fresh = self._path.with_name(f"{self._path.name}.new.{secrets.token_hex(8)}")
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            page = HeaderPage(pool_id=secrets.token_bytes(16), layout=self._layout)
            os.ftruncate(fd, self._layout.file_bytes)
            reserve_start(fd, HEADER_PAGES_BYTES)
            os.pwrite(fd, encode_page(page), page_offset(page))
            self.set_permissions(fd)
            # By its descriptor: a daemon that claims the name at this moment may sweep a file that is not locked yet.
            return fresh, DeathLock.take(f"/proc/self/fd/{fd}", daemon_offset())
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def _sweep_unfinished(self) -> None:
        """Remove new files whose makers died before naming them."""
        for fresh in self._path.parent.glob(f"{self._path.name}.new.*"):
            try:
                observer = LockObserver.open(fresh)
            except FileNotFoundError:
                continue
            if not observer.is_held(daemon_offset()):
                fresh.unlink(missing_ok=True)
            observer.close()

    def _asides(self) -> list[Path]:
        return sorted(self._path.parent.glob(f"{self._path.name}.set-aside.*"))

    def _next_aside(self) -> int:
        numbers = [int(aside.suffix[1:]) for aside in self._asides() if aside.suffix[1:].isdecimal()]
        return 1 + max(numbers, default=0)


def _is_named(path: Path, inode: Inode) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return (status.st_dev, status.st_ino) == inode


def _punch(path: Path, start: int, max_bytes: int) -> int:
    """Free memory of a file, at once and for everyone who has it mapped; returns the bytes freed.

    Its size stays, so that nobody faults.
    """
    with path.open("r+b") as file:
        end = min(os.fstat(file.fileno()).st_size, start + max_bytes)
        if end <= start:
            return 0
        with mmap.mmap(file.fileno(), end) as mapping:
            for piece in range(start, end, _PUNCH_BYTES):
                mapping.madvise(mmap.MADV_REMOVE, piece, min(_PUNCH_BYTES, end - piece))
    return end - start
