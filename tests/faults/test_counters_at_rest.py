"""Counters that rise while nothing happens, gauges nobody could have, a hit rate that is always one."""

import math

from gateway.wire.codes import Role
from tests.support import scrape
from tests.support.daemon import Daemon
from tests.support.engine import Engine, blocks, tokens
from tests.support.party import RawParty
from tests.support.poll import until

#: What a gateway does by itself: requests of heartbeats and scrapes, processor time, wakeups.
BY_ITSELF = ("kvgate_requests", "kvgate_request_", "process_", "python_", "kvgate_scrape", "kvgate_process")


def counters(series: scrape.Series) -> dict[object, float]:
    ends = ("_total", "_bucket", "_count", "_sum")
    return {
        name: value for name, value in series.items() if name[0].endswith(ends) and not name[0].startswith(BY_ITSELF)
    }


def test_no_counter_rises_while_nothing_happens(daemon: Daemon) -> None:
    with Engine(daemon.run_dir, name="resting").wait_healthy() as engine:
        engine.store_and_wait("stored", tokens(4), blocks(4), seed=1)
        last = "kvgate_engine_last_heartbeat_timestamp_seconds"

        def heartbeat() -> float:
            return scrape.value(scrape.of_gateway(daemon.admin_url), last, engine="resting")

        settled = heartbeat() + 1
        until(lambda: heartbeat() > settled, what="heartbeats have told everything")
        before = counters(scrape.of_gateway(daemon.admin_url))
        later = heartbeat() + 1
        until(lambda: heartbeat() > later, what="several more")

        assert counters(scrape.of_gateway(daemon.admin_url)) == before
        assert any(before.values())


def test_a_gateway_nobody_has_used_has_no_figure_out_of_this_world() -> None:
    with Daemon() as fresh:
        series = scrape.of_gateway(fresh.start().admin_url)
        assert len(series) > 100
        assert {name: value for name, value in series.items() if not 0 <= value < 2**53 or math.isnan(value)} == {}


def test_four_hits_of_ten_are_four_tenths(daemon: Daemon) -> None:
    def tokens_of(name: str) -> float:
        return scrape.value(scrape.of_gateway(daemon.admin_url), f"kvgate_{name}_tokens_total", model="ten")

    with (
        RawParty(daemon.run_dir, model="ten", namespace=b"ten lookups     ") as worker,
        RawParty(daemon.run_dir, Role.SCHEDULER, model="ten", namespace=b"ten lookups     ") as scheduler,
    ):
        worker.register()
        scheduler.register()
        worker.store(range(4))
        for number in range(10):
            assert scheduler.lookup((number,), number + 1) == (number < 4)
        assert tokens_of("hit") / tokens_of("lookup") == 0.4
