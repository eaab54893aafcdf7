"""LOOKUP of 128 keys by eight client processes at 100 a second each, beside a bare echo at the same pace."""

import time
from contextlib import ExitStack

from benchmarks.echo import Echo
from benchmarks.gateway import fill, gateway, small_worker
from benchmarks.paced import Lap, PacedClient
from benchmarks.result import Result, median, micro, percentile
from benchmarks.row import Plan, main

CLIENTS = 8
KEYS = 128
RATE = 100


def run(plan: Plan) -> list[Result]:
    """Runs of the echo and of the gateway in turn; the first of each warms up."""
    runs, seconds = plan.rounds(5, 2), plan.rounds(3, 1)
    p99: dict[bool, list[float]] = {True: [], False: []}
    with ExitStack() as stack:
        daemon = stack.enter_context(gateway("64MiB").start())
        worker = stack.enter_context(small_worker(daemon))
        list(fill(worker, CLIENTS * KEYS))
        echo = stack.enter_context(Echo(daemon.base / "echo"))
        clients = [stack.enter_context(PacedClient(daemon.run_dir, echo.path, i, KEYS)) for i in range(CLIENTS)]
        for number in range(2 * (runs + 1)):
            asks_gateway = number % 2 == 1
            p99[asks_gateway].append(percentile(_lap(clients, asks_gateway, seconds), 0.99))
            plan.progress(number + 1, 2 * (runs + 1))
    ours, bare = median(p99[True][1:]), median(p99[False][1:])
    what = f"LOOKUP of {KEYS} keys, {CLIENTS} clients at {RATE}/s, p99 / echo"
    beside = f"{micro(ours)}; echo {micro(bare)}; median of {runs} runs"
    return [Result(what=what, measured=ours / bare, unit="x", bar=4, beside=beside)]


def _lap(clients: list[PacedClient], asks_gateway: bool, seconds: int) -> list[float]:
    begins_at = time.monotonic() + 0.05
    for i, client in enumerate(clients):
        client.tell(Lap(asks_gateway, begins_at + i / len(clients) / RATE, 1 / RATE, seconds * RATE))
    return [second for client in clients for second in client.read()]


if __name__ == "__main__":
    main(run)
