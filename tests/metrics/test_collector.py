"""One scrape as text: every family from the first scrape on, every value from the snapshot it came with."""

import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import table
from gateway.metrics.collector import Scrape
from gateway.metrics.outcomes import OUTCOMES
from gateway.metrics.process import ProcessStats
from gateway.wire.codes import Health, Lifecycle
from gateway.wire.messages import HistogramSample, Sample
from tests.support import core_double

GOLDEN = Path(__file__).parent / "families.txt"
STATS = ProcessStats(cpu_seconds=1.5, resident_bytes=4096, open_fds=7, threads=3)
BOTH = {"core": STATS, "admin": STATS}


def families(text: bytes) -> dict[str, list]:
    """Samples by family, as Prometheus would read them."""
    return {family.name: family.samples for family in text_string_to_metric_families(text.decode())}


def value(text: bytes, name: str, **labels: str) -> float:
    found = [s for samples in families(text).values() for s in samples if s.name == name and s.labels == labels]
    assert len(found) == 1, f"{name}{labels}: {found}"
    return found[0].value


def outline(text: bytes) -> str:
    """Each family in a line: name, type, label names, number of series."""
    lines = []
    for family in text_string_to_metric_families(text.decode()):
        labels = sorted({name for sample in family.samples for name in sample.labels})
        lines.append(f"{family.name} {family.type} {','.join(labels) or '-'} {len(family.samples)}\n")
    return "".join(lines)


def test_the_whole_table_is_rendered_as_written_down() -> None:
    snapshot = core_double.snapshot(
        gauges=(Sample("model_chunks", ("m",), 1), Sample("model_bytes", ("m",), 1)),
        counters=(Sample("lookup_tokens", ("m",), 1), Sample("hit_tokens", ("m",), 1)),
    )
    text = Scrape(snapshot, BOTH, 0.001).text()
    assert outline(text) == GOLDEN.read_text(), (
        "if the change is meant, write the new outline to tests/metrics/families.txt"
    )


def test_families_without_a_single_series_are_still_announced() -> None:
    text = Scrape(core_double.snapshot(engines=(), checks=()), BOTH, 0.001).text()
    wanted = {table.GATEWAY_PREFIX + m.name for m in table.GATEWAY}
    wanted |= {table.ENGINE_PREFIX + m.name for m in table.engine_metrics()}
    assert set(families(text)) == wanted


def test_closed_label_sets_begin_at_zero() -> None:
    text = Scrape(core_double.snapshot(), BOTH, 0.001).text()
    assert value(text, "kvgate_requests_total", op="LOOKUP", outcome="ok") == 0
    shown = {(s.labels["op"], s.labels["outcome"]) for s in families(text)["kvgate_requests"]}
    assert shown == {(op, str(outcome)) for op, outcomes in OUTCOMES.items() for outcome in outcomes}
    assert ("LOOKUP", "incompatible") not in shown, "a lookup cannot end so"
    assert value(text, "kvgate_drains_total", outcome="forced") == 0
    assert value(text, "kvgate_engine_drains_total", engine="e1", model="m", trigger="dead") == 0
    assert value(text, "kvgate_request_duration_seconds_count", op="READ") == 0


def test_state_and_health_are_one_hot() -> None:
    text = Scrape(core_double.snapshot(state=Lifecycle.DRAINING, health=Health.DEGRADED, ready=False), BOTH, 0.0).text()
    states = {s.labels["state"]: s.value for s in families(text)["kvgate_state"]}
    assert states == {str(state): float(state is Lifecycle.DRAINING) for state in Lifecycle}
    healths = {s.labels["health"]: s.value for s in families(text)["kvgate_health"]}
    assert healths == {str(health): float(health is Health.DEGRADED) for health in Health}
    assert value(text, "kvgate_ready") == 0


def test_the_snapshot_s_own_fields_are_shown() -> None:
    snapshot = core_double.snapshot(
        drain=core_double.drain(), checks=(core_double.check("pool", ok=False),), loop_age_seconds=0.25
    )
    text = Scrape(snapshot, BOTH, 0.5).text()
    assert value(text, "kvgate_chunks", state="ready") == 3
    assert value(text, "kvgate_chunk_bytes", state="free") == 4096
    assert value(text, "kvgate_drain_remaining", what="operations") == 2
    assert value(text, "kvgate_health_check_ok", check="pool") == 0
    assert value(text, "kvgate_health_check_age_seconds", check="pool") == 0.1
    assert value(text, "kvgate_loop_age_seconds") == 0.25
    assert value(text, "kvgate_build_info", version="0.1.0") == 1
    assert value(text, "kvgate_scrape_success") == 1
    assert value(text, "kvgate_scrape_duration_seconds") == 0.5
    assert value(text, "kvgate_process_resident_bytes", process="core") == 4096


def test_the_core_s_samples_are_shown_under_their_full_names() -> None:
    snapshot = core_double.snapshot(
        gauges=(Sample("leases", ("read",), 4.0), Sample("model_chunks", ("llama",), 9.0)),
        counters=(Sample("requests", ("PING", "ok"), 12.0), Sample("hit_tokens", ("llama",), 512.0)),
        histograms=(HistogramSample("eviction_idle_seconds", (), (1, 0, 2, 0, 0, 0, 0, 0, 0, 3), 99.5),),
    )
    text = Scrape(snapshot, BOTH, 0.0).text()
    assert value(text, "kvgate_leases", kind="read") == 4
    assert value(text, "kvgate_leases", kind="lookup") == 0
    assert value(text, "kvgate_model_chunks", model="llama") == 9
    assert value(text, "kvgate_requests_total", op="PING", outcome="ok") == 12
    assert value(text, "kvgate_hit_tokens_total", model="llama") == 512
    buckets = [s.value for s in families(text)["kvgate_eviction_idle_seconds"] if s.name.endswith("_bucket")]
    assert buckets == [1, 1, 3, 3, 3, 3, 3, 3, 3, 6], "buckets are cumulative"
    assert value(text, "kvgate_eviction_idle_seconds_sum") == 99.5
    assert value(text, "kvgate_eviction_idle_seconds_count") == 6


def test_without_the_core_only_the_admin_process_speaks() -> None:
    text = Scrape(None, {"admin": STATS, "core": None}, 1.2).text()
    assert set(families(text)) == {
        "kvgate_scrape_success",
        "kvgate_scrape_duration_seconds",
        "kvgate_process_cpu_seconds",
        "kvgate_process_resident_bytes",
        "kvgate_process_open_fds",
        "kvgate_process_threads",
    }
    assert value(text, "kvgate_scrape_success") == 0
    assert {s.labels["process"] for s in families(text)["kvgate_process_threads"]} == {"admin"}


def test_samples_the_table_does_not_know_are_left_out() -> None:
    snapshot = core_double.snapshot(
        gauges=(Sample("from_tomorrow", (), 1.0), Sample("leases", ("read", "surplus"), 1.0)),
        engines=(core_double.engine(counters=(Sample("from_tomorrow", (), 1.0),)),),
    )
    assert Scrape(snapshot, BOTH, 0.0).text() == Scrape(core_double.snapshot(), BOTH, 0.0).text()


def test_label_values_are_escaped() -> None:
    hostile = 'm"\n\\'
    text = Scrape(core_double.snapshot(engines=(core_double.engine(model=hostile),)), BOTH, 0.0).text()
    assert value(text, "kvgate_engine_pending_stores", engine="e1", model=hostile) == 2


def test_promtool_has_nothing_to_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    for snapshot in (core_double.snapshot(), None):
        text = Scrape(snapshot, BOTH, 0.0).text()
        checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
