"""The directory shared with engines, and the one operators have: made or taken, with the modes they must have.

Owns: paths, modes and owners of both directories, and the small file that says who runs there. Must not know: what the
pool holds, messages. Runs on the main thread before the loop and after it.
"""

import contextlib
import grp
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.access import describe, explain, may_use, whoami
from gateway.config import GatewayConfig
from gateway.device.host_event import DIRECTORY
from gateway.device.passing import SOCKET as INLET
from gateway.switches import PREFIX as MARKERS
from gateway.wire.messages import MAX_SOCKET_PATH_BYTES

SOCKET = "gateway.sock"
POOL = "pool"
FACTS = "gateway.pid"
#: Where events lie, and where the files of engines' memory arrive.
EVENTS, HANDLES = DIRECTORY, INLET
ADMIN_SOCKET = "admin.sock"
ADMIN_FACTS = "admin.json"
ADMIN_SETTINGS = "settings.json"

_TEMPORARY_PARENT = Path("/dev/shm")  # noqa: S108 - the memory file system, which a pool must lie on
_LARGEST_GROUP = (1 << 32) - 2  # the next one means "leave it" to chown(2)
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFREG: "a plain file",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


class StartError(Exception):
    """The daemon cannot start; the message says why, and what would help."""


@dataclass(frozen=True)
class RunDirectory:
    """Both directories, ready for use. ``notes`` are lines for the log."""

    path: Path
    admin_path: Path
    is_temporary: bool  # both are this daemon's own
    file_mode: int  # of sockets, the pool and the file that says who runs here
    gid: int  # -1: as it comes
    notes: tuple[str, ...] = ()
    made: tuple[Path, ...] = ()  # directories that were not there before, the innermost of each first

    @property
    def socket(self) -> Path:
        """Where engines connect."""
        return self.path / SOCKET

    @property
    def pool(self) -> Path:
        """The pool file."""
        return self.path / POOL

    @property
    def events(self) -> Path:
        """Where engines and the daemon put their events."""
        return self.path / EVENTS

    @property
    def handles(self) -> Path:
        """Where the files of engines' memory arrive."""
        return self.path / HANDLES

    @property
    def facts(self) -> Path:
        """Who runs here, in words: the lock on the pool file is what keeps a second daemon out."""
        return self.path / FACTS

    @property
    def admin_socket(self) -> Path:
        """Where the admin process and the command line connect."""
        return self.admin_path / ADMIN_SOCKET

    @property
    def admin_facts(self) -> Path:
        """Written by the admin process once it listens: ``{"url": …}``."""
        return self.admin_path / ADMIN_FACTS

    def holder(self) -> str:
        """Who runs here as far as is known, with the facts of the pool file that it holds; for whoever is refused."""
        try:
            inode = f"inode {self.pool.stat().st_ino}"
        except OSError:
            inode = "no such file now"
        return f"another daemon holds {self.pool} ({inode}, {_facts_of(self.facts)})"

    def make_events(self) -> None:
        """Make the place for events, as open to engines as the directory itself.

        Raises:
            StartError: it cannot be made.
        """
        try:
            self.events.mkdir(exist_ok=True)
            if self.events.stat().st_uid == os.geteuid():
                os.chown(self.events, -1, self.gid)
                self.events.chmod(0o700 if self.gid == -1 else 0o2770)
        except OSError as error:
            raise StartError(f"cannot make {self.events}: {error.strerror}; {explain(self.path)}") from None

    def write_facts(self, boot: bytes) -> None:
        """Say who runs here, for whoever is refused.

        Raises:
            StartError: the file cannot be written.
        """
        facts = {"pid": os.getpid(), "boot_id": boot.hex(), "started_at": time.time()}
        _write(self.facts, json.dumps(facts) + "\n", self.file_mode)

    def write_settings(self, settings: Mapping[str, object]) -> None:
        """Say which settings are in force, for an operator's bundle: they hold paths, and no token."""
        _write(self.admin_path / ADMIN_SETTINGS, json.dumps(settings, indent=2) + "\n", 0o600)

    def withdraw(self) -> None:
        """Take away what says that an API listens here. While the pool's lock is held: it may be another daemon's."""
        self.admin_facts.unlink(missing_ok=True)
        (self.admin_path / ADMIN_SETTINGS).unlink(missing_ok=True)

    def remove(self) -> None:
        """After a stop: take the directories away, with all that is in them, if they were this daemon's own."""
        with contextlib.suppress(OSError):  # events of engines that live are theirs
            self.events.rmdir()
        if self.is_temporary:
            for directory in (self.path, self.admin_path):
                shutil.rmtree(directory, ignore_errors=True)

    def undo(self) -> None:
        """After a start that failed: take away what it made, and nothing else."""
        if self.path in self.made:
            self.facts.unlink(missing_ok=True)
        self.remove()
        _remove_empty(self.made)


def take(config: GatewayConfig) -> RunDirectory:
    """Make the directories, or take them as they are, and check that both can be used.

    Raises:
        StartError: one cannot be made or taken, its path is too long for a socket, or the group does not exist.
    """
    gid = _group_id(config.run_dir_group)
    if config.run_dir:
        path = Path(config.run_dir).absolute()
        return _take_both(config, path, gid, is_temporary=False)
    if config.admin_dir:
        raise StartError(f"admin_dir is {config.admin_dir} without a run_dir: a temporary one has its own beside it")
    path = Path(tempfile.mkdtemp(prefix="kvgate-", dir=_TEMPORARY_PARENT))
    return _take_both(config, path, gid, is_temporary=True)


def _take_both(config: GatewayConfig, path: Path, gid: int, *, is_temporary: bool) -> RunDirectory:
    admin_path = Path(config.admin_dir).absolute() if config.admin_dir else path.with_name(f"{path.name}.admin")
    for socket in (path / SOCKET, admin_path / ADMIN_SOCKET):
        encoded = os.fsencode(socket)
        size = len(encoded)
        if encoded.decode(errors="replace").encode() != encoded:
            raise StartError(f"socket path {str(socket)!a} is no UTF-8 text, which the socket library wants")
        if size > MAX_SOCKET_PATH_BYTES:
            raise StartError(f"socket path {socket} takes {size} bytes, at most {MAX_SOCKET_PATH_BYTES} are allowed")
    mode, file_mode = (0o700, 0o600) if gid == -1 else (0o2770, 0o660)
    made = (*((path,) if is_temporary else _missing(path)), *_missing(admin_path))
    try:
        notes = (
            *_take(path, mode, gid, {FACTS, POOL}),
            *_take(admin_path, 0o700, -1, {ADMIN_SOCKET, ADMIN_FACTS, ADMIN_SETTINGS}),
        )
        _check_kinds(path, admin_path)
    except StartError:
        _remove_empty(made)
        raise
    return RunDirectory(path, admin_path, is_temporary, file_mode, gid, notes, made)


def _check_kinds(path: Path, admin_path: Path) -> None:
    """See that nothing of another kind lies where our files, sockets and the events' directory go."""
    ours = [path / SOCKET, path / HANDLES, path / FACTS]
    ours += [admin_path / ADMIN_SOCKET, admin_path / ADMIN_FACTS, admin_path / ADMIN_SETTINGS]
    kinds: list[tuple[Path, str, Callable[[int], bool]]] = [
        *((one, "a file or a socket of ours", lambda mode: not stat.S_ISDIR(mode)) for one in ours),
        *((one, "a plain file", stat.S_ISREG) for one in (path / POOL, *path.glob(f"{POOL}.*"))),
        (path / EVENTS, "a directory", stat.S_ISDIR),
    ]
    for found, expected, fits in kinds:
        try:
            mode = found.lstat().st_mode
        except OSError:
            continue  # nothing is there; or who uses it says why it cannot
        if not fits(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "something else")
            raise StartError(
                f"{found} is {kind}, expected {expected}, or nothing: move it away, or use another directory"
            )


def _missing(path: Path) -> tuple[Path, ...]:
    """The directories that taking this path makes, the innermost first."""
    return tuple(one for one in (path, *path.parents) if _is_missing(one))


def _is_missing(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:  # it may not be looked at: whoever makes or opens it says why, and nobody takes it away
        return False
    return False


def _remove_empty(directories: Iterable[Path]) -> None:
    for directory in directories:
        with contextlib.suppress(OSError):  # somebody has put something there meanwhile
            directory.rmdir()


def _write(path: Path, text: str, mode: int) -> None:
    """Write a file anew with this mode, whatever the umask and whoever wrote the one before."""
    try:
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            os.fchmod(fd, mode)
            file.write(text)
    except OSError as error:
        raise StartError(f"cannot write {path}: {error.strerror}; {explain(path)}") from None


def _facts_of(path: Path) -> str:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return f"pid {facts['pid']}, boot {facts['boot_id']}"
    except (OSError, ValueError, TypeError, KeyError):
        return "of unknown pid"


def _group_id(group: str) -> int:
    if not group:
        return -1
    if group.isascii() and group.isdigit():
        if int(group) > _LARGEST_GROUP:
            raise StartError(f"run_dir_group is {group}, expected a name, or a number of at most {_LARGEST_GROUP}")
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise StartError(f"run_dir_group is {group!r}, and there is no such group") from None


def _take(path: Path, mode: int, gid: int, ours: set[str]) -> list[str]:
    """Make a directory, or take one that is empty or was taken before; returns lines for the log.

    A directory of our own gets the modes it must have. One that holds other files than ours is refused: its modes are
    not ours to change. One of another owner is taken as it is if it can be used, as volumes of containers are.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)  # private until it has the mode it must have
        if path.stat().st_uid != os.geteuid():
            if not may_use(path, os.R_OK | os.W_OK | os.X_OK):
                raise StartError(f"{describe(path)} is another owner's and cannot be used by {whoami()}")
            return [f"{describe(path)} is another owner's and is taken as it is"]
        names = {entry.name for entry in path.iterdir()}
        if not all(name.startswith(MARKERS) for name in names) and not names & ours:
            raise StartError(
                f"{path} holds other files ({', '.join(sorted(names)[:3])}), expected an empty or a kvgate directory"
            )
        os.chown(path, -1, gid)
        path.chmod(mode)
    except OSError as error:
        group = "" if gid == -1 else f" and group {gid}"
        raise StartError(
            f"cannot make or take {path} with mode {mode:04o}{group}: {error.strerror}; {explain(path)}"
        ) from None
    return []
