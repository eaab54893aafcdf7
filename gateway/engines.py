"""What engines tell of themselves in heartbeats, added up by engine name.

Owns: the last reading of each party, the totals of each engine name, the operations they told of. Must not know:
sockets, the core's tables, the time (it is passed in). Runs on the loop's thread.

Counters come as totals since the party began. What a party's totals grew by since its last heartbeat is added to its
engine's totals, so that an engine's counters never fall, whichever of its parties come and go. Gauges are levels: they
go with the party, and while it is silent.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice

import msgspec

from gateway.metrics.table import ADAPTER_BY_NAME, Type
from gateway.wire.codes import State
from gateway.wire.messages import AdapterStats, HistogramSample, OperationInfo, Sample, TransferInfo

MAX_ENGINES = 128
MAX_MODELS = 32
OTHER = "other"
#: How long an engine's counters are shown after its last party left.
KEEP_SECONDS = 3600.0
#: Settled operations remembered, over all engines.
MAX_SETTLED = 1000
#: Pending operations remembered of one party; an adapter tells its oldest 64.
MAX_PENDING = 64
#: Characters of a request's id that are remembered: a peer may send any number.
MAX_REQUEST_ID = 256
#: More than any level or count of calls can be; the sums over all parties still fit the wire's integers.
MAX_COUNT = 2**48
#: More than any total can be: bytes for some years.
MAX_TOTAL = 2**63
#: Heartbeats a party may miss before its gauges are no longer true.
MAX_MISSED_HEARTBEATS = 3

_OLDEST = "oldest_pending_timestamp_seconds"

Series = tuple[str, tuple[str, ...]]  # short metric name, label values


@dataclass
class _Party:
    name: str
    engine: str  # the label: the name, or "other" past MAX_ENGINES
    heard_at: float  # monotonic
    state: State = State.CONNECTING
    counters: dict[Series, float] = field(default_factory=dict)
    histograms: dict[Series, tuple[tuple[int, ...], float]] = field(default_factory=dict)
    gauges: dict[Series, float] = field(default_factory=dict)
    pending: tuple[OperationInfo, ...] = ()
    is_removed: bool = False  # by an operator; it may come back


@dataclass
class _Engine:
    model: str
    counters: dict[Series, float] = field(default_factory=dict)
    histograms: dict[Series, tuple[list[int], float]] = field(default_factory=dict)
    last_heartbeat_at: float = 0.0
    left_at: float = math.inf  # monotonic; infinite while a party of it is here


@dataclass(frozen=True)
class EngineReading:
    """One engine name over all its parties."""

    model: str
    gauges: tuple[Sample, ...]
    counters: tuple[Sample, ...]
    histograms: tuple[HistogramSample, ...]
    last_heartbeat_at: float

    def gauge(self, name: str) -> float:
        """The level of a gauge without labels; 0 when no party tells it."""
        return sum(sample.value for sample in self.gauges if sample.name == name)


class EngineStats:
    """Everything heartbeats carried that is still worth showing."""

    def __init__(self, heartbeat_seconds: float) -> None:
        """Begin with no engine.

        Args:
            heartbeat_seconds: how often parties are told to send one.
        """
        #: A party that has not been heard of for longer is silent: its levels are no longer shown.
        self.silence_seconds = MAX_MISSED_HEARTBEATS * heartbeat_seconds
        self._parties: dict[bytes, _Party] = {}
        self._engines: dict[str, _Engine] = {}
        self._models: set[str] = set()
        self._settled: deque[TransferInfo] = deque(maxlen=MAX_SETTLED)

    def register(self, party: bytes, engine: str, model: str, now: float) -> None:
        """A party came, or came back: what it told before still counts as told."""
        label = self.engine_label(engine)
        known = self._engines.setdefault(label, _Engine(model=""))
        known.model = self.model_label(model)
        known.left_at = math.inf
        previous = self._parties.get(party)
        if previous is None:
            self._parties[party] = _Party(engine, label, now)
            return
        left = previous.engine
        previous.name, previous.engine, previous.heard_at, previous.is_removed = engine, label, now, False
        self._note_if_left(left, now)

    def forget(self, party: bytes, now: float) -> None:
        """A party left or died; a party nobody knows is no error."""
        gone = self._parties.pop(party, None)
        if gone is not None:
            self._note_if_left(gone.engine, now)

    def remove_engine(self, engine: str) -> None:
        """All parties of an engine were removed. What they told still counts as told: they may come back and go on."""
        for party in self._parties.values():
            if party.name == engine:
                party.gauges, party.pending, party.is_removed = {}, (), True

    def heartbeat(self, party: bytes, stats: AdapterStats, now: float, wall: float) -> None:
        """Take what a registered party told; samples the metrics table does not know are ignored."""
        known = self._parties.get(party)
        if known is None:
            return
        engine = self._engines[known.engine]
        engine.last_heartbeat_at = wall
        known.heard_at = now
        known.state = stats.state
        known.pending = tuple(map(_bounded, stats.pending[:MAX_PENDING]))
        self._settled.extend(
            TransferInfo(engine=known.engine, party=party.hex(), operation=_bounded(op))
            for op in stats.settled[-MAX_SETTLED:]
        )
        known.gauges = {
            (sample.name, sample.labels): sample.value
            for sample in stats.gauges
            if _is_known(sample, Type.GAUGE) and _is_sound(engine, MAX_COUNT, sample.value)
        }
        for sample in stats.counters:
            if _is_known(sample, Type.COUNTER) and _is_sound(engine, MAX_TOTAL, sample.value):
                _add_counter(engine, known, (sample.name, sample.labels), sample.value)
        for histogram in stats.histograms:
            is_known = _is_known(histogram, Type.HISTOGRAM)
            if (
                is_known
                and _is_sound(engine, MAX_TOTAL, histogram.sum)
                and _is_sound(engine, MAX_COUNT, *histogram.counts)
            ):
                _add_histogram(engine, known, histogram)

    def tick(self, now: float) -> None:
        """Drop the levels of silent parties, removed parties that did not come back, and engines nobody belongs to."""
        for party, known in list(self._parties.items()):
            silent_seconds = now - known.heard_at
            if known.gauges and silent_seconds > self.silence_seconds:
                known.gauges, known.pending = {}, ()
            if known.is_removed and silent_seconds > KEEP_SECONDS:
                self.forget(party, now)
        for label in [label for label, engine in self._engines.items() if now - engine.left_at > KEEP_SECONDS]:
            del self._engines[label]

    def engine_label(self, engine: str) -> str:
        """The name an engine is shown under: its own, or ``other`` when there are too many."""
        return engine if engine in self._engines or len(self._engines) < MAX_ENGINES else OTHER

    def model_label(self, model: str) -> str:
        """The name a model is shown under: its own, or ``other`` when there are too many."""
        if model in self._models or len(self._models) < MAX_MODELS:
            self._models.add(model)
            return model
        return OTHER

    def state_of(self, party: bytes) -> State:
        """How the party sees its gateway, as last told."""
        known = self._parties.get(party)
        return State.CONNECTING if known is None else known.state

    def readings(self) -> dict[str, EngineReading]:
        """Every engine by the name it is shown under."""
        gauges: dict[str, dict[Series, float]] = {label: {} for label in self._engines}
        for party in self._parties.values():
            _add_levels(gauges[party.engine], party.gauges)
        return {
            label: EngineReading(
                model=engine.model,
                gauges=_samples(gauges[label]),
                counters=_samples(engine.counters),
                histograms=tuple(
                    HistogramSample(name, labels, tuple(counts), total)
                    for (name, labels), (counts, total) in engine.histograms.items()
                ),
                last_heartbeat_at=engine.last_heartbeat_at,
            )
            for label, engine in self._engines.items()
        }

    def transfers(self, most: int = 0) -> Iterator[TransferInfo]:
        """Operations pending as last told, then the last ones settled, newest first.

        Args:
            most: so many of each kind, of those pending the oldest; 0: all.
        """
        is_bounded = 0 < most < MAX_COUNT
        pending: Iterable[tuple[OperationInfo, bytes, _Party]] = (
            (operation, party, known) for party, known in self._parties.items() for operation in known.pending
        )
        if is_bounded:
            pending = nlargest(most, pending, key=lambda one: one[0].age_seconds)
        for operation, party, known in pending:
            yield TransferInfo(engine=known.engine, party=party.hex(), operation=operation)
        yield from islice(reversed(self._settled), most if is_bounded else None)

    def table_sizes(self) -> dict[str, int]:
        """Entries of every table here, by the names of the metric ``table_entries``."""
        return {
            "heard_parties": len(self._parties),
            "engine_totals": len(self._engines),
            "settled_operations": len(self._settled),
        }

    def _note_if_left(self, label: str, now: float) -> None:
        if all(party.engine != label for party in self._parties.values()):
            self._engines[label].left_at = now


def _bounded(operation: OperationInfo) -> OperationInfo:
    """The same operation, with an id of bounded length."""
    if len(operation.request_id) <= MAX_REQUEST_ID:
        return operation
    return msgspec.structs.replace(operation, request_id=operation.request_id[:MAX_REQUEST_ID])


def _samples(series: dict[Series, float]) -> tuple[Sample, ...]:
    return tuple(Sample(name, labels, value) for (name, labels), value in series.items())


def _is_known(sample: Sample | HistogramSample, kind: Type) -> bool:
    """Whether the metrics table has this series; others are ignored, as unknown fields are."""
    metric = ADAPTER_BY_NAME.get(sample.name)
    if metric is None or metric.type is not kind or len(sample.labels) != len(metric.labels):
        return False
    if isinstance(sample, HistogramSample) and len(sample.counts) != len(metric.buckets) + 1:
        return False
    return all(
        label.values is None or value in label.values for label, value in zip(metric.labels, sample.labels, strict=True)
    )


def _is_sound(engine: _Engine, most: float, *values: float) -> bool:
    """Whether all values are numbers from 0 to ``most``; one that is not is counted and dropped."""
    if all(0 <= value <= most for value in values):
        return True
    _count_invalid(engine)
    return False


def _count_invalid(engine: _Engine) -> None:
    series: Series = ("invalid_samples", ())
    engine.counters[series] = engine.counters.get(series, 0.0) + 1


def _add_counter(engine: _Engine, party: _Party, series: Series, total: float) -> None:
    grown = total - party.counters.get(series, 0.0)
    if grown < 0:
        _count_invalid(engine)
        return
    party.counters[series] = total
    engine.counters[series] = engine.counters.get(series, 0.0) + grown


def _add_histogram(engine: _Engine, party: _Party, sample: HistogramSample) -> None:
    series = (sample.name, sample.labels)
    before, sum_before = party.histograms.get(series, ((0,) * len(sample.counts), 0.0))
    grown = [now - then for now, then in zip(sample.counts, before, strict=True)]
    if min(grown) < 0:
        _count_invalid(engine)
        return
    party.histograms[series] = (sample.counts, sample.sum)
    counts, total = engine.histograms.get(series, ([0] * len(sample.counts), 0.0))
    engine.histograms[series] = (
        [count + more for count, more in zip(counts, grown, strict=True)],
        total + max(0.0, sample.sum - sum_before),
    )


def _add_levels(levels: dict[Series, float], more: dict[Series, float]) -> None:
    """Add one party's gauges to its engine's; of times, the oldest one there is."""
    for series, value in more.items():
        if series[0] == _OLDEST:
            times = [time for time in (levels.get(series, 0.0), value) if time > 0]
            levels[series] = min(times, default=0.0)
        else:
            levels[series] = levels.get(series, 0.0) + value
