"""What a peer may put in the place for events, or under its own memory: it fails alone, and holds up nobody.

A named pipe in an event's place would be waited for, by the thread of all copies or by the daemon's loop; memory that
its owner makes smaller ends with SIGBUS whoever touches it, and so the daemon of all engines.
"""

import os
import time
from pathlib import Path

import msgspec
import pytest

from gateway.device.host_event import sweep
from gateway.device.passing import SOCKET, send
from gateway.wire.codes import CopyStatus, ErrorCode
from gateway.wire.messages import Error, SharedMemory
from tests.support.daemon import Daemon
from tests.support.handle_party import BLOCK_BYTES, NUM_BLOCKS, NUM_CELLS, HandleParty
from tests.support.poll import until

HANDLE = "ab" * 16
LONG_AGO = time.time() - 60


def growing(party: HandleParty, daemon: Daemon, nbytes: int) -> tuple[int, SharedMemory]:
    """Memory that can change its size, passed on; its descriptor is the caller's."""
    fd = os.memfd_create("kvgate-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    token = os.urandom(16)
    send(daemon.run_dir / SOCKET, [(token, fd)])
    return fd, SharedMemory(token, nbytes)


@pytest.mark.parametrize(("kind", "key"), [("pipe", 0), ("link", 1), ("directory", 2)])
def test_what_is_no_event_fails_its_store_alone(daemon: Daemon, kind: str, key: int) -> None:
    event = daemon.run_dir / "events" / HANDLE
    with HandleParty(daemon.run_dir) as party:
        party.register()
        put(event, kind)
        try:
            assert party.copy(party.store_message([key], 1, event=HANDLE.encode())) == (CopyStatus.EVENT_ERROR,)
            assert party.copy(party.store_message([key], 2)) == (CopyStatus.COPIED,)
        finally:
            event.rmdir() if kind == "directory" else event.unlink()


def put(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        fired = path.parent.parent / "fired"
        fired.write_bytes(b"\1")
        path.symlink_to(fired)
    else:
        path.mkdir()


def test_the_sweep_takes_pipes_and_links_away_and_waits_for_none(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    target = tmp_path / "target"
    target.touch()
    put(events / "pipe", "pipe")
    (events / "link").symlink_to(target)
    (events / "nowhere").symlink_to(tmp_path / "none")
    for entry in list(events.iterdir()):
        os.utime(entry, (LONG_AGO, LONG_AGO), follow_symlinks=False)

    assert sweep(tmp_path) == 3

    assert not list(events.iterdir())
    assert target.exists()


def test_memory_that_was_shrunk_fails_its_copy_and_the_daemon_lives(daemon: Daemon) -> None:
    with HandleParty(daemon.run_dir) as party:
        party.dealer.hello()
        message = party.register_message()
        assert message.offer is not None
        fd, memory = growing(party, daemon, NUM_BLOCKS * BLOCK_BYTES)
        offer = msgspec.structs.replace(message.offer, memories=(memory,))
        party.dealer.ask(msgspec.structs.replace(message, offer=offer))
        assert party.copy(party.store_message([7], 1)) == (CopyStatus.COPIED,)

        os.ftruncate(fd, 0)
        os.close(fd)

        assert party.copy(party.store_message([8], 2)) == (CopyStatus.COPY_ERROR,)
        assert party.copy(party.retrieve_message([7], 3, [0])) == (CopyStatus.COPY_ERROR,)
    assert daemon.is_running


def test_a_board_that_could_shrink_is_refused(daemon: Daemon) -> None:
    with HandleParty(daemon.run_dir) as party:
        party.dealer.hello()
        message = party.register_message()
        assert message.offer is not None
        fd, board = growing(party, daemon, NUM_CELLS)
        os.close(fd)
        offer = msgspec.structs.replace(message.offer, board=board)

        reply = party.dealer.ask(msgspec.structs.replace(message, offer=offer))

        assert isinstance(reply, Error)
        assert reply.code is ErrorCode.INCOMPATIBLE
        assert "F_SEAL_SHRINK" in reply.message


def test_a_pipe_in_the_pools_place_is_told_and_not_waited_for() -> None:
    with Daemon() as daemon:
        daemon.start()
        pool, aside = daemon.pool, daemon.pool.with_name("pool.aside")
        pool.rename(aside)
        os.mkfifo(pool)
        try:
            until(
                lambda: any("another file" in check.reason for check in daemon.snapshot().checks),
                what="the pool's check says so",
            )
        finally:
            aside.rename(pool)
