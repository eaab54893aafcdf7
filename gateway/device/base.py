"""What a device must offer for copies between processes: memory and events by handle, and copies in order.

Owns: the interface, and the errors of both sides. Must not know: any device, slots, messages. Any thread.

The engine's process *exports* its KV cache and records events; the gateway *opens* both, waits, and copies. One law
rules events on every device, and the tests hold each implementation to it: a handle opens only while the producer's
event object lives; an event that was opened stays usable after; a fork cannot destroy the parent's.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from gateway.device.copy import Region


class DeviceError(Exception):
    """A handle cannot be made or opened; the message says which, and why. Nothing has changed."""


class ExportedMemory(NamedTuple):
    """One allocation, as its owner tells of it.

    Attributes:
        handle: what the other process opens it with.
        address: of its first byte, here.
        nbytes: its size.
        fd: a descriptor that must be passed along with the handle (``passing``); -1: the handle is enough. It stays the
            allocation's own.
    """

    handle: bytes
    address: int
    nbytes: int
    fd: int = -1


class OpenedMemory(Protocol):
    """Another process's memory, mapped here until ``close``."""

    @property
    def address(self) -> int:
        """Of its first byte, here."""
        ...

    def check(self) -> None:
        """See that a copy can reach all of it still.

        Raises:
            DeviceError: its owner has made it smaller.
        """
        ...

    def close(self) -> None:
        """Unmap it. No copy may be running."""
        ...


class RecordedEvent(Protocol):
    """An event of this process, and the one object on whose life its handle depends."""

    def query(self) -> bool:
        """Whether everything before the record is done."""
        ...

    def ipc_handle(self) -> bytes:
        """What another process opens it with."""
        ...


class OpenedEvent(Protocol):
    """Another process's event. Dropping it closes it."""

    def query(self) -> bool:
        """Whether everything before its record is done."""
        ...


class BlockCopier(Protocol):
    """Copies chunks between paged blocks and a slot; what it was asked is done when it returns."""

    def gather(self, block_ids: array[int], slot_address: int) -> None:
        """Blocks into a slot. See ``ChunkCopier``."""
        ...

    def scatter(self, block_ids: array[int], slot_address: int, skip_blocks: int = 0) -> None:
        """A slot into blocks. See ``ChunkCopier``."""
        ...


class Device(Protocol):
    """One kind of device. Its name stands for the encoding of its handles too: two sides must name the same."""

    @property
    def name(self) -> str:
        """``cpu``, ``cuda``."""
        ...

    @property
    def outlives_process(self) -> bool:
        """Whether a copy can still run when the process that began it is gone."""
        ...

    def export_memory(self, tensors: Iterable[object]) -> list[ExportedMemory]:
        """The allocations in which these tensors lie, each once.

        Raises:
            DeviceError: one cannot be shared.
        """
        ...

    def open_memory(self, handle: bytes, nbytes: int) -> OpenedMemory:
        """Map another process's memory.

        Raises:
            DeviceError: it cannot be opened, or is smaller than ``nbytes``.
        """
        ...

    def record_event(self) -> RecordedEvent:
        """An event that fires when everything copied here before is done."""
        ...

    def open_event(self, handle: bytes) -> OpenedEvent:
        """Open another process's event.

        Raises:
            DeviceError: its producer has dropped it, or it never was one.
        """
        ...

    def copier(self, regions: Sequence[Region], num_blocks: int) -> BlockCopier:
        """Copies of one KV cache, whose memory stays open meanwhile.

        Args:
            regions: rows of the cache in the order they have in a slot, by their addresses here.
            num_blocks: of the cache.
        """
        ...

    def pin(self, address: int, nbytes: int) -> None:
        """Make the pool's memory quick to reach for the device. Where that cannot be, copies are slower."""
        ...
