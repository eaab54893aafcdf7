"""Private memory of the core and the admin process together, the pool excluded, with 100,000 chunks."""

import urllib.request
from pathlib import Path

from benchmarks.gateway import fill, gateway, small_worker
from benchmarks.result import Result
from benchmarks.row import Plan, main
from tests.support.daemon import Daemon

CHUNKS = 100_000
POOL = {"KVGATE_SLAB_SIZE": "4MiB", "KVGATE_MIN_CHUNK_BYTES": "4KiB"}
SCRAPES = 20
BASE_BYTES, BYTES_A_CHUNK = 200e6, 512


def run(plan: Plan) -> list[Result]:
    """Once empty, once full, once after a restart; scraped before each look, so that all code is there."""
    with gateway("400MiB", **POOL).start() as daemon:
        empty = _private_bytes(daemon)
        plan.progress(1, 3)
        with small_worker(daemon) as worker:
            list(fill(worker, CHUNKS))
        full = _private_bytes(daemon)
        plan.progress(2, 3)
        daemon.kill()
        daemon.start()
        restarted = _private_bytes(daemon)
    bar = (BASE_BYTES + BYTES_A_CHUNK * CHUNKS) / 1e6
    beside = f"filled {full / 1e6:.0f} MB, restarted {restarted / 1e6:.0f} MB, empty {empty / 1e6:.0f} MB"
    what = f"Private memory, {CHUNKS:,} chunks"
    return [Result(what=what, measured=max(full, restarted) / 1e6, unit="MB", bar=bar, beside=beside)]


def _private_bytes(daemon: Daemon) -> int:
    for _ in range(SCRAPES):
        with urllib.request.urlopen(f"{daemon.admin_url}/metrics", timeout=10) as answer:  # noqa: S310 - our own
            answer.read()
    return sum(_private_of(pid, daemon.pool) for pid in daemon.processes())


def _private_of(pid: int, pool: Path) -> int:
    """Private bytes of a process over all its mappings but the pool file's."""
    total, counts = 0, True
    for line in (Path("/proc") / str(pid) / "smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):  # a mapping begins
            counts = not line.endswith(str(pool))
        elif counts and name.startswith("Private_"):
            total += 1024 * int(rest.split()[0])
    return total


if __name__ == "__main__":
    main(run)
