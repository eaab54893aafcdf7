"""One scrape: the core's snapshot as Prometheus text.

Owns: which value of a snapshot goes into which family of ``gateway.metrics.table``, and that every closed label set is
there from the first scrape. Must not know: HTTP, sockets, the core's tables. Pure; runs on whichever thread renders.

Nothing is kept between two scrapes: a value is read from the snapshot it came with or it is not shown. Three kinds of
values meet here: what the snapshot says in its own fields (state, slots, engines …), the core's samples by short name,
and the samples each engine's heartbeats carried, shown as ``kvgate_engine_…{engine,model}``.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, product

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from gateway.metrics import exposition, table
from gateway.metrics.process import ProcessStats
from gateway.wire.messages import EngineInfo, HistogramSample, Sample, SnapshotReply

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Families that are filled by the process that scrapes, not by the core.
OWN = ("scrape_success", "scrape_duration_seconds")
PROCESS = ("process_cpu_seconds", "process_resident_bytes", "process_open_fds", "process_threads")

Labels = tuple[str, ...]


@dataclass
class _Values:
    """Samples by short name, then by label values in table order; of two with the same labels the later stays."""

    scalars: dict[str, dict[Labels, float]] = field(default_factory=dict)
    histograms: dict[str, dict[Labels, tuple[tuple[int, ...], float]]] = field(default_factory=dict)

    def put(self, name: str, value: float, *labels: str) -> None:
        self.scalars.setdefault(name, {})[labels] = value

    def take(self, scalars: Iterable[Sample], histograms: Iterable[HistogramSample], before: Labels = ()) -> None:
        """Add samples as a message carries them, ``before`` put in front of their labels."""
        for sample in scalars:
            self.scalars.setdefault(sample.name, {})[before + sample.labels] = sample.value
        for histogram in histograms:
            self.histograms.setdefault(histogram.name, {})[before + histogram.labels] = (
                histogram.counts,
                histogram.sum,
            )


class Scrape(Collector):
    """One scrape's families, in the table's order; made anew for each scrape."""

    def __init__(
        self,
        snapshot: SnapshotReply | None,
        processes: Mapping[str, ProcessStats | None],
        duration_seconds: float,
    ) -> None:
        """Take what one scrape has read.

        Args:
            snapshot: the core's answer to this scrape; None: it did not answer, so nothing of it is shown.
            processes: by the values of label ``process``; None where it cannot be read.
            duration_seconds: what reading the snapshot took.
        """
        self._snapshot = snapshot
        self._processes = processes
        self._duration_seconds = duration_seconds

    def collect(self) -> Iterator[Family]:
        """Every family; only the admin process's own when the core did not answer."""
        own = self._own_values()
        for metric in table.GATEWAY:
            if metric.name in OWN or metric.name in PROCESS:
                yield _family(table.GATEWAY_PREFIX, metric, own, sorted(own.scalars.get(metric.name, ())))
        if self._snapshot is None:
            return
        values = _gateway_values(self._snapshot)
        for metric in table.GATEWAY:
            if metric.name not in OWN and metric.name not in PROCESS:
                yield _family(table.GATEWAY_PREFIX, metric, values, _label_sets(metric, values))
        engines = _engine_values(self._snapshot.engines)
        names = sorted({(engine.name, engine.model) for engine in self._snapshot.engines})
        for metric in table.engine_metrics():
            closed = [label.values or () for label in metric.labels[2:]]
            wanted = [name + labels for name in names for labels in product(*closed)]
            yield _family(table.ENGINE_PREFIX, metric, engines, wanted)

    def text(self) -> bytes:
        """The families in Prometheus' text format, version 0.0.4."""
        return exposition.text(self.collect())

    def _own_values(self) -> _Values:
        values = _Values()
        values.put("scrape_success", 0.0 if self._snapshot is None else 1.0)
        values.put("scrape_duration_seconds", self._duration_seconds)
        for name, stats in self._processes.items():
            if stats is not None:
                values.put("process_cpu_seconds", stats.cpu_seconds, name)
                values.put("process_resident_bytes", stats.resident_bytes, name)
                values.put("process_open_fds", stats.open_fds, name)
                values.put("process_threads", stats.threads, name)
        return values


def _label_sets(metric: table.Metric, values: _Values) -> list[Labels]:
    """The closed sets, whether they have a value yet or not, then what the snapshot has beyond them."""
    present = values.histograms if metric.type is table.Type.HISTOGRAM else values.scalars
    found = present.get(metric.name, {})
    if any(label.values is None for label in metric.labels):
        return sorted(found)
    closed = list(metric.combinations or product(*(label.values or () for label in metric.labels)))
    return closed + sorted(set(found) - set(closed))


def _family(prefix: str, metric: table.Metric, values: _Values, label_sets: Iterable[Labels]) -> Family:
    """One family with a sample for each of the label sets, 0 where there is no value."""
    name, labels = prefix + metric.name, [label.name for label in metric.labels]
    fitting = (labels_of for labels_of in label_sets if len(labels_of) == len(labels))
    if metric.type is table.Type.HISTOGRAM:
        histogram = HistogramMetricFamily(name, metric.help, labels=labels)
        edges = [*(repr(edge) for edge in metric.buckets), "+Inf"]
        found = values.histograms.get(metric.name, {})
        for label_set in fitting:
            counts, total = found.get(label_set, ((), 0.0))
            padded = (*counts, *(0 for _ in edges[len(counts) :]))[: len(edges)]
            histogram.add_metric(label_set, list(zip(edges, accumulate(padded), strict=True)), total)
        return histogram
    scalars = values.scalars.get(metric.name, {})
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.type is table.Type.COUNTER:
        family = CounterMetricFamily(name, metric.help, labels=labels)
    else:
        family = GaugeMetricFamily(name, metric.help, labels=labels)
    for label_set in fitting:
        family.add_metric(label_set, scalars.get(label_set, 0.0))
    return family


def _gateway_values(snapshot: SnapshotReply) -> _Values:
    values = _Values()
    values.put("state", 1, snapshot.state)
    values.put("health", 1, snapshot.health)
    values.put("ready", float(snapshot.ready))
    for check in snapshot.checks:
        values.put("health_check_ok", float(check.ok), check.name)
        values.put("health_check_age_seconds", check.age_seconds, check.name)
    values.put("build_info", 1, snapshot.version)
    values.put("boot_timestamp_seconds", snapshot.started_at)
    values.put("start_progress_ratio", snapshot.progress)
    values.put("loop_age_seconds", snapshot.loop_age_seconds)
    slots = snapshot.slots
    for state in ("ready", "writing", "quarantined"):
        values.put("chunks", getattr(slots, state), state)
    for state in ("ready", "writing", "quarantined", "free"):
        values.put("chunk_bytes", getattr(slots, f"{state}_bytes"), state)
    values.put("quarantined_bytes", slots.quarantined_bytes)
    values.put("pool_bytes", slots.pool_bytes)
    values.put("pool_allocated_bytes", slots.allocated_bytes)
    if snapshot.drain is not None:
        for what in ("operations", "leases", "dirty"):
            values.put("drain_remaining", getattr(snapshot.drain.remaining, what), what)
    values.take((*snapshot.gauges, *snapshot.counters), snapshot.histograms)
    return values


def _engine_values(engines: Iterable[EngineInfo]) -> _Values:
    values = _Values()
    for engine in engines:
        before = (engine.name, engine.model)
        values.put("pending_stores", engine.pending_stores, *before)
        values.put("pending_retrieves", engine.pending_retrieves, *before)
        values.put("retained_events", engine.retained_events, *before)
        values.put("last_heartbeat_timestamp_seconds", engine.last_heartbeat_at, *before)
        values.take((*engine.gauges, *engine.counters), engine.histograms, before)
    return values
