"""The adapter's metrics on their way into vLLM's own: ``vllm:kvgate_adapter_…``.

Owns: what travels from each half to the process that serves /metrics, and how it is added up there. Must not know:
where readings come from. The halves send what has changed with their steps; the process that serves calls ``observe``.

Gauges travel whole, by party, so that the latest of each counts and the sum is over those that are; counters travel as
increments. Both in the order of the metrics table, which both ends have. Histograms are left to the other two roads:
what vLLM's metrics take is single observations, and readings hold counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from adapter.measurements import Readings, label_sets
from gateway.metrics.table import ADAPTER, ADAPTER_PREFIX, Type

if TYPE_CHECKING:
    from vllm.config import VllmConfig

PREFIX = "vllm:" + ADAPTER_PREFIX
OLDEST = "oldest_pending_timestamp_seconds"

_GAUGES, _COUNTERS = (
    tuple((metric, labels) for metric in ADAPTER if metric.type is kind for labels in label_sets(metric))
    for kind in (Type.GAUGE, Type.COUNTER)
)


class KVGateStats(KVConnectorStats):  # type: ignore[misc]  # vLLM is not there where types are checked
    """``data``: gauges ``{party: [value, …]}``, counters ``[increment, …]``, both in the order of the table."""

    data: dict[str, Any]

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data=data or {"gauges": {}, "counters": [0.0] * len(_COUNTERS)})

    def reset(self) -> None:
        """Nothing is known."""
        self.data = KVGateStats().data

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Take what another half, another rank or a later step has sent."""
        self.data["gauges"].update(other.data["gauges"])
        self.data["counters"] = [a + b for a, b in zip(self.data["counters"], other.data["counters"], strict=True)]
        return self

    def reduce(self) -> dict[str, int | float]:
        """For the line that vLLM logs: what is pending, and what was done since the last one."""
        names = ("pending_stores", "pending_retrieves", "loaded_tokens", "wasted_tokens")
        return {name: value for name in names if (value := self._sum(name)) or name.startswith("pending")}

    def is_empty(self) -> bool:
        """Whether nothing is told: a gauge that has become 0 is something."""
        return not self.data["gauges"] and not any(self.data["counters"])

    def gauges(self) -> list[float]:
        """The gauges of all parties together, in the order of the table."""
        columns = zip(*self.data["gauges"].values(), strict=True)
        return [
            min((value for value in column if value), default=0.0) if metric.name == OLDEST else sum(column)
            for (metric, _), column in zip(_GAUGES, columns, strict=True)
        ]

    def _sum(self, name: str) -> float:
        gauges = self.gauges() if self.data["gauges"] else [0.0] * len(_GAUGES)
        told = [*zip(_GAUGES, gauges, strict=True), *zip(_COUNTERS, self.data["counters"], strict=True)]
        return float(sum(value for (metric, _), value in told if metric.name == name))


class Teller:
    """One half's readings, as what has changed since they were last told."""

    def __init__(self, party: str) -> None:
        self._party = party
        self._gauges: list[float] | None = None
        self._counters = [0.0] * len(_COUNTERS)

    def changes(self, readings: Readings) -> KVGateStats | None:
        """What to tell; None: nothing has changed. The first time everything is told, zeros too."""
        gauges = [sample.value for sample in readings.gauges]
        counters = [sample.value for sample in readings.counters]
        increments = [now - before for now, before in zip(counters, self._counters, strict=True)]
        if gauges == self._gauges and not any(increments):
            return None
        self._gauges, self._counters = gauges, counters
        return KVGateStats({"gauges": {self._party: gauges}, "counters": increments})


class KVGatePromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]  # the same
    """The metrics in the registry of the process that serves them; every series is there from the start, at 0."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[Any], type[Any]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        families = {
            metric.name: self._family(metric.name, metric.help, metric.type, [label.name for label in metric.labels])
            for metric in ADAPTER
            if metric.type in (Type.GAUGE, Type.COUNTER)
        }
        self._series = {
            engine: [
                [families[metric.name].labels(*values, *labels) for metric, labels in series]
                for series in (_GAUGES, _COUNTERS)
            ]
            for engine, values in per_engine_labelvalues.items()
        }
        self._latest = {engine: KVGateStats() for engine in per_engine_labelvalues}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Take what an engine has sent."""
        told = KVGateStats(transfer_stats_data)
        latest = self._latest[engine_idx]
        latest.data["gauges"].update(told.data["gauges"])
        gauges, counters = self._series[engine_idx]
        if latest.data["gauges"]:
            for gauge, value in zip(gauges, latest.gauges(), strict=True):
                gauge.set(value)
        for counter, increment in zip(counters, told.data["counters"], strict=True):
            if increment > 0:
                counter.inc(increment)

    def _family(self, name: str, text: str, kind: Type, labels: list[str]) -> Any:
        labelnames = [*self._labelnames, *labels]
        if kind is Type.GAUGE:
            return self._gauge_cls(
                name=PREFIX + name, documentation=text, multiprocess_mode="mostrecent", labelnames=labelnames
            )
        return self._counter_cls(name=PREFIX + name, documentation=text, labelnames=labelnames)
