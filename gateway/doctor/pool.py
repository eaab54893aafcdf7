"""The pool file: what it says of itself, and who holds locks on it.

Owns: checks of its header and its locks, and the counts a bundle tells. Must not know: sockets. Only looks. Any thread.
"""

import json
import os
from pathlib import Path

from gateway.access import explain
from gateway.doctor.finding import Finding, failed, ok, skipped, warning
from gateway.lock import LockObserver, daemon_offset
from gateway.pool.format import HEADER_PAGES_BYTES, HeaderPage, PoolFormatError, decode_pages
from gateway.run_dir import FACTS


def read_page(pool: Path) -> HeaderPage:
    """The file's header page.

    Raises:
        OSError: it cannot be read.
        PoolFormatError: it is no pool of this version's format.
    """
    with pool.open("rb") as file:
        return decode_pages(file.read(HEADER_PAGES_BYTES))


def check_pool(pool: Path) -> Finding:
    """Whether there is a pool file that this version reads."""
    name = "pool"
    try:
        page = read_page(pool)
        status = pool.stat()
    except FileNotFoundError:
        return failed(name, f"{pool} does not exist", "start the gateway, which makes it")
    except PermissionError:
        step = "run as its owner, or let the gateway give it to a common group: run_dir_group"
        return failed(name, f"this process may not read it: {explain(pool)}", step)
    except OSError as error:
        return failed(name, f"{pool} cannot be read: {error}", "look at the file system it lies on")
    except PoolFormatError as error:
        step = "use the version of kvgate that made it; a gateway of this version sets it aside and starts cold"
        return warning(name, f"{pool}: {error}", step)
    if status.st_size != page.layout.file_bytes:
        detail = f"{pool} has {status.st_size} bytes, its header says {page.layout.file_bytes}"
        return warning(name, detail, "restart the gateway: it sets the file aside")
    aside = sorted(pool.parent.glob(f"{pool.name}.set-aside.*"))
    if aside:
        detail = f"{len(aside)} older pool files still take memory, because engines hold them"
        return warning(name, detail, "restart the engines that were not restarted since the gateway was")
    share = status.st_blocks * 512 / page.layout.file_bytes
    return ok(name, f"{pool}: {page.layout.data_bytes} bytes, {share:.0%} of it reserved, boot {page.boot_epoch}")


def is_daemon_there(pool: Path) -> bool | None:
    """Whether the daemon's lock is held; None: it cannot be looked at."""
    try:
        observer = LockObserver.open(pool)
    except OSError:
        return None
    try:
        return observer.is_held(daemon_offset())
    except OSError:
        return None
    finally:
        observer.close()


def check_locks(pool: Path, if_free: str) -> Finding:
    """Whether a daemon lives here, by the kernel's word, and whether engines do.

    Args:
        pool: of the gateway.
        if_free: what to do where no daemon lives.
    """
    name = "locks"
    try:
        observer = LockObserver.open(pool)
    except OSError as error:
        return skipped(name, f"{pool} cannot be opened: {error.strerror}")
    try:
        is_held, are_engines = observer.is_held(daemon_offset()), observer.is_any_party_held()
    except OSError as error:
        step = "put run_dir on a file system with open-file-description locks, such as tmpfs"
        return failed(name, f"the locks of {pool} cannot be asked for: {error}", step)
    finally:
        observer.close()
    engines = "engines hold theirs" if are_engines else "no engine holds one"
    if not is_held:
        return failed(name, f"no daemon holds its lock on {pool}; {engines}", if_free)
    return ok(name, f"a daemon holds its lock ({_who(pool.parent / FACTS)}); {engines}")


def _who(facts: Path) -> str:
    """Who says to run here; the lock proves that somebody does."""
    try:
        return f"pid {json.loads(facts.read_text('utf-8'))['pid']}"
    except (OSError, ValueError, TypeError, KeyError):
        return "of unknown pid"


def held_offsets(pool: Path, proc: Path = Path("/proc")) -> list[int]:
    """Where locks lie on the file, by /proc/locks; empty where the kernel shows none of it."""
    status = pool.stat()
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    found = []
    for line in (proc / "locks").read_text("ascii", "replace").splitlines():
        fields = line.split()
        if "OFDLCK" in fields and "->" not in fields and wanted in fields:
            found.append(int(fields[-2]))
    return sorted(found)
