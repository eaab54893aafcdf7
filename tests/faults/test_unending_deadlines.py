"""Deadlines that never come: a number that is remembered until then would be remembered for ever, and fill the book."""

import msgspec
import pytest

from gateway.wire.codes import CopyStatus, ErrorCode
from gateway.wire.messages import Cancel, Copied, Done, Error
from tests.support.daemon import Daemon
from tests.support.handle_party import HandleParty

NEVER = (float("nan"), float("inf"), 1e300, -1.0)


@pytest.mark.parametrize("deadline", NEVER)
def test_a_copy_whose_deadline_never_comes_is_refused_and_nothing_is_held(daemon: Daemon, deadline: float) -> None:
    with HandleParty(daemon.run_dir) as party:
        party.register()
        for message in (
            party.store_message([0], 1, deadline=deadline),
            msgspec.structs.replace(party.retrieve_message([0], 2, [0]), deadline=deadline),
        ):
            reply = party.dealer.ask(message)
            assert isinstance(reply, Error), reply
            assert reply.code in (ErrorCode.INVALID, ErrorCode.EXPIRED)
        assert daemon.snapshot().slots.writing == 0


@pytest.mark.parametrize("deadline", NEVER)
def test_a_cancel_with_such_a_deadline_leaves_no_tombstone(daemon: Daemon, deadline: float) -> None:
    with HandleParty(daemon.run_dir) as party:
        party.register()

        assert isinstance(party.dealer.ask(Cancel(number=0, party=party.id, operation=1, deadline=deadline)), Done)

        reply = party.dealer.ask(party.store_message([0], 1))
        assert isinstance(reply, Copied), reply
        assert reply.results[0] in (CopyStatus.COPIED, CopyStatus.EXISTS)
