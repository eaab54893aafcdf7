"""Our writer of the text format says what the client library's says, byte for byte."""

import math

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from gateway.metrics import exposition
from gateway.metrics.collector import Scrape
from gateway.wire.messages import SnapshotReply
from tests.wire.samples import REPLIES

AWKWARD = 'back\\slash "quoted"\nsecond line, ümlaut'


class Families(Collector):
    def __init__(self, *families) -> None:
        self._families = families

    def collect(self):
        return iter(self._families)


def awkward() -> Families:
    gauge = GaugeMetricFamily("g", f"help with {AWKWARD}", labels=["zeta", "alpha"])
    for value in (0.0, -1.5, 1e300, 3e-7, 123456789.0, 1e6, math.inf, -math.inf, math.nan):
        gauge.add_metric([AWKWARD, str(value)], value)
    counter = CounterMetricFamily("c", "count", labels=["kind"])
    counter.add_metric([""], 7)
    histogram = HistogramMetricFamily("h_seconds", "times", labels=["engine"])
    histogram.add_metric(["e"], [("0.1", 1), ("+Inf", 4)], 2.5)
    return Families(gauge, counter, histogram, GaugeMetricFamily("bare", "no labels", value=1))


def test_awkward_names_and_numbers_are_written_as_the_library_writes_them() -> None:
    families = awkward()

    assert exposition.text(families.collect()) == generate_latest(families)


def test_a_whole_scrape_is_written_as_the_library_writes_it() -> None:
    snapshot = next(reply for reply in REPLIES if isinstance(reply, SnapshotReply))
    scrape = Scrape(snapshot, {"core": None}, 0.25)

    assert len(snapshot.engines) > 0
    assert scrape.text() == generate_latest(scrape)
