"""Every device, held to one suite: memory and events by handle, between real processes.

The CPU runs it anywhere. CUDA's runs where PyTorch finds a device, and says so where it does not.
"""

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gateway.device.base import DeviceError
from gateway.device.devices import open_device
from gateway.device.host import HostDevice, share
from gateway.device.host_event import DIRECTORY, HostEvent
from gateway.device.passing import SOCKET, send
from tests.support.handle_child import HandleChild
from tests.support.poll import until

ROW_BYTES = 4096
NUM_BLOCKS = 16
KINDS = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device here"),
        ],
    ),
]


class Pair:
    """This process with a KV cache of one layer, and another one that opens what it is given."""

    def __init__(self, kind: str, run_dir: Path, child: HandleChild) -> None:
        self.child = child
        self.device = open_device(kind, run_dir)
        self._kind = kind
        self._run_dir = run_dir
        self.cache = torch.randint(0, 256, (NUM_BLOCKS, ROW_BYTES), dtype=torch.uint8, device=kind)
        if kind == "cpu":
            share([self.cache])

    def event(self):
        """An event of this process that has fired."""
        event = self.device.record_event()
        until(event.query, what="the event fired")
        return event

    def pass_memory(self) -> tuple[str, int]:
        """Hand the cache out; its handle and size."""
        [memory] = self.device.export_memory([self.cache, self.cache.view(-1)])
        if memory.fd >= 0:
            send(self._run_dir / SOCKET, [(memory.handle, memory.fd)])
        return memory.handle.hex(), memory.nbytes

    def open_memory(self) -> None:
        self.child.ask("open_memory", *self.pass_memory(), NUM_BLOCKS, ROW_BYTES)

    def blocks(self, *block_ids: int) -> str:
        return self.cache[list(block_ids)].cpu().numpy().tobytes().hex()


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvgate-test-", dir="/dev/shm") as name:
        (Path(name) / DIRECTORY).mkdir()
        yield Path(name)


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, run_dir: Path) -> Iterator[Pair]:
    with HandleChild(request.param, run_dir) as child:
        yield Pair(request.param, run_dir, child)


# -- events


def test_an_opened_event_tells_whether_it_has_fired(pair: Pair) -> None:
    event = pair.event()

    pair.child.ask("open_event", event.ipc_handle().hex())

    assert pair.child.ask("query") == "True"


def test_a_handle_opens_only_while_the_producers_object_lives(pair: Pair) -> None:
    event = pair.event()
    handle = event.ipc_handle().hex()
    del event
    gc.collect()

    with pytest.raises(DeviceError):
        pair.child.ask("open_event", handle)


def test_an_opened_event_stays_usable_when_the_producers_object_is_gone(pair: Pair) -> None:
    event = pair.event()
    pair.child.ask("open_event", event.ipc_handle().hex())
    del event
    gc.collect()

    assert pair.child.ask("query") == "True"


def test_an_opened_event_stays_usable_when_the_producing_process_is_gone(pair: Pair) -> None:
    opened = pair.device.open_event(bytes.fromhex(pair.child.ask("produce")))

    pair.child.kill()

    until(opened.query, what="the event of a process that is gone has fired")


def test_the_end_of_a_forked_child_leaves_the_parents_event(pair: Pair) -> None:
    event = pair.event()
    child = os.fork()
    if child == 0:
        del event
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)

    pair.child.ask("open_event", event.ipc_handle().hex())

    assert pair.child.ask("query") == "True"


def test_what_never_was_an_event_does_not_open(pair: Pair) -> None:
    for handle in (b"", b"../pool", b"0" * 32, os.urandom(64)):
        with pytest.raises(DeviceError):
            pair.child.ask("open_event", handle.hex() or "00")


# -- memory and copies


def test_another_process_copies_out_of_the_engines_blocks(pair: Pair) -> None:
    pair.open_memory()

    assert pair.child.ask("gather", 3, 0, 15) == pair.blocks(3, 0, 15)


def test_another_process_copies_into_the_engines_blocks_and_no_others(pair: Pair) -> None:
    pair.open_memory()
    before = pair.blocks(*range(NUM_BLOCKS))
    data = os.urandom(2 * ROW_BYTES)

    pair.child.ask("scatter", data.hex(), 7, 2)

    assert pair.blocks(7, 2) == data.hex()
    others = [block for block in range(NUM_BLOCKS) if block not in (2, 7)]
    assert pair.blocks(*others) == "".join(
        before[2 * ROW_BYTES * block : 2 * ROW_BYTES * (block + 1)] for block in others
    )


def test_memory_larger_than_what_came_is_refused(pair: Pair) -> None:
    handle, nbytes = pair.pass_memory()

    with pytest.raises(DeviceError, match=f"{nbytes + 1} bytes was announced"):
        pair.child.ask("open_memory", handle, nbytes + 1, NUM_BLOCKS, ROW_BYTES)


# -- the CPU's own


def test_unshared_memory_is_refused_with_what_would_help(run_dir: Path) -> None:
    with pytest.raises(DeviceError, match="share_memory_"):
        HostDevice(run_dir).export_memory([torch.zeros(4)])


def test_a_storage_moved_to_shared_memory_keeps_its_bytes_and_its_views() -> None:
    storage = torch.arange(64)
    view = storage[8:16]

    share([storage])
    storage[8] = 99

    assert view.tolist() == [99, *range(9, 16)]


def test_a_device_without_events_is_refused_by_name(run_dir: Path) -> None:
    with pytest.raises(DeviceError, match="'xpu'"):
        open_device("xpu", run_dir)


def test_a_host_event_waits_within_its_bound(run_dir: Path) -> None:
    event = HostEvent(run_dir)

    assert not event.wait(0.01)
    event.record()
    assert event.wait(0)
    event.close()


def test_a_host_event_leaves_no_file_and_no_descriptor(run_dir: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))

    for _ in range(100):
        HostEvent(run_dir).record()

    gc.collect()
    assert list((run_dir / DIRECTORY).iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before
