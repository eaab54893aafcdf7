"""Start of a gateway with a pool of 4 GiB, from exec to the ready line: every page of the pool is reserved by then."""

import time

from benchmarks.gateway import gateway
from benchmarks.result import Result, median
from benchmarks.row import Plan, main
from tests.support.daemon import Daemon


def run(plan: Plan) -> list[Result]:
    """Each start makes a new pool; for information, the start of a pool that is there already."""
    rounds = plan.rounds(5, 2)
    cold, warm = [], []
    for i in range(rounds):
        with gateway("4GiB") as daemon:
            cold.append(_start(daemon))
            daemon.kill()
            warm.append(_start(daemon))
        plan.progress(i + 1, rounds)
    beside = f"slowest {max(cold):.2f} s; on a pool that is there {median(warm):.2f} s"
    return [Result(what="Start to ready, 4 GiB pool", measured=median(cold), unit="s", bar=2, beside=beside)]


def _start(daemon: Daemon) -> float:
    began = time.monotonic()
    daemon.start()
    return time.monotonic() - began


if __name__ == "__main__":
    main(run)
