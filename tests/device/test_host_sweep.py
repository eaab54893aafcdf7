"""What a killed process leaves behind: its events are taken away, others' are not; its memory goes with it."""

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.device.base import DeviceError
from gateway.device.host import HostDevice, HostMemory
from gateway.device.host_event import DIRECTORY, MIN_SWEPT_AGE_SECONDS, HostEvent, sweep
from gateway.device.passing import MAX_FILES_A_DATAGRAM, SOCKET, TOKEN_BYTES, Inlet, send
from tests.support.handle_child import HandleChild


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvgate-test-", dir="/dev/shm") as name:
        (Path(name) / DIRECTORY).mkdir()
        yield Path(name)


@pytest.fixture
def inlet(run_dir: Path) -> Iterator[Inlet]:
    opened = Inlet(run_dir / SOCKET)
    yield opened
    opened.close()


def age(run_dir: Path) -> None:
    """Make every event as old as a sweep wants it."""
    then = time.time() - MIN_SWEPT_AGE_SECONDS - 1
    for path in (run_dir / DIRECTORY).iterdir():
        os.utime(path, (then, then))


def num_fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_events_of_the_dead_are_swept_and_those_of_the_living_stay(run_dir: Path) -> None:
    mine = HostEvent(run_dir)
    with HandleChild("cpu", run_dir) as child:
        theirs = child.ask("produce")
        age(run_dir)
        assert sweep(run_dir) == 0
        child.kill()

        assert sweep(run_dir) == 1

    assert not (run_dir / DIRECTORY / bytes.fromhex(theirs).decode()).exists()
    assert HostDevice(run_dir).open_event(mine.ipc_handle()).query() is False
    mine.close()


def test_an_event_too_young_to_be_locked_is_not_swept(run_dir: Path) -> None:
    (run_dir / DIRECTORY / "0123456789abcdef0123456789abcdef").touch()

    assert sweep(run_dir) == 0
    age(run_dir)
    assert sweep(run_dir) == 1


def test_a_directory_that_is_not_there_is_swept_clean() -> None:
    assert sweep("/nowhere/at/all") == 0


def test_memory_passed_before_it_is_asked_for_is_there(run_dir: Path, inlet: Inlet) -> None:
    memories = [HostMemory.make(4096 + i) for i in range(MAX_FILES_A_DATAGRAM + 3)]
    exported = [memory.export() for memory in memories]

    send(run_dir / SOCKET, [(one.handle, one.fd) for one in exported])

    device = HostDevice(run_dir, inlet)
    for memory, one in zip(memories, exported, strict=True):
        opened = device.open_memory(one.handle, one.nbytes)
        memory[:2] = b"hi"
        assert bytes(opened.view()[:2]) == b"hi"
        opened.close()
    assert len(inlet) == 0


def test_memory_is_taken_once(run_dir: Path, inlet: Inlet) -> None:
    memory = HostMemory.make(64)
    one = memory.export()
    send(run_dir / SOCKET, [(one.handle, one.fd)])
    device = HostDevice(run_dir, inlet)
    device.open_memory(one.handle, 64).close()

    with pytest.raises(DeviceError, match="no memory came"):
        device.open_memory(one.handle, 64)


def test_what_comes_without_its_tokens_is_closed_at_once(run_dir: Path, inlet: Inlet) -> None:
    before = num_fds()
    memory = HostMemory.make(64)
    fd = memory.export().fd
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(run_dir / SOCKET))
        for data in (b"short", bytes(3 * TOKEN_BYTES), bytes(2 * TOKEN_BYTES)):
            socket.send_fds(sender, [data], [fd, fd])
        sender.send(b"no file at all")

    inlet.receive()

    assert len(inlet) == 0
    memory.close()
    assert num_fds() == before


def test_a_passage_to_nobody_is_an_error_that_names_it(run_dir: Path) -> None:
    memory = HostMemory.make(64)

    with pytest.raises(DeviceError, match=str(run_dir / SOCKET)):
        send(run_dir / SOCKET, [(memory.export().handle, memory.export().fd)])


def test_shared_memory_cannot_shrink_under_those_who_map_it() -> None:
    memory = HostMemory.make(4096)

    with pytest.raises(PermissionError):
        os.ftruncate(memory.export().fd, 0)
