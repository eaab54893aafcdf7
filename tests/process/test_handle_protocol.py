"""Handle mode at the socket: a real daemon copies for a party that says what it likes, when it likes."""

import time
from collections.abc import Iterator

import msgspec
import pytest

from gateway.wire.codes import CopyStatus, ErrorCode, TransferMode
from gateway.wire.messages import Copied, Done, Error, Fence, Ping, Unregister
from tests.support.daemon import Daemon
from tests.support.handle_party import NUM_CELLS, HandleParty
from tests.support.party import RawParty, chunk_bytes
from tests.support.poll import until

COPIED, CANCELLED = CopyStatus.COPIED, CopyStatus.CANCELLED


@pytest.fixture
def party(daemon: Daemon) -> Iterator[HandleParty]:
    with HandleParty(daemon.run_dir) as made:
        made.register()
        yield made


def gauge(daemon: Daemon, name: str) -> float:
    return next(sample.value for sample in daemon.snapshot().gauges if sample.name == name)


def is_stored(party: HandleParty, number: int) -> bool:
    """Whether the chunk is readable; its bytes must be its own."""
    reader = 1000 + party.next_operation()
    [result] = party.copy(party.retrieve_message([number], reader, [15]))
    party.release_event(reader)
    assert result in (COPIED, CopyStatus.MISSING)
    assert result is not COPIED or party.read_place(15) == chunk_bytes(number)
    return result is COPIED


def test_what_was_stored_is_loaded_into_other_blocks(party: HandleParty) -> None:
    for place in range(3):
        party.fill(place, place)
    assert party.copy(party.store_message([0, 1, 2], 1)) == (COPIED,) * 3

    assert party.copy(party.retrieve_message([2, 0, 99], 2, [10, 11, 12])) == (COPIED, COPIED, CopyStatus.MISSING)

    assert (party.read_place(10), party.read_place(11)) == (chunk_bytes(2), chunk_bytes(0))
    assert party.read_place(12) == bytes(len(chunk_bytes(0)))


def test_a_store_longer_than_a_window_and_than_the_quota_goes_through(party: HandleParty) -> None:
    message = party.store_message(list(range(40)), 1, places=[0] * 40)  # 2.5 of 8 MiB; the quota is 2

    assert party.copy(message) == (COPIED,) * 40


def test_a_store_waits_for_its_event_and_others_go_on(party: HandleParty, daemon: Daemon) -> None:
    event = party.event()
    waiting = party.dealer.send(party.store_message([0], 1, event=event.ipc_handle()))
    until(lambda: gauge(daemon, "imported_events") == 1, what="the event is imported")
    assert party.copy(party.store_message([1], 2, places=[1])) == (COPIED,)

    party.fill(0, 0)
    event.record()

    reply = party.dealer.receive()
    assert isinstance(reply, Copied)
    assert (reply.number, reply.results) == (waiting, (COPIED,))
    assert is_stored(party, 0)
    assert gauge(daemon, "imported_events") == 0


def test_an_event_dropped_before_it_is_opened_fails_its_store_by_name(party: HandleParty) -> None:
    event = party.event()
    handle = event.ipc_handle()
    event.close()

    assert party.copy(party.store_message([0], 1, event=handle)) == (CopyStatus.EVENT_ERROR,)
    assert not is_stored(party, 0)


def test_an_event_that_never_fires_ends_its_operation_at_the_deadline(party: HandleParty, daemon: Daemon) -> None:
    party.deadline_seconds = 0.3
    event = party.event()

    assert party.copy(party.store_message([0], 1, event=event.ipc_handle())) == (CopyStatus.EXPIRED,)

    assert gauge(daemon, "imported_events") == 0
    assert gauge(daemon, "copying_operations") == 0


def test_a_retrieves_event_is_kept_until_it_is_released(party: HandleParty, daemon: Daemon) -> None:
    party.copy(party.store_message([0], 1))
    reply = party.dealer.ask(party.retrieve_message([0], 2, [1]))
    assert isinstance(reply, Copied)
    opens_at = time.monotonic() + 1.0  # as slow a peer as the field has seen
    until(lambda: time.monotonic() > opens_at, what="a second later")
    assert (daemon.run_dir / "events" / reply.event.decode()).exists()
    assert gauge(daemon, "exported_events") == 1

    party.release_event(2)

    assert gauge(daemon, "exported_events") == 0
    assert not (daemon.run_dir / "events" / reply.event.decode()).exists()


def test_a_lost_release_is_healed_by_a_heartbeat(party: HandleParty, daemon: Daemon) -> None:
    party.copy(party.store_message([0], 1))
    party.copy(party.retrieve_message([0], 2, [1]))
    party.ping(next_operation=3, operations=(2,))
    assert gauge(daemon, "exported_events") == 1

    party.ping(next_operation=3, operations=())

    assert gauge(daemon, "exported_events") == 0


# -- cancelled


def test_cancelled_before_it_came_it_starts_nothing(party: HandleParty) -> None:
    assert isinstance(party.dealer.ask(party.cancel_message(1)), Done)

    assert party.copy(party.store_message([0], 1)) == (CANCELLED,)
    assert not is_stored(party, 0)


def test_cancelled_while_it_waits_it_is_answered_and_then_acknowledged(party: HandleParty, daemon: Daemon) -> None:
    event = party.event()
    store = party.dealer.send(party.store_message([0], 1, event=event.ipc_handle()))
    cancels = [party.dealer.send(party.cancel_message(1)) for _ in range(2)]

    replies = [party.dealer.receive() for _ in range(3)]

    expected = [(store, Copied), (cancels[0], Done), (cancels[1], Done)]
    assert [(reply.number, type(reply)) for reply in replies] == expected
    event.record()
    assert party.copy(party.store_message([0], 1)) == (CANCELLED,)
    assert not is_stored(party, 0)
    assert daemon.snapshot().slots.writing == 0


def test_a_store_repeated_after_its_answer_reads_nothing_again(party: HandleParty) -> None:
    party.fill(0, 0)
    message = party.store_message([0], 1)
    assert party.copy(message) == (COPIED,)
    party.fill(0, 5)

    assert party.copy(message) == (COPIED,)
    assert party.copy(msgspec.structs.replace(message, keys=party.store_message([6], 1).keys)) == (COPIED,)

    assert is_stored(party, 0)
    assert not is_stored(party, 6)


def test_a_store_repeated_while_it_waits_is_answered_twice_and_done_once(party: HandleParty, daemon: Daemon) -> None:
    event = party.event()
    message = party.store_message([0], 1, event=event.ipc_handle())
    numbers = [party.dealer.send(message), party.dealer.send(message)]
    until(lambda: gauge(daemon, "imported_events") == 1, what="the event is imported")
    event.record()

    replies = [party.dealer.receive(), party.dealer.receive()]

    assert [(reply.number, reply.results) for reply in replies] == [(number, (COPIED,)) for number in numbers]
    copies = [sample for sample in daemon.snapshot().counters if sample.name == "copies"]
    assert [(sample.labels, sample.value) for sample in copies] == [(("store", "copied"), 1)]


def test_what_is_withdrawn_on_the_board_is_not_published(party: HandleParty, daemon: Daemon) -> None:
    event = party.event()
    store = party.dealer.send(party.store_message([0], 1, event=event.ipc_handle(), cell=3))
    party.board[3] = 1
    event.record()

    reply = party.dealer.receive()

    assert isinstance(reply, Copied)
    assert (reply.number, reply.results) == (store, (CANCELLED,))
    assert not is_stored(party, 0)
    assert daemon.snapshot().slots.writing == 0


def test_what_a_heartbeat_does_not_list_is_stopped(party: HandleParty, daemon: Daemon) -> None:
    event = party.event()
    party.dealer.send(party.store_message([0], 1, event=event.ipc_handle()))
    until(lambda: gauge(daemon, "imported_events") == 1, what="the event is imported")

    party.dealer.send(Ping(number=0, party=party.id, next_operation=2))

    stopped = party.dealer.receive()
    assert isinstance(stopped, Copied)
    assert stopped.results == (CANCELLED,)
    assert gauge(daemon, "imported_events") == 0


# -- parties


def test_a_daemon_that_leaves_copying_to_engines_names_both_sides() -> None:
    with Daemon({"KVGATE_TRANSFER": "pool"}) as daemon, HandleParty(daemon.start().run_dir) as party:
        assert party.dealer.hello().transfer is TransferMode.POOL

        reply = party.try_register()

        assert isinstance(reply, Error)
        assert reply.code is ErrorCode.INCOMPATIBLE
        assert "transfer handle" in reply.message
        assert "has pool" in reply.message


def test_a_daemon_that_copies_refuses_who_copies_itself() -> None:
    with Daemon({"KVGATE_TRANSFER": "handle"}) as daemon, RawParty(daemon.start().run_dir) as party:
        reply = party.try_register()

        assert isinstance(reply, Error)
        assert reply.code is ErrorCode.INCOMPATIBLE
        assert "transfer pool" in reply.message
        assert "has handle" in reply.message


def test_a_device_the_daemon_cannot_copy_for_is_named_and_nothing_is_half_registered(daemon: Daemon) -> None:
    with HandleParty(daemon.run_dir) as party:
        party.dealer.hello()
        message = msgspec.structs.replace(party.register_message(), offer=party.offer("xpu:0"))

        reply = party.dealer.ask(message)

        assert isinstance(reply, Error)
        assert reply.code is ErrorCode.INCOMPATIBLE
        assert "'xpu:0'" in reply.message
        assert party.ping().known is False
        assert gauge(daemon, "mapped_workers") == 0


def test_who_offers_rows_outside_of_its_memory_is_refused(daemon: Daemon) -> None:
    with HandleParty(daemon.run_dir) as party:
        party.dealer.hello()
        message = party.register_message()
        assert message.offer is not None
        [region] = message.offer.regions
        for wrong in (
            msgspec.structs.replace(region, memory=1),
            msgspec.structs.replace(region, offset=-1),
            msgspec.structs.replace(region, offset=1),
            msgspec.structs.replace(region, stride_bytes=region.row_bytes - 1),
            msgspec.structs.replace(region, stride_bytes=1 << 62),
        ):
            offer = msgspec.structs.replace(message.offer, regions=(wrong,))
            reply = party.dealer.ask(msgspec.structs.replace(message, offer=offer))
            assert isinstance(reply, Error), wrong
            assert reply.code is ErrorCode.INVALID


def test_what_makes_no_sense_is_refused_and_changes_nothing(party: HandleParty, daemon: Daemon) -> None:
    store, retrieve = party.store_message([0, 1], 1), party.retrieve_message([0], 2, [0])
    for wrong in (
        msgspec.structs.replace(store, blocks=store.blocks[:-1]),
        msgspec.structs.replace(store, blocks=store.blocks[:-4]),
        msgspec.structs.replace(store, keys=()),
        msgspec.structs.replace(store, cell=NUM_CELLS),
        msgspec.structs.replace(store, deadline=0.0),
        msgspec.structs.replace(retrieve, skip_blocks=5),
        msgspec.structs.replace(retrieve, skip_blocks=-1),
    ):
        reply = party.dealer.ask(wrong)
        assert isinstance(reply, Error), wrong
        assert reply.code is ErrorCode.INVALID
    assert isinstance(party.try_reserve((0,), 9), Error)
    assert gauge(daemon, "copying_operations") == 0
    assert daemon.snapshot().slots.writing == 0


def test_blocks_that_are_not_there_fail_their_copy_alone(party: HandleParty) -> None:
    store = party.store_message([0, 1], 1)
    blocks = store.blocks[:-4] + (1 << 31).to_bytes(4, "little")

    assert party.copy(msgspec.structs.replace(store, blocks=blocks)) == (COPIED, CopyStatus.COPY_ERROR)


def test_a_fenced_party_is_not_copied_for_any_more(daemon: Daemon, party: HandleParty) -> None:
    with daemon.admin_client() as operator:
        operator.request(Fence(number=0, requested_by="test", engine="engine-a"))

    for message in (party.store_message([0], 1), party.retrieve_message([0], 2, [1])):
        refused = party.dealer.ask(message)
        assert isinstance(refused, Error)
        assert refused.code is ErrorCode.UNKNOWN_PARTY
    again = party.try_register()
    assert isinstance(again, Error)
    assert again.code is ErrorCode.FENCED


@pytest.mark.parametrize("end", ["unregister", "die"])
def test_a_party_that_leaves_or_dies_takes_everything_along(daemon: Daemon, end: str) -> None:
    with HandleParty(daemon.run_dir) as party:
        party.register()
        party.copy(party.store_message([0], 1))
        party.copy(party.retrieve_message([0], 2, [1]))
        event = party.event()
        party.dealer.send(party.store_message([1], 3, event=event.ipc_handle()))
        until(lambda: gauge(daemon, "imported_events") == 1, what="the event is imported")

        if end == "unregister":
            party.dealer.send(Unregister(number=0, party=party.id))
        else:
            party.die()

        for name in ("imported_events", "exported_events", "copying_operations", "mapped_workers"):
            until(lambda name=name: gauge(daemon, name) == 0, what=f"no {name}")
        party.die()
        until(lambda: daemon.snapshot().slots.writing + daemon.snapshot().slots.quarantined == 0, what="no slots held")


def test_a_daemon_that_stops_ends_what_waits(daemon: Daemon, party: HandleParty) -> None:
    event = party.event()
    party.dealer.send(party.store_message([0], 1, event=event.ipc_handle()))
    until(lambda: gauge(daemon, "imported_events") == 1, what="the event is imported")

    assert daemon.stop() == 0

    assert not (daemon.run_dir / "handles.sock").exists()
