"""LOOKUP of 128 keys at 100 a second, p99, while two engines copy and the gateway is scraped each second.

Idle and busy laps in turn. The engines are processes of their own, and so is the client.
"""

import threading
import time
import urllib.request
from contextlib import ExitStack

from benchmarks.busy_engine import BusyEngine
from benchmarks.echo import Echo
from benchmarks.gateway import fill, gateway, small_worker
from benchmarks.paced import Lap, PacedClient
from benchmarks.result import Result, median, micro, percentile
from benchmarks.row import Plan, main

ENGINES = 2
KEYS = 128
RATE = 100
SCRAPE_SECONDS = 1.0


def run(plan: Plan) -> list[Result]:
    """Medians over the laps of each kind; the first of each warms up."""
    laps, seconds = plan.rounds(5, 2), plan.rounds(4, 2)
    p99: dict[bool, list[float]] = {False: [], True: []}
    bare: dict[bool, list[float]] = {False: [], True: []}
    with ExitStack() as stack:
        daemon = stack.enter_context(gateway("2GiB").start())
        with small_worker(daemon) as worker:
            list(fill(worker, KEYS))
        echo = stack.enter_context(Echo(daemon.base / "echo"))
        client = stack.enter_context(PacedClient(daemon.run_dir, echo.path, 0, KEYS))
        engines = [stack.enter_context(BusyEngine(daemon.run_dir)) for _ in range(ENGINES)]
        for number in range(2 * (laps + 1)):
            is_busy = number % 2 == 1
            with Load(engines if is_busy else [], 2 * seconds + 1, f"{daemon.admin_url}/metrics"):
                for asks_gateway, series in ((True, p99), (False, bare)):
                    client.tell(Lap(asks_gateway, time.monotonic() + 0.1, 1 / RATE, seconds * RATE))
                    series[is_busy].append(percentile(client.read(), 0.99))
            plan.progress(number + 1, 2 * (laps + 1))
    idle, busy = (median(p99[is_busy][1:]) for is_busy in (False, True))
    idle_bare, busy_bare = (median(bare[is_busy][1:]) for is_busy in (False, True))
    return [
        Result(
            what="LOOKUP p99 under two copies and a scrape / idle",
            measured=busy / idle,
            unit="x",
            bar=3,
            beside=f"{micro(busy)}; idle {micro(idle)}; echo {micro(busy_bare)}, idle {micro(idle_bare)}",
        )
    ]


class Load:
    """Engines that copy, and a scrape each second; none of both without engines."""

    def __init__(self, engines: list[BusyEngine], seconds: float, url: str) -> None:
        self._engines = engines
        self._seconds = seconds
        self._url = url
        self._is_over = threading.Event()
        self._scraper = threading.Thread(target=self._scrape)

    def _scrape(self) -> None:
        while self._engines and not self._is_over.wait(SCRAPE_SECONDS):
            with urllib.request.urlopen(self._url, timeout=10) as answer:  # noqa: S310 - our own
                answer.read()

    def __enter__(self) -> None:
        for engine in self._engines:
            engine.copy_for(self._seconds)
        self._scraper.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._scraper.join()
        for engine in self._engines:
            engine.wait()


if __name__ == "__main__":
    main(run)
