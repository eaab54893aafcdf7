"""What an adapter measures besides its ledger, and how all of it becomes samples of the metrics table.

Owns: counters and histograms of what requests waited for and were promised; one function that reads everything into
samples, pre-created at 0 for every label value of the table. Must not know: Prometheus, sockets. Called with the
adapter's lock held.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from adapter.totals import PendingCounts, Totals
from gateway.metrics.table import ADAPTER, WAIT_BUCKETS, Metric, Type
from gateway.wire.codes import OperationKind, State
from gateway.wire.messages import HistogramSample, Sample

Key = tuple[str, tuple[str, ...]]  # short name, label values in table order

NOTHING_PENDING = PendingCounts(stores=0, retrieves=0, events=0, settling=0, oldest_wall=0.0)


@dataclass(slots=True)
class Histogram:
    """Counts of WAIT_BUCKETS in order, then of everything longer (not cumulative), and the sum of all."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(WAIT_BUCKETS) + 1))
    sum: float = 0.0


@dataclass(slots=True)
class Measurements:
    """Counters that only grow.

    Attributes:
        prompt_tokens: of requests looked up, each once.
        wasted_tokens: promised and not loaded: ``lookup_timeout``, ``released``.
        invalid_samples: measurements dropped because they were negative or not a number.
    """

    prompt_tokens: int = 0
    wasted_tokens: Counter[str] = field(default_factory=Counter)
    lookup_wait: Histogram = field(default_factory=Histogram)
    load_wait: Histogram = field(default_factory=Histogram)
    invalid_samples: int = 0

    def observe(self, histogram: Histogram, seconds: float) -> None:
        """Something took so long. A value that no clock can give is dropped and counted, never raised."""
        if not 0.0 <= seconds < math.inf:
            self.invalid_samples += 1
            return
        histogram.counts[bisect_left(WAIT_BUCKETS, seconds)] += 1
        histogram.sum += seconds


@dataclass(frozen=True, slots=True)
class LinkCounts:
    """What the link counts."""

    late_replies: int
    reconnects: int
    flaps: int


@dataclass(frozen=True, slots=True)
class Readings:
    """Every series of the metrics table, in table order."""

    gauges: tuple[Sample, ...]
    counters: tuple[Sample, ...]
    histograms: tuple[HistogramSample, ...]


def read(
    *,
    state: State,
    counts: PendingCounts,
    totals: Totals,
    measurements: Measurements,
    link: LinkCounts,
    block_tokens: int,
) -> Readings:
    """One reading of one adapter. A scheduler half passes empty ``counts`` and ``totals``."""
    values: dict[Key, float] = {
        ("gateway_state", (state,)): 1.0,
        **_pending_values(counts),
        **_total_values(totals, block_tokens),
        **_measured_values(measurements, link),
    }
    histograms: dict[Key, list[int]] = {
        **{("operation_duration_seconds", (str(kind),)): counts for kind, counts in totals.durations.items()},
        ("lookup_wait_seconds", ()): measurements.lookup_wait.counts,
        ("load_wait_seconds", ()): measurements.load_wait.counts,
    }
    sums: dict[Key, float] = {
        **{("operation_duration_seconds", (str(kind),)): totals.duration_sums[kind] for kind in OperationKind},
        ("lookup_wait_seconds", ()): measurements.lookup_wait.sum,
        ("load_wait_seconds", ()): measurements.load_wait.sum,
    }
    return Readings(
        gauges=tuple(Sample(*key, values.get(key, 0.0)) for key in _GAUGES),
        counters=tuple(Sample(*key, values.get(key, 0.0)) for key in _COUNTERS),
        histograms=tuple(HistogramSample(*key, tuple(histograms[key]), sums[key]) for key in _HISTOGRAMS),
    )


def _series(kind: Type) -> tuple[Key, ...]:
    """Every (short name, label values) of this type, from the table's closed sets."""
    return tuple((metric.name, labels) for metric in ADAPTER if metric.type is kind for labels in label_sets(metric))


def label_sets(metric: Metric) -> Iterator[tuple[str, ...]]:
    """Every combination of a metric's label values."""
    return product(*(label.values or () for label in metric.labels))


_GAUGES, _COUNTERS, _HISTOGRAMS = (_series(kind) for kind in (Type.GAUGE, Type.COUNTER, Type.HISTOGRAM))


def _pending_values(counts: PendingCounts) -> dict[Key, float]:
    return {
        ("pending_stores", ()): counts.stores,
        ("pending_retrieves", ()): counts.retrieves,
        ("retained_events", ()): counts.events,
        ("settling_operations", ()): counts.settling,
        ("doubtful_blocks", ()): counts.doubtful_blocks,
        ("oldest_pending_timestamp_seconds", ()): counts.oldest_wall,
    }


def _total_values(totals: Totals, block_tokens: int) -> dict[Key, float]:
    return {
        **{("operations", key): number for key, number in totals.operations.items()},
        **{("bytes", (kind,)): size for kind, size in totals.bytes.items()},
        **{("drains", (trigger,)): number for trigger, number in totals.drains.items()},
        **{("settled_by", (proof,)): number for proof, number in totals.settled_by.items()},
        **{("wasted_tokens", (reason,)): blocks * block_tokens for reason, blocks in totals.wasted_blocks.items()},
        ("failed_verifications", ()): totals.failed_verifications,
        ("loaded_tokens", ()): totals.loaded_blocks * block_tokens,
    }


def _measured_values(measurements: Measurements, link: LinkCounts) -> dict[Key, float]:
    return {
        **{("wasted_tokens", (reason,)): tokens for reason, tokens in measurements.wasted_tokens.items()},
        ("prompt_tokens", ()): measurements.prompt_tokens,
        ("late_replies", ()): link.late_replies,
        ("reconnects", ()): link.reconnects,
        ("gateway_flaps", ()): link.flaps,
        ("invalid_samples", ()): measurements.invalid_samples,
    }
