"""Numbers that fit the wire, and nothing behind it: whoever sends them is refused, and nobody else notices."""

import pytest

from gateway.metrics.table import WAIT_BUCKETS
from gateway.wire.codes import ErrorCode, OperationKind, Phase, Role, State
from gateway.wire.messages import AdapterStats, Error, HistogramSample, OperationInfo, Register, Reserve, Sample
from tests.support import scrape
from tests.support.daemon import Daemon
from tests.support.party import CHUNK_BYTES, NAMESPACE, RawParty, chunk_key

HUGE = (2.0**70, 1e308)
LARGEST = 2**64 - 1


@pytest.mark.parametrize("value", HUGE)
def test_a_level_no_engine_can_have_does_not_blind_operators(daemon: Daemon, value: float) -> None:
    with RawParty(daemon.run_dir, engine="boasting") as party:
        party.register()
        party.ping(stats=AdapterStats(state=State.HEALTHY, gauges=(Sample("pending_stores", (), value),)))
        (engine,) = (engine for engine in daemon.snapshot().engines if engine.name == "boasting")
        assert engine.pending_stores == 0
        assert scrape.value(scrape.of_gateway(daemon.admin_url), "kvgate_scrape_success") == 1


@pytest.mark.parametrize("value", HUGE)
def test_a_total_no_engine_can_have_is_not_added(daemon: Daemon, value: float) -> None:
    counts = (LARGEST,) * (len(WAIT_BUCKETS) + 1)
    with RawParty(daemon.run_dir, engine="counting") as party:
        party.register()
        for _ in range(2):
            party.ping(
                stats=AdapterStats(
                    state=State.HEALTHY,
                    counters=(Sample("bytes", ("store",), value),),
                    histograms=(
                        HistogramSample("load_wait_seconds", (), counts, 1.0),
                        HistogramSample("lookup_wait_seconds", (), (0,) * len(counts), value),
                    ),
                )
            )
        (engine,) = (engine for engine in daemon.snapshot().engines if engine.name == "counting")
        assert [sample.name for sample in engine.counters] == ["invalid_samples"]
        assert not engine.histograms


def test_operations_of_any_numbers_can_be_told_to_operators(daemon: Daemon) -> None:
    operation = OperationInfo(
        number=LARGEST,
        request_id="\0",
        kind=OperationKind.STORE,
        phase=Phase.WAITING,
        age_seconds=float("nan"),
        chunks=-(2**63),
        settled_at=1e308,
    )
    with RawParty(daemon.run_dir) as party:
        party.register()
        party.ping(stats=AdapterStats(state=State.HEALTHY, pending=(operation,), settled=(operation,)))
        assert len(daemon.snapshot(transfers=True).transfers) == 2
        party.ping(stats=AdapterStats(state=State.HEALTHY))


def test_a_depth_that_no_header_can_hold_is_refused_before_a_slot_is_granted(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir) as party:
        party.register()
        request = Reserve(number=0, party=party.id, operation=1, keys=(chunk_key(1), chunk_key(2)), depth=2**32 - 2)
        reply = party.dealer.ask(request)
        assert isinstance(reply, Error), reply
        assert reply.code is ErrorCode.INVALID
        assert daemon.snapshot().slots.writing == 0


def test_a_chunk_of_more_tokens_than_there_are_is_refused(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir) as party:
        party.dealer.hello()
        reply = party.dealer.ask(
            Register(
                number=0,
                party=party.id,
                role=Role.WORKER,
                group="group-1",
                engine="engine-a",
                model="model-a",
                namespace=NAMESPACE,
                chunk_bytes=CHUNK_BYTES,
                chunk_tokens=LARGEST,
            )
        )
        assert isinstance(reply, Error), reply
        assert reply.code is ErrorCode.INVALID
        assert not daemon.log_lines("request_failed")
