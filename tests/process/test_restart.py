"""A killed daemon comes back with every committed chunk, byte by byte, and with nothing that was half written."""

import pytest

from gateway.pool.format import SlotState
from gateway.wire.codes import Role
from gateway.wire.messages import Clear, Cleared
from tests.support.daemon import Daemon
from tests.support.party import RawParty, chunk_bytes
from tests.support.poll import until


def restart(daemon: Daemon) -> None:
    daemon.kill()
    daemon.start()


def come_back(*parties: RawParty, holds_nothing: bool = True) -> None:
    for party in parties:
        party.reconnect()
        party.register(holds_nothing=holds_nothing)


def test_every_committed_chunk_is_there_after_each_kill(daemon: Daemon) -> None:
    with (
        RawParty(daemon.run_dir).register() as worker,
        RawParty(daemon.run_dir, Role.SCHEDULER).register() as scheduler,
    ):
        stored = 0
        for round_number in range(3):
            worker.store(range(stored, stored + 5))
            stored += 5
            boot = daemon.ready_line["boot_id"]

            restart(daemon)
            come_back(worker, scheduler)

            assert daemon.ready_line["boot_id"] != boot
            assert daemon.snapshot().slots.ready == stored
            assert scheduler.lookup(range(stored + 3), session=round_number + 1) == stored
            assert worker.load(range(stored)) == [chunk_bytes(number) for number in range(stored)]


def test_a_clean_stop_keeps_the_pool_just_as_well(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir).register() as worker:
        worker.store(range(5))
        assert daemon.stop() == 0
        daemon.start()
        come_back(worker)

        assert worker.load(range(5)) == [chunk_bytes(number) for number in range(5)]


def test_a_half_written_slot_stays_with_its_owner_until_the_owner_is_dead(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir).register() as party:
        (grant,) = party.reserve((1,), 1)

        restart(daemon)

        assert daemon.snapshot().slots.quarantined == 1
        header = party.pool.read_header(grant.slot)
        assert header is not None
        assert (header.state, header.owner) == (SlotState.WRITING, party.id)
        party.die()
        until(lambda: daemon.snapshot().slots.quarantined == 0, 1.5, "the slot freed by its owner's death")
        assert party.pool.read_header(grant.slot) is None


def test_a_half_written_slot_is_free_once_its_owner_says_it_holds_nothing(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir).register() as party:
        party.reserve((1,), 1)
        restart(daemon)

        come_back(party, holds_nothing=False)
        assert daemon.snapshot().slots.quarantined == 1
        come_back(party, holds_nothing=True)
        assert daemon.snapshot().slots.quarantined == 0


def test_an_owner_that_died_with_the_daemon_is_found_by_the_next_one(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir).register() as party:
        party.reserve((1,), 1)
        daemon.kill()
        party.die()
        daemon.start()

        until(lambda: daemon.snapshot().slots.quarantined == 0, 1.5, "the slot freed by its owner's death")


def test_generations_are_never_used_twice(daemon: Daemon) -> None:
    seen: set[int] = set()
    with RawParty(daemon.run_dir).register() as party:
        for operation in range(1, 4):
            grants = party.reserve(range(8), operation)
            generations = {grant.generation for grant in grants}
            assert len(generations) == 8
            assert not generations & seen
            seen |= generations
            restart(daemon)
            come_back(party)


def test_what_was_cleared_does_not_come_back(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir).register() as party:
        party.store(range(4))
        with daemon.admin_client() as client:
            reply = client.request(Clear(number=0, requested_by="test", all=True))
        assert isinstance(reply, Cleared)
        assert reply.chunks == 4
        party.store((9,))

        restart(daemon)

        assert daemon.snapshot().slots.ready == 1
        come_back(party)
        assert party.load((0, 9)) == [None, chunk_bytes(9)]


def test_a_pool_of_another_size_starts_empty_and_says_so(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir).register() as party:
        party.store(range(4))
        assert daemon.stop() == 0
        other = Daemon(
            {"KVGATE_POOL_SIZE": "4MiB"}, ("--run-dir", str(daemon.run_dir)), own_run_dir=False, base=daemon.base / "b"
        )
        (daemon.base / "b").mkdir()
        with other:
            other.start()
            assert other.snapshot().slots.ready == 0
            assert other.snapshot().slots.pool_bytes == 4 << 20
            assert any("set aside" in str(line["note"]) for line in other.log_lines("pool_note"))
            assert not party.pool.is_current()


@pytest.mark.parametrize("garbage", [b"", b"not a pool at all" * 1000])
def test_a_file_that_is_no_pool_is_set_aside(garbage: bytes) -> None:
    with Daemon() as daemon:
        daemon.run_dir.mkdir()
        daemon.pool.write_bytes(garbage)

        daemon.start()

        assert daemon.snapshot().ready
        assert daemon.snapshot().slots.ready == 0
