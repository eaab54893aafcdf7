"""``python -m adapter.doctor --run-dir DIR``: whether an engine could use the gateway, asked from inside its container.

Owns: which checks an engine's side needs, and the ones that only it can make: mapping the pool, taking a lock. Must not
know: the gateway's settings. Needs what the adapter needs, and nothing more. It registers nothing, writes nothing to
the pool, and ends within a few seconds. Runs on the main thread.
"""

import argparse
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.device.copy import extension_available
from gateway.doctor import answers, places
from gateway.doctor import pool as pool_checks
from gateway.doctor.finding import Finding, Verdict, as_document, as_text, failed, has_failed, ok, skipped, warning
from gateway.lock import DeathLock, LockObserver, party_offset
from gateway.pool.format import PoolFormatError
from gateway.pool.mapping import PoolMapping

_OF_RUN_DIR = ("file_system", "pool", "mapping", "own_lock", "locks")


def examine(run_dir: Path) -> list[Finding]:
    """Every check of an engine's side."""
    pool = run_dir / "pool"
    usable = places.check_run_dir(run_dir, "mount the gateway's run_dir into this container, or correct the path")
    found = [
        usable,
        places.check_socket_paths(run_dir / "gateway.sock"),
    ]
    pool_id = None
    if usable.verdict is not Verdict.FAILED:
        mapping, pool_id = check_mapping(pool)
        found += [
            places.check_file_system(run_dir),
            pool_checks.check_pool(pool),
            mapping,
            check_own_lock(pool),
            pool_checks.check_locks(
                pool, "start the gateway; where it runs, mount its own directory: both must see one file on one kernel"
            ),
        ]
    else:
        found += [skipped(name, f"{run_dir} cannot be used") for name in _OF_RUN_DIR]
    is_there = bool(pool_checks.is_daemon_there(pool))
    found += answers.check_engine_socket(run_dir / "gateway.sock", is_daemon_there=is_there, pool_id=pool_id)
    found.append(check_copies())
    return found


def check_mapping(pool: Path) -> tuple[Finding, bytes | None]:
    """Whether headers can be mapped for reading and data for writing, as the adapter does; and the pool's id."""
    name = "mapping"
    try:
        mapping = PoolMapping.open(pool)
    except (OSError, PoolFormatError) as error:
        return failed(name, f"{pool} cannot be mapped: {error}", "see the checks of run_dir and pool above"), None
    try:
        mapping.read_header(0)
        with mapping.data(0, 1) as first:
            bytes(first)
        return ok(name, f"headers read-only, {mapping.data_bytes} bytes of data read-write"), mapping.pool_id
    finally:
        mapping.close()


def check_own_lock(pool: Path) -> Finding:
    """Whether an engine's proof-of-death lock can be taken here, and is seen by another open file."""
    name = "own_lock"
    offset = party_offset(secrets.token_bytes(16))
    step = "put run_dir on a file system with open-file-description locks, such as tmpfs"
    try:
        observer = LockObserver.open(pool)
    except OSError as error:
        return skipped(name, f"{pool} cannot be opened: {error.strerror}")
    try:
        lock = DeathLock.take(pool, offset)
        try:
            is_seen = observer.is_held(offset)
        finally:
            lock.close()
        is_seen = is_seen and not observer.is_held(offset)
    except OSError as error:
        return failed(name, f"no lock can be taken on {pool}: {error}", step)
    finally:
        observer.close()
    if not is_seen:
        return failed(name, f"a lock on {pool} is not seen by another open file", step)
    return ok(name, "taken, seen held, and free again")


def check_copies() -> Finding:
    """Whether the C extension is there."""
    if extension_available():
        return ok("copies", "by the C extension")
    return warning("copies", "in plain Python: correct, and slower", "install kvgate where there is a C compiler")


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the findings; 0 when nothing failed, else 1; 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m adapter.doctor", description="Whether an engine in this place could use the gateway."
    )
    parser.add_argument("--run-dir", default=environ.get("KVGATE_RUN_DIR"), help="the gateway's shared directory")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if not options.run_dir:
        parser.error("which gateway? Give --run-dir or KVGATE_RUN_DIR")
    findings = examine(Path(options.run_dir).absolute())
    text = json.dumps(as_document(findings), indent=2) if options.json else as_text(findings)
    sys.stdout.write(text + "\n")
    return 1 if has_failed(findings) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
