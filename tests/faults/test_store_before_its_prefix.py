"""The second half of a prompt is to be stored while the gateway is at the first, and the pool is full of others."""

from gateway.wire.codes import CopyStatus
from gateway.wire.messages import Copied
from tests.support.daemon import Daemon
from tests.support.handle_party import HandleParty
from tests.support.party import CHUNK_BYTES, chunk_key
from tests.support.poll import until

POOL_CHUNKS = (8 << 20) // CHUNK_BYTES
COPIED, FULL = CopyStatus.COPIED, CopyStatus.FULL


def fill_pool(party: HandleParty) -> None:
    for first in range(1000, 1000 + POOL_CHUNKS, 16):
        message = party.store_message(range(first, first + 16), party.next_operation(), places=[0] * 16)
        assert set(party.copy(message)) <= {COPIED, CopyStatus.EXISTS}


def test_it_waits_for_the_chunk_before_it(daemon: Daemon) -> None:
    with HandleParty(daemon.run_dir) as party:
        party.register()
        fill_pool(party)
        event = party.event()
        first = party.store_message(range(24), 101, places=[0] * 24, event=event.ipc_handle())
        second = party.store_message(range(24, 28), 102, places=[0] * 4, parent=chunk_key(23), depth=24)
        party.dealer.send(first)
        party.dealer.send(second)
        until(lambda: daemon.snapshot().slots.writing == 16, what="the first window is reserved")

        event.record()

        replies = [party.dealer.receive(10), party.dealer.receive(10)]
        assert [reply.results for reply in replies if isinstance(reply, Copied)] == [(COPIED,) * 24, (COPIED,) * 4]


def test_it_is_refused_when_the_chunk_before_it_will_not_come(daemon: Daemon) -> None:
    with HandleParty(daemon.run_dir) as party:
        party.register()
        fill_pool(party)

        assert party.copy(party.store_message([200], 101, parent=chunk_key(199), depth=199)) == (FULL,)
