"""The adapter's hold on the gateway's pool file: its own proof-of-death lock, and a look at the daemon's.

Owns: the party's lock and the observer of one inode. Must not know: messages, or what the pool holds. Runs on the link
thread.

The party's lock is taken before the first message, so that the daemon can see it held; it is given up last, when no
copy can run any more.
"""

import os
import stat
from pathlib import Path
from typing import Self

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


def _explain(path: Path, error: OSError) -> str:
    """What stands in the way, with the owners and modes that decide it."""
    if isinstance(error, FileNotFoundError):
        return f"{path} does not exist: no gateway has made it yet"
    if not isinstance(error, PermissionError):
        return f"{path} cannot be opened: {error}"
    places = ", ".join(_describe(place) for place in (path.parent, path))
    groups = " ".join(str(group) for group in os.getgroups())
    return (
        f"{path} may not be opened for reading and writing: {places}; "
        f"this process has uid {os.geteuid()}, gid {os.getegid()}, groups {groups or 'none'}"
    )


def _describe(path: Path) -> str:
    try:
        status = path.stat()
    except OSError as error:
        return f"{path} cannot be looked at ({error.strerror})"
    return f"{path} has mode {stat.S_IMODE(status.st_mode):04o}, uid {status.st_uid}, gid {status.st_gid}"
