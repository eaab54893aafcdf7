"""The gateway's own clock, alone: no board, no adapter that gives up, only a deadline that passes during a copy."""

from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.device.copy import Region
from gateway.device.host import HostDevice
from gateway.device.passing import SOCKET, Inlet
from gateway.handles.line import Unit
from gateway.handles.operation import Operation, Place
from gateway.handles.peer import Peer
from gateway.pool.file import PoolFile
from gateway.pool.mapping import PoolMapping
from gateway.wire.codes import CopyStatus
from tests.support.handle_party import HandleParty

START, DEADLINE = 100.0, 110.0


class SlowDevice(HostDevice):
    """A CPU whose copies take as long as the test says, on the test's clock."""

    now = START
    copy_seconds = 0.0
    num_copies = 0

    def copier(self, regions: list[Region], num_blocks: int):
        copier, device = super().copier(regions, num_blocks), self

        class Slow:
            def gather(self, block_ids: array, slot_address: int) -> None:
                copier.gather(block_ids, slot_address)
                device.num_copies += 1
                device.now += device.copy_seconds

        return Slow()


@pytest.fixture
def device(tmp_path: Path) -> Iterator[SlowDevice]:
    inlet = Inlet(tmp_path / SOCKET)
    yield SlowDevice(tmp_path, inlet)
    inlet.close()


@pytest.fixture
def unit_and_peer(tmp_path: Path, device: SlowDevice) -> Iterator[tuple[Unit, Peer, HandleParty]]:
    pool = PoolFile.open(tmp_path / "pool", data_bytes=1 << 20, slab_bytes=256 << 10, min_slot_bytes=4096)
    (tmp_path / "gateway.sock").touch()
    mapping = PoolMapping.open(pool.path)
    with HandleParty(tmp_path) as party:
        peer = Peer(party.register_message(), device, device, mapping, lambda: device.now)
        operation = Operation(party.store_message([0], 1, cell=5, deadline=DEADLINE), peer.blocks_per_chunk)
        yield Unit(operation, 0, Place(0, 0, 1)), peer, party
        peer.close()
    mapping.close()
    pool.close()


@pytest.mark.parametrize(
    ("begins_at", "copy_seconds", "copies", "status"),
    [
        (START, 9.9, 1, CopyStatus.COPIED),
        (START, 10.0, 1, CopyStatus.EXPIRED),
        (DEADLINE, 0.0, 0, CopyStatus.EXPIRED),
        (DEADLINE + 1, 0.0, 0, CopyStatus.EXPIRED),
    ],
)
def test_nothing_begins_at_the_deadline_and_what_ends_at_it_is_not_published(
    unit_and_peer: tuple[Unit, Peer, HandleParty],
    device: SlowDevice,
    begins_at: float,
    copy_seconds: float,
    copies: int,
    status: CopyStatus,
) -> None:
    unit, peer, _ = unit_and_peer
    device.now, device.copy_seconds = begins_at, copy_seconds

    assert peer.copy(unit) is status
    assert device.num_copies == copies


def test_a_cell_that_is_set_when_the_copy_ends_withdraws_it(
    unit_and_peer: tuple[Unit, Peer, HandleParty], device: SlowDevice
) -> None:
    unit, peer, party = unit_and_peer
    assert peer.copy(unit) is CopyStatus.COPIED

    party.board[5] = 1

    assert peer.copy(unit) is CopyStatus.CANCELLED


def test_a_stopped_operation_begins_nothing(unit_and_peer: tuple[Unit, Peer, HandleParty], device: SlowDevice) -> None:
    unit, peer, _ = unit_and_peer
    unit.operation.stopped = CopyStatus.DRAINED

    assert peer.copy(unit) is CopyStatus.DRAINED
    assert device.num_copies == 0
