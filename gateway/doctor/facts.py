"""What the machine knows of a gateway, whether or not it answers: files, locks, memory, its process.

Owns: reading them into plain documents for a bundle. Must not know: messages. Only looks. Any thread.
"""

import json
import os
import platform
import stat
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import msgspec

from gateway import __version__
from gateway.doctor.pool import held_offsets, is_daemon_there, read_page
from gateway.lock import LockObserver, daemon_offset
from gateway.metrics.process import read_process, stuck_where
from gateway.pool.memory import memory_rooms
from gateway.run_dir import FACTS, POOL
from gateway.wire.messages import POOL_FORMAT, PROTOCOL_VERSION

Document = dict[str, object]


def versions() -> Document:
    """Of everything that may not fit together."""
    return {
        "kvgate": __version__,
        "protocol": PROTOCOL_VERSION,
        "pool_format": POOL_FORMAT,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "executable": sys.executable,
    }


def redacted(settings: Mapping[str, object]) -> Document:
    """Settings without what leads to a secret."""
    return {name: "(set)" if "token" in name and value else value for name, value in settings.items()}


def allocation(run_dir: Path, admin_dir: Path) -> Document:
    """Files with their sizes, memory, modes and owners; the file system's room; limits; the pool's header.

    Raises:
        OSError: a directory cannot be read.
    """
    system = os.statvfs(run_dir)
    document: Document = {
        "files": [_file(path) for folder in (run_dir, admin_dir) for path in [folder, *sorted(folder.glob("*"))]],
        "file_system": {"bytes": system.f_blocks * system.f_frsize, "free_bytes": system.f_bavail * system.f_frsize},
        "memory_limits": [asdict(room) for room in memory_rooms()],
    }
    page = read_page(run_dir / POOL)
    document["pool"] = {**msgspec.to_builtins(page), "pool_id": page.pool_id.hex()}
    return document


def locks(run_dir: Path) -> Document:
    """Who holds locks on the pool file: the daemon, and how many parties.

    Raises:
        OSError: the file cannot be opened.
    """
    pool = run_dir / POOL
    observer = LockObserver.open(pool)
    try:
        document: Document = {
            "inode": observer.inode[1],
            "daemon_held": observer.is_held(daemon_offset()),
            "any_party_held": observer.is_any_party_held(),
        }
    finally:
        observer.close()
    document["held_offsets"] = held_offsets(pool)
    return document


def process(run_dir: Path) -> Document:
    """The core's process: its state, and the kernel function it sleeps in; a hung one is told by it.

    Raises:
        OSError, ValueError: nothing says who runs there.
    """
    facts: Document = json.loads((run_dir / FACTS).read_text("utf-8"))
    if not is_daemon_there(run_dir / POOL):
        return {**facts, "process": "the daemon's lock is free: it is dead"}
    pid = int(str(facts["pid"]))
    stats = read_process(pid)
    return {**facts, "process": stuck_where(pid), "usage": None if stats is None else asdict(stats)}


def _file(path: Path) -> Document:
    status = path.lstat()
    return {
        "path": str(path),
        "mode": stat.filemode(status.st_mode),
        "uid": status.st_uid,
        "gid": status.st_gid,
        "bytes": status.st_size,
        "allocated_bytes": status.st_blocks * 512,
        "inode": status.st_ino,
        "modified_at": status.st_mtime,
    }
