import gc
import math
import os
import signal
import threading
import weakref

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from adapter import measurements
from adapter.measurements import LinkCounts, Measurements, Readings
from adapter.metrics import AdapterCollector
from adapter.totals import PendingCounts, Totals
from gateway.metrics.table import ADAPTER, Type
from gateway.wire.codes import OperationKind, OutcomeKind, Proof, State


class FakeAdapter:
    """Reads as it is told."""

    def __init__(self, *, stores: int = 0, oldest: float = 0.0) -> None:
        self.counts = PendingCounts(stores=stores, retrieves=0, events=stores, settling=0, oldest_wall=oldest)
        self.totals = Totals()
        self.measurements = Measurements()

    def readings(self) -> Readings:
        return measurements.read(
            state=State.HEALTHY,
            counts=self.counts,
            totals=self.totals,
            measurements=self.measurements,
            link=LinkCounts(1, 2, 3),
            block_tokens=16,
        )


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"kvgate_adapter_{name}", labels)


def test_every_series_of_the_table_is_there_from_the_start() -> None:
    registry = CollectorRegistry()
    AdapterCollector.of(registry).add(adapter := FakeAdapter())
    families = {family.name: family for family in registry.collect()}
    assert families.keys() == {f"kvgate_adapter_{metric.name}" for metric in ADAPTER}
    for metric in ADAPTER:
        family = families[f"kvgate_adapter_{metric.name}"]
        assert family.type == metric.type
        series = {tuple(sample.labels.items()) for sample in family.samples if "le" not in sample.labels}
        assert len(series) == math.prod(len(label.values or ()) for label in metric.labels)
    assert value(registry, "operations_total", kind="store", outcome="revoked") == 0
    assert adapter is not None


def test_readings_are_the_tables_names() -> None:
    readings = FakeAdapter().readings()
    types = {metric.name: metric.type for metric in ADAPTER}
    assert {types[sample.name] for sample in readings.gauges} == {Type.GAUGE}
    assert {types[sample.name] for sample in readings.counters} == {Type.COUNTER}
    buckets = {metric.name: len(metric.buckets) + 1 for metric in ADAPTER}
    assert all(len(sample.counts) == buckets[sample.name] for sample in readings.histograms)


def test_totals_become_samples() -> None:
    registry = CollectorRegistry()
    adapter = FakeAdapter()
    AdapterCollector.of(registry).add(adapter)
    adapter.totals.count_settled(OperationKind.STORE, OutcomeKind.STORED, Proof.COPY_DONE, 0.002)
    adapter.totals.bytes[OperationKind.STORE] += 4096
    adapter.totals.loaded_blocks = 3
    adapter.totals.failed_verifications = 5
    adapter.totals.wasted_blocks["revoked"] = 2
    adapter.measurements.wasted_tokens["released"] = 7
    adapter.measurements.observe(adapter.measurements.lookup_wait, 0.03)
    assert value(registry, "operations_total", kind="store", outcome="stored") == 1
    assert value(registry, "settled_by_total", proof="copy_done") == 1
    assert value(registry, "bytes_total", kind="store") == 4096
    assert value(registry, "loaded_tokens_total") == 48
    assert value(registry, "failed_verifications_total") == 5
    assert value(registry, "wasted_tokens_total", reason="revoked") == 32
    assert value(registry, "wasted_tokens_total", reason="released") == 7
    assert value(registry, "late_replies_total") == 1
    assert value(registry, "reconnects_total") == 2
    assert value(registry, "gateway_flaps_total") == 3
    assert value(registry, "gateway_state", state="healthy") == 1
    assert value(registry, "gateway_state", state="dead") == 0
    assert value(registry, "operation_duration_seconds_count", kind="store") == 1
    assert value(registry, "operation_duration_seconds_bucket", kind="store", le="0.001") == 0
    assert value(registry, "operation_duration_seconds_bucket", kind="store", le="0.0025") == 1
    assert value(registry, "lookup_wait_seconds_bucket", le="0.05") == 1
    assert value(registry, "lookup_wait_seconds_sum") == pytest.approx(0.03)


@pytest.mark.parametrize("bad", [-0.001, math.nan, math.inf, -math.inf])
def test_a_value_no_clock_gives_is_dropped_and_counted(bad: float) -> None:
    taken = Measurements()
    taken.observe(taken.load_wait, bad)
    assert taken.invalid_samples == 1
    assert sum(taken.load_wait.counts) == 0
    assert taken.load_wait.sum == 0.0


def test_adapters_of_one_registry_are_summed() -> None:
    registry = CollectorRegistry()
    first, second = FakeAdapter(stores=2, oldest=200.0), FakeAdapter(stores=3, oldest=100.0)
    for adapter in (first, second):
        AdapterCollector.of(registry).add(adapter)
    assert value(registry, "pending_stores") == 5
    assert value(registry, "retained_events") == 5
    assert value(registry, "oldest_pending_timestamp_seconds") == 100.0
    assert b"kvgate_adapter_pending_stores 5.0" in generate_latest(registry)


def test_a_closed_adapter_leaves_its_counters_and_takes_its_gauges() -> None:
    registry = CollectorRegistry()
    collector = AdapterCollector.of(registry)
    closing, staying = FakeAdapter(stores=2), FakeAdapter(stores=1)
    for adapter in (closing, staying):
        adapter.totals.drains["close"] += 1
        adapter.totals.count_settled(OperationKind.STORE, OutcomeKind.STORED, Proof.COPY_DONE, 0.5)
        collector.add(adapter)
    collector.remove(closing)
    collector.remove(closing)
    assert value(registry, "pending_stores") == 1
    assert value(registry, "drains_total", trigger="close") == 2
    assert value(registry, "operation_duration_seconds_count", kind="store") == 2


def test_the_collector_keeps_no_adapter_alive() -> None:
    registry = CollectorRegistry()
    adapter = FakeAdapter(stores=4)
    AdapterCollector.of(registry).add(adapter)
    gone = weakref.ref(adapter)
    del adapter
    gc.collect()
    assert gone() is None
    assert value(registry, "pending_stores") == 0


def test_a_forked_child_begins_with_nobody_though_its_parent_is_being_scraped() -> None:
    registry = CollectorRegistry()
    AdapterCollector.of(registry).add(adapter := FakeAdapter(stores=4))
    scraping, go_on = threading.Event(), threading.Event()
    readings = adapter.readings

    def slow() -> Readings:
        scraping.set()
        assert go_on.wait(30)
        return readings()

    adapter.readings = slow  # type: ignore[method-assign]
    scraper = threading.Thread(target=lambda: list(registry.collect()))
    scraper.start()
    assert scraping.wait(30)
    child = os.fork()
    if not child:
        signal.alarm(20)  # a child that waits is ended
        own = FakeAdapter(stores=1)
        AdapterCollector.of(registry).add(own)
        os._exit(0 if value(registry, "pending_stores") == 1 else 1)
    go_on.set()
    scraper.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert value(registry, "pending_stores") == 4
