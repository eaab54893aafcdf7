"""The two ends of every copy: the engine's KV cache and the mapped pool.

Owns: the registered tensors, the copier made for them, the mapping of the pool. Must not know: operations, messages.
Guarded by the adapter's lock, but for ``copy`` and ``release``; nothing is replaced while a copy runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from adapter.actions import Unit
from adapter.geometry import Geometry, Tensor
from adapter.half import PoolUnusableError
from adapter.transfer.chunks import CopyUnit
from adapter.transfer.prefault import Prefault
from gateway.device.base import BlockCopier, Device, DeviceError, ExportedMemory, OpenedEvent
from gateway.device.copy import Region
from gateway.device.devices import open_device
from gateway.device.host import HostMemory, share
from gateway.device.passing import SOCKET, send
from gateway.pool.format import PoolFormatError
from gateway.pool.mapping import PoolMapping
from gateway.wire.codes import Reason
from gateway.wire.messages import HandleOffer, SharedMemory, SharedRegion

#: After a gateway's death, for what its device still copies.
DEATH_SETTLE_SECONDS = 1.0


class Memory:
    """Where one worker copies from and to. ``copy`` does so for one unit; tests put their own in its place."""

    def __init__(self, copy: CopyUnit, run_dir: Path, num_cells: int = 0) -> None:
        self._board = HostMemory.make(num_cells) if num_cells else None
        #: The withdrawal board of handle mode, for the ledger; empty without one.
        self.cells = memoryview(self._board or b"")
        self._run_dir = run_dir
        self._device: Device | None = None
        self._pinned: PoolMapping | None = None  # for the device, by the first copy: it takes long
        self._regions: tuple[Region, ...] = ()
        #: The KV cache's shape; None before it was registered.
        self.geometry: Geometry | None = None
        #: Bytes of one chunk of this worker; 0 before.
        self.chunk_bytes = 0
        self._copy = copy
        self._tensors: tuple[Tensor, ...] = ()  # keeps the memory alive to which the copier points
        self._copier: BlockCopier | None = None
        self._mapping: PoolMapping | None = None
        self._prefault: Prefault | None = None

    def set_cache(
        self, caches: Mapping[str, Tensor], geometry: Geometry, regions: Sequence[Region], blocks_per_chunk: int
    ) -> None:
        """Copy from and to this KV cache from now on."""
        try:
            device = open_device(str(next(iter(caches.values())).device), self._run_dir)
            copier = device.copier(regions, geometry.num_blocks)
        except DeviceError as error:
            raise ValueError(str(error)) from None
        self._device, self._copier = device, copier
        self._regions = tuple(regions)
        self._tensors = tuple(caches.values())
        self.geometry = geometry
        self.chunk_bytes = blocks_per_chunk * sum(region.row_bytes for region in regions)

    def share(self, caches: Mapping[str, Tensor]) -> None:
        """Move a KV cache on the CPU to memory that the gateway can map, in place; that of a device is so already.

        Raises:
            ValueError: it cannot be moved.
        """
        try:
            if _kind_of(caches) == "cpu":
                share(caches.values())
        except DeviceError as error:
            raise ValueError(str(error)) from None

    def offer(self) -> HandleOffer:
        """What the gateway needs to copy for us, in handle mode: everything is exported and passed on anew.

        Raises:
            PoolUnusableError: it cannot be, or nobody takes it.
        """
        device, board = self._device, None if self._board is None else self._board.export()
        if device is None or board is None or self.geometry is None:
            raise PoolUnusableError("there is no KV cache to offer", is_lasting=False)
        try:
            memories = device.export_memory(self._tensors)
            files = [(memory.handle, memory.fd) for memory in (*memories, board) if memory.fd >= 0]
            send(self._run_dir / SOCKET, files)
        except DeviceError as error:
            raise PoolUnusableError(str(error), is_lasting=False) from None
        return HandleOffer(
            device=str(self._tensors[0].device),
            memories=tuple(SharedMemory(memory.handle, memory.nbytes) for memory in memories),
            regions=tuple(_shared(region, memories) for region in self._regions),
            num_blocks=self.geometry.num_blocks,
            board=SharedMemory(board.handle, board.nbytes),
        )

    def open_event(self, handle: bytes) -> OpenedEvent:
        """Open an event of the gateway's.

        Raises:
            DeviceError: it cannot be opened.
        """
        if self._device is None:
            raise DeviceError("there is no KV cache, and no device")
        return self._device.open_event(handle)

    @property
    def settle_seconds(self) -> float:
        """How long a dead gateway's copies may still run."""
        return DEATH_SETTLE_SECONDS if self._device is not None and self._device.outlives_process else 0.0

    def map_pool(self, path: Path, pool_id: bytes) -> Callable[[], None]:
        """Map the pool, if another one is mapped or none.

        Returns:
            What gives up the mapping of before; it may take long.

        Raises:
            PoolUnusableError: it cannot be mapped, or is another pool than ``pool_id``. The mapping stays as it was.
        """
        if self._mapping is not None and self._mapping.pool_id == pool_id:
            return _nothing
        try:
            mapping = PoolMapping.open(path)
        except PoolFormatError as error:
            raise PoolUnusableError(str(error), is_lasting=True) from None
        except OSError as error:
            raise PoolUnusableError(f"cannot map {path}: {error}", is_lasting=False) from None
        if mapping.pool_id != pool_id:
            mapping.close()
            raise PoolUnusableError(f"{path} is another pool than the gateway's", is_lasting=False)
        give_up = partial(_unmap, self._mapping, self._prefault)
        self._mapping, self._prefault = mapping, Prefault(mapping)
        return give_up

    @property
    def pool_id(self) -> bytes:
        """Of the mapped pool; empty when there is none."""
        return b"" if self._mapping is None else self._mapping.pool_id

    def has_room_at(self, offset: int) -> bool:
        """Whether a chunk at this offset lies within the mapped pool."""
        return self._mapping is not None and 0 <= offset <= self._mapping.data_bytes - self.chunk_bytes

    def copy(self, unit: Unit) -> Reason:
        """Copy one unit that the ledger has begun. On a copy thread, without the lock."""
        if self._mapping is None or self._copier is None:
            return Reason.COPY_ERROR
        if self._pinned is not self._mapping and self._device is not None:
            self._pinned = self._mapping
            self._device.pin(self._mapping.data_address, self._mapping.data_bytes)
        return self._copy(unit, self._mapping, self._copier)

    def release(self) -> None:
        """No copy runs and none will: unmap the pool, let the tensors go."""
        _unmap(self._mapping, self._prefault)
        self._mapping = self._pinned = self._prefault = self._copier = None
        self._tensors = ()
        self._device = None
        self.cells.release()
        if self._board is not None:
            self._board.close()


def _kind_of(caches: Mapping[str, Tensor]) -> str:
    """The kind of device they lie on."""
    return str(next(iter(caches.values())).device).partition(":")[0] if caches else ""


def _shared(region: Region, memories: Sequence[ExportedMemory]) -> SharedRegion:
    """A region by its place in the memory that holds it."""
    for number, memory in enumerate(memories):
        if memory.address <= region.address < memory.address + memory.nbytes:
            return SharedRegion(number, region.address - memory.address, region.stride_bytes, region.row_bytes)
    raise PoolUnusableError("a row of the KV cache lies in none of its memories", is_lasting=False)


def _unmap(mapping: PoolMapping | None, prefault: Prefault | None) -> None:
    if prefault is not None:
        prefault.stop()
    if mapping is not None:
        mapping.close()


def _nothing() -> None:
    """There is no mapping to give up."""
