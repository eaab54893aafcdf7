"""Warm start with 100,000 slots of 4 KiB: from exec to a WELCOME that says ready, less what importing takes.

Importing is measured in turn with the starts: the same interpreter imports the daemon and ends.
"""

import subprocess
import sys
import time

from benchmarks.gateway import fill, gateway, small_worker
from benchmarks.result import Result, median
from benchmarks.row import Plan, main
from gateway.client import GatewayClient, GatewayUnreachable
from gateway.wire.codes import Lifecycle
from tests.support.daemon import REPOSITORY, Daemon

CHUNKS = 100_000
POOL = {"KVGATE_SLAB_SIZE": "4MiB", "KVGATE_MIN_CHUNK_BYTES": "4KiB"}
IMPORTING = (sys.executable, "-c", "import gateway.cli.main, gateway.cli.serve, gateway.daemon")
GIVE_UP_SECONDS = 30.0


def run(plan: Plan) -> list[Result]:
    """Kill and restart one daemon over and over."""
    rounds = plan.rounds(5, 2)
    starts, imports = [], []
    with gateway("400MiB", **POOL).start() as daemon:
        with small_worker(daemon) as worker:
            list(fill(worker, CHUNKS))
        for i in range(rounds):
            daemon.kill()
            daemon.socket.unlink()
            starts.append(_start(daemon))
            imports.append(_import())
            plan.progress(i + 1, rounds)
        found = daemon.snapshot().slots.ready
    beside = f"from exec {median(starts):.2f} s; importing {median(imports):.2f} s; {found:,} chunks back"
    what = f"Restart with {CHUNKS:,} slots, beyond importing"
    return [Result(what=what, measured=median(starts) - median(imports), unit="s", bar=0.5, beside=beside)]


def _start(daemon: Daemon) -> float:
    began = time.monotonic()
    daemon.spawn()
    while not _is_ready(daemon):
        assert time.monotonic() < began + GIVE_UP_SECONDS, "the gateway does not come back"
        time.sleep(0.002)
    seconds = time.monotonic() - began
    daemon.wait_ready()
    return seconds


def _is_ready(daemon: Daemon) -> bool:
    if not daemon.socket.exists():
        return False
    try:
        with GatewayClient(daemon.socket, timeout_seconds=GIVE_UP_SECONDS) as client:
            return client.hello().state is Lifecycle.READY
    except GatewayUnreachable:
        return False


def _import() -> float:
    began = time.monotonic()
    subprocess.run(IMPORTING, cwd=REPOSITORY, check=True)
    return time.monotonic() - began


if __name__ == "__main__":
    main(run)
