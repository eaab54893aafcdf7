"""What the race makes of its times."""

import pytest

from benchmarks import report
from benchmarks.peer.figures import Figure, Race, markdown, of_times, spoken


def test_the_ratio_is_the_peers_median_by_ours():
    figure = of_times("Store", "ms", [0.001, 0.002, 0.009], [0.008, 0.016, 0.9], [0.001], 4.0)
    assert (figure.ours, figure.peer, figure.yardstick) == (2.0, 16.0, 1.0)
    result = figure.result()
    assert (result.measured, result.unit, result.is_met) == (8.0, "x", True)
    assert result.beside == "2.00 ms; LMCache 16.0 ms; bare 1.00 ms"


def test_a_peer_that_is_not_slow_enough_is_a_missed_bar():
    assert not of_times("Store", "ms", [0.010], [0.039], (), 4.0).result().is_met
    assert of_times("Store", "ms", [0.010], [0.001]).result().is_met, "without a bar nothing is missed"


def test_99th_percentiles_stand_beside_the_medians():
    ours, peer = [10e-6] * 98 + [30e-6] * 2, [2e-6] * 100
    beside = of_times("Ping", "µs", ours, peer, has_p99=True).result().beside
    assert beside == "10.0 µs, p99 30.0; LMCache 2.00 µs, p99 2.00"


def test_a_count_is_held_against_nothing_and_not_against_the_peer():
    none = Figure(what="Wrong bytes", unit="bytes", ours=0, peer=400, bar=0, is_count=True)
    assert (none.result().measured, none.result().is_met) == (0, True)
    some = Figure(what="Wrong bytes", unit="bytes", ours=1, peer=400, bar=0, is_count=True)
    assert not some.result().is_met
    assert none.ratio == float("inf")


def test_a_side_without_a_time_is_no_figure():
    with pytest.raises(ValueError, match="0 of the peer's"):
        of_times("Store", "ms", [0.1], [])


def test_a_page_has_each_figure_with_its_verdict():
    figures = [
        of_times("Store", "ms", [0.001], [0.003], [0.001], 4.0),
        Figure(what="Wrong bytes", unit="bytes", ours=0, peer=400, bar=0, is_count=True),
    ]
    lines = markdown(Race("race", "LMCache", report.machine(0.0), figures, [])).splitlines()
    assert lines[2:] == [
        "| Store | 1.00 ms | 3.00 ms | 1.00 ms | 3.00 x | ≥ 4.00 x | **missed** |",
        "| Wrong bytes | 0 bytes | 400 bytes |  |  | ≤ 0 bytes | met |",
    ]


@pytest.mark.parametrize(("amount", "text"), [(0, "0"), (0.034, "0.03"), (12.34, "12.3"), (440557484, "440,557,484")])
def test_amounts_are_as_exact_as_they_are_large(amount, text):
    assert spoken(amount) == text
