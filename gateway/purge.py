"""Taking away what a gateway left behind: its files, its pool, its directories.

Owns: which files are a gateway's, and the proof that nobody uses them. Must not know: who asks. Runs on the caller's
thread.

A pool file belongs to whoever holds the daemon's lock on it. So a purge takes that lock itself before it removes
anything, and a daemon that starts at this moment waits; the pool is removed last. Nobody is asked by taking a lock:
that it is free is looked at first.
"""

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.access import explain
from gateway.lock import DeathLock, LockHeldError, LockObserver, daemon_offset
from gateway.run_dir import ADMIN_FACTS, ADMIN_SETTINGS, ADMIN_SOCKET, EVENTS, FACTS, HANDLES, POOL, SOCKET
from gateway.switches import PREFIX as MARKERS

_IN_RUN_DIR = (SOCKET, HANDLES, FACTS, f"{EVENTS}/*", f"{POOL}.set-aside.*", f"{POOL}.new.*", f"{MARKERS}*")
_IN_ADMIN_DIR = (ADMIN_SOCKET, ADMIN_FACTS, f"{ADMIN_FACTS}.*", ADMIN_SETTINGS)


class PurgeRefusedError(Exception):
    """Nothing was removed; the message says why."""


@dataclass(frozen=True)
class Leftovers:
    """What a gateway left in its two directories.

    Attributes:
        files: in the order in which they are removed; the pool is the last.
        allocated_bytes: the memory that comes free.
    """

    run_dir: Path
    admin_dir: Path
    files: tuple[Path, ...]
    allocated_bytes: int

    @property
    def pools(self) -> tuple[Path, ...]:
        """The pool files among them, the one in use last."""
        return tuple(path for path in self.files if path.name.split(".")[0] == POOL)


def find(run_dir: Path, admin_dir: Path) -> Leftovers:
    """What could be removed.

    Raises:
        PurgeRefusedError: there is nothing of a gateway, a daemon or an engine uses it, or it may not be looked at.
    """
    try:
        files = [path for name in _IN_RUN_DIR for path in sorted(run_dir.glob(name))]
        files += [path for name in _IN_ADMIN_DIR for path in sorted(admin_dir.glob(name))]
        # The last to go: once the name is free a waiting daemon takes it, and everything after would be that daemon's.
        files += sorted(run_dir.glob(POOL))
        allocated = sum(path.lstat().st_blocks * 512 for path in files)
    except OSError as error:
        raise PurgeRefusedError(f"{run_dir} may not be looked at: {error.strerror}; {explain(run_dir)}") from None
    if not files:
        raise PurgeRefusedError(f"there is nothing of a gateway in {run_dir} or {admin_dir}")
    leftovers = Leftovers(run_dir, admin_dir, tuple(files), allocated)
    _refuse_if_used(leftovers)
    return leftovers


def remove(leftovers: Leftovers) -> tuple[Path, ...]:
    """Remove the files, and each directory that is empty then; returns what was removed.

    Raises:
        PurgeRefusedError: somebody began to use it meanwhile; nothing was removed. Or a file could not be removed.
    """
    with _claimed(leftovers.run_dir / POOL):
        _refuse_if_used(leftovers, is_ours=True)
        before = [path for path in leftovers.files if path.name != POOL]
        last = [path for path in leftovers.files if path.name == POOL]
        removed = _unlinked(before) + _emptied(leftovers.admin_dir, leftovers.run_dir / EVENTS)
        removed += _unlinked(last) + _emptied(leftovers.run_dir)
    return tuple(removed)


def _unlinked(paths: Iterable[Path]) -> list[Path]:
    removed = []
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise PurgeRefusedError(f"{path} cannot be removed: {error.strerror}; {explain(path.parent)}") from None
        removed.append(path)
    return removed


def _emptied(*directories: Path) -> list[Path]:
    """Those of them that were empty and are gone."""
    removed = []
    for directory in directories:
        with contextlib.suppress(OSError):  # it holds what is not ours, or something is mounted there
            directory.rmdir()
            removed.append(directory)
    return removed


@contextlib.contextmanager
def _claimed(pool: Path) -> Iterator[None]:
    """Own the name as a daemon would."""
    try:
        lock = DeathLock.take(pool, daemon_offset())
    except FileNotFoundError:
        yield
        return
    except LockHeldError:
        raise PurgeRefusedError(f"a daemon has just started on {pool}") from None
    except OSError as error:
        raise PurgeRefusedError(f"{pool} cannot be locked: {error.strerror}; {explain(pool)}") from None
    try:
        yield
    finally:
        lock.close()


def _refuse_if_used(leftovers: Leftovers, *, is_ours: bool = False) -> None:
    """See that nobody uses the pool files.

    Args:
        leftovers: whose.
        is_ours: the daemon's lock on the pool in use is this process's own.
    """
    for pool in leftovers.pools:
        try:
            observer = LockObserver.open(pool)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise PurgeRefusedError(f"{pool} cannot be opened: {error.strerror}; {explain(pool)}") from None
        try:
            is_claimed = is_ours and pool.name == POOL
            if not is_claimed and observer.is_held(daemon_offset()):
                raise PurgeRefusedError(f"a daemon holds its lock on {pool}: stop it first")
            if observer.is_any_party_held():
                raise PurgeRefusedError(f"an engine holds its lock on {pool}: stop it first, or close its adapters")
        finally:
            observer.close()
    for path in (leftovers.run_dir / SOCKET, leftovers.admin_dir / ADMIN_SOCKET):
        if _listens(path):
            raise PurgeRefusedError(f"somebody listens on {path}: stop that process first")


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
    return True
