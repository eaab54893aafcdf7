import math

import msgspec
import pytest

from gateway import engines
from gateway.engines import EngineReading, EngineStats
from gateway.metrics.table import WAIT_BUCKETS
from gateway.wire.codes import OperationKind, OutcomeKind, Phase, State
from gateway.wire.messages import AdapterStats, HistogramSample, OperationInfo, Sample

A, B = b"a" * 16, b"b" * 16


def told(
    *,
    stores: float | None = None,
    stored: float | None = None,
    waits: tuple[int, ...] | None = None,
    wait_sum: float = 0.0,
    extra: tuple[Sample, ...] = (),
    **more,
) -> AdapterStats:
    return AdapterStats(
        state=State.HEALTHY,
        gauges=() if stores is None else (Sample("pending_stores", (), stores),),
        counters=(*(() if stored is None else (Sample("operations", ("store", "stored"), stored),)), *extra),
        histograms=() if waits is None else (HistogramSample("lookup_wait_seconds", (), waits, wait_sum),),
        **more,
    )


def two_parties() -> EngineStats:
    stats = EngineStats(heartbeat_seconds=1.0)
    stats.register(A, "engine", "model", 100.0)
    stats.register(B, "engine", "model", 100.0)
    return stats


def stored(reading: EngineReading) -> float:
    return sum(sample.value for sample in reading.counters if sample.name == "operations")


def invalid(reading: EngineReading) -> float:
    return sum(sample.value for sample in reading.counters if sample.name == "invalid_samples")


def operation(number: int, outcome: OutcomeKind | None = None) -> OperationInfo:
    return OperationInfo(
        number=number,
        request_id="r",
        kind=OperationKind.STORE,
        phase=Phase.COPYING if outcome is None else Phase.SETTLED,
        age_seconds=0.1,
        chunks=1,
        outcome=outcome,
    )


def test_gauges_are_summed_over_the_parties_of_an_engine() -> None:
    stats = two_parties()
    stats.heartbeat(A, told(stores=3), 101.0, 1.0)
    stats.heartbeat(B, told(stores=4), 101.0, 1.0)

    assert stats.readings()["engine"].gauge("pending_stores") == 7


def test_the_oldest_pending_time_is_the_earliest_and_not_a_sum() -> None:
    stats = two_parties()
    name = "oldest_pending_timestamp_seconds"
    for party, at in ((A, 50.0), (B, 40.0)):
        stats.heartbeat(party, AdapterStats(state=State.HEALTHY, gauges=(Sample(name, (), at),)), 101.0, 1.0)
    assert stats.readings()["engine"].gauge(name) == 40.0

    stats.heartbeat(B, AdapterStats(state=State.HEALTHY, gauges=(Sample(name, (), 0.0),)), 101.0, 1.0)
    assert stats.readings()["engine"].gauge(name) == 50.0

    stats.heartbeat(A, AdapterStats(state=State.HEALTHY, gauges=(Sample(name, (), 0.0),)), 101.0, 1.0)
    assert stats.readings()["engine"].gauge(name) == 0.0


def test_gauges_go_with_the_party_and_counters_stay() -> None:
    stats = two_parties()
    stats.heartbeat(A, told(stores=3, stored=10), 101.0, 1.0)
    stats.heartbeat(B, told(stores=4, stored=5), 101.0, 1.0)

    stats.forget(A, 102.0)

    reading = stats.readings()["engine"]
    assert (reading.gauge("pending_stores"), stored(reading)) == (4, 15)


def test_gauges_go_after_three_missed_heartbeats_and_come_back_with_the_next() -> None:
    stats = two_parties()
    stats.heartbeat(A, told(stores=3), 101.0, 1.0)

    stats.tick(104.0)
    assert stats.readings()["engine"].gauge("pending_stores") == 3
    stats.tick(104.1)
    assert stats.readings()["engine"].gauge("pending_stores") == 0
    stats.heartbeat(A, told(stores=2), 105.0, 1.0)
    assert stats.readings()["engine"].gauge("pending_stores") == 2


def test_counters_add_what_each_party_grew_by() -> None:
    stats = two_parties()
    for total in (5, 5, 9):
        stats.heartbeat(A, told(stored=total), 101.0, 1.0)
    stats.heartbeat(B, told(stored=2), 101.0, 1.0)

    assert stored(stats.readings()["engine"]) == 11


def test_counters_never_fall_when_a_party_is_replaced_by_one_that_counts_from_zero() -> None:
    stats = two_parties()
    stats.heartbeat(A, told(stored=10), 101.0, 1.0)
    stats.forget(A, 102.0)
    fresh = b"c" * 16
    stats.register(fresh, "engine", "model", 103.0)
    stats.heartbeat(fresh, told(stored=1), 104.0, 1.0)

    assert stored(stats.readings()["engine"]) == 11


def test_a_party_that_registers_again_is_not_counted_twice() -> None:
    stats = two_parties()
    stats.heartbeat(A, told(stored=10), 101.0, 1.0)
    stats.register(A, "engine", "model", 102.0)
    stats.heartbeat(A, told(stored=12), 103.0, 1.0)

    assert stored(stats.readings()["engine"]) == 12


def test_histograms_add_what_each_party_grew_by() -> None:
    stats = two_parties()
    one = (1,) + (0,) * len(WAIT_BUCKETS)
    stats.heartbeat(A, told(waits=one, wait_sum=0.25), 101.0, 1.0)
    stats.heartbeat(A, told(waits=(3, *one[1:]), wait_sum=0.5), 102.0, 1.0)
    stats.heartbeat(B, told(waits=one, wait_sum=1.0), 102.0, 1.0)

    (histogram,) = stats.readings()["engine"].histograms
    assert (histogram.counts[0], sum(histogram.counts), histogram.sum) == (4, 4, 1.5)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_value_that_is_no_measurement_is_dropped_and_counted(value: float) -> None:
    stats = two_parties()
    stats.heartbeat(A, told(stored=value, stores=value), 101.0, 1.0)

    reading = stats.readings()["engine"]
    assert (stored(reading), reading.gauge("pending_stores"), invalid(reading)) == (0, 0, 2)


def test_a_counter_that_fell_is_dropped_and_counted() -> None:
    stats = two_parties()
    stats.heartbeat(A, told(stored=10), 101.0, 1.0)
    stats.heartbeat(A, told(stored=4), 102.0, 1.0)

    reading = stats.readings()["engine"]
    assert (stored(reading), invalid(reading)) == (10, 1)


@pytest.mark.parametrize(
    "sample",
    [
        Sample("no_such_metric", (), 1.0),
        Sample("pending_stores", (), 1.0),  # a gauge among the counters
        Sample("operations", ("store",), 1.0),
        Sample("operations", ("store", "invented"), 1.0),
        Sample("reconnects", ("unexpected",), 1.0),
    ],
)
def test_what_the_metrics_table_does_not_know_is_ignored(sample: Sample) -> None:
    stats = two_parties()
    stats.heartbeat(A, told(extra=(sample,)), 101.0, 1.0)

    assert stats.readings()["engine"].counters == ()


def test_a_histogram_with_other_buckets_is_ignored() -> None:
    stats = two_parties()
    stats.heartbeat(A, told(waits=(1, 2)), 101.0, 1.0)

    assert stats.readings()["engine"].histograms == ()


def test_an_unknown_party_is_not_believed() -> None:
    stats = two_parties()
    stats.heartbeat(b"x" * 16, told(stores=3), 101.0, 1.0)

    assert stats.readings()["engine"].gauges == ()


def test_counters_are_kept_an_hour_after_the_last_party_left() -> None:
    stats = two_parties()
    stats.heartbeat(A, told(stored=1), 101.0, 1.0)
    stats.forget(A, 200.0)
    stats.forget(B, 300.0)

    stats.tick(300.0 + engines.KEEP_SECONDS)
    assert stored(stats.readings()["engine"]) == 1
    stats.tick(300.1 + engines.KEEP_SECONDS)
    assert stats.readings() == {}


def test_an_engine_that_comes_back_in_time_goes_on_counting() -> None:
    stats = two_parties()
    stats.heartbeat(A, told(stored=1), 101.0, 1.0)
    stats.forget(A, 200.0)
    stats.forget(B, 200.0)
    stats.register(A, "engine", "model", 300.0)
    stats.heartbeat(A, told(stored=1), 301.0, 1.0)

    stats.tick(201.0 + engines.KEEP_SECONDS)
    assert stored(stats.readings()["engine"]) == 2


def test_names_beyond_the_bound_share_one_label() -> None:
    stats = EngineStats(heartbeat_seconds=1.0)
    for i in range(engines.MAX_ENGINES + 3):
        party = i.to_bytes(16, "big")
        stats.register(party, f"engine-{i}", f"model-{i}", 100.0)
        stats.heartbeat(party, told(stores=1), 101.0, 1.0)

    readings = stats.readings()
    assert len(readings) == engines.MAX_ENGINES + 1
    assert readings["other"].gauge("pending_stores") == 3
    assert len({reading.model for reading in readings.values()}) == engines.MAX_MODELS + 1


def test_removing_an_engine_takes_its_gauges_and_no_others() -> None:
    stats = two_parties()
    stats.register(B, "second", "model", 101.0)
    for party in (A, B):
        stats.heartbeat(party, told(stores=1), 102.0, 1.0)

    stats.remove_engine("engine")

    readings = stats.readings()
    assert (readings["engine"].gauge("pending_stores"), readings["second"].gauge("pending_stores")) == (0, 1)


def test_a_removed_party_that_comes_back_is_not_counted_twice() -> None:
    stats = two_parties()
    stats.heartbeat(A, told(stored=7), 101.0, 1.0)

    stats.remove_engine("engine")
    stats.register(A, "engine", "model", 102.0)
    stats.heartbeat(A, told(stored=8), 103.0, 3.0)

    assert stored(stats.readings()["engine"]) == 8


def test_a_removed_party_that_stays_away_is_forgotten_in_time() -> None:
    stats = EngineStats(heartbeat_seconds=1.0)
    stats.register(A, "engine", "model", 100.0)
    stats.remove_engine("engine")

    stats.tick(100.0 + engines.KEEP_SECONDS + 1)
    assert "engine" in stats.readings()
    stats.tick(100.0 + 2 * engines.KEEP_SECONDS + 3)
    assert "engine" not in stats.readings()


def test_a_bound_keeps_the_oldest_pending_and_the_latest_settled() -> None:
    stats = two_parties()
    stats.heartbeat(A, told(pending=(aged(1, 3.0), aged(2, 9.0)), settled=(operation(3, OutcomeKind.STORED),)), 101, 0)
    stats.heartbeat(B, told(pending=(aged(4, 5.0),), settled=(operation(5, OutcomeKind.STORED),)), 101, 0)

    def numbers(most: int) -> list[int]:
        return [transfer.operation.number for transfer in stats.transfers(most)]

    assert numbers(1) == [2, 5]
    assert numbers(2) == [2, 4, 5, 3]
    assert sorted(numbers(0)) == sorted(numbers(-1)) == sorted(numbers(2**63)) == [1, 2, 3, 4, 5]


def aged(number: int, age_seconds: float) -> OperationInfo:
    return msgspec.structs.replace(operation(number), age_seconds=age_seconds)


def test_transfers_are_the_pending_ones_then_the_settled_newest_first() -> None:
    stats = two_parties()
    stats.heartbeat(A, told(pending=(operation(3),), settled=(operation(1, OutcomeKind.STORED),)), 101.0, 1.0)
    stats.heartbeat(A, told(pending=(operation(3),), settled=(operation(2, OutcomeKind.FAILED),)), 102.0, 1.0)

    assert [transfer.operation.number for transfer in stats.transfers()] == [3, 2, 1]
    assert {(transfer.engine, transfer.party) for transfer in stats.transfers()} == {("engine", A.hex())}


def test_settled_operations_are_remembered_up_to_a_bound() -> None:
    stats = two_parties()
    many = tuple(operation(i, OutcomeKind.STORED) for i in range(engines.MAX_SETTLED + 5))
    stats.heartbeat(A, told(settled=many), 101.0, 1.0)

    numbers = [transfer.operation.number for transfer in stats.transfers()]
    assert (len(numbers), numbers[0], numbers[-1]) == (engines.MAX_SETTLED, engines.MAX_SETTLED + 4, 5)


def test_the_last_heartbeat_and_the_partys_view_are_kept() -> None:
    stats = two_parties()
    assert stats.state_of(A) is State.CONNECTING

    stats.heartbeat(A, told(), 101.0, 1700000000.0)

    assert stats.state_of(A) is State.HEALTHY
    assert stats.readings()["engine"].last_heartbeat_at == 1700000000.0


def test_what_a_peer_tells_of_its_operations_is_bounded() -> None:
    stats = two_parties()
    long = msgspec.structs.replace(operation(0), request_id="r" * 100_000)
    ended = msgspec.structs.replace(operation(1, OutcomeKind.STORED), request_id="s" * 100_000)
    stats.heartbeat(A, told(pending=(long,) * 5000, settled=(ended,)), 101.0, 1.0)

    *pending, settled = stats.transfers()
    assert len(pending) == engines.MAX_PENDING
    assert {one.operation.request_id for one in pending} == {"r" * engines.MAX_REQUEST_ID}
    assert settled.operation.request_id == "s" * engines.MAX_REQUEST_ID
