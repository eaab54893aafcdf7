"""What operators cost: a refresh of their page and a scrape, with 64 engines and 10,000 operations, and lookups beside.

The lookups are 128 keys at 100 a second, laps with the page open and without in turn. Engines send their heartbeats in
both kinds of laps.
"""

import threading
import time
import urllib.request
from contextlib import ExitStack

import msgspec

from benchmarks.echo import Echo
from benchmarks.gateway import SMALL_CHUNK_BYTES, fill, gateway, small_worker
from benchmarks.paced import Lap, PacedClient
from benchmarks.result import Result, median, percentile
from benchmarks.row import Plan, main
from gateway.wire.codes import OperationKind, OutcomeKind, Phase, State
from gateway.wire.messages import AdapterStats, OperationInfo
from tests.support.busy import Busy
from tests.support.daemon import Daemon
from tests.support.party import RawParty

ENGINES = 64
PENDING = 141  # an engine: with the 1,000 that the gateway remembers as settled, 10,000 in all
SETTLED = 16
BEAT_SECONDS = 2.0
KEYS = 128
RATE = 100


def run(plan: Plan) -> list[Result]:
    """Medians over rounds and laps."""
    rounds, laps, seconds = plan.rounds(20, 5), plan.rounds(5, 2), plan.rounds(4, 2)
    p99: dict[bool, list[float]] = {False: [], True: []}
    with ExitStack() as stack:
        daemon = stack.enter_context(gateway("1GiB").start())
        with small_worker(daemon) as worker:
            list(fill(worker, KEYS))
        stack.enter_context(Fleet(daemon))
        refresh = [_get(f"{daemon.admin_url}/v1/overview") for _ in range(rounds)]
        scrape = [_get(f"{daemon.admin_url}/metrics") for _ in range(rounds)]
        echo = stack.enter_context(Echo(daemon.base / "echo"))
        client = stack.enter_context(PacedClient(daemon.run_dir, echo.path, 0, KEYS))
        for number in range(2 * (laps + 1)):
            is_open = number % 2 == 1
            with Page(daemon.admin_url if is_open else ""):
                client.tell(Lap(True, time.monotonic() + 0.1, 1 / RATE, seconds * RATE))
                p99[is_open].append(percentile(client.read(), 0.99))
            plan.progress(number + 1, 2 * (laps + 1))
    closed, opened = (median(p99[is_open][1:]) for is_open in (False, True))
    return [
        Result(
            what="page refresh, 64 engines, 10,000 operations",
            measured=1e3 * median([seconds for seconds, _ in refresh]),
            unit="ms",
            bar=100,
            beside=f"{refresh[-1][1] >> 10} KiB, p99 {1e3 * percentile([s for s, _ in refresh], 0.99):.0f} ms",
        ),
        Result(
            what="scrape, 64 engines, 10,000 operations",
            measured=1e3 * median([seconds for seconds, _ in scrape]),
            unit="ms",
            bar=100,
            beside=f"{scrape[-1][1] >> 10} KiB, p99 {1e3 * percentile([s for s, _ in scrape], 0.99):.0f} ms",
        ),
        Result(
            what="LOOKUP p99 with the page open / closed",
            measured=opened / closed,
            unit="x",
            bar=1.2,
            beside=f"{1e6 * opened:,.0f} µs; closed {1e6 * closed:,.0f} µs",
        ),
    ]


def _get(url: str) -> tuple[float, int]:
    """Seconds and bytes of one answer."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - our own
        size = len(answer.read())
    return time.perf_counter() - began, size


class Fleet:
    """Worker halves that send heartbeats as engines with much to do would."""

    def __init__(self, daemon: Daemon) -> None:
        told = Busy(ENGINES).snapshot().engines[0]
        pending = tuple(_operation(number, None) for number in range(PENDING))
        settled = tuple(_operation(number, OutcomeKind.STORED) for number in range(SETTLED))
        self._first = AdapterStats(
            state=State.HEALTHY,
            gauges=told.gauges,
            counters=told.counters,
            histograms=told.histograms,
            pending=pending,
            settled=settled,
        )
        self._later = msgspec.structs.replace(self._first, settled=())
        self._parties = [
            RawParty(
                daemon.run_dir, engine=f"engine-{number}", group=f"fleet-{number}", chunk_bytes=SMALL_CHUNK_BYTES
            ).register()
            for number in range(ENGINES)
        ]
        self._is_over = threading.Event()
        self._beating = threading.Thread(target=self._beat)

    def _beat(self) -> None:
        while not self._is_over.is_set():
            for party in self._parties:
                if self._is_over.wait(BEAT_SECONDS / ENGINES):
                    return
                party.ping(stats=self._later)

    def __enter__(self) -> None:
        for party in self._parties:
            party.ping(stats=self._first)
        self._beating.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._beating.join()
        for party in self._parties:
            party.close()


def _operation(number: int, outcome: OutcomeKind | None) -> OperationInfo:
    return OperationInfo(
        number=number,
        request_id=f"chatcmpl-{number:024x}",
        kind=OperationKind.STORE,
        phase=Phase.COPYING if outcome is None else Phase.SETTLED,
        age_seconds=0.01 * number,
        chunks=16,
        outcome=outcome,
        settled_at=0.0 if outcome is None else time.time(),
    )


class Page:
    """Somebody who watches; nobody without an address."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_over = threading.Event()
        self._watching = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        if not self._url:
            return
        with urllib.request.urlopen(f"{self._url}/v1/events", timeout=30) as answer:  # noqa: S310 - our own
            while not self._is_over.is_set() and answer.readline():
                pass

    def __enter__(self) -> None:
        self._watching.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._watching.join()


if __name__ == "__main__":
    main(run)
