"""Markers by the thousand, and names that no engine can have: the node's switch holds, and metrics stay readable."""

from pathlib import Path

import msgspec
import pytest

from gateway import switches
from gateway.switches import MAX_MARKERS, NODE
from gateway.wire.codes import ErrorCode, SwitchMode, SwitchScope
from gateway.wire.messages import Error
from tests.support.daemon import Daemon
from tests.support.party import RawParty


def test_of_a_flood_of_markers_a_bounded_number_is_read_and_the_node_s_among_them(tmp_path: Path) -> None:
    for number in range(MAX_MARKERS + 500):
        (tmp_path / f"switch.engine.off.e{number}").touch()
    (tmp_path / "switch.node.no_load.all").touch()

    reading = switches.read(tmp_path)

    assert len(reading.markers) == MAX_MARKERS
    assert reading.modes()[SwitchScope.NODE, NODE] is SwitchMode.NO_LOAD
    assert f"over {MAX_MARKERS} entries" in reading.complaints[0]


def test_a_marker_with_a_nul_is_none(tmp_path: Path) -> None:
    (tmp_path / "switch.model.off.a%00b").touch()

    reading = switches.read(tmp_path)

    assert reading.markers == ()
    assert "NUL" in reading.complaints[0]
    with pytest.raises(ValueError, match="NUL"):
        switches.put(tmp_path, SwitchScope.MODEL, "a\0b", SwitchMode.OFF)


def test_a_model_s_name_with_a_nul_is_refused(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir) as party:
        party.dealer.hello()

        reply = party.dealer.ask(msgspec.structs.replace(party.register_message(), model="a\0b"))

        assert isinstance(reply, Error)
        assert reply.code is ErrorCode.INVALID
        assert "expected no NUL" in reply.message
