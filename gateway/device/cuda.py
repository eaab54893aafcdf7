"""CUDA devices, through PyTorch and the runtime it has loaded. ROCm's PyTorch goes by the same names.

Owns: all that is CUDA in this project; no other module imports it. Must not know: messages, who copies when. Any
thread; PyTorch is imported with this module.

Memory is shared by CUDA's IPC handles, events by interprocess events. Copies run on a stream of their own: a chunk's
rows are gathered on the device into one buffer, which one transfer brings to the pool; and back. ``query`` is polled
until the transfer is complete: when a copy returns, its bytes are there, for this processor and for others.

What has been run on hardware, and what has not, stands in the documentation.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import torch

from gateway.device.base import BlockCopier, DeviceError, ExportedMemory, OpenedEvent
from gateway.device.copy import ChunkCopier, Region

#: PyTorch types its devices in part only.
cuda: Any = torch.cuda
Storage: Any = torch.UntypedStorage
Stream = Any

_PAUSE_SECONDS = 0.00005
_REGISTER_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context


class _Handle(msgspec.Struct, frozen=True, array_like=True):
    """What ``torch.UntypedStorage._share_cuda_`` gives, and ``_new_shared_cuda`` takes."""

    device: int
    memory: bytes
    nbytes: int
    offset: int
    counter: bytes
    counter_offset: int
    event: bytes
    needs_event: bool


class CudaEvent:
    """An interprocess event of this process, recorded when it is made, on the stream that copies."""

    def __init__(self, stream: Stream) -> None:
        self._event = cuda.Event(interprocess=True)
        self._event.record(stream)

    def query(self) -> bool:
        """Whether everything before the record is done."""
        return bool(self._event.query())

    def ipc_handle(self) -> bytes:
        """What another process opens it with, while this object lives."""
        return bytes(self._event.ipc_handle())


class CudaMemory:
    """Another process's allocation, mapped here until ``close``."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.address: int = storage.data_ptr()

    def check(self) -> None:
        """A device's memory does not shrink."""

    def close(self) -> None:
        """Unmap it. No copy may be running."""
        self._storage = None


class CudaDevice:
    """One CUDA device. The engine and the gateway must see the same devices in the same order.

    Args:
        index: of the device.

    Raises:
        DeviceError: there is no such device, or PyTorch was built without it.
    """

    name = "cuda"
    outlives_process = True

    def __init__(self, index: int = 0) -> None:
        num_devices = cuda.device_count() if cuda.is_available() else 0
        if not 0 <= index < num_devices:
            raise DeviceError(f"device 'cuda:{index}' cannot be used: PyTorch finds {num_devices} here")
        self._device = torch.device("cuda", index)
        self._stream = cuda.Stream(device=self._device)

    def export_memory(self, tensors: Iterable[object]) -> list[ExportedMemory]:
        """The storages of these tensors.

        Raises:
            DeviceError: one cannot be shared; memory of expandable segments and of pools cannot.
        """
        exported: dict[int, ExportedMemory] = {}
        for tensor in tensors:
            storage: Any = tensor.untyped_storage()  # type: ignore[attr-defined]
            if storage.data_ptr() in exported:
                continue
            try:
                handle = msgspec.msgpack.encode(_Handle(*storage._share_cuda_()))
            except RuntimeError as error:
                raise DeviceError(f"device memory cannot be shared: {error}") from None
            exported[storage.data_ptr()] = ExportedMemory(handle, storage.data_ptr(), storage.nbytes())
        return list(exported.values())

    def open_memory(self, handle: bytes, nbytes: int) -> CudaMemory:
        """Map another process's storage.

        Raises:
            DeviceError: it cannot be opened here, or is smaller than ``nbytes``.
        """
        try:
            given = msgspec.msgpack.decode(handle, type=_Handle)
            if not 0 < nbytes <= given.nbytes:
                raise DeviceError(f"memory of {nbytes} bytes was announced, {given.nbytes} came")
            parts = msgspec.structs.astuple(given)
            return CudaMemory(Storage._new_shared_cuda(*parts))  # noqa: SLF001
        except (msgspec.MsgspecError, RuntimeError) as error:
            raise DeviceError(f"device memory cannot be opened: {error}") from None

    def record_event(self) -> CudaEvent:
        """An event behind all that was copied here last."""
        return CudaEvent(self._stream)

    def open_event(self, handle: bytes) -> OpenedEvent:
        """Open another process's event.

        Raises:
            DeviceError: its producer has dropped it, or it never was one.
        """
        try:
            opened: OpenedEvent = cuda.Event.from_ipc_handle(self._device, handle)
        except (RuntimeError, ValueError) as error:
            raise DeviceError(f"the event's handle does not open: {error}") from None
        return opened

    def copier(self, regions: Sequence[Region], num_blocks: int) -> BlockCopier:
        """Copies of one KV cache, which lies on this device."""
        return CudaCopier(regions, num_blocks, self._device, self._stream)

    def pin(self, address: int, nbytes: int) -> None:
        """Pin the pool for transfers; where the driver refuses, they go through its own buffer, at half the speed."""
        with contextlib.suppress(RuntimeError):
            cuda.check_error(cuda.cudart().cudaHostRegister(address, nbytes, _REGISTER_PORTABLE))


class CudaCopier:
    """Chunks of one KV cache: gathered and scattered on the device, brought over in one piece."""

    def __init__(self, regions: Sequence[Region], num_blocks: int, device: torch.device, stream: Stream) -> None:
        self._stream = stream
        self._device = device
        self._checks = ChunkCopier(regions, num_blocks)
        self._rows = [_rows(region, num_blocks, device) for region in regions]

    def gather(self, block_ids: array[int], slot_address: int) -> None:
        """Copy blocks into a slot. See ``ChunkCopier.gather``."""
        self._checks.check(block_ids, 0)
        with cuda.stream(self._stream), self._done():
            index = torch.tensor(block_ids, dtype=torch.int64, device=self._device)
            packed = torch.cat([rows.index_select(0, index).reshape(-1) for rows in self._rows])
            _slot(slot_address, packed.numel()).copy_(packed, non_blocking=True)

    def scatter(self, block_ids: array[int], slot_address: int, skip_blocks: int = 0) -> None:
        """Copy a slot into blocks. See ``ChunkCopier.scatter``."""
        self._checks.check(block_ids, skip_blocks)
        size = self._checks.chunk_bytes(len(block_ids))
        with cuda.stream(self._stream), self._done():
            index = torch.tensor(block_ids[skip_blocks:], dtype=torch.int64, device=self._device)
            packed = _slot(slot_address, size).to(self._device, non_blocking=True)
            start = 0
            for rows in self._rows:
                width = rows.shape[1]
                part = packed[start : start + len(block_ids) * width].view(len(block_ids), width)
                rows.index_copy_(0, index, part[skip_blocks:])
                start += len(block_ids) * width

    @contextlib.contextmanager
    def _done(self) -> Iterator[None]:
        """What is begun inside is complete afterwards, also when it ends in an error."""
        try:
            yield
        finally:
            event = cuda.Event()
            event.record(self._stream)
            while not event.query():
                time.sleep(_PAUSE_SECONDS)


def _rows(region: Region, num_blocks: int, device: torch.device) -> torch.Tensor:
    """A region as [num_blocks, row_bytes] uint8 on the device, over the memory that is there."""
    return torch.as_tensor(_Span(region, num_blocks), device=device)


class _Span:
    """Device memory by address, in the way that PyTorch reads."""

    def __init__(self, region: Region, num_blocks: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_blocks, region.row_bytes),
            "strides": (region.stride_bytes, 1),
            "typestr": "|u1",
            "data": (region.address, False),
            "version": 2,
        }


def _slot(address: int, nbytes: int) -> torch.Tensor:
    """A slot of the pool as bytes, over the memory that is there."""
    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)
