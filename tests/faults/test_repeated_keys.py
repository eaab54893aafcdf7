"""One key twice in one request: two copies into one slot, or a lease released twice. Refused, and nothing changed."""

import pytest

from gateway.wire.codes import ErrorCode, Role
from gateway.wire.messages import Error
from tests.support.daemon import Daemon
from tests.support.handle_party import HandleParty
from tests.support.party import RawParty


@pytest.mark.parametrize("numbers", [(0, 0), (*range(1, 33), 1)], ids=["in one window of slots", "in two"])
def test_a_copy_that_names_a_chunk_twice_is_refused(daemon: Daemon, numbers: tuple[int, ...]) -> None:
    with HandleParty(daemon.run_dir) as party:
        party.register()
        reply = party.dealer.ask(party.store_message(numbers, 1, places=[0] * len(numbers)))
        assert isinstance(reply, Error), reply
        assert reply.code is ErrorCode.INVALID
        assert daemon.snapshot().slots.writing == 0


def test_slots_for_a_chunk_twice_are_refused(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir) as party:
        party.register()
        reply = party.try_reserve((1, 2, 1), 1)
        assert isinstance(reply, Error), reply
        assert reply.code is ErrorCode.INVALID
        assert daemon.snapshot().slots.writing == 0


def test_a_lookup_of_a_chunk_twice_holds_and_gives_back_alike(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir) as worker, RawParty(daemon.run_dir, Role.SCHEDULER) as scheduler:
        worker.register()
        scheduler.register()
        worker.store((7,))
        assert scheduler.lookup((7, 7, 7), 1) == 3
        assert leases(daemon) == 1
        scheduler.end_session(1)
        assert leases(daemon) == 0


def leases(daemon: Daemon) -> float:
    return sum(sample.value for sample in daemon.snapshot().gauges if sample.name == "leases")
