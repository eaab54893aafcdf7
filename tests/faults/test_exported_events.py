"""Events of many loads that nobody has opened yet: the first is there after hundreds of others; released, all go."""

from gateway.device.host_event import OpenedHostEvent
from gateway.wire.messages import Copied
from tests.support.daemon import Daemon
from tests.support.handle_party import HandleParty

NUM_LOADS = 300


def test_the_first_event_opens_after_hundreds_of_others(daemon: Daemon) -> None:
    with HandleParty(daemon.run_dir) as party:
        party.register()
        party.copy(party.store_message([0], 1))
        events = []
        for operation in range(2, 2 + NUM_LOADS):
            reply = party.dealer.ask(party.retrieve_message([0], operation, [1]), 15.0)
            assert isinstance(reply, Copied), reply
            events.append(reply.event)
        assert len(set(events)) == NUM_LOADS

        for event in events:
            opened = OpenedHostEvent.open(daemon.run_dir, event)
            assert opened.query()
            opened.close()
        for operation in range(2, 2 + NUM_LOADS):
            party.release_event(operation)

        assert not list((daemon.run_dir / "events").iterdir())
