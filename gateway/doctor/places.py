"""Directories, their file system, and the room they offer.

Owns: checks of modes, owners, path lengths, free space and memory limits. Must not know: what runs there. Nothing is
changed. Any thread.
"""

import os
import stat
from pathlib import Path

from gateway.access import describe, explain, may_use
from gateway.doctor.finding import Finding, failed, ok, warning
from gateway.pool.memory import memory_rooms
from gateway.wire.messages import MAX_SOCKET_PATH_BYTES

_MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def check_run_dir(path: Path, if_missing: str) -> Finding:
    """Whether this process may use the directory that gateway and engines share.

    Args:
        path: of the directory.
        if_missing: what to do where it is not there.
    """
    name = "run_dir"
    if not may_use(path, os.R_OK | os.W_OK | os.X_OK):
        if _is_missing(path):
            return failed(name, f"{path} does not exist", if_missing)
        step = "run as its owner, or let the gateway give the directory to a common group: run_dir_group"
        return failed(name, f"this process may not use it: {explain(path)}", step)
    if not path.is_dir():
        return failed(name, f"{path} is no directory", "name the gateway's directory")
    if stat.S_IMODE(path.stat().st_mode) & stat.S_IRWXO:
        detail = f"{describe(path)}: every user of this machine can read and write what is cached"
        return warning(name, detail, f"chmod o-rwx {path}, and use run_dir_group for engines of other users")
    return ok(name, describe(path))


def check_admin_dir(path: Path) -> Finding:
    """Whether the operators' directory is the operators' alone."""
    name = "admin_dir"
    if _is_missing(path):
        return failed(name, f"{path} does not exist", "give --admin-dir where the gateway has another one")
    if not may_use(path, os.R_OK | os.X_OK):
        return failed(name, f"this process may not use it: {explain(path)}", "run as its owner")
    if stat.S_IMODE(path.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        return failed(name, f"{describe(path)}: others may drain and clear this gateway", f"chmod 700 {path}")
    return ok(name, describe(path))


def check_socket_paths(*paths: Path) -> Finding:
    """Whether the kernel takes these paths for Unix sockets."""
    longest = max(paths, key=lambda path: len(os.fsencode(path)))
    size = len(os.fsencode(longest))
    told = f"{longest} takes {size} bytes, at most {MAX_SOCKET_PATH_BYTES} are allowed"
    if size > MAX_SOCKET_PATH_BYTES:
        return failed("socket_path", told, "choose a shorter directory")
    return ok("socket_path", told)


def check_file_system(path: Path, root: Path = Path("/")) -> Finding:
    """Whether the directory lies on a memory file system."""
    kind = _file_system(path, root)
    if kind in _MEMORY_FILE_SYSTEMS:
        return ok("file_system", f"{path} is on {kind}")
    detail = f"{path} is on {kind}, which writes the cache to a disk"
    return warning("file_system", detail, "put run_dir on a memory file system, below /dev/shm for instance")


def check_space(directory: Path, pool: Path, pool_bytes: int) -> Finding:
    """Whether the file system has room for what the pool lacks yet."""
    missing = missing_bytes(pool, pool_bytes)
    system = os.statvfs(directory)
    free = system.f_bavail * system.f_frsize
    if not system.f_blocks:  # a tmpfs without a limit
        return ok("space", "the file system has no limit")
    told = f"the file system has {_size(free)} free, the pool lacks {_size(missing)}"
    if missing > free:
        return failed("space", told, "make the file system larger, or pool_size smaller")
    return ok("space", told)


def check_memory_limits(pool: Path, pool_bytes: int, root: Path = Path("/")) -> Finding:
    """Whether the control groups of this process, version 1 or 2, leave room for what the pool lacks yet."""
    missing = missing_bytes(pool, pool_bytes)
    rooms = memory_rooms(root)
    if not rooms:
        return ok("memory_limit", "no control group of this process has a memory limit")
    tightest = min(rooms, key=lambda room: room.free_bytes)
    told = (
        f"control group {tightest.group} leaves {_size(tightest.free_bytes)} of {_size(tightest.limit_bytes)}, "
        f"the pool lacks {_size(missing)}"
    )
    if missing > tightest.free_bytes:
        return failed("memory_limit", told, f"raise the memory limit of {tightest.group}, or make pool_size smaller")
    return ok("memory_limit", told)


def missing_bytes(pool: Path, pool_bytes: int) -> int:
    """Memory a start would have to reserve yet, for the file there, or for one of ``pool_bytes``."""
    try:
        status = pool.stat()
    except OSError:
        return pool_bytes
    return max(0, status.st_size - status.st_blocks * 512)


def _is_missing(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _file_system(path: Path, root: Path) -> str:
    """The type of the file system ``path`` lies on, as /proc/self/mountinfo calls it (proc(5))."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = (root / "proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return "an unknown file system"
    for line in lines:
        fields, _, rest = line.partition(" - ")
        if fields.split()[2:3] == [wanted] and rest:
            return rest.split()[0]
    return "an unknown file system"


def _size(number: int) -> str:
    for unit, name in _UNITS:
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number} B"
