"""The adapter's metrics for Prometheus: ``kvgate_adapter_…`` in the caller's registry or a private one.

Owns: the collector of one registry. Must not know: where readings come from. ``collect`` runs on whichever thread
scrapes.

All adapters of a registry share one collector, because a registry takes a name once; it sums them. What was counted by
an adapter that has closed stays counted: a counter never falls.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from adapter.measurements import Readings, label_sets
from gateway.metrics.table import ADAPTER, ADAPTER_PREFIX, Type
from gateway.metrics.table import Metric as TableMetric
from gateway.wire.messages import HistogramSample, Sample

_PLACE = "_kvgate_adapter_collector"
_OLDEST = "oldest_pending_timestamp_seconds"
Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily
_FAMILIES: dict[Type, type[Family]] = {
    Type.GAUGE: GaugeMetricFamily,
    Type.COUNTER: CounterMetricFamily,
    Type.HISTOGRAM: HistogramMetricFamily,
}


class Source(Protocol):
    """Whoever can be read: an adapter."""

    def readings(self) -> Readings:
        """Its metrics now. Any thread."""
        ...


class AdapterCollector(Collector):
    """Reads every adapter of one registry and sums. Adapters are referred to weakly."""

    def __init__(self) -> None:
        self._begin()
        forget = weakref.WeakMethod(self._begin)
        os.register_at_fork(after_in_child=lambda: (begin := forget()) and begin())

    def _begin(self) -> None:
        """Know nobody. A forked child begins so too: its parent's adapters, and their locks, are not its own."""
        self._sources: weakref.WeakSet[Source] = weakref.WeakSet()
        self._closed = _Sums()
        # So that no scrape sees an adapter twice or not at all while it closes. Taken before an adapter's own lock.
        self._lock = threading.Lock()

    @classmethod
    def of(cls, registry: CollectorRegistry) -> AdapterCollector:
        """The registry's collector, registered when first asked for.

        It is kept on the registry itself, so that it lives exactly as long: the library offers no way to ask a
        registry for a collector.
        """
        fresh = cls()
        found: AdapterCollector = vars(registry).setdefault(_PLACE, fresh)
        if found is fresh:
            registry.register(fresh)
        return found

    def add(self, source: Source) -> None:
        """Read this adapter too."""
        with self._lock:
            self._sources.add(source)

    def remove(self, source: Source) -> None:
        """This adapter has closed. Its counters stay as they are, its gauges go. Not with the adapter's lock held."""
        with self._lock:
            if source in self._sources:
                self._sources.discard(source)
                last = source.readings()
                self._closed.add(Readings(gauges=(), counters=last.counters, histograms=last.histograms))

    def describe(self) -> Iterable[Metric]:
        """The families without samples: what the registry checks for doubles."""
        return [self._family(metric) for metric in ADAPTER]

    def collect(self) -> Iterator[Metric]:
        """Every series of the table, summed over the adapters."""
        sums = _Sums()
        with self._lock:
            sums.add(self._closed.readings())
            for source in list(self._sources):
                sums.add(source.readings())
        for metric in ADAPTER:
            family = self._family(metric)
            for labels in label_sets(metric):
                sums.write(family, metric, labels)
            yield family

    @staticmethod
    def _family(metric: TableMetric) -> Family:
        make = _FAMILIES[metric.type]
        return make(ADAPTER_PREFIX + metric.name, metric.help, labels=[label.name for label in metric.labels])


class _Sums:
    """Readings added up, by short name and label values."""

    def __init__(self) -> None:
        self._gauges: dict[tuple[str, tuple[str, ...]], float] = {}
        self._counters: dict[tuple[str, tuple[str, ...]], float] = {}
        self._histograms: dict[tuple[str, tuple[str, ...]], tuple[tuple[int, ...], float]] = {}

    def add(self, readings: Readings) -> None:
        for sample in readings.gauges:
            key = (sample.name, sample.labels)
            before = self._gauges.get(key, 0.0)
            self._gauges[key] = _oldest(before, sample.value) if sample.name == _OLDEST else before + sample.value
        for sample in readings.counters:
            key = (sample.name, sample.labels)
            self._counters[key] = self._counters.get(key, 0.0) + sample.value
        for histogram in readings.histograms:
            key = (histogram.name, histogram.labels)
            counts, total = self._histograms.get(key, ((0,) * len(histogram.counts), 0.0))
            summed = tuple(a + b for a, b in zip(counts, histogram.counts, strict=True))
            self._histograms[key] = (summed, total + histogram.sum)

    def readings(self) -> Readings:
        return Readings(
            gauges=tuple(Sample(*key, value) for key, value in self._gauges.items()),
            counters=tuple(Sample(*key, value) for key, value in self._counters.items()),
            histograms=tuple(HistogramSample(*key, *value) for key, value in self._histograms.items()),
        )

    def write(self, family: Family, metric: TableMetric, labels: tuple[str, ...]) -> None:
        key = (metric.name, labels)
        if isinstance(family, HistogramMetricFamily):
            counts, total = self._histograms.get(key, ((0,) * (len(metric.buckets) + 1), 0.0))
            bounds = [*(str(float(bound)) for bound in metric.buckets), "+Inf"]
            cumulative = [sum(counts[: i + 1]) for i in range(len(counts))]
            family.add_metric(labels, list(zip(bounds, cumulative, strict=True)), total)
        elif isinstance(family, CounterMetricFamily):
            family.add_metric(labels, self._counters.get(key, 0.0))
        else:
            family.add_metric(labels, self._gauges.get(key, 0.0))


def _oldest(one: float, other: float) -> float:
    """The earlier of two times, of which 0 means none."""
    return min(time for time in (one, other) if time) if one or other else 0.0
