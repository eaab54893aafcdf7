"""The adapter's hold on the gateway's pool file: its own proof-of-death lock, and a look at the daemon's.

Owns: the party's lock and the observer of one inode, and looking for the next when that is not the pool any more. Must
not know: messages, or what the pool holds. Runs on the link thread.

The party's lock is taken before the first message, so that the daemon can see it held; it is given up last, when no
copy can run any more.
"""

import math
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import Self

from gateway import access
from gateway.lock import DeathLock, LockHeldError, LockObserver, daemon_offset, party_offset


class AttachError(Exception):
    """The pool cannot be attached to now; the message says why. Trying again later may help."""


class Attachment:
    """One party's hold on one inode."""

    def __init__(self, path: Path, observer: LockObserver, lock: DeathLock) -> None:
        self.path = path
        self._observer = observer
        self._lock = lock

    @classmethod
    def open(cls, path: Path, party: bytes) -> Self:
        """Take the party's lock on the file that ``path`` names now.

        Raises:
            AttachError: it is missing, not permitted, changing at this moment, or the lock is taken.
        """
        try:
            observer = LockObserver.open(path)
        except OSError as error:
            raise AttachError(_explain(path, error)) from None
        try:
            lock = DeathLock.take(path, party_offset(party))
        except LockHeldError:
            observer.close()
            raise AttachError(f"another process holds this party's lock on {path}") from None
        except OSError as error:
            observer.close()
            raise AttachError(_explain(path, error)) from None
        attachment = cls(path, observer, lock)
        if lock.inode != observer.inode or not attachment.is_current():
            attachment.close()
            raise AttachError(f"{path} was replaced while it was opened")
        return attachment

    def daemon_lives(self) -> bool:
        """Whether the daemon's lock is held. About a microsecond."""
        return self._observer.is_held(daemon_offset())

    def is_current(self) -> bool:
        """Whether the path still names this file."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._lock.inode and status.st_nlink > 0

    def close(self) -> None:
        """Give the lock up. Only when no copy of this party can run any more."""
        self._observer.close()
        self._lock.close()


class PoolSight(Enum):
    """What a look at the pool's path shows."""

    NOTHING = auto()  # no file to be attached to
    LOST = auto()  # the file attached to is the pool no more; told once
    DAEMON_LIVES = auto()
    DAEMON_GONE = auto()  # nobody holds the daemon's lock
    FORMER_DAEMON_GONE = auto()  # nor the one on the file that is the pool no more, on which a copy may still run


class PoolWatch:
    """Attaches to whatever the path names, and looks at the daemon's lock there.

    Args:
        path: of the pool.
        party: whose lock is held.
        retry_seconds: between two looks at the path itself.
        complain: told why there is no pool; not more often than the path is looked at.
    """

    def __init__(self, path: Path, party: bytes, retry_seconds: float, complain: Callable[[str], None]) -> None:
        self.path = path
        self._party = party
        self._retry_seconds = retry_seconds
        self._complain = complain
        self._attachment: Attachment | None = None
        self._is_stale = False  # kept for its lock alone, until no copy runs
        self._path_at = -math.inf  # when to look at the path next

    @property
    def is_attached(self) -> bool:
        """Whether the pool is there and this party's lock is held on it."""
        return self._attachment is not None and not self._is_stale

    def look(self, now: float, *, may_detach: bool) -> PoolSight:
        """Look at the lock, and from time to time at the path.

        Args:
            now: monotonic seconds.
            may_detach: no copy runs: the lock on a file that is the pool no more may be given up.
        """
        if self._is_stale and may_detach:
            self.detach()
        looks_at_path = now >= self._path_at
        if looks_at_path:
            self._path_at = now + self._retry_seconds
            if self._attachment is None:
                self._attach()
            elif not self._is_stale and not self._attachment.is_current():
                return self._lose(f"{self.path} names another file or none")
        if self._attachment is None:
            return PoolSight.NOTHING
        if self._is_stale:
            return PoolSight.NOTHING if self._attachment.daemon_lives() else PoolSight.FORMER_DAEMON_GONE
        try:
            lives = self._attachment.daemon_lives()
        except OSError as error:
            return self._lose(f"{self.path} cannot be asked for its locks: {error}")
        if not lives and looks_at_path:
            self._complain(
                f"no gateway holds its lock on {self.path}: it does not run, or what it runs on is another directory"
            )
        return PoolSight.DAEMON_LIVES if lives else PoolSight.DAEMON_GONE

    def detach(self) -> None:
        """Give this party's lock up. Only when no copy runs."""
        attachment, self._attachment, self._is_stale = self._attachment, None, False
        if attachment is not None:
            attachment.close()

    def _attach(self) -> None:
        try:
            self._attachment = Attachment.open(self.path, self._party)
        except AttachError as error:
            self._complain(str(error))

    def _lose(self, reason: str) -> PoolSight:
        self._is_stale = True
        self._complain(reason)
        return PoolSight.LOST


def _explain(path: Path, error: OSError) -> str:
    """What stands in the way, and what may be missing."""
    if isinstance(error, FileNotFoundError):
        return f"{path} does not exist: no gateway has made it yet, or its directory is not shared with this process"
    if isinstance(error, PermissionError):
        return f"{path} may not be opened for reading and writing: {access.explain(path)}"
    return f"{path} cannot be opened: {error}"
