"""Which request is meant for whom, and when: boots, deadlines, sockets, repeated requests."""

import time
from pathlib import Path

import pytest

from gateway.client import GatewayRefused, GatewayUnreachable
from gateway.lock import DeathLock, party_offset
from gateway.wire.codes import ErrorCode, Role
from gateway.wire.messages import (
    Abort,
    Clear,
    Commit,
    Committed,
    Done,
    Drain,
    EndRead,
    Error,
    Fence,
    Lookup,
    Ping,
    Read,
    Reserve,
    Resume,
    SnapshotRequest,
)
from tests.support.daemon import Daemon
from tests.support.party import NAMESPACE, RawParty, chunk_key
from tests.support.poll import until


def code(reply: object) -> ErrorCode | None:
    return reply.code if isinstance(reply, Error) else None


def counted(daemon: Daemon, op: str, outcome: str) -> float:
    return sum(s.value for s in daemon.snapshot().counters if s.name == "requests" and s.labels == (op, outcome))


def test_a_request_for_another_boot_changes_nothing(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir).register() as party:
        (grant,) = party.reserve((1,), 1)
        stale = b"another boot, 16"

        reply = party.dealer.ask(
            Commit(
                number=0,
                boot=stale,
                party=party.id,
                operation=1,
                pool_id=party.pool.pool_id,
                reservations=(grant.generation,),
            )
        )

        assert code(reply) is ErrorCode.WRONG_BOOT
        assert daemon.snapshot().slots.ready == 0
        assert party.commit(1, grant.generation) == ("committed",)
    assert counted(daemon, "COMMIT", "wrong_boot") == 1


def test_a_request_that_waited_for_the_next_boot_is_refused_by_it(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir).register() as party:
        operation = party.next_operation()
        daemon.kill()
        party.dealer.send(Reserve(number=0, party=party.id, operation=operation, keys=(chunk_key(1),)))
        daemon.start()

        reply = party.dealer.receive(15)
        assert code(reply) is ErrorCode.WRONG_BOOT
        assert reply.boot.hex() == daemon.ready_line["boot_id"]
    assert daemon.snapshot().slots.writing == 0


def test_a_late_request_for_a_grant_is_expired_and_has_no_effect(daemon: Daemon) -> None:
    late = time.monotonic() - 0.001
    keys = (chunk_key(1),)
    with (
        RawParty(daemon.run_dir).register() as worker,
        RawParty(daemon.run_dir, Role.SCHEDULER).register() as scheduler,
    ):
        for party, message in (
            (worker, Reserve(number=0, deadline=late, party=worker.id, operation=1, keys=keys)),
            (worker, Read(number=0, deadline=late, party=worker.id, operation=2, keys=keys)),
            (
                scheduler,
                Lookup(number=0, deadline=late, party=scheduler.id, session=1, namespace=NAMESPACE, keys=keys),
            ),
        ):
            assert code(party.dealer.ask(message)) is ErrorCode.EXPIRED
    assert daemon.snapshot().slots.writing == 0


def test_what_ends_something_is_done_however_late(daemon: Daemon) -> None:
    late = time.monotonic() - 1.0
    with RawParty(daemon.run_dir).register() as party:
        first, second = party.reserve((1, 2), 1)

        reply = party.dealer.ask(
            Commit(
                number=0,
                deadline=late,
                party=party.id,
                operation=1,
                pool_id=party.pool.pool_id,
                reservations=(first.generation,),
            )
        )
        assert isinstance(reply, Committed)
        assert party.pool.read_header(first.slot) is not None
        assert isinstance(party.dealer.ask(Abort(number=0, deadline=late, party=party.id, operation=1)), Done)
        assert party.pool.read_header(second.slot) is None
        assert isinstance(party.dealer.ask(EndRead(number=0, deadline=late, party=party.id, operation=9)), Done)


@pytest.mark.parametrize(
    "message",
    [
        SnapshotRequest(number=0),
        Drain(number=0, requested_by="engine", deadline_seconds=0.0),
        Resume(number=0, requested_by="engine"),
        Clear(number=0, requested_by="engine", all=True),
        Fence(number=0, requested_by="engine", engine="engine-a"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_operators_messages_are_forbidden_on_the_shared_socket(daemon: Daemon, message) -> None:
    op = str(message.__struct_config__.tag)
    with daemon.dealer() as dealer:
        dealer.hello()

        assert code(dealer.ask(message)) is ErrorCode.FORBIDDEN
    assert daemon.snapshot().ready
    assert counted(daemon, op, "forbidden") == 1


@pytest.mark.parametrize("role", Role)
def test_a_party_whose_lock_is_not_held_is_refused(daemon: Daemon, role: Role) -> None:
    with RawParty(daemon.run_dir, role) as party:
        party.die()

        reply = party.try_register()

        assert code(reply) is ErrorCode.LOCK_NOT_HELD
        assert "lock" in reply.message
        assert not party.ping().known


def test_a_lock_on_another_file_is_no_sign_of_life(daemon: Daemon, tmp_path: Path) -> None:
    """As in a container that sees another file under the same name."""
    elsewhere = tmp_path / "pool"
    elsewhere.write_bytes(b"x")
    with RawParty(daemon.run_dir) as party:
        party.die()
        party.lock = DeathLock.take(elsewhere, party_offset(party.id))

        assert code(party.try_register()) is ErrorCode.LOCK_NOT_HELD


def test_a_commit_into_another_pool_publishes_nothing(daemon: Daemon) -> None:
    """The adapter filled a slot of a pool file that is the gateway's no more: the same slot here holds other bytes."""
    with RawParty(daemon.run_dir).register() as party:
        (grant,) = party.reserve((1,), 1)
        reservations = (grant.generation,)

        reply = party.dealer.ask(
            Commit(number=0, party=party.id, operation=1, pool_id=b"another pool, 16", reservations=reservations)
        )

        assert code(reply) is ErrorCode.INVALID
        assert party.pool.pool_id.hex() in reply.message
        slots = daemon.snapshot().slots
        assert (slots.ready, slots.writing) == (0, 1)


def test_a_dead_party_is_found_and_what_it_was_writing_is_free_again(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir).register() as party:
        party.store((1,))
        party.reserve((2, 3), 2)
        assert daemon.snapshot().slots.writing == 2

        party.die()

        until(lambda: daemon.snapshot().slots.writing == 0, 1.5, "slots of the dead party freed")
    slots = daemon.snapshot().slots
    assert (slots.ready, slots.quarantined) == (1, 0)
    deaths = [sample.value for sample in daemon.snapshot().counters if sample.name == "engine_deaths"]
    assert deaths == [1]


def test_the_client_finds_the_next_boot_by_itself_and_repeats_only_what_changes_nothing(daemon: Daemon) -> None:
    with daemon.admin_client() as client:
        client.request(SnapshotRequest(number=0))
        old = client.boot
        daemon.kill()
        daemon.start()

        with pytest.raises((GatewayRefused, GatewayUnreachable)):
            client.request(Resume(number=0, requested_by="test"))
        snapshot = client.request(SnapshotRequest(number=0))
        assert snapshot.boot.hex() == daemon.ready_line["boot_id"]
        assert client.boot != old


def test_the_client_says_when_nobody_is_there(daemon: Daemon) -> None:
    with daemon.client(timeout_seconds=0.3) as client:
        client.hello()
        daemon.kill()

        with pytest.raises(GatewayUnreachable):
            client.request(Ping(number=0))
        daemon.socket.unlink()
        with pytest.raises(GatewayUnreachable, match="no socket"):
            client.request(Ping(number=0))
        daemon.start()
        assert client.request(Ping(number=0), timeout_seconds=5).number > 0


def test_a_stopped_daemon_costs_the_client_its_timeout_and_no_more(daemon: Daemon) -> None:
    with daemon.client(timeout_seconds=0.3) as client:
        client.hello()
        daemon.pause()
        for _ in range(3):
            with pytest.raises(GatewayUnreachable):
                client.request(Ping(number=0))
        daemon.go_on()

        assert client.request(Ping(number=0), timeout_seconds=5).number > 0
