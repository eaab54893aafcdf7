"""What a scrape shows of an engine is what its parties' heartbeats carried, added up."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.engines import EngineStats
from gateway.metrics import table
from gateway.metrics.collector import Scrape
from gateway.wire.codes import State
from gateway.wire.messages import AdapterStats, EngineInfo, HistogramSample, Sample
from tests.support import core_double

PARTIES = (b"a" * 16, b"b" * 16)
ENGINE = {"engine": "e1", "model": "m"}

levels = st.fixed_dictionaries(
    {name: st.integers(0, 1000) for name in ("pending_stores", "pending_retrieves", "retained_events")}
)
operations = st.dictionaries(
    st.tuples(st.sampled_from(("store", "retrieve")), st.sampled_from(("stored", "loaded", "drained"))),
    st.integers(0, 1000),
)
NUM_COUNTS = len(table.DURATION_BUCKETS) + 1
durations = st.lists(st.integers(0, 50), min_size=NUM_COUNTS, max_size=NUM_COUNTS)
#: What one party adds in one heartbeat: gauges as levels, the rest as increments.
beats = st.tuples(st.sampled_from(PARTIES), levels, operations, durations)


def _scrape(stats: EngineStats) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    reading = stats.readings()["e1"]
    engine: EngineInfo = msgspec.structs.replace(
        core_double.engine(),
        pending_stores=int(reading.gauge("pending_stores")),
        pending_retrieves=int(reading.gauge("pending_retrieves")),
        retained_events=int(reading.gauge("retained_events")),
        gauges=reading.gauges,
        counters=reading.counters,
        histograms=reading.histograms,
    )
    text = Scrape(core_double.snapshot(engines=(engine,)), {}, 0.0).text().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(table.ENGINE_PREFIX)
    }


def _key(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return table.ENGINE_PREFIX + name, tuple(sorted({**ENGINE, **labels}.items()))


@settings(deadline=None)  # of a machine that others use too
@given(st.lists(beats, max_size=12))
def test_twins_equal_what_heartbeats_carried(told: list) -> None:
    stats = EngineStats(heartbeat_seconds=1.0)
    for party in PARTIES:
        stats.register(party, "e1", "m", 0.0)
    totals: dict[bytes, dict] = {party: {"operations": {}, "durations": [0] * NUM_COUNTS} for party in PARTIES}
    last: dict[bytes, dict[str, int]] = {}
    for party, gauges, grown, counts in told:
        mine = totals[party]
        for labels, count in grown.items():
            mine["operations"][labels] = mine["operations"].get(labels, 0) + count
        mine["durations"] = [before + more for before, more in zip(mine["durations"], counts, strict=True)]
        last[party] = gauges
        stats.heartbeat(
            party,
            AdapterStats(
                state=State.HEALTHY,
                gauges=tuple(Sample(name, (), level) for name, level in gauges.items()),
                counters=tuple(Sample("operations", labels, count) for labels, count in mine["operations"].items()),
                histograms=(HistogramSample("operation_duration_seconds", ("store",), tuple(mine["durations"]), 1.0),),
            ),
            1.0,
            100.0,
        )

    shown = _scrape(stats)
    for name in ("pending_stores", "pending_retrieves", "retained_events"):
        assert shown[_key(name)] == sum(gauges[name] for gauges in last.values())
    for kind in ("store", "retrieve"):
        for outcome in ("stored", "loaded", "drained", "failed"):
            carried = sum(mine["operations"].get((kind, outcome), 0) for mine in totals.values())
            assert shown[_key("operations_total", kind=kind, outcome=outcome)] == carried
    carried = sum(sum(mine["durations"]) for mine in totals.values())
    assert shown[_key("operation_duration_seconds_count", kind="store")] == carried
