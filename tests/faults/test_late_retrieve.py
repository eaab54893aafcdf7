"""A load that comes long after its lookup, or never: its bytes, or a miss, and never other bytes."""

from collections.abc import Iterator

import pytest

from gateway.wire.codes import Role
from tests.support.daemon import Daemon
from tests.support.party import CHUNK_BYTES, RawParty, chunk_bytes
from tests.support.poll import until

POOL_CHUNKS = (8 << 20) // CHUNK_BYTES
LEASE_SECONDS = 3.0  # of the daemons of these tests


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """With an order of eviction in which two pools of new chunks leave nothing of before."""
    with Daemon({"KVGATE_EVICTION_POLICY": "lru"}) as started:
        yield started.start()


def leases(daemon: Daemon) -> float:
    return sum(sample.value for sample in daemon.snapshot().gauges if sample.name == "leases")


def test_a_lease_that_ran_out_in_a_queue_costs_the_lease_and_not_the_load(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir) as worker, RawParty(daemon.run_dir, Role.SCHEDULER) as scheduler:
        worker.register()
        scheduler.register()
        worker.store(range(4))
        assert scheduler.lookup(range(4), 1) == 4
        until(lambda: leases(daemon) == 0, 3 * LEASE_SECONDS, "the lookup's lease has run out")

        assert worker.load(range(4)) == [chunk_bytes(number) for number in range(4)]

        assert scheduler.lookup(range(4), 2) == 4
        scheduler.end_session(2)
        for first in range(100, 100 + 2 * POOL_CHUNKS, 16):
            worker.store(range(first, first + 16))
        assert worker.load(range(4)) == [None] * 4
        assert leases(daemon) == 0


def test_a_thousand_lookups_that_load_nothing_leave_the_pool_usable(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir) as worker, RawParty(daemon.run_dir, Role.SCHEDULER) as scheduler:
        worker.register()
        scheduler.register()
        worker.store(range(1000, 1016))
        for session in range(1, 1001):
            assert scheduler.lookup(range(1000, 1016), session) == 16
        scheduler.die()
        until(lambda: leases(daemon) == 0, what="its leases went with it")
        for first in range(2000, 2000 + 2 * POOL_CHUNKS, 16):
            worker.store(range(first, first + 16))
        assert worker.load(range(1000, 1016)) == [None] * 16
